// arch: 75+
// Fills, poisons and compares the arrays of the streaming kernels on the GPU. ELEMENT names the type of their elements.

#ifndef ELEMENT
#define ELEMENT 64
#endif

// 64, 32, 16: floating types of that many bits; 8: an unsigned byte. Halves are built from bits, as no header is
// included.
#if ELEMENT == 64
typedef double Element;
#elif ELEMENT == 32
typedef float Element;
#elif ELEMENT == 16
typedef unsigned short Element;
#else
typedef unsigned char Element;
#endif

__device__ __forceinline__ Element element(u32 value) {
#if ELEMENT == 16
    Element bits;
    asm("cvt.rn.f16.u32 %0, %1;" : "=h"(bits) : "r"(value));
    return bits;
#else
    return (Element)value;
#endif
}

// The values are whole numbers below 16, so that every result and every sum of the kernels is exact in every type.
__device__ __forceinline__ u32 value_at(u64 index, u32 seed) {
    return word_at(index, seed) & 15;
}

extern "C" __global__ void fill_values(Element *array, u64 count, u32 seed) {
    for (u64 i = thread_index(); i < count; i += grid_threads()) array[i] = element(value_at(i, seed));
}

extern "C" __global__ void fill_constant(Element *array, u64 count, u32 value) {
    for (u64 i = thread_index(); i < count; i += grid_threads()) array[i] = element(value);
}

// The least index whose element differs from constant + by_first * first[i] + by_second * second[i], where `first` and
// `second` are seeds of values.
extern "C" __global__ void differs(
    const Element *array, u64 count, u32 first, u32 by_first, u32 second, u32 by_second, u32 constant, u64 *first_wrong
) {
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        u32 wanted = constant + by_first * value_at(i, first) + by_second * value_at(i, second);
        if (array[i] != element(wanted)) atomicMin(first_wrong, i);
    }
}

// The sum of the values of one seed, or with `multiplied` of the products of two seeds, without reading any array.
extern "C" __global__ void expected_sum(u64 count, u32 first, u32 second, u32 multiplied, u64 *sum) {
    u64 own = 0;
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        own += value_at(i, first) * (multiplied ? value_at(i, second) : 1);
    }
    atomicAdd(sum, own);
}

// Adds up the sums of all blocks. A block that did not overwrite its poison makes the total far too large or small.
extern "C" __global__ void add_up(const u64 *parts, u64 count, u64 *sum) {
    u64 own = 0;
    for (u64 i = thread_index(); i < count; i += grid_threads()) own += parts[i];
    atomicAdd(sum, own);
}

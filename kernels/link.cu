// arch: 75+
// Kernels of the link suite: patterns made and checked on the GPU, copies by the SMs, and dependent reads of far
// memory.

__device__ __forceinline__ u32 pattern(u64 index, u32 seed, u32 flip) {
    return word_at(index, seed) ^ flip;
}

// Fills memory with a pattern in which word i is a hash of its place. A `flip` of all ones gives poison, which differs
// from the pattern in every byte. A size that is no multiple of 4 ends with the low bytes of one more word.
extern "C" __global__ void fill(u32 *words, u64 size_bytes, u32 seed, u32 flip) {
    u64 whole = size_bytes / 4, thread = thread_index();
    for (u64 i = thread; i < whole; i += grid_threads()) words[i] = pattern(i, seed, flip);
    if (thread < size_bytes % 4) ((u8 *)(words + whole))[thread] = (u8)(pattern(whole, seed, flip) >> 8 * thread);
}

// Lowers `first_wrong` to the place of the first byte that differs from the pattern.
extern "C" __global__ void differ(const u32 *words, u64 size_bytes, u32 seed, u64 *first_wrong) {
    u64 whole = size_bytes / 4, thread = thread_index();
    for (u64 i = thread; i < whole; i += grid_threads()) {
        if (words[i] != pattern(i, seed, 0)) atomicMin(first_wrong, 4 * i);
    }
    if (thread < size_bytes % 4) {
        u8 wanted = (u8)(pattern(whole, seed, 0) >> 8 * thread);
        if (((const u8 *)(words + whole))[thread] != wanted) atomicMin(first_wrong, 4 * whole + thread);
    }
}

// The same for rows: the first `width` bytes of each are the pattern's, the others up to `pitch` the poison's.
extern "C" __global__ void differ_rows(
    const u8 *bytes, u64 size_bytes, u32 seed, u64 width, u64 pitch, u64 *first_wrong
) {
    for (u64 i = thread_index(); i < size_bytes; i += grid_threads()) {
        u8 wanted = (u8)(pattern(i / 4, seed, i % pitch < width ? 0 : ~0u) >> 8 * (i % 4));
        if (bytes[i] != wanted) atomicMin(first_wrong, i);
    }
}

// Lowers `first_wrong` to the place of the first byte that is not `value`.
extern "C" __global__ void differ_bytes(const u8 *bytes, u64 size_bytes, u32 value, u64 *first_wrong) {
    for (u64 i = thread_index(); i < size_bytes; i += grid_threads()) {
        if (bytes[i] != (u8)value) atomicMin(first_wrong, i);
    }
}

// Copies by the SMs: neighbouring threads move neighbouring elements, and each has eight loads in flight, as the link
// needs about 70 kB in flight. The rest of a size that is no multiple of the width is copied byte by byte.
template <typename Element>
__device__ __forceinline__ void copy_by(const Element *source, Element *destination, u64 size_bytes) {
    const int ahead = 8;
    u64 count = size_bytes / sizeof(Element), step = grid_threads(), thread = thread_index(), i = thread;
    for (; i + (ahead - 1) * step < count; i += ahead * step) {
        Element moved[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++) moved[k] = source[i + k * step];
#pragma unroll
        for (int k = 0; k < ahead; k++) destination[i + k * step] = moved[k];
    }
    for (; i < count; i += step) destination[i] = source[i];
    u64 rest = count * sizeof(Element) + thread;
    if (rest < size_bytes) ((u8 *)destination)[rest] = ((const u8 *)source)[rest];
}

#define COPY(name, Element)                                                                                            \
    extern "C" __global__ void name(const Element *source, Element *destination, u64 size_bytes) {                     \
        copy_by(source, destination, size_bytes);                                                                      \
    }
COPY(copy4, u32)
COPY(copy8, uint2)
COPY(copy16, uint4)

// Dependent reads by one thread of block `target`. Each line holds the address of the next. The walk begins at place[0]
// and leaves its end there for the next one. Volatile reads bypass the SM's cache.
extern "C" __global__ void walk(u64 *place, u32 reads, u32 target, u64 *out_ns) {
    if (blockIdx.x != target) return;
    const u64 *line = (const u64 *)place[0];
    if (line == 0) return;  // the comparison makes the timer wait for the first line
    u64 begin_ns = globaltimer_ns();
    for (u32 i = 0; i < reads; i++) line = (const u64 *)*(const volatile u64 *)line;
    if (line == 0) return;  // the comparison makes the timer wait for the last line
    out_ns[target] = globaltimer_ns() - begin_ns;
    place[0] = (u64)line;
}

// The same, with every read stamped by the SM's clock.
extern "C" __global__ void walk_stamped(u64 *place, u32 reads, u32 *cycles, u64 *total_ns, u64 *total_cycles) {
    const u64 *line = (const u64 *)place[0];
    if (line == 0) return;
    u64 begin_ns = globaltimer_ns();
    u64 first = clock64(), before = first;
    for (u32 i = 0; i < reads; i++) {
        line = (const u64 *)*(const volatile u64 *)line;
        if (line == 0) return;
        u64 now = clock64();
        cycles[i] = (u32)(now - before);
        before = now;
    }
    *total_cycles = before - first;
    *total_ns = globaltimer_ns() - begin_ns;
    place[0] = (u64)line;
}

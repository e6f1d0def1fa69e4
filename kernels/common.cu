// arch: 75+
// What several kernel files share: microbench/gpu/cuda/context.py puts it before each of them, as kernels include nothing.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

__device__ __forceinline__ u64 globaltimer_ns() {
    u64 value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
}

__device__ __forceinline__ u32 smid() {
    u32 value;
    asm("mov.u32 %0, %smid;" : "=r"(value));
    return value;
}

// When a block began and ended, how many cycles of its SM's clock that were, and which SM; sum is what it found there.
struct Stamps {
    u64 begin_ns, end_ns, cycles;
    u32 sm, sum;
};

// A mixer of 32 bits without collisions: words at different places, or of different seeds, differ as if by chance.
__device__ __forceinline__ u32 hash32(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// The word of that place in a pattern of that seed.
__device__ __forceinline__ u32 word_at(u64 place, u32 seed) {
    return hash32((u32)place + (u32)(place >> 32) * 0x85EBCA6Bu + seed * 0x9E3779B9u);
}

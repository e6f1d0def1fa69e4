// arch: 75+
// Code shared by the kernel files. Kernels include nothing, so microbench/gpu/cuda/context.py prepends this file to
// each.

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

// Begin and end of a block, the cycles of its SM's clock in between, the SM's number, and the sum of what it read.
struct Stamps {
    u64 begin_ns, end_ns, cycles;
    u32 sm, sum;
};

// A 32-bit hash without collisions, so that words at different places, or of different seeds, look random.
__device__ __forceinline__ u32 hash32(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// The word at a place in the pattern of a seed.
__device__ __forceinline__ u32 word_at(u64 place, u32 seed) {
    return hash32((u32)place + (u32)(place >> 32) * 0x85EBCA6Bu + seed * 0x9E3779B9u);
}

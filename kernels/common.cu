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

__device__ __forceinline__ u64 thread_index() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }

__device__ __forceinline__ u64 grid_threads() { return gridDim.x * (u64)blockDim.x; }

__device__ __forceinline__ void spin_for(u64 begin, u64 cycles) {
    while (clock64() - begin < cycles) {
    }
}

// Reads past the SM's own cache.
__device__ __forceinline__ uint4 load_past_l1(const uint4 *from) {
    uint4 v;
    asm volatile(
        "ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from)
    );
    return v;
}

__device__ __forceinline__ u32 sum_of(const uint4 &v) { return v.x + v.y + v.z + v.w; }

// Bulk copies of 9.0: ask for a piece, which arrives at a barrier, and wait for a phase of it.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void expect(u32 barrier, u32 size_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(size_bytes) : "memory");
}

__device__ __forceinline__ void fetch(u32 to, const void *from, u32 size_bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
        "r"(size_bytes), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void wait_for(u32 barrier, u32 parity) {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again;}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}
#endif

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

// arch: 75+
// The kernels of STREAM, one for each compilation: KIND names the kernel, ELEMENT the type, WIDE the bytes of a vector
// (32 from compute capability 10.0 on). From 9.0 on they also exist with bulk copies through shared memory. Kernels
// read x and y and write out; s is 3. Sums of whole numbers below 16 and of their products are exact.

#ifndef KIND
#define KIND 5
#endif
#ifndef ELEMENT
#define ELEMENT 64
#endif
#ifndef WIDE
#define WIDE 16
#endif

enum { READ, WRITE, COPY, SCALE, ADD, TRIAD, DOT };
#define READS_X (KIND != WRITE)
#define READS_Y (KIND == ADD || KIND == TRIAD || KIND == DOT)
#define WRITES (KIND != READ && KIND != DOT)

const int WORDS = WIDE / 4;
const u32 SCALAR = 3;

struct Vector {
    u32 word[WORDS];
};

// -- one vector of elements -----------------------------------------------------------------------------------------

#if ELEMENT == 64
typedef double Sum;
#elif ELEMENT == 8
typedef u32 Sum;
#else
typedef float Sum;
#endif

__device__ __forceinline__ float half_low(u32 word) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(value) : "r"(word));
    return value;
}

__device__ __forceinline__ float half_high(u32 word) {
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(value) : "r"(word));
    return value;
}

#define HALF_THREE 0x42004200u  // two halves of 3

__device__ __forceinline__ u32 half_fma(u32 x, u32 y, u32 z) {
    u32 result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
    return result;
}

__device__ __forceinline__ u32 half_add(u32 x, u32 y) {
    u32 result;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(x), "r"(y));
    return result;
}

// Adds four bytes at once, each of which wraps around separately.
__device__ __forceinline__ u32 bytes_add(u32 x, u32 y) {
    return ((x & 0x7f7f7f7fu) + (y & 0x7f7f7f7fu)) ^ ((x ^ y) & 0x80808080u);
}

__device__ __forceinline__ u32 bytes_times_three(u32 x) {
    u32 even = (x & 0x00ff00ffu) * SCALAR & 0x00ff00ffu, odd = (x >> 8 & 0x00ff00ffu) * SCALAR & 0x00ff00ffu;
    return even | odd << 8;
}

// The result for 32 bits of elements, or for 64 bits of doubles.
__device__ __forceinline__ u32 combine(u32 x, u32 y) {
#if ELEMENT == 32
    float a = __uint_as_float(x), b = __uint_as_float(y);
    return __float_as_uint(KIND == COPY ? a : KIND == SCALE ? a * SCALAR : KIND == ADD ? a + b : a + b * SCALAR);
#elif ELEMENT == 16
    if (KIND == COPY) return x;
    if (KIND == SCALE) return half_fma(x, HALF_THREE, 0);
    return KIND == ADD ? half_add(x, y) : half_fma(y, HALF_THREE, x);
#else
    if (KIND == COPY) return x;
    if (KIND == SCALE) return bytes_times_three(x);
    return bytes_add(x, KIND == ADD ? y : bytes_times_three(y));
#endif
}

__device__ __forceinline__ double combine(double a, double b) {
    return KIND == COPY ? a : KIND == SCALE ? a * SCALAR : KIND == ADD ? a + b : a + b * SCALAR;
}

__device__ __forceinline__ double double_at(const Vector &x, int k) {
    return __hiloint2double(x.word[k + 1], x.word[k]);
}

__device__ __forceinline__ Vector combine(const Vector &x, const Vector &y) {
    Vector result;
#if ELEMENT == 64
#pragma unroll
    for (int k = 0; k < WORDS; k += 2) {
        double value = combine(double_at(x, k), double_at(y, k));
        result.word[k] = __double2loint(value);
        result.word[k + 1] = __double2hiint(value);
    }
#else
#pragma unroll
    for (int k = 0; k < WORDS; k++) result.word[k] = combine(x.word[k], y.word[k]);
#endif
    return result;
}

// read: the sum of x. dot: the sum of x times y.
__device__ __forceinline__ void accumulate(Sum &sum, const Vector &x, const Vector &y) {
    const bool multiply = KIND == DOT;
#if ELEMENT == 64
#pragma unroll
    for (int k = 0; k < WORDS; k += 2) sum += double_at(x, k) * (multiply ? double_at(y, k) : 1.0);
#else
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        u32 a = x.word[k], b = y.word[k];
#if ELEMENT == 32
        sum += __uint_as_float(a) * (multiply ? __uint_as_float(b) : 1.0f);
#elif ELEMENT == 16
        sum += half_low(a) * (multiply ? half_low(b) : 1.0f) + half_high(a) * (multiply ? half_high(b) : 1.0f);
#else
        asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(multiply ? b : 0x01010101u));
#endif
    }
#endif
}

__device__ __forceinline__ Vector constant() {
    Vector result;
#if ELEMENT == 64
#pragma unroll
    for (int k = 0; k < WORDS; k++) result.word[k] = k % 2 ? __double2hiint((double)SCALAR) : 0;
#else
    const u32 word = ELEMENT == 32 ? __float_as_uint((float)SCALAR) : ELEMENT == 16 ? HALF_THREE : 0x03030303u;
#pragma unroll
    for (int k = 0; k < WORDS; k++) result.word[k] = word;
#endif
    return result;
}

// -- loads, stores and tiles ----------------------------------------------------------------------------------------

// No word is read twice, so written data may leave the L2 first (.cs). Loads may bypass the L1 (`past_l1`). Kernels
// that only read always do. Others gained or lost a percent by it on an H200, so the search over shapes decides.
#define STORE "st.global.cs"

#if WIDE == 32
#define LOAD_AS(WAY)                                                                                                   \
    asm volatile(WAY ".v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"                                                 \
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]), "=r"(v.word[4]), "=r"(v.word[5]), \
                   "=r"(v.word[6]), "=r"(v.word[7])                                                                    \
                 : "l"(from))
#else
#define LOAD_AS(WAY)                                                                                                   \
    asm volatile(WAY ".v4.b32 {%0, %1, %2, %3}, [%4];"                                                                 \
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])                                  \
                 : "l"(from))
#endif

template <bool past_l1>
__device__ __forceinline__ Vector load(const Vector *from) {
    Vector v;
    if (past_l1) LOAD_AS("ld.global.L1::no_allocate");
    else LOAD_AS("ld.global");
    return v;
}

__device__ __forceinline__ void store(Vector *to, const Vector &v) {
#if WIDE == 32
    asm volatile(STORE ".v8.b32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7};" ::"r"(v.word[0]), "r"(v.word[1]),
                 "r"(v.word[2]), "r"(v.word[3]), "r"(v.word[4]), "r"(v.word[5]), "r"(v.word[6]), "r"(v.word[7]), "l"(to)
                 : "memory");
#else
    asm volatile(STORE ".v4.b32 [%4], {%0, %1, %2, %3};" ::"r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3]), "l"(to)
                 : "memory");
#endif
}

// Adds up the sums of a block's threads, all whole numbers, into the block's own word of `parts`.
__device__ __forceinline__ void leave(Sum sum, u64 *parts) {
    __shared__ u64 total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    u64 own = (u64)sum;
#pragma unroll
    for (int distance = 16; distance; distance /= 2) own += __shfl_xor_sync(~0u, own, distance);
    if (threadIdx.x % 32 == 0) atomicAdd(&total, own);
    __syncthreads();
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// Processes single vectors from `at` on in steps. Elements after the last whole vector are copied byte by byte into a
// vector, so that the arithmetic of a type is written only once.
__device__ __forceinline__ void rest(
    const Vector *x, const Vector *y, Vector *out, u64 at, u64 step, u64 size_bytes, Sum &sum
) {
    u64 whole = size_bytes / WIDE;
    Vector none = {};
    for (; at < whole; at += step) {
        Vector a = READS_X ? load<true>(x + at) : none, b = READS_Y ? load<true>(y + at) : none;
        if (WRITES) store(out + at, KIND == WRITE ? constant() : combine(a, b));
        else accumulate(sum, a, b);
    }
    u32 left = size_bytes % WIDE;
    if (at != whole || left == 0) return;
    Vector a = none, b = none, result;
    for (u32 k = 0; k < left; k++) {
        if (READS_X) ((unsigned char *)&a)[k] = ((const unsigned char *)(x + whole))[k];
        if (READS_Y) ((unsigned char *)&b)[k] = ((const unsigned char *)(y + whole))[k];
    }
    if (!WRITES) return accumulate(sum, a, b);
    result = KIND == WRITE ? constant() : combine(a, b);
    for (u32 k = 0; k < left; k++) ((unsigned char *)(out + whole))[k] = ((unsigned char *)&result)[k];
}

// A tile is a block's width times `ahead` vectors, all in flight at once. In a grid with as many blocks as tiles each
// block processes one tile; in a smaller grid it continues in steps of the grid.
template <int ahead, bool past_l1>
__device__ __forceinline__ void by_tiles(const Vector *x, const Vector *y, Vector *out, u64 size_bytes, u64 *parts) {
    Sum sum = 0;
    u64 tile_vectors = (u64)blockDim.x * ahead, tiles = size_bytes / WIDE / tile_vectors;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 at = tile * tile_vectors + threadIdx.x;
        Vector a[ahead], b[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            if (READS_X) a[k] = load<past_l1 || !WRITES>(x + at + (u64)k * blockDim.x);
            if (READS_Y) b[k] = load<past_l1 || !WRITES>(y + at + (u64)k * blockDim.x);
        }
#pragma unroll
        for (int k = 0; k < ahead; k++) {
            if (WRITES) store(out + at + (u64)k * blockDim.x, KIND == WRITE ? constant() : combine(a[k], b[k]));
            else accumulate(sum, a[k], b[k]);
        }
    }
    if (blockIdx.x == gridDim.x - 1) rest(x, y, out, tiles * tile_vectors + threadIdx.x, blockDim.x, size_bytes, sum);
    if (!WRITES) leave(sum, parts);
}

#define TILES(name, ahead, past_l1)                                                                                    \
    extern "C" __global__ void name(const Vector *x, const Vector *y, Vector *out, u64 size_bytes, u64 *parts) {       \
        by_tiles<ahead, past_l1>(x, y, out, size_bytes, parts);                                                        \
    }
TILES(tiles1, 1, false)
TILES(tiles1_past_l1, 1, true)
TILES(tiles4, 4, false)
TILES(tiles8, 8, false)

#if __CUDA_ARCH__ >= 900 && WIDE == 16

// -- bulk copies: an SM's copy engine fills a ring of stages, and threads work in shared memory ----------------------

const int INPUTS = READS_X + READS_Y;
const u32 MOST_STAGES = 16;

__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void send(void *to, u32 from, u32 size_bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(size_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void refill(
    const unsigned char *x, const unsigned char *y, u64 tile, u32 tile_bytes, unsigned char *stage, u32 barrier
) {
    expect(barrier, INPUTS * tile_bytes);
    if (READS_X) fetch(shared_address(stage), x + tile * tile_bytes, tile_bytes, barrier);
    if (READS_Y) fetch(shared_address(stage + tile_bytes), y + tile * tile_bytes, tile_bytes, barrier);
}

// Block b takes tiles b, b + gridDim, … of `tile_bytes`, a multiple of 16. Results go back into their stage and from
// there to memory by a bulk store. The stage before is refilled as soon as its own store has been read.
extern "C" __global__ void
bulk(const Vector *x, const Vector *y, Vector *out, u64 size_bytes, u64 *parts, u32 tile_bytes, u32 stage_count) {
    extern __shared__ __align__(128) unsigned char stages[];
    __shared__ u64 full[MOST_STAGES];
    const u32 stage_bytes = (INPUTS ? INPUTS : 1) * tile_bytes, vectors = tile_bytes / WIDE;
    Sum sum = 0;
    u64 tiles = size_bytes / tile_bytes, first = blockIdx.x, step = gridDim.x;
    u64 mine = tiles > first ? (tiles - first + step - 1) / step : 0;
    const unsigned char *from_x = (const unsigned char *)x, *from_y = (const unsigned char *)y;
    if (threadIdx.x == 0) {
        for (u32 k = 0; k < stage_count; k++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + k)));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        if (INPUTS) {
            for (u32 k = 0; k < stage_count && k < mine; k++) {
                refill(from_x, from_y, first + k * step, tile_bytes, stages + k * stage_bytes,
                       shared_address(full + k));
            }
        }
    }
    if (KIND == WRITE) {
        for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) ((Vector *)stages)[i] = constant();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    // If nothing is computed, one thread does everything: the others would wait for phases that are already over.
    if ((KIND == COPY || KIND == WRITE) && threadIdx.x) mine = 0;
    for (u64 turn = 0; turn < mine; turn++) {
        u64 tile = first + turn * step;
        u32 stage = turn % stage_count;
        unsigned char *here = KIND == WRITE ? stages : stages + stage * stage_bytes;
        if (INPUTS) {
            wait_for(shared_address(full + stage), turn / stage_count & 1);
            Vector *a = (Vector *)here, *b = (Vector *)(here + tile_bytes);
            if (KIND != COPY) {
                for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
                    if (WRITES) a[i] = combine(a[i], b[i]);
                    else accumulate(sum, a[i], b[i]);
                }
                if (WRITES) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncthreads();
            }
        }
        if (threadIdx.x == 0) {
            u64 ahead = turn + stage_count;
            if (WRITES) {
                send((unsigned char *)out + tile * tile_bytes, shared_address(here), tile_bytes);
                asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                ahead -= 1;
            }
            if (INPUTS && ahead >= stage_count && ahead < mine) {
                u32 next = ahead % stage_count;
                refill(from_x, from_y, first + ahead * step, tile_bytes, stages + next * stage_bytes,
                       shared_address(full + next));
            }
        }
    }
    if (WRITES && threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    if (blockIdx.x == gridDim.x - 1) {
        rest(x, y, out, tiles * vectors + threadIdx.x, blockDim.x, size_bytes, sum);
    }
    if (!WRITES) leave(sum, parts);
}
#endif

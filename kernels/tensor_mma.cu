// arch: 80+
// Repeats tensor instructions of warps (mma.sync) on fragments in registers. KIND names the types.

// 0 bf16, 1 fp16, 2 tf32, 3 e4m3, 4 e5m2, 5 int8, 6 fp16 accumulated in fp16, 7 fp64; 8 bf16 and 9 fp16 with an A of
// which two of every four elements are zero: only the others are stored, with their places (structured sparsity).
#ifndef KIND
#define KIND 0
#endif

#if __CUDA_ARCH__ < 890 && (KIND == 3 || KIND == 4)
#error "tensor cores have 8-bit floats from compute capability 8.9 on"
#endif

// Each warp works on TILES tiles of results, each with its own fragment of B, and multiplies each by TIMES fragments of
// A in turn, as many as fit in registers. The fragments differ, because a compiler that emulates an instruction (8-bit
// floats on 9.0) would compute equal products only once.
const u32 TILES = KIND == 7 ? 4 : 8, TIMES = KIND == 7 ? 2 : 8, THREADS = 512;

// A has 16 rows (8 for FP64 before 9.0) of a fragment's depth, B has 8 columns. A lane holds 32-bit words (64-bit for
// FP64) of row or column lane / 4 and of the row eight further down: word lane % 4 and every fourth word after it.
// Source: PTX ISA, matrix fragments for mma.m16n8k*. Counted in words, the layout is the same for all types.
#if KIND == 7
typedef double Word;
typedef double Result;
#if __CUDA_ARCH__ >= 900
#define OPCODE "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 "
const u32 A_ROWS = 16, WORDS = 16, RESULTS = 4;
#else
#define OPCODE "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 "
const u32 A_ROWS = 8, WORDS = 4, RESULTS = 2;
#endif
#elif KIND == 6
typedef u32 Word;
typedef u32 Result;
#define OPCODE "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
const u32 A_ROWS = 16, WORDS = 8, RESULTS = 2;
#else
typedef u32 Word;
const u32 A_ROWS = 16, WORDS = 8, RESULTS = 4;
#if KIND == 5
typedef u32 Result;
#define OPCODE "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
#else
typedef float Result;
#if KIND == 0
#define OPCODE "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#elif KIND == 1
#define OPCODE "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#elif KIND == 2
#define OPCODE "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
#elif KIND == 3
#define OPCODE "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
#elif KIND == 4
#define OPCODE "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
#elif KIND == 8
#define OPCODE "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 "
#else
#define OPCODE "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
#endif
#endif
#endif
#define SPARSE (KIND >= 8)

// B is as deep as A with its zeros.
const u32 HALVES = A_ROWS / 8, A_WORDS = HALVES * WORDS / 4, B_ROW = SPARSE ? 2 * WORDS : WORDS, B_WORDS = B_ROW / 4;

#if KIND >= 5 && KIND <= 6
#define OUT "+r"
#elif KIND == 7
#define OUT "+d"
#else
#define OUT "+f"
#endif
#if KIND == 7
#define IN "d"
#else
#define IN "r"
#endif

// d += a b. `places` are those of a sparse A's elements.
__device__ __forceinline__ void
multiply(Result (&d)[RESULTS], const Word (&a)[A_WORDS], const Word (&b)[B_WORDS], u32 places) {
#if SPARSE
    asm volatile(
        OPCODE "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0;"
        : OUT(d[0]), OUT(d[1]), OUT(d[2]), OUT(d[3])
        : IN(a[0]), IN(a[1]), IN(a[2]), IN(a[3]), IN(b[0]), IN(b[1]), IN(b[2]), IN(b[3]), IN(places)
    );
#elif KIND == 7 && __CUDA_ARCH__ >= 900
    asm volatile(
        OPCODE "{%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : OUT(d[0]), OUT(d[1]), OUT(d[2]), OUT(d[3])
        : IN(a[0]), IN(a[1]), IN(a[2]), IN(a[3]), IN(a[4]), IN(a[5]), IN(a[6]), IN(a[7]), IN(b[0]), IN(b[1]),
          IN(b[2]), IN(b[3])
    );
#elif KIND == 7
    asm volatile(OPCODE "{%0, %1}, {%2}, {%3}, {%0, %1};" : OUT(d[0]), OUT(d[1]) : IN(a[0]), IN(b[0]));
#elif KIND == 6
    asm volatile(
        OPCODE "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : OUT(d[0]), OUT(d[1])
        : IN(a[0]), IN(a[1]), IN(a[2]), IN(a[3]), IN(b[0]), IN(b[1])
    );
#else
    asm volatile(
        OPCODE "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : OUT(d[0]), OUT(d[1]), OUT(d[2]), OUT(d[3])
        : IN(a[0]), IN(a[1]), IN(a[2]), IN(a[3]), IN(b[0]), IN(b[1])
    );
#endif
}

// Every warp multiplies the same TIMES fragments of A by the same TILES of B. Each repetition resets the results, so
// that they stay small and are the same after any number of repetitions.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    repeat(const Word *operands, u64 repeats, Result *out, Stamps *stamps) {
    u32 lane = threadIdx.x % 32, place = lane / 4, word = lane % 4;
    Word a[TIMES][A_WORDS], b[TILES][B_WORDS];
#pragma unroll
    for (u32 time = 0; time < TIMES; time++) {
#pragma unroll
        for (u32 i = 0; i < A_WORDS; i++) a[time][i] = operands[(place + i % HALVES * 8) * WORDS + word + i / HALVES * 4];
        operands += A_ROWS * WORDS;
    }
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (u32 i = 0; i < B_WORDS; i++) b[tile][i] = operands[(tile * 8 + place) * B_ROW + word + i * 4];
    }
    u32 places[TIMES] = {};
#if SPARSE
    // A word for each lane, of which the first two of every four are used: 16 columns of row lane / 4, then those of the
    // row eight further down, with two bits for each element that is stored. Source: as above, metadata of m16n8k32.
#pragma unroll
    for (u32 time = 0; time < TIMES; time++) places[time] = operands[TILES * 8 * B_ROW + time * 32 + lane];
#endif
    Result d[TILES][RESULTS];
    __syncthreads();
    u64 begin_ns = globaltimer_ns(), begin = clock64();
    // Not unrolled: the compiler would drop the first of two repetitions, as its results are overwritten.
#pragma unroll 1
    for (u64 i = 0; i < repeats; i++) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (u32 k = 0; k < RESULTS; k++) d[tile][k] = 0;
        }
#pragma unroll
        for (u32 time = 0; time < TIMES; time++) {
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) multiply(d[tile], a[time], b[tile], places[time]);
        }
    }
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) stamps[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), 0};
    Result *own = out + (blockIdx.x * (u64)blockDim.x + threadIdx.x) * TILES * RESULTS;
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (u32 k = 0; k < RESULTS; k++) own[tile * RESULTS + k] = d[tile][k];
    }
}

// arch: 75+
// Repeats one ALU instruction on registers: independent instructions on every SM, and a dependent chain in one warp.

// KIND: 0 FMA of FP64, 1 of FP32, 2 of two FP16, 3 of two BF16, 4 integer multiply-add, 5 addition of three integers,
// 6 2**-x, 7 1/sqrt.
#ifndef KIND
#define KIND 0
#endif

#if __CUDA_ARCH__ < 800 && KIND == 3
#error "ALUs multiply bfloat16 from compute capability 8.0 on"
#endif

// Each thread works on CHAINS pairs of numbers; an instruction changes one number of a pair. A repetition has STEPS
// instructions on each pair. Special functions converge to one number, so they restart after a few steps to keep
// results distinct.
const bool SPECIAL = KIND >= 6;
const u32 THREADS = 1024, CHAINS = 8, STEPS = SPECIAL ? 4 : 64, CHAIN_STEPS = 512;

#if KIND == 0
typedef double Word;
#define REGISTER "d"
#elif KIND == 1 || KIND >= 6
typedef float Word;
#define REGISTER "f"
#else
typedef u32 Word;
#define REGISTER "r"
#endif

#if KIND == 0
#define OPCODE "fma.rn.f64"
#elif KIND == 1
#define OPCODE "fma.rn.f32"
#elif KIND == 2
#define OPCODE "fma.rn.f16x2"
#elif KIND == 3
#define OPCODE "fma.rn.bf16x2"
#elif KIND == 4
#define OPCODE "mad.lo.u32"
#endif

// Changes y by x: y += k x, y += x + k, or y = f(y). Volatile keeps the instructions in this order.
__device__ __forceinline__ void change(Word &y, Word x, Word k) {
#if KIND <= 4
    asm volatile(OPCODE " %0, %1, %2, %0;" : "+" REGISTER(y) : REGISTER(x), REGISTER(k));
#elif KIND == 5
    // The compiler may turn additions of two numbers into multiply-adds; additions of three stay additions.
    asm volatile("{.reg .u32 sum; add.u32 sum, %1, %2; add.u32 %0, sum, %0;}" : "+r"(y) : "r"(x), "r"(k));
#elif KIND == 6
    asm volatile("{.reg .f32 minus; neg.f32 minus, %0; ex2.approx.ftz.f32 %0, minus;}" : "+f"(y));
#else
    asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(y));
#endif
}

// Two instructions, of which the second depends on the first. With k and -k, multiply-adds rotate the point (x, y) on
// an ellipse (Minsky's circle algorithm, HAKMEM item 149), so numbers neither grow nor vanish.
__device__ __forceinline__ void turn(Word &x, Word &y, Word k, Word other_k) {
    if (SPECIAL) {
        change(x, y, k);
        change(x, y, k);
    } else {
        change(y, x, k);
        change(x, y, other_k);
    }
}

// Operands and results are rows of THREADS numbers: x of each chain, then y of each chain. k and -k are arguments,
// which instructions read from constant memory: three operands from registers of one bank would take longer.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    independent(const Word *operands, u32 repeats, Word *out, Stamps *stamps, Word k, Word other_k) {
    Word x[CHAINS], y[CHAINS];
#pragma unroll
    for (u32 i = 0; i < CHAINS; i++) {
        x[i] = operands[i * THREADS + threadIdx.x];
        y[i] = operands[(CHAINS + i) * THREADS + threadIdx.x];
    }
    bool nothing = true;
#pragma unroll
    for (u32 i = 0; i < CHAINS; i++) nothing &= (x[i] == 0) & (y[i] == 0);
    if (__syncthreads_and(nothing)) return;  // the clocks are read after the operands have arrived
    u64 begin_ns = globaltimer_ns(), begin = clock64();
#pragma unroll 1
    for (u32 repeat = 0; repeat < repeats; repeat++) {
#pragma unroll
        for (u32 i = 0; SPECIAL && i < CHAINS; i++) x[i] = x[i] * k + y[i];
#pragma unroll
        for (u32 step = 0; step < STEPS; step += 2) {
#pragma unroll
            for (u32 i = 0; i < CHAINS; i++) turn(x[i], y[i], k, other_k);
        }
    }
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) stamps[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), 0};
    Word *own = out + blockIdx.x * (u64)(2 * CHAINS * THREADS) + threadIdx.x;
#pragma unroll
    for (u32 i = 0; i < CHAINS; i++) {
        own[i * THREADS] = x[i];
        own[(CHAINS + i) * THREADS] = y[i];
    }
}

// One warp and one pair of numbers; operands as above.
extern "C" __global__ void dependent(
    const Word *operands, u32 repeats, Word *out, Stamps *stamps, Word k, Word other_k
) {
    Word x = operands[threadIdx.x], y = operands[CHAINS * THREADS + threadIdx.x];
    if (__syncthreads_and((x == 0) & (y == 0))) return;
    u64 begin_ns = globaltimer_ns(), begin = clock64();
#pragma unroll 1
    for (u32 repeat = 0; repeat < repeats; repeat++) {
#pragma unroll
        for (u32 step = 0; step < CHAIN_STEPS; step += 2) turn(x, y, k, other_k);
    }
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) stamps[0] = {begin_ns, end_ns, cycles, 0, 0};
    out[threadIdx.x] = x;
    out[THREADS + threadIdx.x] = y;
}

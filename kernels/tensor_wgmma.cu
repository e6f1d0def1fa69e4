// arch: 90a
// Repeats tensor instructions of warpgroups (wgmma) on tiles in shared memory: the most that tensor cores of compute
// capability 9.0 can do. KIND names the types. 2 warpgroups of 64 x 256 results each fill an SM's tensor cores.

// 0 bf16, 1 fp16, 2 tf32, 3 e4m3, 4 e5m2, 5 int8, 6 fp16 accumulated in fp16; 8 bf16 and 9 fp16 with a first operand of
// which two of every four elements are zero (structured sparsity). Its other elements come from registers: from shared
// memory both operands would take 144 bytes a cycle at the full rate, and an SM reads 128.
#ifndef KIND
#define KIND 0
#endif

// The instruction with its types and depth, and the text after its operands: results are added (p) or reset, operands
// keep their sign, and 16-bit operands have the depth contiguous.
#define TAIL_16_BITS ", p, 1, 1, 0, 0;\n"
#define TAIL_FLOAT ", p, 1, 1;\n"
#define TAIL_INTEGER ", p;\n"
#define TAIL_SPARSE ", 0, p, 1, 1, 0;\n"
#if KIND == 0
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
#define TAIL TAIL_16_BITS
#elif KIND == 1
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
#define TAIL TAIL_16_BITS
#elif KIND == 2
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
#define TAIL TAIL_FLOAT
#elif KIND == 3
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
#define TAIL TAIL_FLOAT
#elif KIND == 4
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k32.f32.e5m2.e5m2 "
#define TAIL TAIL_FLOAT
#elif KIND == 5
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 "
#define TAIL TAIL_INTEGER
#elif KIND == 6
#define OPCODE "wgmma.mma_async.sync.aligned.m64n256k16.f16.f16.f16 "
#define TAIL TAIL_16_BITS
#elif KIND == 8
#define OPCODE "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.bf16.bf16 "
#define TAIL TAIL_SPARSE
#elif KIND == 9
#define OPCODE "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32.f16.f16 "
#define TAIL TAIL_SPARSE
#else
#error "wgmma has no such types"
#endif
#define SPARSE (KIND >= 8)

// A thread has 128 results in as many words, or in 64 words of two halves. In the text of an instruction they come
// first, then the descriptors of both tiles.
#if KIND == 6
#define RESULTS 64
#define RESULT_NAMES \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FIRST_TILE "%64"
#define SECOND_TILE "%65"
#define ALL_RESULTS SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
#else
#define RESULTS 128
#define RESULT_NAMES \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FIRST_TILE "%128"
#define SECOND_TILE "%129"
#define ALL_RESULTS \
    SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
#endif
#if KIND == 5 || KIND == 6
typedef u32 Result;
#define ONE(i) "+r"(d[i])
#else
typedef float Result;
#define ONE(i) "+f"(d[i])
#endif
#define FOUR(i) ONE(i), ONE(i + 1), ONE(i + 2), ONE(i + 3)
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

#if SPARSE
// The second operand is as deep as the first with its zeros: two tiles, of which each instruction takes half of a row.
// Its descriptor is followed by four registers of the first operand and one of places for each quarter of the depth.
#define QUARTER(units, a0, a1, a2, a3, places) \
    "add.s64 b, %128, " units ";\n" OPCODE "{" RESULT_NAMES "}, {" a0 ", " a1 ", " a2 ", " a3 "}, b, " places TAIL
#define WHOLE_DEPTH \
    QUARTER("0", "%129", "%130", "%131", "%132", "%145") "setp.eq.b32 p, 0, 0;\n" \
    QUARTER("4", "%133", "%134", "%135", "%136", "%146") QUARTER("2048", "%137", "%138", "%139", "%140", "%147") \
    QUARTER("2052", "%141", "%142", "%143", "%144", "%148")
#define FOUR_IN(i) "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3])
#define OPERANDS \
    "l"(second), FOUR_IN(0), FOUR_IN(4), FOUR_IN(8), FOUR_IN(12), "r"(places[0]), "r"(places[1]), "r"(places[2]), \
        "r"(places[3])
#else
// Each quarter of a tile's depth (32 of 128 bytes of a row) begins 2 units of 16 bytes after the one before.
#define QUARTER(number) \
    "add.s64 a, " FIRST_TILE ", 2 * " number ";\n" \
    "add.s64 b, " SECOND_TILE ", 2 * " number ";\n" OPCODE "{" RESULT_NAMES "}, a, b" TAIL
#define WHOLE_DEPTH QUARTER("0") "setp.eq.b32 p, 0, 0;\n" QUARTER("1") QUARTER("2") QUARTER("3")
#define OPERANDS "l"(first), "l"(second)
#endif

const u32 WARPGROUPS = 2, ROW_BYTES = 128, FIRST_ROWS = 64, SECOND_ROWS = 256, SECOND_TILES = SPARSE ? 2 : 1;

extern __shared__ unsigned char tiles[];

// wgmma's descriptor of a tile in shared memory: rows of 128 bytes, swizzled in groups of eight.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Each warpgroup multiplies its tile of 64 rows by the tile of 256 rows that both share. Each repetition resets the
// results and adds the whole product four times, so that they stay small and are the same after any number of
// repetitions.
extern "C" __global__ void __launch_bounds__(WARPGROUPS * 128, 1)
    repeat(const uint4 *operands, u64 repeats, Result *out, Stamps *stamps) {
    const u32 first_rows = SPARSE ? 0 : WARPGROUPS * FIRST_ROWS;  // in shared memory
    const u32 bytes = (first_rows + SECOND_TILES * SECOND_ROWS) * ROW_BYTES;
    u32 base = (u32)__cvta_generic_to_shared(tiles);
    base = (base + 1023) & ~1023u;  // the swizzle depends on the address
    uint4 *aligned = (uint4 *)(tiles + (base - (u32)__cvta_generic_to_shared(tiles)));
    for (u32 i = threadIdx.x; i < bytes / 16; i += blockDim.x) aligned[i] = operands[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    Result d[RESULTS];
#pragma unroll
    for (u32 i = 0; i < RESULTS; i++) d[i] = 0;
    u32 group = threadIdx.x / 128;
    u64 second = descriptor(base + first_rows * ROW_BYTES);
#if SPARSE
    // A warp holds 16 rows: a lane's words are those of mma.m16n8k16, its places those of mma.sp.m16n8k32. After the
    // second operand come the rows of each group, then a word of places for each quarter and thread of each group.
    const u32 row_words = ROW_BYTES / 4;
    u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const u32 *rows = (const u32 *)operands + bytes / 4;
    const u32 *all_places = rows + WARPGROUPS * FIRST_ROWS * row_words + group * 4 * 128;
    u32 a[16], places[4];
#pragma unroll
    for (u32 i = 0; i < 16; i++) a[i] = rows[(row + i % 2 * 8) * row_words + i / 4 * 8 + lane % 4 + i % 4 / 2 * 4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) places[i] = all_places[i * 128 + threadIdx.x % 128];
#else
    u64 first = descriptor(base + group * FIRST_ROWS * ROW_BYTES);
#endif
    __syncthreads();
    u64 begin_ns = globaltimer_ns(), begin = clock64();
    // Not unrolled: the compiler would drop the first of two repetitions, as its results are overwritten.
#pragma unroll 1
    for (u64 i = 0; i < repeats; i++) {
        asm volatile(
            "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, 0, 0;\nwgmma.fence.sync.aligned;\n" WHOLE_DEPTH WHOLE_DEPTH
                WHOLE_DEPTH WHOLE_DEPTH "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"
            : ALL_RESULTS
            : OPERANDS
            : "memory"
        );
    }
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) stamps[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), 0};
    Result *own = out + (blockIdx.x * (u64)blockDim.x + threadIdx.x) * RESULTS;
#pragma unroll
    for (u32 i = 0; i < RESULTS; i++) own[i] = d[i];
}

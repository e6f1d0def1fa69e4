// arch: 75+
// Fills shared memory from a working set in pieces, on every SM. WAY: 0 by loads and stores, 1 by cp.async (8.0), 2 by
// bulk copies (9.0). PIECE: bytes of a piece, a power of two. The SMs stamp the time.

#ifndef WAY
#define WAY 0
#endif
#ifndef PIECE
#define PIECE 4096
#endif

#if (WAY == 1 && __CUDA_ARCH__ < 800) || (WAY == 2 && __CUDA_ARCH__ < 900)
#error "this GPU has no such copies"
#endif

// A warp copies parts of pieces into memory of its own, one row of 16 bytes a lane at a time, or asks for a whole
// piece. Bytes in flight per SM: 64 KiB, with bulk copies 128 KiB.
const u32 ROW = 512, WARPS = WAY == 0 ? 32 : WAY == 1 ? 16 : 4, OWN = WAY == 0 ? 2048 : WAY == 1 ? 4096 : 32768;
const u32 MOST = WAY == 2 ? 32768 : 2048, PART = PIECE < MOST ? PIECE : MOST;
const u32 ROWS = PART / ROW, PARTS = PIECE / PART, STAGES = OWN / PART;
static_assert(PIECE % ROW == 0 && (PIECE & (PIECE - 1)) == 0 && WARPS % PARTS == 0, "a piece is 512 B to 32 KiB");

extern __shared__ __align__(128) u8 ring[];

__device__ __forceinline__ uint4 load_shared(u32 at) {
    uint4 found;
    // Volatile, because the assembler would otherwise reuse the registers that the same lane has stored.
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(at)
                 : "memory");
    return found;
}

// A warp's place in its sequence of parts: every step-th piece, wrapping around the set.
struct Place {
    u32 piece, round;

    __device__ __forceinline__ void move(u32 step, u32 pieces) {
        piece += step;
        while (piece >= pieces) {
            piece -= pieces;
            round++;
        }
    }
};

// Adds one row of an arrived part to the sum; which row depends on the part and the round.
__device__ __forceinline__ u32 row_sum(u32 stage, Place place, u32 part, u32 lane) {
    u32 row = (place.piece * PARTS + part + place.round) % ROWS;
    return sum_of(load_shared(stage + row * ROW + lane * 16));
}

// One block per SM. Of `total` pieces, counted over all rounds through the set, block b copies b, b + gridDim, and so
// on.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) fill(const u8 *set, u32 pieces, u64 total, Stamps *out) {
    __shared__ u32 all;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % PARTS;
    u32 own = (u32)__cvta_generic_to_shared(ring) + warp * OWN;
    u64 first = blockIdx.x + (u64)(warp / PARTS) * gridDim.x;
    u32 step = gridDim.x * (WARPS / PARTS);
    u32 count = total > first ? (u32)((total - first + step - 1) / step) : 0;
    Place arrived = {(u32)(first % pieces), (u32)(first / pieces)}, asked = arrived;
    u32 sum = 0;
#if WAY == 2
    u32 barriers = (u32)__cvta_generic_to_shared(ring) + WARPS * OWN + warp * STAGES * 8;
    if (lane == 0) {
        for (u32 k = 0; k < STAGES; k++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + k * 8));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#endif
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    u64 begin_ns = globaltimer_ns(), begin = clock64();
#if WAY == 0
    for (u32 turn = 0; turn < count; turn += STAGES) {
        uint4 found[STAGES][ROWS];
#pragma unroll
        for (u32 k = 0; k < STAGES; k++) {
            if (turn + k >= count) break;
            const u8 *from = set + (u64)asked.piece * PIECE + part * PART + lane * 16;
#pragma unroll
            for (u32 row = 0; row < ROWS; row++) {
                found[k][row] = load_past_l1((const uint4 *)(from + row * ROW));
            }
            asked.move(step, pieces);
        }
#pragma unroll
        for (u32 k = 0; k < STAGES; k++) {
            if (turn + k >= count) break;
#pragma unroll
            for (u32 row = 0; row < ROWS; row++) {
                uint4 value = found[k][row];
                asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(own + k * PART + row * ROW + lane * 16),
                             "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                             : "memory");
            }
            sum += row_sum(own + k * PART, arrived, part, lane);
            arrived.move(step, pieces);
        }
    }
#else
    // STAGES parts are in flight. A part that has arrived makes room for the next.
    for (u32 turn = 0; turn < count + STAGES; turn++) {
        u32 stage = turn % STAGES, at = own + stage * PART;
        if (turn >= STAGES) {
#if WAY == 1
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#else
            wait_for(barriers + stage * 8, turn / STAGES - 1 & 1);
#endif
            sum += row_sum(at, arrived, part, lane);
            arrived.move(step, pieces);
        }
        if (turn < count) {
            const u8 *from = set + (u64)asked.piece * PIECE + part * PART;
#if WAY == 1
#pragma unroll
            for (u32 row = 0; row < ROWS; row++) {
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + row * ROW + lane * 16),
                             "l"(from + row * ROW + lane * 16)
                             : "memory");
            }
#else
            __syncwarp();  // all lanes have read their words of the row that is overwritten
            if (lane == 0) {
                expect(barriers + stage * 8, PART);
                fetch(at, from, PART, barriers + stage * 8);
            }
#endif
            asked.move(step, pieces);
        }
#if WAY == 1
        asm volatile("cp.async.commit_group;" ::: "memory");  // empty groups count too
#endif
    }
#endif
    atomicAdd(&all, sum);  // the clocks are read after the data have arrived
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) out[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), all};
}

// arch: 75+
// A kernel of the link suite that reads a whole piece of memory and reports what it saw.

// Adds to `sum` every word of the piece times an odd number that depends on its place, and the rest of a size that is
// no multiple of 16 byte by byte. It counts itself in `runs` and spins until its blocks have run for `cycles`. A wrong
// word changes the sum, as odd numbers have inverses modulo 2^32. One atomic addition a block.
extern "C" __global__ void __launch_bounds__(1024) consume(
    const uint4 *piece, u64 size_bytes, u64 cycles, u32 *sum, u32 *runs) {
    __shared__ u32 seen_by_block;
    u64 begin = clock64();
    if (threadIdx.x == 0) seen_by_block = 0;
    __syncthreads();
    u64 whole = size_bytes / 16, step = grid_threads(), thread = thread_index();
    u32 seen = 0;
#pragma unroll 4
    for (u64 i = thread; i < whole; i += step) {
        uint4 quad = piece[i];
        u32 odd = 8 * (u32)i + 1;
        seen += quad.x * odd + quad.y * (odd + 2) + quad.z * (odd + 4) + quad.w * (odd + 6);
    }
    u64 rest = 16 * whole + thread;
    if (rest < size_bytes) seen += ((const u8 *)piece)[rest] * (2 * (u32)rest + 1);
    for (int lane = 16; lane > 0; lane /= 2) seen += __shfl_down_sync(0xffffffff, seen, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(&seen_by_block, seen);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(sum, seen_by_block);
        if (blockIdx.x == 0) atomicAdd(runs, 1u);
    }
    spin_for(begin, cycles);
}

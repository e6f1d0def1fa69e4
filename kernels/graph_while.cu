// arch: 75+
// The body of a WHILE node, which decides on the device whether to run another iteration.

// An entry point of the device runtime, which a plain cubin resolves without libcudadevrt. A driver without it cannot
// load this file, so tail launches have a file of their own.
extern "C" __device__ __cudart_builtin__ void CUDARTAPI cudaGraphSetConditional(u64 handle, u32 value);

// counter[0] counts up to counter[1].
extern "C" __global__ void count_while(u64 handle, u32 *counter) {
    u32 now = counter[0] + 1;
    counter[0] = now;
    cudaGraphSetConditional(handle, now < counter[1]);
}

// arch: 75+
// The body of a WHILE node: it decides on the device whether there is another iteration.

// The device runtime's own entry point, which a plain cubin resolves without libcudadevrt. A driver that lacks it
// does not load this file, so tail launches have one of their own.
extern "C" __device__ __cudart_builtin__ void CUDARTAPI cudaGraphSetConditional(u64 handle, u32 value);

// counter[0] counts up to counter[1].
extern "C" __global__ void count_while(u64 handle, u32 *counter) {
    u32 now = counter[0] + 1;
    counter[0] = now;
    cudaGraphSetConditional(handle, now < counter[1]);
}

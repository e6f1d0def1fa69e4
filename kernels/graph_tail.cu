// arch: 75+
// A graph that launches itself again from the device until its counter is full.

// The device runtime's own entry point, which a plain cubin resolves without libcudadevrt, and its named stream.
extern "C" __device__ __cudart_builtin__ int CUDARTAPI cudaGraphLaunch(void *graph, void *stream);
#define TAIL_LAUNCH ((void *)0x0100000000000000ULL)

// counter[0] counts up to counter[1]; counter[2] takes the error of a launch that the device refused.
extern "C" __global__ void count_tail(u32 *counter) {
    u32 now = counter[0] + 1;
    counter[0] = now;
    if (now < counter[1]) {
        u64 graph;
        asm("mov.u64 %0, %current_graph_exec;" : "=l"(graph));
        int error = cudaGraphLaunch((void *)graph, TAIL_LAUNCH);
        if (error) counter[2] = error;
    }
}

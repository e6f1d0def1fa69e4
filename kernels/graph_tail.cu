// arch: 75+
// The kernel of a graph that launches itself from the device until its counter is full.

// An entry point of the device runtime, which a plain cubin resolves without libcudadevrt, and its tail-launch stream.
extern "C" __device__ __cudart_builtin__ int CUDARTAPI cudaGraphLaunch(void *graph, void *stream);
#define TAIL_LAUNCH ((void *)0x0100000000000000ULL)

// counter[0] counts up to counter[1]; counter[2] receives the error of a refused launch.
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

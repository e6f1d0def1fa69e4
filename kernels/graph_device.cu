// arch: 75+
// A kernel of a graph that launches another graph. A driver without the entry point cannot load this file.
extern "C" __device__ __cudart_builtin__ int CUDARTAPI cudaGraphLaunch(void *graph, void *stream);

// %globaltimer before the call and after it, and the error of a refused launch.
extern "C" __global__ void launch_graph(u64 graph, u64 mode, u64 *out) {
    u64 called_ns = globaltimer_ns();
    int error = cudaGraphLaunch((void *)graph, (void *)mode);
    out[1] = globaltimer_ns();
    out[0] = called_ns;
    out[2] = (u64)error;
}

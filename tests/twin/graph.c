/* A chain of kernels as a stream of launches and as a graph, once more in C: capture, instantiate, replay, clock. */

#include <stdint.h>
#include <time.h>

typedef int (*launch_function)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                               void **, void **);
typedef int (*begin_capture_function)(void *, int);
typedef int (*end_capture_function)(void *, void **);
typedef int (*instantiate_function)(void **, void *, unsigned long long);
typedef int (*graph_launch_function)(void *, void *);
typedef int (*synchronize_function)(void *);

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One executable graph of `count` launches; 0 where a call failed. */
void *twin_graph(begin_capture_function begin, launch_function launch, end_capture_function end,
                 instantiate_function instantiate, void *function, void *stream, void **parameters, int count) {
    void *graph = 0, *executable = 0;
    int code = begin(stream, 1);
    for (int i = 0; i < count; i++) code |= launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, 0);
    code |= end(stream, &graph);
    if (!code) code = instantiate(&executable, graph, 0);
    return code ? 0 : executable;
}

/* `steps` times `count` launches and a synchronise: ns of each to `out`; returns the ORed codes. */
int twin_stream_steps(launch_function launch, synchronize_function synchronize, void *function, void *stream,
                      void **parameters, int count, int steps, int64_t *out) {
    int code = 0;
    for (int step = 0; step < steps; step++) {
        int64_t begin = now_ns();
        for (int i = 0; i < count; i++) code |= launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, 0);
        code |= synchronize(stream);
        out[step] = now_ns() - begin;
    }
    return code;
}

/* The same with one replay in place of the launches. */
int twin_graph_steps(graph_launch_function launch, synchronize_function synchronize, void *executable, void *stream,
                     int steps, int64_t *out) {
    int code = 0;
    for (int step = 0; step < steps; step++) {
        int64_t begin = now_ns();
        code |= launch(executable, stream);
        code |= synchronize(stream);
        out[step] = now_ns() - begin;
    }
    return code;
}

/* A driver of graphs that only remembers: which calls the compiled loops make, in which order, with which handles. */

#include <stdint.h>
#include <string.h>

#define LONGEST 4096
static char order[LONGEST];
static int64_t last[4];
static int calls, code_at = -1;
static int64_t next_handle = 100, forbidden = -1;
static int used_forbidden;

void graph_reset(int fail_at) {
    calls = 0;
    code_at = fail_at;
    next_handle = 100;
    used_forbidden = 0;
    memset(order, 0, sizeof order);
}
/* Remember whether this handle is ever used. */
void graph_forbid(int64_t handle) { forbidden = handle; }
int graph_forbidden(void) { return used_forbidden; }
const char *graph_order(void) { return order; }
int64_t graph_last(int index) { return last[index]; }

static int answer(char name, int64_t a, int64_t b, int64_t c, int64_t d) {
    last[0] = a, last[1] = b, last[2] = c, last[3] = d;
    if (forbidden >= 0 && (a == forbidden || b == forbidden)) used_forbidden = 1;
    if (calls < LONGEST - 1) order[calls] = name;
    return calls++ == code_at ? 900 : 0;
}

int begin_capture(void *stream, int mode) { return answer('B', (int64_t)stream, mode, 0, 0); }
int end_capture(void *stream, int64_t *graph) {
    *graph = next_handle++;
    return answer('E', (int64_t)stream, *graph, 0, 0);
}
int create(int64_t *graph, unsigned flags) {
    *graph = next_handle++;
    return answer('C', *graph, flags, 0, 0);
}
/* A node's dependency must be the node before it, by value. */
int add_kernel(int64_t *node, int64_t graph, const int64_t *before, uint64_t befores, const void *params) {
    *node = next_handle++;
    return answer('A', graph, befores ? *before : 0, (int64_t)befores, (int64_t)params);
}
int instantiate(int64_t *executable, int64_t graph, uint64_t flags) {
    *executable = next_handle++;
    return answer('I', *executable, graph, (int64_t)flags, 0);
}
int upload(int64_t executable, void *stream) { return answer('U', executable, (int64_t)stream, 0, 0); }
int replay(int64_t executable, void *stream) { return answer('L', executable, (int64_t)stream, 0, 0); }
int synchronize(void *stream) { return answer('S', (int64_t)stream, 0, 0, 0); }
int destroy_executable(int64_t executable) { return answer('X', executable, 0, 0, 0); }
int destroy(int64_t graph) { return answer('D', graph, 0, 0, 0); }
int update(int64_t executable, int64_t graph, void *result) { return answer('P', executable, graph, (int64_t)result, 0); }
int set_params(int64_t executable, int64_t node, const void *params) {
    return answer('N', executable, node, (int64_t)params, 0);
}
int launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
           void *stream, void **parameters, void **extra) {
    return answer('K', (int64_t)function, (int64_t)stream, (int64_t)parameters, gx);
}
/* An allocation that puts a new address into its scratch word, and a release that must be given it. */
int allocate(int64_t *pointer, uint64_t size, void *stream) {
    *pointer = next_handle++;
    return answer('M', *pointer, (int64_t)size, 0, 0);
}
int release(int64_t pointer, void *stream) { return answer('F', pointer, (int64_t)stream, 0, 0); }
/* A launch whose kernel counts one further. */
int count_up(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
             void *stream, void **parameters, void **extra) {
    volatile int32_t *flag = *(int32_t **)parameters[0];
    *flag += 1;
    return answer('K', 0, 0, 0, 0);
}

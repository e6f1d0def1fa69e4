/* A driver that only remembers: what the compiled loops really pass, checked without a GPU. */

#include <stdint.h>

static int64_t seen[16];
static int calls;
static int code_at = -1;

void driver_reset(int fail_at) {
    calls = 0;
    code_at = fail_at;
}
int driver_calls(void) { return calls; }
int64_t driver_seen(int index) { return seen[index]; }

static int answer(void) { return __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) == code_at ? 719 : 0; }

/* The types are those of cuLaunchKernel: 32-bit ones must arrive whole from 64-bit arguments. */
int driver_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                  void *stream, void **parameters, void **extra) {
    int64_t all[] = {(int64_t)function, gx, gy, gz, bx, by, bz, shared, (int64_t)stream, (int64_t)parameters, (int64_t)extra};
    for (int i = 0; i < 11; i++) seen[i] = all[i];
    return answer();
}

int driver_copy(uint64_t destination, void *source, uint64_t size, void *stream) {
    seen[0] = (int64_t)destination, seen[1] = (int64_t)source, seen[2] = (int64_t)size, seen[3] = (int64_t)stream;
    return answer();
}

/* A launch whose kernel raises the flag that parameters[0] points to, by the value that parameters[1] points to. */
int driver_mark(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                void *stream, void **parameters, void **extra) {
    volatile uint32_t *flag = *(uint32_t **)parameters[0];
    *flag = *(uint32_t *)parameters[1];
    return answer();
}

int driver_synchronize(void *stream) {
    seen[12] = (int64_t)stream;
    return 0;
}

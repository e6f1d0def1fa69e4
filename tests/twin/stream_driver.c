/* A driver whose streams are threads: kernels stamp and spin, events, host functions and memory operations take effect in
   the order of their stream. Memory operations fail, or have no effect, if a test asks for it. */

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

enum { STREAMS = 2, ROOM = 64 };
typedef struct { int kind; uint64_t a, b, c; } Operation;
enum { KERNEL, WRITE32, WRITE64, WAIT32, WAIT64, FUNCTION, RECORD, WAIT_EVENT };
typedef struct { Operation queue[ROOM]; volatile uint64_t submitted, done; pthread_t thread; } Stream;

static Stream streams[STREAMS];
static volatile uint64_t recorded, happened; /* of the one event: how often it was recorded, and how often it happened */
static volatile int refused, ignored, lost, blocking, stopping;

static int holds(void) { return !ignored && !stopping; }

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void run(const Operation *one) {
    uint64_t begin = now_ns(), *out = (uint64_t *)one->a;
    switch (one->kind) {
    case KERNEL:
        while (now_ns() - begin < one->c) sched_yield();
        out[2 * one->b] = begin;
        out[2 * one->b + 1] = now_ns();
        break;
    case WRITE32: if (!lost) __atomic_store_n((uint32_t *)one->a, (uint32_t)one->b, __ATOMIC_RELEASE); break;
    case WRITE64: if (!lost) __atomic_store_n((uint64_t *)one->a, one->b, __ATOMIC_RELEASE); break;
    case WAIT32:
        while (holds() && (int32_t)(__atomic_load_n((uint32_t *)one->a, __ATOMIC_ACQUIRE) - (uint32_t)one->b) < 0) sched_yield();
        break;
    case WAIT64:
        while (holds() && (int64_t)(__atomic_load_n((uint64_t *)one->a, __ATOMIC_ACQUIRE) - one->b) < 0) sched_yield();
        break;
    case FUNCTION: ((void (*)(void *))one->a)((void *)one->b); break;
    case RECORD: happened = one->a; break;
    case WAIT_EVENT:
        while (holds() && happened < one->a) sched_yield();
        break;
    }
}

static void *serve(void *argument) {
    Stream *stream = argument;
    while (!stopping) {
        if (stream->done == stream->submitted) { sched_yield(); continue; }
        run(&stream->queue[stream->done % ROOM]);
        __atomic_add_fetch(&stream->done, 1, __ATOMIC_RELEASE);
    }
    return 0;
}

static int submit(uint64_t stream, int kind, uint64_t a, uint64_t b, uint64_t c) {
    Stream *to = &streams[stream - 1];
    to->queue[to->submitted % ROOM] = (Operation){kind, a, b, c};
    __atomic_add_fetch(&to->submitted, 1, __ATOMIC_RELEASE);
    return 0;
}

void streams_start(void) {
    stopping = refused = ignored = lost = blocking = 0;
    for (int i = 0; i < STREAMS; i++) pthread_create(&streams[i].thread, 0, serve, &streams[i]);
}
void streams_stop(void) {
    stopping = 1;
    for (int i = 0; i < STREAMS; i++) {
        pthread_join(streams[i].thread, 0);
        streams[i].submitted = streams[i].done = 0;
    }
    recorded = happened = 0;
}
void streams_refuse(int code) { refused = code; }
void streams_ignore(int ignore) { ignored = ignore; } /* waits */
void streams_lose(int lose) { lost = lose; } /* writes */
void streams_block(int block) { blocking = block; } /* launches */

int cuStreamSynchronize(uint64_t stream) {
    Stream *of = &streams[stream - 1];
    while (__atomic_load_n(&of->done, __ATOMIC_ACQUIRE) < of->submitted) sched_yield();
    return 0;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   uint64_t stream, void **parameters, void **extra) {
    submit(stream, KERNEL, *(uint64_t *)parameters[0], *(uint64_t *)parameters[1], *(uint64_t *)parameters[2]);
    return blocking ? cuStreamSynchronize(stream) : 0;
}
int cuStreamWriteValue32(uint64_t stream, uint64_t address, uint32_t value, unsigned flags) {
    return refused ? refused : submit(stream, WRITE32, address, value, flags);
}
int cuStreamWriteValue64(uint64_t stream, uint64_t address, uint64_t value, unsigned flags) {
    return refused ? refused : submit(stream, WRITE64, address, value, flags);
}
int cuStreamWaitValue32(uint64_t stream, uint64_t address, uint32_t value, unsigned flags) {
    return refused ? refused : submit(stream, WAIT32, address, value, flags);
}
int cuStreamWaitValue64(uint64_t stream, uint64_t address, uint64_t value, unsigned flags) {
    return refused ? refused : submit(stream, WAIT64, address, value, flags);
}
int cuLaunchHostFunc(uint64_t stream, void *function, void *data) {
    return submit(stream, FUNCTION, (uint64_t)function, (uint64_t)data, 0);
}
int cuEventRecord(uint64_t event, uint64_t stream) { return submit(stream, RECORD, ++recorded, 0, 0); }
int cuStreamWaitEvent(uint64_t stream, uint64_t event, unsigned flags) { return submit(stream, WAIT_EVENT, recorded, 0, 0); }

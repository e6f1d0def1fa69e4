/* A stand-in for libcupti and, by another name, for libcuda: it makes records of a made-up program, without a GPU.
 *
 * The records have the layout and the sizes of CUPTI 13.0 (cupti_activity.h), as far as anybody reads them. Times come
 * from a clock that only the made-up program moves, so they are the same each time. Full buffers are delivered by a
 * thread of the library's own, as CUPTI does it, which waits for nobody. Variables of the environment make it refuse.
 * If callbacks end, or records of copies or memsets, the program does: CUPTI's may lose kernels then, or end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MEMCPY = 1, MEMSET = 2, KERNEL = 10, OVERHEAD = 17, PEER_MEMCPY = 22, UNREAD = 60, DRIVER = 1, RUNTIME = 2 };
enum { OK = 0, INVALID_KIND = 21, NO_MORE_RECORDS = 12, NOT_INITIALIZED = 15 };
enum { LAUNCH = 211, GET_DEVICE = 17, MEMCPY_ASYNC = 41, SYNCHRONIZE = 131, GRAPH_LAUNCH = 311, WAIT_EVENT = 147, RECORD = 135, MEMSET_ASYNC = 51 };
enum { DRIVER_LAUNCH = 307 };

static void (*requested)(uint8_t **, size_t *, size_t *);
static void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);
static void (*called)(void *, uint32_t, uint32_t, const void *);
static int enabled[64], heard[3][512], subscribed, synchronized;
static __thread uint64_t stamp; /* the time while a callback runs */
static uint32_t correlation;
static uint64_t now, free_at, dropped, subscribed_ms;
static uint8_t *buffer;
static size_t room, used;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

typedef struct { uint8_t *buffer; size_t size, used; } Full;
static Full queue[256];
static unsigned first, last;
static pthread_mutex_t queued = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pid_t worker_of;

static uint64_t asked(const char *name, uint64_t otherwise) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

static size_t bytes_of(uint32_t kind) {
    switch (kind) {
    case KERNEL: return 216;
    case MEMCPY: case PEER_MEMCPY: return 96;
    case MEMSET: return 88;
    case OVERHEAD: return 56;
    case UNREAD: return 48;
    default: return 0;
    }
}

int cuptiGetVersion(uint32_t *version) { *version = asked("STAND_IN_VERSION", 130000); return OK; }
int cuptiGetResultString(int status, const char **text) { *text = status == NOT_INITIALIZED ? "CUPTI_ERROR_NOT_INITIALIZED" : "CUPTI_ERROR"; return OK; }
int cuptiGetTimestamp(uint64_t *ns) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    *ns = stamp ? stamp : time.tv_sec * 1000000000ull + time.tv_nsec;
    return OK;
}
int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    if (subscribed) return 39;
    if (getenv("STAND_IN_STATUS")) return asked("STAND_IN_STATUS", 0);
    *subscriber = &subscribed;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    subscribed_ms = time.tv_sec * 1000ull + time.tv_nsec / 1000000;
    called = callback;
    subscribed = 1;
    return OK;
}
int cuptiUnsubscribe(void *subscriber) { subscribed = 0; memset(heard, 0, sizeof heard); return OK; }
int cuptiFinalize(void) { abort(); }
int cuptiActivityRegisterCallbacks(void *request, void *complete) { requested = request; completed = complete; return OK; }
/* With STAND_IN_SLOW a launch lasts long enough to be met. Records of kernels must not begin or end meanwhile. */
static volatile int launches;
int cuptiActivityEnable(int kind) { if (!bytes_of(kind)) return INVALID_KIND; if (launches) abort(); enabled[kind] = 1; return OK; }
int cuptiActivityDisable(int kind) { if (launches || (subscribed && (kind == MEMCPY || kind == MEMSET))) abort(); enabled[kind] = 0; return OK; }
int cuptiEnableCallback(uint32_t on, void *subscriber, uint32_t domain, uint32_t call) { if (!on) abort(); heard[domain][call & 511] = on; return OK; }
int cuptiGetStreamIdEx(void *context, void *stream, uint8_t per_thread, uint32_t *number) {
    *number = stream ? (uint32_t)(uintptr_t)stream : 7 + per_thread;
    return OK;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) { *count = dropped; return OK; }

int cuptiGetCallbackName(int domain, uint32_t call, const char **name) {
    static const struct { int domain; uint32_t call; const char *name; } known[] = {
        {2, LAUNCH, "cudaLaunchKernel_v7000"}, {2, GET_DEVICE, "cudaGetDevice_v3020"}, {2, MEMCPY_ASYNC, "cudaMemcpyAsync_v3020"},
        {2, SYNCHRONIZE, "cudaStreamSynchronize_v3020"}, {2, GRAPH_LAUNCH, "cudaGraphLaunch_v10000"}, {2, WAIT_EVENT, "cudaStreamWaitEvent_v3020"},
        {2, RECORD, "cudaEventRecord_v3020"}, {2, MEMSET_ASYNC, "cudaMemsetAsync_v3020"}, {1, DRIVER_LAUNCH, "cuLaunchKernel"},
    };
    for (unsigned place = 0; place < sizeof known / sizeof *known; place++)
        if (known[place].domain == domain && known[place].call == call) { *name = known[place].name; return OK; }
    return 1;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    uint8_t *next = *record ? *record + bytes_of(*(uint32_t *)*record) : buffer;
    if (next >= buffer + valid) return NO_MORE_RECORDS;
    if (!bytes_of(*(uint32_t *)next)) return INVALID_KIND;
    *record = next;
    return OK;
}

static int without_signals(pthread_t *thread, void *(*function)(void *)) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  /* before the thread exists, or it may get a signal of the program */
    int failed = pthread_create(thread, NULL, function, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void *deliver(void *unused) {
    for (;;) {
        pthread_mutex_lock(&queued);
        while (first == last) pthread_cond_wait(&changed, &queued);
        Full full = queue[first % 256];
        pthread_mutex_unlock(&queued);
        completed(NULL, 0, full.buffer, full.size, full.used);
        pthread_mutex_lock(&queued);
        first++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&queued);
    }
    return NULL;
}

/* Give the buffer to the thread that delivers. A forked child has no such thread and delivers by itself. */
static void hand_over(void) {
    if (!buffer) return;
    if (!worker_of) {
        pthread_t thread;
        worker_of = getpid();
        without_signals(&thread, deliver);
        pthread_detach(thread);
    }
    if (worker_of != getpid()) completed(NULL, 0, buffer, room, used);
    else {
        pthread_mutex_lock(&queued);
        while (last - first == 256) pthread_cond_wait(&changed, &queued);
        queue[last++ % 256] = (Full){buffer, room, used};
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&queued);
    }
    buffer = NULL;
}

int cuptiActivityFlushAll(uint32_t forced);
static uint32_t period_ms;
static void *flush(void *unused) {
    while (subscribed) {
        usleep(period_ms * 1000);
        cuptiActivityFlushAll(0);
    }
    return NULL;
}
int cuptiActivityFlushPeriod(uint32_t ms) {
    pthread_t thread;
    period_ms = ms;
    if (ms && !getenv("STAND_IN_KEEPS") && !without_signals(&thread, flush)) pthread_detach(thread);
    return OK;
}

void stand_in_steps(int, int);
void stand_in_kinds(void);

/* Until STAND_IN_LATE ms after the subscription no buffer is delivered, as long as it is not full. With STAND_IN_BUSY other
 * threads of the program launch meanwhile. */
int cuptiActivityFlushAll(uint32_t forced) {
    struct timespec time;
    if (getenv("STAND_IN_BUSY")) stand_in_steps(2, 3), stand_in_kinds();
    clock_gettime(CLOCK_MONOTONIC, &time);
    if (time.tv_sec * 1000ull + time.tv_nsec / 1000000 < subscribed_ms + asked("STAND_IN_LATE", 0)) return OK;
    pthread_mutex_lock(&one);
    hand_over();
    if (worker_of == getpid()) {
        pthread_mutex_lock(&queued);
        while (first != last) pthread_cond_wait(&changed, &queued);
        pthread_mutex_unlock(&queued);
    }
    pthread_mutex_unlock(&one);
    return OK;
}

/* A record that is not enabled, or for which there is no memory, is written to where nobody looks. */
static uint8_t *record(uint32_t kind) {
    static uint8_t nowhere[256];
    size_t size = bytes_of(kind), most;
    memset(nowhere, 0, sizeof nowhere);
    if (!enabled[kind]) return nowhere;
    if (buffer && used + size > room) hand_over();
    if (!buffer) { requested(&buffer, &room, &most); used = 0; }
    if (!buffer) { dropped++; return nowhere; }
    uint8_t *made = buffer + used;
    memset(made, 0, size);
    memcpy(made, &kind, 4);
    used += size;
    return made;
}

#define SET(at, type, value) (*(type *)(made + (at)) = (value))

/* What CUPTI says of a call to who has subscribed: CUpti_CallbackData. */
typedef struct {
    uint32_t leaves;
    const char *function;
    void *const *parameters;
    void *result;
    const char *symbol;
    void *context;
    uint32_t context_number;
    uint64_t *kept;
    uint32_t correlation;
} Called;

static void tell_of(uint32_t domain, uint32_t number, Called *data, int leaves) {
    if (!heard[domain][number & 511]) return;
    data->leaves = leaves;
    stamp = now;
    called(NULL, domain, number, data);
    stamp = 0;
}

/* A call; a launch of the runtime makes one of the driver. */
static void call_with(uint32_t domain, uint32_t number, uint64_t ns, void *const *parameters) {
    uint64_t kept = 0, inner = 0;
    correlation++;
    Called data = {.parameters = parameters, .kept = &kept, .correlation = correlation};
    Called within = {.kept = &inner, .correlation = correlation};
    tell_of(domain, number, &data, 0);
    if (domain == RUNTIME && number == LAUNCH) tell_of(DRIVER, DRIVER_LAUNCH, &within, 0);
    now += ns;
    if (domain == RUNTIME && number == LAUNCH && getenv("STAND_IN_SLOW")) {
        launches = 1;
        usleep(300);
        launches = 0;
    }
    if (domain == RUNTIME && number == LAUNCH) tell_of(DRIVER, DRIVER_LAUNCH, &within, 1);
    tell_of(domain, number, &data, 1);
}

static void call(uint32_t domain, uint32_t number, uint64_t ns) { call_with(domain, number, ns, NULL); }

/* The GPU works in order and begins 2 us after a call has returned, or 1 us after the work before. */
static uint64_t begin_of_work(uint64_t ns) {
    uint64_t begin = now + 2000 > free_at + 1000 ? now + 2000 : free_at + 1000;
    free_at = begin + ns;
    return begin;
}

static void kernel(const char *name, uint64_t ns, uint64_t node) {
    uint64_t begin = begin_of_work(ns);
    uint8_t *made = record(KERNEL);
    SET(16, uint64_t, begin); SET(24, uint64_t, begin + ns); SET(40, uint32_t, 0); SET(48, uint32_t, 7);
    SET(52, uint32_t, 4); SET(56, uint32_t, 3); SET(60, uint32_t, 2); SET(64, uint32_t, 128); SET(68, uint32_t, 2); SET(72, uint32_t, 1);
    SET(92, uint32_t, correlation); SET(104, const char *, name); SET(144, uint64_t, node); SET(156, uint32_t, node ? 12 : 0);
}

static const char *const NAMES[] = {
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
    "_Z9my_kernelPfi", "triton_poi_fused_add_0", "k",
};

static uint64_t clock_now(void) { uint64_t ns; cuptiGetTimestamp(&ns); return ns; }

/* Let the made-up program's clock catch up with the real one. */
void stand_in_now(void) {
    pthread_mutex_lock(&one);
    uint64_t real = clock_now();
    if (now < real) now = real;
    pthread_mutex_unlock(&one);
}

/* Steps of launches of 2 us with 5 us of host time between them, and a wait at the end of each. */
void stand_in_steps(int steps, int kernels) {
    pthread_mutex_lock(&one);
    if (!now) now = clock_now();
    for (int step = 0; step < steps; step++) {
        for (int place = 0; place < kernels; place++) {
            now += 5000;
            call(RUNTIME, GET_DEVICE, 100);
            call(RUNTIME, LAUNCH, 3000);
            kernel(NAMES[place % 5], 2000, 0);
        }
        now += 1000;
        uint64_t until = free_at > now ? free_at - now + 1000 : 1000;
        call_with(RUNTIME, SYNCHRONIZE, until, (void *[]){NULL});
    }
    pthread_mutex_unlock(&one);
}

static void copy(void) {
    call(RUNTIME, MEMCPY_ASYNC, 3000);
    uint64_t begin = begin_of_work(900);
    uint8_t *made = record(MEMCPY);
    SET(4, uint8_t, 1); SET(5, uint8_t, 1); SET(6, uint8_t, 3); SET(8, uint64_t, 4096); SET(16, uint64_t, begin); SET(24, uint64_t, begin + 900);
    SET(32, uint32_t, 0); SET(40, uint32_t, 7); SET(44, uint32_t, correlation);
}

void stand_in_copies(int count) {
    pthread_mutex_lock(&one);
    while (count-- > 0) copy();
    pthread_mutex_unlock(&one);
}

/* Steps of one replay of a graph, and a wait. */
void stand_in_replays(int steps, int kernels) {
    pthread_mutex_lock(&one);
    if (!now) now = clock_now();
    for (int step = 0; step < steps; step++) {
        now += 5000;
        call(RUNTIME, GRAPH_LAUNCH, 6000);
        for (int node = 1; node <= kernels; node++) kernel(NAMES[0], 1000, (1ull << 32) + node);
        call_with(RUNTIME, SYNCHRONIZE, free_at > now ? free_at - now + 1000 : 1000, (void *[]){NULL});
    }
    pthread_mutex_unlock(&one);
}

static void tell_alone(Called *data, int leaves) {
    pthread_mutex_lock(&one);
    tell_of(RUNTIME, MEMCPY_ASYNC, data, leaves);
    pthread_mutex_unlock(&one);
}

static volatile int in_a_call;
int stand_in_in_a_call(void) { return in_a_call; }

/* A call that lasts until the file exists. */
void stand_in_until(const char *file) {
    uint64_t kept = 0;
    Called data = {.kept = &kept, .correlation = ++correlation};
    tell_alone(&data, 0);
    in_a_call = 1;
    while (access(file, F_OK)) usleep(1000);
    tell_alone(&data, 1);
    in_a_call = 0;
}

static int elsewhere_steps;
static void *elsewhere(void *unused) {
    for (int step = 0; step < elsewhere_steps; step++) {
        usleep(10000);
        stand_in_now();
        stand_in_steps(1, 20);
    }
    return NULL;
}

/* The same with pauses of 10 ms on a thread that knows nothing of Python; the caller waits for it. */
void stand_in_elsewhere(int steps) {
    pthread_t thread;
    elsewhere_steps = steps;
    pthread_create(&thread, NULL, elsewhere, NULL);
    pthread_join(thread, NULL);
}

static void *named(void *unused) {
    prctl(PR_SET_NAME, "pt_autograd_0");
    return elsewhere(unused);
}

/* The same on a thread that is named as PyTorch names that of the backward pass. */
void stand_in_backward(int steps) {
    pthread_t thread;
    elsewhere_steps = steps;
    pthread_create(&thread, NULL, named, NULL);
    pthread_join(thread, NULL);
}

/* One record of each kind, and work that never ends. */
void stand_in_kinds(void) {
    uint8_t *made;
    uint64_t begin;
    pthread_mutex_lock(&one);
    if (!now) now = clock_now();
    call(DRIVER, DRIVER_LAUNCH, 3000);
    kernel(NAMES[2], 4000, 0);
    copy();
    call(RUNTIME, MEMCPY_ASYNC, 3000);
    begin = begin_of_work(1900);
    made = record(PEER_MEMCPY);
    SET(4, uint8_t, 10); SET(5, uint8_t, 3); SET(6, uint8_t, 3); SET(8, uint64_t, 8192); SET(16, uint64_t, begin); SET(24, uint64_t, begin + 1900);
    SET(32, uint32_t, 1); SET(40, uint32_t, 9); SET(60, uint32_t, correlation); SET(72, uint64_t, 77); SET(80, uint32_t, 5);
    call(RUNTIME, MEMSET_ASYNC, 3000);
    begin = begin_of_work(800);
    made = record(MEMSET);
    SET(8, uint64_t, 64); SET(16, uint64_t, begin); SET(24, uint64_t, begin + 800); SET(32, uint32_t, 0); SET(40, uint32_t, 7); SET(44, uint32_t, correlation); SET(50, uint16_t, 3);
    call(RUNTIME, GRAPH_LAUNCH, 6000);
    for (int node = 1; node <= 3; node++) kernel(NAMES[0], 1000, (1ull << 32) + node);
    void *event = (void *)(40 << 4), *other = (void *)9;
    call_with(RUNTIME, RECORD, 500, (void *[]){event, NULL});
    call_with(RUNTIME, WAIT_EVENT, 500, (void *[]){other, event, NULL});
    call_with(RUNTIME, RECORD, 500, (void *[]){event, other});
    made = record(OVERHEAD);
    SET(4, uint32_t, 5 << 16); SET(12, uint32_t, getpid()); SET(16, uint32_t, (uint32_t)pthread_self()); SET(24, uint64_t, now); SET(32, uint64_t, now + 700);
    made = record(OVERHEAD);
    SET(4, uint32_t, 7 << 16); SET(12, uint32_t, getpid()); SET(16, uint32_t, (uint32_t)pthread_self()); SET(24, uint64_t, now + 700); SET(32, uint64_t, now + 900);
    now += 2000;
    call(RUNTIME, LAUNCH, 3000);
    kernel(NAMES[4], 1000, 0);
    if (buffer) { made = buffer + used - bytes_of(KERNEL); SET(24, uint64_t, 0); }
    pthread_mutex_unlock(&one);
}

void stand_in_drop(int count) { dropped += count; }
int stand_in_subscribed(void) { return subscribed; }

/* Wait until all full buffers are delivered; the one that is not full stays where it is, as with CUPTI. */
void stand_in_settle(void) {
    pthread_mutex_lock(&queued);
    while (first != last) pthread_cond_wait(&changed, &queued);
    pthread_mutex_unlock(&queued);
}

/* What is asked of libcuda. Like CUDA's driver, cuInit loads the library that a variable names, once. */
int cuInit(unsigned flags) {
    static int done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path && !done++ ? dlopen(path, RTLD_NOW) : NULL;
    int (*initialize)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (initialize) initialize();
    return OK;
}
int cuDriverGetVersion(int *version) { *version = asked("STAND_IN_DRIVER", 13000); return OK; }
int cuCtxSynchronize(void) { synchronized++; return OK; }
int stand_in_synchronized(void) { return synchronized; }
int cuDeviceGetCount(int *count) { *count = 2; return OK; }
int cuDeviceGet(int *device, int number) { *device = number; return OK; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, device ? "NVIDIA H100" : "NVIDIA H200", size); return OK; }
int cuDeviceGetPCIBusId(char *id, int size, int device) { strncpy(id, device ? "0000:C3:00.0" : "0000:43:00.0", size); return OK; }

/* Records what a process submits to the GPU into a file of its own. It runs inside of the program that is watched.
 *
 * A Python program loads it at its first import of a GPU package, and drives it by the functions microbench_*: see
 * recorder.py. CUDA's driver loads it into any other program within cuInit, because CUDA_INJECTION64_PATH names it, and
 * calls InitializeInjection. If that program is Python after all, recorder.py joins. CUPTI's threads write kernels,
 * copies and memsets; calls, waits and events are written by a callback in the program's own threads. What records takes
 * no lock of Python.
 *
 * It needs no header of CUDA. Whatever fails, the program runs on, and the reason is left for the end of microbench.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The cells of a file (cells.py). */

enum { VERSION = 1, CELL_BYTES = 64, TEXT_BYTES = 48, LONGEST_TEXT = 16384, FACT = 0xFF01, NAME = 0xFF02 };
enum {
    MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, OVERHEAD = 17, PEER_MEMCPY = 22, CUDA_EVENT = 36,
    SYNC = 38
};
/* CUPTI makes records of these kinds. The rows of calls (RUNTIME, DRIVER), waits (SYNC) and events are made while the
 * program calls, because CUPTI's own records of them cost several times as much. */
static const int KINDS[] = {KERNEL, MEMCPY, MEMSET, PEER_MEMCPY, OVERHEAD};
static const int ENDING_KINDS[] = {KERNEL, OVERHEAD}; /* Their records end with a window. */
/* What is done about a call: RECORDED, plus RECORDS_EVENT or one of CUPTI's types of waits in the low bits. PER_THREAD
 * marks calls of the variant with a default stream for each thread, LAUNCHES those of one kernel, and REPLAYS of a graph. */
enum {
    WAITS_FOR_EVENT = 1, STREAM_WAITS, WAITS_FOR_STREAM, WAITS_FOR_ALL, RECORDS_EVENT = 8, PER_THREAD = 16, RECORDED = 32,
    LAUNCHES = 64, REPLAYS = 128
};

typedef struct {
    uint16_t kind, detail;
    uint32_t flags;
    uint64_t begin_ns, end_ns;
    uint32_t correlation, place, stream, graph;
    uint64_t size, name, node;
} Row;

typedef struct {
    uint16_t kind, part;
    uint32_t length;
    uint64_t key;
    char content[TEXT_BYTES];
} Text;

typedef struct {
    char magic[16];
    uint32_t version, cell_bytes;
    uint64_t unused[5];
} Header;

typedef union {
    Row row;
    Text text;
    Header header;
} Cell;

_Static_assert(sizeof(Row) == CELL_BYTES && sizeof(Text) == CELL_BYTES && sizeof(Cell) == CELL_BYTES, "64 bytes each");

/* The bounds. */

/* Small buffers, because CUPTI delivers only full ones while the program runs, and a killed program loses the others. If
 * many bytes are handed out (many threads, a slow disk), buffers become smaller; beyond MOST_BYTES none is given, and
 * CUPTI drops records and counts them. */
#define BUFFER_BYTES (1ull << 18)
#define SMALL_BUFFER_BYTES (1ull << 15)
#define MANY_BYTES (256ull << 20)
#define MOST_BYTES (1ull << 30)
/* That stay free on the disk, or a twentieth of a smaller disk. */
#define MOST_RESERVE_BYTES (1ull << 30)
/* Cells are written before the longest name might not fit any more. TRIES: slots that are tried for one name. */
enum { MOST_CELLS = 8192, FULL_CELLS = MOST_CELLS - LONGEST_TEXT / TEXT_BYTES - 2, NAME_SLOTS = 65536, TRIES = 64 };
/* MOST_CALLS is above the number (cbid) of any call. After LOCK_TRIES tries, a lock in a forked child counts as held by
 * a thread that no longer exists. In the process itself the holder may wait for a processor, or be interrupted by the
 * signal handler that runs this, so there are LOCK_ROUNDS rounds. */
enum { MOST_CALLS = 1200, BEGUN_SLOTS = 1024, CALL_ROWS = 2048, LOCK_TRIES = 20000, LOCK_ROUNDS = 200 };
enum { FLUSH_MS = 200, FORCED = 1, FAR_FILE = 900, MOST_GPUS = 64, MOST_PATH = 4096 };
/* Bytes of a cause that are kept, more than are shown: some file systems have links of 1024 bytes at most. */
enum { LONGEST_REASON = 600, MOST_REASONS = 100 };
enum { FIRST_VERSION = 18, FIRST_UNKNOWN_VERSION = 140000, TAKEN = 39 };
/* Unless it is told otherwise the recording pauses now and then: the first window and the first pause, each twice as
 * long as the one before it, and the longest of each. Pauses show the step without the recorder. */
#define FIRST_WINDOW_S 0.5
#define FIRST_PAUSE_S 0.25
#define LONGEST_WINDOW_S 8.0
#define LONGEST_PAUSE_S 60.0
/* Something is looked at every LOOK_S. At the end of a window kernels that were launched in it may still run: how many
 * looks they are waited for: at most, while none ends, and after the last replay has begun. */
#define LOOK_S 0.05
enum { DRAIN_LOOKS = 200, STALLED_LOOKS = 12, WHOLE_LOOKS = FLUSH_MS / 50, LATE_LOOKS = 600 };
#define WITHIN_S 0.001 /* in which a callback that has begun ends */
#define BEHIND_S 1.0   /* in which CUPTI hands over what has ended */

/* Calls that are recorded submit, wait, allocate or load code: parts of their names. Others take too little time. */
static const char *const PARTS_OF_CALLS[] = {
    "Launch", "Memcpy", "Memset", "Synchronize", "WaitEvent", "EventRecord", "Malloc", "MemAlloc", "MemFree",
    "cudaFree", "HostAlloc", "HostRegister", "HostUnregister", "MemCreate", "MemMap", "MemRelease", "MemPrefetch",
    "ModuleLoad", "ModuleUnload", "LibraryLoad", "LibraryUnload", "GraphInstantiate", "GraphExecUpdate",
};
/* What those do that are more than a call, the first that fits. */
static const struct {
    const char *part;
    uint8_t more;
} ACTIONS[] = {
    {"EventSynchronize", WAITS_FOR_EVENT}, {"StreamSynchronize", WAITS_FOR_STREAM}, {"Synchronize", WAITS_FOR_ALL},
    {"WaitEvent", STREAM_WAITS}, {"EventRecord", RECORDS_EVENT}, {"LaunchKernel", LAUNCHES},
    {"LaunchCooperativeKernel", LAUNCHES}, {"GraphLaunch", REPLAYS},
};
static const char *const RANKS[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
static const struct {
    int domain;
    const char *name;
} APIS[] = {{1, "driver"}, {2, "runtime"}};
static const char *const TOOLKIT_FOLDERS[] = {"extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"};
static const char ELSEWHERE[] = "record into a folder on another disk by -o";

/* The functions of libcupti. */

static struct {
    int (*get_version)(uint32_t *);
    int (*get_result_string)(int, const char **);
    int (*get_timestamp)(uint64_t *);
    int (*get_callback_name)(int, uint32_t, const char **);
    int (*subscribe)(void **, void (*)(void *, uint32_t, uint32_t, const void *), void *);
    int (*unsubscribe)(void *);
    int (*register_callbacks)(
        void (*)(uint8_t **, size_t *, size_t *), void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
    int (*enable)(int);
    int (*disable)(int);
    int (*flush_all)(uint32_t);
    int (*flush_period)(uint32_t);
    int (*next_record)(uint8_t *, size_t, uint8_t **);
    int (*dropped_records)(void *, uint32_t, size_t *);
    int (*enable_callback)(uint32_t, void *, int, uint32_t);
    int (*get_stream_id)(void *, void *, uint8_t, uint32_t *);
} cupti;

typedef struct {
    const char *name;
    void *place;
} Wanted;

static const Wanted FUNCTIONS[] = {
    {"cuptiGetVersion", &cupti.get_version},
    {"cuptiGetResultString", &cupti.get_result_string},
    {"cuptiGetTimestamp", &cupti.get_timestamp},
    {"cuptiGetCallbackName", &cupti.get_callback_name},
    {"cuptiSubscribe", &cupti.subscribe},
    {"cuptiUnsubscribe", &cupti.unsubscribe},
    {"cuptiActivityRegisterCallbacks", &cupti.register_callbacks},
    {"cuptiActivityEnable", &cupti.enable},
    {"cuptiActivityDisable", &cupti.disable},
    {"cuptiActivityFlushAll", &cupti.flush_all},
    {"cuptiActivityFlushPeriod", &cupti.flush_period},
    {"cuptiActivityGetNextRecord", &cupti.next_record},
    {"cuptiActivityGetNumDroppedRecords", &cupti.dropped_records},
    {"cuptiEnableCallback", &cupti.enable_callback},
    {"cuptiGetStreamIdEx", &cupti.get_stream_id},
};

/* The recording of this process; there may be another after it. */

static atomic_int taken;              /* 1 as soon as something records this process */
static atomic_bool active;            /* CUPTI is ours */
static atomic_uint generation;        /* the number of the recording */
static char name_of_main[16];         /* what threads without a name of their own are called */
static pid_t process;                 /* a forked child has another number and stays silent */
static void *subscriber;
static bool enabled[SYNC + 1];        /* by kind */
static char path[MOST_PATH], reasons[MOST_PATH];
static char reason[3 * MOST_PATH];    /* a cause, and the next step in the last line */
static struct stat identity;          /* of the file, which the program may close */
static atomic_bool forked, told_of_fork; /* this process is a fork of a recorded one, and has said so */
static atomic_bool stopped, ending, closing; /* closing: no call is recorded any more */
static _Atomic uint64_t handed_out_bytes;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static int file = -1, failure;        /* failure: the errno of the write that failed */
static uint64_t written_bytes, least_free_bytes;
static Cell cells[MOST_CELLS];        /* that wait for being written */
static int waiting;
static uint64_t seen_names[NAME_SLOTS];

static uint8_t actions[2][MOST_CALLS];               /* by domain less one and number; 0 is not recorded */
static _Atomic uint64_t begun[BEGUN_SLOTS];          /* the runtime's calls that have begun, by their correlation */
static atomic_flag calls_lock = ATOMIC_FLAG_INIT;    /* of the next two; mutex may be taken within it */
static Row calls[CALL_ROWS];                         /* that wait for being written */
static int waiting_calls;
static _Atomic uint64_t dropped_calls;
static atomic_bool locked_out;

/* The correlation of the first call that this recording has. */
static _Atomic uint64_t first_call;
/* Of this window: kernels launched, and how many of them have a record by now; records of graphs; the correlations of the
 * last graph that is replayed, of the last one that has a record by now, of the first launch of either, and of the last
 * call. In a pause last_counted is the correlation of the last call whose work counts, and otherwise 0. */
static _Atomic uint64_t launched, finished, nodes, replayed, ran, first_launch, last_call, last_counted;
/* The correlations of the last call before the last pause, and of the first one behind it that is no wait. The reader
 * leaves out what CUPTI hands over a pause later. */
static _Atomic uint64_t before_pause, behind_pause;

static pthread_mutex_t turns = PTHREAD_MUTEX_INITIALIZER; /* of what follows; the other two may be taken within it */
static bool last_window;              /* no other follows */
static unsigned window;
static _Atomic uint64_t window_begin_ns;
static double window_s, every_s;      /* of the settings; 0 where windows grow */

/* What Python shares: whether anything was launched; whether a window is open; and whether it answers which line calls.
 * Then the call that asks: its state (NOBODY to ANSWERED), and whether its thread turned out to run no Python. Then
 * whether Python ends the recording after its time; and of the call that asks its thread and its begin. */
EXPORTED struct {
    _Atomic uint32_t has_launched, window_open, answers, asks, no_python, ends_it;
    _Atomic uint64_t thread, at_ns;
} microbench_shared;
enum { NOBODY, ABOUT_TO_ASK, ASKS, LOOKED_AT, ANSWERED };

/* What `microbench watch` orders, where it does so: a file that it shares with the recorders of its processes. A process
 * then keeps one file, which each recording begins anew. The program may close it. */
static const struct {
    _Atomic uint32_t order;     /* odd while a recording is wanted, and one more for each begin and each end */
    _Atomic uint32_t window_ms; /* how long everything is recorded; waits and turns until the end */
    int32_t watch;              /* the process that orders */
    uint32_t unused;
    uint64_t namespace;         /* of the numbers of processes, as that one sees it */
} *orders;
static uint32_t obeyed;
static int kept_file = -1;
#define FORGOTTEN_S 60.0 /* beyond twice its window an ordered recording ends by itself */

/* What microbench_end is called for. */
enum { AT_EXIT, AFTER_A_TIME, AFTER_A_BLOCK, AFTER_A_FAILURE };

#define READ(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define SET(word, value) atomic_store_explicit(&(word), value, memory_order_relaxed)

/* Copy a text; one that is too long becomes empty. */
static void keep(char *target, const char *text) {
    size_t length = text ? strlen(text) : 0;
    if (target == text) return;
    target[0] = 0;
    if (length && length < MOST_PATH) memcpy(target, text, length + 1);
}

/* Say why the process is not recorded, or not to its end. */
__attribute__((format(printf, 2, 3))) static bool refuse(const char *next_step, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason - MOST_PATH, format, arguments);
    va_end(arguments);
    strcat(strcat(reason, "\n"), next_step);
    return false;
}

/* Write the beginning of a text as a string of JSON, and return its end. */
static char *put_quoted(char *target, const char *text) {
    *target++ = '"';
    for (const char *at = text; *at && at < text + LONGEST_REASON; at++) {
        bool escaped = *at == '"' || *at == '\\' || (unsigned char)*at < ' ';
        target += sprintf(target, escaped ? "\\u%04x" : "%c", (unsigned char)*at);
    }
    *target++ = '"';
    return target;
}

/* Leave a reason for the end of `microbench watch`. A symbolic link says it, because a file that is opened has for a
 * moment the lowest free number, which another thread of the program sees or expects for its own. */
EXPORTED void microbench_leave_reason(const char *cause, const char *next_step) {
    char name[MOST_PATH + 32], said[2 * (6 * LONGEST_REASON + 4)] = "[", *end = put_quoted(said + 1, cause);
    *end++ = ',';
    strcpy(put_quoted(end, next_step), "]");
    for (int number = 1; *reasons && number < MOST_REASONS; number++) {
        snprintf(name, sizeof name, "%s/%d-%d", reasons, (int)getpid(), number);
        if (!symlink(said, name) || errno != EEXIST) return;
    }
}

static void leave_reason(void) {
    char *next_step = strrchr(reason, '\n');
    *next_step = 0;
    microbench_leave_reason(reason, next_step + 1);
}

/* Say once that this process is a fork of a recorded one, and uses the GPU. */
static void tell_of_fork(void) {
    if (atomic_exchange(&told_of_fork, true)) return;
    refuse("start such a process by spawn or exec, or fork before the first import of a GPU package",
           "work of a process that was forked from a recorded one: CUPTI cannot follow a fork");
    leave_reason();
}

/* Writing; the mutex is held. */

static void fail(int error) {
    failure = error;
    stopped = true;
}

/* Write the cells that wait. After a failure nothing more is written, so the file stays whole up to there. */
static void write_cells(void) {
    const char *next = (const char *)cells;
    uint64_t left = (uint64_t)waiting * CELL_BYTES;
    struct statvfs disk;
    struct rlimit largest;
    waiting = 0;
    /* A program that closes all files may have opened another one by this number since. */
    if (lseek(file, 0, SEEK_CUR) != (off_t)written_bytes) return fail(EBADF);
    if (!fstatvfs(file, &disk) && disk.f_bfree * disk.f_frsize < least_free_bytes + left) return fail(ENOSPC);
    /* A write that begins at the limit would end the program by SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &largest)) largest.rlim_cur = RLIM_INFINITY;
    while (left) {
        uint64_t room = written_bytes < largest.rlim_cur ? largest.rlim_cur - written_bytes : 0;
        if (!room) return fail(EFBIG);
        ssize_t written = write(file, next, left < room ? left : room);
        if (written > 0) {
            next += written;
            left -= written;
            written_bytes += written;
        } else if (written == 0 || errno != EINTR)
            return fail(written ? errno : ENOSPC);
    }
}

static Cell *next_cell(void) {
    memset(&cells[waiting], 0, CELL_BYTES);
    return &cells[waiting++];
}

/* Add the cells of a text; there is room for the longest one. */
static void put_text(uint16_t kind, uint64_t key, const char *text) {
    uint32_t length = strnlen(text, LONGEST_TEXT);
    for (uint32_t begun = 0; begun < length; begun += TEXT_BYTES) {
        Text *cell = &next_cell()->text;
        *cell = (Text){kind, begun / TEXT_BYTES, length, key, {0}};
        memcpy(cell->content, text + begun, length - begun < TEXT_BYTES ? length - begun : TEXT_BYTES);
    }
}

__attribute__((format(printf, 1, 2))) static void put_fact(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put_text(FACT, 0, text);
    if (waiting >= FULL_CELLS) write_cells();
}

/* Put the text of a kernel's name before its first row. A name that finds no slot in the table is left out. */
static void put_name(uint64_t name) {
    uint64_t slot = (name >> 3) * 40503;
    for (int tries = 0; name && tries < TRIES; tries++, slot++) {
        uint64_t *seen = &seen_names[slot & (NAME_SLOTS - 1)];
        if (*seen == name) return;
        if (!*seen) {
            *seen = name;
            return put_text(NAME, name, (const char *)(uintptr_t)name);
        }
    }
}

/* From records to rows: the fields lie at the same places in CUPTI 12.0 to 13.5. */

static uint16_t u16(const uint8_t *at) { uint16_t value; memcpy(&value, at, sizeof value); return value; }
static uint32_t u32(const uint8_t *at) { uint32_t value; memcpy(&value, at, sizeof value); return value; }
static uint64_t u64(const uint8_t *at) { uint64_t value; memcpy(&value, at, sizeof value); return value; }

/* Fill an empty row from a record. False for a record of another kind. */
static bool fill(Row *row, const uint8_t *record) {
    uint32_t kind = u32(record);
    row->end_ns = 1;
    switch (kind) {
    case KERNEL:
        row->begin_ns = u64(record + 16), row->end_ns = u64(record + 24), row->correlation = u32(record + 92);
        row->place = u32(record + 40), row->stream = u32(record + 48);
        row->size = (uint64_t)u32(record + 52) * u32(record + 56) * u32(record + 60);
        row->flags = u32(record + 64) * u32(record + 68) * u32(record + 72);
        row->name = u64(record + 104), row->node = u64(record + 144), row->graph = u32(record + 156);
        break;
    case MEMCPY: case PEER_MEMCPY: case MEMSET:
        row->size = u64(record + 8), row->begin_ns = u64(record + 16), row->end_ns = u64(record + 24);
        row->place = u32(record + 32), row->stream = u32(record + 40);
        if (kind == PEER_MEMCPY)
            row->correlation = u32(record + 60), row->node = u64(record + 72), row->graph = u32(record + 80);
        else
            row->correlation = u32(record + 44), row->node = u64(record + 64), row->graph = u32(record + 72);
        if (kind == MEMSET) row->flags = u16(record + 50);
        else row->detail = record[4], row->flags = record[5] | record[6] << 8;
        break;
    case OVERHEAD:
        row->flags = u32(record + 4), row->place = u32(record + 16);
        row->begin_ns = u64(record + 24), row->end_ns = u64(record + 32);
        break;
    default:
        return false;
    }
    row->kind = kind;
    return true;
}

/* Write all records of a buffer but those of what has not ended when the recording ends, and of calls in a pause. What
 * is ``left`` of the recording before this one may go on in its last buffer. */
static void keep_records(uint8_t *buffer, size_t valid_bytes, bool left) {
    uint8_t *record = NULL;
    uint64_t least = left ? READ(first_call) ? READ(first_call) : UINT64_MAX : 0;
    while (!cupti.next_record(buffer, valid_bytes, &record)) {
        uint64_t first = READ(first_launch), last = READ(last_counted);
        uint64_t before = READ(before_pause), behind = READ(behind_pause);
        if (u32(record) == KERNEL) {
            uint32_t correlation = u32(record + 92), graph = u32(record + 156);
            put_name(u64(record + 104));
            if (!graph && first && correlation >= first && (!last || correlation <= last)) finished++;
        }
        Row *row = &next_cell()->row;
        if (!fill(row, record) || (ending && row->end_ns == 0) || row->correlation < least
            || (last && row->correlation > last)
            || (before && row->correlation > before && (!behind || row->correlation < behind)))
            waiting--;
        else if (row->graph) {
            nodes++;
            if (row->correlation > READ(ran)) SET(ran, row->correlation);
        }
        if (waiting >= FULL_CELLS) write_cells();
        if (stopped) return;
    }
    write_cells();
}

/* CUPTI needs memory for records. Behind it is the number of the recording that gave it. Without memory CUPTI before 12.9
 * ends the program, so it is given after the end of the recording too. */
static void requested(uint8_t **buffer, size_t *size, size_t *most_records) {
    uint64_t number = generation;
    *size = handed_out_bytes < MANY_BYTES && !stopped ? BUFFER_BYTES : SMALL_BUFFER_BYTES;
    *buffer = handed_out_bytes < MOST_BYTES ? malloc(*size + sizeof number) : NULL;
    if (*buffer) memcpy(*buffer + *size, &number, sizeof number);
    else *size = 0;
    handed_out_bytes += *size;
    *most_records = 0;
}

/* The program's calls. */

/* What CUPTI says of a call: CUpti_CallbackData. ``kept`` is a word for us that lasts until the call returns. */
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

_Static_assert(offsetof(Called, kept) == 56 && offsetof(Called, correlation) == 64, "as in cupti_callbacks.h");

/* Lock the rows of calls. That is always possible but in a forked child, whose parent's thread had locked them. */
static bool lock_calls(void) {
    for (int rounds = 0; rounds < LOCK_ROUNDS && !locked_out; rounds++) {
        for (int tries = 0; tries < LOCK_TRIES; tries++) {
            if (!atomic_flag_test_and_set_explicit(&calls_lock, memory_order_acquire)) return true;
            sched_yield();
        }
        if (getpid() != process) locked_out = true;
    }
    return false;
}

static void unlock_calls(void) {
    atomic_flag_clear_explicit(&calls_lock, memory_order_release);
}

/* Write the rows of calls, with their lock held. A forked child, which shares the file, forgets them. */
static void write_calls(void) {
    if (getpid() == process) {
        pthread_mutex_lock(&mutex);
        if (!stopped) {
            memcpy(cells, calls, waiting_calls * sizeof *calls);
            waiting = waiting_calls;
            write_cells();
        }
        pthread_mutex_unlock(&mutex);
    }
    waiting_calls = 0;
}

/* Write the rows of calls that wait, although there is room for more. */
static void write_waiting(void) {
    if (!lock_calls()) return;
    write_calls();
    unlock_calls();
}

/* Write a fact while the callbacks may write too. */
__attribute__((format(printf, 1, 2))) static void give_fact(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write_waiting();
    pthread_mutex_lock(&mutex);
    if (!stopped) {
        put_text(FACT, 0, text);
        write_cells();
    }
    pthread_mutex_unlock(&mutex);
}

/* The lowest number that a file of ours gets: out of the way of the program's own. */
static int far_number(void) {
    struct rlimit most; /* files that are allowed */
    return getrlimit(RLIMIT_NOFILE, &most) || most.rlim_cur > FAR_FILE ? FAR_FILE : (int)(most.rlim_cur * 7 / 8);
}

/* The kernel's files that say in which of its calls threads are: those that call CUDA, but for the main one. They are
 * opened at such a thread's first call with samples, which no other way tells; each has for a moment the lowest number. */
enum { MOST_CALLING = 8 };
static struct {
    uint32_t thread;
    int file;
    struct stat identity; /* the program may close it */
    bool waits;
} calling[MOST_CALLING];
static int calling_count;
static atomic_bool watches_threads;
static pthread_mutex_t calling_mutex = PTHREAD_MUTEX_INITIALIZER; /* of the first two */

static void forget_thread(int place) {
    struct stat found;
    if (!fstat(calling[place].file, &found) && found.st_ino == calling[place].identity.st_ino
        && found.st_dev == calling[place].identity.st_dev)
        close(calling[place].file);
    calling[place] = calling[--calling_count];
}

static void watch_thread(uint32_t thread) {
    static _Thread_local unsigned watched;
    char name[64];
    long own = syscall(SYS_gettid);
    if (watched == generation || !watches_threads) return;
    watched = generation;
    if (own == process || READ(calling_count) >= MOST_CALLING) return;
    snprintf(name, sizeof name, "/proc/self/task/%ld/syscall", own);
    int near = open(name, O_RDONLY | O_CLOEXEC), far = near < 0 ? -1 : fcntl(near, F_DUPFD_CLOEXEC, far_number());
    if (near >= 0) close(near);
    if (far < 0) return;
    pthread_mutex_lock(&calling_mutex); /* nothing within it can end the thread */
    for (int place = 0; place < calling_count; place++)
        if (calling[place].thread == thread) forget_thread(place); /* it has ended, and its number is another's */
    bool kept = watches_threads && calling_count < MOST_CALLING;
    if (kept) {
        calling[calling_count].thread = thread;
        calling[calling_count].file = far;
        calling[calling_count].waits = false;
        fstat(far, &calling[calling_count++].identity);
    }
    pthread_mutex_unlock(&calling_mutex);
    if (!kept) close(far);
}

/* Give the name of the calling thread once a recording, if it has one of its own. */
static void name_thread(uint32_t thread) {
    static _Thread_local unsigned named;
    char name[16] = "";
    if (named == generation) return;
    named = generation;
    if (!prctl(PR_GET_NAME, name) && strcmp(name, name_of_main)) give_fact("thread.%u=%s", thread, name);
}

/* Whether the host waits in a call, so that it is recorded in pauses too. */
static bool waits(uint8_t action) {
    int type = action & 15;
    return type == WAITS_FOR_EVENT || type == WAITS_FOR_STREAM || type == WAITS_FOR_ALL;
}

/* The number of the stream of a call, as records of kernels have it, and the number of its event. */
static void find_stream_and_event(uint8_t action, const Called *data, uint32_t *stream, uint64_t *event) {
    int type = action & 15;
    *stream = UINT32_MAX, *event = UINT32_MAX;
    if (!type || type == WAITS_FOR_ALL || !data->parameters) return;
    uint64_t first = (uintptr_t)data->parameters[0];
    uint64_t second = type == RECORDS_EVENT || type == STREAM_WAITS ? (uintptr_t)data->parameters[1] : 0;
    if (type == WAITS_FOR_EVENT || type == RECORDS_EVENT) *event = first >> 4 & UINT32_MAX;
    else if (type == STREAM_WAITS) *event = second >> 4 & UINT32_MAX;
    if (type == WAITS_FOR_EVENT) return;
    void *handle = (void *)(uintptr_t)(type == RECORDS_EVENT ? second : first);
    uint32_t number;
    if (!cupti.get_stream_id(data->context, handle, (action & PER_THREAD) != 0, &number)) *stream = number;
}

/* Which line of Python calls. Samples at random times name a line nearby of a call that is short, so now and then a thread
 * that enters a call waits until Python's thread of samples has seen its stack: at most HELD_NS, and for no more than a
 * HELD_PARTth of a window. Each function of CUDA has its turns, at one of its calls by chance. A thread that keeps
 * Python's lock within a call cannot be answered, and asks less and less often. */

enum { TURN_NS = 4000000, MOST_PAUSE_NS = 1000000000, HELD_NS = 500000, HELD_PART = 100 };
static struct {
    _Atomic uint64_t next_ns;
    _Atomic uint32_t calls, left_out;
} asking[2][MOST_CALLS];
static _Atomic uint64_t held_ns; /* in this window */

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void ask(uint32_t api, uint32_t number, uint64_t at_ns) {
    static _Thread_local uint64_t random, pause_ns = TURN_NS;
    static _Thread_local bool no_python;
    uint32_t nobody = NOBODY, calls = READ(asking[api][number].calls) + 1, left_out = READ(asking[api][number].left_out);
    uint64_t began_ns, took_ns;
    SET(asking[api][number].calls, calls);
    if (no_python || !READ(microbench_shared.answers) || at_ns < READ(asking[api][number].next_ns)) return;
    if (left_out) {
        SET(asking[api][number].left_out, left_out - 1);
        return;
    }
    if (HELD_PART * READ(held_ns) > at_ns - window_begin_ns) return;
    if (!atomic_compare_exchange_strong(&microbench_shared.asks, &nobody, ABOUT_TO_ASK)) return;
    began_ns = monotonic_ns();
    SET(microbench_shared.thread, (uint64_t)pthread_self());
    SET(microbench_shared.at_ns, at_ns);
    microbench_shared.no_python = false;
    microbench_shared.asks = ASKS;
    syscall(SYS_futex, &microbench_shared.asks, FUTEX_WAKE_PRIVATE, 1, NULL);
    do {
        sched_yield();
        took_ns = monotonic_ns() - began_ns;
    } while (microbench_shared.asks != ANSWERED && took_ns < HELD_NS);
    no_python = microbench_shared.no_python;
    pause_ns = microbench_shared.asks == ANSWERED ? TURN_NS : pause_ns < MOST_PAUSE_NS ? 2 * pause_ns : pause_ns;
    microbench_shared.asks = NOBODY;
    held_ns += took_ns;
    random = (random ^ at_ns) * 6364136223846793005u + 1442695040888963407u;
    SET(asking[api][number].next_ns, at_ns + took_ns + pause_ns / 2 + (random >> 32) % pause_ns);
    SET(asking[api][number].left_out, (random >> 16) % calls);
    SET(asking[api][number].calls, 0);
}

/* What this needs of Python, of which nothing is linked. */
static struct {
    const char *(*version)(void);
    int (*is_initialized)(void);
    int (*add_pending_call)(int (*)(void *), void *);
    void *(*save_thread)(void);
    void (*restore_thread)(void *);
    void *(*add_module)(const char *);
    void *(*build_value)(const char *, ...);
    void *(*compile)(const char *, const char *, int);
    void *(*evaluate)(void *, void *, void *);
    void (*let_go)(void *);
    void (*clear_error)(void);
} python;

static const Wanted PYTHONS[] = {
    {"Py_GetVersion", &python.version},
    {"Py_IsInitialized", &python.is_initialized},
    {"Py_AddPendingCall", &python.add_pending_call},
    {"PyEval_SaveThread", &python.save_thread},
    {"PyEval_RestoreThread", &python.restore_thread},
    {"PyImport_AddModule", &python.add_module},
    {"Py_BuildValue", &python.build_value},
    {"Py_CompileString", &python.compile},
    {"PyEval_EvalCode", &python.evaluate},
    {"Py_DecRef", &python.let_go},
    {"PyErr_Clear", &python.clear_error},
};

/* Python's lock for a sample. Python asks a thread for its lock only when that thread has kept it for 5 ms. One that gives
 * it up often, and takes it back before another thread wakes up, keeps others waiting for as long as it likes. So Python
 * calls this in its main thread, between two of its instructions, and there the lock is left to the thread of samples.
 *
 * Before Python 3.13 the main thread sees such a call of another thread only when it has given up the lock, or is asked
 * for it. Samples would all be of code behind functions in C that give it up. So while a sample is wanted and the main
 * thread runs, Python's interval of 5 ms is SHORT_US. Nobody else has that value, so one that the program has set stays.
 * It stays long while the main thread waits, who would else get the lock earlier than without the recorder. While a
 * function in C keeps the lock, whoever waits looks for it every SHORT_US, so after such waits it stays long for more and
 * more samples. */

enum { LEFT_NS = 500000, FIRST_AGAIN_NS = 100000000, SHORT_US = 47, LONG_NS = 20000000, MOST_LEFT_OUT = 63 };
static _Atomic unsigned long *interval_us, usual_us; /* where Python has the interval: found once, NULL if it need not be */
static uint64_t shortened_ns;                /* 0 where it is not */
static uint32_t left_out, more_left_out = 1; /* samples for which it stays long, and after the next long wait */
static atomic_int main_call = -1; /* the kernel's file that says in which of its calls the main thread is */
static _Atomic uint32_t lock_wanted, lock_left_ns, lock_given; /* for how long it was left last, and that it is left */
static _Atomic uint64_t lock_again_ns;             /* when Python is asked again although it has not answered */
static uint64_t lock_apart_ns = FIRST_AGAIN_NS;
static bool lock_ended = true; /* Python may be gone */
static pthread_mutex_t lock_mutex = PTHREAD_MUTEX_INITIALIZER;

static int leave_lock(void *unused) {
    struct timespec left = {0, LEFT_NS};
    uint64_t began_ns;
    void *thread;
    (void)unused;
    lock_again_ns = 0;
    if (!lock_wanted || getpid() != process) return 0;
    began_ns = monotonic_ns();
    lock_given = 1;
    thread = python.save_thread();
    syscall(SYS_futex, &lock_wanted, FUTEX_WAIT_PRIVATE, 1, &left, NULL, 0);
    python.restore_thread(thread);
    lock_left_ns = (uint32_t)(monotonic_ns() - began_ns);
    return 0;
}

static const char *find(void *library, const Wanted *wanted, size_t count);

/* Find the interval in Python's memory, by two values that it gets and that nobody else sees, because Python's lock is
 * kept: the function that sets it needs that lock in Python 3.12. */
static void find_interval(void) {
    unsigned long (*get)(void) = (unsigned long (*)(void))dlsym(RTLD_DEFAULT, "_PyEval_GetSwitchInterval");
    void (*set)(unsigned long) = (void (*)(unsigned long))dlsym(RTLD_DEFAULT, "_PyEval_SetSwitchInterval");
    _Atomic unsigned long *word = dlsym(RTLD_DEFAULT, "_PyRuntime"), *found = NULL;
    unsigned long before, *end;
    const ElfW(Sym) *symbol = NULL;
    Dl_info about;
    if (!get || !set || !word || !dladdr1(word, &about, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return;
    end = (unsigned long *)word + symbol->st_size / sizeof(*end);
    before = get();
    for (; (unsigned long *)word < end && !found; word++) {
        set(before + 3);
        if (*word != before + 3) continue;
        set(before + 5);
        if (*word == before + 5) found = word;
    }
    set(before);
    interval_us = found;
}

/* What Python's interval was, if nobody has set it since. */
static void usual_interval(void) {
    unsigned long set_us = SHORT_US;
    if (interval_us && usual_us) atomic_compare_exchange_strong(interval_us, &set_us, usual_us);
}

/* Shorten Python's interval, if its main thread runs. */
static void shorten_interval(void) {
    char says[8] = "";
    unsigned long now_us;
    if (left_out && left_out--) return;
    if (!interval_us || pread(main_call, says, sizeof(says) - 1, 0) < 7 || strcmp(says, "running")) return;
    now_us = *interval_us;
    if (now_us <= SHORT_US) return;
    usual_us = now_us;
    shortened_ns = monotonic_ns();
    atomic_compare_exchange_strong(interval_us, &now_us, SHORT_US);
}

/* A call that waits in a subinterpreter is lost with it, so Python is asked again, less and less often. */
static void want_lock(void) {
    static bool found, absent;
    if (!found) absent = find(RTLD_DEFAULT, PYTHONS, COUNT(PYTHONS)) != NULL;
    found = true;
    if (absent) return;
    pthread_mutex_lock(&lock_mutex);
    if (!lock_ended && python.is_initialized()) {
        uint64_t now_ns = monotonic_ns(), again_ns = lock_again_ns;
        lock_wanted = 1;
        shorten_interval();
        if (now_ns >= again_ns) {
            lock_apart_ns = again_ns ? 2 * lock_apart_ns : FIRST_AGAIN_NS;
            lock_again_ns = now_ns + lock_apart_ns;
            if (python.add_pending_call(leave_lock, NULL)) lock_again_ns = 0;
        }
    }
    pthread_mutex_unlock(&lock_mutex);
}

/* The thread of samples begins, with Python's lock and an open file of the kernel's, or Python ends: then nothing is asked
 * of it any more. */
EXPORTED void microbench_samples(int begin, int call_file) {
    if (getpid() != process) return;
    pthread_mutex_lock(&lock_mutex);
    lock_ended = !begin;
    if (begin && !interval_us) find_interval();
    main_call = call_file;
    usual_interval();
    pthread_mutex_unlock(&lock_mutex);
    pthread_mutex_lock(&calling_mutex);
    watches_threads = begin;
    while (!begin && calling_count) forget_thread(calling_count - 1);
    pthread_mutex_unlock(&calling_mutex);
}

static int main_waits = -1; /* -1 where the kernel does not tell */

/* Whether the thread of which a file of the kernel's tells waits for Python's lock: for a word within Python's own memory.
 * -1 if that is not known. */
static int waits_for_lock(int call_file) {
    static uintptr_t from, until;
    static atomic_bool searched;
    const ElfW(Sym) *symbol = NULL;
    char says[64] = "", *end;
    Dl_info about;
    void *runtime = searched ? NULL : dlsym(RTLD_DEFAULT, "_PyRuntime");
    searched = true;
    if (runtime && dladdr1(runtime, &about, (void **)&symbol, RTLD_DL_SYMENT) && symbol)
        from = (uintptr_t)runtime, until = from + symbol->st_size;
    if (pread(call_file, says, sizeof says - 1, 0) <= 0) return -1;
    if (strtol(says, &end, 10) != SYS_futex) return 0;
    uintptr_t word = (uintptr_t)strtoull(end, NULL, 16);
    return until ? from <= word && word < until : -1;
}

/* Look whether the main thread and those that call CUDA wait for Python's lock. */
static void look_at_threads(void) {
    main_waits = waits_for_lock(main_call);
    pthread_mutex_lock(&calling_mutex);
    for (int place = 0; place < calling_count; place++) calling[place].waits = waits_for_lock(calling[place].file) > 0;
    pthread_mutex_unlock(&calling_mutex);
}

/* Whether a thread that calls CUDA, or the main one (0), waited for Python's lock when this sample was due; -1 if that is
 * not known. */
EXPORTED int microbench_waits_for_lock(uint32_t thread) {
    int waits = 0;
    pthread_mutex_lock(&calling_mutex);
    if (!thread) waits = main_waits;
    for (int place = 0; place < calling_count; place++)
        if (calling[place].thread == thread) waits = calling[place].waits;
    pthread_mutex_unlock(&calling_mutex);
    return waits;
}

/* Whether the main thread waits for Python's lock now, which this thread has. */
EXPORTED int microbench_main_waits(void) {
    return waits_for_lock(main_call) > 0;
}

/* The thread of samples has Python's lock. Returns for how long the main thread was without it for the last sample. */
EXPORTED uint32_t microbench_has_lock(void) {
    usual_interval(); /* before the main thread may want the lock again */
    if (shortened_ns) {
        bool was_long = monotonic_ns() - shortened_ns > LONG_NS;
        left_out = was_long ? more_left_out : 0;
        more_left_out = !was_long ? 1 : more_left_out < MOST_LEFT_OUT ? 2 * more_left_out + 1 : MOST_LEFT_OUT;
        shortened_ns = 0;
    }
    lock_wanted = 0;
    syscall(SYS_futex, &lock_wanted, FUTEX_WAKE_PRIVATE, 1, NULL);
    return atomic_exchange(&lock_left_ns, 0);
}

/* Whether the main thread has left the lock since this was last asked: it was computing in Python then. */
EXPORTED uint32_t microbench_lock_given(void) {
    return atomic_exchange(&lock_given, 0);
}

/* Wait until a call asks, at most for a time, and want Python's lock then. Returns whether one does. */
EXPORTED int microbench_asked(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    uint32_t state = READ(microbench_shared.asks);
    if (state != ASKS) syscall(SYS_futex, &microbench_shared.asks, FUTEX_WAIT_PRIVATE, state, &left, NULL, 0);
    if (READ(microbench_shared.asks) != ASKS) look_at_threads(); /* before this thread wants the lock, too */
    want_lock();
    return READ(microbench_shared.asks) == ASKS;
}

/* Python looks at the stack of the call that asks, or has done so. Returns whether the call has waited for it. */
EXPORTED int microbench_answer(int done) {
    uint32_t before = done ? LOOKED_AT : ASKS;
    return atomic_compare_exchange_strong(&microbench_shared.asks, &before, before + 1);
}

static void doze(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

/* CUPTI's records of kernels begin and end while no thread is within a call that submits. Where one was, CUPTI ended the
 * program, or lost its kernels for good: 8 of 13 programs in 39 000 windows of 2 ms, and none of 13 in 47 000 like this
 * (H200, CUPTI 13.0.85). A thread that enters a call meanwhile waits: for STILL_NS at most while others leave theirs, and
 * for ACTS_NS at most while CUPTI acts. A call of the runtime makes one of the driver. */
enum { STILL_NS = 5000000, ACTS_NS = 100000000, STILL_TRIES = 20, LAST_TRIES = 3 };
static _Atomic int within; /* how many threads are */
static _Atomic enum { FREE, HELD, ACTING } held;
static __thread unsigned depth, depth_in; /* of this thread's calls, in that recording */

static void enter(void) {
    uint64_t from_ns = 0;
    if (depth_in != generation) depth = 0, depth_in = generation;
    if (depth++) return;
    within++;
    for (int state; (state = held) != FREE;) {
        if (!from_ns) from_ns = monotonic_ns();
        if (monotonic_ns() - from_ns > (state == ACTING ? ACTS_NS : STILL_NS)) return; /* CUPTI may wait for this thread */
        within--;
        sched_yield();
        within++;
    }
}

static void leave(void) {
    if (depth_in == generation && depth && !--depth) within--;
}

/* Do something with CUPTI's records while no thread submits. If a thread does not leave its call, it is done anyway. */
static bool still(bool (*act)(void), int tries) {
    for (;;) {
        uint64_t from_ns = monotonic_ns();
        held = HELD;
        while (within && monotonic_ns() - from_ns < STILL_NS) sched_yield();
        bool acts = !within || !--tries, well = false;
        if (acts) {
            held = ACTING;
            well = act();
        }
        held = FREE;
        if (acts) return well;
        doze(LOOK_S);
    }
}

/* The program enters a call that is recorded, or leaves it. Within a call of the runtime, one of the driver with the
 * same correlation is no call of the program. */
static void called(void *unused, uint32_t domain, uint32_t number, const void *about) {
    const Called *data = about;
    _Atomic uint64_t *own = &begun[data->correlation % BEGUN_SLOTS];
    uint8_t action = number < MOST_CALLS ? actions[domain - 1][number] : 0, type = action & 15;
    bool runtime = domain == 2, paused = READ(last_counted) != 0;
    (void)unused;
    if (READ(forked)) return tell_of_fork();
    if (action && !waits(action)) data->leaves ? leave() : enter();
    if (!data->leaves) {
        *data->kept = 0;
        if (READ(stopped) || READ(closing)) return;
        if (runtime) SET(*own, data->correlation);
        if (paused && !waits(action)) return;
        if (runtime || READ(*own) != data->correlation) cupti.get_timestamp(data->kept);
        if (*data->kept && action && !paused) ask(domain - 1, number, *data->kept);
        return;
    }
    uint64_t begin_ns = *data->kept, end_ns, event;
    uint32_t stream, thread = (uint32_t)pthread_self();
    if (runtime) SET(*own, 0);
    if (!begin_ns || !action || READ(stopped) || READ(closing)) return;
    cupti.get_timestamp(&end_ns);
    paused = READ(last_counted) != 0;
    if (paused && !waits(action)) return;
    find_stream_and_event(action, data, &stream, &event);
    name_thread(thread);
    watch_thread(thread);
    if (!lock_calls()) {
        dropped_calls++;
        return;
    }
    if (!READ(first_call)) SET(first_call, data->correlation);
    if (!paused && !waits(action) && (!READ(behind_pause) || data->correlation < READ(behind_pause)))
        SET(behind_pause, data->correlation);
    if (!paused && data->correlation > READ(last_call)) SET(last_call, data->correlation);
    calls[waiting_calls++] = (Row){
        .kind = runtime ? RUNTIME : DRIVER, .detail = number, .begin_ns = begin_ns, .end_ns = end_ns,
        .correlation = data->correlation, .place = thread};
    if (type == RECORDS_EVENT)
        calls[waiting_calls++] = (Row){
            .kind = CUDA_EVENT, .end_ns = 1, .correlation = data->correlation, .stream = stream, .size = event};
    else if (action & (LAUNCHES | REPLAYS)) {
        if (!READ(first_launch)) SET(first_launch, data->correlation);
        SET(microbench_shared.has_launched, true);
        if (action & REPLAYS) SET(replayed, data->correlation);
        else SET(launched, READ(launched) + 1);
    } else if (type)
        calls[waiting_calls++] = (Row){
            .kind = SYNC, .detail = type, .begin_ns = begin_ns, .end_ns = end_ns, .correlation = data->correlation,
            .stream = stream, .size = event};
    if (waiting_calls > CALL_ROWS - 2) write_calls();
    unlock_calls();
}

/* CUPTI gives the memory back, with records in it. A forked child, which shares the file, writes nothing. */
static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_bytes) {
    (void)context, (void)stream;
    handed_out_bytes -= size;
    if (buffer && valid_bytes && getpid() == process) {
        pthread_mutex_lock(&mutex);
        if (!stopped) keep_records(buffer, valid_bytes, u64(buffer + size) != generation);
        pthread_mutex_unlock(&mutex);
        write_waiting();
    }
    free(buffer);
}

/* Windows. */

static uint64_t now_ns(void) {
    uint64_t ns = 0;
    cupti.get_timestamp(&ns);
    return ns;
}

/* Samples say for programs with Python what their main thread had of the processors. For others: how long the windows
 * took, and for how long the main thread ran in them; then both when this window began. */
static struct { uint64_t seen_ns, ran_ns, began_ns, had_ns; } processor;

/* A window begins or ends; ``turns`` is held. */
static void account(bool begins) {
    static bool asked, absent;
    struct timespec ran;
    if (!asked) absent = dlsym(RTLD_DEFAULT, PYTHONS[0].name) == NULL;
    asked = true;
    /* The number is that of the clock of the main thread. */
    if (!absent || clock_gettime((clockid_t)(~(unsigned)process << 3 | 6), &ran)) return;
    uint64_t now = now_ns(), had_ns = ran.tv_sec * 1000000000ull + ran.tv_nsec;
    if (!begins && processor.began_ns) {
        processor.seen_ns += now - processor.began_ns;
        processor.ran_ns += had_ns - processor.had_ns;
        give_fact("processor=%llu %llu 0", (unsigned long long)processor.seen_ns, (unsigned long long)processor.ran_ns);
    }
    processor.began_ns = now;
    processor.had_ns = had_ns;
}

/* Whether the recording of this number has ended. */
static bool over(unsigned number) {
    return stopped || number != generation;
}

/* Whether work of this window still runs, as far as CUPTI has told. */
static bool runs(void) {
    return finished < launched || ran < replayed;
}

/* Wait for the first launch of a window. Returns false if the recording has ended. */
static bool begins(unsigned number) {
    while (!first_launch && !over(number)) doze(LOOK_S);
    return !over(number);
}

static bool succeeded(int status, const char *call) {
    const char *words = "an unknown error";
    if (!status) return true;
    if (status == TAKEN)
        return refuse("run the program without the other profiler (nsys, ncu, torch.profiler, microbench)",
                      "%s is attached to the process already, and CUPTI serves one profiler at a time",
                      getenv("NSYS_PROFILING_SESSION_ID") ? "Nsight Systems" : "another profiler");
    cupti.get_result_string(status, &words);
    return refuse("check that nvidia-smi works on this machine", "CUPTI refuses %s: %s (%d)", call, words, status);
}

/* End records of kernels. CUPTI goes on to record copies and memsets, and to tell of calls until it is given back. Where
 * it was to end more, calls of a thread could get wrong numbers for good, so that its kernels were lost (H200, CUPTI
 * 13.0.85, five threads: 9 of 20 runs, before still() held them). Copies and memsets have one
 * flag there, too: where only one of them had ended, the other one freed memory that it never had (4 of 49 runs). To end
 * more gains nothing: once CUPTI has recorded, a launch takes 0.7 us more until the process ends, and 2 us if CUPTI has
 * recorded calls itself. */
static bool disable(void) {
    for (size_t place = 0; place < COUNT(ENDING_KINDS); place++)
        if (enabled[ENDING_KINDS[place]]) cupti.disable(ENDING_KINDS[place]);
    return true;
}

/* Begin to record everything; only kernels must be possible. */
static bool enable(void) {
    if (!succeeded(cupti.enable(KERNEL), "cuptiActivityEnable")) return false;
    enabled[KERNEL] = true;
    for (size_t place = 1; place < COUNT(KINDS); place++) enabled[KINDS[place]] = !cupti.enable(KINDS[place]);
    return true;
}

/* Begin the next window. Returns false if there is none. The later of two facts with one name counts. */
static bool begin_window(unsigned number) {
    pthread_mutex_lock(&turns);
    bool goes_on = !over(number) && !last_window && still(enable, STILL_TRIES);
    if (goes_on) {
        before_pause = READ(last_counted);
        launched = finished = nodes = replayed = ran = first_launch = behind_pause = held_ns = 0;
        last_counted = 0; /* at last, because from now on rows are kept */
        window++;
        window_begin_ns = now_ns();
        microbench_shared.window_open = 1;
        give_fact("window.%u=%llu-", window, (unsigned long long)window_begin_ns);
        account(true);
    }
    pthread_mutex_unlock(&turns);
    return goes_on;
}

/* Record only waits from now on, and return as soon as the kernels that were launched by now have ended. Returns false
 * if the recording has ended. CUPTI goes on meanwhile, and the callbacks note waits. It is not told to flush records: that
 * made XLA's kernels fail while they ran (H100, CUPTI 13.0). */
static bool end_window(unsigned number) {
    pthread_mutex_lock(&turns);
    uint64_t end_ns = now_ns(), before = UINT64_MAX;
    if (!over(number) && microbench_shared.window_open) {
        microbench_shared.window_open = 0;
        account(false);
        last_counted = UINT32_MAX;
        doze(WITHIN_S);
        last_counted = last_call ? last_call : 1;
        give_fact("window.%u=%llu-%llu", window, (unsigned long long)window_begin_ns, (unsigned long long)end_ns);
    }
    pthread_mutex_unlock(&turns);
    for (int looks = 0, idle = 0; looks < DRAIN_LOOKS && !over(number); looks++) {
        idle = finished + nodes == before ? idle + 1 : 0;
        before = finished + nodes;
        if (idle > STALLED_LOOKS || (!runs() && (!replayed || idle > WHOLE_LOOKS))) break;
        doze(LOOK_S);
    }
    return !over(number);
}

/* End CUPTI's records of kernels until the next window. Returns false if the recording has ended. */
static bool end_records(unsigned number) {
    pthread_mutex_lock(&turns);
    bool goes_on = !over(number);
    if (goes_on) {
        still(disable, STILL_TRIES);
        give_fact("quiet.%u=%llu", window, (unsigned long long)now_ns());
    }
    pthread_mutex_unlock(&turns);
    return goes_on;
}

/* Begin and end one window after the other. The first one has begun with the recording. The time of a window counts from
 * its first launch, so that a program that is idle meanwhile is not missed. */
static void *take_turns(void *about) {
    unsigned number = (uintptr_t)about;
    bool grow = window_s <= 0;
    double records_s = grow ? FIRST_WINDOW_S : window_s, pauses_s = grow ? FIRST_PAUSE_S : every_s - window_s;
    while (begins(number)) {
        doze(records_s);
        if (!end_window(number) || !end_records(number) || orders) break;
        doze(pauses_s);
        if (!begin_window(number)) break;
        if (grow) {
            records_s = 2 * records_s < LONGEST_WINDOW_S ? 2 * records_s : LONGEST_WINDOW_S;
            pauses_s = 2 * pauses_s < LONGEST_PAUSE_S ? 2 * pauses_s : LONGEST_PAUSE_S;
        }
    }
    return NULL;
}

/* Start a thread. It takes no signal, because signals belong to the program's threads. */
static void start_thread(void *(*function)(void *), void *about) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, function, about)) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The begin. Each step returns false, and has said why, if the process cannot be recorded. */

/* Find the libcupti that the program has loaded already. */
static int is_loaded(struct dl_phdr_info *library, size_t size, void *found) {
    (void)size;
    const char *name = library->dlpi_name ? strrchr(library->dlpi_name, '/') : NULL;
    if (!name || strncmp(name, "/libcupti.so", strlen("/libcupti.so"))) return 0;
    keep(found, library->dlpi_name);
    return 1;
}

/* Load libcupti.so.MAJOR from a folder, or where the system looks for libraries, LD_LIBRARY_PATH first. The major
 * version is the beginning of a list such as "13,12". */
static void *load_from(const char *folder, const char *major) {
    char name[2 * MOST_PATH];
    snprintf(name, sizeof name, "%s%slibcupti.so.%.2s", folder ? folder : "", folder ? "/" : "", major);
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static const char *next_major(const char *major) {
    major = strchr(major, ',');
    return major ? major + 1 : NULL;
}

/* Load the libcupti that the program would load, else that of a toolkit, else the one that microbench has found. */
static void *load_cupti(void) {
    static char folder[MOST_PATH], loaded[MOST_PATH];
    const char *majors = getenv("MICROBENCH_WATCH_CUDA"), *home = getenv("CUDA_HOME"), *major;
    const char *homes[] = {home && *home ? home : "/usr/local/cuda", "/usr/local/cuda"};
    const char *found = getenv("MICROBENCH_WATCH_CUPTI");
    void *library = NULL;
    if (dl_iterate_phdr(is_loaded, loaded)) return dlopen(loaded, RTLD_NOW | RTLD_LOCAL);
    for (major = majors; major && !library; major = next_major(major)) library = load_from(NULL, major);
    for (major = majors; major; major = next_major(major))
        for (size_t place = 0; place < COUNT(homes) * COUNT(TOOLKIT_FOLDERS) && !library; place++) {
            const char *below = TOOLKIT_FOLDERS[place % COUNT(TOOLKIT_FOLDERS)];
            snprintf(folder, sizeof folder, "%s/%s", homes[place / COUNT(TOOLKIT_FOLDERS)], below);
            library = load_from(folder, major);
        }
    return library || !found || !*found ? library : dlopen(found, RTLD_NOW | RTLD_LOCAL);
}

/* Find functions of a library. Returns the name of one that it lacks, or NULL. */
static const char *find(void *library, const Wanted *wanted, size_t count) {
    for (const Wanted *one = wanted; one < wanted + count; one++) {
        void *function = dlsym(library, one->name);
        if (!function) return one->name;
        memcpy(one->place, &function, sizeof function);
    }
    return NULL;
}

static bool load_functions(const char *given) {
    void *library = given ? dlopen(given, RTLD_NOW | RTLD_LOCAL) : load_cupti();
    if (!library && given) return refuse("install CUPTI of CUDA 12 or 13", "CUPTI cannot be loaded: %s", dlerror());
    if (!library)
        return refuse("install the CUDA toolkit, or name its folder by CUDA_HOME",
                      "no libcupti.so.12 or .13 is found for %s", program_invocation_short_name);
    const char *lacked = find(library, FUNCTIONS, COUNT(FUNCTIONS));
    return !lacked || refuse("install CUPTI of CUDA 12 or 13", "CUPTI has no %s", lacked);
}

static bool unwritable(int error) {
    return refuse(ELSEWHERE, "%s cannot be written: %s", path, strerror(error));
}

/* Make the given file, or one in a folder, with a number that the program does not expect to be taken. */
static bool open_file(const char *folder, const char *given, const char *program) {
    char name[81], more[8] = "";
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
    size_t shown = strnlen(program, sizeof name - 1);
    while (shown && (program[shown] & 0xC0) == 0x80) shown--; /* not in the middle of a letter */
    snprintf(name, shown + 1, "%s", program);
    for (char *letter = name; *letter; letter++)
        if (!(*letter & 0x80) && !strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-", *letter))
            *letter = '_';
    const char *begin = name + strspn(name, "-.");
    if (kept_file >= 0) {
        struct stat found;
        file = kept_file;
        if (fstat(file, &found) || found.st_dev != identity.st_dev || found.st_ino != identity.st_ino) return unwritable(EBADF);
        return (!ftruncate(file, 0) && !lseek(file, 0, SEEK_SET)) || unwritable(errno);
    }
    keep(path, given);
    if (given) file = open(path, flags, 0644);
    for (int number = 2; !given && number < 1000; number++) { /* a process that execs itself keeps its number */
        int length = snprintf(
            path, sizeof path, "%s/%s-%d%s.rows", folder, *begin ? begin : "program", (int)process, more);
        if (length >= (int)sizeof path) return unwritable(ENAMETOOLONG);
        file = open(path, flags, 0644);
        if (file >= 0 || errno != EEXIST) break;
        snprintf(more, sizeof more, "-%d", number);
    }
    if (file < 0) return errno == EEXIST ? refuse("give the name of a new file", "%s exists", path) : unwritable(errno);
    int far = fcntl(file, F_DUPFD_CLOEXEC, far_number());
    if (far >= 0) {
        close(file);
        file = far;
    }
    struct statvfs disk;
    least_free_bytes = fstatvfs(file, &disk) ? 0 : disk.f_blocks * disk.f_frsize / 20;
    if (least_free_bytes > MOST_RESERVE_BYTES) least_free_bytes = MOST_RESERVE_BYTES;
    fstat(file, &identity);
    return true;
}

/* What is done about a call of this name; 0 if it is not recorded. */
static uint8_t action_of(const char *call) {
    const char *ending = strlen(call) > 5 ? call + strlen(call) - 5 : "";
    for (size_t place = 0; place < COUNT(PARTS_OF_CALLS); place++) {
        if (!strstr(call, PARTS_OF_CALLS[place])) continue;
        uint8_t action = RECORDED | (strcmp(ending, "_ptsz") && strcmp(ending, "_ptds") ? 0 : PER_THREAD);
        for (size_t one = 0; one < COUNT(ACTIONS); one++)
            if (strstr(call, ACTIONS[one].part)) return action | ACTIONS[one].more;
        return action;
    }
    return 0;
}

/* Write the header, facts of the process, the two clocks, and the names of calls by their number, and choose those that
 * are recorded. */
static bool write_first_cells(uint32_t version, const char *program) {
    struct timespec now;
    cpu_set_t allowed;
    const char *name, *rank = NULL;
    pthread_mutex_lock(&mutex);
    Header *header = &next_cell()->header;
    memcpy(header->magic, "microbench cells", sizeof header->magic);
    header->version = VERSION;
    header->cell_bytes = CELL_BYTES;
    window_begin_ns = now_ns();
    clock_gettime(CLOCK_REALTIME, &now);
    put_fact("pid=%d", (int)process);
    put_fact("program=%s", program);
    if (!sched_getaffinity(0, sizeof allowed, &allowed)) put_fact("cores=%d %d", CPU_COUNT(&allowed), CPU_COUNT(&allowed));
    prctl(PR_GET_NAME, name_of_main);
    put_fact("cupti=%u", version);
    put_fact("cupti_ns=%llu", (unsigned long long)window_begin_ns);
    put_fact("unix_ns=%llu", now.tv_sec * 1000000000ull + now.tv_nsec);
    for (size_t place = 0; place < COUNT(RANKS) && !rank; place++) {
        rank = getenv(RANKS[place]);
        if (rank && (!*rank || rank[strspn(rank, "0123456789")])) rank = NULL;
    }
    if (rank) put_fact("rank=%s", rank);
    for (size_t api = 0; api < COUNT(APIS); api++)
        for (uint32_t cbid = 1; cbid < MOST_CALLS; cbid++)
            if (!cupti.get_callback_name(APIS[api].domain, cbid, &name) && name && *name) {
                put_fact("%s.%u=%s", APIS[api].name, cbid, name);
                actions[APIS[api].domain - 1][cbid] = action_of(name);
            }
    write_cells();
    int error = failure;
    stopped = error != 0;
    pthread_mutex_unlock(&mutex);
    return !error || unwritable(error);
}

/* Forget the recording before this one. */
static void clear(void) {
    if (process != getpid()) { /* the parent's threads may have held them */
        pthread_mutex_init(&mutex, NULL);
        pthread_mutex_init(&lock_mutex, NULL);
        pthread_mutex_init(&turns, NULL);
        pthread_mutex_init(&calling_mutex, NULL);
        watches_threads = false;
        while (calling_count) forget_thread(calling_count - 1);
        unlock_calls();
    }
    process = getpid();
    subscriber = NULL;
    memset(enabled, 0, sizeof enabled);
    memset(actions, 0, sizeof actions);
    memset(begun, 0, sizeof begun);
    if (generation) memset(seen_names, 0, sizeof seen_names);
    file = -1;
    written_bytes = failure = waiting = waiting_calls = window = 0;
    within = 0;
    launched = finished = nodes = replayed = ran = first_call = first_launch = last_call = last_counted = 0;
    behind_pause = dropped_calls = 0;
    memset(&processor, 0, sizeof processor);
    before_pause = 1; /* what came before the recording counts as a pause */
    ending = closing = locked_out = last_window = false;
    microbench_shared.has_launched = 0;
    microbench_shared.answers = microbench_shared.asks = held_ns = 0;
    microbench_shared.window_open = 1;
    generation++;
    forked = told_of_fork = false; /* still stopped: CUPTI may hand copies over before there is a file */
}

static void mark_fork(void) {
    forked = true;
    usual_interval();
}

/* What is done once. */
static void prepare(void) {
    static atomic_bool done;
    if (atomic_exchange(&done, true)) return;
    pthread_atfork(NULL, NULL, mark_fork);
    dlopen("libgcc_s.so.1", RTLD_NOW); /* Python ends threads by it, which abort if it cannot be opened then */
}

static bool begin(const char *given_cupti, const char *folder, const char *given_file, const char *program) {
    uint32_t version = 0;
    if (!load_functions(given_cupti) || !succeeded(cupti.get_version(&version), "cuptiGetVersion")) return false;
    if (version < FIRST_VERSION || version >= FIRST_UNKNOWN_VERSION)
        return refuse("install CUPTI of CUDA 12 or 13, or a newer microbench",
                      "CUPTI's version %u is unknown to this microbench", version);
    /* CUPTI serves one subscriber, so another profiler is refused and does not replace the callbacks. */
    if (!succeeded(cupti.subscribe(&subscriber, called, NULL), "cuptiSubscribe")
        || !open_file(folder, given_file, program) || !write_first_cells(version, program)
        || !succeeded(cupti.register_callbacks(requested, completed), "cuptiActivityRegisterCallbacks"))
        return false;
    last_counted = UINT32_MAX; /* the program may submit already */
    for (size_t api = 0; api < COUNT(APIS); api++)
        for (uint32_t cbid = 1; cbid < MOST_CALLS; cbid++)
            if (actions[APIS[api].domain - 1][cbid]) cupti.enable_callback(true, subscriber, APIS[api].domain, cbid);
    doze(WITHIN_S);
    if (!still(enable, STILL_TRIES)) return false;
    last_counted = 0;
    return true;
}

/* The names and PCI addresses of the GPUs in CUDA's order. */
static void put_gpus(void) {
    int (*count_of)(int *) = NULL, (*device_of)(int *, int) = NULL, (*name_of)(char *, int, int) = NULL, count, device;
    int (*bus_of)(char *, int, int) = NULL;
    char name[128], bus[32];
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!cuda) return;
    *(void **)&count_of = dlsym(cuda, "cuDeviceGetCount");
    *(void **)&device_of = dlsym(cuda, "cuDeviceGet");
    *(void **)&name_of = dlsym(cuda, "cuDeviceGetName");
    *(void **)&bus_of = dlsym(cuda, "cuDeviceGetPCIBusId");
    if (!count_of || !device_of || !name_of || count_of(&count)) return;
    for (int number = 0; number < count && number < MOST_GPUS; number++) {
        if (device_of(&device, number) || name_of(name, sizeof name, device)) return;
        put_fact("gpu.%d=%.127s", number, name);
        if (!bus_of || bus_of(bus, sizeof bus, device)) bus[0] = 0;
        put_fact("bus.%d=%.31s", number, bus);
    }
}

/* Write what is known only now, and close the file, unless the program has closed it; after a failure remove it. */
static void close_file(bool failed) {
    struct stat found;
    size_t dropped = 0;
    if (!failed) cupti.dropped_records(NULL, 0, &dropped);
    if (!failed && microbench_shared.window_open) account(false);
    write_waiting();
    pthread_mutex_lock(&mutex); /* a callback may still write */
    bool ours = !fstat(file, &found) && found.st_dev == identity.st_dev && found.st_ino == identity.st_ino;
    if (ours && failed && file != kept_file) unlink(path);
    else if (ours && !failure) {
        put_fact("dropped=%zu", dropped + (size_t)dropped_calls);
        put_gpus();
        put_fact("ended=1");
        write_cells();
    }
    stopped = true;
    if (ours && file != kept_file) close(file);
    file = -1;
    pthread_mutex_unlock(&mutex);
}

/* What Python calls; InitializeInjection calls the same. */

/* End the recording, and give CUPTI back but at the exit of the process. At the end of a block the work of the current
 * device is waited for. Records are not flushed while the program runs on, and after a failure the file is removed.
 * Returns why the recording has ended early, or NULL. */
EXPORTED const char *microbench_end(int why) {
    int (*synchronize)(void) = NULL;
    const char *said = NULL;
    void *cuda = why == AFTER_A_BLOCK ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (getpid() != process) return NULL;
    if (why == AFTER_A_BLOCK) closing = true; /* the wait is not the program's own */
    if (cuda) *(void **)&synchronize = dlsym(cuda, "cuCtxSynchronize");
    if (synchronize) synchronize();
    pthread_mutex_lock(&turns);
    if (active && (file >= 0 || why == AFTER_A_FAILURE)) {
        ending = closing = true;
        if (!last_counted) last_counted = last_call ? last_call : 1; /* nobody notes the calls of what comes later */
        if (subscriber) still(disable, LAST_TRIES);
        if (why == AT_EXIT || why == AFTER_A_BLOCK) cupti.flush_all(FORCED);
        close_file(why == AFTER_A_FAILURE);
        if (failure && why != AFTER_A_FAILURE) {
            refuse(ELSEWHERE, "the rest, because %s cannot be written any more: %s", path,
                   failure == EBADF ? "the program closed its file" : strerror(failure));
            said = reason;
        }
        if (why != AT_EXIT && subscriber) {
            cupti.flush_period(0);
            cupti.unsubscribe(subscriber);
        }
        active = why == AT_EXIT;
    }
    pthread_mutex_unlock(&turns);
    return said;
}

/* Record this process from now on, into the given file or one in a folder. Everything is recorded in the first
 * ``window`` seconds of each ``every``, and only waits in the rest; with 0 windows and pauses grow; ``whole`` has no
 * pauses. Without a libcupti the one is found that the program would load. The folder of reasons is that of `microbench
 * watch`, or NULL. Returns why the recording is impossible, or NULL. */
EXPORTED const char *microbench_begin(
    const char *given_cupti, const char *folder, const char *given_file, const char *program, double window,
    double every, int whole, const char *folder_of_reasons) {
    if (atomic_exchange(&active, true)) {
        refuse("let it end before another one begins", "microbench records this process already");
        return reason;
    }
    prepare();
    clear();
    keep(reasons, folder_of_reasons);
    window_s = window, every_s = every;
    if (orders) window_s = orders->window_ms / 1e3, every_s = 0, whole = false; /* the pause ends by order */
    if (!begin(given_cupti, folder, given_file, program)) {
        microbench_end(AFTER_A_FAILURE);
        return reason;
    }
    cupti.flush_period(FLUSH_MS);
    pthread_mutex_lock(&turns);
    account(true);
    pthread_mutex_unlock(&turns);
    if (!whole) start_thread(take_turns, (void *)(uintptr_t)generation);
    return NULL;
}

EXPORTED const char *microbench_path(void) {
    return path;
}

/* The time on CUPTI's clock. */
EXPORTED uint64_t microbench_now_ns(void) {
    return now_ns();
}

/* Write cells that Python has made; it calls this without its lock, because a thread that has Python's lock may wait for
 * CUPTI, which waits for the mutex. Returns whether the recording goes on. */
EXPORTED int microbench_give(const char *made, size_t bytes) {
    if (getpid() != process) return false;
    write_waiting();
    pthread_mutex_lock(&mutex);
    for (size_t part; bytes && !stopped; made += part, bytes -= part) {
        part = bytes < sizeof cells ? bytes : sizeof cells;
        memcpy(cells, made, part);
        waiting = part / CELL_BYTES;
        write_cells();
    }
    pthread_mutex_unlock(&mutex);
    return !stopped;
}

/* The same for the thread of samples, which wants Python's lock afterwards. */
EXPORTED int microbench_give_samples(const char *made, size_t bytes) {
    int goes_on = microbench_give(made, bytes);
    want_lock();
    return goes_on;
}

/* Whether `microbench watch` has removed the folder of reasons, or was killed. */
static bool watch_has_ended(void) {
    struct stat own;
    if (*reasons && access(reasons, F_OK) && errno == ENOENT) return true;
    return orders && !stat("/proc/self/ns/pid", &own) && own.st_ino == orders->namespace && kill(orders->watch, 0)
        && errno == ESRCH;
}

/* Return when `microbench watch` has ended; or, when what was submitted until then is recorded, after it has ordered the
 * end, or, unless it is 0, so many seconds after the first launch. */
EXPORTED void microbench_wait(double seconds) {
    unsigned number = generation;
    struct timespec began = {0}, now;
    uint64_t begun_ns = monotonic_ns();
    while (!over(number) && (!orders || orders->order == obeyed)) {
        if (watch_has_ended()) return;
        if (orders && monotonic_ns() - begun_ns > (2 * window_s + FORGOTTEN_S) * 1e9) break;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (seconds > 0 && first_launch && !began.tv_sec) began = now;
        if (began.tv_sec && (now.tv_sec - began.tv_sec) + (now.tv_nsec - began.tv_nsec) / 1e9 >= seconds) break;
        doze(LOOK_S);
    }
    pthread_mutex_lock(&turns);
    if (number == generation) last_window = true;
    bool in_a_window = microbench_shared.window_open;
    pthread_mutex_unlock(&turns);
    if (!end_window(number)) return;
    if (in_a_window) doze(BEHIND_S);
    /* CUPTI keeps records back while others in their buffer are not complete, as those of XLA's graphs are until the
     * exit of the process (H200, CUPTI 13.0). */
    for (int looks = 0; looks < (finished < launched ? LATE_LOOKS : runs() ? STALLED_LOOKS : 0) && !over(number); looks++) {
        if (watch_has_ended()) return;
        doze(LOOK_S);
    }
}

/* Obey the orders in a file from now on: nothing is recorded before one comes. Returns why that is impossible, or NULL. */
EXPORTED const char *microbench_obey(
    const char *file_of_orders, const char *folder, const char *program, const char *folder_of_reasons) {
    int opened = open(file_of_orders, O_RDONLY | O_CLOEXEC);
    void *shared = opened < 0 ? MAP_FAILED : mmap(NULL, sizeof *orders, PROT_READ, MAP_SHARED, opened, 0);
    if (opened >= 0) close(opened);
    keep(reasons, folder_of_reasons);
    process = getpid();
    prepare();
    if (shared == MAP_FAILED) refuse("let the command keep the temporary folder", "the orders of microbench watch cannot be read");
    else if (open_file(folder, NULL, program)) {
        kept_file = file;
        orders = shared;
        return NULL;
    }
    return reason;
}

/* Sleep until another recording is ordered. Returns false when `microbench watch` has ended, or Python obeys instead. */
EXPORTED int microbench_ordered(int by_python) {
    while (!watch_has_ended() && (by_python || !microbench_shared.ends_it)) {
        uint32_t order = orders->order;
        if (order % 2 && order != obeyed && !active) return (obeyed = order) != 0;
        doze(LOOK_S);
    }
    return false;
}

/* 1 for the first that asks to record this process, 0 for everybody after. A forked child is its parent's: what CUPTI
 * knows of the parent is in it too. */
EXPORTED int microbench_take_process(void) {
    return !atomic_exchange(&taken, 1);
}

/* Programs that CUDA's driver loads this into. */

static double ends_after_s; /* the first launch */

/* The milliseconds of a variable of the environment in seconds; 0 without it. */
static double seconds_of(const char *name) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) / 1e3 : 0;
}

/* End the recording and leave the reason, before another thread that does so may end the process. */
static void stop(int why) {
    static pthread_mutex_t one_after_the_other = PTHREAD_MUTEX_INITIALIZER;
    if (getpid() != process) return; /* a fork may have the mutex locked for good */
    pthread_mutex_lock(&one_after_the_other);
    if (microbench_end(why)) leave_reason();
    pthread_mutex_unlock(&one_after_the_other);
}

static void stop_at_exit(void) {
    stop(AT_EXIT);
}

/* End the recording while the program runs on, which may outlive `microbench watch`. Its own profiler may then have CUPTI. */
static void *stop_after(void *unused) {
    microbench_wait(ends_after_s);
    if (orders || !microbench_shared.ends_it) stop(AFTER_A_TIME);
    return unused;
}

/* Record as often as `microbench watch` orders it. */
static void *stop_when_ordered(void *unused) {
    while (microbench_ordered(false)) {
        if (microbench_begin(NULL, NULL, NULL, program_invocation_short_name, 0, 0, false, reasons))
            leave_reason();
        else stop_after(NULL);
    }
    return unused;
}

/* Python, where it did not load this itself: its variables or options have hidden the sitecustomize.py that does so. */

/* Runs sitecustomize.py. What gets out of it is a Ctrl-C of the program. */
static const char JOIN[] =
    "try:\n"
    "    with open(__file__, 'rb') as file:\n"
    "        code = compile(file.read(), '<microbench>/sitecustomize.py', 'exec')\n"
    "    exec(code)\n"
    "except Exception:\n"
    "    pass\n";
enum { FIRST_MINOR = 9, FILE_INPUT = 257 };
static char python_half[MOST_PATH]; /* the path of sitecustomize.py */

/* Python calls this in its main thread, between two of its instructions. Its exception becomes one of the program. */
static int join(void *number) {
    if (getpid() != process || (!orders && over((unsigned)(uintptr_t)number))) return 0;
    void *builtins = python.add_module("builtins"), *code = python.compile(JOIN, "<microbench>/recorder.c", FILE_INPUT);
    void *names = !builtins || !code ? NULL : python.build_value(
        "{sOssss}", "__builtins__", builtins, "__name__", "microbench", "__file__", python_half);
    void *result = names ? python.evaluate(code, names, names) : NULL;
    bool raised = names && !result;
    if (!names) python.clear_error();
    python.let_go(result), python.let_go(names), python.let_go(code);
    return raised ? -1 : 0;
}

/* Whether this process is a Python that can join. */
static bool is_python(void) {
    keep(python_half, getenv("MICROBENCH_WATCH_PYTHON"));
    if (!*python_half || find(RTLD_DEFAULT, PYTHONS, COUNT(PYTHONS)) || !python.is_initialized()) return false;
    return !strncmp(python.version(), "3.", 2) && atoi(python.version() + 2) >= FIRST_MINOR;
}

/* CUDA's driver calls this within cuInit. */
EXPORTED int InitializeInjection(void) {
    const char *folder = getenv("MICROBENCH_WATCH_FOLDER"), *whole = getenv("MICROBENCH_WATCH_WHOLE");
    const char *file_of_orders = getenv("MICROBENCH_WATCH_ORDERS");
    if (forked) tell_of_fork(); /* it starts CUDA itself */
    if (!folder || !microbench_take_process()) return 1;
    ends_after_s = seconds_of("MICROBENCH_WATCH_FOR_MS");
    bool obeys = file_of_orders && *file_of_orders;
    if (obeys ? microbench_obey(file_of_orders, folder, program_invocation_short_name, getenv("MICROBENCH_WATCH_REASONS"))
              : microbench_begin(
                    NULL, folder, NULL, program_invocation_short_name, seconds_of("MICROBENCH_WATCH_WINDOW_MS"),
                    seconds_of("MICROBENCH_WATCH_EVERY_MS"), whole && *whole, getenv("MICROBENCH_WATCH_REASONS")))
        leave_reason();
    else if (atexit(stop_at_exit)) microbench_end(AFTER_A_FAILURE);
    else {
        start_thread(obeys ? stop_when_ordered : stop_after, NULL);
        /* By this thread, because one that is no thread of Python might do so while Python ends. */
        if (is_python()) python.add_pending_call(join, (void *)(uintptr_t)generation);
    }
    return 1;
}

/* Records what a process submits to the GPU where no recorder of Python does: in programs of other languages, and in
 * Python with -I or -S.
 *
 * CUDA's driver loads this library within cuInit, because CUDA_INJECTION64_PATH names it, and calls
 * InitializeInjection. The library does in C what recorder.py, cupti.py and callbacks.py do in Python, within the same
 * bounds, and writes the cells of cells.py into a file of the same kind. Tests compare the two: change both together.
 *
 * It needs no header of CUDA. Whatever fails, the program runs on, and the reason is left for the end of microbench.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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
static const int KINDS[] = {KERNEL, MEMCPY, MEMSET, PEER_MEMCPY, OVERHEAD};
/* What is done about a call. */
enum {
    WAITS_FOR_EVENT = 1, STREAM_WAITS, WAITS_FOR_STREAM, WAITS_FOR_ALL, RECORDS_EVENT = 8, PER_THREAD = 16, RECORDED = 32,
    LAUNCHES = 64
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

/* The bounds (callbacks.py and recorder.py say why). */

#define BUFFER_BYTES (1ull << 18)
#define SMALL_BUFFER_BYTES (1ull << 15)
#define MANY_BYTES (256ull << 20)
#define MOST_BYTES (1ull << 30)
#define MOST_RESERVE_BYTES (1ull << 30)
enum { MOST_CELLS = 8192, FULL_CELLS = MOST_CELLS - LONGEST_TEXT / TEXT_BYTES - 2, NAME_SLOTS = 65536, TRIES = 64 };
enum { MOST_CALLS = 1200, BEGUN_SLOTS = 1024, CALL_ROWS = 2048, LOCK_TRIES = 20000, LOCK_ROUNDS = 200 };
enum { FLUSH_MS = 200, FORCED = 1, FAR_FILE = 900, MOST_GPUS = 64, MOST_PATH = 4096 };
enum { FIRST_VERSION = 18, FIRST_UNKNOWN_VERSION = 140000, TAKEN = 39 };

/* Calls that are recorded: parts of their names. */
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
    {"LaunchCooperativeKernel", LAUNCHES},
};
static const char *const RANKS[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
static const struct {
    int domain;
    const char *name;
} APIS[] = {{1, "driver"}, {2, "runtime"}};
static const char *const TOOLKIT_FOLDERS[] = {"extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib"};
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

static const struct {
    const char *name;
    void *place;
} FUNCTIONS[] = {
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

/* The recording of this process. */

static atomic_int taken;              /* 1 as soon as something records this process */
static pid_t process;                 /* a forked child has another number and stays silent */
static void *subscriber;
static bool enabled[SYNC + 1];        /* by kind */
static char path[MOST_PATH], reasons[MOST_PATH];
static uint64_t for_ms;
static struct stat identity;          /* of the file, which the program may close */
static atomic_bool stopped, ending, launched;
static atomic_bool closing;           /* no further call counts, but the work of those before does */
static _Atomic uint32_t last_call;    /* the correlation of the last call that counts */
static _Atomic uint64_t handed_out_bytes;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static int file = -1, failure;        /* failure: the errno of the write that failed */
static uint64_t written_bytes, least_free_bytes;
static Cell cells[MOST_CELLS];        /* that wait for being written */
static int waiting;
static uint64_t seen_names[NAME_SLOTS];

static uint8_t actions[2][MOST_CALLS];               /* by domain less one and number; 0 is not recorded */
static _Atomic uint64_t begun[BEGUN_SLOTS];          /* the runtime's calls that have begun, by their correlation */
static pthread_mutex_t calls_mutex = PTHREAD_MUTEX_INITIALIZER; /* of the next two; mutex may be taken within it */
static Row calls[CALL_ROWS];                         /* that wait for being written */
static int waiting_calls;
static _Atomic uint64_t dropped_calls;
static atomic_bool locked_out;

/* Copy a text; one that is too long becomes empty. */
static void keep(char *target, const char *text) {
    size_t length = text ? strlen(text) : 0;
    target[0] = 0;
    if (length && length < MOST_PATH) memcpy(target, text, length + 1);
}

/* Write a string of JSON. */
static void put_quoted(FILE *target, const char *text) {
    fputc('"', target);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fprintf(target, "\\%c", *text);
        else if ((unsigned char)*text < ' ') fprintf(target, "\\u%04x", *text);
        else fputc(*text, target);
    }
    fputc('"', target);
}

/* Leave a reason for the end of microbench. */
__attribute__((format(printf, 2, 3))) static void tell(const char *next_step, const char *format, ...) {
    char cause[2 * MOST_PATH], name[MOST_PATH + 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(cause, sizeof cause, format, arguments);
    va_end(arguments);
    snprintf(name, sizeof name, "%s/%d", reasons, (int)getpid());
    FILE *target = fopen(name, "ae");
    if (!target) return;
    fputc('[', target);
    put_quoted(target, cause);
    fputs(", ", target);
    put_quoted(target, next_step);
    fputs("]\n", target);
    fclose(target);
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
    if (!fstatvfs(file, &disk) && disk.f_bfree * disk.f_frsize < least_free_bytes) return fail(ENOSPC);
    /* A write beyond the limit would end the program by SIGXFSZ. */
    if (!getrlimit(RLIMIT_FSIZE, &largest) && written_bytes + left > largest.rlim_cur) return fail(EFBIG);
    while (left) {
        ssize_t written = write(file, next, left);
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

/* Write all records of a buffer but those of what has not ended when the recording ends. */
static void keep_records(uint8_t *buffer, size_t valid_bytes) {
    uint8_t *record = NULL;
    while (!cupti.next_record(buffer, valid_bytes, &record)) {
        if (u32(record) == KERNEL) put_name(u64(record + 104));
        Row *row = &next_cell()->row;
        bool later = closing && u32(record) != OVERHEAD;
        if (!fill(row, record) || (ending && row->end_ns == 0) || (later && row->correlation > last_call)) waiting--;
        if (waiting >= FULL_CELLS) write_cells();
        if (stopped) return;
    }
    write_cells();
}

/* CUPTI needs memory for records. */
static void requested(uint8_t **buffer, size_t *size, size_t *most_records) {
    *size = handed_out_bytes < MANY_BYTES ? BUFFER_BYTES : SMALL_BUFFER_BYTES;
    *buffer = handed_out_bytes < MOST_BYTES && !stopped ? malloc(*size) : NULL;
    if (!*buffer) *size = 0;
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
            if (!pthread_mutex_trylock(&calls_mutex)) return true;
            sched_yield();
        }
        if (getpid() != process) locked_out = true;
    }
    return false;
}

/* Write the rows of calls, with calls_mutex held. A forked child, which shares the file, forgets them. */
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
    pthread_mutex_unlock(&calls_mutex);
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

/* The program enters a call that is recorded, or leaves it. Within a call of the runtime, one of the driver with the
 * same correlation is no call of the program. */
static void called(void *unused, uint32_t domain, uint32_t number, const void *about) {
    const Called *data = about;
    _Atomic uint64_t *own = &begun[data->correlation % BEGUN_SLOTS];
    bool runtime = domain == 2;
    (void)unused;
    if (!data->leaves) {
        *data->kept = 0;
        if (runtime) *own = data->correlation;
        if (runtime || *own != data->correlation) cupti.get_timestamp(data->kept);
        return;
    }
    uint64_t begin_ns = *data->kept, end_ns, event;
    uint32_t stream;
    if (runtime) *own = 0;
    if (!begin_ns || number >= MOST_CALLS || stopped || closing) return;
    cupti.get_timestamp(&end_ns);
    uint8_t action = actions[domain - 1][number], type = action & 15;
    find_stream_and_event(action, data, &stream, &event);
    if (!lock_calls()) {
        dropped_calls++;
        return;
    }
    if (data->correlation > last_call) last_call = data->correlation;
    calls[waiting_calls++] = (Row){
        .kind = runtime ? RUNTIME : DRIVER, .detail = number, .begin_ns = begin_ns, .end_ns = end_ns,
        .correlation = data->correlation, .place = (uint32_t)pthread_self()};
    if (action & LAUNCHES) launched = true;
    if (type == RECORDS_EVENT)
        calls[waiting_calls++] = (Row){
            .kind = CUDA_EVENT, .end_ns = 1, .correlation = data->correlation, .stream = stream, .size = event};
    else if (type)
        calls[waiting_calls++] = (Row){
            .kind = SYNC, .detail = type, .begin_ns = begin_ns, .end_ns = end_ns, .correlation = data->correlation,
            .stream = stream, .size = event};
    if (waiting_calls > CALL_ROWS - 2) write_calls();
    pthread_mutex_unlock(&calls_mutex);
}

/* CUPTI gives the memory back, with records in it. A forked child, which shares the file, writes nothing. */
static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_bytes) {
    (void)context, (void)stream;
    handed_out_bytes -= size;
    if (buffer && valid_bytes && getpid() == process) {
        pthread_mutex_lock(&mutex);
        if (!stopped) keep_records(buffer, valid_bytes);
        pthread_mutex_unlock(&mutex);
        write_waiting();
    }
    free(buffer);
}

/* The begin. Each step returns false, and has told why, if the process cannot be recorded. */

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

static bool load_functions(void) {
    void *library = load_cupti();
    if (!library) {
        const char *next_step = "install the CUDA toolkit, or name its folder by CUDA_HOME";
        tell(next_step, "no libcupti.so.12 or .13 is found for %s", program_invocation_short_name);
        return false;
    }
    for (size_t place = 0; place < COUNT(FUNCTIONS); place++) {
        void *function = dlsym(library, FUNCTIONS[place].name);
        memcpy(FUNCTIONS[place].place, &function, sizeof function);
        if (!function) {
            tell("install CUPTI of CUDA 12 or 13", "CUPTI has no %s", FUNCTIONS[place].name);
            return false;
        }
    }
    return true;
}

static bool succeeded(int status, const char *call) {
    const char *words = "an unknown error";
    if (status == TAKEN)
        tell("run the program without the other profiler (nsys, ncu, torch.profiler, microbench)",
             "%s is attached to the process already, and CUPTI serves one profiler at a time",
             getenv("NSYS_PROFILING_SESSION_ID") ? "Nsight Systems" : "another profiler");
    else if (status) {
        cupti.get_result_string(status, &words);
        tell("check that nvidia-smi works on this machine", "CUPTI refuses %s: %s (%d)", call, words, status);
    }
    return status == 0;
}

/* Make the file, with a number that the program does not expect to be taken. */
static bool open_file(const char *folder) {
    char program[81], more[8] = "";
    snprintf(program, sizeof program, "%s", program_invocation_short_name);
    for (char *letter = program; *letter; letter++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-", *letter)) *letter = '_';
    const char *begin = program + strspn(program, "-.");
    for (int number = 2; number < 1000; number++) { /* a process that execs itself keeps its number */
        int length = snprintf(
            path, sizeof path, "%s/%s-%d%s.rows", folder, *begin ? begin : "program", (int)process, more);
        if (length >= (int)sizeof path) return false;
        file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        if (file >= 0 || errno != EEXIST) break;
        snprintf(more, sizeof more, "-%d", number);
    }
    if (file < 0) {
        tell(ELSEWHERE, "%s cannot be written: %s", path, strerror(errno));
        return false;
    }
    int far = fcntl(file, F_DUPFD_CLOEXEC, FAR_FILE); /* as many files may not be allowed */
    if (far >= 0) {
        close(file);
        file = far;
    }
    struct statvfs disk;
    if (!fstatvfs(file, &disk)) {
        least_free_bytes = disk.f_blocks * disk.f_frsize / 20;
        if (least_free_bytes > MOST_RESERVE_BYTES) least_free_bytes = MOST_RESERVE_BYTES;
    }
    fstat(file, &identity);
    return true;
}

/* Write the header, facts of the process, the two clocks, and the names of calls by their number. */
static bool write_first_cells(uint32_t version) {
    uint64_t cupti_ns = 0;
    struct timespec now;
    const char *name, *rank = NULL;
    pthread_mutex_lock(&mutex);
    Header *header = &next_cell()->header;
    memcpy(header->magic, "microbench cells", sizeof header->magic);
    header->version = VERSION;
    header->cell_bytes = CELL_BYTES;
    cupti.get_timestamp(&cupti_ns);
    clock_gettime(CLOCK_REALTIME, &now);
    put_fact("pid=%d", (int)process);
    put_fact("program=%s", program_invocation_short_name);
    put_fact("cupti=%u", version);
    put_fact("cupti_ns=%llu", (unsigned long long)cupti_ns);
    put_fact("unix_ns=%llu", now.tv_sec * 1000000000ull + now.tv_nsec);
    for (size_t place = 0; place < COUNT(RANKS) && !rank; place++) {
        rank = getenv(RANKS[place]);
        if (rank && (!*rank || rank[strspn(rank, "0123456789")])) rank = NULL;
    }
    if (rank) put_fact("rank=%s", rank);
    for (size_t api = 0; api < COUNT(APIS); api++)
        for (uint32_t cbid = 1; cbid < MOST_CALLS; cbid++)
            if (!cupti.get_callback_name(APIS[api].domain, cbid, &name) && name && *name)
                put_fact("%s.%u=%s", APIS[api].name, cbid, name);
    write_cells();
    int error = failure;
    pthread_mutex_unlock(&mutex);
    if (error) tell(ELSEWHERE, "%s cannot be written: %s", path, strerror(error));
    return !error;
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

static void record_calls(bool on) {
    for (size_t api = 0; api < COUNT(APIS); api++)
        for (uint32_t cbid = 1; cbid < MOST_CALLS; cbid++)
            if (actions[APIS[api].domain - 1][cbid])
                cupti.enable_callback(on, subscriber, APIS[api].domain, cbid);
}

/* Begin to record everything; only kernels must be possible. */
static bool enable_kinds(void) {
    const char *name;
    if (!succeeded(cupti.enable(KERNEL), "cuptiActivityEnable")) return false;
    enabled[KERNEL] = true;
    for (size_t place = 1; place < COUNT(KINDS); place++) enabled[KINDS[place]] = !cupti.enable(KINDS[place]);
    for (size_t api = 0; api < COUNT(APIS); api++)
        for (uint32_t cbid = 1; cbid < MOST_CALLS; cbid++)
            if (!cupti.get_callback_name(APIS[api].domain, cbid, &name) && name)
                actions[APIS[api].domain - 1][cbid] = action_of(name);
    record_calls(true);
    cupti.flush_period(FLUSH_MS);
    return true;
}

static bool begin(const char *folder) {
    uint32_t version = 0;
    if (!load_functions()) return false;
    if (!succeeded(cupti.get_version(&version), "cuptiGetVersion")) return false;
    if (version < FIRST_VERSION || version >= FIRST_UNKNOWN_VERSION) {
        tell("install CUPTI of CUDA 12 or 13, or a newer microbench",
             "CUPTI's version %u is unknown to this microbench", version);
        return false;
    }
    if (!succeeded(cupti.subscribe(&subscriber, called, NULL), "cuptiSubscribe")) return false;
    if (!open_file(folder) || !write_first_cells(version)) return false;
    int status = cupti.register_callbacks(requested, completed);
    return succeeded(status, "cuptiActivityRegisterCallbacks") && enable_kinds();
}

static void disable_kinds(void) {
    for (size_t place = 0; place < COUNT(KINDS); place++)
        if (enabled[KINDS[place]]) cupti.disable(KINDS[place]);
    record_calls(false);
}

/* Give CUPTI back after a failed start, and remove the file. */
static void abandon(void) {
    stopped = true;
    if (subscriber) {
        disable_kinds();
        cupti.unsubscribe(subscriber);
    }
    if (file >= 0) {
        close(file);
        unlink(path);
    }
}

/* The end. */

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

/* Write what is known only now, and close the file, unless the program has closed it. */
static void finish(size_t dropped) {
    struct stat found;
    if (fstat(file, &found) || found.st_dev != identity.st_dev || found.st_ino != identity.st_ino) return;
    if (!failure) {
        put_fact("dropped=%zu", dropped);
        put_gpus();
        put_fact("ended=1");
        write_cells();
    }
    close(file);
}

/* Take what CUPTI still has, unless it has handed that over, and end the recording. */
static void stop(bool handed_over) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (file >= 0) {
        size_t dropped = 0;
        ending = true;
        disable_kinds();
        if (!handed_over) cupti.flush_all(FORCED);
        cupti.dropped_records(NULL, 0, &dropped);
        write_waiting();
        pthread_mutex_lock(&mutex); /* a callback may still write */
        finish(dropped + dropped_calls);
        stopped = true;
        file = -1;
        int error = failure;
        pthread_mutex_unlock(&mutex);
        if (error)
            tell(ELSEWHERE, "the rest, because %s cannot be written any more: %s", path,
                 error == EBADF ? "the program closed its file" : strerror(error));
    }
    pthread_mutex_unlock(&once);
}

/* End the recording with the process that began it. */
static void stop_at_exit(void) {
    if (getpid() == process) stop(false);
}

/* End the recording a time after the first kernel. The program runs on, and its own profiler may then have CUPTI.
 *
 * To flush records now would not be safe (see recorder.py), so CUPTI has the time to hand them over by itself. */
static void *stop_after(void *unused) {
    const struct timespec look = {0, 50000000};
    struct timespec behind = {1, 0};
    while (!launched && file >= 0) nanosleep(&look, NULL);
    struct timespec left = {for_ms / 1000, for_ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) {}
    closing = true;
    while (nanosleep(&behind, &behind) && errno == EINTR) {}
    stop(true);
    cupti.unsubscribe(subscriber);
    return unused;
}

/* Start the thread that ends the recording. It takes no signal, because signals belong to the program's threads. */
static void start_clock(void) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, stop_after, NULL)) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* 1 for the first that asks to record this process, 0 for everybody after. A forked child is its parent's: what CUPTI
 * knows of the parent is in it too. */
EXPORTED int microbench_take_process(void) {
    return !atomic_exchange(&taken, 1);
}

/* CUDA's driver calls this within cuInit. */
EXPORTED int InitializeInjection(void) {
    const char *folder = getenv("MICROBENCH_WATCH_FOLDER"), *time = getenv("MICROBENCH_WATCH_FOR_MS");
    if (!folder || !microbench_take_process()) return 1;
    keep(reasons, getenv("MICROBENCH_WATCH_REASONS"));
    process = getpid();
    if (!begin(folder) || atexit(stop_at_exit)) abandon();
    else if (time && *time) {
        for_ms = strtoull(time, NULL, 10);
        start_clock();
    }
    return 1;
}

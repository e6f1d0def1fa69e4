"""Defines the memory that the recorder and the compiled callbacks share, by the places of its parts in bytes.

Most parts are words of 8 bytes. The larger ones are the mutexes, what fstatvfs writes, the table of names seen, the
rows to be written, the action for each call, the runtime calls that have begun, and the rows of calls to be written.
"""

FILE, STOPPED, ENDING, PROCESS, WRITTEN_BYTES, HANDED_OUT_BYTES, ERROR, LEAST_FREE_BYTES = range(0, 64, 8)
WAITING_CALLS, DROPPED_CALLS, LOCKED_OUT = 320, 328, 336
# Of this window: kernels launched, how many of them have a record by now, the correlations of the first and the last
# launch, and the last one whose kernel counts (0: all).
LAUNCHED, FINISHED, FIRST_LAUNCH, LAST_LAUNCH, LAST_COUNTED = 344, 352, 360, 368, 376
MUTEX, CALLS_MUTEX, DISK, SEEN_NAMES, ROWS = 256, 384, 512, 1024, 1024 + (1 << 19)
NAME_SLOTS = 1 << 16
ROWS_BYTES = 1 << 19
MOST_CALLS = 1200  # above the number (cbid) of any call
BEGUN_SLOTS = 1 << 10
CALL_ROWS = 2048
ACTIONS = ROWS + ROWS_BYTES
BEGUN = ACTIONS + 4096
WAITING = BEGUN + (BEGUN_SLOTS << 3)
STATE_BYTES = WAITING + (CALL_ROWS << 6)

# The addresses of the functions of C that the callbacks call, and of those of libcupti.
LIBC = (
    "malloc", "free", "memcpy", "strlen", "write", "lseek", "fstatvfs", "getpid", "pthread_mutex_lock",
    "pthread_mutex_unlock", "pthread_mutex_trylock", "pthread_self", "sched_yield", "__errno_location",
)  # fmt: skip
CUPTI = ("cuptiActivityGetNextRecord", "cuptiGetTimestamp", "cuptiGetStreamIdEx")
FUNCTIONS = {name: 64 + 8 * place for place, name in enumerate((*LIBC, *CUPTI))}

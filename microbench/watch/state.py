"""Defines the memory that the recorder and the compiled callbacks share, by the places of its parts in bytes.

Each part is a word of 8 bytes but for those of the second line: the mutex, what fstatvfs writes, a table of the names
that have been seen, and the rows that wait for being written.
"""

FILE, STOPPED, ENDING, PROCESS, WRITTEN_BYTES, HANDED_OUT_BYTES, ERROR, LEAST_FREE_BYTES = range(0, 64, 8)
MUTEX, DISK, SEEN_NAMES, ROWS = 256, 512, 1024, 1024 + (1 << 19)
NAME_SLOTS = 1 << 16
ROWS_BYTES = 1 << 19
STATE_BYTES = ROWS + ROWS_BYTES

# The addresses of the functions of C that the callbacks call; the last one is libcupti's.
LIBC = (
    "malloc", "free", "memcpy", "strlen", "write", "lseek", "fstatvfs", "getpid", "pthread_mutex_lock",
    "pthread_mutex_unlock", "__errno_location",
)  # fmt: skip
NEXT_RECORD = "cuptiActivityGetNextRecord"
FUNCTIONS = {name: 64 + 8 * place for place, name in enumerate((*LIBC, NEXT_RECORD))}

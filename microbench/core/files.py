"""Opens regular files only, replaces a file atomically, and removes what killed processes left behind."""

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import BinaryIO

ASIDE = ".microbench"  # the ending of a temporary file of ``replace``
LEFTOVER_S = 3600.0  # a temporary file that is older than this and not locked was left by a killed process


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for a pipe, which would block, or a device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def replace(path: Path, data: bytes, *, new: bool = False) -> int:
    """Replace the content of ``path`` by ``data`` and return the new file's descriptor, locked and open for appending.

    Raises OSError, with ``new`` also FileExistsError; then ``path`` is unchanged and no temporary file is left.
    A pipe or a device, such as /dev/null, is never replaced.
    """
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{ASIDE}")
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_APPEND
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks, and runs cannot grow there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(descriptor, data)
        os.fsync(descriptor)
        if new:  # a rename would overwrite a file that somebody made meanwhile
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        temporary.replace(path)
    except (OSError, KeyboardInterrupt):
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # unsupported by some file systems; without it a power cut may undo the rename
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return descriptor


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files in ``folder`` whose process was killed before it could rename them."""
    for path in folder.glob(f".*{ASIDE}"):
        with contextlib.suppress(OSError), open_regular(path) as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > LEFTOVER_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def write(descriptor: int, data: bytes) -> None:
    """Write all of ``data``. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]

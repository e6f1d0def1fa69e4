"""Opens regular files only, and replaces a file atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for a pipe, which would block, or a device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def replace(path: Path, data: bytes) -> int:
    """Replace the content of ``path`` by ``data`` and return the new file's descriptor, locked and open for appending.

    Raises OSError; then ``path`` is unchanged and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_APPEND
    descriptor = os.open(temporary, flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(descriptor, data)
        os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
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


def write(descriptor: int, data: bytes) -> None:
    """Write all of ``data``. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]

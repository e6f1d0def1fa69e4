"""Opens a trace file, plain or compressed by gzip, as a stream of bytes that never takes more memory than asked for."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from microbench.core.errors import UsageError
from microbench.core.files import open_regular
from microbench.core.units import plain

GZIP = b"\x1f\x8b"
READ_BYTES = 1 << 16  # also what is lost before damaged data


class TraceStream:
    """The bytes of a file, unpacked. ``fault`` says in words why they end too early; empty while nothing is wrong."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packed = b""
        self._ahead = b""
        self.compressed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        self._unpacker = zlib.decompressobj(wbits=31) if self.compressed else None
        self.fault = ""

    def peek(self, size: int) -> bytes:
        """The next bytes, which the next ``read`` gives again."""
        if len(self._ahead) < size:
            self._ahead += self._next(size - len(self._ahead))
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer only at the end of the file. Raises OSError."""
        if not self._ahead:
            return self._next(size)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data + self._next(size - len(data)) if len(data) < size else data

    def _next(self, size: int) -> bytes:
        if self._unpacker is None:
            return self._file.read(size)
        parts: list[bytes] = []
        while size > 0 and not self.fault:
            if self._unpacker.eof:  # gzip files may follow each other in one file; other bytes there mean nothing
                self._packed = self._unpacker.unused_data or self._file.read(READ_BYTES)
                if not self._packed.startswith(GZIP):
                    break
                self._unpacker = zlib.decompressobj(wbits=31)
            packed = self._packed or self._file.read(READ_BYTES)
            try:
                part = self._unpacker.decompress(packed, size)
            except zlib.error:
                self.fault = "its compressed data is damaged"
                break
            self._packed = self._unpacker.unconsumed_tail
            if not part and not packed:
                self.fault = "its compressed data ends too early"
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@contextmanager
def open_trace(path: Path) -> Iterator[TraceStream]:
    """Open a regular file. Raises UsageError if it cannot be opened or read."""
    try:
        with open_regular(path) as file:
            yield TraceStream(file)
    except OSError as error:
        reason = error.strerror or str(error)
        cause = f"{plain(path)} cannot be read: {reason}"
        raise UsageError(cause, "give the file of a recording, or a folder of them") from None

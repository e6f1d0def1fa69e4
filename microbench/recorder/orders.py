"""What `microbench watch` orders its processes to record, while they run: a file that they share with it."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from microbench.recorder.cells import CELL_BYTES, ENDING, fact

# The number of the order, odd while a recording is wanted; the ms of its window; our process and its namespace.
ORDERS = struct.Struct("<IIiIQ")
ENDED = fact("ended", 1)  # the last cell of a whole recording
LOOK_S = 0.05
LONGEST_END_S = 35.0  # in which a recorder ends, also where CUPTI keeps records back


class Orders:
    """Orders recordings of all processes of a watched command, one after the other. Each process writes one file into
    ``folder``, anew for each recording."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        folder.mkdir()
        path.write_bytes(ORDERS.pack(0, 0, os.getpid(), 0, os.stat("/proc/self/ns/pid").st_ino))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), ORDERS.size)
        self._number = 0

    def record(
        self,
        window_s: float,
        pause_s: float,
        into: Path,
        wait: Callable[[float], bool],
        meanwhile: Callable[[float], object] | None = None,
    ) -> list[Path]:
        """Order one recording: everything in the first ``window_s`` from the first launch on, and waits and turns in
        ``pause_s`` after it. Gives its files, one a process that was recorded, moved into a folder and named by the
        number of the recording. ``wait`` waits some seconds; it returns whether to end at once. ``meanwhile`` waits for
        the recording's end; if it returns earlier, the recording ends then."""
        self._order(window_s)
        (meanwhile or wait)(window_s + pause_s)
        self._order(window_s)
        until_s = time.monotonic() + LONGEST_END_S
        found = []
        for path in sorted(self._folder.glob(f"*{ENDING}")):
            while not whole(path) and _runs(path) and time.monotonic() < until_s and not wait(LOOK_S):
                pass
            with suppress(OSError):
                if path.stat().st_size:
                    target = into / f"{path.stem}-{self._number // 2:06}{ENDING}"
                    shutil.copyfile(path, target)
                    os.truncate(path, 0)
                    found.append(target)
                if not _runs(path):
                    path.unlink()
        return found

    def _order(self, window_s: float) -> None:
        self._number += 1
        struct.pack_into("<I", self._shared, 4, round(window_s * 1000))
        struct.pack_into("<I", self._shared, 0, self._number)


def whole(path: Path) -> bool:
    """Whether a process has ended its recording; an empty file has not begun one."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - CELL_BYTES, 0))
        return size == 0 or file.read(CELL_BYTES) == ENDED


def _runs(path: Path) -> bool:
    """Whether the process of a recording runs: its number is the last one of the name, or the one before "-2"."""
    before, _, last = path.stem.rpartition("-")
    numbers = [last, before.rpartition("-")[2]] if len(last) < 4 else [last]
    for number in numbers:
        with suppress(OSError):
            if number.isdigit() and Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
                return True
    return False

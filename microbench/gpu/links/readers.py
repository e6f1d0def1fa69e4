"""Kernels that read pieces of memory whole: what proves that the data were there when each of them ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.submit import DriverSubmit, Parameters, launch
from microbench.ops import Launch

BLOCK_THREADS = 1024
WORD_BYTES = 4


class Piece(NamedTuple):
    """Memory that the GPU reaches; ``address`` is a multiple of 16."""

    address: int
    size_bytes: int


class Readers:
    """One reader a piece: it adds a checksum of what it sees to a word of the piece's own, and 1 to another.

    Its grid fills every SM, so that two of them do not run side by side: as many blocks of 1024 threads as fit.
    """

    def __init__(self, case: Case, pieces: Sequence[Piece]) -> None:
        self._context = case.context
        self._pieces = pieces
        self._function = case.modules.function("link_pipeline", "consume")
        fitting = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, BLOCK_THREADS, 0)
        self._blocks = case.context.attribute("MULTIPROCESSOR_COUNT") * int(check(fitting))
        self._size_bytes = 2 * WORD_BYTES * len(pieces)
        self._found, self._wanted = (case.context.device_memory(self._size_bytes) for _ in range(2))

    def submit(self, index: int, stream: int, cycles: int = 0) -> DriverSubmit:
        """The reader of one piece, which takes ``cycles`` of the SM clock, or longer where reading does."""
        return self._reader(index, stream, cycles, self._found)

    def _reader(self, index: int, stream: int, cycles: int, out: int) -> DriverSubmit:
        checksum = out + 2 * WORD_BYTES * index
        row = (*self._pieces[index], cycles, checksum, checksum + WORD_BYTES)
        shape = Launch(grid_blocks=self._blocks, block_threads=BLOCK_THREADS)
        return launch(self._function, shape, stream, Parameters([row]))

    def forget(self) -> None:
        """No reader has run."""
        self._context.clear(self._found, self._size_bytes)

    def check(self, stream: int) -> None:
        """Raise MeasurementError unless each piece was seen in every run as it is now, which the caller has compared.

        What it should have seen is read once more by the same kernel, now that the memory is known to be right.
        """
        self._context.clear(self._wanted, self._size_bytes)
        for index in range(len(self._pieces)):
            self._reader(index, stream, 0, self._wanted)(1)
        self._context.synchronize()
        found, wanted = (self._words(words) for words in (self._found, self._wanted))
        never = np.flatnonzero(found[:, 1] == 0)
        if never.size:
            raise MeasurementError(f"the kernel of piece {never[0]} of {len(found)} did not run")
        wrong = np.flatnonzero(found[:, 0] != wanted[:, 0] * found[:, 1])
        if wrong.size:
            raise MeasurementError(f"the kernel of piece {wrong[0]} of {len(found)} ran before its data were there")

    def _words(self, address: int) -> npt.NDArray[np.uint32]:
        """Checksum and runs of each piece."""
        return self._context.read(address, 2 * len(self._pieces), np.uint32).reshape(-1, 2)

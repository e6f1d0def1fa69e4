"""Copies between the host and several GPUs at once: who shares a link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cuda.bindings import driver

from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_api import Direction, FloatArray
from microbench.gpu.links.boards import Board, Boards
from microbench.gpu.links.copies import MILLISECOND_S, Ends, copy_submit
from microbench.gpu.links.memory import HostBuffer


class Traveller:
    """One GPU's copies: buffers, stream, events and gate of its own."""

    def __init__(self, board: Board, case: Case, direction: Direction, size_bytes: int) -> None:
        self.board = board
        own = case._replace(context=board.context, modules=board.modules)
        with board.current():
            # Near its own GPU: far from it, several GPUs would share the way between the processors.
            host = HostBuffer(board.context, "pinned", size_bytes, board.node)
            self._ends = Ends(own, host, size_bytes, to_device=direction == "h2d")
            self._submit = copy_submit(self._ends, direction, board.stream)
            self._begin, self._end = (board.context.event(timed=True) for _ in range(2))

    def queue(self, count: int) -> None:
        """That many copies between two events, behind this GPU's gate."""
        with self.board.current():
            self.board.gate.shut()
            check(driver.cuEventRecord(self._begin, self.board.stream))
            self._submit(count)
            check(driver.cuEventRecord(self._end, self.board.stream))

    def elapsed_s(self) -> float:
        """Between the two events."""
        return float(check(driver.cuEventElapsedTime(self._begin, self._end))) * MILLISECOND_S

    def fresh(self) -> None:
        """See Transfer."""
        with self.board.current():
            self._ends.fresh()

    def check(self) -> str:
        """See Transfer."""
        with self.board.current():
            return self._ends.check()


class CudaConcurrent:
    """See Concurrent of link_api.py. The first GPU is measured."""

    def __init__(self, case: Case, boards: Boards, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        self._travellers = [Traveller(boards.board(index), case, direction, size_bytes) for index in gpus]

    def take_s(self, count: int) -> FloatArray | None:
        """See Concurrent. The measured GPU's gate opens last, a microsecond behind the others'."""
        first, *others = self._travellers
        for traveller in others:
            traveller.queue(2 * count)
        first.queue(count)
        for traveller in (*others, first):
            traveller.board.gate.open()
        for traveller in self._travellers:
            traveller.board.synchronize()
        if any(traveller.board.gate.was_late() for traveller in self._travellers):
            return None
        return np.array([traveller.elapsed_s() for traveller in self._travellers], dtype=np.float64)

    def fresh(self) -> None:
        """See Transfer."""
        for traveller in self._travellers:
            traveller.fresh()

    def check(self) -> str:
        """See Transfer."""
        return "; ".join(dict.fromkeys(traveller.check() for traveller in self._travellers))

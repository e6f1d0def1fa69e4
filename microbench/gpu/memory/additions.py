"""Atomic additions by all SMs, in device or shared memory: all to one word, or to one of each warp or thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.bound import Submit
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.memory.access import grid
from microbench.gpu.memory_api import AtomicType, Operations, Space, Spread
from microbench.gpu.submit import Parameters, launch

WORD_BYTES = 4
# Bits of a thread's number that name its word. A warp's word is 128 bytes from the next warp's: in a line of its own.
KEPT_BITS: dict[Spread, int] = {"same": 0, "warp": 0xFFFFFFE0, "thread": 0xFFFFFFFF}
# Additions by each thread in a call: 0.1 to 2 ms of them on an H200, so that a launch's own microseconds hardly show.
ADDITIONS: dict[tuple[Space, Spread], int] = {
    ("global", "same"): 4, ("global", "warp"): 64, ("global", "thread"): 512,
    ("shared", "same"): 64, ("shared", "warp"): 128, ("shared", "thread"): 4096,
}  # fmt: skip
WORD_TYPES: dict[AtomicType, type[np.int32] | type[np.float32]] = {"int32": np.int32, "fp32": np.float32}
# A thread adds 1 to 4 by its number: what a word begins as and all that a call adds to it stay below 2**24, so that a
# float is exact, on GPUs of up to 1.6 million resident threads.
LANE_NUMBERS = 4
FIRST_VALUES = 1009
POISON = -1
Words = npt.NDArray[Any]


def atomics(case: Case, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
    """See DeviceMemory. The instruction is one that returns nothing: RED, in shared memory ATOMS, where floats take a
    loop that compares and exchanges. Numbers differ within a warp, so no compiler adds them up beforehand; the GPU may
    still take a warp's additions to one address together.
    """
    return _SharedAdditions(case, dtype, spread) if space == "shared" else _GlobalAdditions(case, dtype, spread)


class _Additions:
    """Words of device memory, one a thread, and what a call adds to each: ``self._added``, shape (threads,)."""

    def __init__(self, case: Case, space: Space, dtype: AtomicType, spread: Spread) -> None:
        self._context = case.context
        self._type = WORD_TYPES[dtype]
        self._shape = grid(case)
        self._count = self._shape.grid_blocks * self._shape.block_threads
        self._words = case.context.device_memory(WORD_BYTES * self._count)
        self._seed = 0
        self._arguments = (KEPT_BITS[spread], ADDITIONS[space, spread])
        self._function = case.modules.function("memory_access", f"add_{space}_{dtype}")
        self._stream = case.stream(0)
        self._own = self._words_of_threads(space)
        numbers = np.arange(self._count) % LANE_NUMBERS + 1
        self._added: Words = np.bincount(self._own, numbers * ADDITIONS[space, spread], self._count).astype(self._type)
        self.operations = self._count * ADDITIONS[space, spread]

    def _words_of_threads(self, space: Space) -> npt.NDArray[np.int64]:
        """Which word each thread adds to; in shared memory its number counts within its block."""
        threads = np.arange(self._count, dtype=np.int64)
        within = threads % self._shape.block_threads if space == "shared" else threads
        return threads - within + (within & self._arguments[0])

    def _first(self) -> Words:
        """What the words begin as."""
        places = np.arange(self._seed, self._seed + self._count)
        return (places % FIRST_VALUES).astype(self._type)

    def _compare(self, wanted: Words) -> str:
        found = self._context.read(self._words, self._count, self._type)
        wrong = np.flatnonzero(found != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise MeasurementError(f"word {at} of {self._count} is {found[at]} where {wanted[at]} should be")
        return "every word compared with the sum of what was added"

    def _write(self, address: int, values: Words) -> None:
        check(driver.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes))
        self._context.synchronize()


class _GlobalAdditions(_Additions):
    """See Operations. Every second call takes away what the one before has added, so that words stay exact; the thread
    that a word is named after adds 1 more in each, which stays.
    """

    def __init__(self, case: Case, dtype: AtomicType, spread: Spread) -> None:
        super().__init__(case, "global", dtype, spread)
        self._calls = case.context.device_memory(2 * WORD_BYTES)
        self._named = self._own == np.arange(self._count)
        self.operations += int(self._named.sum())
        row = Parameters([(self._words, *self._arguments, self._calls, self._calls + WORD_BYTES)])
        self.submit: Submit = launch(self._function, self._shape, self._stream, row)

    def fresh(self) -> None:
        """See Transfer."""
        self._seed += 1
        self._context.clear(self._calls, 2 * WORD_BYTES)
        self._write(self._words, self._first())

    def check(self) -> str:
        """See Operations."""
        calls = int(self._context.read(self._calls, 1, np.uint32)[0])
        if calls == 0:
            raise MeasurementError(f"no word of {self._count} was added to")
        return self._compare(self._first() + self._added * self._type(calls % 2) + self._named * self._type(calls))


class _SharedAdditions(_Additions):
    """See Operations. Each block's words begin anew in every call; what the last call has left of them is compared."""

    def __init__(self, case: Case, dtype: AtomicType, spread: Spread) -> None:
        super().__init__(case, "shared", dtype, spread)
        self._begin = case.context.device_memory(WORD_BYTES * self._count)
        row = Parameters([(self._begin, self._words, *self._arguments)])
        shared_bytes = WORD_BYTES * self._shape.block_threads
        self.submit: Submit = launch(self._function, self._shape, self._stream, row, shared_bytes=shared_bytes)

    def fresh(self) -> None:
        """See Transfer."""
        self._seed += 1
        self._write(self._begin, self._first())
        self._write(self._words, np.full(self._count, POISON, dtype=self._type))

    def check(self) -> str:
        """See Operations."""
        return self._compare(self._first() + self._added)

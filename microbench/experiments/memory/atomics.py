"""Atomic additions by all SMs, in device memory and in shared memory, to one word or to many."""

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from microbench.experiments.memory.access import WORD_BYTES, grid
from microbench.experiments.memory.levels import Space
from microbench.experiments.memory.simulated_kernels import SimulatedOperations, kernel_call
from microbench.gpu.experiment import Case, Machine, MeasurementError, Parameters, Submit, experiment, launch
from microbench.gpu.fake.transfers import WARP_THREADS
from microbench.gpu.protocol.transfer import Operations

AtomicType = Literal["int32", "fp32"]
# Which words the threads of a launch add to: one word for all of them, one per warp, or one per thread.
Spread = Literal["same", "warp", "thread"]
# Bits of a thread's number that select its word. A warp's word is 128 bytes from the next warp's: in a line of its own.
WORD_BITS: dict[Spread, int] = {"same": 0, "warp": 0xFFFFFFE0, "thread": 0xFFFFFFFF}
# Additions by each thread in a call: they take 0.1 to 2 ms on an H200, so that a launch's own microseconds hardly show.
ADDITIONS: dict[tuple[Space, Spread], int] = {
    ("global", "same"): 4, ("global", "warp"): 64, ("global", "thread"): 512,
    ("shared", "same"): 64, ("shared", "warp"): 128, ("shared", "thread"): 4096,
}  # fmt: skip
WORD_TYPES: dict[AtomicType, type[np.int32] | type[np.float32]] = {"int32": np.int32, "fp32": np.float32}
# A thread adds 1 to 4 by its number: a word's first value and all that a call adds to it stay below 2**24, so that a
# float is exact, on GPUs of up to 1.6 million resident threads.
LANE_NUMBERS = 4
FIRST_VALUES = 1009
POISON = -1
Words = npt.NDArray[Any]
# What the simulated GPU runs: resident warps, and additions of each thread in a launch.
WARPS_PER_SM, ADDS = 64, 512


class _Additions:
    """Words of device memory, one a thread, and what a call adds to each: ``self._added``, shape (threads,)."""

    def __init__(self, case: Case, space: Space, dtype: AtomicType, spread: Spread) -> None:
        self._case = case
        self._type = WORD_TYPES[dtype]
        self._shape = grid(case)
        self._count = self._shape.grid_blocks * self._shape.block_threads
        self._words = case.device_memory(WORD_BYTES * self._count)
        self._seed = 0
        self._arguments = (WORD_BITS[spread], ADDITIONS[space, spread])
        self._function = case.function("memory_access", f"add_{space}_{dtype}")
        # The word that each thread adds to; in shared memory the thread's number counts within its block.
        threads = np.arange(self._count, dtype=np.int64)
        within = threads % self._shape.block_threads if space == "shared" else threads
        self._own = threads - within + (within & WORD_BITS[spread])
        numbers = np.arange(self._count) % LANE_NUMBERS + 1
        self._added: Words = np.bincount(self._own, numbers * ADDITIONS[space, spread], self._count).astype(self._type)
        self.operations = self._count * ADDITIONS[space, spread]

    def _first(self) -> Words:
        places = np.arange(self._seed, self._seed + self._count)
        return (places % FIRST_VALUES).astype(self._type)

    def _compare(self, wanted: Words) -> str:
        words = self._case.read(self._words, self._count, self._type)
        wrong = np.flatnonzero(words != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise MeasurementError(f"word {at} of {self._count} is {words[at]} where {wanted[at]} should be")
        return "every word compared with the sum of what was added"

    def _write(self, address: int, values: Words) -> None:
        self._case.upload(address, values)
        self._case.synchronize()


class _GlobalAdditions(_Additions):
    """Every second call subtracts what the previous call added, so that words stay exact. In each call the thread
    whose number is the word's adds 1 more, which stays.
    """

    def __init__(self, case: Case, dtype: AtomicType, spread: Spread) -> None:
        super().__init__(case, "global", dtype, spread)
        self._calls = case.device_memory(2 * WORD_BYTES)
        self._named = self._own == np.arange(self._count)
        self.operations += int(self._named.sum())
        row = Parameters([(self._words, *self._arguments, self._calls, self._calls + WORD_BYTES)])
        self.submit: Submit = launch(case, self._function, self._shape, row)

    def fresh(self) -> None:
        self._seed += 1
        self._case.clear(self._calls, 2 * WORD_BYTES)
        self._write(self._words, self._first())

    def check(self) -> str:
        calls = int(self._case.read(self._calls, 1, np.uint32)[0])
        if calls == 0:
            raise MeasurementError(f"no word of {self._count} was added to")
        return self._compare(self._first() + self._added * self._type(calls % 2) + self._named * self._type(calls))


class _SharedAdditions(_Additions):
    """Each call resets the words of each block; the words of the last call are compared."""

    def __init__(self, case: Case, dtype: AtomicType, spread: Spread) -> None:
        super().__init__(case, "shared", dtype, spread)
        self._begin = case.device_memory(WORD_BYTES * self._count)
        row = Parameters([(self._begin, self._words, *self._arguments)])
        shared_bytes = WORD_BYTES * self._shape.block_threads
        self.submit: Submit = launch(case, self._function, self._shape, row, shared_bytes=shared_bytes)

    def fresh(self) -> None:
        self._seed += 1
        self._write(self._begin, self._first())
        self._write(self._words, np.full(self._count, POISON, dtype=self._type))

    def check(self) -> str:
        return self._compare(self._first() + self._added)


def _atomics(case: Case, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
    """Atomic additions by all SMs whose result is not used. In shared memory ``same`` is one word a block.

    The instruction returns nothing: RED, or ATOMS in shared memory, where floats take a compare-and-exchange loop.
    Numbers differ within a warp, so that no compiler adds them up beforehand; the GPU may still combine a warp's
    additions to one address.
    """
    return _SharedAdditions(case, dtype, spread) if space == "shared" else _GlobalAdditions(case, dtype, spread)


def _simulated_atomics(machine: Machine, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
    """In global memory the units of the L2 make the additions; those to one sector, and merged ones, are made at once.
    In shared memory each SM makes its own; threads that add to the same word take turns or are merged."""
    costs, memory = machine.costs, machine.costs.memory
    warps = costs.sm_count * WARPS_PER_SM
    if space == "shared":
        turns = 1.0 if spread == "thread" else WARP_THREADS / memory.shared_merged_threads[dtype]
        cycles = WARPS_PER_SM * turns * memory.shared_atomic_cycles
    else:
        sectors_per_warp = WORD_BYTES * WARP_THREADS // memory.sector_bytes
        additions = warps * (sectors_per_warp if spread == "thread" else WARP_THREADS / memory.merged_threads[dtype])
        cycles = math.ceil(additions / (1 if spread == "same" else memory.atomic_units)) * memory.atomic_cycles
    call = kernel_call(machine, costs.cycles_ns(cycles * ADDS), 0.0)
    return SimulatedOperations(machine, call, warps * WARP_THREADS * ADDS)


atomics = experiment(_atomics, _simulated_atomics)

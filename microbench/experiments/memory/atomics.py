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


class Additions:
    """Atomic additions by all SMs whose result is not used. In shared memory ``same`` is one word a block.

    The instruction returns nothing: RED, or ATOMS in shared memory, where floats take a compare-and-exchange loop.
    Numbers differ within a warp, so that no compiler adds them up beforehand; the GPU may still combine a warp's
    additions to one address.

    There is a word for each thread. In device memory every second call subtracts what the previous call added, so that
    words stay exact, and in each call the thread whose number is the word's adds 1 more, which stays. In shared memory
    each call resets the words of each block; the words of the last call are compared.
    """

    def __init__(self, case: Case, space: Space, dtype: AtomicType, spread: Spread) -> None:
        self._case, self._shared, self._type = case, space == "shared", WORD_TYPES[dtype]
        shape, bits, additions = grid(case), WORD_BITS[spread], ADDITIONS[space, spread]
        self._count = shape.grid_blocks * shape.block_threads
        self._words = case.device_memory(WORD_BYTES * self._count)
        self._seed = 0
        function = case.function("memory_access", f"add_{space}_{dtype}")
        # The word that each thread adds to; in shared memory the thread's number counts within its block.
        threads = np.arange(self._count, dtype=np.int64)
        within = threads % shape.block_threads if self._shared else threads
        own = threads - within + (within & bits)
        numbers = threads % LANE_NUMBERS + 1
        self._added: Words = np.bincount(own, numbers * additions, self._count).astype(self._type)
        self._named = own == threads
        self.operations = self._count * additions + (0 if self._shared else int(self._named.sum()))
        # What each call begins with in shared memory; else how often the words were added to.
        self._aside = case.device_memory(WORD_BYTES * (self._count if self._shared else 2))
        both = (self._words, bits, additions)
        row = (self._aside, *both) if self._shared else (*both, self._aside, self._aside + WORD_BYTES)
        shared_bytes = WORD_BYTES * shape.block_threads if self._shared else 0
        self.submit: Submit = launch(case, function, shape, Parameters([row]), shared_bytes=shared_bytes)

    def _first(self) -> Words:
        places = np.arange(self._seed, self._seed + self._count)
        return (places % FIRST_VALUES).astype(self._type)

    def fresh(self) -> None:
        self._seed += 1
        if self._shared:
            self._case.upload(self._aside, self._first())
            self._case.upload(self._words, np.full(self._count, POISON, dtype=self._type))
        else:
            self._case.clear(self._aside, 2 * WORD_BYTES)
            self._case.upload(self._words, self._first())
        self._case.synchronize()

    def check(self) -> str:
        wanted = self._first() + self._added
        if not self._shared:
            calls = int(self._case.read(self._aside, 1, np.uint32)[0])
            if calls == 0:
                raise MeasurementError(f"no word of {self._count} was added to")
            wanted = self._first() + self._added * self._type(calls % 2) + self._named * self._type(calls)
        words = self._case.read(self._words, self._count, self._type)
        wrong = np.flatnonzero(words != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise MeasurementError(f"word {at} of {self._count} is {words[at]} where {wanted[at]} should be")
        return "every word compared with the sum of what was added"


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


atomics = experiment(Additions, _simulated_atomics)

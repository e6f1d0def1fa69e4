"""Loads of shared memory at a stride: a warp that waits for each load, and an SM that is full of them."""

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import size
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch
from microbench.gpu.experiment import Case, Item, Launch, Machine, Scoped, check, driver, experiment

WORD_BYTES = 4
POISON_BYTE = 0xA5
LANES = BANKS = 32
BANK_WARPS = 32
# Loads that each warp of a full block has in flight: an SM then has far more of them than it needs to be busy.
CHAINS = 4


class BankReads:
    """Warps of one block that read words of shared memory at a stride. Each load uses the address that the previous
    load returned; each chain of loads goes round 32 words, and its end is compared.

    ``loads`` is how many loads of a warp a step of ``together`` makes.
    """

    loads = BANK_WARPS * CHAINS

    def __init__(self, case: Case, stride_bytes: int) -> None:
        require_whole_words(stride_bytes)
        self._case = case
        # Lanes that read one word together go round 32 neighbouring words.
        self._stride, self._apart = max(stride_bytes // WORD_BYTES, 1), int(stride_bytes > 0)
        self._shared_bytes = ((LANES - 1) * self._stride + 1) * WORD_BYTES
        most = case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if self._shared_bytes > most:
            raise Skip(f"a block has {size(most)} of shared memory here, not {size(self._shared_bytes)}")
        self._cycles = case.device_memory(8)
        self._ends = case.device_memory(WORD_BYTES * LANES * self.loads)

    def alone(self, reads: int) -> int:
        """SM cycles of ``reads`` loads of one warp, each of which waits for the one before it.

        Raises MeasurementError if a lane ends at the wrong word, here and in ``together``.
        """
        return self._take("round_alone", 1, 1, reads)

    def together(self, reads: int) -> int:
        """SM cycles of ``reads`` steps of the warps of a full block, each with several loads in flight."""
        return self._take("round_together", BANK_WARPS, CHAINS, reads)

    def _take(self, kernel: str, warps: int, chains: int, reads: int) -> int:
        function = self._case.function("memory_access", kernel)
        allow_shared_memory(function, self._shared_bytes)
        check(driver.cuMemsetD8(self._ends, POISON_BYTE, WORD_BYTES * LANES * self.loads))
        row = Parameters([(self._stride, self._apart, reads, self._cycles, self._ends)])
        shape = Launch(block_threads=LANES * warps)
        launch(self._case, function, shape, row, shared_bytes=self._shared_bytes)(1)
        self._case.synchronize()
        chain, warp, lane = np.ogrid[:chains, :warps, :LANES]
        wanted = (lane * self._apart + warp + chain + reads) % LANES
        ends = self._case.read(self._ends, chains * warps * LANES, np.uint32).reshape(wanted.shape)
        if not np.array_equal(ends, wanted):
            raise MeasurementError(f"loads of shared memory ended at {np.count_nonzero(ends != wanted)} wrong words")
        return int(self._case.read(self._cycles, 1, np.int64)[0])


class SimulatedBankReads(Scoped, BankReads):
    """A bank serves one word per turn, so a load takes as many turns as the most words that it reads from one bank."""

    def __init__(self, machine: Machine, stride_bytes: int) -> None:
        super().__init__(machine)
        require_whole_words(stride_bytes)
        words = np.unique(np.arange(LANES) * (stride_bytes // WORD_BYTES))
        self._turns = int(np.bincount(words % BANKS).max())

    def _take(self, kernel: str, warps: int, chains: int, reads: int) -> int:
        machine = self._open()
        memory = machine.costs.memory
        if warps == 1:
            cycles = reads * (memory.shared_cycles + (self._turns - 1) * memory.conflict_cycles)
        else:
            cycles = reads * warps * chains * self._turns * memory.bank_cycles
        cycles *= float(machine.noise.device(1.0, 1)[0])
        machine.run(Item(duration_ns=machine.costs.cycles_ns(cycles)))
        machine.require_arrival("loads of shared memory ended at wrong words")
        return round(cycles)


def require_whole_words(stride_bytes: int) -> None:
    """Raise Skip for a stride that is no whole number of words."""
    if stride_bytes % WORD_BYTES:
        raise Skip(f"words of {WORD_BYTES} B cannot lie {stride_bytes} B apart")


bank_reads = experiment(BankReads, SimulatedBankReads)

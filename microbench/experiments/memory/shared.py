"""Shared memory: that of the other blocks of a cluster, and loads whose words lie at a stride."""

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import size
from microbench.experiments.memory import levels
from microbench.experiments.memory.access import POISON_BYTE, WORD_BYTES, require_stride
from microbench.experiments.memory.chase import LocalChase, SimulatedChase
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, clusters_at_once, launch, run
from microbench.gpu.cuda.timing import alone_on_its_sm
from microbench.gpu.experiment import Case, Item, Launch, Machine, Scoped, check, driver, experiment

# As read_cluster of kernels/memory_levels.cu has it.
CLUSTER_BYTES, CLUSTER_VECTORS = 64 << 10, 4096
CHASED_BYTES = 16 << 10
# Larger clusters must be allowed for each kernel, and not every GPU has them.
PORTABLE_BLOCKS = 8
SINCE = (9, 0)
SEED = 9


def clusters_here(case: Case, function: int, shape: Launch, shared_bytes: int, cluster_blocks: int) -> int:
    """How many such clusters run at the same time. Raises Skip if none does."""
    if cluster_blocks > PORTABLE_BLOCKS:
        allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        check(driver.cuFuncSetAttribute(function, allowed, 1))
    found = clusters_at_once(case, function, shape, shared_bytes, cluster_blocks)
    if not found:
        raise Skip(f"this GPU runs no cluster of {cluster_blocks} blocks of {size(shared_bytes)} of shared memory")
    return found


def cluster_sums(each: levels.Words, cluster_blocks: int, passes: int) -> levels.Words:
    """What each block adds up, modulo 2**32: its cluster's other blocks in turn, the next one first.

    ``each`` are the sums of what the blocks hold.
    """
    others = cluster_blocks - 1
    held = each.reshape(-1, cluster_blocks).astype(np.uint64)
    sums = np.zeros_like(held)
    for distance in range(1, cluster_blocks):
        times = passes // others + (distance <= passes % others)
        sums += np.roll(held, -distance, axis=1) * np.uint64(times)
    return sums.reshape(-1).astype(np.uint32)


class ReadCluster(levels.StampedLevel):
    """64 KiB of shared memory of each block: every block reads those of the other blocks of its cluster in turn.

    As many clusters as run at the same time take part, with one block of 1024 threads on each of their SMs.
    """

    tile_bytes = CLUSTER_BYTES

    def __init__(self, case: Case, cluster_blocks: int) -> None:
        case.require_capability(*SINCE, "a cluster")
        self._blocks = cluster_blocks
        function = case.function("memory_levels", "read_cluster")
        shared_bytes = alone_on_its_sm(case, function)
        shape = Launch(grid_blocks=cluster_blocks, block_threads=levels.BLOCK_THREADS, kind="cluster")
        super().__init__(case, cluster_blocks * clusters_here(case, function, shape, shared_bytes, cluster_blocks))
        sums = case.device_memory(4 * self.sms)
        run(case, case.function("memory_levels", "tile_sums"), self.sms, 256, (SEED, CLUSTER_VECTORS, sums))
        self._each: levels.Words = case.read(sums, self.sms, np.uint32)
        self._row = Parameters([(SEED, 0, self._out)])
        shape = Launch(grid_blocks=self.sms, block_threads=levels.BLOCK_THREADS, kind="cluster")
        self._submit = launch(
            case, function, shape, self._row, shared_bytes=shared_bytes, cluster_blocks=cluster_blocks
        )

    def _take(self, tiles: int) -> levels.Duration:
        self._row[1] = tiles
        stamps = self._stamps(self._submit)
        if not np.array_equal(stamps["sum"], cluster_sums(self._each, self._blocks, tiles)):
            raise MeasurementError("the sum over all words read is not that of the other blocks")
        return levels.duration_of(stamps)


class ClusterChase(LocalChase):
    """A walk by the first block of one cluster; its lines lie in the other blocks."""

    def __init__(self, case: Case, cluster_blocks: int) -> None:
        case.require_capability(*SINCE, "a cluster")
        super().__init__(case, "shared", CHASED_BYTES)
        self._way = "cluster"
        self._shape = Launch(grid_blocks=cluster_blocks, block_threads=1, kind="cluster")
        for kernel in ("walk_cluster", "walk_cluster_stamped"):
            clusters_here(case, case.function("memory_levels", kernel), self._shape, CHASED_BYTES, cluster_blocks)


def require_simulated(machine: Machine, cluster_blocks: int) -> None:
    """Raise Skip if the simulated GPU has no clusters of that many blocks."""
    if machine.costs.compute_capability < SINCE or cluster_blocks not in machine.costs.memory.cluster_cycles:
        raise Skip(f"the simulated GPU has no clusters of {cluster_blocks} blocks")


class SimulatedCluster(levels.SimulatedLevel):
    """Shared memory of the other blocks has a rate and a latency by the size of the cluster."""

    def __init__(self, machine: Machine, cluster_blocks: int) -> None:
        require_simulated(machine, cluster_blocks)
        super().__init__(machine, "shared", CLUSTER_BYTES)
        memory = machine.costs.memory
        self.sms = machine.costs.sm_count // cluster_blocks * cluster_blocks
        self._first_cycles = memory.cluster_cycles[cluster_blocks]
        self._tile_cycles = self.tile_bytes / memory.cluster_bytes_per_clock[cluster_blocks]


class SimulatedClusterChase(SimulatedChase):
    """The lines of shared memory are as far as the other blocks."""

    def __init__(self, machine: Machine, cluster_blocks: int) -> None:
        require_simulated(machine, cluster_blocks)
        super().__init__(machine, "shared", CHASED_BYTES)
        self._shared_cycles = machine.costs.memory.cluster_cycles[cluster_blocks]


# Clusters of two blocks or more; both raise Skip where the GPU has none of that size.
read_cluster = experiment(ReadCluster, SimulatedCluster)
cluster_chase = experiment(ClusterChase, SimulatedClusterChase)


LANES = BANKS = 32
BANK_WARPS = 32
# Loads that each warp of a full block has in flight: an SM then has far more of them than it needs to be busy.
CHAINS = 4


class BankReads:
    """Warps of one block that read words of shared memory at a stride.

    Each load uses the address that the previous load returned. Each chain of loads goes round 32 words, and its end is
    compared.

    ``loads`` is how many loads of a warp a step of ``together`` makes.
    """

    loads = BANK_WARPS * CHAINS

    def __init__(self, case: Case, stride_bytes: int) -> None:
        require_stride(stride_bytes, least_bytes=0)
        self._case = case
        # Lanes that read one word together go round 32 neighbouring words.
        self._stride, self._apart = max(stride_bytes // WORD_BYTES, 1), int(stride_bytes > 0)
        self._shared_bytes = ((LANES - 1) * self._stride + 1) * WORD_BYTES
        levels.require_shared(self._shared_bytes, case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
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
        require_stride(stride_bytes, least_bytes=0)
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


bank_reads = experiment(BankReads, SimulatedBankReads)

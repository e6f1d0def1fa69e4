"""Shared memory of the other blocks of a cluster: reads by every SM again and again, and dependent reads."""

import numpy as np

from microbench.core.units import size
from microbench.experiments.memory import levels
from microbench.experiments.memory.chase import LocalChase, SimulatedChase
from microbench.gpu.cuda.submit import Parameters, clusters_at_once, launch, run
from microbench.gpu.cuda.timing import alone_on_its_sm
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Skip, check, driver, experiment

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

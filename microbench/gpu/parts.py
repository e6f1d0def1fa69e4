"""What a case can be given beyond plain submission: graphs, links, memory, compute, ready when first asked for."""

from __future__ import annotations

from functools import cached_property

from microbench.gpu.compute.cuda_compute import CudaCompute
from microbench.gpu.graphs.base import Case
from microbench.gpu.graphs.cuda_graphs import CudaGraphs
from microbench.gpu.links.cuda_links import CudaLinks
from microbench.gpu.memory.cuda_memory import CudaMemory
from microbench.gpu.nvml import NvmlGpu
from microbench.model import GpuInfo


class Parts:
    """The parts of one case on one GPU; they end with it."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        self._case = case
        self._info = info
        self._nvml = nvml

    @cached_property
    def graphs(self) -> CudaGraphs:
        """See Gpu.graphs."""
        return CudaGraphs(self._case)

    @cached_property
    def links(self) -> CudaLinks:
        """See Gpu.links."""
        return CudaLinks(self._case, self._info, self._nvml)

    @cached_property
    def memory(self) -> CudaMemory:
        """See Gpu.memory."""
        return CudaMemory(self._case, self._nvml)

    @cached_property
    def compute(self) -> CudaCompute:
        """See Gpu.compute."""
        return CudaCompute(self._case, self._info, self._nvml)

"""Which class or function carries out each operation of Graphs, Links, DeviceMemory and Compute on a real GPU."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.compute import alu
from microbench.gpu.cuda.compute.problem import Bracket, free_bytes, needed_bytes, problem
from microbench.gpu.cuda.compute.tensor import tensor
from microbench.gpu.cuda.links.chase import host_chase
from microbench.gpu.cuda.links.collectives import CudaCollective
from microbench.gpu.cuda.links.copies import CudaCopy, CudaDuplex, CudaKernelCopy, CudaPipeline, state
from microbench.gpu.cuda.links.managed import CudaManaged, pinning
from microbench.gpu.cuda.links.peers import CudaConcurrent, CudaPeer, PeerChase, gpus
from microbench.gpu.cuda.memory.access import atomics, occupied, scattered, strided
from microbench.gpu.cuda.memory.allocation import allocating, capacity
from microbench.gpu.cuda.memory.bulk import CudaFill
from microbench.gpu.cuda.memory.cluster import chase, level
from microbench.gpu.cuda.memory.engines import engine
from microbench.gpu.cuda.memory.levels import CudaWritten
from microbench.gpu.cuda.memory.loaded import CudaLoadedChase
from microbench.gpu.cuda.memory.streams import shapes, stream
from microbench.gpu.machine.nvml import NvmlGpu, holders
from microbench.gpu.protocol.part import Part, built


class CudaLinks(Part[Case]):
    """The links of one GPU for one case."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        super().__init__(case)
        self._info, self._nvml = info, nvml

    def state(self) -> tuple[Fact, ...]:
        return state(self.subject(), self._info, self._nvml)

    copy = built(CudaCopy)
    kernel_copy = built(CudaKernelCopy)
    duplex = built(CudaDuplex)
    chase = built(host_chase)
    pinning = built(pinning)
    pipeline = built(CudaPipeline)
    managed = built(CudaManaged)
    peer = built(CudaPeer)
    peer_chase = built(PeerChase)
    gpus = built(gpus)
    concurrent = built(CudaConcurrent)
    collective = built(CudaCollective)


class CudaMemory(Part[Case]):
    """Memory and caches of one GPU for one case."""

    def __init__(self, case: Case, nvml: NvmlGpu) -> None:
        super().__init__(case)
        self._nvml = nvml

    shapes = built(shapes)
    stream = built(stream)
    level = built(level)
    written = built(CudaWritten)
    fill = built(CudaFill)
    chase = built(chase)
    loaded = built(CudaLoadedChase)
    occupied = built(occupied)
    strided = built(strided)
    scattered = built(scattered)
    atomics = built(atomics)
    engine = built(engine)
    allocating = built(allocating)

    def capacity(self) -> Sequence[Fact]:
        return capacity(self.subject(), self._nvml)

    def peers(self) -> Fact:
        return holders(self._nvml)


class CudaCompute(Part[Case]):
    """Tensor cores and ALUs of one GPU for one case."""

    def __init__(self, case: Case, nvml: NvmlGpu) -> None:
        super().__init__(case)
        self._nvml = nvml

    problem = built(problem)
    needed_bytes = built(needed_bytes)
    free_bytes = built(free_bytes)
    bracket = built(Bracket)
    tensor = built(tensor)
    arithmetic = built(alu.CudaArithmetic)
    chain = built(alu.CudaChain)

    def state(self) -> Telemetry:
        return self._nvml.telemetry()

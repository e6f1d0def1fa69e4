"""Which class or function carries out each operation of Links and Compute on a real GPU."""

from __future__ import annotations

from microbench.core.model import Fact, GpuInfo
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.links.chase import host_chase
from microbench.gpu.cuda.links.collectives import CudaCollective
from microbench.gpu.cuda.links.copies import CudaCopy, CudaDuplex, CudaKernelCopy, CudaPipeline, state
from microbench.gpu.cuda.links.managed import CudaManaged, pinning
from microbench.gpu.cuda.links.peers import CudaConcurrent, CudaPeer, PeerChase, gpus
from microbench.gpu.machine.nvml import NvmlGpu
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

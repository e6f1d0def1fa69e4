"""Links on a real GPU: see link_api.py for what each method promises."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.gpu.api import IntArray
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_api import (
    Access,
    Chase,
    Concurrent,
    Direction,
    Duplex,
    HostMemory,
    Managed,
    ManagedWay,
    Order,
    Peer,
    PeerWay,
    PinningWay,
    Pipeline,
    Transfer,
)
from microbench.gpu.links.boards import Boards
from microbench.gpu.links.chase import host_chase
from microbench.gpu.links.concurrent import CudaConcurrent
from microbench.gpu.links.copies import CudaCopy, CudaDuplex, CudaKernelCopy
from microbench.gpu.links.managed import CudaManaged
from microbench.gpu.links.memory import require_node
from microbench.gpu.links.peers import CudaPeer, PeerChase
from microbench.gpu.links.pinning import pinning
from microbench.gpu.links.pipeline import CudaPipeline
from microbench.gpu.links.state import state
from microbench.gpu.nvml import NvmlGpu
from microbench.model import Fact, GpuInfo


class CudaLinks:
    """The links of one GPU for one case, made ready when first asked for."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        self._case = case
        self._info = info
        self._nvml = nvml
        self._boards = Boards(case)

    def state(self) -> tuple[Fact, ...]:
        """See Links."""
        return state(self._case, self._info, self._nvml)

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> Transfer:
        """See Links."""
        if node is not None:
            require_node(node)
        return CudaCopy(self._case, direction, memory, size_bytes, node)

    def kernel_copy(self, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> Transfer:
        """See Links."""
        return CudaKernelCopy(self._case, access, width_bytes, offset_bytes, size_bytes)

    def duplex(self, size_bytes: int) -> Duplex:
        """See Links."""
        return CudaDuplex(self._case, size_bytes)

    def chase(self, footprint_bytes: int, stride_bytes: int, order: Order) -> Chase:
        """See Links."""
        case = self._case
        return host_chase(case.context, case.modules, case.stream(0), footprint_bytes, stride_bytes, order)

    def pinning(self, way: PinningWay, size_bytes: int, count: int) -> IntArray:
        """See Links."""
        return pinning(self._case, way, size_bytes, count)

    def pipeline(self, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> Pipeline:
        """See Links."""
        return CudaPipeline(self._case, size_bytes, chunks, streams, kernel_ns)

    def managed(self, way: ManagedWay, size_bytes: int) -> Managed:
        """See Links."""
        return CudaManaged(self._case, way, size_bytes)

    def peer(self, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> Peer:
        """See Links."""
        return CudaPeer(self._boards, first, second, way, access, size_bytes)

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> Chase:
        """See Links."""
        return PeerChase(self._boards, first, second, footprint_bytes, stride_bytes)

    def gpus(self) -> Sequence[int]:
        """See Links."""
        return range(self._boards.count())

    def concurrent(self, direction: Direction, gpus: Sequence[int], size_bytes: int) -> Concurrent:
        """See Links."""
        return CudaConcurrent(self._case, self._boards, direction, gpus, size_bytes)

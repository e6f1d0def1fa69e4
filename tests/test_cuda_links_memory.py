"""Host, chunked and managed memory on a real GPU: data arrive, missing work is noticed, too much memory is a skip."""

from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.link import managed
from microbench.experiments.link.copies import engine_copy
from microbench.experiments.link.managed import ManagedWay, managed_memory
from microbench.experiments.link.pipeline import Piece, Readers, chunked_copy
from microbench.experiments.memory.allocation import PinningWay, Taking, pinning
from microbench.gpu.cuda import buffers
from microbench.gpu.cuda.buffers import HostBuffer, Patterns
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.device import CudaGpu
from microbench.gpu.protocol.gpu import Gpu, HostMemory
from microbench.host import memory

pytestmark = pytest.mark.gpu

MIB = 1 << 20
TOO_MUCH_BYTES = 1 << 46


@pytest.fixture
def case(gpu: Gpu) -> Case:
    assert isinstance(gpu, CudaGpu)
    return gpu._case


@pytest.mark.parametrize("node", [None, 0])
@pytest.mark.parametrize("size_bytes", [1, 4097, 3_000_001])
@pytest.mark.parametrize("kind", get_args(HostMemory))
def test_host_buffers_hold_data_for_both_sides(case: Case, kind: HostMemory, size_bytes: int, node: int | None) -> None:
    buffer = HostBuffer(case, kind, size_bytes, node)
    there = case.device_memory(size_bytes)
    assert (buffer.device_address is None) == (kind == "pageable")
    patterns = Patterns(case)
    patterns.fill(there, size_bytes, 5)
    (code,) = driver.cuMemcpyDtoH(buffer.address, there, size_bytes)
    assert int(code) == 0
    patterns.poison(there, size_bytes, 5)
    (code,) = driver.cuMemcpyHtoD(there, buffer.address, size_bytes)
    assert int(code) == 0
    patterns.verify(there, size_bytes, 5, "the host's memory")
    if buffer.device_address is not None:
        patterns.verify(buffer.device_address, size_bytes, 5, "mapped memory")


@pytest.mark.parametrize("kind", get_args(HostMemory))
def test_too_much_host_memory_is_a_skip(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, kind: HostMemory) -> None:
    monkeypatch.setattr(memory, "LONGEST_FILL_S", 0.0)
    with pytest.raises(Skip, match=r"64 TiB of [a-z-]+ host memory asked, .* may be taken"):
        engine_copy(gpu, "h2d", kind, TOO_MUCH_BYTES)


@pytest.mark.parametrize(("kind", "call"), [("pinned", "cuMemHostAlloc"), ("registered", "cuMemHostRegister")])
def test_a_driver_s_refusal_is_a_skip(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, kind: HostMemory, call: str) -> None:
    answer = (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0)[: 2 if kind == "pinned" else 1]
    monkeypatch.setattr(buffers.driver, call, lambda *arguments: answer)
    with pytest.raises(Skip, match=f"1 MiB of {kind} host memory refused by the driver: CUDA_ERROR_OUT_OF_MEMORY"):
        engine_copy(gpu, "h2d", kind, MIB)


@pytest.mark.parametrize("size_bytes", [4096, 100_003, 4 * MIB])
@pytest.mark.parametrize("way", get_args(PinningWay))
def test_the_stamps_of_pinning_are_in_order(gpu: Gpu, way: PinningWay, size_bytes: int) -> None:
    stamps = pinning(gpu, way, size_bytes, 4)
    assert stamps.shape == (4, len(Taking))
    assert (np.diff(stamps.ravel()) >= 0).all()
    assert (stamps[:, Taking.TAKEN] > stamps[:, Taking.BEGIN]).all()
    assert (stamps[:, Taking.RELEASED] > stamps[:, Taking.RELEASE_BEGIN]).all()


def checksum(content: npt.NDArray[np.uint8]) -> int:
    """The checksum of kernels/link_pipeline.cu, by NumPy."""
    whole = content.size // 16 * 16
    words = content[:whole].view(np.uint32).astype(np.uint64)
    rest = content[whole:].astype(np.uint64)
    odd_words = 2 * np.arange(words.size, dtype=np.uint64) + 1
    odd_bytes = 2 * np.arange(whole, content.size, dtype=np.uint64) + 1
    return int((words * odd_words).sum() + (rest * odd_bytes).sum()) % (1 << 32)


@pytest.mark.parametrize("size_bytes", [1, 16, 4099, 9_000_007])
def test_readers_see_every_byte(case: Case, size_bytes: int) -> None:
    there = case.device_memory(size_bytes)
    Patterns(case).fill(there, size_bytes, 3)
    readers = Readers(case, [Piece(there, size_bytes)])
    readers.submit(0, 0)(3)
    case.synchronize()
    seen, runs = (int(word) for word in readers._words(readers._seen)[0])
    assert runs == 3
    assert seen == 3 * checksum(case.read(there, size_bytes, np.uint8)) % (1 << 32)
    readers.check()


@pytest.mark.parametrize("kernel_ns", [0, 200_000])
@pytest.mark.parametrize(
    ("size_bytes", "chunks", "streams"), [(65_536, 1, 1), (1_000_003, 7, 3), (65_537, 128, 4), (8 * MIB, 16, 2)]
)
def test_pieces_arrive_and_are_read(gpu: Gpu, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
    pipeline = chunked_copy(gpu, size_bytes, chunks, streams, kernel_ns)
    pipeline.fresh()
    with pytest.raises(MeasurementError, match="byte 0 of"):
        pipeline.check()
    out = np.zeros(3, dtype=np.int64)
    pipeline.submit.round_trips(out)
    assert (out > 0).all()
    assert ("its own piece" in pipeline.check()) == (kernel_ns > 0)
    pipeline.submit(2)
    gpu.synchronize()
    pipeline.check()


def test_a_missing_or_early_kernel_is_noticed(gpu: Gpu) -> None:
    pipeline = chunked_copy(gpu, MIB, 4, 2, 100_000)
    assert pipeline._readers is not None
    pipeline.fresh()
    pipeline.submit(1)
    gpu.synchronize()
    pipeline._readers.forget()
    with pytest.raises(MeasurementError, match="the kernel of piece 0 of 4 did not run"):
        pipeline.check()
    pipeline.fresh()
    pipeline._readers.submit(2, 0)(1)
    gpu.synchronize()
    pipeline.submit(5)
    gpu.synchronize()
    with pytest.raises(MeasurementError, match="the kernel of piece 2 of 4 ran before its data were there"):
        pipeline.check()


@pytest.mark.parametrize(("chunks", "streams"), [(1, 1), (8, 1), (8, 4)])
def test_kernels_take_as_long_as_asked_and_do_not_run_side_by_side(gpu: Gpu, chunks: int, streams: int) -> None:
    kernel_ns = 4_000_000
    pipeline = chunked_copy(gpu, MIB, chunks, streams, kernel_ns)
    out = np.zeros(5, dtype=np.int64)
    pipeline.submit.round_trips(out)
    assert 0.95 * kernel_ns < np.median(out) < 1.5 * kernel_ns


@pytest.mark.parametrize("size_bytes", [4096, 1_000_003, 16 * MIB])
@pytest.mark.parametrize("way", get_args(ManagedWay))
def test_managed_memory_moves(gpu: Gpu, way: ManagedWay, size_bytes: int) -> None:
    moving = managed_memory(gpu, way, size_bytes)
    with pytest.raises(MeasurementError):
        moving.check()
    assert all(moving.take_ns() > 0 for _ in range(3))
    assert moving.check()


@pytest.mark.parametrize("way", get_args(ManagedWay))
def test_wrong_managed_memory_and_a_missing_prefetch_are_noticed(gpu: Gpu, case: Case, way: ManagedWay) -> None:
    moving = managed_memory(gpu, way, MIB)
    moving.take_ns()
    Patterns(case).poison(moving._pages + MIB // 2, 4, 1)
    with pytest.raises(MeasurementError, match="managed memory: byte 524288 of"):
        moving.check()
    if way.startswith("prefetch"):
        moving.take_ns()
        moving._put_back()
        with pytest.raises(MeasurementError, match="did not take the prefetch"):
            moving.check()


def test_too_much_or_no_managed_memory_is_a_skip(gpu: Gpu, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Skip, match=r"64 TiB of managed memory is over a quarter of the .* free on the GPU"):
        managed_memory(gpu, "fault_to_device", TOO_MUCH_BYTES)
    monkeypatch.setattr(type(case.context), "attribute", lambda self, name: 0)
    with pytest.raises(Skip, match="no managed memory that host and device may use at once"):
        managed.require_managed(case, MIB)

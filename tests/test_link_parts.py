"""Parts of the real GPU's links that need no GPU: lines of a walk, place and size of buffers, refusals."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from microbench.analysis.limits import ceiling
from microbench.benchmarks.link.link_peer import bound_of
from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.core.model import GpuInfo, LinkInfo
from microbench.experiments.link import concurrent, copies
from microbench.experiments.link.chase import Order, chain, order_of_lines, words_at
from microbench.experiments.link.peers import PeerWay
from microbench.gpu.cuda import case as cases
from microbench.session.plan import select

STRIDE_BYTES = 128


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("footprint_bytes", [128, 1000, 64 << 10])
def test_a_walk_meets_each_line_before_any_again(footprint_bytes: int, order: Order) -> None:
    visits = order_of_lines(footprint_bytes, order)
    buffer = ctypes.create_string_buffer(footprint_bytes)
    base = ctypes.addressof(buffer)
    words = words_at(base, len(visits) * STRIDE_BYTES)
    chain(words, visits, base)
    seen, at = [], base + int(visits[0]) * STRIDE_BYTES
    for _ in visits:
        seen.append((at - base) // STRIDE_BYTES)
        at = ctypes.c_uint64.from_address(at).value
    assert at == base + int(visits[0]) * STRIDE_BYTES
    assert sorted(seen) == list(range(footprint_bytes // STRIDE_BYTES))
    assert seen == visits.tolist()


def test_a_footprint_below_one_line_is_a_skip() -> None:
    with pytest.raises(Skip, match="3 B hold no line of 128 B to walk through"):
        order_of_lines(3, "random")


def test_a_host_buffer_holds_the_offset_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(copies, "HostBuffer", lambda case, kind, size_bytes: sizes.append(size_bytes))
    monkeypatch.setattr(copies, "Ends", lambda *arguments: SimpleNamespace(ends=(0, 0)))
    monkeypatch.setattr(copies, "copy_by_sms", lambda *arguments: None)
    case: Any = None
    copies._kernel_copy(case, "read", 16, 1 << 20, 1 << 16)
    assert sizes[0] >= (1 << 20) + (1 << 16)


def test_the_buffer_of_each_gpu_is_on_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int | None] = []
    monkeypatch.setattr(concurrent, "HostBuffer", lambda case, kind, size_bytes, node=None: used.append(node))
    monkeypatch.setattr(concurrent, "Ends", lambda *arguments: SimpleNamespace(by_engine=lambda stream: None))
    own = SimpleNamespace(event=lambda timed: 0)

    def board(case: Any, index: int) -> Any:
        return SimpleNamespace(case=own, current=nullcontext, stream=0, node=(0, 0, 1, None)[index])

    monkeypatch.setattr(concurrent, "board", board)
    case: Any = None
    concurrent.Concurrent(case, "h2d", [3, 0, 2], 64)
    assert used == [None, 0, 1]


@pytest.mark.parametrize(("code", "error"), [(2, Skip), (1, MeasurementError)])
def test_device_memory_that_is_not_free_is_a_skip(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    monkeypatch.setattr("microbench.gpu.cuda.context.error_name", lambda code: f"code {code}")  # the driver's words
    monkeypatch.setattr(cases.driver, "cuMemAlloc", lambda size_bytes: (code, 0))
    monkeypatch.setattr(cases.driver, "cuMemGetInfo", lambda: (0, 3 << 30, 8 << 30))
    context: Any = None
    monkeypatch.setattr(cases, "held_by", lambda nvml: "python (pid 12) 4.00 GiB")
    case = cases.Case(context, board=SimpleNamespace(nvml=None))
    case._taken_bytes = 1 << 30
    words = (
        "16 GiB of device memory asked, 3.00 GiB are free on the GPU of 8.00 GiB; "
        r"held by: this case 1.00 GiB, python \(pid 12\) 4.00 GiB"
    )
    with pytest.raises(error, match=words if code == 2 else "code 1"):
        case.device_memory(16 << 30)


@pytest.mark.parametrize(("name", "value"), [
    *(
        (name, "size_bytes=0")
        for name, benchmark in discover().items()
        if benchmark.suite == "link" and "size_bytes" in benchmark.axes and name != "link_peer"
    ),  # the latency of link_peer has no size
    ("link_zero_copy", "offset_bytes=4096"),
])  # fmt: skip
def test_values_without_a_meaning_are_refused(name: str, value: str) -> None:
    axis, _, number = value.partition("=")
    with pytest.raises(UsageError, match=f"{value} is out of range in {name}"):
        select({name: discover()[name]}, (name,), "default", {axis: (number,)})


@pytest.mark.parametrize(("nvlinks", "way", "bound"), [
    (18, "engine_read", "nvlink"), (None, "sm_write", "nvlink"), (0, "engine_read", "pcie_h2d"),
    (0, "engine_both_write", "pcie_d2h"), (0, "sm_read", "pcie_sm_read"), (0, "sm_write", "pcie_sm_write"),
])  # fmt: skip
def test_the_ceiling_of_a_pair_without_nvlink_is_that_of_pcie(nvlinks: int | None, way: PeerWay, bound: str) -> None:
    link = LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256, nvlinks=nvlinks, nvlink_bytes_per_s=25e9)
    info = GpuInfo("GPU", "GPU-0", link=link)
    gpu: Any = SimpleNamespace(info=info)
    assert bound_of(gpu, way) == bound
    assert (ceiling(bound, info) is None) == (nvlinks is None), "links that nobody counted have no ceiling"
    assert np.isfinite(getattr(ceiling(bound, info), "value", 0.0))

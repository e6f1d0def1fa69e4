"""Tests of the reader of XLA's xplane files, encoded here by hand, and of what damaged or hostile files get."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import snapshots
from test_diagnose import costs
from test_traces_nsys import names, sound

from microbench.core.errors import UsageError
from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.health import checks
from microbench.traces import xplane
from microbench.traces.trace import NONE, RANGE_KINDS, Trace

START_NS = 1_771_595_639_214_724_894
SECRET = b"hostname-of-somebody"
US = 1_000_000  # picoseconds


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


class Plane:
    """A plane while it is made; names of events and values get their numbers at first use."""

    def __init__(self, name: str, **stats: int | str) -> None:
        self.name, self.lines = name, b""
        self.events: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.stats = b"".join(block(6, self.stat(key, value)) for key, value in stats.items())

    def value(self, name: str) -> int:
        return self.values.setdefault(name, len(self.values) + 1)

    def stat(self, name: str, value: int | str) -> bytes:
        key = number(1, self.value(name))
        if isinstance(value, str):  # XLA writes a text as the name of another value, or in place
            return key + (number(7, self.value(value)) if len(value) > 6 else block(5, value))
        return key + number(3 if value >= 0 else 4, value)

    def line(
        self, name: str, line_number: int, events: Sequence[tuple[str, float, float, Mapping[str, int | str]]]
    ) -> None:
        content = bytearray(number(1, line_number) + block(2, name) + number(3, 1_000))
        for title, begin_us, length_us, stats in events:
            event = number(1, self.events.setdefault(title, len(self.events) + 1)) + number(2, int(begin_us * US))
            event += number(3, int(length_us * US))
            content += block(4, event + b"".join(block(4, self.stat(key, value)) for key, value in stats.items()))
        self.lines += block(3, bytes(content))

    def encoded(self) -> bytes:
        content = block(2, self.name) + self.lines + self.stats
        for field, known in ((4, self.events), (5, self.values)):
            for name, key in known.items():
                content += block(field, number(1, key) + block(2, number(1, key) + block(2, name)))
        return block(1, content)


def gpu_plane(vendor: str = "Nvidia") -> Plane:
    plane = Plane("/device:GPU:0", device_vendor=vendor, gpu_device_name="NVIDIA H200")
    shape = "regs:32 static_shared:0 dynamic_shared:0 grid:16,2,1 block:128,2,1 occ_pct:100"
    operator = {"hlo_op": "dot.1", "hlo_module": "jit_step"}
    copy = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
    plane.line("Stream #17(Compute,MemcpyH2D)", 17, [
        ("gemm_kernel", 20, 5, {"correlation_id": 5, "kernel_details": shape, **operator}),
        ("MemcpyH2D", 10, 2, {"correlation_id": 4, "memcpy_details": copy}),
        ("Memset 3", 13, 1, {"correlation_id": 9, "Memset_details": "kind:device num_bytes:64 async:1"}),
        ("in_graph", 31, 1.5, {"correlation_id": 6, "cuda_graph_node_id": 3, "kernel_details": shape}),
        ("in_graph", 33, 1, {"correlation_id": 6, "cuda_graph_node_id": 4, "kernel_details": shape}),
        ("CudaGraphExec:12", 40, 9, {"correlation_id": 7, "cuda_graph_exec_id": 12}),
        ("cuStreamSynchronize", 60, 3, {"correlation_id": 8}),
        ("Memory device", 61, 1, {"MemoryResidency_details": "kind:device num_bytes:1 addr:0x0"}),
        ("UM_GPU_PAGE_FAULT", 62, 1, {}),
    ])  # fmt: skip
    plane.line("XLA Ops", 99, [("dot.1", 20, 5, {})])
    plane.line("CUPTI overhead", 98, [("BUFFER_FLUSH", 50, 2, {})])
    return plane


def space(vendor: str = "Nvidia") -> bytes:
    calls = Plane("/host:CUPTI")
    calls.line("Host Threads/77", 77, [
        ("cuMemcpyHtoDAsync_v2", 8, 3, {"correlation_id": 4, "device_id": 0}),
        ("cuLaunchKernel", 15, 2, {"correlation_id": 5}),
        ("cuGraphLaunch (CudaGraph:12)", 28, 2, {"correlation_id": 6}),
        ("cuGraphLaunch (CudaGraph:12)", 38, 2, {"correlation_id": 7}),
        ("cuStreamSynchronize", 59, 5, {"correlation_id": 8}),
        ("NVTX:mine", 1, 80, {}),
    ])  # fmt: skip
    host = Plane("/host:CPU")
    host.line("python", 77, [
        ("train", 0, 90, {"step_num": 3, "_r": 1}), ("$model.py:88 forward", 2, 40, {}),
        ("PjitFunction(step)", 3, 30, {}),
    ])  # fmt: skip
    host.line("tf_XLAPjRt/9", -5, [("ThunkExecute", 16, 10, {})])
    task = Plane("Task Environment", profile_start_time=START_NS, profile_options=SECRET.decode())
    dropped = "Detected GPU events dropped on host: 7 events dropped because total device(activity) events reaches max."
    planes = gpu_plane(vendor).encoded() + calls.encoded() + host.encoded() + task.encoded()
    return planes + block(3, dropped) + block(4, SECRET)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("xplane") / "host.xplane.pb"
    path.write_bytes(space())
    return xplane.read(path)


def test_every_field(trace: Trace) -> None:
    sound(trace)
    assert SECRET.decode() not in repr(trace)
    snapshots.same_trace("xplane", trace)


def newer(steps: int, correlated: bool = True) -> bytes:
    """What JAX 0.11 writes: each call among the host's code, named after its kernel, in the range of its operator."""
    gpu = Plane("/device:GPU:0", device_vendor="Nvidia", gpu_device_name="NVIDIA H200")
    shape = "grid:8,1,1 block:64,1,1"
    work: list[tuple[str, float, float, Mapping[str, int | str]]] = []
    host: list[tuple[str, float, float, Mapping[str, int | str]]] = []
    for step in range(steps):
        begin_us = 500.0 * step
        host.append(("train", begin_us, 490, {"step_num": step}))
        for kernel in range(10):
            at_us, number = begin_us + 30 * kernel, 10 * step + kernel + 1
            correlation = {"correlation_id": number} if correlated else {}
            host.append((f"gemm_fusion.{kernel}", at_us, 8, {}))
            host.append(("gemm_fusion", at_us + 2, 4, {**correlation, "device_id": 0}))
            work.append(("gemm_fusion", at_us + 9, 3, {"correlation_id": number, "kernel_details": shape}))
        copy = {"correlation_id": 9000 + step} if correlated else {}
        host.append(("MemcpyD2H", begin_us + 320, 5, copy))
        host.append(("cuLaunchHostFunc", begin_us + 330, 5, {}))
    gpu.line("Stream #14(Compute)", 14, work)
    python = Plane("/host:CPU")
    python.line("python3", -366, host)
    return gpu.encoded() + python.encoded()


def test_calls_among_the_hosts_code_are_calls(tmp_path: Path) -> None:
    (tmp_path / "x.pb").write_bytes(newer(12))
    trace = xplane.read(tmp_path / "x.pb")
    sound(trace)
    assert names(trace, trace.calls[:11]) == ["cuLaunchKernel"] * 10 + ["MemcpyD2H"]
    assert trace.work["call"][:10].tolist() == list(range(10))
    kinds = dict(zip(names(trace, trace.ranges), trace.ranges["kind"].tolist(), strict=True))
    assert RANGE_KINDS[kinds["gemm_fusion.3"]] == RANGE_KINDS[kinds["cuLaunchHostFunc"]] == "operator"
    assert "gemm_fusion" not in kinds
    assert len(trace.threads) == 1


def test_a_profile_with_calls_among_the_hosts_code_is_diagnosed(tmp_path: Path) -> None:
    (tmp_path / "x.pb").write_bytes(newer(12))
    found = diagnose(xplane.read(tmp_path / "x.pb"), costs())
    assert (found.steps.found, found.steps.count) == ("annotations", 10)
    assert found.step.kernels == 10
    assert found.bound == "launch-bound"
    assert found.graph is not None


def test_a_profile_without_calls_says_what_that_forbids(tmp_path: Path) -> None:
    (tmp_path / "x.pb").write_bytes(newer(12, correlated=False))
    trace = xplane.read(tmp_path / "x.pb")
    assert len(trace.calls) == 0
    (check,) = [check for check in checks(trace, None) if check.name == "pieces of work without a call"]
    assert check.count == 120
    assert check.meaning.startswith("the recording has no CUDA calls")
    assert set(check.forbids) == {"idle time", "prediction"}
    assert diagnose(trace, costs()).why_no_graph == "the trace has no CUDA calls, from which steps are found"


def test_times_since_1970_have_epoch_0(tmp_path: Path) -> None:
    plane = Plane("/host:CPU")
    plane.lines = block(3, number(1, 1) + block(2, "python") + number(3, START_NS) + block(4, number(2, 5_000)))
    (tmp_path / "x.pb").write_bytes(plane.encoded())
    trace = xplane.read(tmp_path / "x.pb")
    assert trace.epoch_ns == 0
    assert trace.ranges["begin_ns"].tolist() == [START_NS + 5]
    assert names(trace, trace.ranges) == ["(unnamed)"]


def test_a_packed_file_is_the_same(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "x.pb.gz").write_bytes(gzip.compress(space()))
    packed = xplane.read(tmp_path / "x.pb.gz")
    assert packed.names == trace.names
    assert (packed.work == trace.work).all()
    (tmp_path / "x.pb.gz").write_bytes(gzip.compress(space())[:-20])
    with pytest.raises(UsageError, match="gzip cannot unpack"):
        xplane.read(tmp_path / "x.pb.gz")


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xplane, "LARGEST_BYTES", 4 << 20)
    (tmp_path / "x.pb.gz").write_bytes(gzip.compress(bytes(16 << 20)))
    with pytest.raises(UsageError, match="larger than 2 GiB"):
        xplane.read(tmp_path / "x.pb.gz")


def test_an_amd_gpu_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pb").write_bytes(space("AMD"))
    with pytest.raises(UsageError, match="AMD GPU"):
        xplane.read(tmp_path / "x.pb")


@pytest.mark.parametrize(("content", "words"), [
    (b"", "empty"), (b"{}" * 100, "no XSpace message|cut short"), (b"\x0a\xff\xff\xff\xff\x0f", "cut short"),
    (b"\x0a" + b"\xff" * 20, "runs on without end"), (b"\x80" * 30, "runs on without end"),
    (b"\x0a\x05\x0a", "cut short"),
    (b"\x0b" * 1000, "no XSpace message"), (b"\x08\x01", "no plane"), (block(1, block(3, b"\x22\x7f")), "cut short"),
    (b"\x09\x01", "cut short"),
])  # fmt: skip
def test_what_is_no_space_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    if words == "cut short" and content.startswith(b"\x0a") and content.endswith(b"\x7f"):
        content = block(1, block(2, "/host:CPU") + block(3, b"\x22\x7f"))
    (tmp_path / "x.pb").write_bytes(content)
    with pytest.raises(UsageError, match=words):
        xplane.read(tmp_path / "x.pb")
    with pytest.raises(UsageError, match="not a file"):
        xplane.read(tmp_path)


def test_messages_nested_without_end_are_skipped(tmp_path: Path) -> None:
    nested = b""
    for _ in range(3000):
        nested = block(3, nested)
    (tmp_path / "x.pb").write_bytes(space() + block(1, nested))
    assert len(xplane.read(tmp_path / "x.pb").calls) == 5


def test_impossible_times_and_numbers_are_left_out(tmp_path: Path) -> None:
    plane = Plane("/device:GPU:0")
    details = "grid:4294967295,4294967295,4294967295 block:1,1,1"
    stats = {"correlation_id": -4, "kernel_details": details, "cuda_graph_node_id": -1}
    plane.line(
        "Stream #-3", -3, [("good", 5, 1, stats), ("backwards", 5, -1, stats), ("far", 9e18 / US, 9e18 / US, stats)]
    )
    (tmp_path / "x.pb").write_bytes(plane.encoded())
    trace = xplane.read(tmp_path / "x.pb")
    sound(trace)
    row = trace.work[0]
    assert (row["stream"], row["blocks"], row["node"], row["call"]) == (NONE, NONE, NONE, NONE)
    assert trace.unread["events with impossible times"] == 1


def test_events_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xplane, "MOST_ROWS", 10)
    (tmp_path / "x.pb").write_bytes(space())
    assert xplane.read(tmp_path / "x.pb").unread["events beyond the limit"] == 10

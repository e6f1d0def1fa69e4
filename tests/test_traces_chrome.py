"""Reading Chrome's trace JSON: every field, every layout, and whatever else a file may hold."""

import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snapshots
from make_trace import kineto, steps_of
from snapshots import told

from microbench.core.errors import UsageError
from microbench.diagnosis.host_time import DOINGS, slices
from microbench.traces import chrome, reading, scanner
from microbench.traces.collector import ROW_LIMITS, Collector
from microbench.traces.events import ChromeReader
from microbench.traces.stream import TraceStream
from microbench.traces.trace import MEMORIES, NONE, RANGE_KINDS, Trace

BASE_US = 4_465_031_777_379  # of a real recording: a float holds such a time with less than three decimals
Event = dict[str, Any]


class Us(float):
    """A time in us that is written with three decimals, as Kineto does, from integer nanoseconds."""

    def __new__(cls, time_ns: int) -> "Us":
        self = super().__new__(cls, time_ns / 1000)
        self.text = f"{time_ns // 1000}.{time_ns % 1000:03}"  # type: ignore[attr-defined]
        return self

    def __repr__(self) -> str:
        return self.text  # type: ignore[attr-defined, no-any-return]


def dumps(value: object, **options: Any) -> bytes:
    """JSON in which a Us keeps its digits."""
    times: list[Us] = []

    def replaced(one: object) -> object:
        if isinstance(one, Us):
            times.append(one)
            return f"\0{len(times) - 1}\0"
        if isinstance(one, dict):
            return {key: replaced(item) for key, item in one.items()}
        return [replaced(item) for item in one] if isinstance(one, list) else one

    text = json.dumps(replaced(value), **options)
    return re.sub(r'"\\u0000(\d+)\\u0000"', lambda match: repr(times[int(match[1])]), text).encode()


def at(time_ns: int, length_ns: int | None = None, base_us: int = BASE_US) -> Event:
    times: Event = {"ts": Us(base_us * 1000 + time_ns)}
    return times if length_ns is None else {**times, "dur": Us(length_ns)}


def kernel(begin_ns: int, length_ns: int, correlation: int, name: str = "saxpy", **args: Any) -> Event:
    more = {"device": 0, "stream": 7, "correlation": correlation, "grid": [56, 2, 1], "block": [384, 1, 1], **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, **at(begin_ns, length_ns), "args": more}


def copy(begin_ns: int, length_ns: int, correlation: int, name: str, size: int) -> Event:
    args = {"device": 0, "stream": 7, "correlation": correlation, "bytes": size}
    return {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, **at(begin_ns, length_ns), "args": args}


def call(begin_ns: int, length_ns: int, correlation: int, name: str = "cudaLaunchKernel", **more: Any) -> Event:
    event = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 424, "tid": 424, **at(begin_ns, length_ns)}
    return {**event, "args": {"External id": 3, "cbid": 211, "correlation": correlation}, **more}


def host(begin_ns: int, length_ns: int, name: str, category: str = "cpu_op", thread: int = 424) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 424, "tid": thread, **at(begin_ns, length_ns)}


def sample() -> list[Event]:
    """A step of a small program: nested ranges, launches, copies, a replay of a graph, a wait."""
    return [
        {"ph": "M", "name": "process_name", "pid": 424, "tid": 0, "ts": 0, "args": {"name": "python3"}},
        {"ph": "M", "name": "thread_name", "pid": 424, "tid": 424, "ts": 0, "args": {"name": "thread 424 (python3)"}},
        host(0, 90_001, "ProfilerStep#3", "user_annotation"),
        host(1_003, 20_000, "aten::linear"),
        host(1_003, 30_500, 'model.py(88): forward "x" \\ é', "python_function"),
        host(40_000, 700, "aten::copy_", thread=471),
        {**host(2_000, 3_000, "Buffer Flush", "overhead"), "pid": -1, "tid": 0},
        call(2_001, 4_003, 11),
        kernel(9_000, 2_112, 11),
        call(12_000, 3_000, 12, "cudaMemcpyAsync"),
        copy(17_000, 960, 12, "Memcpy HtoD (Pageable -> Device)", 4096),
        {**call(20_000, 5_000, 13, "cuLaunchKernelEx"), "cat": "cuda_driver"},
        kernel(27_001, 1_999, 13, "sgemm<float, 4>(int)", stream=20),
        {"ph": "s", "id": 13, "pid": 424, "tid": 424, **at(20_000), "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 13, "pid": 0, "tid": 7, **at(27_001), "cat": "ac2g", "name": "ac2g", "bp": "e"},
        call(50_000, 9_000, 14, "cudaGraphLaunch"),
        *(kernel(60_000 + 1_500 * node, 1_400, 14, f"node{node}") for node in range(3)),
        call(61_000, 9_000, 15, "cudaDeviceSynchronize"),
        {**host(60_000, 6_000, "step 3", "gpu_user_annotation"), "pid": 0, "tid": 7},
        {"ph": "X", "cat": "Trace", **at(0, 90_000), "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch (0)"},
        {"ph": "i", "s": "g", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", **at(0)},
    ]


def document(events: list[Event], **facts: Any) -> Event:
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150110011392}],
        "cuda_driver_version": 13000, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "displayTimeUnit": "ms", "baseTimeNanoseconds": 1_790_857_026_000_000_000, **facts, "traceEvents": events,
        "traceName": "x.json",
    }  # fmt: skip


def test_what_cuda_loads_within_a_call_is_no_work_of_the_profiler() -> None:
    names = "Runtime Triggered Module Loading", "Lazy Function Loading", "Activity Buffer Request"
    events = [
        {**host(50_100 + 1000 * place, 900, name, "overhead"), "pid": -1, "tid": 0} for place, name in enumerate(names)
    ]
    trace = whole(json.dumps(document([*sample(), *events])).encode())
    kinds = {trace.names[one["name"]]: RANGE_KINDS[one["kind"]] for one in trace.ranges}
    assert [kinds[name] for name in names] == ["driver", "driver", "overhead"]
    of = slices(trace, int(trace.calls["thread"][0]))
    modules = of.doing == DOINGS.index("module")
    assert np.diff(of.edges_ns)[modules].sum() == 1800, "PyTorch does not say in which thread"


def whole(data: bytes) -> Trace | None:
    """The trace by decoding the whole; None where the scanner would be asked."""
    reader = ChromeReader("x.json")
    return reader.finish() if chrome.read_whole(data, reader) else None


def scanned(data: bytes) -> Trace:
    reader = ChromeReader("x.json")
    scanner.scan_trace(TraceStream(io.BytesIO(data)), reader)
    return reader.finish()


def decoded(data: bytes) -> Trace:
    trace = whole(data)
    assert trace is not None
    return trace


both = pytest.mark.parametrize("read", [decoded, scanned])
Read = Callable[[bytes], Trace]


def name_of(trace: Trace, row: Any) -> str:
    return trace.names[row["name"]]


def submitted(trace: Trace) -> list[tuple[str, str | None]]:
    called = [None if row["call"] == NONE else name_of(trace, trace.calls[row["call"]]) for row in trace.work]
    return list(zip([name_of(trace, row) for row in trace.work], called, strict=True))


@both
def test_every_field(read: Read) -> None:
    snapshots.same_trace("chrome", read(dumps(document(sample()))))


@both
def test_other_words_for_kernels_copies_and_correlations(read: Read) -> None:
    """As converters from CUPTI write them."""
    events = [
        {**call(0, 4_000, 0, "Runtime: cudaMemcpy_v3020"), "cat": "CUDA_Runtime", "args": {"correlationId": 8}},
        {"ph": "X", "cat": "MemCopy", "name": "MemCopy: HtoD", **at(1_000, 900), "args": {"correlationId": 8}},
        {**call(5_000, 4_000, 0, "Runtime: cudaLaunchKernel_v7000"), "args": {"cbid": "211", "correlationId": 9}},
        {"ph": "X", "cat": "GPU_Kernel", "name": "Kernel: daxpy", **at(10_000, 9_000), "args": {"correlationId": 9}},
    ]
    trace = read(dumps({"traceEvents": events}))
    assert trace.format == "Chrome trace"
    assert submitted(trace) == [
        ("MemCopy: HtoD", "Runtime: cudaMemcpy_v3020"), ("Kernel: daxpy", "Runtime: cudaLaunchKernel_v7000"),
    ]  # fmt: skip


@both
def test_collectives_have_the_bytes_that_a_rank_gives(read: Read) -> None:
    given: tuple[tuple[Any, Any], ...] = (
        (2048, "Float"), (2048, "BFloat16"), ("7", "Byte"), (2048, "Unknown"), (2**62, "Long"), (-3, "Float"),
        (None, "Float"), (2.5, ["Float"]), ({}, None),
    )  # fmt: skip
    kernels = [
        kernel(1000 * place, 500, place, "ncclDevKernel_SendRecv", **{"In msg nelems": count, "dtype": dtype})
        for place, (count, dtype) in enumerate(given)
    ]
    trace = read(dumps(document([*kernels, kernel(90_000, 500, 90)])))
    assert trace.work["bytes"].tolist() == [8192, 4096, 7, 0, 0, NONE, NONE, 0, 0, NONE]
    assert trace.work["blocks"].tolist() == [112] * 10


@both
@pytest.mark.parametrize("base_us", [0, BASE_US, 8_796_093_022_209, 1_790_857_026_000_001])
def test_no_nanosecond_is_lost(read: Read, base_us: int) -> None:
    """Above 2^43 us a float has steps of more than a ns, above 2^50 us of more than 100 ns."""
    times = [0, 1, 7, 999, 1_000, 1_001, 123_457, 999_999]
    events = [{**call(0, 0, 1 + place), **at(time, time + 3, base_us)} for place, time in enumerate(times)]
    trace = read(dumps(document(events)))
    assert trace.calls["begin_ns"].tolist() == times
    assert (trace.calls["end_ns"] - trace.calls["begin_ns"]).tolist() == [time + 3 for time in times]


@both
@pytest.mark.parametrize(("text", "expected_ns"), [
    ("12.5", 12_500), ("12", 12_000), ('"12.25"', 12_250), ('"12"', 12_000), ("1.2e1", 12_000), ("12.0004", 12_000),
    ("12.0005", 12_001), ("12.99999", 13_000), ("12000.5E-3", 12_001), ("-12.5", -12_500), ('"soon"', None),
    ("null", None), ("[12]", None), ("true", None), ("1e400", None), ("99999999999999999999", None),
])  # fmt: skip
def test_ways_to_write_a_time(read: Read, text: str, expected_ns: int | None) -> None:
    data = dumps([{**call(0, 0, 1, "cudaFree"), "ts": -50, "dur": 0}, {**call(0, 0, 2), "ts": "HERE", "dur": 1}])
    trace = read(data.replace(b'"HERE"', text.encode()))
    begins = (trace.calls["begin_ns"] - 50_000).tolist()
    assert begins == ([-50_000] if expected_ns is None else [-50_000, expected_ns])
    assert dict(trace.unread) == ({} if expected_ns is not None else {"records with an impossible time": 1})


@both
def test_correlations(read: Read) -> None:
    """They may not fit into 64 bits, and of several calls with one of them, the last before the work submitted it."""
    huge = 2**64 + 5
    events = [
        call(0, 10, huge, "a"), kernel(100, 10, huge, "of a"),
        call(200, 10, 2**63 + 7, "b"), kernel(300, 10, 2**63 + 7, "of b"),
        *(call(1_000 * place, 10, 9, f"c{place}", pid=place, tid=place) for place in range(1, 9)),
        *(kernel(1_000 * place + 500, 10, 9, f"of c{place}") for place in range(1, 9)),
        call(20_000, 10, 10, "late"), kernel(19_990, 10, 10, "of late"),
        kernel(30_000, 10, 77, "of none"), call(30_100, 10, 0, "zero"), kernel(30_200, 10, 0, "of zero"),
    ]  # fmt: skip
    for shuffle in range(4):
        random.Random(shuffle).shuffle(events)
        pairs = dict(submitted(read(dumps(document(events)))))
        assert pairs == {
            "of a": "a", "of b": "b", **{f"of c{place}": f"c{place}" for place in range(1, 9)}, "of late": "late",
            "of none": None, "of zero": None,
        }  # fmt: skip


@both
def test_a_call_inside_another_counts_once(read: Read) -> None:
    driver = {"cat": "cuda_driver"}
    events = [
        call(0, 100, 1, "cudaLaunchKernel"), call(10, 80, 1, "cuLaunchKernel", **driver), kernel(200, 10, 1, "one"),
        call(300, 100, 2, "cudaMalloc"), call(310, 20, 3, "cuMemAlloc", **driver), call(340, 20, 4, "cuMap", **driver),
        kernel(500, 10, 4, "two"),
        call(600, 50, 5, "cudaLaunchKernel"), call(600, 50, 5, "cuLaunchKernel", **driver), kernel(700, 10, 5, "three"),
        call(800, 50, 6, "cudaLaunchKernel"), call(810, 20, 7, "other thread", tid=9),
        call(850, 10, 8, "next"), call(860, 0, 9, "touching"),
    ]  # fmt: skip
    snapshots.same_trace("chrome-nested-calls", read(dumps(document(events))))


@pytest.mark.parametrize(("name", "source", "target"), [
    ("Memcpy HtoD (Pinned -> Device)", "pinned", "device"), ("Memcpy DtoH (Device -> Pageable)", "device", "pageable"),
    ("Memcpy DtoD (Device -> Device)", "device", "device"),
    ("Memcpy HtoA (Managed Static -> Array)", "managed", "device"),
    ("Memcpy PtoP (Unknown -> Device Static)", "unknown", "device"), ("Memcpy HtoD", "unknown", "unknown"),
    ("Memcpy (x -> y", "unknown", "unknown"),
])  # fmt: skip
def test_memories_of_copies(name: str, source: str, target: str) -> None:
    for read in (decoded, scanned):
        row = read(dumps(document([copy(0, 10, 1, name, 8)]))).work[0]
        assert (MEMORIES[row["source"]], MEMORIES[row["target"]]) == (source, target)


def test_a_copy_within_the_hosts_memory_is_no_work_of_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    copies = [
        copy(0, 10, 1, "Memcpy HtoH (Pinned -> Pageable)", 8),
        copy(5, 10, 2, "Memcpy HtoD (Pinned -> Device)", 8),
    ]
    file.write_bytes(dumps(document(copies)))
    assert (
        reading.read(file).work["begin_ns"].tolist() == decoded(dumps(document(copies))).work["begin_ns"][1:].tolist()
    )


@both
def test_nodes_of_graphs(read: Read) -> None:
    """The recording's own number of a node counts; without one, its place in the replay."""
    node = "graph node id"
    events = [
        call(0, 5, 1, "cudaGraphLaunch_v10000"), kernel(30, 5, 1), kernel(10, 5, 1), copy(20, 5, 1, "Memcpy", 8),
        call(40, 5, 2, "cudaGraphLaunch"), kernel(60, 5, 2, **{node: 8_589_934_593}), kernel(50, 5, 2, **{node: 8}),
        call(70, 5, 3), kernel(80, 5, 3, **{node: 0}),
        call(90, 5, 4, "cudaGraphLaunch"), kernel(99, 5, 4),
    ]  # fmt: skip
    trace = read(dumps(document(events)))
    assert trace.work["node"].tolist() == [0, 1, 2, 8, 8_589_934_593, NONE, 0]


@both
def test_waits(read: Read) -> None:
    def sync(begin_ns: int, name: str, correlation: int, **args: Any) -> Event:
        return {
            "ph": "X", "cat": "cuda_sync", "name": name, "pid": 0, "tid": 20, **at(begin_ns, 5),
            "args": {"correlation": correlation, "device": 0, "context": 1, **args},
        }  # fmt: skip

    record = "wait_on_cuda_event_record_corr_id"
    events = [
        call(0, 5, 1, "cudaEventRecord"), call(10, 5, 2, "cudaStreamWaitEvent"),
        sync(11, "Stream Wait Event", 2, stream=24, wait_on_stream=20, **{record: 1}),
        call(20, 9, 3, "cudaEventSynchronize"), sync(21, "Event Sync", 3, stream=-1, wait_on_stream=20, **{record: 1}),
        call(30, 9, 4, "cudaStreamSynchronize"), sync(31, "Stream Sync", 4, stream=20),
        call(40, 9, 5, "cudaDeviceSynchronize"), sync(41, "Context Sync", 5, stream=-1),
    ]  # fmt: skip
    snapshots.same_trace("chrome-waits", read(dumps(document(events))))


@both
def test_old_recordings(read: Read) -> None:
    """Whole us since 1970, categories with capitals, device and stream only as process and thread, "INVALID" calls."""
    begin = 1_661_938_466_265_032
    common = {"ph": "X", "dur": 3, "args": {"correlation": 5}}
    events = [
        {**common, "cat": "Runtime", "name": "INVALID", "pid": 9, "tid": "9", "ts": begin},
        {**common, "cat": "Kernel", "name": "k", "pid": 1, "tid": 7, "ts": begin + 10},
        {**common, "cat": "Memset", "name": "Memset (Device)", "pid": "1", "tid": "stream 7", "ts": begin + 20},
        {**common, "cat": "Operator", "name": "aten::add", "pid": 9, "tid": 9, "ts": begin},
    ]
    snapshots.same_trace("chrome-old", read(dumps({"traceEvents": events})))


@both
def test_records_without_a_time(read: Read) -> None:
    lost = [{**kernel(0, 5, 1), "ts": 0}, {**call(0, 5, 1), "ts": 0.0}, {**host(0, 5, "x"), "ts": 0}]
    trace = read(dumps(document([*sample(), *lost])))
    assert dict(trace.unread) == {"records at time 0": 3}
    assert told(trace) == told(read(dumps(document(sample()))))
    near = read(dumps([{**call(0, 0, 1), "ts": 0, "dur": 3}, {**call(0, 0, 2), "ts": 30, "dur": 3}]))
    assert near.calls["begin_ns"].tolist() == [0, 30_000]


@both
def test_events_without_duration_and_in_two_parts(read: Read) -> None:
    def part(phase: str, time_ns: int, event: Event | None = None, thread: int = 424) -> Event:
        return {**(event or {"pid": 424, "tid": thread}), "ph": phase, **at(time_ns)}

    def begin(time_ns: int, event: Event) -> Event:
        return part("B", time_ns, {key: value for key, value in event.items() if key != "dur"})

    running = {key: value for key, value in call(900, 5, 3, "running").items() if key != "dur"}
    events = [
        part("E", 90), begin(10, host(0, 0, "outer")), begin(20, call(0, 0, 1, "cudaFree")), part("E", 40),
        begin(15, host(0, 0, "elsewhere", thread=5)), part("E", 35, thread=5), part("E", 1, thread=6),
        begin(300, host(0, 0, "never ends")), running,
    ]  # fmt: skip
    snapshots.same_trace("chrome-in-two-parts", read(dumps(document(events))))


@both
def test_processes_and_devices_stay_apart(read: Read) -> None:
    events = [
        call(0, 5, 1, pid=1, tid=1), call(0, 5, 2, pid=2, tid=1), call(3, 5, 3, pid=2, tid=1),
        kernel(10, 5, 1, device=0), kernel(10, 5, 2, device=1), kernel(12, 5, 3, device=70_000),
    ]  # fmt: skip
    snapshots.same_trace("chrome-processes", read(dumps(document(events))))


def test_names_that_are_not_utf8_or_escaped() -> None:
    data = dumps(document([*sample(), call(70_500, 5, 99, "WRONG")]))
    trace = scanned(data.replace(b"WRONG", b"bad \xff\xfe name\xc3"))
    assert "bad �� name�" in trace.names
    assert len(trace.calls) == 6
    path_trace = decoded(data.replace(b"WRONG", rb"tab\t\u00e9 \"q\" \/"))
    assert 'tab\té "q" /' in path_trace.names
    assert told(scanned(data.replace(b"WRONG", rb"tab\t\u00e9 \"q\" \/"))) == told(path_trace)


def layouts() -> dict[str, bytes]:
    value = document(sample())
    last = {key: value[key] for key in [*(key for key in value if key != "traceEvents"), "traceEvents"]}
    first = {"traceEvents": value["traceEvents"], **last}
    backwards = [dict(reversed(event.items())) for event in sample()]
    compact = dumps(value, separators=(",", ":"))
    return {
        "compact": compact, "pretty": dumps(value, indent=4),
        "tabs": dumps(value, indent="\t", separators=(" ,", " : ")).replace(b"\n", b"\r\n"),
        "events last": dumps(last), "events first": dumps(first), "keys sorted": dumps(value, sort_keys=True),
        "keys backwards": dumps({**value, "traceEvents": backwards}),
        "byte order mark": b"\xef\xbb\xbf" + compact, "blank lines": b"\n\n " + compact + b"\n\n",
        "escaped keys": compact.replace(b'"cat"', rb'"c\u0061t"').replace(b'"stream"', rb'"s\u0074ream"'),
        "escaped category": compact.replace(b'"kernel"', rb'"k\u0065rnel"'),
        "escaped phase": compact.replace(b'"X"', rb'"\u0058"'), "unicode names": dumps(value, ensure_ascii=False),
        "deep args": compact.replace(b'"External id":3', b'"Input Dims":[[1,{"a":"]}"}],[]],"grid ":[1]'),
        "empty events": compact.replace(b'"traceEvents":[', b'"traceEvents":[{},{ },'),
        "quoted numbers": re.sub(rb'"(ts|dur|pid|tid|correlation)":(-?[\d.]+)', rb'"\1":"\2"', compact),
    }  # fmt: skip


@pytest.mark.parametrize("layout", layouts())
def test_layouts(layout: str) -> None:
    data, expected = layouts()[layout], told(decoded(dumps(document(sample()))))
    assert told(decoded(data)) == expected
    assert told(scanned(data)) == expected


@pytest.mark.parametrize("change", [
    lambda data: data.replace(b"}, {", b"},\n,{"),
    lambda data: data.replace(b'"bytes": 4096', b'"bytes": 4096, "bandwidth": NaN, "x": -Infinity'),
    lambda data: data.replace(b'"traceName"', b'"more": [NaN], "traceName"'),
    lambda data: data.replace(b'"schemaVersion": 1', b'"schemaVersion": 1,'),
])  # fmt: skip
def test_what_is_almost_json(change: Callable[[bytes], bytes]) -> None:
    data = change(dumps(document(sample())))
    assert whole(data) is None
    assert told(scanned(data)) == told(decoded(dumps(document(sample()))))


def test_bare_array_and_concatenated_gzip(tmp_path: Path) -> None:
    expected = told(decoded(dumps(sample())))
    assert told(scanned(dumps(sample()))) == expected
    data = dumps(sample())
    path = tmp_path / "x.json"  # the name says nothing of the compression
    path.write_bytes(gzip.compress(data[:500]) + gzip.compress(data[500:]))
    assert told(reading.read(path)) == expected
    path.write_bytes(gzip.compress(data) + b"\0" * 100)
    assert told(reading.read(path)) == expected


@pytest.mark.parametrize(("chunk", "rows"), [(1, 4), (7, 1), (97, 2), (1000, 64)])
def test_events_across_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(scanner, "ROWS", rows)
    for layout in ("pretty", "compact", "events last", "quoted numbers"):
        assert told(scanned(layouts()[layout])) == told(decoded(layouts()[layout]))


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the reader small hash tables, because making the large ones takes longer than reading a small trace."""
    monkeypatch.setattr(scanner, "NAME_PLACES", 1 << 10)
    monkeypatch.setattr(scanner, "THREAD_PLACES", 1 << 10)


@pytest.mark.usefixtures("small_tables")
def test_cut_files(tmp_path: Path) -> None:
    """A file cut anywhere gives the records that are whole, says that it is cut, or is refused in words."""
    data = dumps(document(sample()))
    full = scanned(data)
    most = 0
    for end in range(0, len(data), 3):
        try:
            trace = scanned(data[:end])
        except UsageError:
            assert most == 0
            continue
        if end < data.index(b'"traceName"'):
            assert trace.lost["cut tail"] == 1
        rows = len(trace.work) + len(trace.calls) + len(trace.ranges)
        assert rows >= most
        most = rows
    assert most == len(full.work) + len(full.calls) + len(full.ranges)
    path = tmp_path / "x.json.gz"
    packed = gzip.compress(data)
    path.write_bytes(packed[: len(packed) * 3 // 4])
    assert reading.read(path).lost == {"cut tail": 1}
    path.write_bytes(packed[: len(packed) // 2] + bytes(3) + packed[len(packed) // 2 + 3 :])
    with pytest.raises(UsageError, match="its compressed data is damaged"):
        reading.read(path)
    path.write_bytes(gzip.compress(data[:-900]) + packed[:20] + bytes(99))
    assert reading.read(path).lost == {"cut tail": 1}


@pytest.mark.parametrize(
    ("place", "words"),
    [(-6, "its checksum is wrong"), (-2, "its checksum is wrong"), (30, "its compressed data is damaged")],
)
def test_damaged_gzip_is_told_apart_from_a_file_that_is_no_trace(place: int, words: str, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(kineto(steps_of().trace())))
    packed[place] ^= 1
    path = tmp_path / "x.json.gz"
    path.write_bytes(packed)
    with pytest.raises(UsageError, match=words):
        reading.read(path)


@pytest.mark.parametrize("time", ["NaN", "Infinity", '"NaN"', "null", "1e400", "-1e99", "[]"])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_trace_whose_times_are_no_numbers_is_refused_for_that(time: str, key: str, tmp_path: Path) -> None:
    text = re.sub(rf'"{key}": [0-9.]+', f'"{key}": {time}', kineto(steps_of().trace()).decode())
    path = tmp_path / "x.json"
    path.write_text(text)
    if (key, time) == ("dur", "null"):  # none at all
        assert reading.read(path).lost == {"records without a duration": 372}
        return
    with pytest.raises(UsageError, match=r"does not say when a GPU worked: [0-9 ]+ events of it cannot be read"):
        reading.read(path)


def test_a_file_cut_before_any_work_is_called_cut() -> None:
    """PyTorch's profiler writes operators first, so that the first half of a file has no work of a GPU."""
    events = sorted(sample(), key=lambda event: event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    data = dumps(document(events))
    first = data.index(b'"cat": "kernel"')
    with pytest.raises(UsageError, match="is cut off: it ends inside an event") as refused:
        scanned(data[: first // 2])
    assert "copy the file again" in refused.value.next_step
    with pytest.raises(UsageError, match="is cut off, or is no trace"):
        scanned(data[: data.index(b'"traceEvents"')])


def test_damaged_events_are_counted() -> None:
    data = dumps(document(sample()))
    broken = data.replace(b'"cat": "overhead"', b'"cat" "overhead"').replace(b'"name": "aten::copy_"', b'"name" = 5')
    trace = scanned(broken)
    assert trace.unread == {"damaged events": 2}
    assert len(trace.ranges) == 3
    assert len(trace.work) == 6


@both
def test_jax(read: Read) -> None:
    """JAX names devices and streams by metadata, and has no categories."""

    def named(what: str, name: str, pid: int, tid: int = 0) -> Event:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}

    def event(name: str, pid: int, tid: int, ts: float, dur: float, **args: Any) -> Event:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}

    names = [
        named("process_name", "/device:GPU:1 NVIDIA H200", 2), named("thread_name", "Stream #17(Kernel)", 2, 5),
        named("thread_name", "Stream #18(MemcpyH2D)", 2, 6), named("thread_name", "XLA Ops", 2, 9),
        named("process_name", "/host:CPU", 701), named("thread_name", "python", 701, 33),
    ]  # fmt: skip
    events = [
        event("cuLaunchKernel", 701, 33, 10.5, 4, correlation_id="171"),
        event("fusion", 2, 5, 26.345875, 4.8, correlation_id="171", kernel_details="r:32 grid:1280,1,1 block:256,2,1"),
        event("fusion", 2, 9, 26, 5),
        event("MemcpyH2D", 2, 6, 50, 2, correlation_id="172",
              memcpy_details="kind_src:pinned kind_dst:device size:4096 dest:0 async:1"),
        event("train", 701, 33, 5, 60, step_num="7"), event("$a.py:3 f", 701, 33, 6, 50),
        event("PjitFunction(f)", 701, 33, 7, 40),
        {},
    ]  # fmt: skip
    for order in ([*names, *events], [*events, *names]):
        trace = read(dumps({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": order}))
        snapshots.same_trace("chrome-jax", trace)


HIP = [{**call(0, 5, 1, "hipLaunchKernel")}, kernel(10, 5, 1)]
REFUSED = {
    "hip": (dumps({"traceEvents": HIP}), "AMD"),
    "amd": (dumps({**document(sample()), "deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}), "AMD"),
    **{
        f"named {name}": (dumps([{"ph": "X", "name": name, "pid": process, "tid": "1", **at(0, 5)}]), words)
        for name, process, words in (
            ("hipLaunchKernel", "1087077", "AMD"), ("gemm.kd", "6", "AMD"), ("add(HIP_vector_type<int>)", "6", "AMD"),
            ("aten::conv2d", "CUDA functions", "old profiler .* timed whole operators"), ("add", "6", "nothing says"),
        )
    },
    "cpu only": (dumps(document([host(0, 5, "aten::add")])), "no CUDA call"),
    **{
        f"TensorFlow 1, {device}": (
            dumps([{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{device} Compute"}},
                   {"ph": "X", "name": "Conv2D", "pid": 1, "tid": 0, **at(0, 5)}]),
            f"timeline of TensorFlow 1 on {where}",
        )
        for device, where in (
            ("/device:GPU:0/stream:15", "a GPU"), ("/job:localhost/replica:0/task:0/cpu:0", "the CPU alone")
        )
    },
    "no events": (dumps(document([])), "no CUDA call"),
    "other json": (b'{"a": [1, 2, 3]}', "no trace"),
    "array of numbers": (b"[[1, 2], [3, 4]]", "2 events of it cannot be read"),
    "events of no list": (b'{"traceEvents": {"a": 1}}', "no trace"),
    "empty": (b"", "it is empty"), "text": (b"hello", "no known form"), "number": (b"12", "no known form"),
    "zeros": (bytes(5000), "no known form"), "pointer": (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
    "empty gzip": (gzip.compress(b""), "it is empty"),
    "gzip of text": (gzip.compress(b"hello"), "no known form"),
    "gzip of sqlite": (gzip.compress(b"SQLite format 3\0" + bytes(99)), "compressed"),
    "deep": (b'{"traceEvents": ' + b"[" * 200_000, "is cut off"),
    "deep value": (b'{"a": ' + b'{"a":' * 200_000 + b"}" * 200_000 + b"}", "no trace"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_words(tmp_path: Path, case: str) -> None:
    data, words = REFUSED[case]
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=words) as raised:
        reading.read(path)
    assert raised.value.next_step
    assert "\n" not in raised.value.cause + raised.value.next_step


def test_without_a_library_and_a_compiler_a_cut_file_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "library", lambda source: None)
    path = tmp_path / "x.json"
    path.write_bytes(dumps(document(sample())))
    monkeypatch.setattr(chrome, "SMALL_BYTES", 100)
    assert reading.read(path).work.size, "whole by the decoder"
    path.write_bytes(dumps(document(sample()))[:-200])
    with pytest.raises(UsageError, match="cannot be read: no C compiler works here") as refused:
        reading.read(path)
    assert "install a C compiler" in refused.value.next_step


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", tmp_path, tmp_path / "absent.json", Path("/dev/zero")):
        with pytest.raises(UsageError, match="cannot be read"):
            reading.read(path)


def test_other_formats_go_to_their_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    empty = scanned(dumps(document(sample())))
    for one in ("nsys", "xplane"):
        monkeypatch.setattr(
            getattr(reading, one), "read", lambda path, one=one: asked.append((one, path.name)) or empty
        )
    for name, data in (
        ("report.json", b"SQLite format 3\0" + bytes(100)),  # the content counts
        ("host.xplane.pb", b"\x0a\x7b\x08\x01"),
        ("profile", b"\x0a\x7b\x08\x01"),
        ("packed.gz", gzip.compress(b"\x0a\x7b\x08\x01")),
    ):
        (tmp_path / name).write_bytes(data)
        reading.read(tmp_path / name)
    found = [("nsys", "report.json"), ("xplane", "host.xplane.pb"), ("xplane", "profile"), ("xplane", "packed.gz")]
    assert asked == found
    report = tmp_path / "a b.nsys-rep"
    report.write_bytes(b"NVNSYS")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="nsys is not found") as raised:
        reading.read(report)
    assert "nsys export -t sqlite" in raised.value.next_step
    program = tmp_path / "nsys"
    program.write_text('#!/bin/sh\nprintf "%s" "$6" > "$5"\n')
    program.chmod(0o755)
    reading.read(report)
    assert asked[-1] == ("nsys", "report.sqlite")
    program.write_text("#!/bin/sh\necho first >&2; echo it is too old >&2; exit 1\n")
    with pytest.raises(UsageError, match="it is too old"):
        reading.read(report)


def test_rows_beyond_the_limits_are_counted() -> None:
    limits = {**dict.fromkeys(ROW_LIMITS, 9), "work": 4, "call": 3, "annotation": 1, "operator": 1, "python": 0}
    for read in ("whole", "scanned"):
        reader = ChromeReader("x.json", limits)
        data = dumps(document(sample()))
        if read == "whole":
            assert chrome.read_whole(data, reader)
        else:
            scanner.scan_trace(TraceStream(io.BytesIO(data)), reader)
        trace = reader.finish()
        assert [len(table) for table in (trace.work, trace.calls, trace.ranges)] == [4, 3, 3]
        assert trace.unread == {"work": 2, "call": 2, "operator": 1, "python": 1}


def test_names_beyond_the_limits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microbench.traces.collector.MAX_NAMES", 3)
    collector = Collector(most=10)
    assert [collector.name(name) for name in ("a", "b", "a", "c", "d", "b", "e")] == [0, 1, 0, 2, NONE, 1, NONE]
    assert collector.unread == {"names": 2}


READ_BOMB = """
import pathlib, sys
from microbench.core.errors import UsageError
from microbench.traces import chrome, reading, scanner

chrome.SMALL_BYTES, scanner.MAX_VALUE_BYTES = 1 << 20, 16 << 20
try:
    reading.read(pathlib.Path(sys.argv[1]))
except UsageError as error:
    print(error.cause)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(line.split()[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("filling", [b" ", b"{},", b'"', b"9", b'{"name":"'])
def test_memory_does_not_grow_with_a_bomb(tmp_path: Path, filling: bytes) -> None:
    """A small file may unpack to any size; here to 128 MB, of which at most a few chunks are in memory."""
    path = tmp_path / "x.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(128):
            file.write(filling * ((1 << 20) // len(filling)))
    assert path.stat().st_size < 4e6
    result = subprocess.run([sys.executable, "-c", READ_BOMB, path], capture_output=True, text=True, check=True)
    cause, peak_kb = result.stdout.splitlines()
    assert "cut off" in cause
    assert int(peak_kb) < 260_000


def repeats_a_key(data: bytes) -> bool:
    """True if an object has a key twice: which of the values counts, JSON leaves to its readers."""
    repeated = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.append(len(dict(found)) < len(found))
        return dict(found)

    json.loads(data.decode("utf-8-sig", "replace"), object_pairs_hook=pairs)
    return any(repeated)


def read_both_ways(data: bytes) -> Trace | None:
    """The trace if both ways read one; they tell the same, also of what they refuse."""
    results: list[Any] = []
    traces: list[Trace | None] = []
    for read in (whole, scanned):
        try:
            traces.append(read(data))
            results.append(traces[-1] and told(traces[-1]))
        except UsageError as error:
            results.append(error.cause)
    assert results[0] in (None, results[1]) or repeats_a_key(data), data
    return traces[0] if len(traces) == 2 else None


@pytest.mark.parametrize(("operator", "why"), [
    ("aten::mkldnn_convolution", "aten::mkldnn_convolution runs on the CPU"),
    ("aten::cudnn_convolution", "nothing says what the GPU did"),
])  # fmt: skip
def test_a_trace_of_the_cpu_alone_says_whether_the_model_ran_there(operator: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        scanned(dumps(document([host(1000, 5000, operator)])))

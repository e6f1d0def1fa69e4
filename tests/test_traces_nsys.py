"""Tests of the reader of Nsight Systems' exports: what it reads, what it never reads, and what damaged files get."""

import pickle
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import snapshots
from make_fit import make_fit
from nsys_export import (
    GLOBAL_PROCESS,
    GLOBAL_THREAD,
    SCHEMA,
    SECRET,
    Rows,
    call,
    kernel,
    small,
    work,
    write,
    write_large,
)

from microbench.core.errors import UsageError
from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.health import checks
from microbench.traces import nsys, tables
from microbench.traces.trace import NONE, RANGE_KINDS, WORK_KINDS, Table, Trace, migrates


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("nsys") / "small.sqlite", small())


@pytest.fixture(scope="module")
def trace(export: Path) -> Trace:
    return nsys.read(export)


def names(trace: Trace, table: Table) -> list[str]:
    return [trace.names[place] for place in table["name"]]


def test_every_field(trace: Trace) -> None:
    snapshots.same_trace("nsys", trace)


def test_nothing_of_the_environment_or_the_command_line_is_kept(export: Path, trace: Trace) -> None:
    for kept in (pickle.dumps(trace), repr(trace).encode(), str(vars(type(trace))).encode()):
        assert SECRET.encode() not in kept
    assert SECRET.encode() in export.read_bytes()


def test_sqlite_refuses_to_read_the_environment(export: Path) -> None:
    with closing(nsys._Export(export)) as opened:
        opened.prepare()
        for table in ("META_DATA_CAPTURE", "PROCESSES", "ProcessStreams"):
            with pytest.raises(sqlite3.DatabaseError, match=r"prohibited|not authorized"):
                opened._sql.execute(f"SELECT * FROM {table}").fetchall()


def test_an_error_says_nothing_of_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path / "view.sqlite", small(), then="CREATE VIEW x AS SELECT * FROM META_DATA_CAPTURE")
    with pytest.raises(UsageError) as raised:
        nsys.read(path)
    assert SECRET not in str(raised.value) + raised.value.next_step


def test_a_part_is_read_between_two_times(export: Path) -> None:
    part = nsys.read(export, begin_ns=20_000, end_ns=40_000)
    assert part.calls["begin_ns"].tolist() == [20_000, 30_000, 35_000]
    assert part.work["call"].tolist() == [0, 1, 1]
    assert len(nsys.read(export, begin_ns=65_000).calls) == 1


def test_of_a_long_recording_the_middle_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_large(tmp_path / "long.sqlite", 0.002)
    whole = nsys.read(tmp_path / "long.sqlite")
    monkeypatch.setattr(nsys, "MOST_BYTES", 400_000)
    middle = nsys.read(tmp_path / "long.sqlite")
    assert 0 < len(middle.work) < len(whole.work) / 2
    left_out = sum(len(getattr(whole, name)) - len(getattr(middle, name)) for name in ("work", "calls", "ranges"))
    assert middle.unread["rows outside of the middle that was read"] == pytest.approx(left_out, rel=0.05)
    center = (whole.work["begin_ns"][0] + whole.work["begin_ns"][-1]) / 2
    assert middle.work["begin_ns"][0] < center < middle.work["begin_ns"][-1]


def test_a_table_or_column_less_is_no_error(tmp_path: Path) -> None:
    for place, table in enumerate(SCHEMA):
        schema = {name: columns for name, columns in SCHEMA.items() if name != table}
        rows = {name: rows for name, rows in small().items() if name != table}
        assert isinstance(nsys.read(write(tmp_path / f"{place}.sqlite", rows, schema)), Trace)


@pytest.mark.parametrize("table", [
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
])  # fmt: skip
def test_an_older_export_without_a_column_is_read_all_the_same(table: str, tmp_path: Path) -> None:
    columns = [column.split()[0] for column in SCHEMA[table].split(", ")]
    for place, gone in enumerate(columns):
        schema = SCHEMA | {table: ", ".join(f"{column} INTEGER" for column in columns if column != gone)}
        rows = small() | {
            table: [{name: value for name, value in row.items() if name != gone} for row in small()[table]]
        }
        trace = nsys.read(write(tmp_path / f"{place}.sqlite", rows, schema))
        if gone in ("start", "end"):
            continue
        assert len(trace.work) == 8
        if gone == "globalPid" and table.endswith("KERNEL"):
            assert trace.work["call"].tolist().count(NONE) >= 1


def test_without_processes_of_kernels_a_lone_process_is_theirs(tmp_path: Path) -> None:
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(1_000, 5)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(2_000, 5, globalPid=None)],
    }
    assert nsys.read(write(tmp_path / "one.sqlite", rows)).work["call"].tolist() == [0]


@pytest.mark.parametrize("value", ["text", b"blob", None, 1.5, float("inf"), 1 << 62, -1, -(1 << 63), (1 << 63) - 1])
def test_odd_values_where_numbers_should_be(value: object, tmp_path: Path) -> None:
    odd = [
        {**kernel(1_000, 1), name: value}
        for name in ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "gridX",
                     "blockX", "graphNodeId")
    ]  # fmt: skip
    copies = [work(3_000, 1, bytes=value, copyKind=value, srcKind=value, dstKind=value)]
    waits = [work(3_000, value, streamId=value, syncType=3, eventId=value, eventSyncId=value)]
    calls = [call(500, 1), call(600, value), call(700, 2, globalTid=value), call(800, 3, nameId=value)]
    ranges = [{"start": 10, "end": 20, "eventType": 59, "text": value, "textId": value, "globalTid": value}]
    schema = {table: columns.replace("INTEGER", "") for table, columns in SCHEMA.items()}
    rows = {
        "StringIds": [{"id": 2, "value": value}], "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(900, 1), *odd],
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": waits, "NVTX_EVENTS": ranges,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls, "TARGET_INFO_GPU": [{"id": value, "name": value}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": value}],
        "ThreadNames": [{"globalTid": value, "nameId": value}],
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": value}],
        "DIAGNOSTIC_EVENT": [{"text": value, "globalPid": value}],
    }  # fmt: skip
    trace = nsys.read(write(tmp_path / "odd.sqlite", rows, schema))
    sound(trace)
    (good,) = trace.work[trace.work["begin_ns"] == 900]
    assert trace.calls[good["call"]]["begin_ns"] == 500


@pytest.mark.parametrize(("texts", "why"), [
    (
        ["No CUDA events collected. Does the process use CUDA?"],
        "the process made no CUDA call, or ended with an error before one",
    ),
    (
        ["Installed CUDA driver version (13.1) is not supported by this build", "No CUDA events collected. Does"],
        "this Nsight Systems is too old for the driver, 13.1: take a newer one",
    ),
    (["CUDA profiling might have not been started correctly."], ""),  # it has recorded some
    ([], ""),
])  # fmt: skip
def test_an_export_without_cuda_says_why(texts: list[str], why: str, tmp_path: Path) -> None:
    rows: Rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(500, 1)],
        "DIAGNOSTIC_EVENT": [{"text": text, "globalPid": GLOBAL_PROCESS} for text in texts],
    }
    trace = nsys.read(write(tmp_path / "empty.sqlite", rows))
    with pytest.raises(UsageError, match=f"has no work of a GPU{f': {why}' if why else ''}\nnext"):
        diagnose(trace, make_fit())
    whole = nsys.read(write(tmp_path / "whole.sqlite", {**rows, "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(600, 1)]}))
    assert not whole.lost


@pytest.mark.parametrize(("kernels", "text", "forbids"), [
    (50, "Not all CUDA events might have been collected.", ()),
    (49, "Not all CUDA events might have been collected.", ()),
    (40, "Not all CUDA events might have been collected.", ("idle time", "prediction")),
    (50, "300 CUDA events were lost.", ("idle time", "prediction")),
])  # fmt: skip
def test_records_that_may_be_lost_forbid_nothing_where_launches_have_their_work(
    kernels: int, text: str, forbids: tuple[str, ...], tmp_path: Path
) -> None:
    rows: Rows = {
        "StringIds": small()["StringIds"],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(10_000 * number, number) for number in range(1, 51)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(10_000 * number + 7_000, number) for number in range(1, kernels + 1)],
        "DIAGNOSTIC_EVENT": [{"text": text, "globalPid": GLOBAL_PROCESS}],
    }
    found = checks(nsys.read(write(tmp_path / "lost.sqlite", rows)), None)
    assert [check.forbids for check in found if check.name == "lost: CUDA events"] == [forbids]


def test_launches_that_fail_are_not_called_lost(tmp_path: Path) -> None:
    rows: Rows = {
        "StringIds": small()["StringIds"],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            *(call(10_000 * number, number, returnValue=222) for number in range(1, 6)),
            call(60_000, 6, 5, returnValue=1), call(70_000, 7, 5),
        ],
    }  # fmt: skip
    trace = nsys.read(write(tmp_path / "none.sqlite", rows))
    assert names(trace, trace.calls) == ["cudaLaunchKernel (error 222)"] * 5 + ["cudaMemcpyAsync"] * 2
    with pytest.raises(UsageError, match=r"check its errors: cudaLaunchKernel \(error 222\)"):
        diagnose(trace, make_fit())
    copied = {**rows, "CUPTI_ACTIVITY_KIND_MEMCPY": [work(75_000, 7, bytes=4096, copyKind=1, srcKind=0, dstKind=2)]}
    (failed, *_) = checks(nsys.read(write(tmp_path / "failed.sqlite", copied)), None)
    assert failed.why == "5 launches failed: cudaLaunchKernel (error 222)"


def test_pages_that_a_prefetch_moves_are_told_from_those_that_are_touched(tmp_path: Path) -> None:
    pages = [
        work(10_000 * cause, 0, bytes=4096, copyKind=kind, migrationCause=cause or None)
        for kind, cause in ((1, 0), (11, 1), (11, 2), (12, 3), (12, 1))
    ]
    trace = nsys.read(write(tmp_path / "pages.sqlite", {"CUPTI_ACTIVITY_KIND_MEMCPY": pages}))
    assert [int(migrates(trace, way).sum()) for way in ("", "Memcpy", "Memcpy DtoH")] == [4, 2, 1]


def test_work_belongs_to_the_last_call_of_its_correlation_before_it(tmp_path: Path) -> None:
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(begin, 1) for begin in (500, 700, 900)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(begin, 1) for begin in (400, 600, 950)],
    }
    assert nsys.read(write(tmp_path / "again.sqlite", rows)).work["call"].tolist() == [0, 0, 2]


def test_a_call_inside_another_counts_once(tmp_path: Path) -> None:
    """Nsight Systems may record one call twice, and the runtime's and the driver's call of one launch."""
    inner, other = {"start": 10_500, "end": 14_000}, {"globalTid": GLOBAL_THREAD + 1}
    rows = small() | {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            call(10_500, 1) | inner, call(10_000, 1), call(20_000, 2), call(20_100, 3) | {"end": 21_000},
            call(30_000, 4), call(30_000, 4) | {"end": 31_000}, call(40_000, 5), call(40_100, 6, **other),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(16_000, 1), kernel(26_000, 3), kernel(36_000, 4), kernel(46_000, 6)],
    }  # fmt: skip
    del rows["CUPTI_ACTIVITY_KIND_MEMCPY"], rows["CUPTI_ACTIVITY_KIND_MEMSET"], rows["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"]
    trace = nsys.read(write(tmp_path / "nested.sqlite", rows))
    assert trace.calls["begin_ns"].tolist() == [10_000, 20_000, 30_000, 40_000, 40_100]
    assert trace.calls["end_ns"].tolist() == [15_000, 25_000, 35_000, 45_000, 45_100]
    assert trace.work["call"].tolist() == [0, 1, 2, 4]


def test_mpi_and_long_calls_of_the_operating_system_are_host_code_where_no_cuda_is_called(tmp_path: Path) -> None:
    schema = SCHEMA | {
        "MPI_OTHER_EVENTS": "start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER",
        "OSRT_API": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL",
    }
    rows = small() | {"CUPTI_ACTIVITY_KIND_RUNTIME": [call(10_000, 1), call(90_000, 1)], "NVTX_EVENTS": []}
    rows["StringIds"] = [*rows["StringIds"], {"id": 901, "value": "MPI_Waitall"}, {"id": 902, "value": "fread"}]
    rows["MPI_OTHER_EVENTS"] = [{"start": 20_000, "end": 24_000, "globalTid": GLOBAL_THREAD, "textId": 901}]
    reads = [(12_000, 30_000, 0), (30_000, 50_000, 0), (60_000, 65_000, 0), (30_000, 50_000, 1)]
    rows["OSRT_API"] = [
        {"start": start, "end": end, "globalTid": GLOBAL_THREAD + other, "nameId": 902} for start, end, other in reads
    ]
    trace = nsys.read(write(tmp_path / "mpi.sqlite", rows, schema))
    own = trace.ranges[trace.ranges["kind"] == RANGE_KINDS.index("operator")]
    assert [(trace.names[one["name"]], int(one["begin_ns"])) for one in own] == [
        ("MPI_Waitall", 20_000), ("fread (libc)", 30_000),
    ]  # fmt: skip


def test_a_zero_length_and_times_of_zero(tmp_path: Path) -> None:
    rows = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(5, 1, end=5), kernel(0, 1, end=0), kernel(9, 1, end=8)]}
    trace = nsys.read(write(tmp_path / "zero.sqlite", rows))
    assert trace.work["begin_ns"].tolist() == [5]
    assert trace.unread == {"rows without times in CUPTI_ACTIVITY_KIND_KERNEL": 2}


ENDLESS = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"


@pytest.mark.parametrize("sql", [
    f"CREATE VIEW CUDNN_EVENTS AS {ENDLESS}", f"CREATE VIEW other AS {ENDLESS}",
    "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
    "CREATE VIRTUAL TABLE CUBLAS_EVENTS USING fts5(start, end)", "CREATE VIRTUAL TABLE other USING fts5(text)",
])  # fmt: skip
def test_views_triggers_and_virtual_tables_are_refused(sql: str, tmp_path: Path) -> None:
    path = write(tmp_path / "view.sqlite", small(), then=sql)
    with pytest.raises(UsageError, match="views, triggers or virtual tables"):
        nsys.read(path)


def test_a_generated_column_is_not_computed(tmp_path: Path) -> None:
    schema = SCHEMA | {
        "CUDNN_EVENTS": "start INTEGER, end INTEGER GENERATED ALWAYS AS (start + length(zeroblob(1 << 29)))"
    }
    path = write(tmp_path / "generated.sqlite", small() | {"CUDNN_EVENTS": [{"start": 1}]}, schema)
    assert isinstance(nsys.read(path), Trace)


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    for content in (b"", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(4096), b"{}" * 4096):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="no usable export"):
            nsys.read(path)
    path.unlink()
    with pytest.raises(UsageError, match="none of the tables"):
        nsys.read(write(path, {}, {"other": "a INTEGER"}))
    with pytest.raises(UsageError, match="not a file"):
        nsys.read(tmp_path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        nsys.read(tmp_path / "absent.sqlite")


def test_a_name_with_odd_letters_in_its_path(tmp_path: Path) -> None:
    assert len(nsys.read(write(tmp_path / "a?b#c%20 ü.sqlite", small())).calls) == 8


def test_many_names_share_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_NAMES", 10)
    ranges = [{"start": place, "end": place + 1, "eventType": 59, "text": f"step {place}"} for place in range(100)]
    words = [{"start": 200 + n, "end": 300, "eventType": 59, "text": "x" * (n + 1)} for n in range(100)]
    trace = nsys.read(write(tmp_path / "names.sqlite", {"NVTX_EVENTS": [*ranges, *words]}))
    assert len(trace.ranges) == 200
    assert len(trace.names) <= 22
    assert "step #" in trace.names


def sound(trace: Trace) -> None:
    """Assert that the tables of a trace can be used without another look."""
    assert len(trace.threads) < 1 << 31
    for table, of_calls in (
        (trace.work, ("call",)),
        (trace.calls, ()),
        (trace.ranges, ()),
        (trace.syncs, ("call", "on_call")),
    ):
        assert (np.diff(table["begin_ns"]) >= 0).all()
        assert (table["end_ns"] >= table["begin_ns"]).all()
        for column in of_calls:
            assert ((table[column] >= NONE) & (table[column] < len(trace.calls))).all()
        if "name" in (table.dtype.names or ()):
            assert ((table["name"] >= 0) & (table["name"] < len(trace.names))).all()
        if "thread" in (table.dtype.names or ()):
            assert ((table["thread"] >= 0) & (table["thread"] < len(trace.threads))).all()
    assert ((trace.work["kind"] >= 0) & (trace.work["kind"] < len(WORK_KINDS))).all()
    assert ((trace.ranges["kind"] >= 0) & (trace.ranges["kind"] < len(RANGE_KINDS))).all()


def test_a_forged_tree_of_endless_rows_is_refused_soon(tmp_path: Path) -> None:
    rows = {"CUPTI_ACTIVITY_KIND_RUNTIME": [call(1000 * place, place + 1) for place in range(5_000)]}
    path = write(tmp_path / "forged.sqlite", rows)
    with closing(sqlite3.connect(path)) as sql:
        (root,) = sql.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_RUNTIME'"
        ).fetchone()
    content = bytearray(path.read_bytes())
    page = bytes(content[(root - 1) * 4096 : root * 4096])
    assert page[0] == 5  # an interior page, which points at others
    pages = [root, *(len(content) // 4096 + 1 + level for level in range(12))]
    content += page * 12
    for here, below in pairwise(pages):  # every pointer of a page leads to the same page below
        start = (here - 1) * 4096
        for cell in range(int.from_bytes(page[3:5])):
            place = start + int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell])
            content[place : place + 4] = below.to_bytes(4)
        content[start + 8 : start + 12] = below.to_bytes(4)
    content[28:32] = (len(content) // 4096).to_bytes(4)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="more rows than it has room for"):
        nsys.read(path)


def test_keys_of_processes_are_apart() -> None:
    assert GLOBAL_THREAD & ~0xFFFFFF == GLOBAL_PROCESS

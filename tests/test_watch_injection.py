"""Tests of the recorder's library: its rows, and programs that are not Python, which it records without harm."""

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from c_library import TWIN, compiled
from test_diagnose import costs, line_of
from test_traces_nsys import sound
from watched import CELLS_OF_A_STEP, CUPTI, NotPython, Place, alone, cells_of, not_recorded, only

from microbench.core import c_library
from microbench.diagnosis.diagnosis import diagnose
from microbench.recorder import cells, recorder
from microbench.recorder.program import SOURCE, How
from microbench.traces.reading import read
from microbench.traces.trace import NONE

# Rows

RECORD_BYTES = {
    cells.KERNEL: 216, cells.MEMCPY: 96, cells.PEER_MEMCPY: 96, cells.MEMSET: 88, cells.OVERHEAD: 56, 60: 48,
}  # fmt: skip
# Where a record has the fields of a row, and their types (cupti_activity.h). Products and sums are made below.
COPY = {"size": (8, "<u8"), "begin_ns": (16, "<i8"), "end_ns": (24, "<i8"), "place": (32, "<u4"), "stream": (40, "<u4")}
OWN = {"correlation": (44, "<u4"), "node": (64, "<u8"), "graph": (72, "<u4")}
PEER = {"correlation": (60, "<u4"), "node": (72, "<u8"), "graph": (80, "<u4")}
FLAGS = {"detail": (4, "<u1"), "flags": (5, "<u2")}
FIELDS = {
    cells.KERNEL: {
        "begin_ns": (16, "<i8"), "end_ns": (24, "<i8"), "place": (40, "<u4"), "stream": (48, "<u4"),
        "correlation": (92, "<u4"), "name": (104, "<u8"), "node": (144, "<u8"), "graph": (156, "<u4"),
    },
    cells.MEMCPY: COPY | OWN | FLAGS,
    cells.PEER_MEMCPY: COPY | PEER | FLAGS,
    cells.MEMSET: COPY | OWN | {"flags": (50, "<u2")},
    cells.OVERHEAD: {"flags": (4, "<u4"), "place": (16, "<u4"), "begin_ns": (24, "<i8"), "end_ns": (32, "<i8")},
}  # fmt: skip
ROW = np.dtype(list(cells.ROW))
REQUESTED = ctypes.CFUNCTYPE(None, *[ctypes.POINTER(ctypes.c_size_t)] * 3)
COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
# Of recorder.c
MOST_CALLS, NAME_SLOTS, TRIES, BUFFER_BYTES, MANY_BYTES, MOST_BYTES = 1200, 1 << 16, 64, 1 << 18, 256 << 20, 1 << 30
RECORDED, LAUNCHES, REPLAYS, WAITS_FOR_STREAM, STREAM_WAITS, RECORDS_EVENT = 32, 64, 128, 3, 2, 8


class Parts:
    """The recorder's functions by themselves. The stand-in gives the records and makes the calls."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows"
        self.parts = compiled(TWIN / "recorder_parts.c", folder, "-Wall", "-Werror", "-pthread")
        self.cupti = compiled(TWIN / "cupti_stand_in.c", folder, "-pthread")

    def __enter__(self) -> int:
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return self.file

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def kept(self, records: bytes, ending: bool, first: int = 0, last: int = 0) -> Any:
        """The rows of records. A window began with the call ``first``, and a pause counts work of calls to ``last``."""
        with self as file:
            following = ctypes.cast(self.cupti.cuptiActivityGetNextRecord, ctypes.c_void_p)
            size = ctypes.c_size_t(len(records))
            self.parts.keep_in(
                file, following, records, size, int(ending), ctypes.c_uint64(first), ctypes.c_uint64(last)
            )
        return np.fromfile(self.path, ROW)

    def calls(self, actions: bytes, submit: Callable[[], None], last: int = 0) -> Any:
        """The rows of the calls of a program; ``actions`` says what is done about each call."""
        with self as file:
            names = ("cuptiGetTimestamp", "cuptiGetStreamIdEx")
            functions = [ctypes.cast(getattr(self.cupti, name), ctypes.c_void_p) for name in names]
            self.parts.begin_calls(file, *functions, actions, ctypes.c_uint64(last))
            subscriber = ctypes.c_void_p()
            assert self.cupti.cuptiSubscribe(ctypes.byref(subscriber), self.parts.called_by_name, None) == 0
            for domain, number in (divmod(place, MOST_CALLS) for place, action in enumerate(actions) if action):
                self.cupti.cuptiEnableCallback(1, subscriber, domain + 1, number)
            submit()
            self.cupti.cuptiUnsubscribe(subscriber)
            self.parts.end_calls()
        return np.fromfile(self.path, ROW)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return Parts(tmp_path_factory.mktemp("parts"))


def records_of_the_stand_in(library: ctypes.CDLL) -> bytes:
    """The records of steps and of one of each kind. The last kernel of the latter has not ended."""
    memory, found = ctypes.create_string_buffer(1 << 20), []

    def request(buffer: Any, size: Any, most: Any) -> None:
        buffer[0], size[0], most[0] = ctypes.addressof(memory), len(memory), 0

    def complete(context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        found.append(ctypes.string_at(buffer, valid))

    given = REQUESTED(request), COMPLETED(complete)
    library.cuptiActivityRegisterCallbacks(*given)
    for kind in FIELDS:
        library.cuptiActivityEnable(kind)
    library.stand_in_steps(5, 20)
    library.stand_in_kinds()
    library.cuptiActivityFlushAll(1)
    for kind in FIELDS:
        library.cuptiActivityDisable(kind)
    (whole,) = found
    return whole


def expected(records: list[bytes], ending: bool) -> Any:
    """The rows that CUPTI's header says."""
    rows = []
    for record in records:
        kind = int.from_bytes(record[:4], "little")
        if kind not in FIELDS:
            continue
        row = np.zeros((), ROW)
        row["kind"] = kind
        for name, (place, form) in FIELDS[kind].items():
            row[name] = np.frombuffer(record, form, 1, place)[0]
        if kind == cells.KERNEL:
            grid, block = np.frombuffer(record, "<u4", 6, 52).reshape(2, 3).astype(object)
            row["size"] = grid.prod() % (1 << 64)
            row["flags"] = block.prod() % (1 << 32)
        if not (ending and row["end_ns"] == 0):
            rows.append(row)
    return np.array(rows)


def split(records: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(records):
        found.append(records[at : at + RECORD_BYTES[int.from_bytes(records[at : at + 4], "little")]])
        at += len(found[-1])
    return found


@pytest.mark.parametrize(("ending", "kernels"), [(False, 105), (True, 104)])
def test_the_records_of_a_program_become_rows(parts: Parts, ending: bool, kernels: int) -> None:
    records = records_of_the_stand_in(parts.cupti)
    found = parts.kept(records, ending)
    rows = found[found["kind"] != cells.NAME]
    assert (rows == expected(split(records), ending)).all()
    assert np.count_nonzero(rows["kind"] == cells.KERNEL) == kernels
    assert set(found["kind"]) == {*FIELDS, cells.NAME}


@pytest.mark.parametrize("seed", range(4))
def test_any_records_become_rows(parts: Parts, seed: int) -> None:
    chance = random.Random(seed)
    stride = NAME_SLOTS << 3  # so far apart, names want the same slot of the table
    texts = ctypes.create_string_buffer((TRIES + 8) * stride + 20_001)
    lengths = [0, 1, 47, 48, 49, 96, 16_383, 16_384, 20_000, *[5] * TRIES]
    for place, length in enumerate(lengths):
        ctypes.memset(ctypes.addressof(texts) + place * stride, ord("a") + place % 26, length)
    names = {ctypes.addressof(texts) + place * stride: length for place, length in enumerate(lengths)}
    made = []
    for _ in range(9000 if seed < 1 else 300):
        kind = chance.choice(list(RECORD_BYTES))
        record = bytearray(kind.to_bytes(4, "little") + chance.randbytes(RECORD_BYTES[kind] - 4))
        for end in (16, 24, 32):  # where records of some kind end
            if chance.random() < 0.2 and end + 8 <= len(record):
                record[end : end + 8] = bytes(8)
        if kind == cells.KERNEL:
            record[104:112] = chance.choice([0, *names]).to_bytes(8, "little")
        made.append(bytes(record))
    for ending in (False, True):
        found = parts.kept(b"".join(made), ending)
        rows = found[found["kind"] != cells.NAME]
        assert (rows == expected(made, ending)).all()
        assert len(rows) > len(made) // 2
        told: dict[int, int] = {}
        for cell in found[found["kind"] == cells.NAME].view("S64").tolist():
            _, part, length, key, text = cells.TEXT.unpack(cell.ljust(64, b"\0"))
            told[key] = length
            letter = ctypes.string_at(key, 1)
            assert text.rstrip(b"\0") == letter * min(48, length - 48 * part)
        used = set(rows["name"][rows["kind"] == cells.KERNEL].tolist()) - {0}
        assert told == {key: min(names[key], cells.LONGEST_TEXT) for key in told}
        assert len({key for key in used if names[key]} - told.keys()) <= max(0, len(used) - TRIES)


def test_work_of_calls_in_a_pause_is_left_out(parts: Parts) -> None:
    records = records_of_the_stand_in(parts.cupti)
    whole, overhead = (expected(split(records), ending=False), cells.OVERHEAD)
    kernels = whole[whole["kind"] == cells.KERNEL]
    first, last = (int(kernels["correlation"][place]) for place in (10, 40))
    found = parts.kept(records, False, first, last)
    rows = found[found["kind"] != cells.NAME]
    assert (rows == whole[(whole["correlation"] <= last) | (whole["kind"] == overhead)]).all()
    assert parts.parts.finished_kernels() == 31, "of this window"
    assert len(parts.kept(records, False, first)) > len(rows)
    assert parts.parts.finished_kernels() == len(kernels) - 10 - 3, "those of graphs do not count"


def test_work_of_a_pause_that_comes_later_is_left_out(parts: Parts) -> None:
    """A recording keeps copies on in pauses, and CUPTI may hand them over when the next window has begun."""
    records = records_of_the_stand_in(parts.cupti)
    whole = parts.kept(records, False)
    whole = whole[(whole["kind"] != cells.NAME) & (whole["kind"] != cells.OVERHEAD)]
    first, last = (int(whole["correlation"][place]) for place in (10, 40))
    set_pause = parts.parts.set_pause
    set_pause.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    try:
        for behind in (last, 0):
            set_pause(first, behind)
            found = parts.kept(records, False)
            found = found[(found["kind"] != cells.NAME) & (found["kind"] != cells.OVERHEAD)]
            kept = (whole["correlation"] <= first) | ((whole["correlation"] >= last) & (behind > 0))
            assert found["correlation"].tolist() == whole["correlation"][kept].tolist()
            assert len(found) < len(whole)
    finally:
        set_pause(0, 0)


def test_a_pause_ends_at_the_first_call_of_any_thread_that_is_no_wait(parts: Parts) -> None:
    parts.parts.first_behind_pause.restype = ctypes.c_uint64
    kept = {number: ctypes.c_uint64() for number in (60, 100, 101)}

    def call(number: int, correlation: int, *leaves: int) -> None:
        for one in leaves:
            parts.parts.enter_or_leave(number, correlation, one, ctypes.byref(kept[correlation]))

    def submit() -> None:
        parts.parts.set_pause(ctypes.c_uint64(50), ctypes.c_uint64(0))
        call(131, 60, 0, 1)
        assert parts.parts.first_behind_pause() == 0, "a wait may have begun in the pause"
        call(211, 100, 0)
        call(211, 101, 0, 1)
        assert parts.parts.first_behind_pause() == 101
        call(211, 100, 1)
        assert parts.parts.first_behind_pause() == 100

    try:
        parts.calls(actions_of_the_stand_in(), submit)
    finally:
        parts.parts.set_pause(ctypes.c_uint64(0), ctypes.c_uint64(0))


ACTIONS = {
    (2, 211): RECORDED | LAUNCHES, (1, 307): RECORDED | LAUNCHES, (2, 41): RECORDED, (2, 51): RECORDED,
    (2, 131): RECORDED | WAITS_FOR_STREAM, (2, 311): RECORDED | REPLAYS, (2, 147): RECORDED | STREAM_WAITS,
    (2, 135): RECORDED | RECORDS_EVENT,
}  # fmt: skip


def actions_of_the_stand_in() -> bytes:
    actions = bytearray(2 * MOST_CALLS)
    for (domain, number), action in ACTIONS.items():
        actions[(domain - 1) * MOST_CALLS + number] = action
    return bytes(actions)


def test_actions_follow_from_the_names_of_calls(parts: Parts) -> None:
    name = ctypes.c_char_p()
    for domain in (1, 2):
        for number in range(MOST_CALLS):
            if parts.cupti.cuptiGetCallbackName(domain, number, ctypes.byref(name)) == 0:
                assert parts.parts.action_by_name(name) == ACTIONS.get((domain, number), 0)
    for call, action in (("cuStreamSynchronize_ptsz", 32 + 3 + 16), ("cudaDeviceSynchronize_v3020", 32 + 4),
                         ("cuEventSynchronize", 32 + 1), ("cuMemAlloc_v2", 32), ("cuCtxGetCurrent", 0)):  # fmt: skip
        assert parts.parts.action_by_name(call.encode()) == action


def test_the_calls_of_a_program_become_rows(parts: Parts) -> None:
    """More calls than wait for being written; the driver's calls within those of the runtime are none."""

    def submit() -> None:
        parts.cupti.stand_in_steps(200, 20)
        parts.cupti.stand_in_kinds()

    rows = parts.calls(actions_of_the_stand_in(), submit)
    assert len(rows) == 200 * 22 + 12
    lasted = rows["end_ns"] - rows["begin_ns"]
    assert set(lasted[rows["kind"] == cells.RUNTIME].tolist()) >= {3000}
    assert (np.diff(rows["correlation"].astype(int)) >= 0).all()
    assert np.count_nonzero(rows["kind"] == cells.DRIVER) == 1
    (wait,) = rows[(rows["kind"] == cells.SYNC) & (rows["detail"] == STREAM_WAITS)]
    assert (wait["stream"], wait["size"]) == (9, 40)
    assert rows[rows["kind"] == cells.CUDA_EVENT][["stream", "size"]].tolist() == [(7, 40), (9, 40)]
    waits = rows[(rows["kind"] == cells.SYNC) & (rows["detail"] == WAITS_FOR_STREAM)]
    assert len(waits) == 200
    assert set(waits["stream"].tolist()) == {7}


def test_in_a_pause_waits_alone_become_rows(parts: Parts) -> None:
    rows = parts.calls(actions_of_the_stand_in(), lambda: parts.cupti.stand_in_steps(200, 20), last=1)
    assert rows["kind"].tolist() == [cells.RUNTIME, cells.SYNC] * 200
    assert set(rows["detail"].tolist()) == {131, WAITS_FOR_STREAM}


def test_less_memory_is_handed_out_the_more_is_out(parts: Parts) -> None:
    handed_out = parts.parts.handed_out
    handed_out.argtypes, handed_out.restype = (ctypes.c_uint64, ctypes.c_int), ctypes.c_size_t
    assert handed_out(0, 0) == handed_out(MANY_BYTES - 1, 0) == BUFFER_BYTES
    assert 0 < handed_out(MANY_BYTES, 0) == handed_out(MOST_BYTES - 1, 0) == handed_out(0, 1) < BUFFER_BYTES
    assert handed_out(MOST_BYTES, 0) == 0


def test_numbers_of_c_are_those_of_python() -> None:
    source = SOURCE.read_text(encoding="utf-8")
    own = {name: int(value, 0) for name, value in re.findall(r"\b([A-Z_]{3,}) = (0x[0-9A-F]+|\d+)[,}\s]", source)}
    known = {name: value for name, value in vars(cells).items() if isinstance(value, int) and name in own}
    assert {*FIELDS, cells.RUNTIME, cells.SYNC, cells.FACT, cells.NAME} <= set(known.values())
    assert {name: own[name] for name in known} == known
    (text,) = re.findall(r"EXPORTED struct {\n([^}]+)} microbench_shared", source)
    parts = [
        (name, kind) for kind, names in re.findall(r"_Atomic (\w+)_t ([\w, ]+);", text) for name in names.split(", ")
    ]
    types = {"uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64}
    assert [(name, types[kind]) for name, kind in parts] == list(recorder.Shared._fields_)
    (text,) = re.findall(r"enum { (AT_EXIT[\w, ]+) };", source)
    assert [getattr(recorder, name) for name in text.split(", ")] == [0, 1, 2, 3]


def facts_of(path: Path, last: int = 0) -> dict[str, str]:
    """The facts of a recording, or of its last cells; each fits into a few cells that follow each other."""
    found: list[bytes] = []
    with path.open("rb") as file:
        file.seek(*(-last * cells.CELL_BYTES, os.SEEK_END) if last else (cells.CELL_BYTES, os.SEEK_SET))
        content = file.read()
    for at in range(0, len(content), cells.CELL_BYTES):
        kind, part, length, _, text = cells.TEXT.unpack_from(content, at)
        if kind == cells.FACT:
            found.append(text) if part == 0 else found.append(found.pop() + text)
            found[-1] = found[-1][:length]
    return dict(fact.decode().split("=", 1) for fact in found)


@pytest.mark.slow
def test_python_adds_facts_of_its_own(place: Place, other: NotPython, tmp_path: Path) -> None:
    for name in ("python", "c"):
        (tmp_path / name).mkdir()
    found = (
        place.recorded("import torch\ntorch.steps(3)", tmp_path / "python", RANK="3"),
        other.recorded(tmp_path / "c", "init", "steps", 3, RANK="3"),
    )
    for done in found:
        only(done, 3)
    python, c = (facts_of(done.files[0]) for done in found)
    assert python.keys() - c.keys() == {"python", "package", "version.torch"}
    assert c.keys() - python.keys() == {"processor"}, "of Python's main thread its samples say it"
    different = {name for name in c.keys() & python.keys() if c[name] != python[name]}
    assert different <= {"pid", "program", "cupti_ns", "unix_ns"}
    assert c["program"] == "not_python"
    assert re.fullmatch(r"not_python-\d+\.rows", found[1].files[0].name)
    head = found[1].files[0].read_bytes()[: cells.CELL_BYTES]
    assert head == cells.header()
    (first, second) = (done.traces[0] for done in found)
    assert (first.gpus, first.rank, first.names) == (second.gpus, second.rank, second.names)
    for rows in ("work", "calls", "syncs"):
        ours, theirs = (getattr(trace, rows)["end_ns"] - getattr(trace, rows)["begin_ns"] for trace in (first, second))
        assert ours.tolist() == theirs.tolist()


# Programs that are recorded


def test_each_kind_of_record_of_a_program_arrives(other: NotPython, tmp_path: Path) -> None:
    trace = alone(other.recorded(tmp_path, "init", "kinds"))
    assert (len(trace.work), len(trace.calls), len(trace.syncs), len(trace.ranges)) == (7, 9, 1, 2)
    assert trace.unread == {}, "work that had not ended is left out silently"


@pytest.mark.slow
def test_no_record_of_ten_million_is_lost(other: NotPython, tmp_path: Path) -> None:
    steps = 238_096
    done = other.recorded(tmp_path, "init", "steps", steps)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    assert facts_of(done.files[0], last=100)["dropped"] == "0"
    kinds = np.bincount(np.memmap(done.files[0], ROW, "r")["kind"])
    assert [kinds[kind] for kind in (cells.KERNEL, cells.RUNTIME, cells.SYNC)] == [20 * steps, 21 * steps, steps]
    done.files[0].unlink()  # 640 MB


@pytest.mark.slow
def test_records_that_cupti_dropped_are_counted(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, "init", "steps", 3, "drop", 5)
    assert done.traces[0].lost == {"records": 5}


def test_a_program_that_starts_no_cuda_leaves_nothing(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, "say", "ran")
    assert (done.code, done.output, done.errors, done.files, done.reasons) == (0, "ran\n", "", [], [])


@pytest.mark.parametrize("options", [("-I",), ("-S",), ("-E",), ("-I", "-S"), ()])
def test_python_without_a_gpu_package_is_recorded(
    place: Place, other: NotPython, tmp_path: Path, options: tuple[str, ...]
) -> None:
    program = f"""
import ctypes
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
ctypes.CDLL("{other.cupti}").stand_in_steps(3, 20)
"""
    done = place.recorded(program, tmp_path, *options, injected=True, **other.variables)
    only(done, 3)
    assert "package" not in facts_of(done.files[0])


@pytest.mark.slow
@pytest.mark.parametrize(("text", "package"), [
    ("import torch\nassert torch.cuda.cuInit(0) == 0", "torch"), ("assert cuda.cuInit(0) == 0\nimport torch", None),
])  # fmt: skip
def test_a_process_is_recorded_once_whichever_recorder_comes_first(
    place: Place, other: NotPython, tmp_path: Path, text: str, package: str | None
) -> None:
    program = f"""
import ctypes, os, subprocess, sys
library, cuda = ctypes.CDLL("{place.site / CUPTI}"), ctypes.CDLL("libcuda.so.1")
{text}
library.stand_in_steps(3, 20)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "program.py", "again"], check=True)
    subprocess.run(["{other.program}", "init", "steps", "3"], check=True)
    if os.fork() == 0:
        cuda.cuInit(0)
        library.stand_in_steps(700, 20)
        sys.exit()
    assert os.wait()[1] == 0
    library.cuptiActivityFlushAll(1)
    os.execv("{other.program}", ["{other.program}", "init", "steps", "3"])
"""
    done = place.recorded(program, tmp_path, injected=True, **other.variables)
    assert (done.code, done.errors) == (0, "")
    ((cause, _),) = done.reasons
    assert cause.startswith("work of a process that was forked from a recorded one")
    assert [cells_of(trace) for trace in done.traces] == [3 * CELLS_OF_A_STEP] * 4
    packages = [facts_of(path).get("package") for path in done.files]
    assert packages == [None, None, package, package], "by their names, those of C come first"


@pytest.mark.slow
def test_an_old_python_is_recorded(place: Place, other: NotPython, tmp_path: Path) -> None:
    program = "import sys\nsys.version_info = (3, 8, 0)\nimport torch\ntorch.cuda.cuInit(0)\ntorch.steps(3)"
    only(place.recorded(program, tmp_path, injected=True), 3)


# Which libcupti is taken


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loaded", "linked", "home/lib64", "home/extras/CUPTI/lib64", "given"])
def test_libcupti_is_found_where_the_program_would_find_it(other: NotPython, tmp_path: Path, where: str) -> None:
    name = "libcupti.so.99"  # which no machine has
    library = tmp_path / where / name
    library.parent.mkdir(parents=True)
    library.write_bytes(other.cupti.read_bytes())
    drivers = str(other.place.drivers)
    variables = {
        "LD_LIBRARY_PATH": os.pathsep.join((drivers, str(tmp_path / "linked"))), "CUDA_HOME": str(tmp_path / "home"),
        "MICROBENCH_WATCH_CUPTI": str(tmp_path / "given" / name), "MICROBENCH_WATCH_CUDA": "98,99",
        "STAND_IN": str(library),
    }  # fmt: skip
    arguments = ("load", str(library)) if where == "loaded" else ()
    only(other.recorded(tmp_path, *arguments, "init", "steps", 3, **variables), 3)


@pytest.mark.slow
def test_a_folder_of_ld_library_path_comes_before_a_newer_toolkit(other: NotPython, tmp_path: Path) -> None:
    newer = tmp_path / "lib64/libcupti.so.99"
    newer.parent.mkdir()
    newer.write_bytes(other.cupti.read_bytes())
    variables = {"CUDA_HOME": str(tmp_path), "MICROBENCH_WATCH_CUDA": "99,12"}
    only(other.recorded(tmp_path, "init", "steps", 3, **variables), 3)


# How a program ends


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_program_loses_its_last_buffer_alone(other: NotPython, tmp_path: Path, number: signal.Signals) -> None:
    done = other.recorded(tmp_path, "init", "steps", 500, "settle", "kill", int(number))
    assert (done.code, done.reasons) == (-number, [])
    (trace,) = done.traces
    sound(trace)
    most_of_a_buffer = BUFFER_BYTES // 40  # bytes of the smallest record
    assert 500 * CELLS_OF_A_STEP - most_of_a_buffer < cells_of(trace) < 500 * CELLS_OF_A_STEP


@pytest.mark.slow
def test_an_exit_code_stays_the_programs(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, "init", "steps", 3, "exit", 7)
    assert (done.code, done.errors) == (7, "")
    assert cells_of(done.traces[0]) == 3 * CELLS_OF_A_STEP


def test_launches_of_other_threads_while_the_recording_ends_are_left_out(other: NotPython, tmp_path: Path) -> None:
    trace = alone(other.recorded(tmp_path, "init", "steps", 3, STAND_IN_BUSY="1"))
    assert cells_of(trace) == 3 * CELLS_OF_A_STEP


@pytest.mark.slow
def test_a_recording_ends_after_its_time_and_cupti_is_free_then(other: NotPython, tmp_path: Path) -> None:
    only(other.recorded(tmp_path, "init", "steps", 3, "released", "steps", 5, how=How(for_s=1)), 3)


@pytest.mark.parametrize("how", [How(window_s=0.2, every_s=0.5), How()])
def test_between_windows_waits_alone_are_recorded(other: NotPython, tmp_path: Path, how: How) -> None:
    trace = alone(other.recorded(tmp_path, "init", "paced", 1500, how=how))
    assert len(trace.windows) >= 2
    assert len(trace.other_waits_ns) > 10
    assert (trace.work["call"] != NONE).mean() > 0.99
    assert len(trace.work) < 0.95 * 20 * 1500


def test_records_of_kernels_begin_and_end_while_nobody_launches(other: NotPython, tmp_path: Path) -> None:
    how = How(window_s=0.01, every_s=0.02)
    trace = alone(other.recorded(tmp_path, "init", "steps", 200, how=how, STAND_IN_SLOW="1"))
    assert len(trace.windows) > 3


@pytest.mark.parametrize("how", [How(whole=True), How()], ids=["whole", "in windows"])
def test_a_program_that_computes_is_told_from_one_that_waits(other: NotPython, tmp_path: Path, how: How) -> None:
    ran_ns, verdicts = list[int](), list[str]()
    for what in ("computes", "sleeps"):
        (tmp_path / what).mkdir()
        trace = alone(other.recorded(tmp_path / what, "init", what, 60, how=how))
        assert trace.processor is not None
        assert trace.processor.all_ns > trace.processor.ran_ns > 0
        ran_ns.append(trace.processor.ran_ns)
        if what == "computes":  # other programs may have the processors meanwhile
            trace = msgspec.structs.replace(trace, processor=trace.processor._replace(all_ns=ran_ns[0] + 1))
        verdicts.append(line_of(diagnose(trace, costs(), None), "whose"))
    assert ran_ns[0] > 30 * 5_000_000 > ran_ns[1]
    assert "`perf record -g` names its functions" in verdicts[0]
    assert "perf record" not in verdicts[1]


def test_no_window_begins_after_the_time_of_a_recording(other: NotPython, tmp_path: Path) -> None:
    trace = alone(other.recorded(tmp_path, "init", "paced", 1500, how=How(for_s=0.3)))
    assert len(trace.windows) == 1
    assert 0 < len(trace.work) < 20 * 1000


@pytest.mark.slow
def test_a_forked_child_is_left_out_and_that_is_said(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, "init", "steps", 3, "fork", "init", "steps", 700)
    ((cause, _),) = done.reasons
    assert "work of a process that was forked from a recorded one" in cause
    only(done._replace(reasons=[]), 703)


@pytest.mark.slow
def test_children_forked_before_cuda_began_and_executed_record_for_themselves(other: NotPython, tmp_path: Path) -> None:
    again = ("exec", str(other.program), "init", "steps", 4)
    done = other.recorded(tmp_path, "fork", "init", "steps", 3000, "settle", *again)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    assert len(done.files) == 4
    assert sum(path.stem.endswith("-2") for path in done.files) == 2
    for path in done.files:
        if path.stem.endswith("-2"):
            assert cells_of(read(path)) == 4 * CELLS_OF_A_STEP
        else:
            assert 2000 * CELLS_OF_A_STEP < cells_of(read(path)) < 3000 * CELLS_OF_A_STEP


# Where no recording is possible

RAN = ("init", "steps", 3, "say", "ran")


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "cause", "next_step"), [
    ({"MICROBENCH_WATCH_CUDA": "98", "MICROBENCH_WATCH_CUPTI": ""}, "no libcupti.so.12 or .13 is found", "CUDA_HOME"),
    ({"STAND_IN_VERSION": "140000"}, "CUPTI's version 140000", "install CUPTI of CUDA 12 or 13"),
    ({"STAND_IN_VERSION": "17"}, "CUPTI's version 17", "install CUPTI of CUDA 12 or 13"),
    ({"STAND_IN_STATUS": "39"}, "another profiler is attached", "without the other profiler"),
    ({"STAND_IN_STATUS": "39", "NSYS_PROFILING_SESSION_ID": "1"}, "Nsight Systems is attached", "without the other"),
    ({"STAND_IN_STATUS": "15"}, "CUPTI_ERROR_NOT_INITIALIZED (15)", "nvidia-smi"),
    ({"recordings": 'go"ne\t'}, 'go"ne /not_python', "-o"),
    ({"recordings": "/".join(["long" * 60] * 4)}, "longlong", "-o"),
])  # fmt: skip
def test_what_cannot_be_recorded_is_told_and_the_program_runs_on(
    other: NotPython, tmp_path: Path, variables: dict[str, str], cause: str, next_step: str
) -> None:
    done = other.recorded(tmp_path, *RAN, **variables)
    assert (done.code, done.output, done.errors, done.files) == (0, "ran\n", "", [])
    ((told, told_next),) = done.reasons
    assert cause in told
    assert next_step in told_next


@pytest.mark.slow
def test_after_the_largest_file_is_full_the_program_runs_on(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, "limit", 1_000_000, *RAN, "steps", 3000)
    not_recorded(done, "any more: File too large", "another disk")
    (trace,) = done.traces
    sound(trace)
    assert 400_000 < 64 * cells_of(trace) < 1_000_000


@pytest.mark.slow
def test_a_full_disk_keeps_room_for_the_program(other: NotPython, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        done = other.recorded(tmp_path, *RAN, "steps", 5000, recordings="disk")
        not_recorded(done, "any more: No space left on device", "another disk")
        (path,) = disk.glob("*.rows")
        sound(read(path))
        assert 2 << 20 < path.stat().st_size < 4 << 20
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_program_that_closes_all_files_keeps_what_it_opens_then(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, *RAN, "close", "steps", 3000)
    not_recorded(done, "any more: the program closed its file", "-o")
    assert len(list(tmp_path.glob("mine-*"))) == 997
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("mine-*"))


# How the library is made


@pytest.mark.slow
def test_the_library_is_compiled_once_and_anew_when_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: NotPython
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run, commands = c_library._run, []
    monkeypatch.setattr(c_library, "_run", lambda command: commands.append(command) or run(command))
    first = c_library.library(SOURCE)
    assert first.is_relative_to(tmp_path)
    content = first.read_bytes()
    assert c_library.library(SOURCE) == first
    assert ["-shared" in command for command in commands] == [False, True, False]
    first.unlink()
    first.write_bytes(content[:-1])
    assert c_library.library(SOURCE) == first
    assert first.read_bytes() == content
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@pytest.mark.parametrize("compiler", ["", "/not/there", "false", "'"])
def test_without_a_compiler_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(c_library, "prebuilt", lambda source, machine: tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    assert c_library.library(SOURCE) is None


@pytest.mark.slow
def test_in_a_checkout_the_compiler_that_cc_names_comes_first_else_the_library_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named = tmp_path / "named compiler"
    named.write_text('#!/bin/sh\ntouch "$0.ran"\nexec cc "$@"\n')
    named.chmod(0o755)
    monkeypatch.setattr(c_library, "prebuilt", lambda source, machine: place.library)
    monkeypatch.setenv("CC", f"'{named}' -g0")
    made = c_library.library(SOURCE)
    assert made.is_relative_to(tmp_path)
    assert Path(f"{named}.ran").is_file()
    monkeypatch.setattr(c_library, "IN_CHECKOUT", False)
    assert c_library.library(SOURCE) == place.library
    monkeypatch.setattr(c_library, "IN_CHECKOUT", True)
    monkeypatch.setenv("CC", "/not/there")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert c_library.library(SOURCE) == place.library


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_library, "prebuilt", lambda source, machine: tmp_path / "none")
    (tmp_path / "microbench").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert c_library.library(SOURCE) is None


def test_the_library_does_nothing_by_itself_and_needs_no_cuda(place: Place) -> None:
    assert not re.search(r"#include.*cu(da|pti)", SOURCE.read_text(encoding="utf-8"))
    shown = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(place.library)!r}).InitializeInjection()"],
        capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert (shown.stdout, shown.stderr) == ("", ""), "without the variables of watch it does nothing"

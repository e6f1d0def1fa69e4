"""Tests of the C library that records other programs than Python: it writes the recorder's rows and does no harm."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import TWIN, compiled
from numba import cfunc, types
from test_traces_nsys import sound
from watched import CELLS_OF_A_STEP, CUPTI, NotPython, Place, cells_of, not_recorded, only

from microbench.recorder import callbacks, cells, cupti, injection, recorder, state
from microbench.recorder.program import How
from microbench.traces.reading import read

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder is for x86-64 alone")


@pytest.fixture(scope="module")
def other(place: Place) -> NotPython:
    return NotPython(place)


# The same as the recorder of Python

RECORD_BYTES = {
    cells.KERNEL: 216, cells.MEMCPY: 96, cells.PEER_MEMCPY: 96, cells.MEMSET: 88, cells.OVERHEAD: 56, 60: 48,
}  # fmt: skip
REQUESTED = ctypes.CFUNCTYPE(None, *[ctypes.POINTER(ctypes.c_size_t)] * 3)
CALLED = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_size_t)
COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)


class Both:
    """The two ways from records to rows: the callbacks of Numba and those of C. The stand-in gives the records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = compiled(TWIN / "injection_parts.c", folder, "-Wall", "-Werror", "-pthread")
        self.cupti = compiled(TWIN / "cupti_stand_in.c", folder, "-pthread")
        self.memory = ctypes.create_string_buffer(state.STATE_BYTES)
        self.address, libc = ctypes.addressof(self.memory), ctypes.CDLL(None)
        self.completed: Any = cfunc(types.void(*[types.int64] * 6))(callbacks.completed).ctypes
        self.next = ctypes.cast(self.cupti.cuptiActivityGetNextRecord, ctypes.c_void_p)
        self.functions = {name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0 for name in state.LIBC}
        self.functions |= {
            name: ctypes.cast(getattr(self.cupti, name), ctypes.c_void_p).value or 0 for name in state.CUPTI
        }

    def begin_numba(self, ending: bool = False) -> tuple[int, Path]:
        """A file, and a state of the callbacks that writes to it."""
        ctypes.memset(self.address, 0, state.STATE_BYTES)
        path = self.folder / "numba"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        words = {state.FILE: file, state.PROCESS: os.getpid(), state.ENDING: int(ending)}
        words |= {state.FUNCTIONS[name]: address for name, address in self.functions.items()}
        for at, value in words.items():
            ctypes.c_int64.from_address(self.address + at).value = value
        return file, path

    def by_numba(self, records: bytes, ending: bool) -> bytes:
        file, path = self.begin_numba(ending)
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_size_t
        buffer = libc.malloc(ctypes.c_size_t(len(records)))
        ctypes.memmove(buffer, records, len(records))
        self.completed(0, 0, buffer, len(records), len(records), self.address)
        os.close(file)
        return path.read_bytes()

    def calls_by_numba(self, actions: bytes, submit: Callable[[], None]) -> bytes:
        """The rows of the calls of a program; ``actions`` says what is done about each call."""
        file, path = self.begin_numba()
        ctypes.memmove(self.address + state.ACTIONS, actions, len(actions))
        compiled_: Any = cfunc(types.void(*[types.int64] * 6))(callbacks.called).ctypes

        def tell(user: int, domain: int, number: int, data: int) -> None:
            compiled_(0, domain, number, data, 0, self.address)

        heard = CALLED(tell)
        self.told(heard, actions, submit)
        given: Any = cfunc(types.void(*[types.int64] * 6))(callbacks.given).ctypes
        given(self.address, 0, 0, 0, 0, self.address)
        os.close(file)
        return path.read_bytes()

    def calls_by_c(self, actions: bytes, submit: Callable[[], None]) -> bytes:
        path = self.folder / "c"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        functions = [ctypes.c_void_p(self.functions[name]) for name in ("cuptiGetTimestamp", "cuptiGetStreamIdEx")]
        self.parts.begin_calls(file, *functions, actions)
        self.told(self.parts.called_by_name, actions, submit)
        self.parts.end_calls()
        os.close(file)
        return path.read_bytes()

    def told(self, heard: Any, actions: bytes, submit: Callable[[], None]) -> None:
        """Let the program make its calls while somebody hears those that are recorded."""
        subscriber = ctypes.c_void_p()
        assert self.cupti.cuptiSubscribe(ctypes.byref(subscriber), heard, None) == 0
        chosen = [divmod(place, state.MOST_CALLS) for place, action in enumerate(actions) if action]
        for on in (1, 0):
            for domain, number in chosen:
                self.cupti.cuptiEnableCallback(on, subscriber, domain + 1, number)
            if on:
                submit()
        self.cupti.cuptiUnsubscribe(subscriber)

    def by_c(self, records: bytes, ending: bool) -> bytes:
        path = self.folder / "c"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.parts.keep_in(file, self.next, records, ctypes.c_size_t(len(records)), int(ending))
        os.close(file)
        return path.read_bytes()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("both"))


def records_of_the_stand_in(library: ctypes.CDLL) -> bytes:
    """The records of steps and of one of each kind. The last kernel of the latter has not ended."""
    memory, found = ctypes.create_string_buffer(1 << 20), []

    def request(buffer: Any, size: Any, most: Any) -> None:
        buffer[0], size[0], most[0] = ctypes.addressof(memory), len(memory), 0

    def complete(context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        found.append(ctypes.string_at(buffer, valid))

    given = REQUESTED(request), COMPLETED(complete)
    library.cuptiActivityRegisterCallbacks(*given)
    for kind in cells.KINDS:
        library.cuptiActivityEnable(kind)
    library.stand_in_steps(5, 20)
    library.stand_in_kinds()
    library.cuptiActivityFlushAll(1)
    for kind in cells.KINDS:
        library.cuptiActivityDisable(kind)
    (whole,) = found
    return whole


@pytest.mark.parametrize(("ending", "kernels"), [(False, 105), (True, 104)])
def test_c_makes_the_rows_of_numba_from_the_records_of_a_program(both: Both, ending: bool, kernels: int) -> None:
    records = records_of_the_stand_in(both.cupti)
    rows = both.by_c(records, ending)
    assert rows == both.by_numba(records, ending)
    kinds = [int.from_bytes(rows[at : at + 2], "little") for at in range(0, len(rows), cells.CELL_BYTES)]
    assert kinds.count(cells.KERNEL) == kernels
    assert set(kinds) == {*cells.KINDS, cells.NAME}


@pytest.mark.parametrize("seed", range(8))
def test_c_makes_the_rows_of_numba_from_any_records(both: Both, seed: int) -> None:
    chance = random.Random(seed)
    stride = state.NAME_SLOTS << 3  # so far apart, names want the same slot of the table
    texts = ctypes.create_string_buffer((callbacks.TRIES + 8) * stride + 20_001)
    lengths = [0, 1, 47, 48, 49, 96, 16_383, 16_384, 20_000, *[5] * callbacks.TRIES]
    for place, length in enumerate(lengths):
        ctypes.memset(ctypes.addressof(texts) + place * stride, ord("a") + place % 26, length)
    names = [0, *(ctypes.addressof(texts) + place * stride for place in range(len(lengths)))]
    made = []
    for _ in range(9000 if seed < 2 else 300):
        kind = chance.choice(list(RECORD_BYTES))
        record = bytearray(kind.to_bytes(4, "little") + chance.randbytes(RECORD_BYTES[kind] - 4))
        for end in (16, 24, 32):  # where records of some kind end
            if chance.random() < 0.2 and end + 8 <= len(record):
                record[end : end + 8] = bytes(8)
        if kind == cells.KERNEL:
            record[104:112] = chance.choice(names).to_bytes(8, "little")
        made.append(bytes(record))
    records = b"".join(made)
    for ending in (False, True):
        rows = both.by_c(records, ending)
        assert rows == both.by_numba(records, ending)
        assert len(rows) >= cells.CELL_BYTES * len(made) // 2


def actions_of_the_stand_in(library: ctypes.CDLL) -> bytes:
    """What is done about each call, as the recorder of Python chooses."""
    actions, name = bytearray(2 * state.MOST_CALLS), ctypes.c_char_p()
    for domain, _ in recorder.APIS:
        for number in range(state.MOST_CALLS):
            if library.cuptiGetCallbackName(domain, number, ctypes.byref(name)) == 0 and name.value:
                call = name.value.decode()
                if any(part in call for part in recorder.PARTS_OF_CALLS):
                    actions[(domain - 1) * state.MOST_CALLS + number] = recorder.action(call)
    return bytes(actions)


def test_c_makes_the_rows_of_numba_from_the_calls_of_a_program(both: Both) -> None:
    """More calls than wait for being written; the driver's calls within those of the runtime are none."""
    actions = actions_of_the_stand_in(both.cupti)

    def submit() -> None:
        both.cupti.stand_in_steps(200, 20)
        both.cupti.stand_in_kinds()

    by_numba, by_c = (rows_of(calls(actions, submit)) for calls in (both.calls_by_numba, both.calls_by_c))
    fields = [name for name in by_c.dtype.names if name not in ("begin_ns", "end_ns", "correlation")]
    assert len(by_c) == len(by_numba) == 200 * 22 + 12
    for name in fields:
        assert (by_c[name] == by_numba[name]).all(), name
    lasted = by_c["end_ns"] - by_c["begin_ns"]
    assert (lasted == by_numba["end_ns"] - by_numba["begin_ns"]).all()
    assert set(lasted[by_c["kind"] == cells.RUNTIME].tolist()) >= {3000}
    assert (np.diff(by_c["correlation"].astype(int)) >= 0).all()
    (wait,) = by_c[(by_c["kind"] == cells.SYNC) & (by_c["detail"] == cells.STREAM_WAITS)]
    assert (wait["stream"], wait["size"]) == (9, 40)
    assert by_c[by_c["kind"] == cells.CUDA_EVENT][["stream", "size"]].tolist() == [(7, 40), (9, 40)]


def rows_of(content: bytes) -> Any:
    return np.frombuffer(content, np.dtype(list(cells.ROW)))


def test_c_hands_out_as_much_memory_as_numba(both: Both) -> None:
    handed_out = both.parts.handed_out
    handed_out.argtypes, handed_out.restype = (ctypes.c_uint64, ctypes.c_int), ctypes.c_size_t
    assert handed_out(0, 0) == handed_out(callbacks.MANY_BYTES - 1, 0) == callbacks.BUFFER_BYTES
    assert handed_out(callbacks.MANY_BYTES, 0) == callbacks.SMALL_BUFFER_BYTES
    assert handed_out(callbacks.MOST_BYTES - 1, 0) == callbacks.SMALL_BUFFER_BYTES
    assert handed_out(callbacks.MOST_BYTES, 0) == handed_out(0, 1) == 0


def test_numbers_and_lists_of_c_are_those_of_python() -> None:
    source = injection.SOURCE.read_text(encoding="utf-8")
    known: dict[str, int] = {}
    for module in (state, callbacks, cells, recorder, cupti):
        known |= {name: value for name, value in vars(module).items() if isinstance(value, int)}
    own = {name: int(value, 0) for name, value in re.findall(r"\b([A-Z_]{3,}) = (0x[0-9A-F]+|\d+)[,}\s]", source)}
    assert {name: known.get(name) for name in own} == {**own, "MOST_CELLS": None, "MOST_PATH": None}

    def listed(name: str) -> tuple[str, ...]:
        (text,) = re.findall(rf"{name}\[\] = {{(.*?)}};", source, re.DOTALL)
        return tuple(re.findall('"(.*?)"', text))

    assert listed("PARTS_OF_CALLS") == recorder.PARTS_OF_CALLS
    (text,) = re.findall(r"ACTIONS\[\] = {(.*?)};", source, re.DOTALL)
    pairs = re.findall(r'{"(\w+)", (\w+)}', text)
    assert tuple((part, getattr(cells, name)) for part, name in pairs) == recorder.ACTIONS
    assert listed("RANKS") == recorder.RANKS
    assert set(listed("TOOLKIT_FOLDERS")) < set(cupti.TOOLKIT_FOLDERS)


def facts_of(path: Path) -> dict[str, str]:
    """The facts of a recording; each fits into a few cells that follow each other."""
    content, found = path.read_bytes(), []
    for at in range(cells.CELL_BYTES, len(content), cells.CELL_BYTES):
        kind, part, length, _, text = cells.TEXT.unpack_from(content, at)
        if kind == cells.FACT:
            found.append(text) if part == 0 else found.append(found.pop() + text)
            found[-1] = found[-1][:length]
    return dict(fact.decode().split("=", 1) for fact in found)


@pytest.mark.slow
def test_c_writes_the_facts_of_python(place: Place, other: NotPython, tmp_path: Path) -> None:
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
    assert c.keys() <= python.keys()
    different = {name for name in c if c[name] != python[name]}
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
    done = other.recorded(tmp_path, "init", "kinds")
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    (trace,) = done.traces
    sound(trace)
    assert (len(trace.work), len(trace.calls), len(trace.syncs), len(trace.ranges)) == (7, 9, 1, 2)
    assert trace.unread == {}, "work that had not ended is left out silently"


@pytest.mark.slow
def test_no_record_of_a_million_is_lost(other: NotPython, tmp_path: Path) -> None:
    only(other.recorded(tmp_path, "init", "steps", 23_810), 23_810)


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
    done = place.recorded(program, tmp_path, *options, library=other.library, **other.variables)
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
    done = place.recorded(program, tmp_path, library=other.library, **other.variables)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    assert [cells_of(trace) for trace in done.traces] == [3 * CELLS_OF_A_STEP] * 4
    packages = [facts_of(path).get("package") for path in done.files]
    assert packages == [None, None, package, package], "by their names, those of C come first"


@pytest.mark.slow
def test_an_old_python_is_recorded(place: Place, other: NotPython, tmp_path: Path) -> None:
    program = "import sys\nsys.version_info = (3, 8, 0)\nimport torch\ntorch.cuda.cuInit(0)\ntorch.steps(3)"
    only(place.recorded(program, tmp_path, library=other.library), 3)


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
    most_of_a_buffer = callbacks.BUFFER_BYTES // 40  # bytes of the smallest record
    assert 500 * CELLS_OF_A_STEP - most_of_a_buffer < cells_of(trace) < 500 * CELLS_OF_A_STEP


@pytest.mark.slow
def test_an_exit_code_stays_the_programs(other: NotPython, tmp_path: Path) -> None:
    done = other.recorded(tmp_path, "init", "steps", 3, "exit", 7)
    assert (done.code, done.errors) == (7, "")
    assert cells_of(done.traces[0]) == 3 * CELLS_OF_A_STEP


@pytest.mark.slow
def test_a_recording_ends_after_its_time_and_cupti_is_free_then(other: NotPython, tmp_path: Path) -> None:
    only(other.recorded(tmp_path, "init", "steps", 3, "released", "steps", 5, how=How(for_s=1)), 3)


@pytest.mark.slow
def test_a_forked_child_is_silent(other: NotPython, tmp_path: Path) -> None:
    only(other.recorded(tmp_path, "init", "steps", 3, "fork", "init", "steps", 700), 703)


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
    ({"recordings": 'go"ne\t'}, 'go"ne/not_python', "-o"),
])  # fmt: skip
def test_what_cannot_be_recorded_is_told_and_the_program_runs_on(
    other: NotPython, tmp_path: Path, variables: dict[str, str], cause: str, next_step: str
) -> None:
    done = other.recorded(tmp_path, *RAN, **variables)
    assert (done.code, done.output, done.errors, done.files) == (0, "ran\n", "", [])
    ((told, told_next),) = done.reasons
    assert cause in told.replace("\t", "")
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
    run, commands = injection._run, []
    monkeypatch.setattr(injection, "_run", lambda command: commands.append(command) or run(command))
    first = injection.library()
    assert first.is_relative_to(tmp_path)
    content = first.read_bytes()
    assert injection.library() == first
    assert ["-shared" in command for command in commands] == [False, True, False]
    first.unlink()
    first.write_bytes(content[:-1])
    assert injection.library() == first
    assert first.read_bytes() == content
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@pytest.mark.parametrize("compiler", ["", "/not/there", "false", "'"])
def test_without_a_compiler_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(injection, "CARRIED", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    assert injection.library() is None


@pytest.mark.slow
def test_the_compiler_that_cc_names_comes_first_and_the_library_of_a_wheel_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: NotPython
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named = tmp_path / "named compiler"
    named.write_text('#!/bin/sh\ntouch "$0.ran"\nexec cc "$@"\n')
    named.chmod(0o755)
    monkeypatch.setenv("CC", f"'{named}' -g0")
    assert injection.library() is not None
    assert Path(f"{named}.ran").is_file()
    monkeypatch.setattr(injection, "CARRIED", other.library)
    monkeypatch.setenv("CC", "/not/there")
    assert injection.library() == other.library


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "CARRIED", tmp_path / "none")
    (tmp_path / "microbench").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert injection.library() is None


def test_the_library_exports_two_functions_and_needs_no_cuda(other: NotPython) -> None:
    source = injection.SOURCE.read_text(encoding="utf-8")
    assert len(re.findall(r"^EXPORTED ", source, re.MULTILINE)) == 2
    assert not re.search(r"#include.*cu(da|pti)", source)
    shown = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(other.library)!r}).InitializeInjection()"],
        capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert (shown.stdout, shown.stderr) == ("", ""), "without the variables of watch it does nothing"

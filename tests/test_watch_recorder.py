"""Tests of the recorder inside of programs, with a stand-in for libcupti: what it writes, and that it never harms."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_traces_nsys import names, sound
from watched import CELLS_OF_A_STEP, CUPTI, INJECTED, Place, Recorded, alone, cells_of, not_recorded, only, turning

from microbench.recorder import cells
from microbench.recorder.job import PASSED_ON
from microbench.recorder.program import How
from microbench.traces.reading import read
from microbench.traces.trace import MEMORIES, NONE, RANGE_KINDS, SYNC_KINDS, WORK_KINDS

BUFFER_BYTES = 1 << 18  # that CUPTI is given
A_STEP_NS = 10**6  # more than a step of the stand-in takes
KERNELS = 20  # of a step

# What is written


def test_each_kind_of_record_arrives_with_its_fields(place: Place, tmp_path: Path) -> None:
    done = place.recorded("import threading, torch\ntorch.kinds()\nprint(threading.get_ident())", tmp_path)
    trace = alone(done)
    assert names(trace, trace.calls) == [
        "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaGraphLaunch", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventRecord", "cudaLaunchKernel",
    ]  # fmt: skip
    work = trace.work
    assert [WORK_KINDS[kind] for kind in work["kind"]] == ["kernel", "copy", "copy", "memset", *["kernel"] * 3]
    assert names(trace, work) == [
        "my_kernel", "Memcpy HtoD (Pageable -> Device)", "Memcpy PtoP (Device -> Device)", "Memset (Device)",
        *["at::native::vectorized_elementwise_kernel"] * 3,
    ]  # fmt: skip
    assert work["call"].tolist() == [0, 1, 2, 3, 4, 4, 4]
    assert (work["end_ns"] - work["begin_ns"]).tolist() == [4000, 900, 1900, 800, 1000, 1000, 1000]
    assert work["blocks"].tolist() == [24, NONE, NONE, NONE, 24, 24, 24]
    assert work["threads"].tolist() == [256, NONE, NONE, NONE, 256, 256, 256]
    assert work["bytes"].tolist() == [NONE, 4096, 8192, 64, NONE, NONE, NONE]
    assert work["device"].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert work["stream"].tolist() == [7, 7, 9, 7, 7, 7, 7]
    assert work["node"].tolist() == [NONE, NONE, 77, NONE, *((1 << 32) + node for node in (1, 2, 3))]
    assert [MEMORIES[memory] for memory in work["source"][1:3]] == ["pageable", "device"]
    (wait,) = trace.syncs
    assert (SYNC_KINDS[wait["kind"]], wait["call"], wait["on_call"]) == ("stream_wait_event", 6, 5)
    assert (wait["stream"], wait["on_stream"], wait["end_ns"] - wait["begin_ns"]) == (9, 7, 500)
    assert [(RANGE_KINDS[one["kind"]], one["end_ns"] - one["begin_ns"]) for one in trace.ranges] == [
        ("driver", 700), ("overhead", 200),
    ]  # fmt: skip
    assert names(trace, trace.ranges) == ["Lazy function loading", "Buffer request"]
    assert [thread.number for thread in trace.threads] == [int(done.output) & 0xFFFFFFFF]
    assert trace.gpus == {0: "NVIDIA H200", 1: "NVIDIA H100"}
    assert trace.bus_ids == {0: "0000:43:00.0", 1: "0000:c3:00.0"}
    assert {**trace.versions, "Python": ""} == {"CUPTI": "130000", "Python": "", "torch": "2.11.0"}
    assert trace.unread == {}, "work that had not ended is left out silently"
    assert done.files[0].name.startswith("program.py-")


def test_the_header_says_what_was_recorded_and_calls_that_do_nothing_are_not(place: Place, tmp_path: Path) -> None:
    done = place.recorded("import torch\ntorch.steps(1)", tmp_path, RANK="3")
    content = done.files[0].read_bytes()
    assert content.startswith(cells.header())
    for text in (
        b"program=program.py",
        b"package=torch",
        b"cupti=130000",
        b"rank=3",
        b"runtime.17=cudaGetDevice_v3020",
    ):
        assert text in content
    (trace,) = done.traces
    assert "cudaGetDevice" not in names(trace, trace.calls)
    assert trace.rank == 3


def test_no_record_of_a_million_is_lost_while_the_program_holds_pythons_lock(place: Place, tmp_path: Path) -> None:
    only(place.recorded("import torch\ntorch.steps(23_810)", tmp_path), 23_810)


def test_records_of_many_threads_are_all_there(place: Place, tmp_path: Path) -> None:
    program = """
import threading, torch
threads = [threading.Thread(target=torch.unlocked.stand_in_steps, args=(100, 20)) for _ in range(50)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    only(place.recorded(program, tmp_path), 5000)


def test_records_that_cupti_dropped_are_counted(place: Place, tmp_path: Path) -> None:
    done = place.recorded("import torch\ntorch.steps(3)\ntorch.library.stand_in_drop(5)", tmp_path)
    assert done.traces[0].lost == {"records": 5}


# How a program ends


@pytest.mark.parametrize(("end", "code"), [
    ("os._exit(5)", 5), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM), ("ctypes.string_at(0)", -signal.SIGSEGV),
])  # fmt: skip
def test_a_killed_program_loses_its_last_buffer_alone(place: Place, tmp_path: Path, end: str, code: int) -> None:
    steps = "torch.steps(500)\ntorch.library.stand_in_settle()"
    done = place.recorded(f"import ctypes, os, signal, torch\n{steps}\n{end}", tmp_path, STAND_IN_KEEPS="1")
    assert done.code == code
    (trace,) = done.traces
    sound(trace)
    most_of_a_buffer = BUFFER_BYTES // 40  # bytes of the smallest record
    assert 500 * CELLS_OF_A_STEP - most_of_a_buffer < cells_of(trace) < 500 * CELLS_OF_A_STEP


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("raise SystemExit", 0), ("1 / 0", 1)])
def test_an_exit_code_and_an_error_stay_the_programs(place: Place, tmp_path: Path, end: str, code: int) -> None:
    done = place.recorded(f"import sys, torch\ntorch.steps(3)\n{end}", tmp_path)
    assert done.code == code
    assert "microbench" not in done.errors
    assert cells_of(done.traces[0]) == 3 * CELLS_OF_A_STEP


def test_a_recording_ends_after_its_time_and_cupti_is_free_then(place: Place, tmp_path: Path) -> None:
    program = """
import time, torch
torch.steps(3)
assert torch.library.stand_in_subscribed()
while torch.library.stand_in_subscribed():
    time.sleep(0.01)
torch.steps(5)
"""
    only(place.recorded(program, tmp_path, how=How(for_s=2)), 3)


def test_the_end_of_a_recording_waits_for_records_that_cupti_keeps_back(place: Place, tmp_path: Path) -> None:
    program = """
import time, torch
torch.steps(3)
while torch.library.stand_in_subscribed():
    time.sleep(0.01)
"""
    only(place.recorded(program, tmp_path, how=How(for_s=1), STAND_IN_LATE="5000"), 3)


def test_windows_hold_all_records_and_the_time_between_them_waits_alone(place: Place, tmp_path: Path) -> None:
    program = turning(2, "torch.steps(1)", "time.sleep(0.001)")
    trace = alone(place.recorded(program, tmp_path, how=How(window_s=0.2, every_s=0.5)))
    assert len(trace.windows) >= 2
    inside = np.zeros(len(trace.work), bool)
    for begin_ns, end_ns in trace.windows:
        inside |= (trace.work["end_ns"] >= begin_ns) & (trace.work["begin_ns"] <= end_ns + A_STEP_NS)
    # Kernels that run behind a window belong to calls within it. The made-up clock stands still while the machine runs
    # something else, so the step at each end may look earlier.
    assert np.count_nonzero(~inside & (trace.work["call"] != NONE)) <= 2 * KERNELS * len(trace.windows)
    assert len(trace.syncs)
    assert len(trace.other_waits_ns) > 10
    assert (trace.work["call"] != NONE).mean() > 0.99


def test_a_thread_in_a_call_at_the_end_of_a_window_is_recorded_in_the_next(place: Place, tmp_path: Path) -> None:
    program = """
import threading, time, torch
def steps(seconds):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        torch.library.stand_in_now()
        torch.steps(1)
        time.sleep(0.001)
def other():
    torch.unlocked.stand_in_until(b"go")
    steps(2)
thread = threading.Thread(target=other)
thread.start()
steps(0.8)  # now the next window has not begun
open("go", "w").close()
thread.join()
"""
    trace = alone(place.recorded(program, tmp_path, how=How(window_s=0.2, every_s=2)))
    threads = trace.calls["thread"][trace.calls["begin_ns"] > trace.windows[1][0]]
    assert len(threads) > 100
    assert trace.calls["thread"][0] not in threads
    assert (trace.work["call"] != NONE).mean() > 0.99


def test_copies_in_a_pause_are_left_out_although_their_records_never_end(place: Place, tmp_path: Path) -> None:
    program = turning(2, "torch.steps(1)", "torch.library.stand_in_copies(50)", "time.sleep(0.001)")
    trace = alone(place.recorded(program, tmp_path, how=How(window_s=0.1, every_s=0.25)))
    assert len(trace.windows) >= 4
    copies = trace.work[trace.work["kind"] == WORK_KINDS.index("copy")]
    assert len(copies) > 1000
    assert np.count_nonzero(copies["call"] == NONE) < 5


def test_a_program_of_replays_alone_has_windows_and_pauses(place: Place, tmp_path: Path) -> None:
    program = turning(2.5, "torch.library.stand_in_replays(1, 5)", "time.sleep(0.001)")
    (trace,) = place.recorded(program, tmp_path, how=How(window_s=0.2, every_s=0.5)).traces
    assert len(trace.windows) >= 2
    assert len(trace.pauses) >= len(trace.windows) - 1
    replays = np.count_nonzero(np.array(["GraphLaunch" in name for name in trace.names])[trace.calls["name"]])
    assert len(trace.work) == 5 * replays


# Processes that a program starts


def test_a_forked_child_is_left_out_and_that_is_said(place: Place, tmp_path: Path) -> None:
    program = """
import os, sys, torch
torch.steps(3)
if os.fork() == 0:
    torch.steps(700)
    torch.library.cuptiActivityFlushAll(1)
    sys.exit(0)
assert os.wait()[1] == 0
torch.steps(4)
"""
    done = place.recorded(program, tmp_path)
    ((cause, next_step),) = done.reasons
    assert "work of a process that was forked from a recorded one" in cause
    assert "spawn" in next_step
    only(done._replace(reasons=[]), 7)


def test_children_that_are_forked_before_spawned_or_started_record_for_themselves(place: Place, tmp_path: Path) -> None:
    program = """
import multiprocessing, os, subprocess, sys
def work(steps):
    import torch
    torch.steps(steps)
if __name__ == "__main__":
    if os.fork() == 0:
        work(3)
        sys.exit(0)
    assert os.wait()[1] == 0
    child = multiprocessing.get_context("spawn").Process(target=work, args=(4,))
    child.start()
    child.join()
    assert child.exitcode == 0
    subprocess.run([sys.executable, "-c", "import torch; torch.steps(5)"], check=True)
    work(6)
"""
    done = place.recorded(program, tmp_path)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    assert sorted(cells_of(trace) for trace in done.traces) == [steps * CELLS_OF_A_STEP for steps in (3, 4, 5, 6)]


def test_a_process_that_executes_another_program_has_two_recordings(place: Place, tmp_path: Path) -> None:
    program = """
import os, sys, torch
torch.steps(3000 if len(sys.argv) == 1 else 4)
if len(sys.argv) == 1:
    torch.library.stand_in_settle()
    os.execv(sys.executable, [sys.executable, "program.py", "again"])
"""
    done = place.recorded(program, tmp_path)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    first, second = sorted(done.files, key=lambda path: len(path.name))
    assert second.name == f"{first.stem}-2.rows"
    assert cells_of(read(second)) == 4 * CELLS_OF_A_STEP
    assert 2000 * CELLS_OF_A_STEP < cells_of(read(first)) < 3000 * CELLS_OF_A_STEP


# Where no recording is possible


RAN = "import torch\ntorch.steps(3)\nprint('ran')"


def test_without_libcupti_the_program_runs_on(place: Place, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("def steps(count): pass")
    done = place.recorded(RAN, tmp_path, PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH="", CUDA_HOME="/nowhere")
    if done.reasons and "no libcupti" not in done.reasons[0][0]:
        pytest.skip("this machine has a libcupti of its own")
    not_recorded(done, "no libcupti.so.12 or .13 is installed", "pip install nvidia-cuda-cupti")
    assert done.files == []


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "cause", "next_step"), [
    ({"STAND_IN_VERSION": "140000"}, "CUPTI's version 140000", "install CUPTI of CUDA 12 or 13"),
    ({"STAND_IN_VERSION": "17"}, "CUPTI's version 17", "install CUPTI of CUDA 12 or 13"),
    ({"STAND_IN_STATUS": "39"}, "another profiler is attached", "without the other profiler"),
    ({"STAND_IN_STATUS": "39", "NSYS_PROFILING_SESSION_ID": "1"}, "Nsight Systems is attached", "without the other"),
    ({"STAND_IN_STATUS": "15"}, "CUPTI_ERROR_NOT_INITIALIZED (15)", "nvidia-smi"),
])  # fmt: skip
def test_a_library_that_cannot_record_is_told(
    place: Place, tmp_path: Path, variables: dict[str, str], cause: str, next_step: str
) -> None:
    done = place.recorded(RAN, tmp_path, **variables)
    not_recorded(done, cause, next_step)
    assert done.files == []


def test_a_profiler_of_the_program_that_came_first_keeps_cupti(place: Place, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"""
import ctypes
library = ctypes.CDLL("{place.site / CUPTI}")
library.cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), None, None)
""")
    done = place.recorded(RAN, tmp_path, PYTHONPATH=f"{tmp_path}:{place.site}")
    not_recorded(done, "another profiler is attached", "torch.profiler")


@pytest.mark.slow
def test_a_folder_that_is_gone_is_told(place: Place, tmp_path: Path) -> None:
    done = place.recorded(RAN, tmp_path, recordings="gone")
    not_recorded(done, "cannot be written: No such file or directory", "-o")


@pytest.mark.slow
def test_a_read_only_folder_is_told(place: Place, tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(0o500)
    mounted = False
    if os.geteuid() == 0:  # whom no permission stops
        mounted = not subprocess.run(["mount", "--bind", shut, shut], capture_output=True).returncode
        if not mounted or subprocess.run(["mount", "-o", "remount,ro,bind", shut], capture_output=True).returncode:
            pytest.skip("no folder can be made read-only here")
    try:
        done = place.recorded(RAN, tmp_path, recordings="shut")
    finally:
        if mounted:
            subprocess.run(["umount", shut], check=True)
    not_recorded(done, "cannot be written: " + ("Read-only file system" if mounted else "Permission denied"), "-o")


@pytest.mark.slow
def test_an_old_python_is_told(place: Place, tmp_path: Path) -> None:
    done = place.recorded(f"import sys\nsys.version_info = (3, 8, 0)\n{RAN}", tmp_path)
    not_recorded(done, "older than Python 3.9", "newer Python")


@pytest.mark.slow
def test_after_the_largest_file_is_full_the_program_runs_on(place: Place, tmp_path: Path) -> None:
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
{RAN}
torch.steps(3000)
open("mine", "w").write("whole")
"""
    done = place.recorded(program, tmp_path)
    not_recorded(done, "the rest, because", "another disk")
    (trace,) = done.traces
    sound(trace)
    assert 900_000 < 64 * cells_of(trace) < 1_000_000
    assert (tmp_path / "mine").read_text() == "whole"


@pytest.mark.slow
def test_a_full_disk_keeps_room_for_the_program(place: Place, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        done = place.recorded(
            f"{RAN}\ntorch.steps(5000)\nopen('disk/mine', 'w').write('x' * 100_000)", tmp_path, recordings="disk"
        )
        not_recorded(done, "any more: No space left on device", "another disk")
        assert (disk / "mine").stat().st_size == 100_000
        (path,) = disk.glob("*.rows")
        sound(Recorded(0, "", "", [path], []).traces[0])
        assert 2 << 20 < path.stat().st_size < 4 << 20
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_program_that_closes_all_files_keeps_what_it_opens_then(place: Place, tmp_path: Path) -> None:
    program = f"""
{RAN}
import os
os.closerange(3, 100_000)
mine = [os.open(f"mine-{{number}}", os.O_WRONLY | os.O_CREAT) for number in range(3, 1000)]
torch.steps(3000)
torch.library.cuptiActivityFlushAll(1)
"""
    done = place.recorded(program, tmp_path)
    not_recorded(done, "any more: the program closed its file", "-o")
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("mine-*"))
    assert len(list(tmp_path.glob("mine-*"))) == 997


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "garbage", "[]", "{}"])
def test_a_program_that_changes_the_variable_is_not_recorded(place: Place, tmp_path: Path, text: str) -> None:
    done = place.recorded(f"import os\nos.environ['MICROBENCH_WATCH'] = '{text}'\n{RAN}", tmp_path)
    assert (done.code, done.output, done.errors, done.files) == (0, "ran\n", "", [])


# How little of it a program can see


def test_a_program_that_uses_no_gpu_loads_nothing(place: Place, tmp_path: Path) -> None:
    program = """
import sys
try:
    import jax
except ImportError:
    pass
print(sorted({name.partition(".")[0] for name in sys.modules} & {"json", "ctypes", "microbench", "_microbench_watch"}))
print([entry for entry in sys.path if "inject" in entry], "sitecustomize" in sys.modules)
"""
    done = place.recorded(program, tmp_path)
    assert done.output.splitlines()[0] == "[]"
    assert done.output.splitlines()[1].startswith("[]")
    assert (done.code, done.errors, done.files, done.reasons) == (0, "", [], [])


def test_the_recorder_loads_one_libcupti_and_no_package(place: Place, tmp_path: Path) -> None:
    program = """
import re, sys, torch
torch.steps(1)
print({name.partition(".")[0] for name in sys.modules} & {"numba", "llvmlite", "numpy", "microbench", "cuda"})
print(len(set(re.findall(r"/.*libcupti.*", open("/proc/self/maps").read()))))
"""
    done = place.recorded(program, tmp_path)
    assert (done.output, done.errors) == ("set()\n1\n", "")


def test_no_thread_of_the_recorder_takes_a_signal_of_the_program(place: Place, tmp_path: Path) -> None:
    program = """
import contextlib, os, re, torch
torch.steps(1)
for task in set(os.listdir("/proc/self/task")) - {str(os.getpid())}:
    with contextlib.suppress(OSError):  # it has ended
        print(re.search("SigBlk:.*", open(f"/proc/self/task/{task}/status").read())[0])
"""
    done = place.recorded(program, tmp_path, how=How(stacks=True, for_s=60))
    assert done.errors == ""
    blocked = [int(line.split()[1], 16) for line in done.output.splitlines()]
    assert len(blocked) >= 3, "samples, windows, the end after a time"
    for number in PASSED_ON:
        assert all(mask >> (number - 1) & 1 for mask in blocked), number


@pytest.mark.slow
def test_the_library_of_the_program_is_taken_wherever_it_lies(place: Place, tmp_path: Path) -> None:
    program = f"""
import ctypes, os, shutil
shutil.copy("{place.site / CUPTI}", "libcupti.so.12")
library = ctypes.PyDLL(os.path.abspath("libcupti.so.12"))
import torch
library.stand_in_steps(3, 20)
"""
    only(place.recorded(program, tmp_path), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("own", "errors"), [
    ("print('mine')", ""), ("import sys\nprint('mine', sys.modules['sitecustomize'].__file__)", ""),
    ("print('mine')\nraise ValueError('broken')", "ValueError: broken"), ("import not_there", "ModuleNotFoundError"),
])  # fmt: skip
def test_a_sitecustomize_of_the_user_runs_as_ever(place: Place, tmp_path: Path, own: str, errors: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(own)
    variables = place.environment(PYTHONPATH=f"{tmp_path}:{place.site}")
    done = place.recorded(RAN, tmp_path, PYTHONPATH=variables["PYTHONPATH"])
    alone = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, env=variables, check=False
    )
    assert (done.code, done.output, done.errors) == (0, alone.stdout, alone.stderr)
    assert errors in alone.stderr
    assert len(done.files) == 1


RECORDER = [INJECTED.parent / f"{name}.py" for name in ("recorder", "cupti", "cells", "loops", "sampler")]


def test_the_injected_files_need_the_standard_library_alone() -> None:
    seen = set()
    for path in (INJECTED / "sitecustomize.py", *RECORDER):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                seen |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                seen.add(str(node.module).partition(".")[0])
    assert seen <= sys.stdlib_module_names


def test_old_versions_of_python_can_read_the_injected_files() -> None:
    source = (INJECTED / "sitecustomize.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 4))
    assert "from __future__" not in source
    for path in RECORDER:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_fields_of_a_row_lie_where_the_library_writes_them() -> None:
    places, at = {}, 0
    for name, form in cells.ROW:
        places[name] = at
        at += int(form[-1])
    assert at == cells.CELL_BYTES == cells.TEXT.size == cells.HEADER.size
    assert list(places.values()) == [0, 2, 4, 8, 16, 24, 28, 32, 36, 40, 48, 56]

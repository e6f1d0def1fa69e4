"""Tests of the samples of Python lines, with a stand-in for libcupti: what they name, and that they never harm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest
from test_diagnose import costs
from test_traces_nsys import names, sound
from watched import Place, Recorded, alone

from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.host_time import called_from
from microbench.diagnosis.idle import Idle, idle, owners
from microbench.diagnosis.owners import LOCK, REQUESTS
from microbench.diagnosis.words import findings
from microbench.recorder import cells
from microbench.recorder.program import How
from microbench.recorder.sampler import NEAR_BYTES, Places, _waits_in
from microbench.traces.recording import EXACT
from microbench.traces.trace import RANGE_KINDS, Trace

STACKS = How(stacks=True, whole=True)

LINE = RANGE_KINDS.index("line")
ABSENT = EXACT[cells.ABSENT]  # while other programs have the processors
# Between its steps the program does nothing for 20 ms, and gives Python's lock up.
SLOW = """
import time, torch
def load():
    time.sleep(0.02)
def train(steps):
    for _ in range(steps):
        torch.catch_up()
        torch.steps(1)
        load()
"""
LOADING = "program.py:4 load"
SLEEPING = f"time.sleep at {LOADING}"


def only(done: Recorded) -> Trace:
    """The one recording of a program that ran to its end and saw nothing of the sampler."""
    trace = alone(done)
    assert (trace.lost, trace.unread) == ({}, {})
    return trace


def lines(trace: Trace) -> set[str]:
    return set(names(trace, trace.ranges[trace.ranges["kind"] == LINE]))


def kinds(path: Path) -> set[int]:
    return set(np.fromfile(path, np.dtype(list(cells.ROW)))["kind"].tolist())


def idle_of(trace: Trace) -> Idle:
    """The idle time from the first work to the last."""
    return idle(trace, int(trace.work["begin_ns"][0]), int(trace.work["end_ns"].max()), 0)


def test_the_diagnosis_names_the_line_in_which_a_gap_passes(place: Place, tmp_path: Path) -> None:
    trace = only(place.recorded(f"{SLOW}train(30)", tmp_path, how=STACKS))
    first = next(one for one in idle_of(trace).places if one.name != ABSENT)
    assert (first.cause, first.name) == ("Python and framework time between CUDA calls", SLEEPING)
    assert trace.samples.taken > 0
    assert (trace.ranges["thread"] == 0).all()


def python(version: str) -> str:
    """Another Python of this machine. Skips the test without one."""
    found = [*map(str, sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))), f"python{version}"]
    if shutil.which(found[0]) is None or subprocess.run([found[0], "-V"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")  # a shim may lead nowhere
    return found[0]


@pytest.mark.slow
def test_the_oldest_python_is_sampled_too(place: Place, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{SLOW}train(30)")
    trace = only(place.ran([python("3.9"), "program.py"], tmp_path, how=STACKS))
    assert idle_of(trace).places[0].name == SLEEPING
    assert trace.processor is not None


COMPUTING = """
import time, torch
def compute():
    total = 0
    for one in range(40_000):
        total += one * one
    return total
def behind():
    return None
begin = time.monotonic()
while time.monotonic() - begin < 1.5:
    torch.catch_up()
    torch.steps(1)
    compute()
    torch.unlocked.stand_in_now()
    behind()
import sys
print(max(sys.getswitchinterval() for _ in range(20) if not time.sleep(0.003)))
"""


@pytest.mark.parametrize("version", [
    "", *(pytest.param(version, marks=pytest.mark.slow) for version in ("3.9", "3.12", "3.13"))
])  # fmt: skip
def test_what_computes_is_sampled_and_not_what_comes_behind_a_call_that_gives_the_lock_up(
    version: str, place: Place, tmp_path: Path
) -> None:
    """Before Python 3.13 the main thread sees that a sample is wanted only behind such a call, unless it is asked."""
    (tmp_path / "program.py").write_text(COMPUTING)
    done = place.ran([python(version) if version else sys.executable, "program.py"], tmp_path, how=STACKS)
    assert done.output == "0.005\n"
    trace = only(done)
    rows = trace.ranges[trace.ranges["kind"] == LINE]
    computes = np.char.endswith(names(trace, rows), " compute")
    lasts_ns = rows["end_ns"] - rows["begin_ns"]
    assert lasts_ns[computes].sum() > 0.5 * lasts_ns.sum()


def test_calls_that_are_asked_name_exactly_the_line_that_makes_them(place: Place, tmp_path: Path) -> None:
    text = "import time, torch\ndef few():\n    torch.unlocked.stand_in_steps(1, 3)\n"
    text += "def many():\n    torch.unlocked.stand_in_steps(1, 5)\nfor _ in range(1500):\n"
    text += "    torch.catch_up()\n    few()\n    many()\n    time.sleep(0.001)\n"
    for attempt in range(4):  # on a busy machine a call may go on before it is answered
        (folder := tmp_path / str(attempt)).mkdir()
        trace = only(place.recorded(text, folder, how=STACKS))
        if asked := called_from(trace):
            break
    waits = np.flatnonzero(["Synchronize" in trace.names[name] for name in trace.calls["name"]])
    behind = np.searchsorted(waits, np.arange(len(trace.calls)))  # the number of waits before each call
    calls = np.diff(np.append(-1, waits))
    found = {(int(calls[behind[call]]), trace.names[line]) for call, line in asked.items()}
    assert found
    assert found <= {(4, "program.py:3 few"), (6, "program.py:5 many")}


def test_the_line_of_a_package_that_waits_is_named_beside_the_programs_own(place: Place, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "slow"
    package.mkdir(parents=True)
    text = "import torch\ndef outer():\n    return inner()\ndef inner():\n    torch.unlocked.stand_in_steps(1, 5)\n"
    (package / "__init__.py").write_text(text)
    text = "import time, torch, slow\nfor _ in range(1500):\n    torch.catch_up()\n    slow.outer()\n"
    text += "    time.sleep(0.001)\n"
    trace = only(place.recorded(text, tmp_path, how=STACKS, PYTHONPATH=f"{place.site}:{package.parent}"))
    recorded = diagnose(trace, costs()).recorded
    assert recorded is not None
    (wait,) = recorded.blockers
    assert (wait.place, wait.package) == ("program.py:4 <module>", "slow/__init__.py:5 inner")
    assert {trace.names[one] for one in called_from(trace, "package").values()} == {wait.package}


def test_without_stacks_nothing_is_sampled(place: Place, tmp_path: Path) -> None:
    done = place.recorded(f"{SLOW}train(3)", tmp_path)
    trace = only(done)
    assert (trace.samples, lines(trace)) == (None, set())
    assert not kinds(done.files[0]) & {cells.SAMPLES, cells.FRAME}
    assert b"main_thread" not in done.files[0].read_bytes()


@pytest.mark.parametrize("folder", ["site-packages", "target"])
def test_code_of_a_package_is_named_by_the_line_that_calls_it(place: Place, tmp_path: Path, folder: str) -> None:
    package = tmp_path / "elsewhere" / folder
    package.mkdir(parents=True)
    if folder == "target":  # of pip install --target
        (package / "library-1.0.dist-info").mkdir()
    spin = "import time\ndef wait():\n    until = time.monotonic() + 0.02\n    while time.monotonic() < until: pass\n"
    (package / "library.py").write_text(spin)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("import library\ndef conv2():\n    library.wait()\n")
    text = "import torch, models.net\nfor _ in range(30):\n    torch.catch_up()\n    torch.steps(1)"
    text += "\n    models.net.conv2()"
    done = place.recorded(text, tmp_path, how=STACKS, PYTHONPATH=f"{place.site}:{package}")
    trace = only(done)
    assert {"models/net.py:3 conv2", "library.py wait"} <= set(names(trace, trace.ranges))
    found = owners(idle_of(trace))
    first = next(one for one in found if one.name != ABSENT)
    assert (first.name, first.most) == ("library", "models/net.py:3 conv2")
    assert sum(one.seconds for one in found) > 0.3


@pytest.mark.parametrize(("options", "own"), [((), False), (("-c",), True)])
def test_code_made_by_a_package_is_not_the_programs(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], own: bool
) -> None:
    """Python names its file <string>, as it does with a program behind `python -c`."""
    monkeypatch.setattr(sys, "argv", [*options, "train.py"])
    assert Places().is_own("<string>") == own
    assert Places().is_own("<stdin>")


def test_a_thread_of_packages_alone_is_named_by_its_innermost_function(place: Place, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SLOW)
    text = "import library, threading\nthread = threading.Thread(target=library.train, args=(20,))"
    text += "\nthread.start()\nthread.join()"
    done = place.recorded(text, tmp_path, how=STACKS, PYTHONPATH=f"{place.site}:{package.parent}")
    trace = only(done)
    assert (
        next(one.name for one in idle_of(trace).places if one.name != ABSENT)
        == "time.sleep at library/__init__.py:4 load"
    )
    assert "library/__init__.py:4 load" in lines(trace)


def test_a_thread_that_submits_nothing_is_left_out(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
import threading
def idle():
    ended.wait()
ended = threading.Event()
thread = threading.Thread(target=idle)
thread.start()
train(10)
ended.set()
thread.join()
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    trace = only(done)
    assert b" idle" in done.files[0].read_bytes()
    assert LOADING in lines(trace)
    assert not any(" idle" in name for name in trace.names)
    assert len(trace.threads) == 1


@pytest.mark.parametrize(
    ("call", "owner", "named"),
    [
        ("stand_in_elsewhere", "the framework's other threads", "main thread at program.py:4 backward"),
        ("stand_in_backward", "PyTorch's backward thread", "backward pass of program.py:4 backward"),
    ],
)
def test_a_thread_that_submits_without_python_is_named_by_where_the_main_one_is(
    place: Place, tmp_path: Path, call: str, owner: str, named: str
) -> None:
    text = f"""
import torch
def backward():
    torch.unlocked.{call}(20)
backward()
"""
    first, *_ = owners(idle_of(only(place.recorded(text, tmp_path, how=STACKS))))
    assert (first.name, first.most) == (owner, named)


def test_a_main_thread_that_computes_beside_the_frameworks_thread_has_its_time(place: Place, tmp_path: Path) -> None:
    """As a step of JAX: its own thread submits, and the main one draws random numbers in C."""
    text = """import hashlib, threading, torch
def draw():
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 50000)
def count():
    sum(range(300000))
submits = threading.Thread(target=torch.unlocked.stand_in_elsewhere, args=(40,))
submits.start()
while submits.is_alive():
    draw()
    count()
"""
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    first, *others = owners(idle_of(trace))
    assert (first.name, first.most) == ("your own code", "program.py:3 draw")
    assert first.seconds > 3 * sum(one.seconds for one in others)


def test_a_main_thread_that_waits_a_little_for_the_frameworks_thread_has_not_its_time(
    place: Place, tmp_path: Path
) -> None:
    """As a step of PyTorch: it computes for 20 ms, and then waits some ms for the thread of the backward pass."""
    text = """import time, torch
def forward():
    until = time.monotonic() + 0.02
    while time.monotonic() < until: pass
def backward():
    torch.unlocked.stand_in_elsewhere(1)
for _ in range(60):
    torch.catch_up()
    forward()
    torch.catch_up()
    backward()
"""
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    found = {one.name: one for one in owners(idle_of(trace))}
    own, others = found["your own code"], found["the framework's other threads"]
    assert (own.most, others.most) == ("program.py:4 forward", "main thread at program.py:6 backward")
    assert own.seconds - own.most_s < others.seconds / 10


def test_who_keeps_the_lock_in_a_long_call_is_named_by_the_next_sample(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
def hold():
    begin_ns = time.time_ns()
    torch.library.usleep(100_000)
    print(begin_ns, time.time_ns())
for _ in range(5):
    train(2)
    hold()
train(2)
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    trace = only(done)
    assert trace.samples.late > 0
    for held in done.output.splitlines():
        begin_ns, end_ns = (int(one) - (trace.epoch_ns or 0) for one in held.split())
        middle_ns = (begin_ns + end_ns) // 2
        inside = (trace.ranges["begin_ns"] <= middle_ns) & (middle_ns < trace.ranges["end_ns"])
        found = set(names(trace, trace.ranges[inside])) - {ABSENT}
        assert found
        assert all(name.endswith(" hold") for name in found), found


def test_without_pythons_lock_nothing_is_sampled_and_that_is_told(place: Place, tmp_path: Path) -> None:
    done = place.recorded(f"import sys\nsys._is_gil_enabled = lambda: False\n{SLOW}train(5)", tmp_path, how=STACKS)
    ((cause, next_step),) = done.reasons
    assert "without its lock" in cause
    assert "PYTHON_GIL=1" in next_step
    assert cells.SAMPLES not in kinds(done.files[0])
    assert len(done.traces[0].work) == 100


def test_a_program_whose_working_folder_is_gone_is_sampled(place: Place, tmp_path: Path) -> None:
    text = f"import os, shutil\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n{SLOW}train(10)"
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    assert any(name.endswith("program.py:8 load") for name in lines(trace))


def test_samples_end_with_the_recording(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
import os, sys
train(3)
while torch.library.stand_in_subscribed() or len(sys._current_frames()) > 1:
    time.sleep(0.01)
train(3)
print(*[number for number in os.listdir("/proc/self/fd") if int(number) > 500])
"""
    done = place.recorded(text, tmp_path, how=How(for_s=1, stacks=True, whole=True))
    trace = only(done)
    assert len(trace.work) == 60
    assert done.output == "\n", "no file is open"
    assert LOADING in lines(trace)


def test_signals_that_the_program_blocks_still_wait_for_it(place: Place, tmp_path: Path) -> None:
    text = f"""
import os, signal
{SLOW}
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
os.kill(os.getpid(), signal.SIGUSR1)
train(2)
print(signal.sigwait((signal.SIGUSR1,)).name)
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    only(done)
    assert done.output == "SIGUSR1\n"


def test_objects_of_the_program_die_as_soon_as_ever(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
import weakref
class Tensor: pass
def use():
    tensor = Tensor()
    time.sleep(0.003)
    return weakref.ref(tensor)
train(1)
print({{use()() for _ in range(100)}})
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    only(done)
    assert done.output == "{None}\n"


def test_a_forked_child_has_no_sampler(place: Place, tmp_path: Path) -> None:
    text = f"""
import os, sys, warnings
{SLOW}
def child():
    time.sleep(0.05)
    print(len(sys._current_frames()), flush=True)
    train(2)
train(2)
warnings.simplefilter("ignore")
if os.fork() == 0:
    child()
    sys.exit(0)
assert os.wait()[1] == 0
train(2)
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    assert (done.code, done.errors) == (0, "")
    ((cause, _),) = done.reasons
    assert cause.startswith("work of a process that was forked from a recorded one")
    (trace,) = done.traces
    assert len(trace.work) == 80
    assert done.output == "1\n"
    assert not any(" child" in name for name in trace.names)


def test_samples_spare_the_files_of_a_program_that_closes_all(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
train(2)
import os
os.closerange(3, 100_000)
mine = [os.open(f"mine-{{number}}", os.O_WRONLY | os.O_CREAT) for number in range(3, 1000)]
time.sleep(2)
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    assert (done.code, done.errors) == (0, "")
    ((cause, _),) = done.reasons
    assert "the program closed its file" in cause
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("mine-*"))


@pytest.mark.parametrize("most", [1024, 64])
def test_the_files_that_the_sampler_keeps_are_far_from_those_of_the_program_once_the_import_ends(
    place: Place, tmp_path: Path, most: int
) -> None:
    program = f"""
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
before = set(os.listdir("/proc/self/fd"))
import torch
print(*(set(os.listdir("/proc/self/fd")) - before))
"""
    done = place.recorded(program, tmp_path, how=STACKS)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    assert len(kept := [int(number) for number in done.output.split()]) == 4, "the recording, and three of /proc"
    assert min(kept) >= min(most // 8 * 7, 896)


def test_the_recorder_opens_no_file_while_the_program_runs(place: Place, tmp_path: Path) -> None:
    """A file that is opened has for a moment the lowest free number. Here nobody can open one."""
    without_any = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 1024))"
    trace = only(place.recorded(f"{SLOW}{without_any}\ntrain(30)", tmp_path, how=STACKS))
    first = next(one for one in idle_of(trace).places if one.name != ABSENT)
    assert first.name == SLEEPING
    assert trace.processor is not None
    assert trace.processor[1] > 0


def test_a_reason_needs_no_free_number_of_a_file(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
import os, resource
os.closerange(3, 1024)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 1024))
train(2)
"""
    done = place.recorded(text, tmp_path)
    assert (done.code, done.errors) == (0, "")
    ((cause, _),) = done.reasons
    assert "the program closed its file" in cause


class Slow:
    """Its functions wait, if the sampler is asked where the frame is that calls them."""

    def __init__(self) -> None:
        self.lock = self
        self.heard: list[str] = []

    def __getitem__(self, _: int) -> Callable[..., Slow]:
        return self.read

    def __enter__(self) -> None:
        self._hear(sys._getframe(1))

    def __exit__(self, *_: object) -> None: ...

    def read(self, *_: object, timeout: float = 0) -> Slow:
        self._hear(sys._getframe(1))
        return self

    other = acquire = read

    def _hear(self, frame: FrameType) -> None:
        self.heard.append(_waits_in(frame.f_code, frame.f_lasti))


@pytest.mark.parametrize(("text", "named"), [
    ("slow.read(1)", "slow.read"), ("slow.lock.acquire(timeout=1)", "slow.lock.acquire"), ("slow.other(slow.lock)", ""),
    ("slow.lock[0](1)", ""), ("[0, slow][1].read()", ""), ("x = {True: slow.read(*[1])}", "slow.read"),
    ("with slow.lock: pass", "slow.lock.acquire"), ("def f(): slow.read()\n    f()", "slow.read"),
    ("try: x = 1\n    finally: slow.read()", "slow.read"), ("slow.read(" + "[slow], " * 3000 + ")", ""),
])  # fmt: skip
def test_a_wait_is_named_by_the_instructions_alone(text: str, named: str) -> None:
    many = ", ".join(f"slow.name{number}" for number in range(300))  # so that the numbers of others need two bytes
    for before in ("", f"if not slow: {many}\n    ", "x = 1\n    " * NEAR_BYTES):
        slow, defined = Slow(), dict[str, Any]()
        exec(f"def run(slow):\n    {before}{text}", defined)
        defined["run"](slow)
        assert slow.heard == [named]


def test_of_a_killed_program_the_samples_of_whole_seconds_are_there(place: Place, tmp_path: Path) -> None:
    text = f"""
import os, signal
{SLOW}
train(120)
torch.library.stand_in_settle()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    assert cells.SAMPLES in kinds(done.files[0])
    sound(done.traces[0])


def test_a_collection_of_garbage_is_named(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
import gc
kept = [[] for _ in range(400_000)]
for _ in range(20):
    train(1)
    gc.collect()
"""
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    found = {where.name: where.seconds for where in idle_of(trace).places}
    assert found["Python's garbage collection"] > 0.01


def test_a_collection_of_garbage_in_the_thread_of_samples_does_not_hold_them_up(place: Place, tmp_path: Path) -> None:
    """Python collects in whichever thread makes an object. The time is no cost of a sample, and the program's wait."""
    text = f"""{SLOW}
import gc, sys
kept, real, times = [[] for _ in range(1_000_000)], sys._current_frames, []
def frames():
    times.append(0) or (len(times) == 20 and gc.collect())
    return real()
sys._current_frames = frames
while len(times) < 20:
    train(1)
train(40)
"""
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    assert trace.samples is not None
    assert trace.samples.taken > 150  # 20 before it, and few after a pause of 30 times the collection


@pytest.mark.parametrize("computes", [True, False])
def test_python_s_lock_has_the_line_that_held_it(place: Place, tmp_path: Path, computes: bool) -> None:
    text = f"""{SLOW}
import threading
busy = threading.Event()
def other():
    while True:
        busy.wait()
        while busy.is_set():
            sum(range(50)) if {computes} else time.sleep(0.01)
threading.Thread(target=other, daemon=True).start()
for _ in range(60):
    train(1)
    busy.set()
    for _ in range(3):
        time.sleep(0)
    busy.clear()
"""
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    found = [one for one in owners(idle_of(trace)) if one.name == LOCK]
    assert len(found) == computes
    assert all(re.fullmatch(r"held at program\.py:\d+ other", one.most) for one in found)
    assert all(one.helps for one in found)


@pytest.mark.parametrize("computes", [True, False])
def test_another_thread_that_waits_for_python_s_lock_is_told(place: Place, tmp_path: Path, computes: bool) -> None:
    text = f"""
import ctypes, threading, time, torch
ended, unlocked = threading.Event(), ctypes.CDLL(None).usleep
def other():
    while not ended.is_set():
        sum(range(50)) if {computes} else time.sleep(0.01)
def work():
    begin = time.monotonic()
    while time.monotonic() - begin < 1.5:
        torch.catch_up()
        torch.steps(1)
        for _ in range(3):
            unlocked(300)  # us, in which another thread gets the lock
    ended.set()
threads = [threading.Thread(target=target) for target in (other, work)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    found = [one for one in owners(idle_of(trace)) if one.name == LOCK]
    assert len(found) == computes
    assert all(re.fullmatch(r"held at program\.py:\d+ other", one.most) for one in found)
    shares = [one.seconds / idle_of(trace).idle_s for one in found]
    assert all(share > 0.4 for share in shares)


def test_a_program_that_lacks_processors_is_told(place: Place, tmp_path: Path) -> None:
    text = f"""{SLOW}
import os, subprocess, sys
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
others = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2)]
for _ in range(40):
    train(1)
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
for other in others:
    other.kill()
    other.wait()
"""
    done = place.recorded(text, tmp_path, how=STACKS)
    (trace,) = done.traces
    assert trace.processor is not None
    assert trace.processor.ready_ns > 0.1 * trace.processor.all_ns
    assert trace.processor.ran_ns < trace.processor.all_ns
    absent = trace.ranges[np.isin(trace.ranges["name"], [trace.names.index(ABSENT)])]
    assert 0.5 < float((absent["end_ns"] - absent["begin_ns"]).sum()) / trace.processor.ready_ns < 1.1
    assert ABSENT in [one.name for one in owners(idle_of(trace))[:2]]
    (told,) = (one for one in findings(diagnose(trace, costs())) if one.rule == "diagnose.processor")
    assert told.title.startswith("The main thread could run but has no processor")
    seen = msgspec.structs.replace(trace, processor=trace.processor._replace(all_ns=10**7, ready_ns=10**7))
    rules = {one.rule for one in findings(diagnose(seen, costs()))}
    assert "diagnose.processor" not in rules, "what was seen for 10 ms says nothing of the time before"


def test_a_server_with_a_thread_for_each_request_waits_for_requests(place: Place, tmp_path: Path) -> None:
    """Each thread of the server ends before the next one begins, which often gets the same number."""
    text = """
import http.server, threading, time, torch, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        torch.catch_up()
        torch.unlocked.stand_in_steps(1, 20)
        time.sleep(0.01)
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
def ask():
    for _ in range(40):
        time.sleep(0.02)
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}").close()
    server.shutdown()
threading.Thread(target=ask).start()
server.serve_forever(0.05)
"""
    found = owners(idle_of(only(place.recorded(text, tmp_path, how=STACKS))))
    first = next(one for one in found if one.name != ABSENT)
    assert first.name == REQUESTS


def test_what_a_thread_does_that_has_the_work_counts_and_not_that_the_next_one_waits_for_some(
    place: Place, tmp_path: Path
) -> None:
    text = """
import threading, time, torch
from concurrent.futures import ThreadPoolExecutor
def work():
    torch.catch_up()
    torch.unlocked.stand_in_steps(1, 20)
    time.sleep(0.015)
with ThreadPoolExecutor(3) as pool:
    begun = threading.Barrier(3)
    list(pool.map(lambda _: begun.wait(), range(3)))
    for _ in range(40):
        pool.submit(work).result()
        time.sleep(0.005)
"""
    found = owners(idle_of(only(place.recorded(text, tmp_path, how=STACKS))))
    first, second = [one for one in found if one.name != ABSENT][:2]
    assert (first.name, second.name) == ("waiting in a sleep", "waiting in a lock or a queue")


def test_a_program_that_gives_the_lock_up_for_moments_is_sampled_all_the_same(place: Place, tmp_path: Path) -> None:
    """The lock that is taken back at once is never free when another thread wakes up for it."""
    text = "import ctypes, time, torch\nnothing = ctypes.CDLL(None).getppid\n"
    text += "def outer():\n    until = time.thread_time() + 0.004\n    while time.thread_time() < until:\n"
    text += "        nothing()\n        inner()\ndef inner():\n    for _ in range(5000): pass\n"
    text += "for _ in range(60):\n    torch.catch_up()\n    torch.steps(1)\n    outer()\n"
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    assert trace.samples is not None
    assert trace.samples.taken > 30


@pytest.mark.parametrize("how", [How(window_s=0.05, every_s=30, stacks=True), How(for_s=0.05, whole=True, stacks=True)])
def test_a_program_whose_libraries_end_later_than_python_ends_well(place: Place, tmp_path: Path, how: How) -> None:
    """The thread of samples still runs then. It must not call a Python that has ended."""
    (tmp_path / "slow.c").write_text(
        "#include <unistd.h>\n__attribute__((destructor)) static void ends(void) { usleep(150000); }\n"
    )
    library = tmp_path / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "slow.c"], check=True)
    text = f"import ctypes, time, torch\nctypes.CDLL({str(library)!r})\ntorch.steps(2)\ntime.sleep(0.13)\n"
    for number in range(3):
        (folder := tmp_path / str(number)).mkdir()
        assert place.recorded(text, folder, how=how).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("version", "stacks"), [("3.12", True), ("3.12", False), ("3.13", True)])
def test_frames_of_a_subinterpreter_are_not_read(place: Place, tmp_path: Path, version: str, stacks: bool) -> None:
    """It has memory of its own, so that one frame of it that this one lets go ends the program."""
    (tmp_path / "program.py").write_text(
        """
import threading, time, torch
import _xxsubinterpreters as interpreters
""".replace("_xxsubinterpreters", "_interpreters" if version > "3.12" else "_xxsubinterpreters")
        + f"""
text = "import time\\nuntil = time.time() + 0.5\\nf = lambda n: f(n - 1) if n else sum(range(100))\\n"
text += "while time.time() < until: f(20)"
made = interpreters.create()
other = threading.Thread(target=interpreters.{"exec" if version > "3.12" else "run_string"}, args=(made, text))
other.start()
while other.is_alive():
    torch.catch_up()
    torch.steps(1)
"""
    )
    done = place.ran([python(version), "program.py"], tmp_path, how=How(stacks=stacks, whole=True))
    assert (done.code, done.errors) == (0, "")
    assert any("subinterpreter" in cause for cause, _ in done.reasons) == stacks


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="its modules may not be loaded twice")
def test_samples_go_on_behind_a_subinterpreter(place: Place, tmp_path: Path) -> None:
    """A call that waited in its queue is lost with it."""
    spin = "import time\nuntil = time.thread_time() + 0.05\nwhile time.thread_time() < until: pass"
    text = f"import torch, time\nfrom test.support import run_in_subinterp\nrun_in_subinterp({spin!r})\n"
    text += "import ctypes\nnothing = ctypes.CDLL(None).getppid\nfor _ in range(400):\n    torch.catch_up()\n"
    text += "    torch.steps(1)\n    until = time.thread_time() + 0.004\n    while time.thread_time() < until:\n"
    text += "        nothing()\n        for _ in range(5000): pass\n"
    trace = only(place.recorded(text, tmp_path, how=STACKS))
    assert trace.samples is not None
    assert trace.samples.taken > 50

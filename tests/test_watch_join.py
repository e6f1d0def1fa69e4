"""Tests of Python that joins the recording which CUDA's driver has begun, because its own sitecustomize is hidden."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_watch_injection import facts_of
from test_watch_job import python as python_of
from test_watch_loops import new_python
from test_watch_stacks import ABSENT, SLEEPING, SLOW, idle_of
from watched import CELLS_OF_A_STEP, NotPython, Recorded, alone, cells_of

from microbench.diagnosis.steps import find_steps
from microbench.recorder.orders import Orders
from microbench.recorder.program import WHOLE, How
from microbench.traces.reading import read

STACKS = How(stacks=True, whole=True)
PROGRAM = "import os, sys; sys.path.insert(0, {site!r})" + SLOW
START = "torch.cuda.cuInit(0)\n"
SEEN = """
library = os.path.dirname(os.__file__)
own = [name for name, one in sys.modules.items() if not (getattr(one, "__file__", None) or library).startswith(library)]
print(sorted(name for name in own if not name.startswith("_microbench_watch")))
print(sorted(globals()), sys.path, list(map(type, sys.meta_path)))
sys.exit(7)
"""


def recorded(
    other: NotPython, folder: Path, text: str, *options: str, python: str = sys.executable, how: How = STACKS,
    recordings: str = "recordings",
) -> Recorded:  # fmt: skip
    """Run a program whose caller sets PYTHONPATH anew."""
    (folder / "program.py").write_text(PROGRAM.format(site=str(other.place.site)) + text)
    command = ["env", "PYTHONPATH=.", python, *options, "program.py"]
    return other.place.ran(command, folder, True, how, recordings, **other.variables)


def joined(done: Recorded, steps: int) -> None:
    """Assert that the one recording holds all steps, and that it names the line which sleeps between them."""
    assert done.reasons == []
    (trace,) = done.traces
    assert cells_of(trace) == steps * CELLS_OF_A_STEP
    assert next(one.name for one in idle_of(trace).places if one.name != ABSENT) == SLEEPING
    facts = facts_of(done.files[0])
    assert {"python", "main_thread", "version.torch", "ended"} <= facts.keys()
    assert "package" not in facts


@pytest.mark.parametrize(
    "options", [(), ("-I",), *(pytest.param((one,), marks=pytest.mark.slow) for one in ("-E", "-S"))]
)
def test_a_hidden_sitecustomize_is_made_up_for(other: NotPython, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = recorded(other, tmp_path, f"{START}train(30)\n{SEEN}", *options)
    variables = {**other.place.environment(**other.variables), "PYTHONPATH": "."}
    alone = subprocess.run(
        [sys.executable, *options, "program.py"], capture_output=True, text=True, cwd=tmp_path, check=False,
        env=variables,
    )  # fmt: skip
    assert (done.code, done.output, done.errors) == (7, alone.stdout, alone.stderr)
    joined(done, 30)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_each_python_from_39_on_joins(other: NotPython, tmp_path: Path, version: str) -> None:
    found = python_of(version)
    if not found:
        pytest.skip(f"no Python {version} here")
    done = recorded(other, tmp_path, f"{START}train(30)\nprint('_microbench_watch' in sys.modules)", python=found[0])
    assert (done.code, done.output, done.errors) == (0, f"{version != '3.8'}\n", "")
    if version != "3.8":
        joined(done, 30)
    (tmp_path / "late").mkdir()
    text = f"import threading\ndef work():\n    {START}    torch.steps(3)\nthreading.Thread(target=work).start()"
    done = recorded(other, tmp_path / "late", text, python=found[0])
    assert (done.code, done.output, done.errors, done.reasons) == (0, "", "", []), "the main thread has ended"
    assert cells_of(done.traces[0]) == 3 * CELLS_OF_A_STEP


def test_turns_of_loops_are_noted(other: NotPython, tmp_path: Path) -> None:
    python = new_python()
    if python is None:
        pytest.skip("no Python 3.12 here")
    trace = alone(recorded(other, tmp_path, f"{START}train(40)", python=python, how=WHOLE))
    steps = find_steps(trace)
    assert steps is not None
    assert (steps.found, steps.name) == ("loop", "program.py:6 train")


THREADS = {
    "that starts CUDA": "thread = threading.Thread(target=torch.cuda.cuInit, args=(0,))\nthread.start()\n",
    "that starts CUDA late": "threading.Timer(0.1, torch.cuda.cuInit, [0]).start()\ntime.sleep(0.2)\n",
    "that imports the package": (
        "def work():\n    del sys.modules['torch']\n    import torch\n    torch.cuda.cuInit(0)\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", THREADS)
def test_a_thread(other: NotPython, tmp_path: Path, kind: str) -> None:
    """It is the main thread that joins, whichever one starts CUDA."""
    text = f"import threading\n{THREADS[kind]}time.sleep(0.2)\ntrain(30)\nprint(threading.main_thread().ident)"
    done = recorded(other, tmp_path, text)
    assert (done.code, done.errors) == (0, "")
    joined(done, 30)
    assert int(facts_of(done.files[0])["main_thread"]) == int(done.output) & 0xFFFFFFFF


def test_a_main_thread_that_waits_joins_when_it_goes_on(other: NotPython, tmp_path: Path) -> None:
    text = f"import threading\ndef work():\n    {START}    train(30)\n"
    text += "thread = threading.Thread(target=work)\nthread.start()\nthread.join()"
    trace = alone(recorded(other, tmp_path, text))
    assert cells_of(trace) == 30 * CELLS_OF_A_STEP
    assert "Python" in trace.versions


def test_a_half_imported_module_of_the_library_is_waited_for(other: NotPython, tmp_path: Path) -> None:
    text = """
import threading
from importlib.machinery import SourceFileLoader as loader
execute = loader.exec_module
def half(self, module):
    if module.__name__ == "json.decoder":
        torch.cuda.cuInit(0)
        time.sleep(0.2)
        print("_microbench_watch" in sys.modules)
    execute(self, module)
loader.exec_module = half
import json
train(30)
"""
    done = recorded(other, tmp_path, text)
    assert (done.code, done.output, done.errors) == (0, "False\n", "")
    joined(done, 30)


def test_a_ctrl_c_ends_the_program_and_its_recording(other: NotPython, tmp_path: Path) -> None:
    done = recorded(other, tmp_path, f"import signal\n{START}train(30)\nsignal.raise_signal(signal.SIGINT)\nload()")
    assert done.code == -signal.SIGINT
    assert done.errors.rstrip().endswith("KeyboardInterrupt")
    assert "microbench" not in done.errors
    joined(done, 30)


def test_a_ctrl_c_while_python_joins_is_the_programs(other: NotPython, tmp_path: Path) -> None:
    text = f"""
import atexit, signal
atexit.register = lambda function: signal.raise_signal(signal.SIGINT)
try:
    {START}
    time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
train(3)
"""
    done = recorded(other, tmp_path, text)
    assert (done.code, done.output, done.errors, done.reasons) == (0, "interrupted\n", "", [])
    assert cells_of(done.traces[0]) == 3 * CELLS_OF_A_STEP
    assert "ended" in facts_of(done.files[0])


def test_python_that_cannot_join_is_told_and_recorded_all_the_same(other: NotPython, tmp_path: Path) -> None:
    done = recorded(other, tmp_path, f"sys.modules['fcntl'] = None\n{START}train(3)")
    assert (done.code, done.output, done.errors) == (0, "", "")
    ((cause, _),) = done.reasons
    assert cause.startswith("lines of Python, because import of fcntl halted")
    assert cells_of(done.traces[0]) == 3 * CELLS_OF_A_STEP
    assert "ended" in facts_of(done.files[0])


def test_a_recording_that_ends_after_its_time_has_the_last_samples(other: NotPython, tmp_path: Path) -> None:
    text = f"{START}train(20)\nwhile torch.library.stand_in_subscribed():\n    time.sleep(0.01)\ntrain(5)"
    done = recorded(other, tmp_path, text, how=STACKS._replace(for_s=1))
    assert (done.code, done.errors) == (0, "")
    joined(done, 20)


def test_recordings_that_are_ordered_have_samples_from_the_first_on(other: NotPython, tmp_path: Path) -> None:
    orders, ended = Orders(tmp_path / "orders", tmp_path / "now"), threading.Event()
    text = f"{START}while not os.path.exists('enough'):\n    train(1)\n"
    how, done = How(stacks=True, orders=str(tmp_path / "orders")), list[Recorded]()
    program = threading.Thread(target=lambda: done.append(recorded(other, tmp_path, text, how=how, recordings="now")))
    program.start()
    while not list((tmp_path / "now").iterdir()):
        time.sleep(0.1)
    time.sleep(1)
    (tmp_path / "into").mkdir()
    paths = [path for _ in range(2) for path in orders.record(0.5, 0.1, tmp_path / "into", ended.wait)]
    (tmp_path / "enough").touch()
    program.join()
    assert (done[0].code, done[0].errors, done[0].reasons) == (0, "", [])
    assert len(paths) == 2
    for path in paths:
        assert {"python", "main_thread", "version.torch", "ended"} <= facts_of(path).keys()
        assert next(one.name for one in idle_of(read(path)).places if one.name != ABSENT) == SLEEPING


@pytest.mark.slow
def test_a_forked_child_leaves_its_parents_recording_alone(other: NotPython, tmp_path: Path) -> None:
    text = f"""
import multiprocessing
def work():
    {START}    train(20)
fork = multiprocessing.get_context("fork")
child = fork.Process(target=work)  # before CUDA starts here, so it is recorded for itself
child.start(), child.join()
work()
if os.fork() == 0:
    sys.exit()
assert (os.wait()[1], child.exitcode) == (0, 0)
"""
    done = recorded(other, tmp_path, text)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    assert len(done.files) == 2
    for path in done.files:
        joined(done._replace(files=[path]), 20)


@pytest.mark.slow
def test_what_traces_the_program_sees_no_file_of_microbench(other: NotPython, tmp_path: Path) -> None:
    text = f"""
seen = set()
sys.settrace(lambda frame, event, argument: seen.add(frame.f_code.co_filename))
{START}
load()
sys.settrace(None)
print("<microbench>/recorder.py" in seen, sorted(one for one in seen if "microbench" in one and os.path.isfile(one)))
train(30)
"""
    done = recorded(other, tmp_path, text)
    assert (done.code, done.output, done.errors) == (0, "True []\n", "")
    joined(done, 30)

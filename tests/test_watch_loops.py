"""Tests of the turns of Python loops that a recording holds: in programs, and what the diagnosis makes of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from watched import Place, Recorded, turning

from microbench.diagnosis.idle import idle
from microbench.diagnosis.steps import Steps, find_steps
from microbench.diagnosis.turns import in_pauses, loops_of
from microbench.diagnosis.window import one_window
from microbench.recorder import cells
from microbench.recorder.program import WHOLE, How

# Pythons with sys.monitoring that may be on this machine.
PYTHONS = (
    sys.executable, "python3.12", "python3.13", "python3.14",
    *map(str, sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))),
)  # fmt: skip
IS_NEW = "import sys; sys.exit(sys.version_info < (3, 12))"


def new_python() -> str | None:
    for name in filter(shutil.which, PYTHONS):
        found = subprocess.run([name, "-c", IS_NEW], capture_output=True, check=False)
        if found.returncode == 0:
            return name
    return None


@pytest.fixture(scope="module")
def python() -> str:
    found = new_python()
    if found is None:
        pytest.skip("no Python 3.12 here")
    return found


def recorded(place: Place, python: str, text: str, folder: Path, how: How = WHOLE) -> Recorded:
    (folder / "program.py").write_text(text)
    done = place.ran([python, "program.py"], folder, how=how)
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    return done


def steps_of(done: Recorded) -> Steps:
    (trace,) = done.traces
    steps = find_steps(trace)
    assert steps is not None
    return steps


EPOCHS = """
import time, torch

def train():
    for epoch in range(6):
        for batch in range(20):
            torch.library.stand_in_now()
            for layer in range(3):
                torch.steps(1, 7)
            torch.steps(1, 4)
            time.sleep(0.004)

train()
"""


def test_the_step_is_a_turn_of_the_loop_over_batches(place: Place, tmp_path: Path, python: str) -> None:
    steps = steps_of(recorded(place, python, EPOCHS, tmp_path))
    assert (steps.found, steps.name) == ("loop", "program.py:6 train")
    assert steps.count > 80
    assert set(np.diff(steps.calls)) == {3 * 8 + 5}
    assert steps.loops[0][0] == "program.py:5 train"
    assert steps.loops[0][1] > 15 * steps.step_s


def test_the_loop_of_a_coroutine_that_waits_elsewhere_is_the_step(place: Place, tmp_path: Path, python: str) -> None:
    text = """
import asyncio, torch

async def serve():
    for request in range(120):
        torch.library.stand_in_now()
        torch.unlocked.stand_in_steps(1, 7)
        await asyncio.sleep(0.004)

asyncio.run(serve())
"""
    steps = steps_of(recorded(place, python, text, tmp_path, How(stacks=True, whole=True)))
    assert (steps.found, steps.name) == ("loop", "program.py:5 serve")
    assert steps.count > 80


def test_two_parts_that_each_turn_a_few_times_are_one_step(place: Place, tmp_path: Path, python: str) -> None:
    text = EPOCHS.replace("range(20)", "range(4)").replace("range(6)", "range(30)")
    text = text.replace("\ntrain()", "        torch.library.stand_in_now()\n        torch.steps(1, 2)\n\ntrain()")
    assert steps_of(recorded(place, python, text, tmp_path)).name == "program.py:5 train"


def test_a_loop_in_a_function_that_submits_little_is_no_step(place: Place, tmp_path: Path, python: str) -> None:
    text = """
import time, torch

def update():
    for parameter in range(10):
        torch.steps(1, 1)

step = 0
while step < 60:
    step += 1
    torch.library.stand_in_now()
    torch.steps(1, 40)
    update()
    time.sleep(0.004)
    if step % 2:
        continue
"""
    steps = steps_of(recorded(place, python, text, tmp_path))
    assert steps.name.startswith("program.py:"), steps.name
    assert steps.name.endswith(" <module>")
    assert set(np.diff(steps.calls)) == {41 + 10 * 2}


def test_of_a_fast_loop_some_turns_of_each_window_are_noted(place: Place, tmp_path: Path, python: str) -> None:
    text = turning(1.6, "torch.steps(1, 3)", "time.sleep(0)")
    (trace,) = recorded(place, python, text, tmp_path, How(window_s=0.2, every_s=0.5)).traces
    assert len(trace.windows) >= 2
    (loop,) = loops_of(one_window(trace))
    assert (loop.cut, len(loop.ends_ns) > 20, set(loop.submits)) == (True, True, {3})
    assert np.count_nonzero(trace.turns["last"]) >= len(trace.windows)
    stretches = in_pauses(trace, list(trace.pauses), "program.py:4 <module>", 1, stalls=False)
    assert max(map(len, stretches)) > 5


def test_without_a_window_the_recording_pauses_by_itself(place: Place, tmp_path: Path, python: str) -> None:
    text = turning(3.5, "torch.steps(1)", "time.sleep(0.004)", before="time.sleep(0.3)\n")
    (trace,) = recorded(place, python, text, tmp_path, How()).traces
    lengths_s = [(end - begin) * 1e-9 for begin, end in trace.windows]
    assert lengths_s[0] > 0.75, "it begins with the first kernel"
    assert 0.9 < lengths_s[1] < 1.4, "the second window is twice as long"
    times_ns = np.concatenate(in_pauses(trace, list(trace.pauses), "program.py:5 <module>", 1, stalls=False))
    assert 4e6 < np.median(times_ns) < 40e6, "a turn sleeps 4 ms, on however busy a machine"


def test_a_tool_of_the_program_keeps_its_own_events(place: Place, tmp_path: Path, python: str) -> None:
    text = """
import sys, time, torch
monitoring, seen = sys.monitoring, []
for tool in (3, 4):
    monitoring.use_tool_id(tool, "mine")
monitoring.register_callback(4, monitoring.events.PY_START, lambda code, offset: seen.append(code.co_name))
monitoring.set_events(4, monitoring.events.PY_START)
def step():
    torch.library.stand_in_now()
    torch.steps(1)
    time.sleep(0.002)
for turn in range(50):
    step()
print(seen.count("step"))
"""
    done = recorded(place, python, text, tmp_path)
    assert done.output == "50\n"
    assert len(done.traces[0].turns) == 0


def test_samples_are_taken_in_windows_alone_beside_the_turns(place: Place, tmp_path: Path, python: str) -> None:
    text = turning(2.5, "torch.steps(1)", "load()", before="def load():\n    time.sleep(0.006)\n")
    done = recorded(place, python, text, tmp_path, How(stacks=True))
    (trace,) = done.traces
    assert len(trace.windows) >= 2
    window = one_window(trace)
    steps = find_steps(window)
    assert steps is not None
    assert (steps.found, steps.name) == ("loop", "program.py:6 <module>")
    (most, *_) = idle(window, int(steps.begins_ns[0]), int(steps.begins_ns[-1]), 0).places
    assert most.name == "time.sleep at program.py:4 load"
    rows = np.fromfile(done.files[0], np.dtype(list(cells.ROW)))
    sampled = rows[rows["kind"] == cells.SAMPLES]["end_ns"] - (trace.epoch_ns or 0)
    for pause in trace.pauses:
        inside = (sampled > pause.begin_ns + 0.1e9) & (sampled < pause.end_ns)
        assert not inside.any()


def test_the_step_is_the_call_of_the_function_that_was_named(place: Place, tmp_path: Path, python: str) -> None:
    text = """
import time, torch

def load():
    for row in range(2):
        time.sleep(0.004)

def step():
    torch.library.stand_in_now()
    torch.steps(1, 7)
    time.sleep(0.006)

def main():
    for epoch in range(4):
        for batch in range(12):
            load()
            for part in range(2):
                time.sleep(0.0005)
            step()

main()
"""
    (trace,) = recorded(place, python, text, tmp_path, How(stacks=True, whole=True)).traces
    loop = "program.py:15 main"
    for asked in ("program.py:step", "program.py:15", "program.py:19"):
        steps = find_steps(trace, asked)
        assert steps is not None
        assert (steps.found, steps.name, steps.calls_of) == ("loop", loop, asked)
    for asked in ("program.py:main", "program.py:nothing", "other.py:step", "program.py:999"):
        steps = find_steps(trace, asked)
        assert steps is not None
        assert (steps.name, steps.calls_of) == (loop, ""), asked
    epochs = find_steps(trace, "program.py:14")
    assert epochs is not None
    assert (epochs.name, epochs.calls_of) == ("program.py:14 main", "program.py:14")

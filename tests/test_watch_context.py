"""Tests of microbench.watch() as a block of a program, with a stand-in for libcupti."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from watched import CELLS_OF_A_STEP, CUPTI, Place, cells_of

from microbench.library import recordings
from microbench.traces.reading import read

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder is for x86-64 alone")
ROOT = Path(recordings.__file__).parents[2]


def ran(place: Place, folder: Path, text: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A program that uses the library and has PyTorch's stand-in."""
    (folder / "program.py").write_text(f"import microbench, sys, torch\n{text}")
    paths = os.pathsep.join((str(place.site), str(ROOT)))
    variables = {"PYTHONPATH": paths, "MICROBENCH_DATA": str(folder / "data"), "TMPDIR": str(folder), **more}
    return subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        capture_output=True, text=True, cwd=folder, check=False, env=place.environment(**variables),
    )  # fmt: skip


def output(place: Place, folder: Path, text: str, **more: str) -> str:
    """What such a program prints; it must end well and say nothing else."""
    done = ran(place, folder, text, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_block_is_diagnosed_by_the_costs_that_the_command_uses(place: Place, tmp_path: Path) -> None:
    text = """
torch.steps(5)
with microbench.watch() as recording:
    torch.steps(30)
torch.steps(7)
diagnosis = recording.diagnosis()
assert type(diagnosis) is microbench.DiagnosedTraces
print(*diagnosis.bounds, diagnosis.to_dicts()[0]["step"]["count"], "costs of another machine" in str(diagnosis))
trace = recording._trace
print(len(trace.work), len(trace.calls), len(trace.syncs), recording.path.exists(), trace.versions["torch"])
print(torch.cuda.stand_in_synchronized(), torch.library.stand_in_subscribed())
"""
    first, rows, after = output(place, tmp_path, text).splitlines()
    assert first == "launch-bound 28 True"
    assert rows == "600 630 30 True 2.11.0", "the block and nothing else"
    assert after == "1 0", "the block has waited for its work, and CUPTI is free"
    assert [one.name for one in tmp_path.glob("microbench-*")] == [], "the file was temporary"


def test_each_block_has_a_recording_of_its_own(place: Place, tmp_path: Path) -> None:
    text = """
for steps in (3, 4, 5):
    with microbench.watch(f"steps-{steps}.rows", stacks=steps == 4) as recording:
        torch.steps(steps)
    assert str(recording.path).endswith(f"/steps-{steps}.rows")
"""
    output(place, tmp_path, text)
    for steps in (3, 4, 5):
        trace = read(tmp_path / f"steps-{steps}.rows")
        assert cells_of(trace) == steps * CELLS_OF_A_STEP
        assert (trace.lost, trace.unread) == ({}, {})


def test_a_thread_in_a_call_at_the_end_of_a_block_is_recorded_in_the_next(place: Place, tmp_path: Path) -> None:
    text = """
import threading, time
def other():
    torch.unlocked.stand_in_until(b"go")
    again.wait()
    torch.steps(5)

again, thread = threading.Event(), threading.Thread(target=other)
with microbench.watch("first.rows"):
    torch.steps(5)
    thread.start()
    while not torch.library.stand_in_in_a_call():
        time.sleep(0.001)
open("go", "w").close()
while torch.library.stand_in_in_a_call():
    time.sleep(0.001)
with microbench.watch("second.rows") as recording:
    again.set()
    thread.join()
print(len(recording._trace.calls))
"""
    assert output(place, tmp_path, text) == "105\n"


def test_the_counts_of_a_call_are_those_of_its_recordings(place: Place, tmp_path: Path) -> None:
    text = """
found = [microbench.counts(torch.steps, count) for count in (2, 2, 5)]
print([one.figures["launches"] for one in found], found[0] == found[1], found[0].steps, found[0].of)
print(dict(found[0].figures), type(found[0]) is microbench.Counts)
try:
    microbench.counts(lambda: None)
except microbench.UsageError as error:
    print(error)
"""
    first, second, third = output(place, tmp_path, text).splitlines()
    assert first == "[40, 40, 100] True 3 one call"
    assert second == "{'kernels': 40, 'launches': 40, 'waits': 2} True"
    assert third == "the block submitted nothing to a GPU"
    assert [one.name for one in tmp_path.glob("microbench-*")] == []


def test_what_the_block_raises_passes_through_and_the_recording_stays_readable(place: Place, tmp_path: Path) -> None:
    text = """
for error in (ValueError("mine"), SystemExit(3), KeyboardInterrupt()):
    try:
        with microbench.watch() as recording:
            torch.steps(3)
            raise error
    except BaseException as found:
        assert found is error
    assert len(recording._trace.work) == 60
with microbench.watch("last.rows"):
    torch.steps(4)
    sys.exit(7)
"""
    done = ran(place, tmp_path, text)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert cells_of(read(tmp_path / "last.rows")) == 4 * CELLS_OF_A_STEP


def test_a_forked_child_leaves_the_recording_to_its_parent(place: Place, tmp_path: Path) -> None:
    text = """
import os
with microbench.watch() as recording:
    torch.steps(3)
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    torch.steps(4)
assert len(recording._trace.work) == 140
"""
    output(place, tmp_path, text)


REFUSED = """
try:
    with microbench.watch({path}):
        print("never")
except Exception as error:
    print(type(error).__name__, "|", error, "|", error.next_step, "|", *error.__notes__)
"""


@pytest.mark.parametrize(("before", "path", "words", "next_step"), [
    (f"torch.library.cuptiSubscribe(torch.ctypes.byref(torch.ctypes.c_void_p()), None, None)  # {CUPTI}",
     "", "another profiler is attached to the process already", "run the program without the other profiler"),
    ("kept = microbench.watch(); kept.__enter__()",
     "", "microbench records this process already", "before another one begins"),
    ("with open('mine.rows', 'w') as file: file.write('mine')",
     "'mine.rows'", "/mine.rows exists", "give the name of a new file"),
    ("", "'not/there.rows'", "/not/there.rows cannot be written: No such file", "give another path"),
])  # fmt: skip
def test_a_block_that_cannot_be_recorded_raises_an_error_in_words(
    place: Place, tmp_path: Path, before: str, path: str, words: str, next_step: str
) -> None:
    name, cause, advice, note = output(place, tmp_path, before + REFUSED.format(path=path)).strip().split(" | ")
    assert name == "UsageError"
    assert words in cause
    assert next_step in advice
    assert note == f"next: {advice}"
    if (tmp_path / "mine.rows").exists():
        assert (tmp_path / "mine.rows").read_text() == "mine"


def test_a_recording_that_ends_before_its_block_warns_and_keeps_what_it_has(place: Place, tmp_path: Path) -> None:
    text = """
import resource, time, warnings
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    with microbench.watch("part.rows") as recording:
        for _ in range(30):
            torch.steps(100)
            time.sleep(0.02)  # kernels are handed over later than their calls, and are to be among what is written
print(*(one.message for one in found), sep="\\n")
print(len(recording._trace.work) > 1000, *recording.diagnosis().bounds)
"""
    warning, readable = output(place, tmp_path, text).splitlines()
    assert warning.startswith("not recorded: the rest, because")
    assert warning.endswith("cannot be written any more: File too large")
    assert readable == "True launch-bound"


def test_a_recording_is_asked_after_its_block_and_begun_once(place: Place, tmp_path: Path) -> None:
    text = """
recording = microbench.watch()
def refused(ask):
    try:
        ask()
    except microbench.UsageError as error:
        print(error, "|", error.next_step)
refused(recording.diagnosis)
print(recording)
with recording:
    refused(recording.to_pandas if "pandas" in sys.modules else recording.diagnosis)
refused(recording.diagnosis)
refused(recording.__enter__)
"""
    assert output(place, tmp_path, text).splitlines() == [
        "the block that is recorded has not ended | ask after the block of `with`",
        "<microbench.Recording: not ended>",
        "the block that is recorded has not ended | ask after the block of `with`",
        "the block submitted nothing to a GPU | record a block that runs kernels, copies or memsets",
        "this recording has been made already | call microbench.watch() for each block",
    ]


FRAMES = """
with microbench.watch() as recording:
    torch.kinds()
    torch.steps(2)
{imports}
try:
    work, calls = recording.to_pandas()
except Exception as error:
    print(error, "|", error.next_step)
"""


def test_without_pandas_there_is_an_error_in_words(place: Place, tmp_path: Path) -> None:
    said = output(place, tmp_path, FRAMES.format(imports="sys.modules['pandas'] = None"))
    assert said.startswith("pandas cannot be imported: ")
    assert said.endswith(" | pip install pandas\n")


def test_tables_have_words_for_names_kinds_and_memories(place: Place, tmp_path: Path) -> None:
    text = """
with microbench.watch("kinds.rows") as recording:
    torch.kinds()
"""
    output(place, tmp_path, text)
    trace = read(tmp_path / "kinds.rows")
    work, calls = recordings.columns(trace, trace.work), recordings.columns(trace, trace.calls)
    assert work["kind"].tolist() == ["kernel", "copy", "copy", "memset", *["kernel"] * 3]
    assert work["name"][0] == "my_kernel"
    assert work["source"][1:3].tolist() == ["pageable", "device"]
    assert work["target"][1:3].tolist() == ["device", "device"]
    assert calls["name"][0] == "cuLaunchKernel"
    assert calls["thread"].tolist() == [trace.threads[0].number] * len(trace.calls)


def test_pandas_gets_the_tables_of_work_and_calls(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    more = """
print(type(work).__name__, len(work), len(calls), work["bytes"].sum(), work["bytes"].isna().sum())
print(calls.loc[work["call"].iloc[0], "name"], (work["end_ns"] - work["begin_ns"]).iloc[0], work["kind"].iloc[0])
"""
    first, second = output(place, tmp_path, FRAMES.format(imports="") + more).splitlines()
    assert first == "DataFrame 47 51 12352 44"
    assert second == "cuLaunchKernel 4000 kernel"


def test_what_it_records_is_counted_for_launch_watched(place: Place, tmp_path: Path) -> None:
    """One recording after another in one process, whose files are gone afterwards."""
    text = """
import os
from microbench.experiments.launch.models import WatchRecorder
recorder = WatchRecorder()
print(tuple(recorder.recorded(lambda: torch.steps(5))))
with recorder.recording():
    torch.steps(3)
print(tuple(recorder.recorded(lambda: torch.steps(2))))
print([name for name in os.listdir(os.environ["TMPDIR"]) if "recording" in name])
"""
    assert output(place, tmp_path, text).splitlines() == ["(100, 105, 0, 0)", "(40, 42, 0, 0)", "[]"]
    done = ran(place, tmp_path, text, STAND_IN_STATUS="39")
    assert "Skip: microbench watch does not record here" in done.stderr


SHARED = """
import asyncio, copy, os, pickle, threading
def rows(recording):
    return len(recording._trace.work)
def block():
    try:
        with microbench.watch() as recording:
            torch.steps(2)
            together.wait()
        return rows(recording)
    except microbench.UsageError as error:
        together.wait()
        return str(error)
def in_threads(*functions):
    said = []
    threads = [threading.Thread(target=lambda function=each: said.append(function())) for each in functions]
    [each.start() for each in threads]
    [each.join() for each in threads]
    return sorted(said, key=str)
together = threading.Barrier(1)
"""


def test_blocks_in_threads_and_within_each_other_are_recorded_once_or_refused_in_words(
    place: Place, tmp_path: Path
) -> None:
    text = """
print(in_threads(block))
together = threading.Barrier(2)
print(in_threads(block, block))
together = threading.Barrier(1)
with microbench.watch() as outer:
    torch.steps(1)
    print(block())
print(rows(outer), block())
async def several():
    async def one():
        await asyncio.sleep(0)
        return block()
    with microbench.watch() as recording:
        await asyncio.gather(*(asyncio.to_thread(torch.steps, 1) for _ in range(3)))
    return rows(recording), await asyncio.gather(one(), one())
print(asyncio.run(several()))
microbench.watch().__enter__()  # a block that is never left ends with its object
print(block())
one = microbench.watch()
one.__enter__()
torch.steps(1)
print(in_threads(lambda: one.__exit__(None, None, None)), rows(one))
for _ in range(2):
    try:
        one.__exit__(None, None, None)
    except microbench.UsageError as error:
        print(error)
"""
    already = "microbench records this process already"
    assert output(place, tmp_path, SHARED + text).splitlines() == [
        "[40]", f"[40, '{already}']", already, "20 40", "(60, [40, 40])", "40", "[None] 20",
        *["no block is recorded"] * 2,
    ]  # fmt: skip


def test_counts_of_threads_and_of_async_functions_and_generators(place: Place, tmp_path: Path) -> None:
    text = """
def launches(function, *arguments):
    return microbench.counts(function, *arguments).figures["launches"]
async def awaited():
    await asyncio.sleep(0)
    torch.steps(1)
def yields():
    for _ in range(2):
        torch.steps(1)
        yield 1
print(in_threads(lambda: launches(torch.steps, 1)), launches(awaited), launches(yields))
async def running():
    try:
        launches(awaited)
    except microbench.UsageError as error:
        print(error)
    return await asyncio.to_thread(launches, awaited)
print(asyncio.run(running()))
"""
    assert output(place, tmp_path, SHARED + text).splitlines() == [
        "[20] 20 40", "an async function cannot be run here, where an event loop runs already", "20",
    ]  # fmt: skip


def test_recordings_and_what_is_made_of_them_can_be_copied(place: Place, tmp_path: Path) -> None:
    text = """
with microbench.watch() as recording:
    torch.steps(3)
for each in (pickle.loads(pickle.dumps(recording)), copy.deepcopy(recording), copy.copy(recording)):
    assert rows(each) == 60 and repr(each) == repr(recording)
found, counted = recording.diagnosis(), microbench.counts(torch.steps, 1)
for copied in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
    assert copied.to_dicts() == found.to_dicts() and str(copied) == str(found)
assert pickle.loads(pickle.dumps(counted)) == counted == copy.deepcopy(counted)
pickle.loads(pickle.dumps(microbench.trace_handler("traces")))
print(block())
"""
    assert output(place, tmp_path, SHARED + text) == "40\n"


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_a_block_leaves_nothing_and_the_next_one_is_recorded(
    place: Place, tmp_path: Path
) -> None:
    text = """
import random, signal, warnings
warnings.simplefilter("ignore", ResourceWarning)
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
seen = 0
for _ in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.05))
        with microbench.watch():
            torch.steps(3)
        for _ in range(2):  # a signal that has come is handled here, at the latest
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        seen += 1
    assert (found := block()) == 40, found
print(seen > 0)
"""
    done = ran(place, tmp_path, SHARED + text)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert [one.name for one in tmp_path.glob("microbench-*")] == []

"""What NVML and GPM say beside a recording and of a process by its number, through a stand-in for pynvml."""

import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snapshots
from command_line import call
from make_recording import BEGIN_NS, LAUNCH, recording, row
from nvml_stand_in import NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, library, refuse
from test_watch import COUNTING, command
from watched import Place

from microbench.core.errors import ExitCode, UsageError
from microbench.core.readings import MOST_VALUES, GpuReadings, Series, Share, State
from microbench.diagnosis.utilisation import compare, lines
from microbench.gpu.machine import nvml, utilisation
from microbench.gpu.machine.utilisation import Process, Sampler, boards
from microbench.host.files import Machine
from microbench.recorder import cells, job, program
from microbench.report.sheets.utilisation import screen
from microbench.traces.reading import read
from microbench.traces.trace import Trace

BUS_IDS = ("00000000:43:00.0", "00000000:C3:00.0")
APART_US = 1000
AHEAD_US = 200_000  # how far the stand-in's samples reach beyond the time of the call
SECOND_NS = 10**9


class GpmMetrics:
    """As pynvml's structure of the same purpose."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)]


def fill(metrics: GpmMetrics) -> None:
    """GPM's answer: 12.5 % of the SMs, if two different samples were given in their order."""
    assert (metrics.version, metrics.numMetrics, metrics.metrics[0].metricId) == (1, 1, 2)
    assert metrics.sample1["at"] < metrics.sample2["at"]
    metrics.metrics[0].value = 12.5


def sample_now(handle: Any, sample: dict[str, int]) -> None:
    sample["at"] = time.monotonic_ns()


def samples(handle: Any, kind: int, since_us: int) -> tuple[int, list[SimpleNamespace]]:
    """NVML's own samples of 98 %, one each ms."""
    assert kind == 1
    until_us = time.time_ns() // 1000 + AHEAD_US
    stamps = range(since_us + APART_US, until_us, APART_US)
    return 1, [SimpleNamespace(timeStamp=stamp, sampleValue=SimpleNamespace(uiVal=98)) for stamp in stamps]


def two_gpus(**functions: Any) -> SimpleNamespace:
    """A pynvml of two GPUs, of which the first is 98 % busy, as the functions given say otherwise."""
    usual = {
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid.removeprefix("GPU-")),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMinorNumber": lambda handle: 4 + handle,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=BUS_IDS[handle].encode()),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=140 << 30, used=12 << 30),
        "nvmlDeviceGetSamples": lambda handle, *rest: samples(handle, *rest) if handle == 0 else refuse(NOT_FOUND)(),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97 if handle == 0 else 0),
        "nvmlDeviceGetProcessUtilization": refuse(NOT_FOUND),
        "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
        "nvmlGpmSampleAlloc": dict, "nvmlGpmSampleGet": sample_now, "nvmlGpmMetricsGet": fill,
        "c_nvmlGpmMetricsGet_t": GpmMetrics,
    }  # fmt: skip
    return library(**{**usual, **functions})


def shares(series: Series[Share]) -> list[float]:
    return [one.share for one in series.values]


# What is sampled


def test_nvmls_own_samples_are_taken_once_with_the_time_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(ns=BEGIN_NS)
    monkeypatch.setattr(utilisation.time, "time_ns", lambda: now.ns)
    first, second = boards(two_gpus())
    first.take()
    count = len(first.readings.busy.values)
    now.ns += 50_000_000
    first.take()
    found = first.readings
    stamps = [one.at_ns for one in found.busy.values]
    assert (count, len(stamps)) == (199, 249)
    assert stamps == sorted(set(stamps))
    assert set(shares(found.busy)) == {0.98}
    assert found.apart_s == pytest.approx(APART_US * 1e-6)
    assert (found.number, found.name, found.bus_id, found.memory_bytes) == (0, "NVIDIA H200", "0000:43:00.0", 140 << 30)
    assert (second.readings.number, second.readings.bus_id, second.readings.states.values) == (1, "0000:c3:00.0", [])


@pytest.mark.parametrize("refused", [refuse(NOT_SUPPORTED), "absent"])
def test_without_own_samples_nvmls_present_share_is_taken(refused: Any) -> None:
    board = boards(two_gpus(nvmlDeviceGetSamples=refused))[0]
    board.take()
    assert shares(board.readings.busy) == [0.97]
    assert board.readings.apart_s is None


@pytest.mark.parametrize("answer", [refuse(NO_PERMISSION), (1, [])])
def test_where_no_own_sample_comes_the_present_share_is_taken_after_a_while(answer: Any) -> None:
    board = boards(two_gpus(nvmlDeviceGetSamples=answer))[0]
    for _ in range(utilisation.ROUNDS_WITHOUT):
        board.take()
    assert shares(board.readings.busy) == []
    board.take()
    assert shares(board.readings.busy) == [0.97]


def test_samples_on_another_clock_are_left_out() -> None:
    later = SimpleNamespace(timeStamp=time.time_ns() // 1000 + 10**12, sampleValue=SimpleNamespace(uiVal=50))
    board = boards(two_gpus(nvmlDeviceGetSamples=(1, [later])))[0]
    board.take()
    assert shares(board.readings.busy) == []


def test_gpm_is_read_between_samples_that_lie_far_enough_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(utilisation.time, "monotonic", lambda: now.s)
    board = boards(two_gpus())[0]
    for after_s, count in ((0.0, 0), (0.1, 1), (0.15, 1), (0.2, 2)):
        now.s = 100 + after_s
        board.take()
        assert shares(board.readings.sms) == [0.125] * count


@pytest.mark.parametrize(("functions", "words"), [
    ({"nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=0)}, "this GPU has no GPM"),
    ({"nvmlGpmQueryDeviceSupport": "absent"}, "nvmlGpmQueryDeviceSupport"),
    ({"nvmlGpmSampleGet": refuse(NO_PERMISSION)}, "NVML error 4"),
])  # fmt: skip
def test_without_gpm_the_reason_is_known_and_the_rest_is_there(functions: dict[str, Any], words: str) -> None:
    board = boards(two_gpus(**functions))[0]
    board.take()
    assert words in board.readings.why_not["sms"]
    assert shares(board.readings.sms) == []
    assert len(board.readings.busy.values) > 0


def test_a_long_series_keeps_values_of_its_whole_length() -> None:
    series: Series[int] = Series()
    count = 5 * MOST_VALUES
    for value in range(count):
        series.add(value)
    kept = series.values
    assert MOST_VALUES / 2 < len(kept) <= MOST_VALUES
    assert {after - before for before, after in pairwise(kept)} == {8}
    assert (kept[0], kept[-1]) == (7, count - count % 8 - 1)


# Beside a command


def sampled(reads: Any, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """A sampler whose block has lasted until NVML's thread had ended its first round, or had failed."""
    monkeypatch.setattr(utilisation, "LONGEST_END_S", 30.0)
    with Sampler(reads) as sampler:
        sampler.begin()
    return sampler


@pytest.mark.parametrize(("functions", "words"), [
    ({"nvmlInit": refuse(9)}, "NVML does not start: NVML error 9"),
    ({"nvmlDeviceGetCount": 0}, "NVML lists no GPU"),
    ({"c_nvmlGpmMetricsGet_t": "absent"}, "NVML's binding does not work here"),
])  # fmt: skip
def test_a_failure_of_nvml_is_a_reason(
    functions: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sampler = sampled(two_gpus(**functions), monkeypatch)
    assert words in sampler.reason
    assert lines(sampler.readings, [], sampler.reason) == [f"no utilisation: {sampler.reason}"]
    assert capfd.readouterr() == ("", "")


def test_without_the_binding_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", lambda: None)
    assert sampled(None, monkeypatch).reason == "nvidia-ml-py is not installed"


def test_a_call_of_nvml_that_does_not_return_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilisation, "LONGEST_END_S", 0.0)
    returned = threading.Event()
    with Sampler(two_gpus(nvmlInit=lambda: returned.wait(60))) as sampler:
        sampler.begin()
    assert "NVML did not answer" in sampler.reason
    returned.set()


def test_a_thread_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse_start)
    with Sampler(two_gpus()) as sampler:
        sampler.begin()
    assert sampler.reason == "no thread can be started: can't start new thread"


needs_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder is for x86-64 alone")


@pytest.mark.slow
@needs_x86_64
def test_the_thread_takes_no_signal_and_calls_nvml_only_when_the_command_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[set[int]] = []

    def start() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    monkeypatch.setattr(utilisation, "LONGEST_END_S", 30.0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with Sampler(two_gpus(nvmlInit=start)) as sampler:
        assert program.watch(["true"], tmp_path, when_begun=lambda reasons: sampler.begin()).status == 0
    assert {*job.PASSED_ON, signal.SIGCHLD} <= masks[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    count = len(masks)
    with pytest.raises(UsageError), Sampler(two_gpus(nvmlInit=start)) as sampler:
        program.watch(["not-there"], tmp_path, when_begun=lambda reasons: sampler.begin())
    assert len(masks) == count


@pytest.mark.slow
@needs_x86_64
def test_a_command_that_ends_before_it_is_waited_for_is_noticed(tmp_path: Path) -> None:
    """Another thread without blocked signals, such as numpy's, takes the signal of its end."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)

    def until_it_ended(reasons: Path) -> None:
        os.close(write_end)
        assert os.read(read_end, 1) == b""

    try:
        assert program.watch(["true"], tmp_path, when_begun=until_it_ended).status == 0
    finally:
        stop.set()
        other.join()
        os.close(read_end)


# Beside a recording


def trace(folder: Path, *spans: tuple[float, float], device: int = 0, **facts: object) -> Trace:
    """A recording of kernels at these times in s; they belong to a call at time 0."""
    rows = [row(cells.RUNTIME, 0, 1, detail=LAUNCH, correlation=1, place=9)]
    rows += [row(cells.KERNEL, at * 1e6, length * 1e6, correlation=1, stream=7, place=device) for at, length in spans]
    path = folder / f"{len(list(folder.iterdir()))}.rows"
    path.write_bytes(recording(*rows, **facts))
    return read(path)


def gpu(number: int = 0, *, share: float = 0.98, until_s: float = 10.0, apart_s: float | None = 0.2) -> GpuReadings:
    """Readings of NVML every 200 ms, of GPM every 100 ms."""
    found = GpuReadings(number, "NVIDIA H200", ("0000:43:00.0", "0000:c3:00.0")[number], apart_s=apart_s)
    for at in range(1, round(until_s / 0.2) + 1):
        found.busy.add(Share(BEGIN_NS + at * SECOND_NS // 5, share))
    for at in range(1, round(until_s / 0.1) + 1):
        found.sms.add(Share(BEGIN_NS + at * SECOND_NS // 10, 0.125))
    return found


def every(period_s: float, length_s: float, until_s: float = 10.0) -> list[tuple[float, float]]:
    return [(place * period_s, length_s) for place in range(round(until_s / period_s))]


def test_kernels_of_several_processes_on_a_gpu_are_one_union(tmp_path: Path) -> None:
    first = trace(tmp_path, *every(0.01, 0.004))
    second = trace(tmp_path, *[(at + 0.002, length) for at, length in every(0.01, 0.004)])
    found = compare(gpu(), [(first, 0), (second, 0)])
    assert found.ran == pytest.approx(0.6, abs=1e-3)


def test_time_that_is_not_recorded_does_not_count(tmp_path: Path) -> None:
    """Neither between two processes nor between two windows of one."""
    early = every(0.01, 0.005, until_s=2)
    late = [(7 + at, length) for at, length in early]
    stamps = (
        f"{BEGIN_NS + begin * SECOND_NS}-{BEGIN_NS + round(end * SECOND_NS)}" for begin, end in ((0, 1.99), (7, 8.99))
    )
    windows = {f"window.{number}": stamp for number, stamp in enumerate(stamps)}
    for traces in ([trace(tmp_path, *early), trace(tmp_path, *late)], [trace(tmp_path, *early, *late, **windows)]):
        found = compare(gpu(), [(one, 0) for one in traces])
        assert found.ran == pytest.approx(0.5, abs=1e-3)
        assert found.span_s == pytest.approx(1.8 + 1.8)


def test_copies_are_no_kernels(tmp_path: Path) -> None:
    path = tmp_path / "copies.rows"
    copies = [row(cells.MEMCPY, at * 1e6, length * 1e6, size=9) for at, length in every(0.01, 0.005)]
    path.write_bytes(recording(*copies, row(cells.KERNEL, 0, 1e6)))
    found = compare(gpu(), [(read(path), 0)])
    assert found.ran == pytest.approx(1 / found.span_s, abs=0.01)


def test_what_is_said_of_both_figures(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES=1 makes NVML's second GPU the first of the program."""
    usual = trace(tmp_path, *every(0.01, 0.0025))
    second = trace(tmp_path, *every(0.01, 0.0025), **{"bus.0": "0000:C3:00.0"})
    idle, refused = gpu(share=0.0), gpu(share=0.0)
    refused.why_not["busy"] = "NVML: Not Supported"
    told = {
        "of the same time": lines([gpu()], [usual], ""),
        "the second GPU": lines([gpu(0, share=0.5), gpu(1)], [second], ""),
        "a GPU of unknown number": lines([gpu(0, share=0.0), gpu(1)], [usual], ""),
        "too short": lines([gpu()], [trace(tmp_path, (0.0, 0.3))], ""),
        "nothing recorded": lines([gpu()], [], ""),
        "nothing sampled": lines([idle], [], ""),
        "not allowed": lines([refused], [], ""),
        "NVML ended": lines([gpu()], [usual], "NVML did not answer within 0.5 s"),
        "the time between samples is unknown": lines([gpu(apart_s=None)], [usual], ""),
    }
    snapshots.same("utilisation", "\n\n".join("\n".join((f"== {name}", *words)) for name, words in told.items()))


@pytest.fixture
def here(place: Place, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in an environment in which programs find the stand-ins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(utilisation, "LONGEST_END_S", 30.0)
    for name, value in {**place.environment(), "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def watched(text: str, *options: str) -> Any:
    Path("program.py").write_text(text)
    return call("watch", *options, "--", sys.executable, "program.py")


def test_watch_prints_both_figures_of_the_same_time(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", two_gpus)
    result = watched("import torch\ntorch.steps(300)\nraise SystemExit(3)", "--utilisation")
    assert result.exit_code == 3
    shown = " ".join(result.stderr.split())
    found = re.search(r"NVML said 98.0 % busy, kernels ran (\S+) % of the time \(GPU 0, (\S+) ms\)", shown)
    assert found is not None, shown
    (path,) = (here / "recording-1").iterdir()
    work = read(path).work
    span_ns = int(work["end_ns"].max() - work["begin_ns"].min())
    busy = int((work["end_ns"] - work["begin_ns"]).sum()) / span_ns
    assert float(found[1]) / 100 == pytest.approx(busy, rel=0.05)
    assert float(found[2]) == pytest.approx(span_ns / 1e6, abs=2 * APART_US / 1000 + 1)
    assert "NVML's samples are 1.00 ms apart: nothing shorter than 2.00 ms" in shown
    assert "Launch-bound" in shown


def test_watch_without_nvml_is_watch_with_a_line_more(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", lambda: None)
    result = watched("import torch\ntorch.steps(30)\nraise SystemExit(3)", "--utilisation")
    assert result.exit_code == 3
    assert "no utilisation: nvidia-ml-py is not installed" in result.stderr
    assert "Launch-bound" in result.stderr
    assert "utilisation" not in watched("import torch\ntorch.steps(30)").stderr


def test_a_signal_to_microbench_reaches_the_program_all_the_same(here: Path) -> None:
    line = command(COUNTING, "--utilisation")
    root = str(Path(program.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], root))}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate()
    assert (running.returncode, output) == (4, "SIGTERM\n")
    assert "Launch-bound" in errors


def test_a_program_that_is_not_recorded_has_nvmls_figures(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", two_gpus)
    result = watched("print(1)", "--utilisation")
    assert "NVML said 98.0 % busy (GPU 0); nothing was recorded" in result.stderr
    assert "not recorded: no " in result.stderr


# Of a process that runs already


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def lists(pid: int, **functions: Any) -> SimpleNamespace:
    """A pynvml on whose second GPU this process computes."""
    own = [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30)]
    return two_gpus(
        nvmlDeviceGetComputeRunningProcesses=lambda handle: own if handle == 1 else [],
        nvmlDeviceGetSamples=lambda handle, *rest: samples(handle, *rest),
        nvmlDeviceGetProcessUtilization=lambda handle, since_us: [
            SimpleNamespace(pid=one, timeStamp=since_us + 100, smUtil=util) for one, util in ((pid, 40), (1, 50))
        ],
        nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x1,
        **functions,
    )  # fmt: skip


def test_a_process_is_followed(process: subprocess.Popen[bytes], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def power(handle: int) -> int:
        rounds.append(handle)
        if len(rounds) == 3:
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return 100_000 * len(rounds)

    monkeypatch.setattr(nvml, "load", lambda: lists(process.pid, nvmlDeviceGetPowerUsage=power))
    result = call("watch", "--pid", str(process.pid), COLUMNS="120")
    assert result.exit_code == ExitCode.MEASURED
    assert rounds == [1, 1, 1]
    assert f"sampling GPU 1 of process {process.pid} (" in result.stderr
    shown = " ".join(result.stdout.split())
    for words in (
        "GPU 1", "NVIDIA H200", f"process {process.pid}", "98.0 % of the time any kernel ran",
        "12.5 % of the SMs busy", "40.0 % of the time its kernels ran · p10 to p90: 40.0 % to 40.0 %",
        "345 MHz", "3.20 GHz", "power 200 W · p10 to p90: 120 W to 280 W", "at most 12.0 GiB of 140 GiB, by all",
        "software power cap 100 % of the time", "nothing shorter than 2.00 ms can be seen", "however small",
        "next: microbench watch -- the same command",
    ):  # fmt: skip
        assert words in shown, shown
    assert "device files" not in shown
    assert "idle" not in shown


def test_ctrl_c_and_the_given_time_end_it_with_the_screen(process: subprocess.Popen[bytes]) -> None:
    assert len(Process(process.pid, lists(process.pid)).follow(0.0).gpus[0].states.values) == 1

    def interrupted(handle: int) -> int:
        raise KeyboardInterrupt

    followed = Process(process.pid, lists(process.pid, nvmlDeviceGetPowerUsage=interrupted)).follow(None)
    assert shares(followed.gpus[0].process) == [0.4]
    assert screen(followed).blocks[0].name == "GPU 1"


def test_in_a_container_the_gpus_are_those_whose_files_it_has_open(tmp_path: Path) -> None:
    folder = tmp_path / "proc/77"
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"77 (a) name) S {' '.join(str(field) for field in range(4, 53))}")
    (folder / "comm").write_text("train\n")
    (folder / "fd/3").symlink_to("/dev/nvidia5")
    own = tmp_path / "proc/self/ns"
    own.mkdir(parents=True)
    (own / "pid").symlink_to("pid:[4026532999]")
    followed = Process(77, lists(4_000_000), Machine(tmp_path)).follow(0.0)
    assert [gpu.number for gpu in followed.gpus] == [1]
    shown = screen(followed)
    assert "device files it has open" in shown.left_out
    (line,) = (line for line in shown.blocks[0].lines if line.name == "the process")
    assert line.parts[0].text == "not given: NVML knows it by another number"
    (own / "pid").unlink()
    (own / "pid").symlink_to(nvml.FIRST_PID_NAMESPACE)
    with pytest.raises(UsageError, match=r"process 77 \(train\) computes on no GPU"):
        Process(77, lists(4_000_000), Machine(tmp_path))


def test_what_slowed_it_is_only_what_lowers_the_clock(process: subprocess.Popen[bytes]) -> None:
    followed = Process(process.pid, lists(process.pid)).follow(0.0)
    states = followed.gpus[0].states
    calm = states.values[0].telemetry
    states.values = [State(calm, None)] * 3 + [State(type(calm)(throttle_reasons=("idle",)), None)]
    (line,) = (line for line in screen(followed).blocks[0].lines if line.name == "slowed by")
    assert [cell.text for cell in line.parts] == ["software power cap 75.0 % of the time"]
    states.values = states.values[3:]
    (line,) = (line for line in screen(followed).blocks[0].lines if line.name == "slowed by")
    assert ([cell.text for cell in line.parts], line.verdict) == (["nothing"], None)


@pytest.mark.parametrize(("functions", "words"), [
    ({"nvmlDeviceGetComputeRunningProcesses": []}, "computes on no GPU"),
    ({"nvmlInit": refuse(12)}, "nothing can be sampled: NVML does not start: NVML error 12"),
])  # fmt: skip
def test_a_process_that_cannot_be_sampled_is_an_error(
    process: subprocess.Popen[bytes], functions: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "load", lambda: two_gpus(**functions))
    monkeypatch.setattr(nvml, "contained", lambda machine: False)
    result = call("watch", "--pid", str(process.pid))
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr


@pytest.mark.parametrize("pid", ["0", "-1", "2147483647", "ended"])
def test_no_process_is_an_error(pid: str, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", two_gpus)
    if pid == "ended":  # and nobody has asked for its exit code yet
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        pid = str(process.pid)
    result = call("watch", "--pid", pid)
    assert result.exit_code == ExitCode.USAGE
    assert f"there is no process {pid} here" in result.stderr

"""`microbench measure` on the simulated GPU: own functions and kernels, graphs, what stops a capture, the screen."""

import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from fake_session import exact, facts, medians
from msgspec.structs import replace
from typer.testing import Result

import microbench as mb
from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.core.model import Run
from microbench.core.targets import Argument, argument, check_kernel, dimensions, number, target
from microbench.core.units import percent, quantity
from microbench.experiments.own import callables
from microbench.experiments.own.callables import OwnCall, bound
from microbench.experiments.own.culprit import follow
from microbench.experiments.own.step import WARM_UPS, NotCapturedError, SimulatedOwnStep, own_step
from microbench.explain import own
from microbench.explain.compute_products import bandwidth_roof
from microbench.explain.rules import of_suite
from microbench.gpu.fake.costs import FakeCosts
from microbench.library.runs import ceilings_of
from microbench.report.suites.own import roofline

STEPS = """
import os, signal, time
from microbench.core.ops import Launch

def setup(gpu, count=1):
    return gpu.bind(Launch(duration_ns=2000)), count

def step(kernel, count):
    kernel(10 * count)

def waiting(kernel, count, gpu):
    kernel(2)
    wait(gpu)
    kernel(1)

def wait(gpu):
    gpu.synchronize()

def killed(count):
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)

def stuck(kernel, count):
    while count == 2:
        time.sleep(1)
    kernel(1)

def failing(count):
    raise RuntimeError("no such thing")
"""
KERNELS = """
extern "C" __global__ void saxpy(const float* x, float* __restrict__ y, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] += a * x[i];
}
template <typename T> __global__ void scale(T* x, T a) { x[threadIdx.x] *= a; }
"""
RATED = """
from microbench.core.ops import Launch

def setup(gpu, duration, count=1):
    return gpu.bind(Launch(duration_ns=duration)), count, gpu

def copy(kernel, count, gpu):
    kernel(count)

def waiting(kernel, count, gpu):
    kernel(count)
    gpu.synchronize()
"""
RUN_WHOLE = """
import asyncio, functools, time
ran = []
class Odd(Exception):
    def __str__(self): raise KeyError("odd")
async def awaited():
    await asyncio.sleep(0)
    ran.append(1)
    return "done"
def yields():
    yield "first"
    ran.append(1)
    yield "done"
async def both():
    yield "first"
    ran.append(1)
    yield "done"
class Step:
    async def __call__(self):
        ran.append(1)
        return "done"
step, part = Step(), functools.partial(awaited)
async def prepared(): return "done",
def given(word):
    ran.append(1)
    return word
def unrun(): return awaited()
def lazy(): return yields()
def odd(): raise Odd
def clocks():
    time.monotonic = time.perf_counter = lambda: 0.0
    time.monotonic_ns = time.perf_counter_ns = lambda: 0
def slow(): time.sleep(0.002)
"""
SAXPY = ("--arg", "f32[1<<20]", "--arg", "f32[1<<20]", "--arg", "2.0f")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "rated.py").write_text(RATED)
    (tmp_path / "kernels.cu").write_text(KERNELS)
    (tmp_path / "whole.py").write_text(RUN_WHOLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in ("steps", "rated", "whole"):
        sys.modules.pop(name, None)


def measure(*arguments: str) -> tuple[Result, Run]:
    result = call("measure", *arguments, "--device", "fake", "--out", "run.json", COLUMNS="80")
    return result, store.read(Path("run.json"))


def found(run: Run) -> dict[str, Finding]:
    return {one.rule: one for one in of_suite(evidence_by_device(run, rows(run))[0], "own")}


def test_counts_of_each_case_follow_on_request() -> None:
    shown, _ = measure("steps.py::step", "--setup", "steps.py::setup", "--axis", "count=1,8", "--counts")
    assert "counts  10 launches, 10 kernels" in shown.output
    assert "counts  80 launches, 80 kernels" in shown.output


def test_a_function_is_timed_counted_captured_and_replayed() -> None:
    result, run = measure("steps.py::step", "--setup", "steps.py::setup", "--axis", "count=1,8")
    assert result.exit_code == 0
    one, eight = own.steps(evidence_by_device(run, rows(run))[0])
    assert [step.fact("launches") for step in (one, eight)] == [10, 80]
    assert [step.fact("recorded_kernels") for step in (one, eight)] == [10, 80]
    assert one.fact("moved_nodes") == 0
    costs = FakeCosts()
    assert one.submit.value == pytest.approx(10 * costs.submit_ns * 1e-9, rel=0.02)
    assert one.gpu is not None
    assert one.gpu.value == pytest.approx(10 * (costs.kernel_ns(2000) + costs.gap_stream_ns) * 1e-9, rel=0.05)
    assert one.gain is not None
    assert one.gain == pytest.approx(one.step.value / one.graph.value)
    assert one.gain > 1.1
    won_s = one.step.value - one.graph.value
    assert (one.pays_after - 1) * won_s < one.capture.value + one.instantiate.value <= one.pays_after * won_s
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("count=1" in line and "a step" in line for line in lines[:8])
    assert "SIMULATED" in lines[0]
    assert found(run)["own.graph"].severity == "advice"
    assert [name for name, *_ in own.launched(one)] == ["simulated_2000ns"]
    partly = with_fact(run, "recorded_kernels", 90)
    _, eight = own.steps(evidence_by_device(partly, rows(partly))[0])
    assert (eight.kernels_outside, eight.gain, eight.pays_after) == (10, None, None)
    assert found(partly)["own.elsewhere"].title == "The graph of count=1 lacks 80 of its kernels"
    assert "own.graph" not in found(partly)


def with_fact(run: Run, name: str, value: int) -> Run:
    """The run with this value of a fact in every outcome."""
    return replace(
        run,
        outcomes=tuple(
            replace(each, facts=tuple(replace(one, value=value) if one.name == name else one for one in each.facts))
            for each in run.outcomes
        ),
    )


def test_what_stops_a_capture_is_the_users_line() -> None:
    result, run = measure("steps.py::waiting", "--setup", "steps.py::setup")
    assert result.exit_code == 0
    line = STEPS.splitlines().index("    gpu.synchronize()") + 1
    (step,) = own.steps(evidence_by_device(run, rows(run))[0])
    assert step.fact("blocked_line") == f"steps.py:{line} in wait: gpu.synchronize()"
    assert str(step.fact("blocked_call")).startswith("FakeGpu.synchronize")
    assert "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in own.blocking_error(step)
    assert step.fact("recorded_kernels") == 3
    assert (step.gpu, step.gain) == (None, None)
    assert step.limit.startswith("waits")
    finding = found(run)["own.blocked"]
    assert finding.severity == "warning"
    assert f"steps.py:{line}" in finding.title


@pytest.mark.slow
def test_a_killed_a_stuck_and_a_failing_case_do_not_end_the_others() -> None:
    for function, status in (("killed", "crashed"), ("stuck", "timed_out")):
        setup = ("--setup", "steps.py::setup") if function == "stuck" else ()
        Path("run.json").unlink(missing_ok=True)
        result, run = measure(f"steps.py::{function}", *setup, "--axis", "count=2,1", "--limit", "8s")
        assert result.exit_code == 1
        assert [one.status for one in run.outcomes] == [status, "ok"]
        assert f"{status.replace('_', ' ')}: count=2" in result.stdout
    Path("run.json").unlink()
    result, run = measure("steps.py::failing", "--axis", "count=1")
    line = STEPS.splitlines().index('    raise RuntimeError("no such thing")') + 1
    assert f"RuntimeError: no such thing (steps.py:{line} in failing: raise" in (run.outcomes[0].reason or "")


def test_a_kernel_has_its_time_its_resources_and_its_limit() -> None:
    work = ("--bytes", "12MiB", "--flop", "2<<20")
    result, run = measure("kernels.cu:saxpy", "--grid", "4096", "--block", "256", *SAXPY, *work)
    assert result.exit_code == 0
    (kernel,) = own.kernels(evidence_by_device(run, rows(run))[0])
    costs = FakeCosts()
    blocks = 132 * (2048 // 256)
    expected_s = (12 << 20) / costs.memory.dram_bytes_per_s.mixed * -(-4096 // blocks) / (4096 / blocks)
    assert kernel.best_s == pytest.approx(expected_s + costs.profiler_ns * 1e-9, rel=0.1)
    assert kernel.waves == pytest.approx(4096 / blocks, rel=1e-3)
    assert kernel.occupancy == 1.0
    assert kernel.limit[0] == "unknown"  # the run has no ceilings, and nobody else has measured this GPU
    assert "microbench run memory compute" in kernel.limit[1]
    assert all(fact.source == "SIMULATED" for fact in run.outcomes[0].facts if fact.name == "registers")


@pytest.mark.parametrize(("grid", "bytes_", "limit"), [
    ("1056", "1GiB", "bandwidth"),
    pytest.param("1", "0", "launch", marks=pytest.mark.slow),
    pytest.param("1188", "64MiB", "tail", marks=pytest.mark.slow),
    pytest.param("1056", "60MiB", "bandwidth", marks=pytest.mark.slow),
])  # fmt: skip
def test_the_limit_of_a_kernel_under_the_ceilings_of_its_run(grid: str, bytes_: str, limit: str) -> None:
    ran = call("run", "memory_stream", "--quick", "--device", "fake", "--out", "run.json")
    assert ran.exit_code == 0
    arguments = ("kernels.cu:saxpy", "--grid", grid, "--block", "256", *SAXPY, "--bytes", bytes_)
    result = call("measure", *arguments, "--device", "fake", "--into", "run.json")
    assert result.exit_code == 0
    run = store.read(Path("run.json"))
    (kernel,) = own.kernels(evidence_by_device(run, rows(run))[0])
    assert kernel.limit[0] == limit


@pytest.mark.slow
def test_kernels_are_drawn_under_the_measured_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("run", "memory_stream", "gemm_throughput", "--quick", "--device", "fake", "--out", "run.json")
    arguments = ("kernels.cu:saxpy", "--grid", "1056", "--block", "256", *SAXPY, "--bytes", "1GiB", "--flop", "1<<30")
    assert call("measure", *arguments, "--device", "fake", "--into", "run.json").exit_code == 0
    run = store.read(Path("run.json"))
    (group,) = evidence_by_device(run, rows(run))
    (kernel,) = own.kernels(group)
    drawn = roofline(group)
    assert drawn is not None
    assert drawn.lines[0].points == ((1.0, (1 << 30) / kernel.best_s),)
    roof = dict(drawn.lines[1].points)
    assert max(roof.values()) == max(rate for _, rate in drawn.lines[2].points)
    assert "Your kernels and functions under" in call("show", "run.json", "own").stdout
    far = kernel._replace(rates=kernel.rates._replace(ceilings=(kernel.rates.ceilings[0]._replace(share=0.1),)))
    assert (far.limit[0], far.limit[1].partition("; ")[2].partition(":")[0]) == (
        "unknown",
        "the other ceiling is not known",
    )
    l2 = own.Ceiling(own.L2_CEILING, 11e12, "B/s", 0.3)
    cached = kernel._replace(rates=kernel.rates._replace(ceilings=(l2,)))
    monkeypatch.setattr(own, "kernels", lambda evidence: [cached])
    drawn = roofline(group)
    assert drawn is not None
    dram, of_l2, compute = (line.points for line in drawn.lines[1:])
    assert of_l2[0][1] / dram[0][1] == pytest.approx(11e12 / (dram[0][1] / dram[0][0]))
    assert compute[0] == of_l2[1]


OF_A_KERNEL, OF_A_CALL = "the kernel's duration", "the GPU's time of a call"
OF_ALL = "the sum of its kernels' durations"


@pytest.mark.parametrize(("function", "count", "duration", "metric", "over"), [
    ("copy", 1, 200_000, "kernels", OF_A_KERNEL), ("copy", 1, 100, "kernels", OF_A_KERNEL),
    ("copy", 4, 50_000, "gpu", OF_A_CALL), ("copy", 4, 100, "gpu", OF_A_CALL),
    ("waiting", 4, 50_000, "kernels", OF_ALL),
])  # fmt: skip
def test_a_functions_rate_is_made_from_the_time_of_the_gpu(
    function: str, count: int, duration: int, metric: str, over: str
) -> None:
    case: dict[str, int | str] = {"function": f"rated.py::{function}", "setup": "rated.py::setup"}
    case |= {"bytes": "4000*duration*count", "flop": "duration", "duration": duration, "count": count}
    taken = medians("own_step", **case)
    assert taken["bandwidth"] == pytest.approx(4000 * duration * count / taken[metric])
    assert taken["throughput"] == pytest.approx(duration / taken[metric])
    assert facts("own_step", **case)["rates_over"].value == over
    costs = FakeCosts()
    if duration == 100:
        assert taken["submit"] > 1.3 * taken[metric], "its host's time is another one"
    if metric == "gpu":
        assert taken["gpu"] == pytest.approx(count * (costs.kernel_ns(duration) + costs.gap_stream_ns) * 1e-9, rel=0.02)
    bare = medians("own_step", **{name: value for name, value in case.items() if name not in ("bytes", "flop")})
    assert {"bandwidth", "throughput"} & {*bare} == set()


def test_a_rate_whose_time_nobody_knows_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> object:
        raise Skip("needs CUPTI")

    monkeypatch.setattr(SimulatedOwnStep, "profiled_ns", unknown)
    case = {"setup": "rated.py::setup", "bytes": "1GB", "duration": 1000}
    assert "bandwidth" in medians("own_step", function="rated.py::copy", **case)
    assert facts("own_step", function="rated.py::copy", **case)["rates_over"].value == OF_A_CALL
    assert "bandwidth" not in medians("own_step", function="rated.py::waiting", **case)
    told = facts("own_step", function="rated.py::waiting", **case)["rates_over"].reason
    assert told == "neither a gate nor CUPTI tells the GPU's time of a call"


def test_functions_and_kernels_are_told_their_share_of_the_ceiling_in_the_same_words() -> None:
    assert call("run", "memory_stream", "--quick", "--device", "fake", "--out", "run.json").exit_code == 0
    kernel = ("kernels.cu:saxpy", "--grid", "1056", "--block", "256", *SAXPY, "--bytes", "1GiB")
    assert call("measure", *kernel, "--device", "fake", "--into", "run.json").exit_code == 0
    function = ("rated.py::copy", "--setup", "rated.py::setup", "--axis", "duration=260000,100")
    work = ("--bytes", "4000*duration")
    result = call("measure", *function, *work, "--device", "fake", "--into", "run.json", COLUMNS="200")
    assert result.exit_code == 0
    run = store.read(Path("run.json"))
    group = evidence_by_device(run, rows(run))[0]
    (saxpy,), (long, short) = own.kernels(group), own.steps(group)
    roof = bandwidth_roof(group)
    assert roof is not None
    for rates in (saxpy.rates, long.rates, short.rates):
        assert rates.bandwidth is not None
        assert rates.near is not None
        assert rates.near.share == pytest.approx(rates.bandwidth.value / roof.value)
        assert rates.reached.startswith(f"{quantity(rates.bandwidth.value, 'B/s')} over the kernel's duration, ")
        assert rates.reached.endswith(f" of DRAM as measured ({quantity(roof.value, 'B/s')})")
    assert saxpy.kernel is not None
    assert saxpy.rates.bandwidth.value == pytest.approx((1 << 30) / saxpy.kernel.value)
    assert saxpy.limit == ("bandwidth", f"bandwidth-bound: {saxpy.rates.reached}")
    assert long.limit == f"bandwidth-bound: {long.rates.reached}"
    assert short.limit.startswith("launch-bound")
    screen = " ".join(result.stdout.split())
    assert screen.count(long.limit) == screen.count(f"{short.limit} · {short.rates.reached}") == 1
    table = call("show", "run.json", "own").stdout
    assert all(f"{percent(one.rates.near.share)} of {quantity(roof.value, 'B/s')}" in table for one in (long, short))


def test_a_function_has_the_ceilings_of_another_run_of_its_gpu() -> None:
    arguments = ("rated.py::copy", "--setup", "rated.py::setup", "--axis", "duration=100000", "--bytes", "400MB")
    result, run = measure(*arguments)
    words = "over the kernel's duration; no ceiling of this GPU is known: microbench run memory compute measures them"
    assert words in " ".join(result.stdout.split())
    (gpu,) = run.sessions[0].gpus
    there = replace(run.sessions[0].environment, gpus=(replace(gpu, name="NVIDIA H200"),))
    known = replace(run, sessions=(replace(run.sessions[0], environment=there),))
    (step,) = own.steps(evidence_by_device(known, rows(known), ceilings_of(known))[0])
    assert step.rates.near is not None
    assert step.rates.near.rate > 4e12
    assert "% of DRAM as measured (4." in step.rates.reached
    (outcome,) = run.outcomes
    case = replace(outcome.case, params={"function": "rated.py::copy"})
    bare = replace(known, outcomes=(replace(outcome, case=case),))
    assert ceilings_of(bare) is None, "where no bytes were given, no other run is read"


def test_cases_of_several_functions_are_told_apart() -> None:
    for function in ("copy", "waiting"):
        more = ("--into", "run.json") if Path("run.json").exists() else ()
        called = ("measure", f"rated.py::{function}", "--setup", "rated.py::setup", "--axis", "duration=1000,2000")
        shown = call(*called, *(more or ("--out", "run.json")), "--device", "fake")
        assert shown.exit_code == 0
        assert "more: microbench show run.json own" in shown.stdout
    run = store.read(Path("run.json"))
    names = [one.name for one in own.steps(evidence_by_device(run, rows(run))[0])]
    assert names == [f"{name} duration={ns}" for name in ("copy", "waiting") for ns in (1000, 2000)]
    assert len({*names}) == 4


def test_axes_stand_for_their_values_in_every_formula() -> None:
    result, run = measure(
        "kernels.cu:scale<float>", "--grid", "n//256", "--block", "256", "--arg", "f32[n]", "--arg", "2.0f",
        "--bytes", "8*n", "--axis", "n=65536,1<<20",
    )  # fmt: skip
    assert result.exit_code == 0
    assert [outcome.case.params["n"] for outcome in run.outcomes] == [65536, 1 << 20]
    small, large = own.kernels(evidence_by_device(run, rows(run))[0])
    assert large.waves == pytest.approx(16 * small.waves, rel=1e-3)


@pytest.mark.parametrize(("arguments", "cause"), [
    (("kernels.cu:saxpi", "--grid", "1", "--block", "1"), "did you mean saxpy"),
    (("kernels.cu:saxpy", "--grid", "1"), "a kernel needs --block"),
    (("kernels.cu:saxpy", "--grid", "1", "--block", "1", "--arg", "f32[8]"), "takes 3 arguments, 1 are given"),
    (("kernels.cu:saxpy", "--grid", "1", "--block", "1", "--arg", "f64[8]", "--arg", "f32[8]", "--arg", "1.0f"),
     "is not an array of type f32"),
    (("kernels.cu:saxpy", "--grid", "n", "--block", "1", *SAXPY), "n is not a number"),
    (("nowhere.cu:saxpy",), "there is no file"),
    (("steps.py::stp",), "did you mean step"),
    (("steps.py::STEP",), "did you mean step"),
    (("steps.py::step", "--grid", "1"), "--grid is for kernels"),
    (("steps.py::step", "--bytes", "12*n", "--axis", "count=1"), "12*n is not a number"),
    (("steps.py::step", "--flop", "-1"), "a whole number from 0 on"),
    (("steps.py::step", "--axis", "count"), "is not NAME=VALUE"),
    (("steps.py::step", "--axis", "setup=1"), "choose another name"),
    (("steps",), "names no kernel and no function"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(arguments: tuple[str, ...], cause: str) -> None:
    result = call("measure", *arguments, "--device", "fake")
    assert result.exit_code == 2
    assert cause in " ".join(result.stderr.split())
    assert not Path("data").exists()


@pytest.mark.slow
def test_rounds_are_processes_and_the_run_can_be_compared_and_exported() -> None:
    arguments = ("steps.py::step", "--setup", "steps.py::setup", "--rounds", "3")
    _, first = measure(*arguments)
    assert [outcome.round for outcome in first.outcomes] == [0, 1, 2]
    Path("run.json").rename("first.json")
    measure(*arguments)
    compared = call("compare", "first.json", "run.json")
    assert compared.exit_code == 0
    assert "own" in compared.stdout
    exported = call("export", "run.json", "--format", "csv")
    assert "own_step" in exported.stdout
    shown = call("show", "run.json", "own")
    assert "Your functions" in shown.stdout
    page = call("report", "run.json", "-o", "run.html")
    assert page.exit_code == 0
    assert "Launches of step" in Path("run.html").read_text()


@pytest.mark.slow
def test_a_run_with_own_cases_can_be_resumed() -> None:
    _, run = measure("steps.py::killed", "--axis", "count=2,1")
    assert [one.status for one in run.outcomes] == ["crashed", "ok"]
    Path("steps.py").write_text(STEPS.replace("count == 2", "count == 33"))  # another size, so it is compiled anew
    assert call("run", "--resume", "run.json").exit_code == 0
    assert {one.status for one in store.read(Path("run.json")).outcomes[1:]} == {"ok"}


@pytest.mark.parametrize(
    ("name", "words"), [("own", "`microbench measure` takes your code"), ("own_step", "microbench measure")]
)
def test_without_a_target_own_benchmarks_point_to_measure(name: str, words: str) -> None:
    result = call("run", name, "--device", "fake")
    assert result.exit_code == 2
    assert words in result.stderr


# From Python


def params(run: mb.RecordedRun) -> list[dict[str, object]]:
    return list({row.case: dict(row.params) for row in run.rows()}.values())


@pytest.mark.slow
def test_python_measures_what_the_command_measures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    steps = importlib.import_module("steps")
    axes = {"count": [1, 8]}
    given = mb.measure(steps.step, setup=steps.setup, axes=axes, device="fake", label="mine")
    assert (given.simulated, given.problems, mb.load("mine").id) == (True, (), given.id)
    named = {"function": "steps:step", "setup": "steps:setup"}
    assert params(given) == [{**named, "count": 1}, {**named, "count": 8}]
    _, typed = measure("steps:step", "--setup", "steps:setup", "--axis", "count=1,8")
    keys = [(row.case, row.metric) for row in given.rows()]
    assert keys == [(row.case, row.metric) for row in mb.load("run.json").rows()]
    assert [outcome.status for outcome in typed.outcomes] == ["ok", "ok"]
    assert "a step" in str(given)
    assert "SIMULATED" in given._repr_html_()
    assert {one.rule for one in given.findings} >= {"own.graph"}


@pytest.mark.slow
def test_python_measures_a_kernel_and_adds_to_a_run() -> None:
    arguments, heard = ["f32[n]", "f32[n]", "2.0f"], []
    run = mb.measure(
        "kernels.cu:saxpy", grid="n//256", block=256, args=arguments, bytes="12*n", axes={"n": ["1<<16", 1 << 20]},
        device="fake", progress=lambda *each: heard.append(each[:2]),
    )  # fmt: skip
    assert [each["n"] for each in params(run)] == [1 << 16, 1 << 20]
    assert {(each["grid"], each["block"], each["bytes"]) for each in params(run)} == {("n//256", "256", "12*n")}
    assert heard == [(1, 2), (2, 2)]
    more = mb.measure("steps.py::step", setup="steps.py::setup", device="fake", into=run)
    assert more.id == run.id
    assert {row.benchmark for row in more.rows()} == {"own_step", "own_kernel"}


def test_a_function_without_calls_takes_its_own_time_on_the_simulated_gpu_too() -> None:
    Path("nothing.py").write_text("def step():\n    return 1\n", encoding="utf-8")
    result, run = measure("nothing.py::step")
    (outcome,) = run.outcomes
    (submit,) = (one for one in outcome.measurements if one.metric == "submit")
    assert min(submit.values) / submit.calls_per_sample >= 20e-9, "no call of Python takes less"
    assert "what the GPU does is too short for its clock" in " ".join(result.stdout.split())


@pytest.mark.slow
def test_python_says_which_case_has_no_figures() -> None:
    run = mb.measure("steps.py::stuck", setup="steps.py::setup", axes={"count": [2, 1]}, device="fake", limit="3s")
    assert [(one.status, "count=2" in one.case) for one in run.problems] == [("timed_out", True)]


def in_the_program() -> None:
    """Stands for a function of a notebook."""


@pytest.mark.parametrize("of_main", [True, False])
def test_functions_that_no_worker_can_import_are_refused(of_main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if of_main:
        monkeypatch.setattr(in_the_program, "__module__", "__main__")
        monkeypatch.setattr(sys.modules["__main__"], "in_the_program", in_the_program, raising=False)
        refused, cause, step = [in_the_program], "the notebook or program itself", 'steps.py::in_the_program"'
    else:
        refused = [lambda: None, functools.partial(in_the_program), Path("x").exists]
        cause, step = "has no name", "train.py::step"
    for function in refused:
        with pytest.raises(mb.UsageError, match=cause) as caught:
            mb.measure(function, device="fake")
        assert step in caught.value.next_step
    assert not Path("data").exists()


# Texts


@pytest.mark.parametrize(
    ("text", "value"), [("1<<20", 1 << 20), ("12MiB", 12 << 20), ("12*n", 120), ("-(n//3)", -3), ("2**3", 8)]
)
def test_formulas(text: str, value: float) -> None:
    assert number(text, {"n": 10}) == value


@pytest.mark.parametrize("text", ["m", "n.real", "1<<1000", "9**99", "__import__('os')", "f(1)", "", "1/0", "True"])
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(UsageError):
        number(text, {"n": 10})


@pytest.mark.parametrize(("text", "expected", "word"), [
    ("f32[1<<4]", Argument("f32", 16), None), ("bf16[n]", Argument("bf16", 10), None),
    ("2.0f", Argument("f32", 0, 2.0), 0x40000000), ("1.5", Argument("f64", 0, 1.5), 0x3FF8000000000000),
    ("-1", Argument("i32", 0, -1), 0xFFFFFFFF), ("7ull", Argument("u64", 0, 7), 7),
    ("i64(n*2)", Argument("i64", 0, 20), 20), ("bf16(1)", Argument("bf16", 0, 1), 0x3F80),
    ("n", Argument("i32", 0, 10), 10),
])  # fmt: skip
def test_arguments(text: str, expected: Argument, word: int | None) -> None:
    given = argument(text, {"n": 10})
    assert given == expected
    assert word is None or given.word() == word


@pytest.mark.parametrize("text", ["f33[4]", "f32[0]", "f32[1.5]", "i8(300)", "float", "1x"])
def test_what_is_no_argument(text: str) -> None:
    with pytest.raises(UsageError):
        argument(text, {"n": 10})


def test_dimensions_and_targets() -> None:
    assert dimensions("32,8") == (32, 8, 1)
    assert target("kernels.cu:scale<float>") == ("kernel", "kernels.cu", "scale<float>")
    assert target("a.b:c.d") == ("module", "a.b", "c.d")
    with pytest.raises(UsageError):
        dimensions("1,2,3,4")
    check_kernel(target("kernels.cu:scale<float>"), ["f32[4]", "2.0f"], {})  # left to the compiler


# Loading, following, comparing


def test_setups_give_positional_named_and_single_arguments() -> None:
    Path("given.py").write_text(
        "def step(a, b=2, *, n=0):\n    return a, b, n\n"
        "def pair(): return 1, 5\n"
        "def names(): return {'a': 1, 'b': 7}\n"
        "def single(n): return [n]\n"
    )
    gpu = exact()
    assert bound(gpu, "given.py::step", "given.py::pair", {"n": 3}).call() == (1, 5, 3)
    assert bound(gpu, "given.py::step", "given.py::names", {}).call() == (1, 7, 0)
    assert bound(gpu, "given.py::step", "given.py::single", {"n": 4}).call() == ([4], 2, 4)
    assert bound(gpu, "given:step", "", {"a": 1}).call() == (1, 2, 0)
    assert bound(gpu, "given:step", "", {"a": "0.5", "b": "on"}).call() == (0.5, "on", 0)
    assert str(bound(gpu, "given:step", "", {"a": "8", "b": "1e3"}).call()) == "(8, 1000.0, 0)"
    assert bound(gpu, "given:step", "", {"a": "true", "b": "False"}).call() == (True, False, 0)
    Path("broken.py").write_text("def step(): pass\nimport nothing_of_that_name\n")
    with pytest.raises(MeasurementError, match=r"nothing_of_that_name.*broken.py:2"):
        bound(gpu, "broken.py::step", "", {})
    for function, setup, axes, cause in (
        ("given.py::step", "", {"c": 1}, "no parameter c"),
        ("given.py::stap", "", {}, "did you mean step"),
        ("given.py::step", "", {}, "missing a required argument"),
        ("nothing.here:step", "", {}, "there is no module nothing"),
    ):
        with pytest.raises(MeasurementError, match=cause):
            bound(gpu, function, setup, axes)


def test_the_first_line_that_breaks_a_capture_is_found_even_if_nothing_raises() -> None:
    state = {"broken": False}

    def inner() -> None:
        state["broken"] = True  # this line

    def outer() -> int:
        value = 1
        inner()
        value += 1
        return value

    followed = follow(outer, lambda: state["broken"], __file__)
    assert followed.result == 2
    assert followed.error is None
    assert followed.line.endswith('in inner: state["broken"] = True  # this line')
    assert sys.gettrace() is None or "follow" not in repr(sys.gettrace())


def test_a_function_of_c_that_breaks_a_capture_is_named() -> None:
    state: dict[str, int] = {}

    def outer() -> None:
        state.setdefault("broken", 1)
        len("after")

    followed = follow(outer, lambda: bool(state), __file__)
    assert followed.called == "dict.setdefault"
    assert 'state.setdefault("broken", 1)' in followed.line


def test_what_a_function_raises_has_its_line_and_what_it_called() -> None:
    def outer() -> float:
        return np.linalg.inv(np.zeros((2, 2)))  # type: ignore[no-any-return]

    followed = follow(outer, lambda: False, __file__)
    assert isinstance(followed.error, np.linalg.LinAlgError)
    assert "np.linalg.inv" in followed.line
    assert followed.called.startswith("inv")


def outputs(*values: float) -> list[callables.Output]:
    return [callables.Output("output", np.array(values, np.float32))]


SHARES = (1e-4,)


def test_equal_outputs_pass_and_a_graph_that_computes_something_else_is_an_error() -> None:
    same = [outputs(1, 2), outputs(1, 2)]
    assert callables.judged(same, same, SHARES) == callables.EQUAL
    with pytest.raises(MeasurementError, match=r"output\[1\]: 2.0, then 3.0"):
        callables.judged(same, [outputs(1, 3), outputs(1, 3)], SHARES)
    with pytest.raises(MeasurementError, match="frozen in the graph"):
        callables.judged([outputs(1), outputs(2)], [outputs(3), outputs(3)], SHARES)
    assert "each call gives other outputs" in callables.judged(
        [outputs(1), outputs(2)], [outputs(3), outputs(4)], SHARES
    )
    assert "no arrays" in callables.judged([[], []], [], [])
    assert "no output has a finite number" in callables.judged([outputs(np.nan)] * 2, [outputs(np.nan)] * 2, SHARES)
    masked, other = ([outputs(one, 2, -3.4e38)] * 2 for one in (1, 900))
    with pytest.raises(MeasurementError, match=r"output\[0\]: 1.0, then 900.0"):
        callables.judged(masked, other, SHARES)


def test_rounding_is_no_difference_and_whole_numbers_have_none() -> None:
    near = [outputs(1, 2), outputs(1.00001, 2)]
    assert callables.judged(near, near, SHARES) == callables.EQUAL
    whole = [callables.Output("output", np.array([1, 2]))]
    other = [callables.Output("output", np.array([1, 3]))]
    assert callables.first_difference(whole, other, (0.0,)) == "output[1]: 2, then 3"
    assert callables.first_difference(outputs(1), outputs(1, 2), SHARES) == "output has shape (1,), then (2,)"
    assert callables.first_difference(outputs(np.nan), outputs(np.nan), SHARES) is None


def test_arrays_are_found_in_nested_results() -> None:
    array = np.zeros(1)
    paths = [path for path, _ in callables.leaves({"loss": array, "more": (array, [array], 3)})]
    assert paths == ["output['loss']", "output['more'][0]", "output['more'][1][0]"]


def test_streams_are_found_among_arguments() -> None:
    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 77

    class NumbaStream:
        handle = type("Handle", (), {"value": 78})

    assert callables.stream_of([1, "x", Stream()]) == 77
    assert callables.stream_of([NumbaStream()]) == 78
    assert callables.stream_of([1, np.zeros(1)]) is None


def test_a_simulated_step_that_submits_nothing_is_not_captured() -> None:
    gpu = exact()
    with gpu.case():
        step = own_step(gpu, lambda: OwnCall(lambda: None))
        with pytest.raises(NotCapturedError, match="the graph is empty"):
            step.capture()


@pytest.mark.parametrize("name", ["awaited", "yields", "both", "step", "part"])
def test_a_function_that_is_async_or_a_generator_is_run_whole(name: str) -> None:
    made = bound(exact(), f"whole.py::{name}", "", {})
    ran = sys.modules["whole"].ran
    assert (made.call(), len(ran)) == ("done", 1)
    own_step(exact(), lambda: made).submit(3)
    assert len(ran) == 1 + WARM_UPS + 3
    assert bound(exact(), "whole.py::given", "whole.py::prepared", {}).call() == "done"


@pytest.mark.parametrize(("name", "words"), [
    ("unrun", "returns a coroutine that nobody runs"), ("lazy", "returns a generator that nobody runs"),
    ("odd", r"^Odd: <exception str\(\) failed>"),
])  # fmt: skip
def test_a_function_that_is_not_run_or_whose_error_says_nothing_is_told(name: str, words: str) -> None:
    with pytest.raises(MeasurementError, match=words):
        own_step(exact(), lambda: bound(exact(), f"whole.py::{name}", "", {}))


def test_a_slow_function_takes_its_own_time_on_the_simulated_gpu() -> None:
    result, run = measure("whole.py::slow")
    assert result.exit_code == 0
    (step,) = own.steps(evidence_by_device(run, rows(run))[0])
    assert step.submit.value >= 0.002


def test_a_function_that_replaces_the_clocks_is_measured_like_any_other() -> None:
    result, run = measure("whole.py::clocks")
    assert result.exit_code == 0
    assert [outcome.status for outcome in run.outcomes] == ["ok"]

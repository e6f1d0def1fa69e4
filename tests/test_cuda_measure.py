"""`microbench measure` on a real GPU: launches of ten functions, graphs, lines that prevent them, kernels."""

import sys
from importlib.util import find_spec
from pathlib import Path

import own_functions
import pytest
from command_line import call
from own_functions import FUNCTIONS, Function
from typer.testing import Result

from microbench.analysis.evidence import evidence_by_device
from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.core.model import Run
from microbench.experiments.own.callables import EQUAL
from microbench.explain import own

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_functions.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    return tmp_path


def measure(*arguments: str) -> tuple[Result, Run]:
    result = call("measure", *arguments, "--out", "run.json", COLUMNS="80")
    sys.stdout.write(result.stdout + result.stderr)  # shown where a test fails
    return result, store.read(Path("run.json"))


def step_of(needs: str, *arguments: str) -> own.Step:
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    result, run = measure(*arguments)
    assert result.exit_code == 0, [outcome.reason for outcome in run.outcomes]
    (step,) = own.steps(evidence_by_device(run, rows(run))[0])
    return step


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_launches_are_counted_named_and_replayed_with_equal_outputs(function: Function) -> None:
    step = step_of(function.package, function.target, "--setup", function.setup_target)
    assert step.fact("library") == function.library or not function.library
    assert step.fact("capturable") is True
    counted = step.fact("launches")
    assert counted == function.launches or function.launches is None
    assert any(function.kernel in kernel for kernel, *_ in own.launched(step))
    assert step.fact("recorded_kernels") <= counted
    assert step.fact("compared") == EQUAL or function.name == "pair"
    assert step.fact("moved_nodes") == 0 or function.library == "CuPy"
    assert step.gpu is not None
    assert step.cold is not None
    assert step.kernels is not None
    assert 0.7 * step.kernels.value < step.gpu.value < step.kernels.value + 20e-6 * counted
    assert step.cold.value > 0.9 * step.gpu.value
    assert step.submit.value > 1e-6
    # Bursts and single calls are timed one after the other, and a busy host may be slower in between.
    assert step.step.value >= 0.6 * max(step.submit.value, step.gpu.value)


def test_a_dependent_pair_in_a_stream_of_its_own_is_captured_whole() -> None:
    step = step_of("cuda", "dependent.py::pair", "--setup", "dependent.py::setup")
    assert [(name, count) for name, _, _, count in own.launched(step)] == [("first", 1), ("second", 1)]


def test_jax_is_timed_and_counted_but_not_captured() -> None:
    step = step_of("jax", "in_jax.py::step", "--setup", "in_jax.py::setup")
    assert step.fact("library") == "JAX"
    assert step.fact("capturable") is False
    assert step.fact("recorded_kernels") >= 1
    assert step.gpu is None
    assert step.kernels.value < step.step.value


# Five that cannot be captured, each with the line that stops it.
BLOCKED = [
    ("torch", "in_torch", "item", "norm_setup", "y.sum().item()"),
    ("torch", "in_torch", "pageable", "norm_setup", 'host.to("cuda")'),
    ("torch", "in_torch", "waits", "norm_setup", "torch.cuda.synchronize()"),
    ("cupy", "unpooled", "allocates", "setup", "cupy.empty_like(x)"),
    ("numba.cuda", "in_numba", "in_default_stream", "setup", "reduce[4096, 256](x, out)"),
]


@pytest.mark.parametrize(("needs", "file", "function", "setup", "line"), BLOCKED)
def test_the_line_that_stops_a_capture_is_named(needs: str, file: str, function: str, setup: str, line: str) -> None:
    step = step_of(needs, f"{file}.py::{function}", "--setup", f"{file}.py::{setup}")
    assert step.fact("capturable") is False
    assert line in own.blocked(step), (own.blocked(step), own.blocking_error(step), step.fact("blocked_call"))
    assert step.step.value > 0
    assert step.fact("recorded_kernels") is None or step.fact("recorded_kernels") >= 1


def test_a_value_that_the_graph_freezes_is_an_error() -> None:
    pytest.importorskip("torch")
    result, run = measure("in_torch.py::stale", "--setup", "in_torch.py::stale_setup")
    assert result.exit_code == 1
    assert "the graph computes something else" in (run.outcomes[0].reason or "")


ARRAYS = ("--arg", "f32[1<<26]", "--arg", "f32[1<<26]", "--arg", "2.0f")


def test_a_kernel_near_the_bandwidth_of_this_gpu() -> None:
    assert call("run", "memory_stream", "memory_levels", "--quick", "--out", "run.json").exit_code == 0
    shape = ("--grid", "1<<18", "--block", "256", "--bytes", "768MiB", "--flop", "1<<27")
    result = call("measure", "kernels.cu:saxpy", *shape, *ARRAYS, "--into", "run.json", COLUMNS="80")
    sys.stdout.write(result.stdout)
    assert result.exit_code == 0
    run = store.read(Path("run.json"))
    (kernel,) = own.kernels(evidence_by_device(run, rows(run))[0])
    assert kernel.limit[0] == "bandwidth"
    assert 0.6 < max(ceiling.share for ceiling in kernel.rates.ceilings) < 1.1
    assert kernel.whole("spill_bytes") == 0
    assert 0 < kernel.whole("registers") < 64
    assert kernel.occupancy == 1.0
    assert kernel.kernel is None or kernel.kernel.value == pytest.approx(kernel.duration.value, rel=0.05)


def test_a_function_near_the_bandwidth_of_this_gpu() -> None:
    assert call("run", "memory_stream", "memory_levels", "--quick", "--out", "run.json").exit_code == 0
    pytest.importorskip("triton")
    arguments = ("in_triton.py::softmax", "--setup", "in_triton.py::softmax_setup", "--bytes", "2*4*16384*4096")
    result = call("measure", *arguments, "--into", "run.json", COLUMNS="80")
    sys.stdout.write(result.stdout)
    assert result.exit_code == 0
    run = store.read(Path("run.json"))
    (step,) = own.steps(evidence_by_device(run, rows(run))[0])
    assert step.rates.bandwidth is not None
    assert step.kernels is not None
    assert step.rates.bandwidth.value == pytest.approx((512 << 20) / step.kernels.value)
    assert step.limit == f"bandwidth-bound: {step.rates.reached}"
    assert 0.6 < max(ceiling.share for ceiling in step.rates.ceilings) < 1.1


def test_templates_cooperative_grids_spills_and_short_kernels() -> None:
    for arguments in (
        ("kernels.cu:scale<float>", "--grid", "64", "--block", "256", "--arg", "f32[1<<14]", "--arg", "2.0f"),
        ("kernels.cu:scale<__half>", "--grid", "64", "--block", "256", "--arg", "f16[1<<14]", "--arg", "f16(2)"),
        ("kernels.cu:whole", "--grid", "132", "--block", "256", "--arg", "f32[132*256]", "--cooperative"),
    ):
        Path("run.json").unlink(missing_ok=True)
        result, run = measure(*arguments)
        assert result.exit_code == 0, run.outcomes[0].reason
        (kernel,) = own.kernels(evidence_by_device(run, rows(run))[0])
        assert kernel.best_s < 100e-6
    Path("run.json").unlink()
    spilling = ("kernels.cu:spilling", "--grid", "1", "--block", "32", "--arg", "f32[8192]")
    _, run = measure(*spilling, "--option=--maxrregcount=32")
    (kernel,) = own.kernels(evidence_by_device(run, rows(run))[0])
    assert kernel.whole("spill_bytes") + kernel.whole("local_bytes") > 0


def test_illegal_accesses_endless_kernels_and_wrong_arguments_are_named_and_the_rest_goes_on() -> None:
    result, run = measure("kernels.cu:wild", "--grid", "1", "--block", "1", "--arg", "f32[n]", "--axis", "n=1,2")
    assert result.exit_code == 1
    assert [outcome.status for outcome in run.outcomes] == ["failed", "failed"]
    assert all("ILLEGAL_ADDRESS" in (outcome.reason or "") for outcome in run.outcomes)
    Path("run.json").unlink()
    endless = ("kernels.cu:endless", "--grid", "1", "--block", "1", "--arg", "i32[n]", "--axis", "n=1,2")
    result, run = measure(*endless, "--limit", "8s")
    assert [outcome.status for outcome in run.outcomes] == ["timed_out", "timed_out"]
    Path("run.json").unlink()
    wrong = ("kernels.cu:scale<float>", "--grid", "1", "--block", "1", "--arg", "f32[4]", "--arg", "2.0")
    result, run = measure(*wrong)
    assert "argument 2 of scale<float> has 4 bytes" in (run.outcomes[0].reason or "")
    Path("run.json").unlink()
    result, run = measure("kernels.cu:scale<int*>", "--grid", "1", "--block", "1")
    assert "does not compile" in (run.outcomes[0].reason or "")

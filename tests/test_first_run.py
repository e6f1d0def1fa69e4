"""What a new user meets first: the core of a run, its streams, check, and files that are written whole."""

import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest
from changed_run import with_metrics
from command_line import call
from recorded_runs import write

import microbench
from microbench.archive import store
from microbench.cli.app import NEEDED
from microbench.cli.output import write_new
from microbench.core.bench import discover
from microbench.core.errors import ExitCode, ResultNotWrittenError
from microbench.core.model import Measurement, Settings
from microbench.gpu.fake.gpu import COSTS_VARIABLE
from microbench.report.terminal.progress import LiveProgress
from microbench.report.terminal.terminal import QuietConsole
from microbench.session import session, supervisor
from microbench.session.messages import Listener
from microbench.session.request import RunRequest
from microbench.session.session import execute


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


QUESTIONS = {
    "launch_cost", "launch_layers", "launch_duration", "launch_queue", "graph_gain", "graph_lifecycle", "link_state",
    "link_copy", "link_bidirectional", "link_latency", "memory_stream", "memory_latency", "gemm_throughput",
}  # fmt: skip


def test_the_core_has_what_the_screen_and_predictions_rest_on() -> None:
    core = {name for name, benchmark in discover().items() if benchmark.core}
    assert core >= QUESTIONS
    layers = {case.params["layer"] for case in discover()["launch_layers"].cases("quick")}
    assert layers | {"cuda_runtime"} == {case.params["layer"] for case in discover()["launch_layers"].cases("full")}
    gains = {case.params["submitter"] for case in discover()["graph_gain"].cases("quick")}
    assert gains >= {"loop", "cupy_raw", "numba_configured", "torch_eager"}


@pytest.mark.slow
def test_a_run_without_time_measures_the_whole_core_and_predicts(data: Path) -> None:
    """The budget of one second is over before the first case; later processes are prepared as on a large machine."""
    result = execute(RunRequest(Settings(device="fake", time_limit_s=1.0)))
    outcomes = {outcome.case.id: outcome for outcome in result.run.outcomes}
    for benchmark in discover().values():
        for case_id in benchmark.core_ids & set(outcomes):
            assert outcomes[case_id].status == "ok" or "no layer" in str(outcomes[case_id].reason), case_id
    left_out = [outcome for outcome in result.run.outcomes if outcome.reason == "time budget"]
    assert len(left_out) > 100
    for layer in ("torch", "cupy", "numba", "loop"):
        predicted = call(
            "predict", "--kernels", "1100", "--duration", "6us", "--layer", layer, "--run", str(result.path)
        )
        assert predicted.exit_code == ExitCode.MEASURED, predicted.output
    assert "Not measured for lack of time" in call("show", str(result.path)).stdout


@pytest.mark.slow
def test_processes_that_are_prepared_measure_the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MOST_SIDE_BY_SIDE", 2)
    names = ("gemm_throughput", "launch_layers", "graph_lifecycle")
    result = execute(RunRequest(Settings("quick", names, device="fake")))
    assert result.exit_code == ExitCode.MEASURED
    measured = {outcome.case.benchmark for outcome in result.run.outcomes if outcome.status == "ok"}
    assert measured == set(names)


def test_check_says_healthy_and_its_exit_code_does_too() -> None:
    healthy = call("check", "link", "--run", "nvidia-h200")
    assert healthy.exit_code == 0
    assert "PCIe 5.0 x16 is healthy" in healthy.stdout
    assert call("check", "memory", "--run", "nvidia-h200").exit_code == 0


def test_a_check_does_not_hide_the_run_before_it() -> None:
    """After `check link` the command `show launch` said that the last run has no launch suite."""
    call("run", "launch_cost", "--quick", "--device", "fake")
    call("check", "link", "--device", "fake")
    screen = call("show", COLUMNS="80")
    assert len(screen.stdout.splitlines()) <= 40
    assert "microbench show link_copy" in screen.stdout
    for part in ("launch", "launch_cost", "link_copy"):
        assert call("show", part).exit_code == 0, part
    assert "has no figures of graph" in call("show", "graph").stderr


def test_check_fails_for_a_slow_link_and_says_when_there_is_no_verdict(tmp_path: Path) -> None:
    def longer(old: Measurement) -> Measurement:
        four = [4 * value for value in old.values]
        return msgspec.structs.replace(old, samples=msgspec.Raw(msgspec.json.encode(four)))

    slow = with_metrics(store.read(store.find("nvidia-h200")), "link_copy", longer)
    result = call("check", "link", "--run", str(write(tmp_path / "slow.json", slow)))
    assert result.exit_code == ExitCode.SOME_FAILED
    assert "PCIe 5.0 x16 is slow" in result.stdout
    none = call("check", "compute", "--run", "nvidia-h200-x2")
    assert none.exit_code == ExitCode.UNREADABLE_RUN
    assert "microbench run gemm_throughput measures what it needs" in none.stderr


@cache
def measured(rate: float) -> session.RunResult:
    """What `check link` measures where the link has that rate."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(COSTS_VARIABLE, f'{{"link_bytes_per_s": {rate}}}')
        return execute(RunRequest(Settings("quick", NEEDED["link"], device="fake")))


def checked(rates: list[float], monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, str, int]:
    """What `check link` ends with and says, where the link has these rates in turn, and how often it ran."""
    runs: list[session.RunResult] = []

    def execute_at(request: RunRequest, listener: Listener) -> session.RunResult:
        assert request.into == (str(runs[-1].path) if runs else None), "they are added to one run"
        runs.append(measured(rates[len(runs)]))
        return runs[-1]

    with monkeypatch.context() as patched:
        patched.setattr(session, "execute", execute_at)
        result = call("check", "link", "--device", "fake", *more, COLUMNS="200")
    return result.exit_code, result.stdout, len(runs)


# 95.0, 90.5, 89.0 and 44 % of its ceiling; healthy begins at 90 %.
CLEAR, NEAR, SLOW, HALF = 60e9, 57.15e9, 56.2e9, 28e9


def test_a_check_measures_again_before_it_says_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked([CLEAR, HALF, HALF], monkeypatch)[::2] == (0, 1)
    code, said, times = checked([HALF, HALF, SLOW], monkeypatch)
    assert (code, times) == (ExitCode.SOME_FAILED, 3)
    assert "is slow" in said
    assert "3 measurements: 44" in said
    code, said, times = checked([NEAR, NEAR, NEAR], monkeypatch)
    assert (code, times) == (0, 3)
    assert "is healthy" in said


def test_the_help_of_check_tells_its_limits() -> None:
    from microbench.explain import compute_verdict, link_verdict, memory_verdict

    said = " ".join(call("check", "--help").output.split())
    for limit in (link_verdict.HEALTHY, memory_verdict.HEALTHY["read"], compute_verdict.HEALTHY):
        assert f"{limit:.0%}".replace("%", " %") in said


@pytest.mark.parametrize("rates", [[SLOW, CLEAR, CLEAR], [CLEAR, SLOW, SLOW], [NEAR, SLOW, CLEAR]])
def test_a_check_that_straddles_the_limit_has_no_verdict(rates: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, times = checked(rates, monkeypatch)
    if rates[0] == CLEAR:
        assert (code, times) == (0, 1), "one clearly healthy measurement suffices"
        return
    assert (code, times) == (ExitCode.UNREADABLE_RUN, 3)
    assert "Between healthy and slow: 1 of 3 measurements" in said
    assert "Healthy begins at 90 %" in said
    (gpu,) = json.loads(checked(rates, monkeypatch, "--json")[1])["gpus"]
    assert gpu["verdict"] == "between"
    assert min(gpu["shares"]) < gpu["healthy_from"] < max(gpu["shares"])


def test_every_answer_comes_as_json_too() -> None:
    checked = json.loads(call("check", "memory", "--run", "nvidia-h200", "--json").stdout)
    assert checked["gpus"][0]["verdict"] == "healthy"
    assert {check["name"] for check in json.loads(call("doctor", "--json").stdout)["checks"]} >= {"load average"}
    runs = "nvidia-h200", str(Path(__file__).parent / "data" / "quiet-h200.json.xz")
    compared = json.loads(call("compare", *runs, "--json").stdout)
    assert any(figure["ratio"] for figure in compared["figures"])
    assert compared == microbench.compare(*runs).to_dict()


def test_a_target_is_checked_before_the_work_and_overwritten_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "gain.svg"
    out.write_text("mine", encoding="utf-8")
    refused = call("plot", "nvidia-h200", "gain", "-o", str(out))
    assert refused.exit_code == ExitCode.USAGE
    assert "--force" in refused.stderr
    assert out.read_text(encoding="utf-8") == "mine"
    assert call("plot", "nvidia-h200", "gain", "-o", str(out), "--force").exit_code == 0
    assert "<svg" in out.read_text(encoding="utf-8")
    missing = call("report", "no such run", "-o", str(tmp_path / "no folder" / "page.html"))
    assert missing.exit_code == ExitCode.USAGE, "the target is looked at before the run"


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # as a disk that is full after ten bytes
    try:
        with pytest.raises(ResultNotWrittenError, match="File too large"):
            write_new(tmp_path / "out.svg", b"<svg></svg>")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
    write_new(tmp_path / "out.svg", b"<svg></svg>")
    assert (tmp_path / "out.svg").read_bytes() == b"<svg></svg>"


RUN = [sys.executable, "-m", "microbench", "run", "launch_kind", "host_timer", "--quick", "--device", "fake"]


@pytest.mark.slow
@pytest.mark.parametrize("report_to", ["/dev/null", "/dev/full"])
def test_a_run_whose_progress_cannot_be_written_goes_on(report_to: str, data: Path) -> None:
    with open("/dev/full", "w") as full, open(report_to, "w") as shown:
        ended = subprocess.run(RUN, stderr=full, stdout=shown, check=False)
    assert ended.returncode == (ExitCode.USAGE if report_to == "/dev/full" else ExitCode.MEASURED)
    (path,) = store.listing()
    assert path.suffix == store.FINISHED
    assert {outcome.status for outcome in store.read(store.find(path)).outcomes} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--json"])
def test_a_report_that_nobody_reads_leaves_the_exit_code_of_the_run(options: str, data: Path) -> None:
    code = """
import dataclasses, sys
from microbench.cli.app import main
from microbench.session import session
execute = session.execute
session.execute = lambda *arguments: dataclasses.replace(execute(*arguments), exit_code=1)
main()
"""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", code, *RUN[3:], *filter(None, [options])]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert ended.returncode == ExitCode.SOME_FAILED
    assert "Traceback" not in ended.stderr
    assert len(store.listing()) == 1


class GoneTerminal(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_a_display_whose_terminal_is_gone_ends_nothing() -> None:
    with LiveProgress(QuietConsole(file=GoneTerminal(), force_terminal=True), {}):
        pass


def test_ctrl_c_during_the_start_prints_no_traceback() -> None:
    process = subprocess.Popen([sys.executable, "-X", "importtime", *RUN[1:]], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "typer" in line:  # while microbench imports its packages
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate()[1]
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in rest


def test_ctrl_c_before_the_first_import_prints_no_traceback() -> None:
    """The interruption comes when the first module after __main__ is looked for."""
    program = """
import os, runpy, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "microbench.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("microbench", run_name="__main__", alter_sys=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (ExitCode.INTERRUPTED, "")


def test_doctor_ends_with_the_next_step_and_fails_with_a_problem() -> None:
    checked = call("doctor")
    last = checked.stdout.rstrip().splitlines()[-1]
    assert last.startswith("next: ")
    assert (checked.exit_code == ExitCode.SOME_FAILED) == (" problem " in checked.stdout)

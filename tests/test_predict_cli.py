"""The commands predict and whatif: what they print, whose constants they take, and that nonsense ends in two lines."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from changed_run import simulated
from command_line import call
from make_run import make_run
from recorded_runs import real, write

from microbench.core.errors import ExitCode
from microbench.core.model import Run
from microbench.model.fit import suits
from microbench.model.step_file import described, examples
from microbench.model.workload import StepOptions

DATA = Path(__file__).parent / "data"
ASKED = ("predict", "--kernels", "1100", "--duration", "6us", "--layer", "torch", "--arguments", "1")
SHORT = ("predict", "--kernels", "10", "--duration", "3us")


@pytest.fixture(autouse=True)
def wide(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_predict_answers_the_question_it_was_built_for() -> None:
    result = call(*ASKED)
    assert result.exit_code == ExitCode.MEASURED
    lines = result.output.splitlines()
    assert len(lines) <= 20
    answer = " ".join(" ".join(lines[:6]).split())
    for words in ("1100 kernels of 6.00 µs from PyTorch eager", "As a graph the step takes", "in the stream host"):
        assert words in answer
    assert answer.count("REFERENCE") == result.output.count("REFERENCE") == 1
    result = call(*ASKED, "--all")
    for words in ("1100 kernels of 6.00 µs from PyTorch eager", "stream", "graph", "GPU without a kernel", "limited by",
                  "What to change first", "REFERENCE"):  # fmt: skip
        assert words in result.output


@pytest.mark.parametrize("command", [("predict",), ("whatif", "--gap", "1us"), ("timeline",)])
def test_why_adds_the_rule_behind_each_finding(command: tuple[str, ...], data: Path) -> None:
    save(data / "20250101T000000Z-aaaaaaaa.json", simulated("launch", "graph"))
    rule = re.compile(r"\[(prediction|whatif|timeline)\.[a-z]+: ")
    assert not rule.search(call(*command, *SHORT[1:]).output)
    assert rule.search(call(*command, *SHORT[1:], "--why").output)


def test_json_and_svg(tmp_path: Path, data: Path) -> None:
    read_back = json.loads(call(*ASKED, "--host", "0", "--json").output)
    assert read_back["reference"] is True
    assert 1100 * 6e-6 < read_back["graph"]["step_s"] < read_back["stream"]["step_s"] < 1100 * 20e-6
    ranged = json.loads(call(*ASKED, "--json").output)
    assert ranged["stream"]["low_s"] < read_back["stream"]["step_s"] < ranged["stream"]["high_s"]
    assert ranged["speedups"][0] < ranged["speedups"][1]
    assert 0 < ranged["launch_bound_from_s"] < ranged["host_time"]["typical_s"]
    assert ranged["host_time"]["bare_s"] < ranged["host_time"]["typical_s"]
    assert read_back["speedup_between"][0] < read_back["speedup"] < read_back["speedup_between"][1]
    save(data / "20250101T000000Z-aaaaaaaa.json", simulated("launch", "graph"))
    picture = tmp_path / "step.svg"
    assert call(*SHORT, "--svg", str(picture)).exit_code == ExitCode.MEASURED
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    assert call(*SHORT, "--svg", str(picture)).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("name", sorted(examples()))
def test_each_example_is_predicted_on_the_reference(name: str) -> None:
    result = call("predict", name, "--all")
    assert result.exit_code == ExitCode.MEASURED
    assert "About this workload" in result.output


def test_the_7b_model_is_bound_by_its_host_whatever_the_memory() -> None:
    """The source measured 46.38 and 46.35 tokens/s at 1008 and 2039 GB/s: the same, and so is the model's.

    The example's host time is chosen so that the bundled reference gives this rate; its text says which.
    """
    prediction = json.loads(call("predict", "decode-7b", "--run", "nvidia-h200", "--json").output)
    assert prediction["stream"]["limit"] == "host"
    assert 1 / prediction["stream"]["step_s"] == pytest.approx(46.37, rel=0.01)
    assert "the same" in call("whatif", "decode-7b", "--memory", "2039GB/s").output


@pytest.mark.parametrize("run", ["nvidia-h200", *(str(DATA / f"{host}-h200.json.xz") for host in ("quiet", "busy"))])
def test_a_step_of_pytorch_takes_what_it_does_in_quiet_rounds(run: str) -> None:
    """PyTorch's call is that of a quiet host, whatever the state of most rounds: 5.4 to 7.7 µs on three machines."""
    prediction = json.loads(call(*ASKED, "--host", "10us", "--run", run, "--json").output)
    assert 15e-3 < prediction["stream"]["step_s"] < 20e-3


@pytest.mark.parametrize(("layer", "beyond"), [("loop", False), ("numba", True), ("torch", False)])
def test_more_arguments_than_were_measured_are_an_extrapolation(layer: str, beyond: bool) -> None:
    """launch_arguments measures parameter blocks of the compiled loop up to 4 KiB, launch_layers four arguments."""
    asked = "predict", "--kernels", "10", "--duration", "0", "--host", "0", "--layer", layer, "--arguments"
    steps = [json.loads(call(*asked, count, "--run", "nvidia-h200", "--json").output) for count in ("4", "64")]
    assert (steps[1]["stream"]["outside"] == ["64 arguments (measured: up to 4)"]) == beyond
    assert steps[0]["stream"]["outside"] == []
    assert steps[1]["stream"]["step_s"] >= steps[0]["stream"]["step_s"]


def test_a_step_is_predicted_on_two_machines(data: Path) -> None:
    save(data / "20250101T000000Z-aaaaaaaa.json", simulated("launch", "graph"))
    result = call("whatif", *SHORT[1:], "--run", "aaaaaaaa", "--against", "aaaaaaaa")
    assert result.exit_code == ExitCode.MEASURED
    words = " ".join(result.output.split())
    assert re.search(r"the step takes (\S+ [µm]s) in the first run, \1 in the second; ", words)


def test_a_workload_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('title = "mine"\n[[part]]\nkernels = 10\nduration = "3us"\n[[part]]\nsync = true', encoding="utf-8")
    assert call("predict", str(path)).output.startswith("mine")
    path.write_text("[[part]]\nkernels = 10", encoding="utf-8")
    result = call("predict", str(path))
    assert result.exit_code == ExitCode.USAGE
    assert "mine.toml, part 1: nothing says how long its kernels take" in result.stderr
    assert len(result.stderr.splitlines()) == 2


def save(path: Path, run: Run) -> None:
    """The run in a file, as if a real GPU had given it; the file's name is its id."""
    write(path, msgspec.structs.replace(real(run), run_id=path.stem))


def test_the_newest_run_that_has_what_it_takes_is_chosen(data: Path) -> None:
    save(data / "20250101T000000Z-aaaaaaaa.json", simulated("launch", "graph"))
    save(data / "20250102T000000Z-bbbbbbbb.json", make_run())  # newer, but no graph was measured
    seen = json.loads(call(*SHORT, "--json").output)
    assert (seen["run"], seen["reference"]) == ("20250101T000000Z-aaaaaaaa", False)


def test_a_simulated_run_is_taken_only_when_it_is_named(data: Path) -> None:
    run = simulated("launch", "graph")
    assert run.simulated
    write(data / f"{run.run_id}.json", run)
    assert not suits(run, described(None, StepOptions(kernels=10, duration="3us"), {}))
    assert json.loads(call(*SHORT, "--json").output)["reference"] is True
    assert "SIMULATED" in call(*SHORT, "--run", run.run_id).output


def test_a_run_that_lacks_something_names_what_to_run_into_it(data: Path) -> None:
    save(data / "20250102T000000Z-bbbbbbbb.json", make_run())
    result = call(*SHORT, "--run", "bbbbbbbb")
    assert result.exit_code == ExitCode.UNREADABLE_RUN
    for words in ("graph_lifecycle", "--into bbbbbbbb measures them", "20250102T000000Z-bbbbbbbb"):
        assert words in result.stderr


@pytest.mark.parametrize("command", ["predict", "whatif", "timeline", "explain"])
def test_a_run_in_another_folder_is_added_to_by_its_path(command: str, tmp_path: Path) -> None:
    """Its id finds nothing there."""
    path = tmp_path / "of a colleague.json"
    save(path, simulated("launch", "graph") if command == "whatif" else make_run())
    asked = ("graphs",) if command == "explain" else SHORT[1:]
    changes = ("--to-layer", "warp") if command == "whatif" else ()
    result = call(command, *asked, *changes, "--run", str(path), COLUMNS="300")
    advised = " ".join((result.stdout if command == "explain" else result.stderr).split())
    assert re.search(rf"microbench run [a-z_ ]+ --into '{re.escape(str(path))}'", advised)

"""The commands predict and whatif: what they print, whose constants they take, and that nonsense ends in two lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from command_line import call
from make_graph_run import make_graph_run
from make_run import make_run

from microbench.core.errors import ExitCode
from microbench.core.model import Run, Session
from microbench.predict.fit import suits
from microbench.predict.step_file import Options, described, examples
from microbench.runs import schema

ASKED = ("predict", "--kernels", "1100", "--duration", "6us", "--layer", "torch", "--arguments", "1")


@pytest.fixture(autouse=True)
def wide(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_predict_answers_the_question_it_was_built_for() -> None:
    result = call(*ASKED)
    assert result.exit_code == ExitCode.MEASURED
    for words in ("1100 kernels of 6.00 µs from PyTorch eager", "stream", "graph", "GPU without a kernel", "limited by",
                  "won back after", "What to change first", "not of this machine", "REFERENCE"):  # fmt: skip
        assert words in result.output


def test_json_and_svg(tmp_path: Path) -> None:
    read_back = json.loads(call(*ASKED, "--json").output)
    assert read_back["reference"] is True
    assert 1100 * 6e-6 < read_back["graph"]["step_s"] < read_back["stream"]["step_s"] < 1100 * 9e-6
    picture = tmp_path / "step.svg"
    assert call(*ASKED, "--svg", str(picture)).exit_code == ExitCode.MEASURED
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    assert call(*ASKED, "--svg", str(picture)).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("name", sorted(examples()))
def test_each_example_is_predicted_on_the_reference(name: str) -> None:
    result = call("predict", name)
    assert result.exit_code == ExitCode.MEASURED
    assert "About this workload" in result.output


def test_the_7b_model_is_bound_by_its_host_whatever_the_memory() -> None:
    """The source measured 46.38 and 46.35 tokens/s at 1008 and 2039 GB/s: the same, and so is the model's."""
    seen = json.loads(call("predict", "decode-7b", "--json").output)
    assert seen["stream"]["limit"] == "host"
    assert 1 / seen["stream"]["step_s"] == pytest.approx(46.37, rel=0.05)
    told = call("whatif", "decode-7b", "--memory", "2039GB/s").output
    assert "the same" in told
    assert "In the stream the host sets the pace, now as then" in " ".join(told.split())


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('title = "mine"\n[[part]]\nkernels = 10\nduration = "3us"\n[[part]]\nsync = true', encoding="utf-8")
    assert "predict: mine" in call("predict", str(path)).output
    path.write_text("[[part]]\nkernels = 10", encoding="utf-8")
    result = call("predict", str(path))
    assert result.exit_code == ExitCode.USAGE
    assert "mine.toml, part 1: nothing says how long its kernels take" in result.stderr
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "exit_code", "told"),
    [
        (("predict",), ExitCode.USAGE, "nothing says what the step does"),
        (("predict", "--kernels", "-3", "--duration", "1us"), ExitCode.USAGE, "--kernels: -3"),
        (("predict", "--kernels", "0", "--duration", "1us"), ExitCode.USAGE, "--kernels: 0"),
        (("predict", "--kernels", "9999999", "--duration", "1us"), ExitCode.USAGE, "too large"),
        (("predict", "--kernels", "5", "--duration", "-1us"), ExitCode.USAGE, "no time"),
        (("predict", "--kernels", "5", "--duration", "nan"), ExitCode.USAGE, "no time"),
        ((*ASKED[:5], "--layer", "torhc"), ExitCode.USAGE, "did you mean torch"),
        (("predict", "decode8b"), ExitCode.USAGE, "did you mean decode-7b"),
        (("predict", "decode-7b", "--kernels", "3"), ExitCode.USAGE, "--kernels"),
        ((*ASKED, "--run", "nvidia-h200-x2"), ExitCode.UNREADABLE_RUN, "microbench run launch_cost"),
        ((*ASKED, "--run", "none-such"), ExitCode.UNREADABLE_RUN, "there is no run"),
        (("whatif", "decode-7b"), ExitCode.USAGE, "nothing is changed"),
        (("whatif", "decode-7b", "--submit", "1us", "--against", "nvidia-h200"), ExitCode.USAGE, "by itself"),
        (("whatif", "decode-7b", "--pcie-gen", "9"), ExitCode.USAGE, "--pcie-gen: 9"),
        (("whatif", "decode-7b", "--lanes", "3"), ExitCode.USAGE, "--lanes"),
        (("whatif", "decode-7b", "--memory", "2039"), ExitCode.USAGE, "no rate"),
        (("whatif", "decode-7b", "--kernel-time", "-1"), ExitCode.USAGE, "no factor"),
        (("whatif", "decode-7b", "--submit", "soon"), ExitCode.USAGE, "--submit: soon is not a time"),
        (("whatif", "decode-7b", "--to-layer", "tensorflow"), ExitCode.USAGE, "no layer tensorflow"),
    ],
)  # fmt: skip
def test_nonsense_ends_in_a_cause_and_a_next_step(arguments: tuple[str, ...], exit_code: ExitCode, told: str) -> None:
    result = call(*arguments)
    assert result.exit_code == exit_code
    assert told in result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "next"]


def test_two_recorded_machines() -> None:
    result = call("whatif", "decode-7b", "--run", "nvidia-h200", "--against", "nvidia-h200")
    assert result.exit_code == ExitCode.MEASURED
    told = " ".join(result.output.split())
    assert re.search(r"The step takes (\S+ ms) in the stream in the first run, \1 in the second; ", told)


# -- whose constants ----------------------------------------------------------------------------------------------


def not_simulated(run: Run) -> tuple[Session, ...]:
    return tuple(msgspec.structs.replace(one, simulated=False) for one in run.sessions)


def save(data: Path, run: Run, run_id: str) -> Run:
    kept = msgspec.structs.replace(run, run_id=run_id, sessions=not_simulated(run))
    (data / f"{run_id}.json").write_bytes(schema.encode(kept))
    return kept


def test_the_newest_run_that_has_what_it_takes_is_chosen(data: Path) -> None:
    save(data, make_graph_run(), "20250101T000000Z-aaaaaaaa")
    save(data, make_run(), "20250102T000000Z-bbbbbbbb")  # newer, but no graph was measured
    result = call("predict", "--kernels", "10", "--duration", "3us", "--json")
    assert json.loads(result.output)["run"] == "20250101T000000Z-aaaaaaaa"
    assert json.loads(result.output)["reference"] is False


def test_a_simulated_run_is_taken_only_when_it_is_named(data: Path) -> None:
    run = make_graph_run()
    assert run.simulated
    (data / f"{run.run_id}.json").write_bytes(schema.encode(run))
    assert not suits(run, described(None, Options(kernels=10, duration="3us")))
    asked = ("predict", "--kernels", "10", "--duration", "3us")
    assert json.loads(call(*asked, "--json").output)["reference"] is True
    assert "SIMULATED" in call(*asked, "--run", run.run_id).output


def test_a_run_that_lacks_something_names_what_to_run_into_it(data: Path) -> None:
    kept = save(data, make_run(), "20250102T000000Z-bbbbbbbb")
    result = call("predict", "--kernels", "10", "--duration", "3us", "--run", "bbbbbbbb")
    assert result.exit_code == ExitCode.UNREADABLE_RUN
    assert "graph_lifecycle" in result.stderr
    assert "--into bbbbbbbb measures them" in result.stderr  # as it was called
    assert kept.run_id in result.stderr


@pytest.mark.parametrize("command", ["predict", "whatif", "timeline", "explain"])
def test_a_run_in_another_folder_is_added_to_by_its_path(command: str, tmp_path: Path) -> None:
    """Its id finds nothing there."""
    path = tmp_path / "of a colleague.json"
    run = make_graph_run() if command == "whatif" else make_run()
    path.write_bytes(schema.encode(msgspec.structs.replace(run, sessions=not_simulated(run))))
    asked = ("graphs",) if command == "explain" else ("--kernels", "10", "--duration", "3us")
    changes = ("--to-layer", "warp") if command == "whatif" else ()
    result = call(command, *asked, *changes, "--run", str(path), COLUMNS="300")
    advised = " ".join((result.stdout if command == "explain" else result.stderr).split())
    assert re.search(rf"microbench run [a-z_ ]+ --into '{re.escape(str(path))}'", advised)

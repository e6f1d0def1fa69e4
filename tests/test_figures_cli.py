"""plot and show with a figure: files of each kind, both grounds, several runs, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import call
from make_run import make_run

from microbench.core.errors import ExitCode
from microbench.report.figures.catalogue import KINDS
from microbench.runs import remarks, schema

BEGINS = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<svg", ".pdf": b"%PDF-"}


@pytest.fixture(autouse=True)
def narrow(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def simulated(path: Path, name: str = "SIMULATED GPU") -> Path:
    path.write_bytes(schema.encode(make_run(gpu_name=name)))
    return path


@pytest.mark.parametrize("ending", BEGINS)
def test_plot_writes_each_kind_of_file(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"ladder{ending}"
    result = call("plot", "nvidia-h200", "ladder", "-o", str(out))
    assert (result.exit_code, result.output) == (ExitCode.MEASURED, "")
    assert out.read_bytes().startswith(BEGINS[ending])


def test_plot_draws_on_either_ground(tmp_path: Path) -> None:
    light, dark = tmp_path / "light.svg", tmp_path / "dark.SVG"
    assert call("plot", "nvidia-h200", "gain", "-o", str(light)).exit_code == ExitCode.MEASURED
    assert call("plot", "nvidia-h200", "gain", "-o", str(dark), "--theme", "dark").exit_code == ExitCode.MEASURED
    assert "#ffffff" in light.read_text(encoding="utf-8")
    assert "#ffffff" not in dark.read_text(encoding="utf-8")


def test_plot_lays_runs_over_each_other_by_their_labels(tmp_path: Path, data: Path) -> None:
    other = simulated(data / "other.json")
    remarks.change(other, label="at home")
    out = tmp_path / "both.svg"
    result = call("plot", "nvidia-h200", "ladder", "--with", str(other), "-o", str(out))
    assert result.exit_code == ExitCode.MEASURED
    picture = out.read_text(encoding="utf-8")
    assert "at home · SIMULATED" in picture
    assert "NVIDIA H200 · REFERENCE" in picture


def test_a_picture_says_itself_whose_figures_it_shows(tmp_path: Path) -> None:
    """It goes into documents without the words around it."""
    runs = {
        "NVIDIA H200 · REFERENCE · driver": "nvidia-h200",
        "GPU · SIMULATED · driver": str(simulated(tmp_path / "a.json", "GPU")),
    }
    for place, (told, run) in enumerate(runs.items()):
        out = tmp_path / f"{place}.svg"
        assert call("plot", run, "ladder", "-o", str(out)).exit_code == ExitCode.MEASURED
        assert told in out.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "mine.svg"
    out.write_text("mine", encoding="utf-8")
    result = call("plot", "nvidia-h200", "ladder", "-o", str(out))
    assert result.exit_code == ExitCode.USAGE
    assert out.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("command", [("plot", "nvidia-h200", "lader", "-o", "x.png"), ("show", "nvidia-h200", "lader")])
def test_an_unknown_figure_is_answered_with_those_there_are(command: tuple[str, ...]) -> None:
    result = call(*command)
    assert result.exit_code == ExitCode.USAGE
    assert "there is no figure lader" in result.output
    assert ", ".join(KINDS) in result.output


@pytest.mark.parametrize("command", [("plot", "{}", "link", "-o", "x.png"), ("show", "{}", "link")])
def test_a_run_without_the_rows_is_answered_with_what_to_run(tmp_path: Path, command: tuple[str, ...]) -> None:
    run = simulated(tmp_path / "run.json")
    result = call(*(one.format(run) for one in command))
    assert result.exit_code == ExitCode.UNREADABLE_RUN
    assert "lacks what the figure link shows; it has ladder" in " ".join(result.output.split())
    assert "microbench run link_copy" in result.output


def test_a_run_without_any_figure_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(schema.encode(msgspec.structs.replace(make_run(), outcomes=())))
    assert "it has no figure at all" in " ".join(call("show", str(path), "gain").output.split())


@pytest.mark.parametrize("name", ["x.gif", "x", "x.png.txt"])
def test_another_ending_is_answered_with_those_there_are(tmp_path: Path, name: str) -> None:
    result = call("plot", "nvidia-h200", "ladder", "-o", str(tmp_path / name))
    assert result.exit_code == ExitCode.USAGE
    assert ".png, .svg, .pdf" in result.output
    assert not (tmp_path / name).exists()


def test_show_draws_one_figure_in_the_terminal() -> None:
    result = call("show", "nvidia-h200", "gain")
    assert result.exit_code == ExitCode.MEASURED
    assert "Speed-up of a graph over kernel duration" in result.output
    assert "REFERENCE" in result.output
    assert "Submission ladder" not in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.parametrize("name", ["ladder", "gain", "link", "memory", "step"])
def test_show_has_a_picture_for_each_figure(name: str) -> None:
    result = call("show", "nvidia-h200", name)
    assert result.exit_code == ExitCode.MEASURED
    assert f"{name}: {KINDS[name].title}"[:40] in result.output


def test_show_without_a_figure_is_the_whole_report(tmp_path: Path) -> None:
    result = call("show", str(simulated(tmp_path / "run.json")))
    assert result.exit_code == ExitCode.MEASURED
    assert "What this means (launch)" in result.output


def test_show_draws_a_figure_into_a_file(tmp_path: Path) -> None:
    out = tmp_path / "gain.svg"
    assert call("show", "nvidia-h200", "gain", "--svg", str(out)).exit_code == ExitCode.MEASURED
    assert out.read_text(encoding="utf-8").startswith("<svg")

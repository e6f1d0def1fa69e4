"""plot and show with a figure: files of each kind, both grounds, several runs, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from command_line import call
from make_run import make_run

from microbench.core.errors import ExitCode
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


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "mine.svg"
    out.write_text("mine", encoding="utf-8")
    result = call("plot", "nvidia-h200", "ladder", "-o", str(out))
    assert result.exit_code == ExitCode.USAGE
    assert out.read_text(encoding="utf-8") == "mine"


def test_a_run_without_any_figure_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(schema.encode(msgspec.structs.replace(make_run(), outcomes=())))
    assert "it has no figure at all" in " ".join(call("show", str(path), "gain").output.split())


def test_show_draws_a_figure_into_a_file(tmp_path: Path) -> None:
    out = tmp_path / "gain.svg"
    assert call("show", "nvidia-h200", "gain", "--svg", str(out)).exit_code == ExitCode.MEASURED
    assert out.read_text(encoding="utf-8").startswith("<svg")

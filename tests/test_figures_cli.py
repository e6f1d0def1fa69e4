"""plot and show with a figure: both grounds, several runs, and errors that say what to do."""

from pathlib import Path

import pytest
from command_line import call
from make_run import make_run
from recorded_runs import write

from microbench.archive import remarks
from microbench.core.errors import ExitCode


@pytest.fixture(autouse=True)
def narrow(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def simulated(path: Path, name: str = "SIMULATED GPU") -> Path:
    return write(path, make_run(gpu_name=name))


def test_plot_draws_on_a_light_or_dark_background(tmp_path: Path) -> None:
    run = str(simulated(tmp_path / "run.json"))
    for theme, white in (("light", True), ("dark", False)):
        out = tmp_path / f"{theme}.SVG"
        assert call("plot", run, "ladder", "-o", str(out), "--theme", theme).exit_code == ExitCode.MEASURED
        assert ("#ffffff" in out.read_text(encoding="utf-8")) == white


def test_a_plot_names_its_runs_by_label_and_says_which_are_simulated(tmp_path: Path, data: Path) -> None:
    """A picture goes into documents without the words around it."""
    other, out = simulated(data / "other.json"), tmp_path / "both.svg"
    remarks.change(other, label="at home")
    result = call("plot", "nvidia-h200", "ladder", "--with", str(other), "-o", str(out))
    assert result.exit_code == ExitCode.MEASURED
    picture = out.read_text(encoding="utf-8")
    assert all(words in picture for words in ("at home · SIMULATED", "NVIDIA H200 · REFERENCE"))
    before = out.read_bytes()
    assert call("plot", str(other), "ladder", "-o", str(out)).exit_code == ExitCode.USAGE
    assert out.read_bytes() == before, "an existing file is left alone"
    bare = str(simulated(tmp_path / "bare.json", "GPU"))
    for words, run in (("NVIDIA H200 · REFERENCE · driver", "nvidia-h200"), ("GPU · SIMULATED · driver", bare)):
        out = tmp_path / f"{Path(run).stem}.svg"
        assert call("plot", run, "ladder", "-o", str(out)).exit_code == ExitCode.MEASURED
        assert words in out.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")

"""plot and show with a figure: both grounds, several runs, and errors that say what to do."""

from pathlib import Path

import pytest
from command_line import call
from make_run import make_run
from msgspec.structs import replace

from microbench.archive import remarks, schema
from microbench.core.errors import ExitCode
from microbench.report.figures.catalogue import KINDS


@pytest.fixture(autouse=True)
def narrow(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def simulated(path: Path, name: str = "SIMULATED GPU") -> Path:
    path.write_bytes(schema.encode(make_run(gpu_name=name)))
    return path


@pytest.mark.parametrize("name", ["ladder.png", "ladder.PDF", "ladder"])
def test_plot_writes_no_other_kind_of_file_and_says_how_to_get_one(tmp_path: Path, name: str) -> None:
    result = call("plot", str(simulated(tmp_path / "run.json")), "ladder", "-o", str(tmp_path / name))
    assert result.exit_code == ExitCode.USAGE
    words = " ".join(result.output.split())
    assert all(each in words for each in (f"not as {name}", "ladder.svg; a browser or rsvg-convert"))
    assert not (tmp_path / name).exists()


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


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("nvidia-h200", "lader"), ExitCode.USAGE, ("lader", ", ".join(KINDS))),
    (
        ("run.json", "gain"),
        ExitCode.UNREADABLE_RUN,
        ("of the figure gain; it has ladder", "microbench run graph_gain"),
    ),
    (("empty.json", "gain"), ExitCode.UNREADABLE_RUN, ("it has those of no figure",)),
])  # fmt: skip
def test_a_figure_that_cannot_be_drawn_is_an_error_with_a_next_step(
    arguments: tuple[str, str], code: ExitCode, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulated(Path("run.json"))
    Path("empty.json").write_bytes(schema.encode(replace(make_run(), outcomes=())))
    assert call("show", "run.json", "ladder", "--svg", "figure.svg").exit_code == ExitCode.MEASURED
    assert Path("figure.svg").read_text(encoding="utf-8").startswith("<svg")
    for command in (("plot", *arguments, "-o", "x.svg"), ("show", *arguments)):
        result = call(*command)
        assert result.exit_code == code
        assert all(each in " ".join(result.output.split()) for each in words)

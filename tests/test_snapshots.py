"""Every command's output on a terminal with and without colour and in a pipe; kept at 80 columns, checked at 120 too.

Runs are made by hand; what differs from one machine or day to the next is replaced by fixed words.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import compare_runs
import pytest
import snapshots
from changed_run import bundled, in_one_round, simulated
from make_link_run import make_link_run
from make_run import failed, make_run, measurement, outcome, skipped
from make_small_run import RUN
from recorded_runs import recorded, save
from rich.cells import cell_len
from test_doctor import AROUND
from test_doctor import environment as examined
from typer.testing import CliRunner, Result

from microbench.archive import remarks, schema, store
from microbench.cli.app import parser
from microbench.core.errors import DeviceAbsentError, ExitCode
from microbench.core.model import Environment, Run
from microbench.session import doctor, session
from microbench.session.messages import CaseDone, CaseStarted, CaseTick, PlanMade, RunEnded

WIDTHS = (80, 120)
# Scenes that are kept at 120 columns too: they hold what a wider page shows more of.
KEPT_WIDE = ("show", "history")
LONGEST_LINES = 36
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[(?:[0-9]+;)*(?:[349]|10)[0-9][;m]")
NO_TERMINAL: Mapping[str, str | None] = dict.fromkeys(
    ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
)
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
LAST = "20260301T083000Z-0000003b"


def unusual() -> Run:
    """A run of two rounds in which things went wrong, with names as wide as they are foreign."""
    one = outcome("launch_cold", [measurement("seconds", 0.1, n=1)], what="漢字カーネル")
    return make_run(
        rounds=2, gpu_name="SIMULATED 図形処理装置", extra=[skipped(), failed(), failed("CPU 멈춤", "crashed"), one]
    )


@cache
def files() -> dict[str, bytes]:
    """The runs that scenes name as files; each suite's on its own."""
    slower = compare_runs.changed(1.05, suite="launch")
    less = compare_runs.changed(0.8, suite="memory")
    made = {
        "launch": make_run(rounds=3), "graph": simulated("launch", "graph"), "link": make_link_run(),
        "memory": in_one_round(bundled("memory")), "compute": in_one_round(bundled("compute")), "unusual": unusual(),
        "host": make_run(gpu=False), "small": RUN, "base": compare_runs.made(1),
        "new": compare_runs.made(2, slower, less, driver="580.2"),
    }  # fmt: skip
    return {f"{name}.json": schema.encode(run) for name, run in made.items()}


def fill(folder: Path) -> None:
    """Files to be named, and beside them a data folder of recorded runs, some of them with remarks."""
    data = folder / "data"
    data.mkdir()
    for name, content in files().items():
        (folder / name).write_bytes(content)
    for number in range(55, 60):
        wide, factor = number == 57, 1 + number % 3 / 50
        kept = save(data, recorded(number, factor=factor, gpu_name="図形処理装置" if wide else "SIMULATED"))
        if wide:
            remarks.change(kept, label="新しい冷却装置", note="風扇を交換した後の測定。 " * 8)
    remarks.change(data / f"{LAST}.json", label="after")
    (data / "20251231T000000Z-0000bad0.json").write_bytes(b"{")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    return folder


@pytest.fixture(autouse=True)
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of those files, which is the working folder: what is written there belongs to one test."""

    def nowhere(*descriptor: int) -> os.terminal_size:
        raise OSError("no terminal")

    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(os, "get_terminal_size", nowhere)  # not that of the person testing
    return tmp_path


def call(arguments: Sequence[str], **variables: str) -> Result:
    return CliRunner().invoke(parser(), list(arguments), env={**NO_TERMINAL, **variables}, catch_exceptions=False)


def without_codes(text: str) -> str:
    return CODES.sub("", text)


def clipped(text: str, lines: int = LONGEST_LINES) -> str:
    """The first ``lines`` of a long text; a last line says that there were more."""
    first, rest = text.splitlines()[:lines], text.splitlines()[lines:]
    return "\n".join([*first, "… more lines"] if rest else first)


def wrapped(text: str) -> str:
    """Data in lines that can be read."""
    return "\n".join(part for line in snapshots.rounded(text).splitlines() for part in textwrap.wrap(line, 119))


def check_lines(text: str, width: int | None) -> None:
    """No line is wider than ``width``, none ends in a blank, and the last one is ended once."""
    lines = text.split("\n")
    assert lines[-1] == ""
    assert lines[-2].strip() != ""
    assert [line for line in lines if line != line.rstrip()] == []
    assert width is None or [line for line in lines if cell_len(line) > width] == []


STEP = ("--kernels", "100", "--duration", "6us", "--layer", "torch", "--run", "graph.json")
DRAWN: dict[str, tuple[str, ...]] = {
    "show": ("show", "launch.json"), "show-figure-ladder": ("show", "launch.json", "ladder"),
    "show-figure-gain": ("show", "graph.json", "gain"), "show-figure-link": ("show", "link.json", "link"),
    "show-figure-memory": ("show", "memory.json", "memory"),
    "show-figure-roofline": ("show", "compute.json", "roofline"),
    "show-figure-sustained": ("show", "compute.json", "sustained"), "show-figure-step": ("show", "graph.json", "step"),
    "predict": ("predict", *STEP), "predict-all": ("predict", *STEP, "--all"),
    "whatif": ("whatif", *STEP, "--submit", "2us"),
    "timeline": ("timeline", "--duration", "3us", "--kernels", "6", "--run", "graph.json"), "explain": ("explain",),
    "explain-launch": ("explain", "launch", "--run", "launch.json"), "history": ("history",),
    "history-last": ("history", "--last", "2"), "history-prune": ("history", "prune", "--keep", "1", "--yes"),
    "history-label": ("history", "--label", LAST, "before", "--note", LAST, "[bold]note[/bold]"),
    "trend": ("trend", "launch_cost.submit"), "list": ("list",), "list-host": ("list", "host"), "doctor": ("doctor",),
    "doctor-no-gpu": ("doctor",), "run": ("run", "launch"), "run-no-gpu": ("run", "--quick"),
}  # fmt: skip
# Long outputs, whose words other tests check. Here only their layout is checked.
LAID_OUT: dict[str, tuple[str, ...]] = {
    "explain-tensor": ("explain", "tensor", "--run", "compute.json"),
    "show-compute": ("show", "compute.json", "compute"), "show-link": ("show", "link.json", "link"),
    "show-unusual": ("show", "unusual.json"), "compare": ("compare", "base.json", "new.json"),
    "compare-all": ("compare", "base.json", "new.json", "--all"),
}  # fmt: skip
LOOKS = {**DRAWN, **LAID_OUT}


def measured(run: Run) -> Callable[..., session.RunResult]:
    """A stand-in for the runner, which measures nothing and tells of the first outcomes of a run, and of a failure."""

    def execute(request: session.RunRequest, listener: Callable[[object], None], *others: object) -> session.RunResult:
        done = (*run.outcomes[:3], skipped(), failed("it broke: 漢字"))
        listener(PlanMade(len(done), 0, 20.0, ("host", "launch"), 4.0))
        for number, one in enumerate(done):
            listener(CaseStarted(one.case.id, number, len(done), "host", 0))
            listener(CaseTick(one.case.id, "call", "s", 10, 2e-9))
            listener(CaseDone(one))
        listener(RunEnded(Path("run.json"), "complete"))
        Path("run.json").write_bytes(schema.encode(run))
        return session.RunResult(run, Path("run.json"), ExitCode.MEASURED)

    return execute


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `run` and `doctor` look at: always the same; in scenes of no GPU there is none."""
    absent = "no-gpu" in request.node.callspec.params.get("name", "")
    where = Environment(no_gpu_reason="no driver [bold]", no_gpu_next_step="install one") if absent else examined()
    monkeypatch.setattr("microbench.gpu.open.probe_environment", lambda device: where)
    for name, look in AROUND.items():
        monkeypatch.setattr(doctor, name, look)
    monkeypatch.setattr(session, "execute", measured(make_run(gpu=False) if absent else unusual()))
    if absent:
        bundled = {"nvidia-h200": Path("launch.json").resolve()}
        monkeypatch.setattr(store, "bundled", lambda: bundled)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LOOKS)
def test_what_a_command_draws(name: str, width: int, folder: Path) -> None:
    """Apart from styles the output is the same without colour, in a pipe and on a terminal."""
    shown = called_anew(LOOKS[name], folder, NO_COLOR="1", COLUMNS=str(width))
    assert "\x1b" not in shown
    check_lines(shown, width)
    coloured = called_anew(LOOKS[name], folder, COLUMNS=str(width), **TERMINAL)
    assert CODES.search(coloured)
    assert without_codes(coloured) == shown
    if width == 120:  # a pipe has no width of its own
        assert called_anew(LOOKS[name], folder) == shown
    else:
        uncoloured = called_anew(LOOKS[name], folder, NO_COLOR="1", COLUMNS=str(width), **TERMINAL)
        assert not COLOURS.search(uncoloured)  # bold and dim are no colours
        assert without_codes(uncoloured) == shown
    if name in DRAWN and (width == 80 or name in KEPT_WIDE):
        snapshots.same(f"commands/{name}-{width}", clipped(shown))


def called_anew(arguments: Sequence[str], folder: Path, **variables: str) -> str:
    """Standard output of a command that succeeds; the data folder is afterwards what it was before."""
    kept = {path: path.read_bytes() for path in (folder / "data").iterdir() if path.is_file()}
    result = call(arguments, **variables)
    problem = "doctor-no-gpu" in os.environ.get("PYTEST_CURRENT_TEST", "")
    assert result.exit_code == (ExitCode.SOME_FAILED if problem else ExitCode.MEASURED), result.output
    for path in (folder / "data").iterdir():
        if path.is_file() and path not in kept:
            path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
    return result.stdout


def test_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each case, however long, and never a colour."""
    monkeypatch.setattr(session, "execute", measured(unusual()))
    for variables in ({}, {"NO_COLOR": "1", "COLUMNS": "120"}):
        told = call(("run", "launch"), **variables).stderr
        assert "\x1b" not in told
        check_lines(told, None)
        snapshots.same("commands/run-progress", told)


def test_a_simulated_run_as_a_process(folder: Path) -> None:
    """The simulated GPU has constants and a fixed seed; only when and how long is different each time."""
    command = (*["run", "launch_kind", "--quick", "--device", "fake", "--time-limit", "300", "--out", "here.json"],)
    variables = {name: value for name, value in os.environ.items() if name not in NO_TERMINAL}
    done = subprocess.run(
        [sys.executable, "-m", "microbench", *command],
        capture_output=True, check=True, stdin=subprocess.DEVNULL, env={**variables, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    shown, told = done.stdout.decode(), done.stderr.decode()
    assert "\x1b" not in shown + told
    check_lines(shown, 120)
    check_lines(told, None)
    shown, ids = re.subn(r"run \d{8}T\d{6}Z-[0-9a-f]{8}", "run (its id)", shown)
    assert ids == 1
    told = re.sub(r"(?<=, at most ).*", "(what is left)", told)
    snapshots.same("commands/run-simulated", f"{told}\n{shown}")


WRITTEN: dict[str, tuple[str, ...]] = {
    "export-csv": ("export", "small.json"),
    "export-jsonl": ("export", "small.json", "--format", "jsonl"),
    "export-json": ("export", "small.json", "--format", "json"),
    "export-report": ("export", "small.json", "--format", "markdown"),
    "export-redacted": ("export", "small.json", "--format", "jsonl", "--redact"),
    "export-schema": ("export", "--schema"),
    "predict-json": ("predict", *STEP, "--json"),
    "run-json": ("run", "--json"),
}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_command_writes_is_the_same_everywhere(name: str) -> None:
    text = call(WRITTEN[name]).stdout
    assert "\x1b" not in text
    check_lines(text, None)
    for variables in ({"NO_COLOR": "1", "COLUMNS": "80"}, {"COLUMNS": "120", **TERMINAL}):
        assert call(WRITTEN[name], **variables).stdout == text
    snapshots.same(f"commands/{name}", clipped(wrapped(text), 16))


def test_a_plot_says_nothing_and_a_page_how_large_it_is() -> None:
    plotted = call(("plot", "launch.json", "ladder", "-o", "ladder.svg"), **TERMINAL)
    assert (plotted.exit_code, plotted.output) == (ExitCode.MEASURED, "")
    made = call(("report", "small.json", "-o", "small.html"), COLUMNS="80", **TERMINAL)
    assert made.exit_code == ExitCode.MEASURED
    assert re.fullmatch(r"small\.html: \d+\.\d\d MB, including the data\n", made.output)


@pytest.mark.parametrize("command", ["", *sorted({arguments[0] for arguments in LOOKS.values()}), "plot", "report"])
def test_help_fits_the_page(command: str) -> None:
    """Some of its words are the parser's, so only the layout is checked."""
    for variables in ({"NO_COLOR": "1", "COLUMNS": "80"}, {"COLUMNS": "120", **TERMINAL}):
        result = call((*command.split(), "--help"), **variables)
        assert result.exit_code == ExitCode.MEASURED
        assert "\x1b" not in result.stdout
        check_lines(result.stdout, int(variables["COLUMNS"]))


ERRORS: tuple[tuple[str, ...], ...] = (
    ("run", "lunch"), ("run", "--quick", "--full"), ("run", "launch_sync", "--set", "wait=spn"),
    ("run", "--device", "cuda:7"), ("show", "nope"), ("show", "bad.json"), ("show", "launch.json", "lader"),
    ("show", "host.json", "roofline"), ("predict",), ("predict", "--kernels", "100", "--duration", "nan"),
    ("predict", "decode8b"), ("predict", *STEP[:-1], "host.json"), ("whatif", *STEP),
    ("whatif", *STEP, "--memory", "2039"), ("timeline", "--kernels", "99999", "--duration", "1us"),
    ("timeline", *STEP[:-1], "host.json"), ("explain", "lunch"), ("explain", "--run", "launch.json"),
    ("explain", "launch", "--run", "nope"), ("compare", "base.json", "base.json"), ("compare", "base.json", "nope"),
    ("plot", "launch.json", "lader", "-o", "x.png"), ("plot", "launch.json", "ladder", "-o", "x.gif"),
    ("plot", "launch.json", "link", "-o", "x.svg"), ("plot", "launch.json", "ladder", "-o", "nowhere/x.png"),
    ("report", "nope", "-o", "x.html"), ("export", "nope"), ("export", "[bold]漢字[/bold]\x1b[31m"), ("trend", "nope"),
    ("trend", "launch_cost.submit", "--case", "layer"), ("list", "lunch"), ("history", "--label", "nope", "x"),
    ("history", "--label", LAST, "x" * 1000), ("history", "prune"), ("history", "prune", "--keep", "1"),
    ("run", "launch_cots"), ("run", "launch_sync", "--set", "wiat=spin"), ("run", "--set", "wait"),
    ("run", "--out", "a.json", "--into", "b"), ("run", "--rounds", "0"), ("run", "--time-limit", "-1"),
    ("run", "--out", "/nowhere/at/all.json"), ("run", "--out", "all.jsonl"), ("run", "--out", "/"),
    ("predict", "--kernels", "0", "--duration", "1us"), ("predict", *STEP[:-1], "nvidia-h200-x2"),
    ("predict", *STEP[:-1], "none-such"), ("whatif", "decode-7b"), ("whatif", "decode-7b", "--pcie-gen", "9"),
    ("whatif", "decode-7b", "--submit", "1us", "--against", "nvidia-h200"), ("whatif", "decode-7b", "--lanes", "3"),
    ("whatif", "decode-7b", "--kernel-time", "-1"), ("whatif", "decode-7b", "--submit", "soon"),
    ("whatif", "decode-7b", "--to-layer", "tensorflow"), ("timeline",), ("timeline", "--duration", "3"),
    ("timeline", "--duration", "\x1b[2J"), ("timeline", "--duration", "3us", "--kernels", "0"),
    ("timeline", "--duration", "3us", "--layer", "lop"), ("timeline", "decode-8b"),
    ("timeline", "--duration", "3us", "--run", "nowhere"), ("explain", "xyz"), ("show", "small.json", "gain"),
    ("export", "bad.json"), ("trend", "launch_cost."), ("trend", ".submit"), ("trend", "launch_cost.submitt"),
    ("trend", "graph_gain.stream"), ("trend", "x" * 10_000 + ".y"), ("history", "--label", "nvidia-h200", "mine"),
    ("history", "prune", "--older-than", "nan", "--yes"), ("history", "prune", "--older-than", "1e300", "--yes"),
    ("compare", "base.json", "new.json", "--same-within=0%"), ("compare", "base.json", "new.json", "--same-within=11%"),
    ("compare", "base.json", "new.json", "--same-within=nan"), ("compare", "base.json", "new.json", "--same-within="),
    ("watch", "--pid", "0"), ("watch", "--pid", "-1"), ("watch", "--pid", "2147483647"), ("watch",),
    ("watch", "--pid", "1", "-o", "x"), ("watch", "--pid", "1", "--utilisation"), ("watch", "--pid", "1", "--", "true"),
    ("check", "compute", "--run", "nvidia-h200-x2"),
)  # fmt: skip


def test_an_error_is_a_line_of_cause_and_one_of_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same two lines however wide the page is, in colour too."""
    (folder / "bad.json").write_bytes(b"{")
    known = session.execute

    def absent(request: session.RunRequest, listener: object, *others: object) -> session.RunResult:
        if request.settings.device is None:
            return known(request, listener)  # type: ignore[arg-type]
        raise DeviceAbsentError(f"there is no device {request.settings.device}", "see `microbench doctor`")

    monkeypatch.setattr(session, "execute", absent)
    before, told = sorted(folder.rglob("*")), []
    for arguments in ERRORS:
        found = call(arguments, NO_COLOR="1", COLUMNS="80")
        assert found.exit_code not in (ExitCode.MEASURED, 1), arguments
        assert [line.split(":")[0] for line in found.stderr.splitlines()] == ["error", "next"], arguments
        assert "\x1b" not in found.stderr
        check_lines(found.stderr, None)
        coloured = call(arguments, COLUMNS="120", **TERMINAL).stderr
        assert COLOURS.search(coloured)
        # What `run` shows on a terminal as it begins, it takes back before an error.
        assert without_codes(coloured).removeprefix("Looking at this machine…\n").lstrip("\r\n") == found.stderr
        words = " ".join(arguments).replace("\x1b", "ESC")[:100]
        told.append(f"$ microbench {words}\n{found.stderr}exit code {found.exit_code}\n")
    assert sorted(folder.rglob("*")) == before
    snapshots.same("commands/errors", "\n".join(told))


def test_no_run_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "empty"))
    told = []
    for arguments in (("show",), ("export",), ("report",), ("history",), ("trend", "x.y"), ("compare", "nvidia-h200")):
        found = call(arguments)
        assert found.exit_code == ExitCode.UNREADABLE_RUN
        told.append(f"$ microbench {' '.join(arguments)}\n{found.stderr}")
    snapshots.same("commands/errors-no-run", "\n".join(told))

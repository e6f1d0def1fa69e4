"""The command: its commands, options, exit codes, and that no bad input ends in a traceback."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from command_line import call
from make_run import failed, make_run
from make_trace import kineto
from recorded_runs import write
from test_diagnose_cli import program

from microbench.archive import store
from microbench.archive.export import HEADER
from microbench.cli.app import parser
from microbench.cli.options import Without, signature_of
from microbench.core.bench import discover
from microbench.core.errors import DeviceAbsentError, ExitCode
from microbench.core.options import argument, option
from microbench.core.version import __version__
from microbench.report.document import TRUST_MARKS
from microbench.session import session

COMMANDS = (
    "run", "show", "compare", "plot", "report", "predict", "whatif", "timeline", "explain", "constants", "export",
    "trend", "list", "doctor", "history",
)  # fmt: skip


@pytest.fixture
def saved(data: Path) -> Path:
    return write(data / "20250102T030405Z-aaaaaaaa.json", make_run(extra=[failed()]))


def test_each_command_is_listed_and_its_help_has_an_example() -> None:
    text = call("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"\n  {command} +[A-Z][^.]*\.\n", text), "its first help line is cut off: make it shorter"
        result = call(command, "--help")
        assert result.exit_code == 0
        assert f"Example: microbench {command}" in result.stdout
    assert re.fullmatch(rf"microbench {__version__}( \([0-9a-f]{{7,40}}(-dirty)?\))?\n", call("--version").stdout)
    assert "--install-completion" in text


def test_a_command_that_is_declared_alone_is_the_same() -> None:
    every = typer.main.get_command(parser()).commands  # type: ignore[attr-defined]
    for name in every.keys() - {"history", "fleet"}:
        (alone,) = typer.main.get_command(parser([name])).commands.values()  # type: ignore[attr-defined]
        assert alone.get_help(typer.Context(alone)) == every[name].get_help(typer.Context(every[name]))
    for other in ("history", "fleet", "shwo", "--help"):
        assert typer.main.get_command(parser([other])).commands.keys() == every.keys()  # type: ignore[attr-defined]


README = Path(__file__).parent.parent / "README.md"


def test_readme_opens_with_a_story_and_installs_by_two_commands() -> None:
    lines = README.read_text().splitlines()
    assert [line.split()[1:3] for line in lines[:20] if line.startswith("$ ")] == [
        ["python", "decode.py"], ["microbench", "diagnose"], ["python", "decode.py"],
    ]  # fmt: skip
    assert any(line.startswith("![") for line in lines[:20])
    story = (README.parent / "docs" / "example" / "README.md").read_text()
    outputs = [line for line in lines[:14] if "ms a token" in line]
    assert len(outputs) == 2
    assert all(line in story for line in outputs)
    first, second, *_ = (line for line in lines[20:] if line.startswith("$ "))
    assert first.startswith("$ ./scripts/microbench run")
    assert second.startswith("$ ./scripts/test")


def test_the_reference_has_every_exit_code_grade_and_column() -> None:
    text = (README.parent / "docs" / "reference.md").read_text()
    codes = re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)
    assert [int(code) for code in codes] == [int(code) for code in ExitCode]
    marks = dict(re.findall(r"^\| (\S) \| ([a-z ]+) \| ", text, re.MULTILINE))
    assert marks == {mark: grade for grade, (mark, _) in TRUST_MARKS.items()}
    assert f"\n{','.join(HEADER)}\n" in text


def test_show_finds_a_run_by_path_id_or_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = call("show")
    assert last.exit_code == 0
    assert "SIMULATED" in last.stdout
    by_name = call("show", str(saved)).stdout
    assert by_name.rpartition("more:")[0] == last.stdout.rpartition("more:")[0]
    assert "microbench show launch" in last.stdout
    assert str(saved) in by_name.replace("\n", "")
    assert call("show", "last").stdout == last.stdout
    monkeypatch.setattr(store, "bundled", lambda: {"nvidia-h200": saved})
    assert "REFERENCE" in call("show", "nvidia-h200").stdout


@pytest.mark.parametrize(("width", "most"), [("80", 40), ("120", 30)])
@pytest.mark.parametrize("run", ["nvidia-h200", "nvidia-h200-x2"])
def test_the_answer_fits_one_screen(run: str, width: str, most: int) -> None:
    text = call("show", run, COLUMNS=width, NO_COLOR="1").stdout
    assert len(text.splitlines()) <= most
    assert max(map(len, text.splitlines())) <= int(width)


@pytest.mark.parametrize("suite", ["host", "launch", "graph", "link", "memory"])
def test_a_suite_takes_at_most_120_lines_and_says_where_the_rest_is(suite: str) -> None:
    text = call("show", "nvidia-h200", suite, COLUMNS="80", NO_COLOR="1").stdout
    assert len(text.splitlines()) <= 120
    assert f"What this means ({suite})" in text


def test_a_part_alone_means_the_last_run(saved: Path) -> None:
    assert call("show", "launch").stdout == call("show", "last", "launch").stdout
    assert call("show", "ladder").stdout == call("show", "last", "ladder").stdout
    whole, suite = call("show", "--all").stdout, call("show", "launch").stdout
    assert "launch_kind: " in whole
    assert "launch_kind: " not in suite
    assert "launch_kind: " in call("show", "launch", "--all").stdout
    benchmark = call("show", "last", "launch_kind").stdout
    assert "launch_kind: " in benchmark
    assert "launch_duration: " not in benchmark


def test_a_page_of_pictures_is_written_as_several_files(saved: Path, tmp_path: Path) -> None:
    assert call("show", "--all", "--svg", str(tmp_path / "all.svg")).exit_code == 0
    names = sorted(path.name for path in tmp_path.glob("all*.svg"))
    assert names[:2] == ["all-1.svg", "all-2.svg"]
    for name in names:
        width, height = re.search(r'viewBox="0 0 (\S+) (\S+)"', (tmp_path / name).read_text()).groups()  # type: ignore[union-attr]
        assert float(width) <= 1600
        assert float(height) <= 2200


def test_show_draws_into_a_file(saved: Path, tmp_path: Path) -> None:
    result = call("show", "--svg", str(tmp_path / "report.svg"))
    assert result.exit_code == 0
    assert "<svg" in (tmp_path / "report.svg").read_text()
    before = saved.read_bytes()
    assert call("show", "--svg", str(saved)).exit_code == ExitCode.USAGE
    assert saved.read_bytes() == before
    missing = call("show", "--svg", str(tmp_path / "nowhere" / "report.svg"))
    assert missing.exit_code == ExitCode.USAGE
    assert "cannot be written" in missing.stderr


def test_show_marks_an_unfinished_run(data: Path) -> None:
    write(data / "20250102T030405Z-bbbbbbbb.jsonl", make_run(gpu=False))
    assert "UNFINISHED" in call("show").stdout
    assert "UNFINISHED" in call("show", str(data / "20250102T030405Z-bbbbbbbb.json")).stdout


def test_list_shows_questions_and_axes() -> None:
    result = call("list", "launch")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith(" launch_")]
    assert len(lines) == len([name for name in discover() if name.startswith("launch_")]), "a line a benchmark"
    assert "host_timer" not in result.stdout
    axes = call("list", "launch_duration").stdout
    assert "duration_ns" in axes
    assert "quick: 0, 1000, 2000, 3000, 5000, 10000" in axes
    assert "default: also 500, 20000, 50000, 100000" in axes
    assert "did you mean launch?" in call("list", "lanch").stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (("link_nccl", "--set", "gpus=1"), "link_nccl: this machine has 1 GPU: use gpus=all"),
    (("link_nccl", "--set", "gpus=2"), "link_nccl: needs 2 GPUs, 1 here"),
    (("link_peer", "link_nccl", "--set", "gpus=1"), "link_peer: needs 2 GPUs, 1 here"),
])  # fmt: skip
def test_a_run_of_nothing_but_what_is_not_here_is_an_error(
    arguments: tuple[str, ...], words: str, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "kept.json"
    assert call("run", "host_timer", "--quick", "--device", "fake", "--out", str(out)).exit_code == 0
    before, there = out.read_bytes(), sorted(data.iterdir())
    for where in ((), ("--into", str(out))):
        result = call("run", *arguments, "--device", "fake", *where)
        assert result.exit_code == ExitCode.USAGE
        assert words in result.stderr
        assert "microbench list link_" in result.stderr
    assert sorted(data.iterdir()) == there
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.jsonl"))


def finish(exit_code: ExitCode, path: str = "run.json") -> object:
    """A stand-in for the runner: a run is there at once."""

    def execute(request: session.RunRequest, listener: object, *others: object) -> session.RunResult:
        return session.RunResult(make_run(), Path(path), exit_code)

    return execute


@pytest.mark.parametrize("code", [ExitCode.MEASURED, ExitCode.SOME_FAILED, ExitCode.INTERRUPTED])
def test_run_ends_with_the_exit_code_of_the_session(code: ExitCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "execute", finish(code))
    result = call("run", "--quick")
    assert result.exit_code == code
    assert "saved: run.json" in result.stdout
    assert json.loads(call("run", "--json").stdout)["simulated"] is True


@pytest.mark.parametrize(("error", "code", "stderr"), [
    (DeviceAbsentError("no such GPU", "see doctor"), ExitCode.NO_DEVICE, "error: no such GPU\nnext:  see doctor\n"),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
])  # fmt: skip
def test_a_run_that_is_stopped_ends_with_its_code(
    error: BaseException, code: ExitCode, stderr: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(request: session.RunRequest, listener: object, *others: object) -> session.RunResult:
        raise error

    monkeypatch.setattr(session, "execute", execute)
    result = call("run")
    assert (result.exit_code, result.stderr) == (code, stderr)


def test_a_run_can_be_labelled_as_it_is_made(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "execute", finish(ExitCode.MEASURED, str(saved)))
    assert call("run", "--label", "first try").exit_code == 0
    assert "first try" in call("history").stdout
    assert "characters" in call("run", "--label", "x" * 61).stderr


@pytest.mark.parametrize("terminal", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"}])
def test_the_path_of_a_saved_run_is_never_folded(terminal: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/".join(["", *(f"folder of words {place}" for place in range(12)), "run.json"])
    monkeypatch.setattr(session, "execute", finish(ExitCode.MEASURED, path))
    result = call("run", "--quick", COLUMNS="80", **terminal)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in result.stdout.splitlines()]
    assert f"saved: {path}" in lines


def process(*arguments: str, data: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "microbench", *arguments]
    return subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "MICROBENCH_DATA": str(data), **variables}
    )


def test_a_simulated_run_end_to_end(data: Path) -> None:
    result = process("run", "launch_kind", "--quick", "--device", "fake", data=data)
    assert result.returncode == ExitCode.MEASURED, result.stderr.decode()
    assert b"SIMULATED" in result.stdout
    assert b"[6/6] launch_kind[kind=pdl]: submit" in result.stderr
    assert len(list(data.glob("*.json"))) == 1
    shown = process("show", data=data, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert shown.stdout.isascii()
    assert b"microbench show launch" in shown.stdout


def test_a_closed_pipe_is_no_error(saved: Path) -> None:
    for command in ("show", "export"):
        both = f"{sys.executable} -m microbench {command} {saved} | true; exit ${{PIPESTATUS[0]}}"
        found = subprocess.run(["bash", "-c", both], capture_output=True, check=False)
        assert (found.returncode, found.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments", [("show",), *(pytest.param((name,), marks=pytest.mark.slow) for name in ("export", "list", "--help"))]
)
def test_output_to_a_full_disk_is_an_error_of_two_lines(arguments: tuple[str, ...], saved: Path) -> None:
    command = f"{sys.executable} -m microbench {' '.join(arguments)}"
    environment = {**os.environ, "MICROBENCH_DATA": str(saved.parent)}
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], capture_output=True, check=False, env=environment)
    assert full.returncode == ExitCode.USAGE
    assert [line.split(b":")[0] for line in full.stderr.splitlines()] == [b"error", b"next"]
    shut = subprocess.run(["bash", "-c", f"{command} >&- <&-"], capture_output=True, check=False, env=environment)
    assert (shut.returncode, shut.stderr) == (0, b"")


@pytest.mark.slow
def test_closed_streams_leave_the_run_file_whole(data: Path) -> None:
    for number, stream in enumerate(("<&-", ">&-", "2>&-")):
        path = data / f"{number}.json"
        command = f"{sys.executable} -m microbench run launch_cost --quick --device fake --json --out {path} {stream}"
        found = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
        assert found.returncode == 0, found.stderr
        assert store.read(store.find(path)).outcomes
        assert stream == ">&-" or json.loads(found.stdout)["simulated"] is True


@pytest.mark.parametrize(("arguments", "cause", "where"), [
    (["show", "--bogus"], "no such option: --bogus", "microbench show --help"),
    (["trend"], "missing argument 'METRIC'", "microbench trend --help"),
    (["nonsense"], "no such command 'nonsense'", "microbench --help"),
    (["run", "[bold]", "--rounds", "x"], "invalid value for '--rounds'", "microbench run --help"),
])  # fmt: skip
def test_a_wrong_command_line_is_an_error_of_two_lines(arguments: list[str], cause: str, where: str) -> None:
    command = [sys.executable, "-m", "microbench", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.USAGE
    error, step = ended.stderr.splitlines()
    assert error.startswith(f"error: {cause}")
    assert step == f"next:  see `python -m {where}`", "the command as it was typed"
    assert not ended.stdout


def test_without_a_command_there_is_help() -> None:
    ended = subprocess.run([sys.executable, "-m", "microbench"], capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.USAGE
    assert ended.stdout.startswith("Usage: python -m microbench")
    assert "Example: microbench run --quick" in ended.stdout


def test_the_screen_of_a_run_that_is_not_the_last_one_names_it_in_its_commands(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    shown = call("run", "host_timer", "--quick", "--device", "fake", "--out", str(out))
    assert f"microbench show {out} host_timer" in " ".join(shown.stdout.split())


@dataclass(frozen=True)
class Sizes:
    width: int = option("N", "How wide.", default=3)
    labels: tuple[str, ...] = option("TEXT", "What to write on it.", "--label", default=("none",), read=tuple)
    depth: int | None = option("N", "How deep.")


def test_a_dataclass_of_options_stands_for_each_of_them() -> None:
    def sized(
        *,
        name: str = argument("NAME", "What it is called."),
        sizes: Annotated[Sizes, Without("depth")],
        on: tuple[str, ...] = option("DAY", "When.", default=("today",), read=tuple),
    ) -> None: ...

    signature, arguments = signature_of(sized)
    assert [*signature.parameters] == ["name", "width", "labels", "on"]
    given = arguments({"name": "box", "width": 4, "labels": ["a", "b"], "on": ["friday"]})
    assert given == {"name": "box", "sizes": Sizes(4, ("a", "b")), "on": ("friday",)}
    assert arguments({"name": "box", "width": 3, "labels": [], "on": None}) == {
        "name": "box", "sizes": Sizes(), "on": ("today",)
    }  # fmt: skip


def test_everything_goes_through_a_pager_that_begins_with_an_index(tmp_path: Path) -> None:
    """The numbers are those of the lines at which the parts begin, which `less` goes to."""
    pager = tmp_path / "less"
    pager.write_text(f"#!/bin/sh\nexec cat > {tmp_path}/paged\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "microbench", "show", "nvidia-h200-x2", "--all"]
    assert subprocess.run(command, stdout=theirs, env=variables, check=False).returncode == 0
    os.close(theirs)
    os.close(ours)
    lines = (tmp_path / "paged").read_text(encoding="utf-8").splitlines()
    index = [re.fullmatch(r" *(\d+)g  (.+)", line) for line in lines[1 : lines.index("")]]
    assert index
    for found in index:
        assert found is not None
        assert lines[int(found[1]) - 1].startswith(found[2])


def test_an_agent_finds_each_command_and_key_that_the_skill_names(tmp_path: Path) -> None:
    """The skill is followed literally: its console block on a trace, and every key of the answer that it reads."""
    text = (README.parent / "docs" / "SKILL.md").read_text(encoding="utf-8")
    trace = tmp_path / "trace.json"
    trace.write_bytes(kineto(program().trace()))
    commands = re.findall(r"^\$ microbench (.+?)(?: +# (?:exit (\d))?.*)?$", text, re.MULTILINE)
    for command, code in commands:
        if command.startswith(("watch", "graph", "run", "check")):  # they need a GPU
            assert call(command.split()[0], "--help").exit_code == 0
            continue
        named = command.replace("trace.json", str(trace)).split()
        result = call(*named)
        assert result.exit_code == int(code or 0), (command, result.output)
        answer = json.loads(result.stdout)
        for path in re.findall(rf"^\| `{named[0]}` \| `([\w.]+)` \|", text, re.MULTILINE):
            value = answer
            for key in path.split("."):
                value = value[key]
    assert {command.split()[0] for command, _ in commands} >= {"watch", "diagnose", "graph", "predict", "compare"}

"""The pages' blocks are run here: they work, and give what the page shows.

A page runs from top to bottom in a folder of its own, with stand-ins for what its reader brings: traces, programs,
runs, PyTorch. Commands that take ``--device`` get the simulated GPU. What cannot run here has a mark above its block:
``<!-- not run (WHY) -->``, or ``<!-- not run: WORDS (WHY) -->`` for the commands that begin with these words. Of those
the options must exist, and each phrase between the figures of their output must be in the source, or in the diagnosis
of a stand-in.
"""

import functools
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import site_pages
import typer
import yaml
from command_line import call
from docs_reader import BEFORE, IN_PYTEST, fill
from fake_session import run_case
from test_counts_in_ci import ENVIRONMENT, SCRIPT
from test_packaging import DECLARED
from test_pytest_plugin import run as run_pytest
from watched import NotPython

import microbench
from microbench.cli.app import parser
from microbench.core.errors import ExitCode
from microbench.fleet import campaign

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(?:^<!-- not run(?:: (?P<only>[^(]+?))? \((?P<why>[^()]+)\) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
# Of what a page shows, only these differ from run to run: names, dates, and times by the clock of this machine.
CHANGING = (
    (r"\d{8}T\d{6}Z-[0-9a-f]{8}", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "DATE"),
    (r"\d[\d.]*(?= (s|min)\b)", "TIME"),
)


class Block(NamedTuple):
    """A block of a page; ``only`` is how the commands that a mark is about begin, None without a mark."""

    kind: str
    text: str
    only: str | None

    def commands(self) -> Iterator[tuple[str, str, bool]]:
        """Each command, the output that is shown of it, and whether it is run."""
        for part in re.split(r"^\$ ", self.text, flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown, self.only is None or not command.startswith(self.only)


def blocks(text: str) -> list[Block]:
    found = [
        Block(each["kind"], each["text"], (each["only"] or "") if each["why"] else None)
        for each in BLOCK.finditer(text)
    ]
    assert text.count("```") == 2 * len(found), "each block names its language"
    assert text.count("<!-- not run") == sum(one.only is not None for one in found), "a mark stands above its block"
    return found


TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
    if path.name != "CHANGELOG.md"
} | {"api.md": site_pages.library_page()}
PAGES = {page: blocks(text) for page, text in TEXTS.items()}
SLOW = {"api.md", "docs/fleet.md", "docs/measure.md", "docs/watch.md"}
OTHER_CODES = {"--fail-on": ExitCode.CHANGED, "--simulated": ExitCode.SOME_FAILED}
RUN = ("console", "python", "toml", "yaml")
COMMAND = functools.cache(lambda: typer.main.get_command(parser()))


@pytest.fixture
def readers(here: Path, other: NotPython, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a page, with every file that the pages name."""
    fill(here, other)
    monkeypatch.setenv("PATH", f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return here


# How a block is run


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words after ``microbench`` begin with, and the words behind it."""
    command = COMMAND()
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"microbench has no {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def ran(line: str) -> str:
    """Standard output of a command; it must end well, or as a comment behind it says: "# exit 4"."""
    program, *words = shlex.split(line, comments=True)
    assert program == "microbench", f"{line}: only microbench is run; say by a mark why it is not"
    words = [
        re.sub(r"^(.*)-4242(\..*)$", lambda name: str(next(Path().glob(f"{name[1]}-*{name[2]}"))), word)
        for word in words
    ]
    into = words[words.index(">") + 1 :] if ">" in words else []
    words = words[: words.index(">")] if into else words
    command, rest = command_of(words)
    if "--device" not in words and "--" not in words and any("--device" in option.opts for option in command.params):
        words[len(words) - len(rest) : len(words) - len(rest)] = ["--device", "fake"]
    result = call(*words)
    told = re.search(r"# exit (\d)", line)
    codes = [
        int(told[1]) if told else ExitCode.MEASURED,
        *(code for option, code in OTHER_CODES.items() if option in words),
    ]
    assert result.exit_code in codes, f"{line}\n{result.output}"
    if words[0] == "watch":
        assert "\nrecorded: " in result.output, f"{line}\n{result.output}"
    if into:
        Path(into[0]).write_text(result.stdout)
    return result.stdout


def looks_right(line: str, shown: str) -> None:
    """A command that is not run has the options and files that it names, and its output has words of today."""
    program, *words = shlex.split(line, comments=True)
    if program == "microbench":
        command, rest = command_of(words)
        command.make_context(command.name, rest)
    elif program == "pip":
        assert {*re.findall(r"\[(.*?)\]", line)} <= {*DECLARED["project"]["optional-dependencies"]}, line
    elif program.startswith("./"):
        assert os.access(ROOT / program, os.X_OK), line
    elif program == "python" and words[0].endswith(".py"):
        text = (ROOT / "docs" / "example" / words[0]).read_text()
        assert all(f'"{word}"' in text for word in words if word.startswith("--")), line
    known = source() + (" ".join(ran(line).split()) if shown and line.startswith("microbench diagnose") else "")
    for phrase in phrases(shown):
        named = phrase.count(" ") > 2 and phrase.partition(" ")[2] in known  # it begins with a name
        assert phrase in known or named, f"{line}: no output has the words: {phrase}"


def alike(text: str) -> str:
    """The words of an output, without what changes from run to run."""
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return " ".join(text.split())


def same(shown: str, given: str) -> None:
    """What a page shows is what the command gave; a line with … stands for any lines."""
    parts = [re.escape(alike(part)) for part in re.split(r"^…$", shown, flags=re.M)]
    assert re.fullmatch(".*".join(parts), alike(given)), f"the page shows:\n{alike(shown)}\nit is:\n{alike(given)}"


def test_another_digit_is_another_output_but_for_a_time_by_the_clock() -> None:
    same("…\nby 39.6 % at 2.0 µs after 3.1 s\n", "first\nby 39.6 %  at 2.0 µs\nafter 17 s\n")
    for changed in ("by 39.5 % at 2.0 µs after 3.1 s", "by 39.6 % at 2.1 µs after 3.1 s"):
        with pytest.raises(AssertionError, match="the page shows"):
            same("by 39.6 % at 2.0 µs after 3.1 s\n", changed)


@functools.cache
def source() -> str:
    """The text of the package and of the example, in which a text of several lines is joined."""
    paths = (*(ROOT / "microbench").rglob("*.py"), *(ROOT / "docs" / "example").glob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in paths))


def phrases(shown: str) -> list[str]:
    """What stands between the figures, names and marks of an output, of three words or more."""
    pieces = re.split(r"[·,;:()✓✗→▲◐●○`]|\S*[\d_./=]\S*(?: (?:%|[nµm]?s)(?=\W))?", " ".join(shown.split()))
    return [piece.strip() for piece in pieces if len(piece.split()) >= 3]


def run_python(text: str, folder: Path) -> None:
    """A block of Python: tests by pytest, a signature, a benchmark on the simulated GPU, else a program."""
    if "def test_" in text:
        assert "1 passed" in run_pytest(folder, "fake", "--update-counts", project=IN_PYTEST + text)
    elif signature := re.match(r"microbench\.(\w+)\(", text):
        made: dict[str, Any] = {}
        exec("from __future__ import annotations\n" + re.sub(r"^microbench\.", "def ", text.rstrip()) + ": ...", made)
        named = inspect.signature(getattr(microbench, signature[1])).parameters
        assert [*inspect.signature(made[signature[1]]).parameters] == [*named]
    elif "BENCHMARK = " in text:
        made = {}
        exec(text, made)
        benchmark = replace(made["BENCHMARK"], name="block", suite="launch", measure=made["measure"])
        assert all(run_case(benchmark, case) for case in benchmark.cases("quick"))
    else:
        (folder / "block.py").write_text(BEFORE + text)
        done = subprocess.run([sys.executable, "block.py"], capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr


def run_toml(text: str, folder: Path) -> None:
    """A file that a page shows: it is kept under the name in its first line, and read as what it is."""
    name = re.match(r"# (\S+)\n", text)
    file = folder / (name[1] if name else "block.toml")
    if file.exists():
        assert file.read_text() == text
    else:
        file.write_text(text)
    tables = tomllib.loads(text)
    if "part" in tables:
        assert call("predict", str(file)).exit_code == ExitCode.MEASURED
    elif any({"costs", "fault"} & {*table} for table in tables.values()):
        campaign.read_simulated(file)
    else:
        campaign.read_labels(file)


def leaves(table: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield from leaves(value, f"{above}{key}.") if isinstance(value, dict) else [f"{above}{key}"]


def run_yaml(text: str, folder: Path) -> None:
    """A check of CI does what it says on what `watch` records; Dask knows each key of a configuration."""
    given = yaml.safe_load(text)
    if "distributed" in given:
        config = pytest.importorskip("distributed") and pytest.importorskip("dask.config")
        assert [config.get(key) for key in leaves(given)]  # raises KeyError
        return
    if "steps" in given:
        _, recorded, compared = given["steps"]
        subprocess.run(["bash", "-c", recorded["run"]], cwd=folder, check=True, capture_output=True)
        inputs, known = compared["with"], yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    else:
        (job,) = given.values()
        assert job["script"] == f"./{SCRIPT.relative_to(ROOT)}"
        inputs, known = {name.lower(): value for name, value in job["variables"].items()}, map(str.lower, ENVIRONMENT)
    assert {*inputs} <= {*known}
    Path(inputs["baseline"]).write_text(call("diagnose", inputs["trace"], "--counts", "--json").stdout)
    limits = inputs.get("fail_on", "launches>+0")
    assert call("diagnose", inputs["baseline"], inputs["trace"], "--fail-on", limits).exit_code == ExitCode.MEASURED


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [
    pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page
    for page, found in PAGES.items() if any(block.kind in RUN for block in found)
])  # fmt: skip
def test_what_a_page_shows_is_what_it_gives(page: str, readers: Path) -> None:
    for block in PAGES[page]:
        for line, shown, is_run in block.commands():
            if is_run:
                given = ran(line)
                assert not shown or same(shown, given) is None
            else:
                looks_right(line, shown)
        if block.only is None and block.kind in ("python", "toml", "yaml"):
            {"python": run_python, "toml": run_toml, "yaml": run_yaml}[block.kind](block.text, readers)


def test_only_so_much_is_not_run() -> None:
    """How many commands and blocks each page marks as not run. Only a missing GPU or package adds one."""
    marked: Counter[str] = Counter()
    run: Counter[str] = Counter()
    for page, found in PAGES.items():
        for block in found:
            assert block.kind in RUN or not list(block.commands()), "commands stand in a block of the kind console"
            for is_run in [is_run for *_, is_run in block.commands()] or [block.only is None] * (block.kind in RUN):
                marked[page] += not is_run
                run[block.kind] += is_run
    assert +marked == {
        "README.md": 7, "docs/SKILL.md": 1, "docs/counts.md": 5, "docs/example/README.md": 5,
        "docs/fleet.md": 1, "docs/graph.md": 5, "docs/measure.md": 2, "docs/watch.md": 5,
    }  # fmt: skip
    assert all(run[kind] >= least for kind, least in {"console": 49, "python": 30, "toml": 5, "yaml": 3}.items()), run


@pytest.mark.parametrize("page", TEXTS)
def test_commands_in_sentences_exist_with_their_options(page: str) -> None:
    for line in re.findall(r"`microbench ([a-z][^`]+)`", TEXTS[page]):
        command, rest = command_of(line.partition(" -- ")[0].split())
        known = {name for option in command.params for name in option.opts}
        assert {word for word in rest if word.startswith("--")} <= known, line

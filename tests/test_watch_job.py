"""What a watched program has in common with one that runs alone: signals, stops, variables; true reasons."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import campaign_watched
import pytest
from campaign_watched import MARK, NUMBERS, PROGRAMS, ROOT, Grounds, Spec, source_of
from test_watch import STEPS, command, watched
from watched import CELLS_OF_A_STEP, Place, Recorded, cells_of

from microbench.recorder import job, program
from microbench.traces.reading import read


def run(line: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, check=False, **more)


# The program's variables and signals


def broken(folder: Path, *names: str) -> str:
    for name in names:
        (folder / "broken" / name).mkdir(parents=True)
        (folder / "broken" / name / "__init__.py").write_text("raise ImportError('the program has another one')\n")
    return str(folder / "broken")


def test_the_programs_variables_of_python_do_not_reach_microbench(here: Path) -> None:
    path = broken(here, "json", "numpy", "rich", "typer", "msgspec", "platformdirs")
    text = "import os\nprint(os.environ['PYTHONPATH'].endswith('broken'), os.environ['PYTHONINSPECT'])"
    places = os.pathsep.join((path, os.environ["PYTHONPATH"], path))
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONINSPECT": "1"}
    found = run(command(text), env=environment, stdin=subprocess.DEVNULL)
    assert (found.returncode, found.stdout) == (0, "True 1\n")
    assert "no process of the command started CUDA" in found.stderr
    assert "Traceback" not in found.stderr


def test_modules_of_the_working_folder_do_not_reach_microbench(here: Path) -> None:
    (here / "typer.py").write_text("raise ImportError")
    found = run(command("print('ran')"))
    assert (found.returncode, found.stdout) == (0, "ran\n")
    assert "Traceback" not in found.stderr


def test_the_environment_has_the_variables_of_watch_alone_more(here: Path) -> None:
    """Python itself sets LC_CTYPE where the locale is that of ASCII, and not for the program."""
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "MICROBENCH_DATA")} | {"LANG": "C"}
    here.joinpath("program.py").touch()
    line = [*command("")[:4], "--", "env"]
    alone, together = run(["env"], env=environment), run(line, env=environment)
    added = {line.partition("=")[0] for line in {*together.stdout.splitlines()} - {*alone.stdout.splitlines()}}
    assert {name for name in added if not name.startswith("MICROBENCH_WATCH")} == {
        "CUDA_INJECTION64_PATH",
        "PYTHONPATH",
    }


@pytest.mark.parametrize("ignored", [["PIPE"], ["PIPE", "XFSZ"], ["CHLD", "USR1"], []])
def test_what_the_caller_ignores_the_program_ignores(here: Path, ignored: list[str]) -> None:
    shown = ["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"]
    line = [*command("")[:4], "--", *shown]
    traps = f"trap '' {' '.join(ignored)}; " if ignored else ""
    alone, together = (run(["bash", "-c", f'{traps}"$@"; true', "bash", *each]).stdout for each in (shown, line))
    assert together == alone
    assert not ignored or "0000000000000000" not in alone.splitlines()[1]


@pytest.mark.parametrize("ignored", ["PIPE", "PIPE XFSZ", "INT QUIT"])
def test_the_script_of_a_checkout_knows_what_the_caller_ignores(
    here: Path, place: Place, tmp_path_factory: pytest.TempPathFactory, ignored: str
) -> None:
    grounds = Grounds.__new__(Grounds)
    grounds.lay_out(tmp_path_factory.mktemp("grounds"))
    shown = ["sh", "-c", "grep SigIgn /proc/self/status; env | grep -c PWD="]
    line = [grounds.command, "watch", "--", *shown]
    without = {name: value for name, value in os.environ.items() if "PWD" not in name}
    alone, together = (
        run(["python3", "-c", EXECUTED.format(ignored.split()), *each], env=without).stdout for each in (shown, line)
    )
    assert alone.startswith("SigIgn:")
    assert together == alone


EXECUTED = """
import os, signal, sys
for name in ("PIPE", "XFSZ"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)
for name in {}:
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
"""
COUNTING = """
import signal, sys, time
seen = []
for number in signal.valid_signals() - {9, 19, 17}:
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
print(*seen)
sys.exit(4)
"""


@pytest.mark.parametrize("number", [int(one) for one in NUMBERS])
@pytest.mark.parametrize("group", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_signal_reaches_the_program_once_and_nothing_remains(here: Path, number: int, group: bool) -> None:
    temporary = here / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    line, pipe = command(COUNTING), subprocess.PIPE
    with subprocess.Popen(
        line, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        (os.killpg if group else os.kill)(process.pid, number)
        output, errors = process.communicate()
    assert (process.returncode, output) == (4, f"{number}\n")
    assert "Traceback" not in errors
    assert list(temporary.iterdir()) == []


def test_a_script_without_a_first_line_that_names_an_interpreter_runs(here: Path) -> None:
    (here / "script").write_text("echo ran $1\n")
    (here / "script").chmod(0o755)
    found = run([*command("")[:4], "--", "./script", "x"])
    assert (found.returncode, found.stdout) == (0, "ran x\n")


def test_glibcs_own_signals_are_not_ignored(tmp_path: Path) -> None:
    """As they are after posix_spawn of glibc."""
    assert not job.ignored_by_caller() & {32, 33}
    program.watch(["sh", "-c", f"grep SigIgn /proc/self/status > {tmp_path}/shown"], tmp_path)
    assert not int((tmp_path / "shown").read_text().split()[1], 16) >> 31 & 3


# Stops. The supervisor of the campaign does what a shell does.

STOPPING = {
    "sh": "kill -{0} $$; echo goes on; kill -{0} $$; echo and on; exit 3",
    "python": "os.kill(os.getpid(), {0}); print('goes on', flush=True)\nos.kill(os.getpid(), {0}); sys.exit(3)",
}


def as_alone(folder: Path, language: str, spec: Spec) -> dict[str, Any]:
    """Run a program alone and watched; both must be the same. What was seen of the one that was watched."""
    grounds = Grounds(folder / "grounds")
    (folder / "program").write_text(source_of(language, spec))
    line = [sys.executable if language == "python" else "sh", "program"]
    found = []
    for name, each in (("alone", line), ("watched", [grounds.command, "watch", "--", *line])):
        found.append(campaign_watched.supervised(folder / "run", each, spec, grounds, language, True))
        (folder / "run").rename(folder / name)
    assert list(campaign_watched.differences(spec, *found)) == []
    return found[1]


@pytest.mark.parametrize("language", STOPPING)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
@pytest.mark.parametrize("goes_on", ["killpg", "kill"])
def test_microbench_stops_and_goes_on_with_the_program(
    tmp_path: Path, language: str, number: int, goes_on: str
) -> None:
    spec = Spec(random.Random(0))
    spec.terminal = True
    spec.lines = [STOPPING[language].format(int(number))]
    spec.actions = [["stopped", goes_on]] * 2
    seen = as_alone(tmp_path, language, spec)
    assert (seen["status"], seen["events"]) == (3, [f"stopped by {int(number)}"] * 2)


def test_a_program_that_another_one_lets_go_on_takes_microbench_with_it(tmp_path: Path) -> None:
    spec = Spec(random.Random(0))
    spec.terminal = False
    # The supervisor lets nobody go on here: a child of the program does.
    spec.lines = ["(sleep 1; kill -CONT $$) & kill -STOP $$; echo goes on; wait; exit 3"]
    spec.actions = [["stopped", "nobody"]]
    seen = as_alone(tmp_path, "sh", spec)
    assert (seen["status"], seen["events"], seen["out"]) == (3, ["stopped by 19"], "goes on\n")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_of_the_campaign_run_as_they_do_alone(tmp_path: Path, kind: str, seed: int) -> None:
    place: Any = SimpleNamespace(bench=SimpleNamespace(folder=tmp_path), root=tmp_path / "place")
    place.root.mkdir()
    PROGRAMS[kind](place, random.Random(f"{kind} {seed}"))


def test_a_program_that_is_changed_is_a_failure() -> None:
    spec = Spec(random.Random(0))
    spec.terminal = False
    alone = {"status": 0, "events": [], "files": {}, "temporary": [], "left": 0, "out": "x", "err": ""}
    said = {**alone, "err": "not recorded: no process"}
    assert list(campaign_watched.differences(spec, alone, said)) == []
    for key, value in (
        ("status", 1), ("events", ["stopped by 19"]), ("files", {"a": ["0o644", ""]}), ("temporary", ["microbench-x"]),
        ("left", 1), ("out", "xx"), ("err", "Traceback: not recorded: "), ("err", ""),
    ):  # fmt: skip
        assert len(list(campaign_watched.differences(spec, alone, {**said, key: value}))) == 1, (key, value)
    assert MARK == b"@\n"


# What was recorded, and what was not


def test_a_recording_ends_with_microbench_though_a_child_runs_on(here: Path) -> None:
    child = """
import os, time, torch
for _ in range(2000):
    torch.steps(1)
    time.sleep(0.01)
    if os.path.exists("end"):
        break
"""
    text = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(1.5)"
    result = watched(text)
    assert result.exit_code == 0
    (path,) = here.glob("recording-1/*.rows")
    until_s = time.monotonic() + 20
    while b"ended=1" not in path.read_bytes() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert b"ended=1" in path.read_bytes()
    size = path.stat().st_size
    time.sleep(0.5)
    (here / "end").touch()
    assert path.stat().st_size == size
    assert cells_of(read(path)) < 2000 * CELLS_OF_A_STEP


def test_looking_for_a_package_begins_no_recording_and_loses_no_child(here: Path) -> None:
    result = watched(f"""
import importlib.util, os, sys
found = importlib.util.find_spec("torch")
assert "_microbench_watch" not in sys.modules and type(found.loader).__name__ == "SourceFileLoader"
if os.fork() == 0:
    {STEPS.replace(chr(10), chr(10) + "    ")}
    sys.exit()
assert os.wait()[1] == 0
""")
    (path,) = (here / "recording-1").iterdir()
    assert cells_of(read(path)) == 30 * CELLS_OF_A_STEP
    assert "not recorded" not in result.stderr


def test_the_work_of_a_fork_of_a_recorded_process_is_said(here: Path) -> None:
    text = "import os, torch\nif os.fork() == 0:\n    torch.steps(30)\n    os._exit(0)\nassert os.wait()[1] == 0"
    (line,) = watched(text).stderr.splitlines()
    assert "work of a process that was forked from a recorded one" in line
    assert "spawn" in line


def test_a_folder_that_the_program_removed_is_said(here: Path) -> None:
    result = watched(f"{STEPS}\nimport shutil\nshutil.rmtree('recording-1')\nraise SystemExit(3)")
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert "recording-1 was removed while the command ran" in line


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up its rights")
def test_a_process_that_gives_up_its_rights_says_why_it_is_not_recorded(here: Path) -> None:
    (here / "torch.py").touch()
    above = here
    while above != above.parent:
        above.chmod(above.stat().st_mode | 0o055)
        above = above.parent
    result = watched("import json, ctypes, os\nos.setgid(65534)\nos.setuid(65534)\nimport torch")
    (line,) = result.stderr.splitlines()
    assert line.startswith("not recorded: ")
    assert "no process of the command started CUDA" not in line


def test_a_program_with_another_json_runs_and_says_why_it_is_not_recorded(here: Path) -> None:
    (here / "json.py").write_text("raise RuntimeError('another\\njson')")
    result = watched(f"{STEPS}print('ran')")
    assert result.exit_code == 0
    assert "not recorded: another; please report this" in result.stderr


@pytest.mark.parametrize("temporary", ["tmp", "t:mp"])
def test_a_path_of_the_package_with_a_colon(here: Path, monkeypatch: pytest.MonkeyPatch, temporary: str) -> None:
    root = here / "a:b"
    shutil.copytree(ROOT / "microbench", root / "microbench", ignore=shutil.ignore_patterns("__pycache__", "_kernels"))
    (here / temporary).mkdir()
    monkeypatch.setenv("TMPDIR", str(here / temporary))
    line = command(f"{STEPS}print('ran')")
    found = run([line[0], str(root / "microbench" / "__main__.py"), *line[3:]])
    assert (found.returncode, found.stdout) == (0, "ran\n")
    assert ("have a colon" in found.stderr) == (":" in temporary)
    assert len(list(here.glob("recording-1/*"))) == (":" not in temporary)


def python(*versions: str) -> list[str]:
    """The Pythons of these versions that run here. A shim of pyenv may be there and start none."""
    places = [*Path.home().glob(".pyenv/versions/*/bin"), *map(Path, os.get_exec_path())]
    found = [place / f"python{each}" for each in versions for place in places if (place / f"python{each}").is_file()]
    return [
        str(each) for each in found if not subprocess.run([each, "-c", ""], capture_output=True, cwd="/").returncode
    ]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
def test_old_pythons_run_as_ever(place: Place, tmp_path: Path, version: str) -> None:
    found = python(version)
    if not found:
        pytest.skip(f"no Python {version} here")
    text = "import sys\nprint([entry for entry in sys.path if 'inject' in entry])\nimport json"
    (tmp_path / "program.py").write_text(text)
    done: Recorded = place.ran([found[0], "program.py"], tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert (done.code, done.output, done.errors, done.reasons) == (0, "[]\n", "", [])


def test_where_ctrl_c_is_ignored_tests_give_it_back_to_what_they_start() -> None:
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "tests/test_first_run.py",
        "-k",
        "ctrl_c_before_the_first_import",
    ]
    found = run(["bash", "-c", "trap '' INT; exec \"$@\"", "bash", *line], cwd=ROOT)
    assert found.returncode == 0, found.stdout

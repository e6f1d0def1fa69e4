"""Tests of the command watch around programs whose GPU package and libcupti are stand-ins."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from typer.testing import Result
from watched import CELLS_OF_A_STEP, NotPython, Place, cells_of, turning

from microbench.core import c_library
from microbench.core.errors import ExitCode
from microbench.recorder import program
from microbench.traces.reading import read

STEPS = "import torch\ntorch.steps(30)\n"


def watched(text: str, *options: str, arguments: tuple[str, ...] = ()) -> Result:
    """What watch answers, in this process; the program's own output goes to the file descriptors."""
    Path("program.py").write_text(text)
    return call("watch", *options, "--", sys.executable, "program.py", *arguments)


def command(text: str, *options: str) -> list[str]:
    """The same as a command line."""
    Path("program.py").write_text(text)
    return [sys.executable, "-m", "microbench", "watch", *options, "--", sys.executable, "program.py"]


# What is printed


def test_the_diagnosis_follows_on_standard_error(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = watched(f"import sys\n{STEPS}print('out')\nprint('err', file=sys.stderr)")
    assert result.exit_code == ExitCode.MEASURED
    assert result.stdout == ""
    (path,) = (here / "recording-1").iterdir()
    shown = result.stderr
    for words in (
        "microbench recording", "NVIDIA H200", "28 steps, each of 20 kernels", "Launch-bound", "cudaLaunchKernel",
        f"more: microbench diagnose recording-1/{path.name} --all", f"recorded: recording-1/{path.name}",
    ):  # fmt: skip
        assert words in shown
    assert "not recorded" not in shown
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def test_the_diagnosis_names_a_line_of_the_program(here: Path) -> None:
    text = """
import time, torch
def load():
    time.sleep(0.02)
for _ in range(40):
    torch.catch_up()
    torch.steps(1)
    load()
"""
    result = watched(text)
    assert result.exit_code == ExitCode.MEASURED
    (path,) = (here / "recording-1").iterdir()
    assert "samples of lines of Python" in call("diagnose", str(path), "--all").output
    said = " ".join(result.stderr.split())
    slept = re.search(r"waiting in a sleep ([\d.]+) ms \([\d.]+ %\), most in time.sleep at program.py:4 load", said)
    assert slept, said
    assert float(slept[1]) > 10, said
    without = " ".join(watched(text, "--no-stacks").stderr.split())
    assert "program.py:4" not in without
    assert "record without --no-stacks to name it" in without


def test_all_that_belongs_to_the_command_reaches_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "import sys\nprint(sys.argv[1:])"
    arguments = ("--for", "3", "-o", "x", "--", "-h", "--json")
    watched(text, arguments=arguments)
    assert capfd.readouterr().out == f"{list(arguments)}\n"
    call("watch", sys.executable, "program.py", "--lr", "1", "--", "-x")
    assert capfd.readouterr().out == "['--lr', '1', '--', '-x']\n"


def test_several_processes_stand_beside_each_other(here: Path) -> None:
    result = watched(f"""
import os, subprocess, sys
if len(sys.argv) == 1:
    import torch
    for rank in range(3):
        subprocess.run([sys.executable, "program.py", "x"], env={{**os.environ, "RANK": str(rank)}}, check=True)
else:
    {STEPS.replace(chr(10), chr(10) + "    ")}
""")
    assert result.exit_code == ExitCode.MEASURED
    for words in ("3 traces", "rank 0", "rank 1", "rank 2", "recorded: recording-1\n"):
        assert words in result.stderr
    assert len(list((here / "recording-1").iterdir())) == 3, "the process that used no GPU has left none"


def test_recordings_are_numbered_or_named(here: Path) -> None:
    (here / "recording-1").write_text("mine")
    assert "recorded: recording-2/" in watched(STEPS).stderr
    assert "recorded: recording-3/" in watched(STEPS).stderr
    assert "recorded: mine/" in watched(STEPS, "-o", "mine").stderr
    for taken in ("mine", "recording-1"):
        result = watched(STEPS, "-o", taken)
        assert result.exit_code == ExitCode.USAGE
        assert f"{taken} exists" in result.stderr
    result = watched(STEPS, "-o", "not/there")
    assert result.exit_code == ExitCode.USAGE
    assert "not/there cannot be made: No such file or directory" in result.stderr


def test_without_a_place_in_the_folder_it_records_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def refuse(path: Path, *arguments: Any, **more: Any) -> None:
        if path.name.startswith("recording-"):
            raise PermissionError(13, "Permission denied")
        make(path, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = watched(STEPS)
    found = re.search(r"recorded: (\S+/microbench-recording-\w+/program.py-\d+\.rows)", result.stderr)
    assert cells_of(read(Path(found[1]))) == 30 * CELLS_OF_A_STEP
    Path(found[1]).unlink()
    Path(found[1]).parent.rmdir()


def test_a_recording_of_a_given_time(here: Path) -> None:
    text = f"{STEPS}\nimport time\nwhile torch.library.stand_in_subscribed():\n    time.sleep(0.01)\ntorch.steps(9)"
    result = watched(text, "--for", "2s")
    assert "28 steps, each of 20 kernels" in result.stderr
    assert watched(STEPS, "--for", "soon").exit_code == ExitCode.USAGE


def test_a_recording_of_windows_names_the_step_between_them(here: Path) -> None:
    text = turning(4, "torch.steps(5)", "time.sleep(0.001)")
    results = (watched(text, "--window", "200ms", "--every", "500ms") for _ in range(3))  # a busy machine may miss it
    assert any("from pauses of the recording" in one.stderr and one.exit_code == ExitCode.MEASURED for one in results)
    for wrong in (("--window", "3s", "--every", "2s"), ("--window", "0s"), ("--every", "soon")):
        assert watched(STEPS, *wrong).exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("text", "words"), [
    ("print(1)", "no process of the command started CUDA; those with a cleaned environment are not seen"),
    ("import torch", "the command submitted nothing to a GPU"),
    ("import os\nos.environ['STAND_IN_STATUS'] = '39'\nimport torch", "another profiler is attached"),
])  # fmt: skip
def test_what_was_not_recorded_is_said_in_one_line(here: Path, text: str, words: str) -> None:
    result = watched(f"{text}\nraise SystemExit(3)")
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert line.startswith("not recorded: ")
    assert words in line
    assert not (here / "recording-1").exists()


def test_a_program_that_is_not_python_is_recorded(here: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    other = NotPython(place)
    for name, value in other.variables.items():
        monkeypatch.setenv(name, value)
    result = call("watch", "--", str(other.program), "load", str(other.cupti), "init", "steps", "30", "exit", "3")
    assert result.exit_code == 3
    (path,) = (here / "recording-1").iterdir()
    assert path.name.startswith("not_python-")
    for words in (
        "28 steps, each of 20 kernels", "Launch-bound", "cudaLaunchKernel", f"recorded: recording-1/{path.name}",
    ):  # fmt: skip
        assert words in result.stderr
    assert "not recorded" not in result.stderr


def test_without_a_compiler_and_a_library_the_program_runs_and_one_line_says_why(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(c_library, "prebuilt", lambda source, machine: here / "none")
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.delenv("CC", raising=False)
    result = watched(f"import os\nassert 'CUDA_INJECTION64_PATH' not in os.environ\n{STEPS}print('ran')\nexit(5)")
    assert (result.exit_code, capfd.readouterr().out) == (5, "ran\n")
    (line,) = result.stderr.splitlines()
    for words in ("not recorded: no C compiler works here", "install a C compiler"):
        assert words in line
    assert list(here.glob("recording-*")) == []


def test_an_injection_of_the_users_own_is_left_alone_and_said(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/my/library.so")
    result = watched(f"import os\nassert os.environ['CUDA_INJECTION64_PATH'] == '/my/library.so'\n{STEPS}")
    assert result.exit_code == ExitCode.MEASURED
    assert "Launch-bound" in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "not recorded" in line]
    assert "programs that are not Python, because CUDA_INJECTION64_PATH is set already" in line


def test_within_a_watched_command_another_one_can_be_watched(here: Path) -> None:
    (here / "inner.py").write_text(STEPS)
    inner = "[sys.executable, '-m', 'microbench', 'watch', '-o', 'inner', '--', sys.executable, 'inner.py']"
    run = f"import subprocess, sys\nsubprocess.run({inner}, check=True, stderr=open('said', 'w'))"
    assert watched(run, "-o", "outer").exit_code == ExitCode.MEASURED
    said = (here / "said").read_text()
    assert "Launch-bound" in said
    assert "not recorded" not in said
    (path,) = (here / "inner").iterdir()
    assert cells_of(read(path)) == 30 * CELLS_OF_A_STEP


def test_a_reason_is_said_once_beside_the_diagnosis(here: Path) -> None:
    result = watched(f"""
import os, subprocess, sys
for _ in range(2):
    subprocess.run([sys.executable, "-c", "import torch"], env={{**os.environ, "STAND_IN_STATUS": "15"}}, check=True)
{STEPS}
""")
    assert "Launch-bound" in result.stderr
    assert result.stderr.count("not recorded: CUPTI refuses cuptiSubscribe") == 1


def test_a_command_that_cannot_run_leaves_nothing(here: Path) -> None:
    for name, words in (("not-there", "No such file or directory"), ("./data.txt", "Permission denied")):
        (here / "data.txt").write_text("x")
        result = call("watch", "--", name)
        assert result.exit_code == ExitCode.USAGE
        assert f"{name} cannot be run: {words}" in result.stderr
    assert call("watch").exit_code == ExitCode.USAGE
    assert sorted(path.name for path in here.iterdir()) == ["data", "data.txt"]


# The program's own behaviour

ENDS = (
    "sys.exit(7)", "1 / 0", "sys.exit('words')", "os._exit(200)", "os.abort()", "ctypes.string_at(0)",
    *(f"os.kill(os.getpid(), signal.{name})" for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE")),
    "raise KeyboardInterrupt", "print(os.read(0, 99), os.getpgrp() == os.getpgid(os.getppid()), os.environ['COLUMNS'])",
    "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGXFSZ), signal.pthread_sigmask(0, ()))",
)  # fmt: skip


def ending(end: str) -> str:
    return f"{STEPS}torch.library.cuptiActivityFlushAll(1)\nimport ctypes, os, signal, sys\n{end}"


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_it_does_alone(here: Path, capfd: pytest.CaptureFixture[str], end: str) -> None:
    (here / "program.py").write_text(ending(end))
    (here / "recordings").mkdir()
    line = [sys.executable, "program.py"]
    with open(os.devnull) as nothing:
        before = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        try:
            alone = subprocess.run(line, check=False).returncode
            expected = capfd.readouterr()
            ended = program.watch(line, here / "recordings")
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert (ended.status, ended.reasons) == (alone, ())
    assert capfd.readouterr() == expected
    (path,) = (here / "recordings").iterdir()
    assert cells_of(read(path)) == 30 * CELLS_OF_A_STEP


@pytest.mark.parametrize("end", ["sys.exit(7)", "os.kill(os.getpid(), signal.SIGKILL)", "raise KeyboardInterrupt"])
def test_microbench_ends_as_the_program_did(here: Path, end: str) -> None:
    found = subprocess.run(command(ending(end)), capture_output=True, text=True, check=False)
    alone = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (alone.returncode, alone.stdout)
    assert found.stderr.startswith(alone.stderr)
    assert "Launch-bound" in found.stderr.removeprefix(alone.stderr)


@pytest.mark.parametrize("errors", ["2> /dev/full", pytest.param("2>&-", marks=pytest.mark.slow)])
def test_a_standard_error_that_takes_nothing_changes_no_exit_code(here: Path, errors: str) -> None:
    line = command(f"{STEPS}raise SystemExit(7)")
    found = subprocess.run(["bash", "-c", f'"$@" {errors}', "bash", *line], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (7, "", "")
    assert len(list((here / "recording-1").iterdir())) == 1


def test_files_that_the_caller_has_opened_reach_the_program(here: Path) -> None:
    read_end, write_end = os.pipe()
    (here / "recordings").mkdir()
    (here / "program.py").write_text(f"import os\nos.write({write_end}, b'here')")
    os.set_inheritable(write_end, True)
    program.watch([sys.executable, "program.py"], here / "recordings")
    os.close(write_end)
    assert os.read(read_end, 99) == b"here"
    os.close(read_end)


COUNTING = f"""{STEPS}
import signal, sys
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: seen.append(signal.Signals(number).name))
print("ready", flush=True)
while not seen:
    signal.pause()
print(*seen)
sys.exit(4)
"""


ALSO = (pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGHUP, signal.SIGUSR1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, *ALSO])
def test_a_signal_to_microbench_reaches_the_program_once(here: Path, number: signal.Signals) -> None:
    with subprocess.Popen(command(COUNTING), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, errors = process.communicate()
    assert (process.returncode, output) == (4, f"{number.name}\n")
    assert "Launch-bound" in errors


def test_ctrl_c_of_a_terminal_reaches_the_program_once_and_the_diagnosis_follows(here: Path) -> None:
    ours, theirs = pty.openpty()

    def control() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command(COUNTING), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=control
    )
    os.close(theirs)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(ours, 9999)
    os.write(ours, b"\x03")
    while True:
        try:
            part = os.read(ours, 9999)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 4
    text = shown.decode()
    assert "SIGINT\r\n" in text
    assert "SIGINT SIGINT" not in text
    assert "Launch-bound" in text
    assert "Traceback" not in text


def test_ctrl_c_stays_off_where_the_caller_has_switched_it_off(here: Path) -> None:
    ignored = "signal.getsignal(signal.SIGINT) == signal.SIG_IGN"
    text = f"{STEPS}import os, signal\nos.killpg(0, signal.SIGINT)\nprint({ignored})"
    line = ["bash", "-c", "trap '' INT; exec \"$@\"", "bash", *command(text)]
    found = subprocess.run(line, capture_output=True, text=True, check=False, start_new_session=True)
    assert (found.returncode, found.stdout) == (0, "True\n")
    assert "Launch-bound" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tenths", range(24))
def test_ctrl_c_at_any_moment_ends_it_with_a_readable_file_and_no_traceback_of_ours(here: Path, tenths: int) -> None:
    text = f"{STEPS}import time\nfor _ in range(100):\n    torch.steps(1)\n    time.sleep(0.01)"
    with subprocess.Popen(command(text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(tenths / 10)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    python_itself = process.returncode == 1 and "init_import_site" in errors  # was interrupted while it started
    assert python_itself or process.returncode in (0, -signal.SIGINT, ExitCode.INTERRUPTED)
    assert "microbench/cli" not in errors
    assert "microbench/recorder/program" not in errors
    for path in here.glob("recording-1/*"):
        assert cells_of(read(path)) <= 130 * CELLS_OF_A_STEP

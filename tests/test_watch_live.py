"""Tests of the line that watch shows while a program runs: what it says, and that the output stays the program's."""

import fcntl
import os
import platform
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import make_recording as make
import pytest
from watched import Place

from microbench.cli import watch
from microbench.core.errors import ExitCode
from microbench.diagnosis import live
from microbench.diagnosis.live import Live
from microbench.recorder import cells
from microbench.traces.recording import Growing

FIGURES = "step 69.3 µs · GPU busy 24 % · GPU waits"  # of make.steps
STEP_US = 69.3


def add(path: Path, *parts: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(parts))


# What it says


def test_nothing_is_said_before_work_was_recorded(tmp_path: Path) -> None:
    following = Live()
    assert following.line(tmp_path.iterdir()) == ""
    (tmp_path / "a.rows").write_bytes(b"")
    assert following.line(tmp_path.iterdir()) == ""
    (tmp_path / "a.rows").write_bytes(make.recording())
    assert following.line(tmp_path.iterdir()) == ""
    add(tmp_path / "a.rows", make.steps(20))
    assert following.line(tmp_path.iterdir()) == FIGURES


def test_it_follows_a_growing_recording_and_survives_a_cell_that_is_half_written(tmp_path: Path) -> None:
    path, following = tmp_path / "a.rows", Live()
    path.write_bytes(make.recording(make.steps(20)))
    assert following.line(tmp_path.iterdir()) == FIGURES
    slower = make.steps(3000, 16, begin_us=2_000_000)
    add(path, slower[:1000])
    assert following.line(tmp_path.iterdir()) != ""
    add(path, slower[1000:])
    assert following.line(tmp_path.iterdir()) == "step 133 µs · GPU busy 25 % · GPU waits"


def test_a_gpu_that_hardly_waits_is_said_to_be_the_limit_and_steps_may_be_missing(tmp_path: Path) -> None:
    kernels = [
        make.row(cells.KERNEL, place * 100, 97, correlation=place + 1, stream=7, name=4096, size=place)
        for place in range(50)
    ]
    (tmp_path / "a.rows").write_bytes(make.recording(*kernels))
    assert Live().line(tmp_path.iterdir()) == "GPU busy 97 % · GPU-bound"


def test_calls_whose_work_was_not_handed_over_yet_change_no_figure(tmp_path: Path) -> None:
    whole = make.steps(20)
    rows = [whole[begin : begin + cells.CELL_BYTES] for begin in range(0, len(whole), cells.CELL_BYTES)]
    late = [row for row in rows[len(rows) // 2 :] if struct.unpack_from("<H", row)[0] == cells.KERNEL]
    (tmp_path / "a.rows").write_bytes(make.recording(*(row for row in rows if row not in late)))
    following = Live()
    assert "step 69.3 µs" in following.line(tmp_path.iterdir())
    add(tmp_path / "a.rows", *late)
    assert following.line(tmp_path.iterdir()) == FIGURES


def test_between_windows_it_says_so_and_keeps_the_last_figures(tmp_path: Path) -> None:
    path, following = tmp_path / "a.rows", Live()
    path.write_bytes(make.recording(make.steps(20)))
    assert following.line(tmp_path.iterdir()) == FIGURES
    second = 5_000_000
    add(path, cells.fact("window.0", f"{make.BEGIN_NS}-{make.BEGIN_NS + 2_000_000}"))
    assert following.line(tmp_path.iterdir()) == f"between two windows · last {FIGURES}"
    add(path, make.row(cells.SYNC, second - 9, 4, detail=3, stream=7, size=0xFFFFFFFF))
    assert following.line(tmp_path.iterdir()) == f"between two windows · last {FIGURES}"
    add(path, cells.fact("window.1", f"{make.BEGIN_NS + second * 1000}-"), make.steps(20, 16, begin_us=second))
    assert following.line(tmp_path.iterdir()) == "step 133 µs · GPU busy 25 % · GPU waits"


def test_of_several_processes_the_most_active_one_is_shown(tmp_path: Path) -> None:
    following = Live()
    (tmp_path / "a.rows").write_bytes(make.recording(make.steps(20)))
    (tmp_path / "b.rows").write_bytes(make.recording(make.steps(20, 16)))
    assert following.line(tmp_path.iterdir()) == "step 133 µs · GPU busy 25 % · GPU waits · most active of 2 processes"
    assert following.line(tmp_path.iterdir()) == f"{FIGURES} · most active of 2 processes"


def test_a_windows_end_is_seen_behind_more_rows_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, following = tmp_path / "a.rows", Live()
    path.write_bytes(make.recording(make.steps(20)))
    assert following.line(tmp_path.iterdir()) == FIGURES
    monkeypatch.setattr(live, "MOST_ROWS", 20)
    wait = make.row(cells.SYNC, 5_000_000, 4, detail=3, stream=7, size=0xFFFFFFFF)
    add(path, cells.fact("window.0", f"{make.BEGIN_NS}-{make.BEGIN_NS + 2_000_000}"), wait * 50)
    assert following.line(tmp_path.iterdir()) == f"between two windows · last {FIGURES}"


def test_figures_out_of_date_are_shown_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Live()
    (tmp_path / "a.rows").write_bytes(make.recording(make.steps(20)))
    assert following.line(tmp_path.iterdir()) == FIGURES
    assert following.line(tmp_path.iterdir()) == FIGURES
    monkeypatch.setattr(live, "QUIET_S", 0.0)
    assert following.line(tmp_path.iterdir()) == ""


def test_of_many_new_cells_the_last_are_read_and_their_calls_have_names(tmp_path: Path) -> None:
    path = tmp_path / "a.rows"
    path.write_bytes(make.recording(make.steps(2000)))
    growing = Growing(path)
    trace = growing.newest(300, 10**10)
    assert len(trace.work) + len(trace.calls) + len(trace.syncs) == 300
    assert {"cudaLaunchKernel", "cudaStreamSynchronize", "my_kernel"} <= set(trace.names)
    assert growing.new_cells() == 0
    assert len(growing.newest(300, 100_000).work) <= 100 * 8 / STEP_US + 1, "none older than 100 us"


# Where it is shown


def test_updates_that_take_long_come_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, updates = [100.0], []

    class Slow:
        def line(self, recordings: object) -> str:
            updates.append(now_s[0])
            used_s[0] += 0.3
            return ""

    used_s = [0.0]
    shown = watch.LiveLine(tmp_path)
    monkeypatch.setattr(shown, "_on", True)
    monkeypatch.setattr(shown, "_live", Slow())
    monkeypatch.setattr(shown, "_show", lambda line: None)
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(watch.time, "thread_time", lambda: used_s[0])
    for second in range(31):
        now_s[0] = 100.0 + second
        shown.update()
    assert updates == pytest.approx([100, 110, 120, 130]), "3 % of a core"


needs_recorder = pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder is for x86-64 alone")
UNTIL_SEEN = """
import os, sys, time, torch
while not os.path.exists("seen"):
    torch.catch_up()
    torch.steps(5)
    time.sleep(0.001)
"""
TITLES = re.compile(r"\x1b\](?:2;[^\a]*)\a|\x1b\[2[23];2t")
MARGIN = re.compile(r"\x1b7(?:\x1b\[\d+G|\x1b\[K|[^\x1b])*\x1b8")


class Terminal:
    """A terminal of 100 columns with a command in front, and everything that it has shown."""

    def __init__(self, place: Place, folder: Path, text: str, output: str, *options: str, **more: str) -> None:
        (folder / "program.py").write_text(text)
        self.folder, self.shown = folder, ""
        self.end, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        root = str(Path(live.__file__).parents[2])
        variables = {
            "PYTHONPATH": os.pathsep.join((str(place.site), root)), "MICROBENCH_DATA": str(folder / "data"),
            "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more,
        }  # fmt: skip
        line = [sys.executable, "-m", "microbench", "watch", *options, "--", sys.executable, "program.py"]
        with open(folder / "output", "w") as file:
            self.process = subprocess.Popen(
                line, stdin=theirs, stdout=theirs if output == "terminal" else file, stderr=theirs, cwd=folder,
                start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                env=place.environment(**variables),
            )  # fmt: skip
        os.close(theirs)

    def until(self, words: str) -> None:
        while words not in self.shown:
            self.shown += os.read(self.end, 9999).decode()

    def only_one_thread_takes_ctrl_c(self) -> None:
        """Assert that the threads which NumPy starts leave Ctrl-C to the one that holds it back."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            (blocked,) = re.findall(r"SigBlk:\s*(\w+)", (task / "status").read_text())
            assert task.name == str(self.process.pid) or int(blocked, 16) >> signal.SIGINT - 1 & 1

    def rest(self) -> int:
        """Read to the end; the exit code."""
        while True:
            try:
                part = os.read(self.end, 9999)
            except OSError:  # the other end is closed
                return self.process.wait()
            if not part:
                return self.process.wait()
            self.shown += part.decode()


@contextmanager
def terminal(
    place: Place, folder: Path, text: str, output: str = "terminal", *options: str, **more: str
) -> Iterator[Terminal]:
    opened = Terminal(place, folder, text, output, *options, **more)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.end)


@pytest.mark.slow
@needs_recorder
@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}])
def test_beside_the_programs_output_it_is_the_title(place: Place, tmp_path: Path, more: dict[str, str]) -> None:
    text = f"print('first')\n{UNTIL_SEEN}\nprint('part', end='', file=sys.stderr)"
    with terminal(place, tmp_path, text, **more) as shown:
        shown.until("GPU waits\a")
        (tmp_path / "seen").touch()
        assert shown.rest() == 0
    assert re.search(r"\x1b\[22;2t\x1b\]2;step [\d.]+ [µm]s · GPU busy \d+ % · GPU waits\a", shown.shown)
    assert (
        shown.shown.index("\x1b[22;2t") < shown.shown.index("\x1b]2;\a\x1b[23;2t") < shown.shown.index("Launch-bound")
    )
    text = TITLES.sub("", shown.shown)
    assert text.startswith("first\r\npart"), "nothing else is between what the program prints"
    assert "GPU busy" not in text


@pytest.mark.slow
@needs_recorder
def test_where_the_output_goes_elsewhere_it_stands_at_the_right_end_of_the_row(place: Place, tmp_path: Path) -> None:
    text = f"print('out')\nprint('one', end='', flush=True, file=__import__('sys').stderr)\n{UNTIL_SEEN}"
    with terminal(place, tmp_path, text + "\nprint(' and two', file=sys.stderr)", "file") as shown:
        shown.until("GPU waits\x1b8")
        (tmp_path / "seen").touch()
        assert shown.rest() == 0
    found = re.search(r"\x1b7\x1b\[(\d+)G\x1b\[K\x1b\[(\d+)G(step [^\x1b]*GPU waits)\x1b8", shown.shown)
    assert int(found[1]) == int(found[2]) == 100 - len(found[3])
    text = MARGIN.sub("", shown.shown)
    assert text.startswith("one and two\r\n"), "the program's text is whole, and at its place"
    assert "GPU busy" not in text
    before = shown.shown[: shown.shown.index("Launch-bound")]
    assert MARGIN.findall(before)[-1].endswith("G\x1b8"), "it is removed before the diagnosis"
    assert (tmp_path / "output").read_text() == "out\n"


@pytest.mark.slow
@needs_recorder
def test_after_a_ctrl_c_it_is_gone_and_the_diagnosis_follows(place: Place, tmp_path: Path) -> None:
    text = f"import sys\ntry:\n    {UNTIL_SEEN.strip().replace(chr(10), chr(10) + '    ')}\n"
    with terminal(
        place, tmp_path, text + "except KeyboardInterrupt:\n    sys.exit(4)\n", "terminal", "--for", "500s"
    ) as shown:
        shown.until("GPU waits\a")
        shown.only_one_thread_takes_ctrl_c()
        os.write(shown.end, b"\x03")
        code = shown.rest()
        assert code == 4, shown.shown
    behind = shown.shown[shown.shown.index("\x1b]2;\a\x1b[23;2t") :]
    assert "Launch-bound" in behind
    assert "GPU busy" not in behind
    assert "Traceback" not in shown.shown


@pytest.mark.slow
@needs_recorder
def test_between_windows_the_terminal_says_so(place: Place, tmp_path: Path) -> None:
    options = ("--window", "3s", "--every", "600s")
    with terminal(place, tmp_path, UNTIL_SEEN, "terminal", *options) as shown:
        shown.until("between two windows")
        (tmp_path / "seen").touch()
        assert shown.rest() == 0


@pytest.mark.slow
@needs_recorder
@pytest.mark.parametrize(("output", "more"), [("terminal", {"TERM": "dumb"}), ("file", {"TERM": "dumb"})])
def test_on_a_dumb_terminal_there_is_none(place: Place, tmp_path: Path, output: str, more: dict[str, str]) -> None:
    text = UNTIL_SEEN.replace('not os.path.exists("seen")', "time.monotonic() - began < 3")
    with terminal(place, tmp_path, f"import time\nbegan = time.monotonic()\n{text}", output, **more) as shown:
        assert shown.rest() == 0
    assert "\x1b]2;" not in shown.shown
    assert MARGIN.search(shown.shown) is None
    assert "microbench recording" in shown.shown, "the diagnosis follows"


@pytest.mark.slow
@needs_recorder
def test_a_terminal_that_is_stopped_holds_nothing_up(place: Place, tmp_path: Path) -> None:
    counting = "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: (open('seen', 'w').close()))\n"
    with terminal(place, tmp_path, counting + UNTIL_SEEN + "\nopen('done', 'w').close()", "file") as shown:
        shown.until("GPU waits\x1b8")
        os.write(shown.end, b"\x13")  # Ctrl-S: from now on the terminal takes nothing
        shown.process.send_signal(signal.SIGUSR1)
        while not (tmp_path / "done").exists():
            assert shown.process.poll() is None
        os.write(shown.end, b"\x11")
        assert shown.rest() == ExitCode.MEASURED
    assert "Launch-bound" in shown.shown

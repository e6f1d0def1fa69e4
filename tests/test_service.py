"""Tests of watching for hours: budgets, alerts, metrics, who may ask, and real processes around a made-up GPU."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import make_recording
import make_trace
import msgspec
import pytest
from command_line import call
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from watched import NotPython, Place

from microbench.core.errors import ExitCode, UsageError
from microbench.diagnosis.diagnosis import diagnose
from microbench.fleet.windows import Window
from microbench.library.answers import costs_of
from microbench.recorder import cells
from microbench.service.alerts import Alerts
from microbench.service.budget import LEAST_BETWEEN_S, SETTLING_S, Budget, behind
from microbench.service.door import MOST_BYTES, MOST_GUESTS, PATIENCE_S, Door, _line, ask, run_folder
from microbench.service.metrics import MOST_NAMES, Metrics
from microbench.service.service import Service
from microbench.service.windows import COUNTED, shown
from microbench.traces.reading import read
from microbench.traces.trace import Pause

NO_PARTS: Mapping[str, float] = {}


def window(step_s: float = 0.001, number: int = 0, **changed: Any) -> Window:
    steps = max(round(1 / step_s), 1)
    given = Window(
        "serve.py-42", f"serve.py-42-{number:06}.rows", 1e9, 1e9 + 60 * number, 1.0, 0.3, {"waits": 0.7}, NO_PARTS,
        {"launches": 20.0 * steps}, (step_s,) * steps, 0.1, 0.0, 0,
    )  # fmt: skip
    return msgspec.structs.replace(given, **changed)


# Budgets


def taken(window_s: float, loss: float, loss_behind: float) -> float:
    """What a recording takes from the program, in s."""
    return (window_s + SETTLING_S) * loss + (behind(window_s) - SETTLING_S) * loss_behind


@pytest.mark.parametrize("share", [0.003, 0.01, 0.05])
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.13, 0.35])
def test_a_budget_is_kept_and_used(share: float, loss: float) -> None:
    chance = random.Random(f"{share} {loss}")
    budget = Budget(share, 0.0)
    now_s = lost_s = 0.0
    while now_s < 4 * 3600:
        due_s = budget.next_s(now_s)
        assert due_s is not None
        window_s = budget.window_s
        now_s = max(now_s, due_s) + window_s + behind(window_s)
        lost_s += taken(window_s, loss, loss / 10)
        measured = max(loss + chance.gauss(0, 0.02), 0.0)
        budget.add([window(lost=measured, lost_behind=loss / 10)], window_s, now_s, seen=True)
        assert lost_s <= 1.02 * share * now_s
    limited = budget.window_s * loss > share * LEAST_BETWEEN_S
    assert not limited or lost_s > 0.5 * share * now_s


def test_a_loss_that_nobody_knows_counts_as_half_of_the_window() -> None:
    budget = Budget(0.01, 0.0)
    assert budget.next_s(0.0) == pytest.approx(taken(budget.window_s, 0.5, 0.15) / 0.01) == pytest.approx(52.5)
    budget.add([window(lost=None)], 1.0, 100.0, seen=True)
    assert budget.taken_s == pytest.approx(taken(1.0, 0.5, 0.15))
    budget.add([], 1.0, 200.0, seen=True)  # nothing could be read of it
    assert budget.taken_s == pytest.approx(2 * taken(1.0, 0.5, 0.15))
    budget.add([], 1.0, 300.0, seen=False)  # the GPU was not used
    assert budget.taken_s == pytest.approx(2 * taken(1.0, 0.5, 0.15))


def phases(share: float, chosen: Sequence[tuple[float, float, float]]) -> list[float]:
    """What recording truly costs a program, as a share of each hour. A phase has its hours, the step in s, and the loss
    of a window."""
    budget, now_s, hours = Budget(share, 0.0), 0.0, dict[int, float]()
    until_s = 0.0
    for length, step_s, loss in chosen:
        until_s += 3600 * length
        while now_s < until_s:
            window_s = budget.window_s
            due_s = budget.next_s(now_s)
            assert due_s is not None
            now_s = max(due_s, now_s) + window_s + behind(window_s)
            hours[int(now_s // 3600)] = hours.get(int(now_s // 3600), 0.0) + (window_s + SETTLING_S) * loss
            budget.add([window(step_s, lost=loss)], window_s, now_s, seen=True)
    assert budget.taken_s == pytest.approx(sum(hours.values()), rel=0.2)
    return [hours.get(hour, 0.0) / 3600 for hour in range(round(until_s / 3600))]


@pytest.mark.parametrize("share", [0.005, 0.01, 0.05])
def test_a_program_that_changes_costs_no_more(share: float) -> None:
    quiet, costly = (0.001, 0.01), (0.5, 0.35)
    for chosen in ([(10, *quiet), (3, *costly)], [(1, *quiet), (1, *costly)] * 6, [(24, *quiet), (10, *costly)]):
        hours = phases(share, chosen)
        assert max(hours) <= 2.1 * share  # an hour may have what the hour before it has saved
        assert sum(hours) / len(hours) <= 1.02 * share


def test_an_attached_recording_is_paid_back_within_an_hour() -> None:
    budget = Budget(0.01, 0.0)
    budget.add([window(lost=0.3)], 600.0, 900.0, seen=True)
    due_s = budget.next_s(900.0)
    assert due_s is not None
    assert 3600 < due_s < 900 + 2 * 3600


def test_windows_hold_twenty_steps_within_limits() -> None:
    budget = Budget(0.01, 0.0)
    for step_s, window_s in ((0.001, 0.5), (0.1, 2.0), (3.0, 8.0)):
        budget.add([window(step_s)], 0.5, 0.0, seen=True)
        assert budget.window_s == pytest.approx(window_s)
    for window_s in (1.0, 2.0, 4.0):  # no step fits
        budget.add([], window_s / 2, 0.0, seen=True)
        assert budget.window_s == pytest.approx(window_s)


def test_a_small_budget_has_short_windows() -> None:
    budget = Budget(0.001, 0.0)
    budget.add([window(0.5)], 0.5, 0.0, seen=True)
    assert 0.5 <= budget.window_s < 8.0
    assert budget.next_s(0.0) is not None


def test_a_budget_of_hours_between_windows_cannot_be_kept() -> None:
    assert Budget(1e-5, 0.0).next_s(0.0) is None


# Alerts


def told(windows: list[Window]) -> list[dict[str, Any]]:
    alerts = Alerts()
    return [said for one in windows if (said := alerts.add(one)) is not None]


def test_a_change_is_told_once_with_its_cause() -> None:
    chance = random.Random(1)
    before = [window(0.010 * chance.uniform(0.98, 1.02), number) for number in range(30)]
    slow = {"owners": {"waiting for the data loader": 70 * 0.0041}, "busy_s": 70 * 0.003}
    after = [window(0.014 * chance.uniform(0.98, 1.02), number, **slow) for number in range(30, 60)]
    (said,) = told(before + after)
    assert said["times"] == pytest.approx(1.4, rel=0.03)
    assert said["cause"] == "waiting for the data loader"
    assert said["cause_s"] == [0.0, pytest.approx(0.0041, rel=0.03)]
    assert "the step takes 1.4 times as long: waiting for the data loader 0 s → " in said["microbench"]
    assert json.loads(json.dumps(said)) == said


def test_phases_that_return_are_told_as_such() -> None:
    chance, steps_s = random.Random(2), [0.010, 0.005, 0.010, 0.005, 0.020]
    said = told([
        window(step_s * chance.uniform(0.98, 1.02), 20 * phase + number)
        for phase, step_s in enumerate(steps_s) for number in range(20)
    ])  # fmt: skip
    assert [one["again"] for one in said] == [0, 1, 1, 0]
    assert "times as long, as once before" in said[1]["microbench"]
    assert "before" not in said[3]["microbench"]


def test_scatter_is_no_change() -> None:
    false = 0
    for seed in range(5):
        chance = random.Random(seed)
        false += len(told([window(0.010 * chance.lognormvariate(0, 0.05), number) for number in range(120)]))
    assert false <= 1


def test_a_program_without_steps_has_no_alerts() -> None:
    assert told([window(number=number, steps_s=()) for number in range(20)]) == []


# Metrics


def sums(metrics: Metrics) -> dict[str, Any]:
    """What the server says, by the name of a sample and its labels without the process."""
    request = urllib.request.Request(metrics.address, headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        " ".join([sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "process")]): sample
        for family in families
        for sample in family.samples
    }


def test_metrics_add_up_and_name_the_file() -> None:
    metrics = Metrics("127.0.0.1:0")
    for number in range(3):
        metrics.add(window(0.02, number, owners={"torch.nn modules": 0.2}))
    metrics.keep({"serve.py-42"}, 0.008)
    found = sums(metrics)
    assert found["microbench_gpu_idle_seconds_total waits"].value == pytest.approx(2.1)
    assert found["microbench_gpu_busy_seconds_total"].value == pytest.approx(0.9)
    assert found["microbench_recorded_seconds_total"].value == 3
    assert found["microbench_launches_total"].value == 3000
    assert found["microbench_host_seconds_total torch.nn modules"].value == pytest.approx(0.6)
    assert found["microbench_windows_total"].exemplar.labels == {"file": "serve.py-42-000002.rows"}
    assert found["microbench_recording_loss_ratio"].value == 0.008
    buckets = [found[f"microbench_step_seconds_bucket {end}"].value for end in ("0.01", "0.03", "+Inf")]
    assert buckets == [0, 150, 150]
    assert found["microbench_step_seconds_sum"].value == pytest.approx(3)
    metrics.keep(set(), 0.0)
    assert not any("idle" in name for name in sums(metrics))


def test_the_dashboard_asks_for_metrics_that_are_served() -> None:
    metrics = Metrics("127.0.0.1:0")
    metrics.add(window(owners={"torch.nn modules": 0.2}, counts=dict.fromkeys(COUNTED, 1.0)))
    metrics.keep({"serve.py-42"}, 0.008)
    dashboard = json.loads((Path(__file__).parent.parent / "docs" / "grafana-watch.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in re.findall(r"microbench_\w+", expr)}
    assert len(names) > 10
    assert names <= {sample.split()[0] for sample in sums(metrics)}


def test_owners_without_end_become_other() -> None:
    metrics = Metrics("127.0.0.1:0")
    for number in range(3 * MOST_NAMES):
        metrics.add(window(number=number, owners={f"package {number}": 1.0}))
    metrics.keep({"serve.py-42"}, 0.0)
    owners = [name for name in sums(metrics) if name.startswith("microbench_host_seconds_total")]
    assert len(owners) == MOST_NAMES + 1
    assert sums(metrics)["microbench_host_seconds_total other"].value == 2 * MOST_NAMES


@pytest.mark.parametrize("address", [":x", "nowhere.invalid:1", ":99999"])
def test_an_address_that_cannot_be_served_is_an_error(address: str) -> None:
    with pytest.raises(UsageError):
        Metrics(address)


# Who may ask


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "microbench"


@pytest.fixture
def door(private: Path) -> Iterator[Door]:
    opened = Door(lambda for_s, _: {"files": [f"{for_s:g}"], "processes": 1})
    opened.open()
    yield opened
    opened.close()
    assert not list(private.iterdir())


def talk(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as side, contextlib.suppress(OSError):
        side.connect(str(path))
        side.settimeout(20)
        side.sendall(data)
        side.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: side.recv(4096), b""))
    return b""


def test_a_child_finds_the_watch_of_its_parent(door: Door) -> None:
    assert ask(os.getpid(), 5)["files"] == ["5"]
    with subprocess.Popen(["sleep", "60"]) as child:
        assert ask(child.pid, 0.5)["files"] == ["0.5"]
        child.kill()


def test_nobody_but_this_user_gets_in(private: Path, door: Door) -> None:
    (path,) = private.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert private.stat().st_mode & 0o777 == 0o700
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    private.parent.chmod(0o755)
    private.chmod(0o755)
    path.chmod(0o666)
    request = b'{"for_s": 5}\\n'
    code = f"import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); "
    code += f"s.sendall(b'{request.decode()}'); print(s.recv(99))"
    for folder in private.parents:  # which pytest has made private
        with contextlib.suppress(OSError):
            folder.chmod(folder.stat().st_mode | 0o111)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout in ("b''\n", "") or "Reset" in ended.stderr, ended.stderr
    assert b"files" in talk(path, request.replace(b"\\n", b"\n"))


def test_a_folder_of_somebody_else_is_refused(private: Path) -> None:
    private.mkdir(mode=0o777)
    private.chmod(0o777)
    with pytest.raises(UsageError, match="alone"):
        run_folder()
    private.rmdir()
    private.symlink_to("/tmp")
    with pytest.raises(UsageError, match="alone"):
        run_folder()


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_hostile_bytes_change_nothing(private: Path, door: Door, count: int) -> None:
    (path,) = private.iterdir()
    chance = random.Random(count)
    right = b'{"for_s": 5}\n'
    odd = [
        b"", b"\n", b"5\n", b"[]\n", b"\0" * 100 + b"\n",
        b'{"for_s": "5"}\n', b'{"for_s": true}\n', b'{"for_s": NaN}\n', b'{"for_s": 1e999}\n',
        b'{"for_s": -5}\n', b"[" * 5000 + b"\n", b"\xff\xfe\n", right[:-1], b"x" * (MOST_BYTES + 2),
    ]  # fmt: skip
    for number in range(count):
        data = odd[number] if number < len(odd) else bytearray(right)
        for _ in range(chance.randrange(1, 4) if number >= len(odd) else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
        answer = talk(path, bytes(data))
        with contextlib.suppress(ValueError, RecursionError):
            asked = json.loads(data)
            assert b"error" in answer or b"files" in answer or not bytes(data).endswith(b"\n"), asked
    assert b"files" in talk(path, right)


def test_a_door_knows_who_still_waits(private: Path) -> None:
    wanted: list[bool] = []

    def record(_: float, wants: Callable[[], bool]) -> Mapping[str, Any]:
        for _ in range(100 * len(wanted)):  # the second one's end may come a moment later than its words
            if wants():
                time.sleep(0.01)
        began_s = time.monotonic()
        wanted.append(wants())
        assert time.monotonic() - began_s < PATIENCE_S / 2, "it waits for nothing"
        return {"files": []}

    door = Door(record)
    door.open()
    try:
        assert ask(os.getpid(), 5) == {"files": []}
        talk(next(private.iterdir()), b'{"for_s": 5}\n')  # sends no more
    finally:
        door.close()
    assert wanted == [True, False]


def test_guests_who_say_nothing_do_not_keep_others_out(private: Path, door: Door) -> None:
    (path,) = private.iterdir()
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_GUESTS):
            side = stack.enter_context(socket.socket(socket.AF_UNIX))
            side.connect(str(path))
        with pytest.raises(UsageError, match="others ask already"):
            ask(os.getpid(), 5)
        time.sleep(PATIENCE_S)
        until_s = time.monotonic() + 60
        while True:  # the others are still there, and their time is over
            with contextlib.suppress(UsageError):
                assert ask(os.getpid(), 5)["files"] == ["5"]
                break
            assert time.monotonic() < until_s


def test_an_answer_is_read_whose_sender_did_not_wait_for_the_question() -> None:
    for asks_first in (True, False):
        guest, host = socket.socketpair(socket.AF_UNIX)
        with guest:
            host.sendall(b"others ask already\n")
            if asks_first:
                guest.sendall(b"a question")  # which is lost
            host.close()
            assert _line(guest, 100) == b"others ask already\n"


def test_sockets_of_killed_watches_go(private: Path) -> None:
    run_folder()
    (private / "4194305.sock").touch()  # no process has this number
    Door(lambda *_: {}).close()
    assert not list(private.iterdir())
    with pytest.raises(UsageError, match="no microbench watch runs"):
        ask(os.getpid(), 5)
    with pytest.raises(UsageError, match="too long"):
        ask(os.getpid(), 6000)


# Real processes

SERVING = """
import os, signal, sys, time, torch
print(os.getpid(), torch.library.stand_in_subscribed(), flush=True)
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
while not ended:
    torch.steps(1)
    torch.catch_up()
    time.sleep(0.001)
print("subscribed", torch.library.stand_in_subscribed(), "threads", len(os.listdir("/proc/self/task")), flush=True)
sys.exit(7)
"""


PYTHON = (sys.executable, "program.py")


class Watched:
    """A program under microbench watch, and its process."""

    def __init__(
        self, place: Place, folder: Path, *options: str, command: Sequence[str] = PYTHON, **variables: str
    ) -> None:
        (folder / "program.py").write_text(SERVING)
        watch = [sys.executable, "-m", "microbench", "watch", *options, "-o", "kept", "--"]
        self.variables = {**place.environment(), "XDG_RUNTIME_DIR": str(folder), "XDG_DATA_HOME": str(folder)}
        self.variables["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent.parent}"
        self.variables |= variables
        self.folder = folder
        with (folder / "errors").open("w") as errors:
            self.watch = subprocess.Popen(
                [*watch, *command], cwd=folder, env=self.variables, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip
        assert self.watch.stdout is not None
        self.output = self.watch.stdout
        self.pid, self.subscribed = map(int, self.output.readline().split())

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.pid, self.watch.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.watch.wait(60)
        self.output.close()

    def attach(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "microbench", "watch", "--attach", str(self.pid), *options]
        return subprocess.run(
            command, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False, timeout=120
        )

    @property
    def growing(self) -> Path:
        return self.folder / "kept" / "now" / f"program.py-{self.pid}.rows"

    @contextlib.contextmanager
    def guest(self, for_s: int) -> Iterator[subprocess.Popen[str]]:
        """Somebody who asks, and whose recording grows."""
        command = [sys.executable, "-m", "microbench", "watch", "--attach", str(self.pid), "--for", f"{for_s}s"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=self.folder, env=self.variables, **pipes) as asking:
            while self.growing.stat().st_size == 0:
                time.sleep(0.05)
            yield asking

    def end(self) -> tuple[int, str, str]:
        """The exit code, the rest of the program's output, and the watch's words."""
        os.kill(self.pid, signal.SIGTERM)
        said = self.output.read()
        return self.watch.wait(60), said, (self.folder / "errors").read_text()


def test_a_dormant_program_is_recorded_when_somebody_asks(place: Place, tmp_path: Path) -> None:
    with Watched(place, tmp_path, "--dormant") as watched:
        assert watched.subscribed == 0
        for number in (1, 2):
            asked = watched.attach("--for", "0.3s")
            assert asked.returncode == 0, asked.stderr
            assert f"recorded: {tmp_path}/kept/program.py-{watched.pid}-{number:06}.rows" in asked.stderr
            assert "each of 20 kernels" in asked.stderr
        code, said, errors = watched.end()
        assert code == 7
        _, subscribed, _, threads = said.split()
        assert (subscribed, int(threads) <= 4) == ("0", True), said  # itself, CUPTI's two, and the one that sleeps
        assert "recorded: 2 windows" in errors
        assert sorted(path.suffix for path in (tmp_path / "kept").iterdir()) == [".jsonl", ".rows", ".rows"]
        assert [len(read(path).windows) for path in (tmp_path / "kept").glob("*.rows")] == [1, 1]
        assert not list((tmp_path / "microbench").iterdir())
        assert "ended" in watched.attach().stderr or "no microbench watch" in watched.attach().stderr


def test_a_program_that_is_not_python_is_recorded_as_often_as_somebody_asks(place: Place, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    other = NotPython(Place(tmp_path / "c"))
    command = ("sh", "-c", f"echo $$ 0; exec {other.program} init paced 100000")
    with Watched(place, tmp_path, "--dormant", command=command, **other.variables) as watched:
        for number in (1, 2, 3):
            asked = watched.attach("--for", "1s")
            assert asked.returncode == 0, asked.stderr
            assert f"{number:06}.rows" in asked.stderr
            assert "each of 20 kernels" in asked.stderr
        assert len(os.listdir(f"/proc/{watched.pid}/task")) <= 4
        assert watched.end()[0] == -signal.SIGTERM


def test_records_of_kernels_begin_while_nobody_launches_if_somebody_asks(place: Place, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    other = NotPython(Place(tmp_path / "c"))
    command = ("sh", "-c", f"echo $$ 0; exec {other.program} init paced 100000")
    with Watched(place, tmp_path, "--dormant", command=command, STAND_IN_SLOW="1", **other.variables) as watched:
        for number in (1, 2):
            asked = watched.attach("--for", "0.5s")
            assert asked.returncode == 0, asked.stderr
            assert f"{number:06}.rows" in asked.stderr
        assert watched.end()[0] == -signal.SIGTERM


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_who_asks_may_stop_asking(place: Place, tmp_path: Path, sign: signal.Signals) -> None:
    with Watched(place, tmp_path, "--dormant") as watched:
        with watched.guest(500) as guest:
            guest.send_signal(sign)
            said, errors = guest.communicate(timeout=60)
        if sign == signal.SIGINT:  # it gets what was recorded until then
            assert (guest.returncode, "each of 20 kernels" in errors) == (0, True), said
        asked = watched.attach("--for", "0.3s")  # nobody has to wait for the rest of the 500 s
        assert f"{watched.pid}-000002.rows" in asked.stderr
        assert watched.end()[0] == 7


def test_a_killed_watch_leaves_the_program_unharmed(place: Place, tmp_path: Path) -> None:
    with Watched(place, tmp_path, "--dormant") as watched:
        with watched.guest(20) as guest:
            watched.watch.kill()
            assert watched.watch.wait(60) == -signal.SIGKILL
            assert guest.stderr is not None
            assert "has ended" in guest.stderr.read()
        deadline_s = time.monotonic() + 60  # the recorder notices, and gives CUPTI back
        while watched.growing.read_bytes()[-64:].find(b"ended=1") < 0:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        os.kill(watched.pid, signal.SIGTERM)
        assert watched.output.read().startswith("subscribed 0 ")


def test_a_killed_program_ends_the_watch_cleanly(place: Place, tmp_path: Path) -> None:
    with Watched(place, tmp_path, "--dormant") as watched:
        with watched.guest(20) as guest:
            os.kill(watched.pid, signal.SIGKILL)
            assert watched.watch.wait(60) == -signal.SIGKILL
            assert guest.stderr is not None
            assert "ended" in guest.stderr.read()
        assert not (tmp_path / "kept" / "now").exists()
        assert not list((tmp_path / "microbench").iterdir())


def test_a_budget_records_by_itself(place: Place, tmp_path: Path) -> None:
    with Watched(place, tmp_path, "--budget", "50%", "--metrics", "127.0.0.1:0") as watched:
        while not list((tmp_path / "kept").glob("*.rows")):
            time.sleep(0.1)
        time.sleep(3)
        address = (tmp_path / "errors").read_text().split()[1]
        with urllib.request.urlopen(address) as answer:
            assert b"microbench_windows_total" in answer.read()
        code, _, errors = watched.end()
        assert code == 7
        assert "recorded: 1 window, which took at most" in errors


@pytest.mark.parametrize(
    "options",
    ["--budget 0", "--budget 1", "--budget 60%", "--dormant --budget 1%", "--dormant --whole", "--dormant --keep x"],
)
def test_options_that_do_not_fit_are_refused(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("watch", *options.split(), "--", "true").exit_code == ExitCode.USAGE
    assert not list(tmp_path.iterdir())


def test_a_fork_after_a_dormant_import_is_told(here: Path) -> None:
    Path("program.py").write_text("""
import os, torch
child = os.fork()
if not child:
    torch.cuda.cuInit(0)
    os._exit(0)
os.waitpid(child, 0)
""")
    said = call("watch", "--dormant", "--", sys.executable, "program.py").stderr
    assert "work of a process that was forked from a recorded one" in said
    assert "nobody asked by --attach" in said


def answers(service: Service, folder: Path, count: int) -> list[Mapping[str, Any]]:
    """What a service answers when it is asked so many times."""
    service.begin(folder)
    try:
        return [service.asked(0.1) for _ in range(count)]
    finally:
        service.end()


def test_the_newest_recordings_and_the_slowest_are_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("kept")
    folder.mkdir()
    service = Service(folder, costs_of(None), None, 200_000, lambda _: None)
    made = iter(range(1, 10))

    def record(*_: object) -> list[Path]:
        number = next(made)
        path = folder / f"serve.py-42-{number:06}.rows"
        steps = make_recording.steps(30, kernels=20 if number == 2 else 8)  # the second one has the longest steps
        path.write_bytes(make_recording.recording(steps))
        return [path]

    monkeypatch.setattr(service._orders, "record", record)
    answers(service, here, 9)
    sizes = {int(path.stem[-6:]): path.stat().st_size for path in folder.glob("*.rows")}
    assert sum(sizes.values()) <= 200_000
    assert 2 in sizes
    assert max(sizes) == 9
    assert len(sizes) < 9


@pytest.mark.parametrize("fast", [True, False])
def test_a_small_part_of_a_window_is_shown_if_it_is_all_that_was_noted_of_a_fast_loop(fast: bool) -> None:
    made = make_trace.Recorder()
    for turn in range(100):
        for _ in range(3):
            made.launches(1 if fast or turn < 20 else 0)
            made.runs(10_000)
        if turn < 20:
            made.turn()
    made.turns[-1] = (*made.turns[-1][:3], fast)
    found = diagnose(made.trace(windows=((0, made.now_ns),)), costs_of(None).fit)
    assert found.steps is not None
    window = shown("serve.py-42", "serve.py-42-000001.rows", 0.0, 0.0, found)
    assert (len(window.steps_s) if window else 0) == (18 if fast else 0)


@pytest.mark.parametrize(
    ("duration_ns", "least", "most"), [(1_000, 0.1, 0.3), (30_000, 0, 0.01)], ids=["host-bound", "GPU-bound"]
)
def test_calls_behind_a_window_cost_only_what_the_gpu_idles(duration_ns: int, least: float, most: float) -> None:
    made = make_trace.Recorder()
    for _ in range(60):
        made.launches(10, 5_000, duration_ns)
        made.wait()
        made.turn()
    window_ns = 0, made.now_ns + 1
    for _ in range(60):
        made.runs(max(100_000, 10 * duration_ns + 10_000))
        made.turn()
    pause = Pause(window_ns[1], made.now_ns + 1)
    found = diagnose(made.trace(windows=(window_ns,), pauses=(pause,)), costs_of(None).fit)
    window = shown("serve.py-42", "serve.py-42-000001.rows", 0.0, 0.0, found)
    assert window is not None
    assert least < window.lost_behind < most


def test_a_recording_that_ends_in_an_error_ends_nothing_else(private: Path, tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "kept").mkdir()
    service = Service(tmp_path / "kept", costs_of(None), None, 1 << 20, told.append)
    recordings = iter([ZeroDivisionError("a recording of nothing"), []])

    def record(*_: object) -> list[Path]:
        found = next(recordings)
        if isinstance(found, Exception):
            raise found
        return found

    service._orders.record = record  # type: ignore[method-assign]
    (tmp_path / "reasons").mkdir()
    (tmp_path / "reasons" / "42-1").symlink_to('["CUPTI is taken","end the other profiler"]')
    first, second = answers(service, tmp_path / "reasons", 2)
    assert told == ["a recording is left out: a recording of nothing"]
    assert first == {"files": [], "processes": 0, "reasons": [("CUPTI is taken", "end the other profiler")]}
    assert second == {"files": [], "processes": 0, "reasons": []}
    assert not list((tmp_path / "kept").iterdir())


def test_a_process_whose_kernels_cupti_gives_no_more_is_named_each_time(private: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    service = Service(folder, costs_of(None), None, 1 << 20, lambda _: None)
    launch = {"detail": make_recording.LAUNCH, "place": 9}
    rows = [make_recording.row(cells.RUNTIME, 10 * one, 3, correlation=one + 1, **launch) for one in range(40)]

    def record(*_: object) -> list[Path]:
        path = folder / "serve.py-42-000001.rows"
        path.write_bytes(make_recording.recording(*rows))
        return [path]

    service._orders.record = record  # type: ignore[method-assign]
    for answer in answers(service, tmp_path, 2):
        assert answer["files"] == []
        assert answer["reasons"][-1][0] == "CUPTI gives no kernels of serve.py-42 any more"
    assert service.lost > 0, "its calls were recorded"

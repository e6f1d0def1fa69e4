"""`microbench fleet run`: the campaign's file, what the engine decides with a client that answers at once, what a node
does, and a real Dask cluster of simulated nodes, of which one dies and one hangs."""

import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from command_line import call
from make_run import failed, make_run

from microbench.archive import schema, store
from microbench.cli.fleet import progress_line
from microbench.core.errors import ExitCode, MicrobenchError, ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.model import Outcome
from microbench.core.version import __version__
from microbench.fleet import campaign as records
from microbench.fleet import engine, node
from microbench.fleet.campaign import Campaign, Options, Simulated, Task
from microbench.fleet.engine import Engine


def campaign_of(*tasks: Task, **options: Any) -> Campaign:
    made = records.new_campaign("20260101T000000Z-aaaaaaaa", ["launch_cost"], Options(**options), "--local 2")
    made.tasks = list(tasks)
    return made


def test_a_campaign_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = Task("node-1", "GPU-1", "died", "the worker was lost", 1, labels={"rack": "r1"}, versions={"python": "3"})
    made = campaign_of(task, Task("node-2"), preset="quick", overrides=("size=64",))
    folder = records.make_folder(tmp_path, made.campaign)
    records.write(folder, made)
    assert records.read(tmp_path, made.campaign) == made
    assert made.counts() == {"died": 1, "waiting": 1}
    written = json.loads((folder / "campaign.json").read_text())
    assert list(written) == ["campaign", "began", "ended", "selection", "options", "scheduler", "tasks"]
    assert (written["ended"], written["tasks"][0]["labels"]) == (None, {"rack": "r1"})
    assert [path.name for path in folder.iterdir()] == ["campaign.json"]


def test_a_campaign_that_cannot_be_read_or_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunUnreadableError, match="there is no campaign x"):
        records.read(tmp_path, "x")
    with pytest.raises(RunUnreadableError):
        records.read(tmp_path, "../x")
    folder = records.make_folder(tmp_path, "x")
    (folder / "campaign.json").write_text('{"campaign": 1}')
    with pytest.raises(RunUnreadableError, match="cannot be read: Expected `str`"):
        records.read(tmp_path, "x")
    with pytest.raises(ResultNotWrittenError, match="cannot be written"):
        records.write(tmp_path / "gone", campaign_of())
    with pytest.raises(ResultNotWrittenError, match="cannot be created"):
        records.make_folder(folder / "campaign.json", "y")


def test_names_of_nodes_are_safe_as_names_of_files() -> None:
    assert Task("node-1.example", "GPU-12ab").file_name(1) == "node-1_example_GPU-12ab.json.xz"
    assert Task("../../etc/passwd").file_name(2) == "etc_passwd-2.json.xz"
    assert Task("...").file_name(1) == "node.json.xz"
    assert len(Task("n" * 500).file_name(99)) < 100


def test_labels_come_from_options_and_files(tmp_path: Path) -> None:
    assert records.parsed_labels(["rack=r1", "switch=s=2"]) == {"rack": "r1", "switch": "s=2"}
    with pytest.raises(UsageError, match="rack is not KEY=VALUE"):
        records.parsed_labels(["rack"])
    (tmp_path / "a.toml").write_text('[node-1]\nrack = "r1"\nrow = 3\n')
    (tmp_path / "a.json").write_text('{"node-1": {"rack": "r1", "row": 3}}')
    for name in ("a.toml", "a.json"):
        assert records.read_labels(tmp_path / name) == {"node-1": {"rack": "r1", "row": "3"}}
    for text in ('rack = "r1"', "[node-1]\nrack = [1]", "[", "\xff"):
        (tmp_path / "bad.toml").write_text(text, encoding="latin-1")
        with pytest.raises(UsageError):
            records.read_labels(tmp_path / "bad.toml")
    (tmp_path / "sim.toml").write_text('[simulated-1]\nfault = "dies"\ncosts = { link_bytes_per_s = 3e10 }')
    assert records.read_simulated(tmp_path / "sim.toml") == {
        "simulated-1": Simulated({"link_bytes_per_s": 3e10}, "dies")
    }
    (tmp_path / "sim.toml").write_text('[simulated-1]\nfault = "explodes"')
    with pytest.raises(UsageError, match="explodes"):
        records.read_simulated(tmp_path / "sim.toml")


def small_run(*more: Outcome) -> bytes:
    """A run file that fits into a command line."""
    run = make_run()
    return schema.encode(msgspec.structs.replace(run, outcomes=(*run.outcomes[:2], *more)))


def stub(exit_code: int, run: bytes = b"", errors: str = "") -> str:
    """A program in the place of microbench, which writes that run file and ends."""
    return (
        f"import lzma, sys; sys.stderr.write({errors!r}); run = {lzma.compress(run)!r}\n"
        "if lzma.decompress(run): open(sys.argv[-1], 'wb').write(lzma.decompress(run))\n"
        f"sys.exit({exit_code})"
    )


ORDER = {"task": "n", "topic": "t", "arguments": ["host"], "limit_s": 60.0, "device": "fake", "costs": {}, "fault": ""}


@pytest.mark.parametrize(("program", "status", "reason"), [
    (stub(0, small_run()), "ok", ""), (stub(1, small_run(failed())), "ok", "1 of "),
    (stub(1, small_run()[:40]), "failed", "exit code 1: "),
    (stub(3, errors="error: cuda:0 is not here\nnext: look\n"), "no_gpu", "cuda:0 is not here"),
    (stub(2, errors="Traceback\nValueError: 3\n"), "failed", "exit code 2: ValueError: 3"),
    ("import os; os.kill(os.getpid(), 9)", "failed", "exit code -9"),
])  # fmt: skip
def test_a_node_says_how_its_run_ended(program: str, status: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "GUARDED", program)
    result = node.measure(ORDER)
    assert result["status"] == status
    assert result["reason"].startswith(reason)
    assert bool(result["run"]) == (status == "ok")
    if result["run"]:
        assert schema.decode(lzma.decompress(result["run"])).run_id == make_run().run_id


def test_a_run_that_hangs_is_ended_with_everything_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '1000'], process_group=0)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(1000)"
    )
    monkeypatch.setattr(node, "GUARDED", hangs)
    monkeypatch.setattr(node, "FINISH_S", 0.1)
    limit_s = 0.5
    while not (tmp_path / "pid").exists():  # on a busy machine Python itself may take longer to start
        result = node.measure({**ORDER, "limit_s": limit_s})
        limit_s *= 2
    assert (result["status"], result["run"]) == ("hung", b"")
    assert result["reason"].startswith("ended after its limit of ")
    child = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    while child.exists() and child.read_text().split()[2] != "Z":  # the limit of the test ends this
        time.sleep(0.01)


def test_a_run_that_nobody_waits_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "GUARDED", node.HANGS)
    monkeypatch.setattr(node, "_wanted", lambda: lambda: False)
    result = node.measure({**ORDER, "limit_s": 1e6})
    assert (result["status"], result["reason"], result["run"]) == ("died", "the worker was told to end", b"")


def test_two_campaigns_never_measure_on_one_machine_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node, "LOCK_WAIT_S", 0.0)
    monkeypatch.setattr(node, "GUARDED", stub(0, small_run()))
    monkeypatch.setattr(node.tempfile, "tempdir", str(tmp_path))
    real = {**ORDER, "device": "GPU-1"}
    with node._alone(False):
        assert "another campaign is measuring" in node.measure(real)["reason"]
        assert node.measure(ORDER)["status"] == "ok"  # simulated time is not disturbed
    assert node.measure(real)["status"] == "ok"


class Client:
    """Workers that answer at once, and the calls that were sent to them. ``answer`` may raise; None never answers."""

    def __init__(self, workers: dict[str, dict[str, Any]], answer: Callable[[str, dict[str, Any]], Any]) -> None:
        self.workers, self.answer, self.status = dict(workers), answer, "running"
        self.sent: list[tuple[str, str]] = []
        self.open: dict[str, int] = {}
        self.said: Callable[[tuple[float, str]], None] = lambda event: None

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.workers, 1)

    def subscribe_topic(self, topic: str, handler: Callable[[tuple[float, str]], None]) -> None:
        self.said = handler

    def unsubscribe_topic(self, topic: str) -> None:
        pass

    def cancel(self, futures: object) -> None:
        pass

    def submit(self, function: object, argument: Any, *, key: str, workers: list[str], **how: object) -> Any:
        (address,) = workers
        future: Any = SimpleNamespace(key=key, status="pending", cancel=lambda: None)
        future.add_done_callback = lambda done: future.status == "pending" or done(future)
        try:
            if function is node.describe:
                value = self.workers[address]
            else:
                self.sent.append((address, argument["task"]))
                value = self.answer(address, argument)
            future.status = "pending" if value is None else "finished"
            future.result = lambda timeout: value
        except RuntimeError as raised:
            error = raised
            future.status = "error"
            future.exception = lambda timeout: error
        return future


def described(name: str, machine: str = "", gpus: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    versions = {"microbench": __version__, "python": "3.11", "driver": "580"}
    return {
        "node": name, "machine": machine or name, "versions": versions, "gpus": list(gpus),
        "no_gpu": "" if gpus else "no driver", **more,
    }  # fmt: skip


OK = {"status": "ok", "reason": "", "run": lzma.compress(small_run()), "seconds": 1.0}


def carried_out(client: Client, campaign: Campaign, folder: Path, **how: Any) -> dict[str, Task]:
    pytest.importorskip("distributed")
    folder.mkdir(exist_ok=True)
    Engine(client, campaign, folder, **{"wait_s": 0.0, **how}).run()  # type: ignore[arg-type]
    assert json.loads((folder / "campaign.json").read_text())["ended"] == campaign.ended
    return {task.name: task for task in campaign.tasks}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(engine, "RETURN_S", 0.05)


def test_each_gpu_gets_a_run_and_a_machine_one_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []

    def answer(address: str, order_: dict[str, Any]) -> dict[str, Any]:
        order.append(order_["task"])
        return OK

    workers = {
        "tcp://a:1": described("a", gpus=("GPU-1", "GPU-2")),
        "tcp://a:2": described("a", gpus=("GPU-1", "GPU-2")),  # a second worker of the same machine
        "tcp://b:1": described("b", gpus=("GPU-3",)),
        "tcp://c:1": described("c"),
        "tcp://d:1": described("d", gpus=("GPU-4",), versions={"microbench": "0.0.1"}),
    }
    client = Client(workers, answer)
    seen: list[list[str]] = []
    tasks = carried_out(
        client, campaign_of(preset="quick", rounds=3), tmp_path, labels={"room": "1", "rack": "r0"},
        node_labels={"a": {"rack": "r1"}}, changed=lambda campaign, running: seen.append(list(running)),
    )  # fmt: skip
    assert sorted(order) == ["a GPU-1", "a GPU-2", "b GPU-3"]
    assert all(len({name.split()[0] for name in running}) == len(running) for running in seen)
    assert any(len(running) == 2 for running in seen)
    assert {name: task.status for name, task in tasks.items()} == {
        "a GPU-1": "ok", "a GPU-2": "ok", "b GPU-3": "ok", "c": "no_gpu", "d GPU-4": "failed",
    }  # fmt: skip
    assert tasks["d GPU-4"].reason == f"microbench 0.0.1 is installed there, {__version__} here"
    assert tasks["c"].reason == "no driver"
    assert tasks["a GPU-1"].labels == {"room": "1", "rack": "r1"}
    assert tasks["b GPU-3"].labels == {"room": "1", "rack": "r0"}
    assert (tmp_path / tasks["a GPU-1"].run).read_bytes() == OK["run"]


def test_the_options_reach_the_run(tmp_path: Path) -> None:
    arguments: list[list[str]] = []

    def answer(address: str, order: dict[str, Any]) -> dict[str, Any]:
        arguments.append(order["arguments"])
        return OK

    options = {"preset": "full", "overrides": ("size=64",), "device": "all", "rounds": 2, "time_limit_s": 9.0}
    carried_out(Client({"tcp://a:1": described("a", gpus=("G",))}, answer), campaign_of(**options), tmp_path)
    assert arguments == [
        ["launch_cost", "--full", "--set", "size=64", "--device", "all", "--rounds", "2", "--time-limit", "9.0"]
    ]


def test_a_node_without_a_gpu_measures_its_host(tmp_path: Path) -> None:
    client = Client({"tcp://a:1": described("a")}, lambda address, order: OK)
    assert carried_out(client, campaign_of(), tmp_path, needs_gpu=False)["a"].status == "ok"


@pytest.mark.parametrize("begun", [False, True])
def test_a_lost_worker_is_replaced_only_before_its_task_began(tmp_path: Path, begun: bool) -> None:
    def answer(address: str, order: dict[str, Any]) -> dict[str, Any] | None:
        if address == "tcp://a:2":
            return OK
        if begun:
            client.said((0.0, order["task"]))
        del client.workers[address]
        return None

    workers = {f"tcp://a:{number}": described("a", gpus=("GPU-1",)) for number in (1, 2)}
    client = Client(workers, answer)
    task = carried_out(client, campaign_of(), tmp_path)["a GPU-1"]
    assert (task.status, task.tries) == (("died", 1) if begun else ("ok", 2))
    assert task.reason.startswith("the worker was lost after" if begun else "")


def test_what_a_node_raises_or_never_answers_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "GRACE_S", -1799.9)

    def answer(address: str, order: dict[str, Any]) -> dict[str, Any] | None:
        if address == "tcp://b:1":
            raise RuntimeError("boom \x1b[31m")
        if address == "tcp://c:1":
            del client.workers[address]
            client.said((0.0, order["task"]))
        return None

    client = Client(
        {f"tcp://{name}:1": described(name, gpus=(f"GPU-{name}1", f"GPU-{name}2")) for name in "abc"}, answer
    )
    tasks = carried_out(client, campaign_of(), tmp_path)
    assert [tasks[f"a GPU-a{n}"].status for n in (1, 2)] == ["hung", "hung"]
    assert tasks["a GPU-a2"].reason == "the node gave no answer in the task before"
    assert [tasks[f"b GPU-b{n}"].reason for n in (1, 2)] == ["RuntimeError: boom \\x1b[31m"] * 2
    assert tasks["c GPU-c1"].status == "died"
    assert (tasks["c GPU-c2"].status, tasks["c GPU-c2"].reason) == ("died", "the worker was lost before it began")


ODD: list[Any] = [
    [], {}, "text", 3, OK | {"seconds": "long"}, OK | {"seconds": float("nan")}, OK | {"seconds": float("inf")},
    OK | {"seconds": -1.0}, OK | {"status": "fabulous"}, OK | {"status": "waiting"}, OK | {"reason": "\ud800"},
    OK | {"reason": None}, OK | {"run": b""}, OK | {"run": "text"}, OK | {"run": None}, OK | {"run": os.urandom(500)},
    OK | {"run": lzma.compress(b"{}")}, OK | {"run": OK["run"][:-9]}, OK | {"run": object()},
]  # fmt: skip


@pytest.mark.parametrize("values", ODD)
def test_a_task_whose_answer_is_damaged_failed_and_the_others_go_on(values: Any, tmp_path: Path) -> None:
    client = Client(
        {f"tcp://{name}:1": described(name, gpus=("GPU",)) for name in "ab"},
        lambda address, order: values if address == "tcp://a:1" else OK,
    )
    tasks = carried_out(client, campaign_of(), tmp_path)
    assert {name: task.status for name, task in tasks.items()} == {"a GPU": "failed", "b GPU": "ok"}
    assert tasks["a GPU"].reason
    assert not tasks["a GPU"].run
    assert records.read_folder(tmp_path).tasks == list(tasks.values())


@pytest.mark.parametrize("changes", [
    {"node": "\ud800"}, {"node": ""}, {"node": 3}, {"node": "n" * 256}, {"machine": None}, {"gpus": 3}, {"gpus": [""]},
    {"versions": []}, {"versions": {"microbench": None}}, {"no_gpu": 3}, {"worker": 3},
])  # fmt: skip
def test_a_node_whose_description_is_damaged_is_named(changes: dict[str, Any], tmp_path: Path) -> None:
    workers = {"tcp://10.0.0.1:1": described("a", gpus=("GPU",)) | changes, "tcp://b:1": described("b", gpus=("GPU",))}
    tasks = carried_out(Client(workers, lambda address, order: OK), campaign_of(), tmp_path)
    assert {name: task.status for name, task in tasks.items()} == {"10.0.0.1": "failed", "b GPU": "ok"}
    assert "damaged, or of another version" in tasks["10.0.0.1"].reason
    assert records.read_folder(tmp_path).tasks == list(tasks.values())


def test_a_run_in_which_nothing_is_ok_is_kept_and_failed(tmp_path: Path) -> None:
    run = lzma.compress(schema.encode(msgspec.structs.replace(make_run(), outcomes=(failed(),))))
    client = Client({"tcp://a:1": described("a", gpus=("GPU",))}, lambda address, order: OK | {"run": run})
    task = carried_out(client, campaign_of(), tmp_path)["a GPU"]
    assert (task.status, task.reason, task.run) == (
        "failed", "no case of the run that came back is ok", "a_GPU.json.xz"
    )  # fmt: skip


def test_a_run_that_came_back_damaged_beside_a_failure_is_said(tmp_path: Path) -> None:
    client = Client(
        {"tcp://a:1": described("a", gpus=("GPU",))},
        lambda address, order: OK | {"status": "hung", "reason": "ended", "run": b"x"},
    )
    task = carried_out(client, campaign_of(), tmp_path)["a GPU"]
    assert (task.status, task.run) == ("hung", "")
    assert task.reason.startswith("ended; the run that came back cannot be read as a run")


def test_what_cannot_be_unpickled_here_is_a_failure(tmp_path: Path) -> None:
    class Odd(RuntimeError):
        def __str__(self) -> str:
            raise KeyError

    class Worker(Client):
        def submit(self, *given: Any, **how: Any) -> Any:
            future = super().submit(*given, **how)
            if how["workers"] == ["tcp://b:1"]:
                future.result = lambda timeout: [][1]
            return future

    def answer(address: str, order: dict[str, Any]) -> dict[str, Any]:
        if address == "tcp://a:1":
            raise Odd
        return OK

    workers = {f"tcp://{name}:1": described(name, gpus=("GPU",)) for name in "abc"}
    tasks = carried_out(Worker(workers, answer), campaign_of(), tmp_path)
    assert {name: task.status for name, task in tasks.items()} == {"a GPU": "failed", "b": "failed", "c GPU": "ok"}
    assert "Odd" in tasks["a GPU"].reason
    assert "IndexError" in tasks["b"].reason


def test_runs_of_nodes_with_similar_names_have_files_of_their_own(tmp_path: Path) -> None:
    workers = {f"tcp://a:{place}": described(name, gpus=("G",)) for place, name in enumerate(["n.1", "n_1", "n 1"])}
    tasks = carried_out(Client(workers, lambda address, order: OK), campaign_of(), tmp_path)
    assert sorted(task.run for task in tasks.values()) == ["n_1_G-2.json.xz", "n_1_G-3.json.xz", "n_1_G.json.xz"]
    assert all((tmp_path / task.run).read_bytes() == OK["run"] for task in tasks.values())


def test_every_machine_of_one_name_and_every_gpu_that_any_worker_sees_is_measured(tmp_path: Path) -> None:
    workers = {f"tcp://a:{n}": described("n", f"machine-{n}", gpus=(f"G{n}",)) for n in range(4)}
    workers |= {f"tcp://b:{n}": described("m", "m", gpus=(f"G{n}", "G0")) for n in range(4)}
    client = Client(workers, lambda address, order: OK)
    tasks = carried_out(client, campaign_of(), tmp_path)
    assert len({task.node for task in tasks.values()}) == 5
    assert sorted(task.gpu for task in tasks.values()) == sorted(2 * [f"G{n}" for n in range(4)])
    assert all(task.status == "ok" for task in tasks.values())
    gpus = {address: described["gpus"] for address, described in workers.items()}
    assert all(task.split()[1] in gpus[address] for address, task in client.sent)


def test_a_gpu_whose_only_worker_is_lost_is_given_up_while_others_of_its_machine_go_on(tmp_path: Path) -> None:
    def answer(address: str, order: dict[str, Any]) -> dict[str, Any]:
        client.workers.pop("tcp://a:2", None)
        return OK

    client = Client({f"tcp://a:{n}": described("a", "a", gpus=(f"G{n}",)) for n in (1, 2)}, answer)
    tasks = carried_out(client, campaign_of(), tmp_path)
    assert sorted((task.gpu, task.status) for task in tasks.values()) in (
        [("G1", "ok"), ("G2", "ok")], [("G1", "ok"), ("G2", "died")],
    )  # fmt: skip


@pytest.mark.parametrize("machine", ["a", "b"])
def test_nodes_that_came_or_cannot_come_are_not_waited_for(tmp_path: Path, machine: str) -> None:
    workers = {"tcp://a:1": described("a", "a", ("GPU-1",)), "tcp://a:2": described(machine, machine, ("GPU-1",))}
    client = Client(workers, lambda address, order: OK)
    tasks = carried_out(
        client, campaign_of(), tmp_path, expected=3, wait_s=1e6, unreachable={"far": "no SSH connection"}
    )
    assert {task.node for task in tasks.values()} == {"a", machine, "far"}


def test_hosts_and_jobs_that_did_not_come_are_recorded_and_asked_anew(tmp_path: Path) -> None:
    came: list[set[str]] = []

    def absent(names: set[str]) -> dict[str, str]:
        came.append(set(names))
        return {"job 7": "it was still in the queue", "fe80::1": "no worker came"}

    workers = {"tcp://a:1": described("a", gpus=("GPU-1",), worker="SLURMCluster-0")}
    client = Client(workers, lambda address, order: OK)
    tasks = carried_out(client, made := campaign_of(), tmp_path, expected=3, absent=absent)
    assert came == [{"SLURMCluster-0"}]
    assert {name: (task.status, task.reason) for name, task in tasks.items()} == {
        "a GPU-1": ("ok", ""), "job 7": ("waiting", "it was still in the queue"),
        "fe80::1": ("waiting", "no worker came"),
    }  # fmt: skip
    assert list(carried_out(client, made, tmp_path)) == ["a GPU-1"]


def test_a_lost_scheduler_is_no_death_of_the_nodes(tmp_path: Path) -> None:
    def answer(address: str, order: dict[str, Any]) -> dict[str, Any] | None:
        client.status = "connecting"
        return None

    client = Client({"tcp://a:1": described("a", gpus=("GPU-1",))}, answer)
    made = campaign_of()
    with pytest.raises(MicrobenchError, match="the scheduler was lost"):
        carried_out(client, made, tmp_path)
    assert [(task.status, task.reason) for task in made.tasks] == [("waiting", "interrupted")]


def test_a_scheduler_without_microbench_is_named(tmp_path: Path) -> None:
    def answer(address: str, order: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("Error during deserialization of the task graph. This frequently occurs if …")

    tasks = carried_out(Client({"tcp://a:1": described("a", gpus=("GPU-1",))}, answer), campaign_of(), tmp_path)
    assert tasks["a GPU-1"].reason.startswith("the scheduler's Python lacks microbench")


def test_a_resumed_campaign_runs_only_what_is_missing(tmp_path: Path) -> None:
    made = campaign_of(
        Task("a", "GPU-1", "ok", run="a.json.xz", versions={"python": "3"}),
        Task("b", "GPU-2", "died", "lost", 1, versions={"python": "3"}),
        Task("gone", "GPU-3", "hung", "no answer", 1, versions={"python": "3"}),
        Task("10.0.0.7", "", "died", "lost when it was asked"),
    )
    client = Client(
        {"tcp://a:1": described("a", gpus=("GPU-1",)), "tcp://b:1": described("b", gpus=("GPU-2",))},
        lambda address, order: OK,
    )
    tasks = carried_out(client, made, tmp_path, unreachable={"far": "no SSH connection"})
    assert client.sent == [("tcp://b:1", "b GPU-2")]
    assert {name: task.status for name, task in tasks.items()} == {
        "a GPU-1": "ok", "b GPU-2": "ok", "gone GPU-3": "hung", "far": "failed",
    }  # fmt: skip


def test_an_interruption_keeps_what_came_back(tmp_path: Path) -> None:
    pytest.importorskip("distributed")

    def interrupt(campaign: Campaign, running: object) -> None:
        if campaign.counts()["ok"]:
            raise KeyboardInterrupt

    made = campaign_of()
    client = Client(
        {f"tcp://{name}:1": described(name, gpus=(f"GPU-{name}",)) for name in "ab"},
        lambda address, order: OK if address == "tcp://a:1" else None,
    )
    with pytest.raises(KeyboardInterrupt):
        Engine(client, made, tmp_path, wait_s=0.0, changed=interrupt).run()  # type: ignore[arg-type]
    written = json.loads((tmp_path / "campaign.json").read_text())
    assert written["ended"] is None
    assert {task["node"]: (task["status"], task["reason"]) for task in written["tasks"]} == {
        "a": ("ok", ""), "b": ("waiting", "interrupted"),
    }  # fmt: skip


def test_the_line_of_progress_counts() -> None:
    made = campaign_of(Task("a", status="ok"), Task("b", status="no_gpu"), Task("c"))
    assert progress_line(made, ["c", "d", "e", "f"]) == ("2 of 3 runs · 1 ok · 1 no GPU · running: c, d, e and 1 more")


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "none of --local"), (("--local", "2", "--scheduler", "tcp://a:1"), "several of --local"),
    (("nothing", "--local", "2"), "nothing"), (("--local", "2", "--quick", "--full"), "cannot be combined"),
    (("--local", "2", "--label", "rack"), "is not KEY=VALUE"),
    (("--local", "2", "--labels", "absent.toml"), "absent.toml cannot be read"),
    (("launch", "--local", "2", "--resume", "x"), "keeps what the campaign measures"),
    (("--local", "2", "--resume", "x"), "there is no campaign x"),
])  # fmt: skip
def test_wrong_arguments_start_nothing(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = call("fleet", "run", *arguments, "--store", str(tmp_path / "store"))
    assert result.exit_code in (ExitCode.USAGE, ExitCode.UNREADABLE_RUN)
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "store").exists()


def test_tls_without_certificates_says_what_to_configure(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    result = call("fleet", "run", "host", "--scheduler", "tls://127.0.0.1:1", "--store", str(tmp_path))
    assert result.exit_code == ExitCode.USAGE
    assert "needs certificates" in result.stderr
    assert list(tmp_path.iterdir()) == []


def certificates(folder: Path) -> None:
    """Make good.pem and expired.pem of the authority ca.pem, and other.pem of other-ca.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")

    def make(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other-ca"):
        make(
            "req", "-x509", *key, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-subj", f"/CN={authority}"
        )
    for name, authority, days in (("good", "ca", "9"), ("expired", "ca", "-1"), ("other", "other-ca", "9")):
        make("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=here")
        make(
            "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-CA", f"{authority}.pem", "-CAkey",
            f"{authority}.key", "-CAcreateserial", "-days", days, "-extfile", "names",
        )  # fmt: skip


@pytest.mark.slow
def test_tls_with_wrong_certificates_is_refused_in_words_and_soon(tmp_path: Path) -> None:
    distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask")
    certificates(tmp_path)

    def tls(authority: str, name: str) -> dict[str, str]:
        made = {"ca-file": str(tmp_path / authority)}
        for role in ("client", "scheduler", "worker"):
            made |= {f"{role}.cert": str(tmp_path / f"{name}.pem"), f"{role}.key": str(tmp_path / f"{name}.key")}
        return {f"distributed.comm.tls.{key}": value for key, value in made.items()}

    def refused(settings: dict[str, Any], *where: str) -> str:
        with dask.config.set(settings):
            arguments = ("host_timer", "--quick", "--device", "fake", "--store", str(tmp_path / "store"))
            ended = call("fleet", "run", *arguments, *where, "--wait", "1")
        assert ended.exit_code in (ExitCode.SOME_FAILED, ExitCode.USAGE), ended.output
        assert "Traceback" not in ended.output
        return " ".join(ended.output.split())

    good = tls("ca.pem", "good")
    alone: dict[str, Any] = {"n_workers": 0, "dashboard_address": None, "silence_logs": 50}
    with dask.config.set(good), distributed.LocalCluster(**alone, protocol="tls://") as secured:
        address = secured.scheduler_address
        assert "certificate" in refused(tls("other-ca.pem", "good"), "--scheduler", address)
        for name in ("other", "expired"):
            assert "has expired or that it does not trust" in refused(tls("ca.pem", name), "--scheduler", address)
        assert "nowhere.pem cannot be read" in refused(tls("nowhere.pem", "good"), "--scheduler", address)
        assert "nowhere.pem cannot be read" in refused(tls("ca.pem", "nowhere"), "--scheduler", address)
        assert "cannot be used" in refused(tls("good.key", "good"), "--scheduler", address)
        assert "give a tls:// address" in refused({}, "--scheduler", address.replace("tls", "tcp"))
        assert "no node came" in refused(good, "--scheduler", address)
    encrypted = {"distributed.comm.require-encryption": True}
    with distributed.LocalCluster(**alone) as open_to_all:
        address = open_to_all.scheduler_address
        assert "answers without TLS" in refused(good, "--scheduler", address.replace("tcp", "tls"))
        assert "encryption required" in refused(good | encrypted, "--scheduler", address)
    words = refused(encrypted, "--local", "1")
    assert "requires encryption and names no certificates" in words or "encryption required" in words


def test_without_dask_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = call("fleet", "run", "host", "--local", "1", "--store", str(tmp_path))
    assert result.exit_code == ExitCode.USAGE
    assert "pip install '.[fleet]'" in result.stderr


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Dask scheduler with that many worker processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=request.param, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit=0, silence_logs=50
    ) as made:
        yield made.scheduler_address


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own, when a worker is killed
@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_of_three_simulated_nodes_one_dies_and_one_hangs_and_both_are_resumed(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "sim.toml").write_text('[simulated-0]\nfault="dies"\n[simulated-1]\nfault="hangs"\nlimit_s=1')
    common = ("fleet", "run", "--scheduler", cluster, "--store", str(tmp_path))
    ended = call(*common, "host_timer", "--quick", "--device", "fake", "--simulated", str(tmp_path / "sim.toml"))
    assert ended.exit_code == ExitCode.SOME_FAILED, ended.output
    (folder,) = (tmp_path / "campaigns").iterdir()
    made = records.read(tmp_path, folder.name)
    assert {task.node: task.status for task in made.tasks} == {
        "simulated-0": "died", "simulated-1": "hung", "simulated-2": "ok",
    }  # fmt: skip
    assert "1 of 3 runs are ok" in ended.stdout
    assert "SIMULATED" in ended.stdout
    assert "simulated-0: died: the worker was lost after" in ended.stdout
    assert f"--resume {folder.name} --scheduler {cluster}" in ended.stdout
    before = (folder / "simulated-2.json.xz").read_bytes()

    # Workers of their own: how soon Dask starts a killed one anew depends on the machine.
    ended = call("fleet", "run", "--local", "2", "--store", str(tmp_path), "--resume", folder.name)
    assert ended.exit_code == ExitCode.MEASURED, ended.output
    made = records.read(tmp_path, folder.name)
    assert sorted((task.node, task.status, task.tries) for task in made.tasks) == [
        (f"simulated-{number}", "ok", 1) for number in range(3)
    ]
    assert (folder / "simulated-2.json.xz").read_bytes() == before
    runs = [store.read(folder / task.run) for task in made.tasks]
    assert all(run.simulated for run in runs)
    assert len({bytes(run.outcomes[0].measurements[0].samples) for run in runs}) == 3  # each has scatter of its own


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_after_an_interruption_no_run_stays_on_the_node(cluster: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    psutil = pytest.importorskip("psutil")

    def interrupt(campaign: Campaign, running: object) -> None:
        if worker.children(recursive=True):
            raise KeyboardInterrupt

    with distributed.Client(cluster, direct_to_workers=False, set_as_default=False) as client:
        (pid,) = client.run(os.getpid).values()
        worker = psutil.Process(pid)
        assert not worker.children()
        hangs = {"simulated-0": Simulated(fault="hangs")}
        with pytest.raises(KeyboardInterrupt):
            Engine(client, campaign_of(device="fake"), tmp_path, simulated=hangs, changed=interrupt).run()
        while worker.children():  # the limit of the test ends this
            time.sleep(0.1)

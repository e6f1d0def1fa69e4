"""Carries out a campaign over a Dask client: each machine gets one task at a time, and every end is recorded.

The client chooses the worker of each task. It does not leave that to Dask's resources, which a worker must be started
with, and which do not join the several workers of one machine.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microbench.archive import store
from microbench.core.errors import MicrobenchError, RunUnreadableError
from microbench.core.units import plain, wall
from microbench.core.version import __version__
from microbench.fleet import campaign as records
from microbench.fleet import node as nodes
from microbench.fleet.campaign import Campaign, Simulated, Task

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_EVERY_S = 0.5
DESCRIBE_S = 120.0  # a probe is ended after 90 s
GRACE_S = 60.0  # for a run to end after its limit and to return its file
FETCH_S = 60.0
RETURN_S = 20.0  # Dask's nanny starts a lost worker anew
MOST_TRIES = 2
FETCHES, MOST_AT_ONCE = 32, 128  # results that are fetched at a time, and that are recorded in one look
LOST = "the worker was lost"


@dataclass
class Machine:
    """One machine: its present workers with the GPUs that each sees, and the tasks that it still has to run.

    ``absent_s`` is the time at which it lost the last worker that could run one of them. It is ``stuck`` after a task
    without an answer.
    """

    workers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    absent_s: float | None = None
    stuck: bool = False

    def next(self) -> tuple[str, Task] | None:
        """The first task that a present worker can run, with that worker; a worker may see some of the GPUs only."""
        each = ((worker, task) for task in self.tasks for worker in sorted(self.workers))
        return next((one for one in each if not one[1].gpu or one[1].gpu in self.workers[one[0]]), None)


@dataclass(frozen=True)
class Begun:
    """A call that was sent to a worker: a task, or without one the worker's description."""

    future: Future
    address: str
    machine: str
    task: Task | None
    began_s: float
    limit_s: float


@dataclass
class Engine:
    """One invocation of ``fleet run``.

    ``unreachable`` are hosts that could not be used, with the reason. ``expected`` is how many workers must come
    before it may end, unless ``wait_s`` pass; a resumed campaign expects the nodes that it lacks. ``absent`` says which
    hosts or jobs did not come, and why, from the names of the workers that did. ``changed`` hears of the state, with
    the names of the tasks that run.
    """

    client: Client
    campaign: Campaign
    folder: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    simulated: Mapping[str, Simulated] = field(default_factory=dict)
    needs_gpu: bool = True
    unreachable: Mapping[str, str] = field(default_factory=dict)
    expected: int = 1
    wait_s: float = 60.0
    absent: Callable[[Collection[str]], Mapping[str, str]] = lambda came: {}
    changed: Callable[[Campaign, Sequence[str]], None] = lambda campaign, running: None
    _machines: dict[str, Machine] = field(default_factory=dict)
    _machine_of: dict[str, str] = field(default_factory=dict)  # by node
    _planned: set[tuple[str, str]] = field(default_factory=set)  # nodes and GPUs
    _seen: set[str] = field(default_factory=set)
    _came: set[str] = field(default_factory=set)  # the names of the workers
    _running: dict[str, Begun] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _ended: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _began_s: float = field(default_factory=time.monotonic)
    _looked_s: float = -LOOK_EVERY_S

    def run(self) -> None:
        """Run every task that is not ok yet; the campaign's file is right whatever happens.

        Raises ResultNotWrittenError, MicrobenchError if the scheduler is lost, and KeyboardInterrupt.
        """
        # Workers that did not say which node they are, and unreachable hosts, are asked anew.
        self.campaign.tasks = [task for task in self.campaign.tasks if task.versions]
        self.campaign.ended = None
        self.expected = max(self.expected, len({task.node for task in self.campaign.tasks if task.status != "ok"}))
        for host, reason in self.unreachable.items():
            self._unnamed(host).end("failed", reason)
        try:
            self.client.subscribe_topic(self._topic, lambda event: self._begun.add(event[1]))
            self._save()
            self._look()
            while self._running or self._expects():
                if self._collect() | self._look() | self._give_up():
                    self._save()
                self._start()
                running = (begun.task for begun in self._running.values())
                self.changed(self.campaign, [task.name for task in running if task is not None])
            for task in self.campaign.tasks:
                if task.status == "waiting":
                    task.reason = "the node did not come"
            for name, reason in self.absent(self._came).items():
                self._unnamed(name).end("waiting", reason)
            self.campaign.ended = records.now()
        except OSError as error:
            raise MicrobenchError(
                f"the scheduler was lost: {plain(error)}", f"what came back is kept: --resume {self.campaign.campaign}"
            ) from None
        finally:
            for begun in self._running.values():
                if begun.task is not None:
                    begun.task.reason = "interrupted"
            with suppress(OSError, ValueError):
                self.client.cancel([begun.future for begun in self._running.values()])
                self.client.unsubscribe_topic(self._topic)
            self._save()

    @property
    def _topic(self) -> str:
        return f"microbench-{self.campaign.campaign}"

    def _save(self) -> None:
        records.write(self.folder, self.campaign)

    def _expects(self) -> bool:
        """True while tasks wait on machines that have joined, or more nodes may join."""
        if any(machine.tasks for machine in self._machines.values()):
            return True
        # Counted are workers (a machine may have several) and hosts without a worker, whose tasks have no versions.
        came = sum(max(1, len(machine.workers)) for machine in self._machines.values())
        came += sum(task.status == "failed" and not task.versions for task in self.campaign.tasks)
        return came < self.expected and time.monotonic() - self._began_s < self.wait_s

    def _look(self) -> bool:
        """Ask the scheduler which workers are there. True if a task's worker was lost."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        here = set(self.client.nthreads())
        for address in here - self._seen:
            self._send(address, "", None, nodes.describe, self.campaign.options.device, DESCRIBE_S)
        self._seen |= here
        lost = [key for key, begun in self._running.items() if begun.address not in here]
        for key in lost:
            self._lose(self._running.pop(key))
        for machine in self._machines.values():
            machine.workers = {address: gpus for address, gpus in machine.workers.items() if address in here}
            if machine.next() is not None or (machine.workers and not machine.tasks):
                machine.absent_s = None
            elif machine.absent_s is None:
                machine.absent_s = now_s
        return bool(lost)

    def _send(
        self, address: str, machine: str, task: Task | None, function: Any, argument: Any, limit_s: float
    ) -> None:
        key = f"microbench-{self.campaign.campaign}-{address}-{time.monotonic_ns()}"
        future = self.client.submit(
            function, argument, key=key, workers=[address], allow_other_workers=False, pure=False, retries=0
        )
        self._running[key] = Begun(future, address, machine, task, time.monotonic(), limit_s)
        future.add_done_callback(lambda done: self._ended.put(done.key))

    def _start(self) -> None:
        """Give each free machine its next task."""
        busy = {begun.machine for begun in self._running.values()}
        for name, machine in self._machines.items():
            following = machine.next()
            if name in busy or following is None:
                continue
            address, task = following
            machine.tasks.remove(task)
            task.tries += 1
            task.status, task.reason, task.began = "waiting", "", records.now()
            order = self._order(task)
            self._send(address, name, task, nodes.measure, order, order["limit_s"] + GRACE_S)

    def _order(self, task: Task) -> dict[str, Any]:
        """What ``node.measure`` gets."""
        options = self.campaign.options
        device = task.gpu or options.device
        arguments = [*self.campaign.selection, *([f"--{options.preset}"] if options.preset != "default" else [])]
        given: list[tuple[str, object]] = [
            *(("--set", override) for override in options.overrides),
            ("--device", device),
        ]
        given += [("--rounds", options.rounds if options.rounds != 1 else None), ("--time-limit", options.time_limit_s)]
        for option, value in given:
            arguments += [option, str(value)] if value not in (None, "") else []
        differs = self.simulated.get(task.node, Simulated())
        return {
            "task": task.name, "topic": self._topic, "arguments": arguments,
            "limit_s": differs.limit_s or options.limit_s, "device": device,
            "costs": differs.costs, "fault": differs.fault,
        }  # fmt: skip

    def _collect(self) -> bool:
        """Take what has ended, waiting a little for the first. True if any did. Raises OSError without a scheduler."""
        keys: list[str] = []
        with suppress(queue.Empty):
            keys.append(self._ended.get(timeout=LOOK_EVERY_S))
            while len(keys) < MOST_AT_ONCE:
                keys.append(self._ended.get_nowait())
        if self.client.status != "running":  # its futures look then as if their workers were lost
            raise OSError("the connection to it was closed")
        ended = [begun for key in keys if (begun := self._running.pop(key, None)) is not None]
        with ThreadPoolExecutor(FETCHES) as pool:
            fetches = [pool.submit(_fetched, begun) for begun in ended]
            for begun, fetch in zip(ended, fetches, strict=True):
                error = fetch.exception()  # what cannot be unpickled here raises anything
                self._take(begun, *((None, error) if error is not None else fetch.result()))
        return bool(ended)

    def _take(self, begun: Begun, values: object, error: BaseException | None) -> None:
        """Record what a call gave: values, an error, or neither if the worker that held the result is gone."""
        from distributed import KilledWorker

        if error is not None and not isinstance(error, KilledWorker):
            words = plain(traceback.format_exception_only(error)[-1].strip())
            if isinstance(error, ModuleNotFoundError):
                words = f"the worker's Python has no microbench with this command: {plain(error)}"
            elif "deserialization of the task graph" in words:
                words = "the scheduler's Python lacks microbench: install there what is installed here"
            (begun.task or self._unnamed(begun.address)).end("failed", words)
        elif values is None:
            self._lose(begun)
        elif begun.task is None:
            described = nodes.understood(values, nodes.Described)
            if isinstance(described, str):
                self._unnamed(begun.address).end("failed", described)
            else:
                self._plan(begun.address, described)
        else:
            measured = nodes.understood(values, nodes.Measured)
            if isinstance(measured, str):
                begun.task.end("failed", measured)
            else:
                self._record(begun.task, measured)

    def _record(self, task: Task, measured: nodes.Measured) -> None:
        """Record how a task ended, and keep its run if it is one, in a file that no other task has."""
        task.seconds = round(measured.seconds, 3)
        task.end(measured.status, plain(measured.reason, nodes.LONGEST_REASON))
        if not measured.run and task.status != "ok":
            return
        try:
            outcomes = store.decode(measured.run, "the run that came back").outcomes
        except RunUnreadableError as error:
            task.end("failed" if task.status == "ok" else task.status, f"{task.reason}; {error.cause}".strip("; "))
            return
        if task.status == "ok" and not any(outcome.status == "ok" for outcome in outcomes):
            task.end("failed", "no case of the run that came back is ok")
        taken = {other.run for other in self.campaign.tasks if other is not task}
        name = next(name for number in count(1) if (name := task.file_name(number)) not in taken)
        records.put(self.folder / name, measured.run)
        task.run = name

    def _lose(self, begun: Begun) -> None:
        """The worker is gone. A task that had not begun is tried once more on another worker of its machine."""
        task = begun.task
        if task is None:
            self._unnamed(begun.address).end("died", f"{LOST} when it was asked what its node has")
        elif task.name in self._begun or task.tries >= MOST_TRIES:
            task.seconds = round(time.monotonic() - begun.began_s, 3)
            task.end("died", f"{LOST} after {wall(task.seconds)}")
        else:
            self._machines[begun.machine].tasks.insert(0, task)

    def _unnamed(self, address: str) -> Task:
        """The task of a host whose worker did not say which node it is: it has no versions."""
        host = _host(address)
        task = self.campaign.task(host, "")
        if task is None:
            task = Task(host, labels={**self.labels, **self.node_labels.get(host, {})})
            self.campaign.tasks.append(task)
        return task

    def _give_up(self) -> bool:
        """End calls without an answer, and tasks whose worker does not return. True if there were any."""
        now_s, given_up = time.monotonic(), False
        for key, begun in list(self._running.items()):
            if now_s - begun.began_s > begun.limit_s and begun.future.status == "pending":
                del self._running[key]
                begun.future.cancel()
                task = begun.task or self._unnamed(begun.address)
                task.end("hung", f"the node gave no answer within {wall(begun.limit_s)}")
                if begun.machine in self._machines:
                    self._machines[begun.machine].stuck = True
                given_up = True
        for machine in self._machines.values():
            gone = machine.absent_s is not None and now_s - machine.absent_s > RETURN_S
            if machine.tasks and (gone or machine.stuck):
                for task in machine.tasks:
                    hung = "the node gave no answer in the task before"
                    task.end("died" if gone else "hung", f"{LOST} before it began" if gone else hung)
                machine.tasks.clear()
                given_up = True
        return given_up

    def _plan(self, address: str, described: nodes.Described) -> None:
        """The tasks of a worker that said what its node is."""
        node, name = described.node, described.machine
        if self.campaign.simulated:  # each worker is a machine of its own
            name = node
        ways = (node, f"{node}-{name[:8]}", f"{node}-{name}")  # of several machines of one name
        node = next((way for way in ways if self._machine_of.get(way, name) == name), f"{node}-{name}")
        # An earlier worker of this host may have been lost before it answered.
        tasks = self.campaign.tasks
        self.campaign.tasks = [task for task in tasks if task.versions or task.node != _host(address)]
        machine = self._machines.setdefault(name, Machine())
        machine.workers[address] = described.gpus
        self._came.add(described.worker)
        self._machine_of[node] = name
        own_gpus = self.campaign.options.device is None and self.needs_gpu and not described.no_gpu
        for gpu in described.gpus if own_gpus else [""]:
            if (node, gpu) in self._planned:
                continue  # of another worker of the same machine, or of a lost one that came back
            self._planned.add((node, gpu))
            task = self.campaign.task(node, gpu)
            if task is None:
                task = Task(node, gpu)
                self.campaign.tasks.append(task)
            if task.status == "ok":
                continue
            task.labels = {**self.labels, **self.node_labels.get(node, {})}
            task.versions, task.tries = described.versions, 0
            installed = task.versions.get("microbench", "unknown")
            if installed != __version__:
                task.end("failed", f"microbench {installed} is installed there, {__version__} here")
            elif described.no_gpu and self.needs_gpu:
                task.end("no_gpu", plain(described.no_gpu, nodes.LONGEST_REASON))
            else:
                task.end("waiting", "")
                machine.tasks.append(task)


def _fetched(begun: Begun) -> tuple[object, BaseException | None]:
    """What a call that has ended gave, through the scheduler."""
    try:
        if begun.future.status == "error":
            return None, begun.future.exception(timeout=FETCH_S)
        return (begun.future.result(timeout=FETCH_S) if begun.future.status == "finished" else None), None
    except TimeoutError:
        return None, None


def _host(address: str) -> str:
    """The host of a worker's address, tcp://HOST:PORT, or of what is a host already."""
    return address.rpartition("/")[2].rpartition(":")[0] if "://" in address else address

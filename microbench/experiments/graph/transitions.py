"""What stands between two kernels: memsets and copies, whose bytes another kernel sees arrive, or a second branch."""

import time
from typing import Literal

import numpy as np

from microbench.gpu.cuda.submit import CallRow, Parameters, Program, captured, launch, loaded, replay
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, Submit, experiment
from microbench.gpu.fake.machine import Machine, call_of_kind

Transition = Literal["kernel", "memset", "copy_h2d", "copy_d2d", "fork", "join"]
IN_MEMORY: tuple[Transition, ...] = ("memset", "copy_h2d", "copy_d2d")  # another kernel sees their word arrive
# The kernel that watches gives up after as long as a gate, and starts within 0.1 ms.
VALUE, TRIES, STARTED_S = 0x5EED, 1 << 22, 1e-4
FIRST, SECOND, BRANCH, LAST = range(4)  # places of the kernels that record their begin and end
# The kernel whose end comes first, and the one whose begin comes next.
ENDS: dict[Transition, tuple[int, int]] = {"fork": (FIRST, BRANCH), "join": (BRANCH, LAST)}


class Transitions:
    """Two kernels with a Transition between them, into streams or as a graph, behind a gate."""

    def __init__(self, case: Case, kind: Transition, graph: bool) -> None:
        self._case, self._kind, self._source = case, kind, case.pinned(1, np.uint64)
        self._source[0] = VALUE
        self._out = case.device_memory(96)  # begin and end of four kernels; when a word was seen, written; two words
        self._seen, self._word = self._out + 64, self._out + 80
        program = loaded(case, self._calls())
        self._submit: Submit = program
        if graph:
            self._submit = replay(captured(case, case.stream(0), lambda: program(1))[0], case.stream(0))
        write = Program([self._kernel("write_word", self._word, VALUE, self._seen + 8)])
        runs = [self._run(write) for _ in range(20)] if kind in IN_MEMORY else []
        self._seen_after_ns = int(np.median([run[8] - run[9] for run in runs if run.size] or [0]))

    def _kernel(self, name: str, *row: int, stream: int = 0) -> CallRow:
        function = self._case.function("launch" if name == "record" else "graph_transitions", name)
        return CallRow.of(launch(self._case, function, Launch(block_threads=1, stream=stream), Parameters([row])))

    def _calls(self) -> list[CallRow]:
        main, other, cycles = self._case.stream(0), self._case.stream(1), self._case.cycles(5000)
        first, second, branch, last = (
            self._kernel("record", self._out, place, cycles, stream=int(place == BRANCH)) for place in range(4)
        )
        if self._kind in ENDS:
            wait, (forked, joined) = "cuStreamWaitEvent", (self._case.event(timed=False) for _ in range(2))
            fork = CallRow.named("cuEventRecord", [forked, main]), CallRow.named(wait, [other, forked, 0])
            join = CallRow.named("cuEventRecord", [joined, other]), CallRow.named(wait, [main, joined, 0])
            return [first, *fork, second, branch, *join, last]
        name, source = {
            "memset": ("cuMemsetD32Async", [VALUE, 1]),
            "copy_h2d": ("cuMemcpyHtoDAsync", [int(self._source.ctypes.data), 4]),
            "copy_d2d": ("cuMemcpyDtoDAsync", [self._word + 8, 4]),
        }.get(self._kind, ("", []))
        between = [CallRow.named(name, [self._word, *source, main])] if name else []
        return [first, *between, second]

    def _run(self, submit: Submit) -> IntArray:
        """The stamps and words after one run, shape (12,); empty if the gate was late."""
        case, gate = self._case, self._case.once(SpinGate)
        case.upload(self._out, np.array([0] * 11 + [VALUE], dtype=np.int64))
        case.synchronize()
        if self._kind in IN_MEMORY:
            Program([self._kernel("see_word", self._word, VALUE, self._seen, TRIES, stream=2)])(1)
        gate.shut((0,))
        submit(1)
        time.sleep(STARTED_S)
        gate.open()
        case.synchronize()
        stamps = case.read(self._out, 0 if gate.was_late() else 12, np.int64)
        if stamps.size and self._kind in IN_MEMORY and (stamps[10] != VALUE or not stamps[8]):
            raise MeasurementError(f"the word between two kernels is {stamps[10]:#x}, seen at {stamps[8]}")
        return stamps

    def stamps(self, count: int) -> IntArray:
        """``count`` runs: when what comes first had ended, when the word was there, and when the next kernel began.

        ns of %globaltimer, shape (runs, 3); the word's column is 0 for kernels and branches. Runs whose gate was late
        are left out. Raises MeasurementError if a kernel did not run or began early, or the word did not arrive.
        """
        found = np.array([run for run in (self._run(self._submit) for _ in range(count)) if run.size]).reshape(-1, 12)
        first, following = ENDS.get(self._kind, (FIRST, SECOND))
        ended, begun, seen = found[:, 2 * first + 1], found[:, 2 * following], found[:, 8] - self._seen_after_ns
        if self._kind == "join":
            ended = np.maximum(ended, found[:, 2 * SECOND + 1])
        if not ((ended > 0) & (begun >= ended)).all():
            raise MeasurementError("a kernel did not run, or began before what comes first had ended")
        return np.stack([ended, seen * (self._kind in IN_MEMORY), begun], axis=1)


class SimulatedTransitions(Transitions):
    """Each side is a gap of the stream or the graph; work in memory runs between the two."""

    def __init__(self, machine: Machine, kind: Transition, graph: bool) -> None:
        self._machine, self._kind, costs = machine, kind, machine.costs
        call = call_of_kind(kind, costs) if kind in IN_MEMORY else None
        gap_ns = costs.gap_graph_ns if graph else costs.gap_stream_ns
        to_ns = gap_ns + costs.graphs.node(kind).gap_ns * graph + call.item.duration_ns if call else 0.0
        self._sides_ns = np.array([to_ns, gap_ns])

    def stamps(self, count: int) -> IntArray:
        each_ns = self._sides_ns * self._machine.noise.device(1.0, 2 * count).reshape(count, 2)
        to_ns, from_ns = self._machine.spent(each_ns).T
        return np.stack([0 * to_ns, to_ns, to_ns + from_ns], axis=1)


transitions = experiment(Transitions, SimulatedTransitions)

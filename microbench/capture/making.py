"""In a process of its own: looks at a user's function, captures it, proves the graph, and times both.

``python -m microbench.capture.making FILE`` reads what is asked from FILE and writes a Report there after each part, so
that the caller knows how far it came if it hangs.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from microbench.capture.handover import Change
from microbench.core.errors import MeasurementError, MicrobenchError
from microbench.core.units import counted, plain
from microbench.experiments.own.culprit import attempt, called

NO_STEPS = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
ROUNDS, ROUND_S = 9, 0.06
LEAST_INPUTS, MOST_INPUTS = 3, 8
# What an error of a graph says of the function, by a part of its text.
ENDED = {
    "illegal memory": "a replay reads memory that was given back",
    "does not require grad": "backward() belongs into the same graph as its loss: move what is between behind it",
}


class Asked(msgspec.Struct):
    """What is asked: functions as text, and axes. With ``compile``, a mode of torch.compile, that is timed, and nothing
    else: in one process with graphs it was seen to end in illegal memory accesses (torch 2.14, H200).

    If the function has ``parts``, which are graphs, ``source`` is its file as it was without. ``host`` says whether the
    proof changes values of the host: not if it did so with the same function and guards.
    """

    function: str
    setup: str = ""
    inputs: str = ""
    axes: dict[str, str | int] = {}
    compile: str = ""
    parts: tuple[str, ...] = ()
    source: str = ""
    host: bool = True


class Stop(msgspec.Struct):
    """A call that stops a capture; see blockers.Blocker."""

    kind: str
    line: str
    call: str
    why: str
    advice: str
    times: int
    at: int = 0
    within: str = ""


class Times(msgspec.Struct):
    """The time of a call in s: the median of the rounds, the lowest and the highest; ``ratio`` is eager's over it, in
    the same rounds. ``why`` says why there is none, or what torch.compile has left out."""

    name: str
    median_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    why: str = ""
    ratio: float = 0.0


class Report(msgspec.Struct):
    """What came of it so far. ``stage`` is what was begun last; ``error`` ends it."""

    stage: str = "start"
    error: str = ""
    gpu: str = ""
    blockers: list[Stop] = []
    operations: dict[int, int] = {}  # by line of the function, where calls are in the way
    rest: Times | None = None  # a replay without the blockers
    proved: bool = False
    why: str = ""
    difference: str = ""
    exact: bool = False
    scatter: str = ""
    calls: int = 0
    inputs: int = 0
    outputs: int = 0
    state: int = 0
    varied: list[str] = []
    left: list[str] = []
    counts: dict[str, int] = {}
    also: list[str] = []
    times: list[Times] = []
    ratio: tuple[float, float, float] | None = None  # eager over graph: median, lowest, highest of the rounds
    capture_s: float = 0.0
    memory_bytes: int = 0
    random_seed: int = 0


class Made(NamedTuple):
    """What came of a function: the report on its graph; the change of its file, and the report on the changed file.

    If calls are in the way, the change makes graphs of the parts between them.
    """

    what: str
    report: Report
    change: Change | None
    again: Report | None

    @property
    def proved(self) -> bool:
        """Whether the change is proved: of the whole function, or of its parts. Without a file to change, the graph."""
        if self.change is not None and self.change.parts:
            return self.again is not None and self.again.proved
        return self.report.proved and (self.again is None or self.again.proved)


def main(path: Path) -> None:
    """Read what is asked, and write the report after each part."""
    asked = msgspec.json.decode(path.read_bytes(), type=Asked)
    report = Report()

    def stage(name: str) -> None:
        report.stage = name
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(report))
        os.replace(part, path)

    stage("loading")
    try:
        make(asked, report, stage)
    except (MeasurementError, MicrobenchError) as error:
        report.error = str(error)
    except Exception as error:  # noqa: BLE001 - the user's function raises what its libraries raise
        report.error = f"{type(error).__name__}: {plain(error, 300)}"
        if report.blockers and report.stage == "the rest":  # a trial that failed: what was found stands
            report.error = ""
        elif "device-side assert" in report.error:  # CUDA adds where to read about it
            report.error = "a kernel stopped (device-side assert), mostly because of an index out of range. Call the "
            report.error += "function by itself with CUDA_LAUNCH_BLOCKING=1: the line of the error is then right"
    stage(report.stage)


def make(asked: Asked, report: Report, stage: Callable[[str], None]) -> None:
    """Fill the report. Raises MeasurementError for a function that cannot be called, or that is not PyTorch's."""
    from microbench.experiments.own.callables import bound, load, set_up

    given: list[Any] = []
    function: Any = called(partial(load, asked.function), "")
    if any(check(inspect.unwrap(function)) for check in NO_STEPS):
        raise MeasurementError("a replay does not run an async or generator function: name one that does the step")
    if asked.inputs:
        if asked.setup:  # it may make what the function and its inputs need
            set_up(None, asked.setup, asked.axes)  # type: ignore[arg-type]
        given = [
            _inputs(one) for one in itertools.islice(called(called(partial(load, asked.inputs), ""), ""), MOST_INPUTS)
        ]
        if len(given) < LEAST_INPUTS:
            raise MeasurementError(f"{asked.inputs} gives {len(given)} sets of inputs: a proof needs {LEAST_INPUTS}")
        arguments, named = given[0]
    else:
        function = bound(None, asked.function, asked.setup, asked.axes).call  # type: ignore[arg-type]
        arguments, named = (), {}
        if isinstance(function, partial):
            function, arguments, named = function.func, function.args, dict(function.keywords)
    patched = hasattr(function, "counts") and hasattr(function, "reasons")
    eager: Any = function.function if patched else function
    if asked.parts:
        from microbench.capture.proof import unparted

        eager = unparted(function, asked.source, asked.function.rpartition("::")[2])
    stage("calling")
    for _ in range(3):
        called(partial(eager, *arguments, **named), inspect.getsourcefile(inspect.unwrap(eager)) or "")
    report.gpu = _gpu()
    inputs = arguments, named

    def graphed() -> Any:
        from microbench.capture.graphed import Graphed
        from microbench.capture.proof import Parted

        return Parted(function, asked.parts) if asked.parts else function if patched else Graphed(eager)

    if asked.compile:
        report.times = [compiled(eager, given or drawn(inputs, report.random_seed), asked.compile, stage)]
    elif examine(eager, inputs, given, report, stage, graphed, look=not asked.parts, host=asked.host) and not patched:
        gain(eager, graphed, given or drawn(inputs, report.random_seed), report, stage)


def _gpu() -> str:
    """The name of the GPU on which the function has worked. Raises MeasurementError if it did so on none."""
    torch, others = sys.modules.get("torch"), {"cupy", "numba.cuda", "cuda.core"} & sys.modules.keys()
    if (torch is None or not torch.cuda.is_initialized()) and not others:
        wanted = "it uses PyTorch without a GPU" if torch else "it uses none of PyTorch, CuPy, Numba and cuda.core"
        raise MeasurementError(f"{wanted}: nothing can be captured")
    if others and not (torch is not None and torch.cuda.is_initialized()):
        try:
            import cupy  # noqa: F401
        except ImportError as error:
            raise MeasurementError("install CuPy: memory of Numba and cuda.core is compared by it") from error
    from microbench.capture.tensors import gpu_name

    return gpu_name()


def drawn(inputs: Any, seed: int) -> list[Any]:
    """The inputs, and as many sets with other values as a proof takes."""
    from microbench.capture.graphed import described, mapped
    from microbench.capture.proof import INPUTS, anew, draw, generator

    random, sets = generator(seed), [inputs]
    for _ in range(INPUTS - 1):
        tensors: list[Any] = []
        described(inputs, tensors)
        fresh = iter([anew(one, draw(one, random)) for one in tensors])
        sets.append(mapped(inputs, fresh.__next__))
    return sets


def examine(
    eager: Any,
    inputs: Any,
    given: list[Any],
    report: Report,
    stage: Callable[[str], None],
    graphed: Callable[[], Any] | None = None,
    look: bool = True,
    host: bool = True,
) -> bool:
    """Look for what stops a capture, then prove the graph; whether it is proved. ``given`` are inputs of the user's."""
    from microbench.capture.graphed import Graphed, Reads, opened
    from microbench.capture.proof import prove
    from microbench.capture.state import Kept

    came: dict[str, Any] = {}
    for each in given:
        opened(came, each, eager)
    reads = Reads(eager, inputs)
    if why := reads.streams_forbid(default=False):
        report.why = f"it cannot be captured: {why}"
        return False
    start = Kept(eager, inputs)
    if look:
        stage("blockers")
        _look(start, eager, inputs, report, stage)
    if report.blockers:
        return False
    if why := reads.streams_forbid():
        report.why = f"it cannot be captured: {why}"
        return False
    stage("inputs")
    sets = given or drawn(inputs, report.random_seed)
    moved, moved_names = _read_in_place(start, eager, inputs, report.random_seed)
    report.inputs = len(sets)
    names = [one.name for one in _parameters(eager)] or list(inputs[1])
    stage("proof")
    ended = attempt(lambda: prove(eager, (graphed or partial(Graphed, eager))(), sets, moved, names, host))
    if (error := ended.error) is not None:
        first = error.__context__ or error  # the end of a capture that broke fails too
        known = next((says for sign, says in ENDED.items() if sign in f"{first} {error}"), "")
        where = "" if known else _ending(partial(eager, *inputs[0], **inputs[1]), _stream(eager, inputs))
        report.why = f"{known or 'it cannot be captured'}{where}: {type(first).__name__}: {plain(first, 200)}"
        return False
    proof: Any = ended.result
    report.proved, report.why, report.exact, report.scatter = proof.proved, proof.why, proof.exact, proof.scatter
    if proof.difference is not None:
        one = proof.difference
        report.difference = f"{one.name} from call {one.call} on: {one.how}"
    report.calls, report.outputs, report.state = proof.calls, proof.outputs, proof.state
    report.varied, report.left, report.counts = (
        list(dict.fromkeys((*proof.varied, *moved_names))),
        list(proof.left),
        proof.counts,
    )
    report.also = list(proof.also)
    start.restore()
    return report.proved


def _stream(eager: Any, inputs: Any) -> Any:
    """The first stream of Numba, cuda.core or CuPy that the function uses. None if it uses default streams alone."""
    from microbench.capture.graphed import PER_THREAD, Reads

    return next((one for handle, one in Reads(eager, inputs).streams.items() if handle > PER_THREAD), None)


def _ending(call: Callable[[], Any], stream: Any) -> str:
    """What ends a capture of a call, in words; "" if that is not found."""
    from microbench.capture.blockers import ended

    where = attempt(lambda: ended(call, stream)).result
    return f"; {where} ends the capture" if where else ""


def _look(start: Any, eager: Any, inputs: Any, report: Report, stage: Callable[[str], None]) -> None:
    """The calls that stop a capture into the report, and how fast a graph of the rest would be."""
    from microbench.capture import blockers
    from microbench.capture.graphed import OPTIMIZER, TENSOR, Graph, renew, uses_torch
    from microbench.capture.suspects import operations

    call = partial(eager, *inputs[0], **inputs[1])
    stream = _stream(eager, inputs)
    optimizers = [one for one in start.reached.objects if isinstance(one, OPTIMIZER)]
    looked = blockers.blockers(eager, call, optimizers, stream)
    report.blockers = [Stop(*one) for one in looked.blockers]
    start.restore()
    if not report.blockers:
        return
    report.operations = dict(looked.operations)
    stage("the rest")

    def both() -> dict[str, Times]:
        for one in optimizers:
            for group in one.param_groups:
                group.update({"capturable": True} if "capturable" in group else {})
            for state in one.state.values():
                state.update({"step": state["step"].cuda()} if isinstance(state.get("step"), TENSOR) else {})
        for _ in range(2):
            call()
        renew(start.reached.ends.values())

        def captured(replaced: Callable[[], Any]) -> Graph:
            return Graph(replaced, (), {}, [], [], copies=False, stream=stream)

        graph = blockers.rest(call, looked, captured)
        if not uses_torch():  # whose operations were counted
            code = getattr(inspect.unwrap(eager), "__code__", None)
            report.operations = dict(blockers.rest(call, looked, partial(operations, code=code, stream=stream)))
        return timed({"rest": lambda: graph.replay([]), "eager": call})[0]

    ended = attempt(both)
    if (error := ended.error) is not None:
        where = blockers.rest(call, looked, partial(_ending, stream=stream))
        report.rest = Times("rest", why=f"{type(error).__name__}: {plain(error, 160)}{where}")
    else:
        times: Any = ended.result
        report.rest, report.times = times["rest"], [times["eager"]]
    start.restore()


def gain(eager: Any, graphed: Callable[[], Any], sets: list[Any], report: Report, stage: Callable[[str], None]) -> None:
    """The times of the function and of its graph, inputs copied in, and what the graph costs, into the report."""
    from microbench.capture.tensors import free_bytes, give_back, synchronize

    stage("times")
    turn = itertools.cycle(_kept_where_written(eager, sets))
    graph = _with_inputs(graphed(), turn)
    for _ in range(3):
        graph()
    synchronize()
    give_back()  # or the graph takes what others have left
    before = free_bytes()
    began = time.perf_counter()
    graph()
    synchronize()
    report.capture_s = time.perf_counter() - began
    report.memory_bytes = max(int(before - free_bytes()), 0)
    times, report.ratio = timed({"eager": _with_inputs(eager, turn), "graph": graph})
    report.times = [*times.values()]


def _kept_where_written(eager: Any, sets: list[Any]) -> list[Any]:
    """The sets of inputs, with the first one's tensor in all where the function writes to it, as a program has it."""
    from microbench.capture.graphed import described, mapped, marked, was_written

    tensors: list[list[Any]] = [[] for _ in sets]
    wrote: list[bool] = []
    for given, found in zip(sets, tensors, strict=True):
        described(given, found)
        marks = [marked(one) for one in found]
        eager(*given[0], **given[1])
        now = [was_written(one, mark) for one, mark in zip(found, marks, strict=True)]
        wrote = [*map(operator.or_, wrote or now, now)]
    chosen = [
        [one if kept else own for one, own, kept in zip(tensors[0], each, wrote, strict=True)] for each in tensors
    ]
    return [mapped(given, iter(each).__next__) for given, each in zip(sets, chosen, strict=True)]


def compiled(eager: Any, sets: list[Any], mode: str, stage: Callable[[str], None]) -> Times:
    """The time by torch.compile, and how many kinds of graph breaks it has. Its results are not compared."""
    import torch
    from torch._dynamo.utils import counters

    name = f"torch.compile, {mode}"
    kept: Any = attempt(partial(_kept_where_written, eager, sets)).result
    turn = itertools.cycle(kept or sets)
    stage(name)
    counters.clear()
    way = _with_inputs(torch.compile(eager, mode=mode), turn)

    def warm_up() -> None:
        for _ in range(4):
            way()
        torch.cuda.synchronize()

    if (error := attempt(warm_up).error) is not None:
        return Times(name, why=f"{type(error).__name__}: {plain(error, 120)}")
    breaks, skipped = len(counters["graph_break"]), counters["inductor"]["cudagraph_skips"]
    left = [f"graph breaks of {counted(breaks, 'kind')}"] if breaks else []
    left += [f"{skipped} without a CUDA graph"] if skipped else []
    times, ratio = timed({"eager": _with_inputs(eager, turn), name: way})
    return msgspec.structs.replace(times[name], why=", ".join(left), ratio=ratio[0])


def _with_inputs(target: Any, turn: Iterator[Any]) -> Callable[[], Any]:
    def once() -> Any:
        arguments, named = next(turn)
        return target(*arguments, **named)

    return once


def timed(ways: dict[str, Callable[[], Any]]) -> tuple[dict[str, Times], tuple[float, float, float]]:
    """The time of each of two ways, in turn in the same rounds, and the first one's over the other's."""
    from microbench.capture.tensors import synchronize

    counts = {}
    for name, way in ways.items():
        for _ in range(3):
            way()
        synchronize()
        began = time.perf_counter()
        for _ in range(3):
            way()
        synchronize()
        counts[name] = max(int(ROUND_S * 3 / max(time.perf_counter() - began, 1e-6)), 3)
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            synchronize()
            began = time.perf_counter()
            for _ in range(counts[name]):
                way()
            synchronize()
            rounds[name].append((time.perf_counter() - began) / counts[name])
    times = {name: Times(name, statistics.median(each), min(each), max(each)) for name, each in rounds.items()}
    ratios = sorted(one / other for one, other in zip(*rounds.values(), strict=True))
    return times, (statistics.median(ratios), ratios[0], ratios[-1])


def _read_in_place(start: Any, eager: Any, inputs: Any, seed: int) -> tuple[list[Any], list[str]]:
    """Tensors that the function reads where they are, and that it does not write to, with other values for each set.

    Parameters, buffers and an optimizer's state are not among them.
    """
    from microbench.capture.graphed import MODULE, OPTIMIZER, TENSOR, described, is_tensor, marked, on_gpu, was_written
    from microbench.capture.proof import INPUTS, draw, generator
    from microbench.capture.tensors import clone, fill

    random = generator(seed + 1)  # or what is computed from the inputs may get values as if it had been
    held: set[int] = set()
    for one in start.reached.objects:
        if isinstance(one, MODULE):
            held |= {id(each) for each in (*one.parameters(), *one.buffers())}
        if isinstance(one, OPTIMIZER):
            held |= {id(each) for state in one.state.values() for each in state.values()}
    passed: list[Any] = []
    described(inputs, passed)
    held |= {id(one) for one in passed}
    chosen = {
        name: one
        for name, one in start.reached.ends.items()
        if is_tensor(one) and on_gpu(one) and id(one) not in held and not name.endswith(".grad")
        and not (isinstance(one, TENSOR) and one.requires_grad)
    }  # fmt: skip
    for one in chosen.values():
        if not isinstance(one, TENSOR):  # whose values alone show that it was written to
            fill(one, draw(one, random))
    marks = {name: marked(one) for name, one in chosen.items()}
    eager(*inputs[0], **inputs[1])
    chosen = {name: one for name, one in chosen.items() if not was_written(one, marks[name])}
    start.restore()
    values = [
        [(one, clone(one) if not number else draw(one, random)) for one in chosen.values()] for number in range(INPUTS)
    ]
    return (values if chosen else []), list(chosen)


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _inputs(one: Any) -> Any:
    """A set of inputs as arguments: a tuple is positional, a dictionary by name, all else the only argument."""
    if isinstance(one, tuple):
        return one, {}
    return ((), one) if isinstance(one, dict) else ((one,), {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

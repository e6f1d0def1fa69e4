"""The functions that `import microbench` gives: run, measure, load, compare, predict, constants, diagnose, watch, …

Nothing heavy is imported before a function is called. Whatever goes wrong is a MicrobenchError, with its cause and what
to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from microbench.diagnosis.counts import Counts
    from microbench.library.constants import MachineConstants
    from microbench.library.recordings import Recording
    from microbench.library.results import RecordedRun
    from microbench.library.verdicts import ComparedRuns, DiagnosedTraces, PredictedStep
    from microbench.model.workload import Workload
    from microbench.session.messages import Event, Listener
    from microbench.session.session import RunResult

Value = int | str
Of = TypeVar("Of", str, int | str, int | str | float)


def run(
    *names: str,
    quick: bool = False,
    full: bool = False,
    axes: Mapping[str, Value | Sequence[Value]] | None = None,
    device: str | None = None,
    rounds: int = 1,
    to_compare: bool = False,
    time_limit_s: float | None = None,
    out: str | Path | None = None,
    into: RecordedRun | str | Path | None = None,
    resume: RecordedRun | str | Path | None = None,
    label: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> RecordedRun:
    """Measure suites or benchmarks on this machine, everything without names, and save the run.

    ``axes`` sets the values of axes as ``--set`` does: ``{"duration": ["1us", "5us"]}``. All other arguments are those
    of `microbench run`. ``progress`` is called as ``progress(done, total, case)`` after each case; otherwise nothing is
    shown meanwhile. Ctrl-C ends the run, saves it, and raises KeyboardInterrupt with the name to resume.
    """
    from microbench.library.options import RunOptions
    from microbench.library.runs import measured

    asked = RunOptions(
        names=names, quick=quick, full=full, axes={name: _several(value) for name, value in (axes or {}).items()},
        device=device, rounds=rounds, to_compare=to_compare, time_limit_s=time_limit_s,
        out=None if out is None else Path(out), into=_name(into), resume=_name(resume), label=label,
    )  # fmt: skip
    return _recorded(measured(asked, _listener(progress)))


def measure(
    target: Callable[..., object] | str,
    *,
    setup: Callable[..., object] | str | None = None,
    axes: Mapping[str, Value | float | Sequence[Value | float]] | None = None,
    grid: Value | Sequence[Value] | None = None,
    block: Value | Sequence[Value] | None = None,
    args: str | Sequence[Value | float] = (),
    shared: Value | None = None,
    bytes: Value | None = None,
    flop: Value | None = None,
    precision: str = "fp32",
    cooperative: bool = False,
    options: str | Sequence[str] = (),
    device: str | None = None,
    rounds: int = 1,
    limit: str | None = None,
    out: str | Path | None = None,
    into: RecordedRun | str | Path | None = None,
    label: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> RecordedRun:
    """Measure a function or kernel of your own as `microbench measure` does, and save the run.

    ``target`` is a function of a module, or the text that names one: ``"train.py::step"``, ``"mypackage.steps:step"``,
    or the kernel ``"kernels.cu:saxpy"``. Worker processes import it by its name, so that a lambda and a function that a
    notebook defines are refused. ``setup`` returns the arguments, ``axes`` are parameters with their values:
    ``{"batch": [1, 8, 64]}``. ``bytes`` and ``flop`` are what one launch or call moves and computes: a number, a size
    such as ``"12MiB"``, or a formula of the axes; rates in B/s and FLOP/s follow from them. A kernel needs ``grid`` and
    ``block``; ``args`` are its arguments in order, such as ``["f32[1<<20]", "2.0f"]``, and ``options`` those of the
    compiler. All other arguments are those of the command; ``progress`` and Ctrl-C are as in ``run``.
    """
    from microbench.library.options import OwnOptions
    from microbench.library.own import measured_own, text_of

    asked = OwnOptions(
        setup=None if setup is None else text_of(setup),
        axes={name: _several(value) for name, value in (axes or {}).items()},
        grid=_formula(grid), block=_formula(block), args=tuple(map(str, _several(args))), shared=_formula(shared),
        bytes=_formula(bytes), flop=_formula(flop), precision=precision, cooperative=cooperative,
        options=_several(options), device=device, rounds=rounds, limit=limit, out=None if out is None else Path(out),
        into=_name(into), label=label,
    )  # fmt: skip
    return _recorded(measured_own(text_of(target), asked, _listener(progress)))


def graphed(
    function: Callable[..., Any] | None = None,
    *,
    warm_up: int = 3,
    most: int = 4,
    copies: bool = True,
    also: Callable[[], object] | None = None,
    check: int = 0,
) -> Any:
    """Make a function of PyTorch, CuPy, Numba or cuda.core run as a CUDA graph: ``step = mb.graphed(step)``, or
    ``@mb.graphed``.

    The first calls run as before (``warm_up``), the next is captured, the others are replayed. A call is captured again
    if an input has another shape, stride, type or device, or if something else is new by which the host decides:
    arguments that are no tensors (plain data by what it holds, if other objects come each time); what the function's
    code names of its module, closure, objects, classes, layers, other modules and the environment; an optimizer's
    settings; grad mode, autocast and the default type; what ``also()`` returns. After ``most`` graphs such calls run
    without one.
    ``counts`` of what is returned says how often each happened, ``reasons`` why a call was not replayed.

    What a call returns is a copy without a gradient, so backward() belongs into the function; with ``copies=False`` it
    is the graph's own memory, which the next call overwrites. The first ``check`` calls are also made by the function
    itself, from the same state, and compared. `microbench graph` proves whether a function suits.

    Raises RuntimeError at the first call that cannot be captured or differs. Source: "CUDA Graphs" in PyTorch's notes
    on CUDA semantics.
    """
    from microbench.capture.graphed import Graphed

    def made(own: Callable[..., Any]) -> Any:
        graph = Graphed(own, warm_up, most, copies, also or (lambda: None))
        if not check:
            return graph
        from microbench.capture.proof import checked

        return checked(own, graph, check)

    return made if function is None else made(function)


def _recorded(result: RunResult) -> RecordedRun:
    """The run that was measured. Raises KeyboardInterrupt if Ctrl-C ended it."""
    from microbench.core.errors import ExitCode
    from microbench.library.results import RecordedRun

    if result.exit_code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt(f"the run is saved: microbench.run(resume={str(result.path)!r}) measures the rest")
    return RecordedRun(result.path, result.run)


def _several(value: Of | Sequence[Of]) -> tuple[Of, ...]:
    return (value,) if isinstance(value, int | float | str) else tuple(value)


def _formula(value: Value | Sequence[Value] | None) -> str | None:
    """A size, or the sizes of a grid or block, as a case's parameters hold them."""
    return None if value is None else ",".join(map(str, _several(value)))


def _listener(progress: Callable[[int, int, str], None] | None) -> Listener:
    """A listener of a run's events that counts the cases for ``progress``."""
    from microbench.session.messages import CaseDone, PlanMade

    done = total = 0

    def hear(event: Event) -> None:
        nonlocal done, total
        if isinstance(event, PlanMade):
            total = event.total_cases
        elif isinstance(event, CaseDone) and progress is not None:
            done += 1
            progress(done, total, event.outcome.case.id)

    return hear


def load(name: str | Path | None = None) -> RecordedRun:
    """Load a run: a bundled one ("nvidia-h200"), a file, a label, or the beginning of an id; else the last one."""
    from microbench.library import runs
    from microbench.library.results import RecordedRun

    called = _name(name)
    return RecordedRun(*runs.load(called), called)


def compare(
    base: RecordedRun | str | Path, new: RecordedRun | str | Path | None = None, *, same_within: str = "3%"
) -> ComparedRuns:
    """Compare two runs, the second of which is the last run by default, and say which suites and figures changed.

    A figure is the same if the interval of its change stays within ``same_within``. A verdict needs five rounds of each
    run: ``run(…, to_compare=True)``.
    """
    from microbench.library.answers import compared, share_of
    from microbench.library.verdicts import ComparedRuns

    return ComparedRuns(compared(str(_name(base)), _name(new), share_of(same_within)))


def predict(
    step: Workload | str | Path | None = None,
    *,
    kernels: int | None = None,
    duration: str | None = None,
    layer: str | None = None,
    arguments: int | None = None,
    syncs_per_step: int | None = None,
    copy_in: str | None = None,
    copy_out: str | None = None,
    streams: int | None = None,
    replays: int | None = None,
    host: str | None = None,
    blocks: int | None = None,
    sm_share: float | None = None,
    run: RecordedRun | str | Path | None = None,
) -> PredictedStep:
    """Predict how long a step of work takes, in a stream and as a graph, what limits it, and what to change first.

    ``step`` is a Workload, a .toml file or the name of an example; or describe it by the other arguments, which are
    those of `microbench predict`: ``predict(kernels=1100, duration="6us", layer="torch")``. The costs are those of
    ``run``; by default of the last run that has them, else of a bundled one.
    """
    from microbench.core.errors import UsageError
    from microbench.library.answers import described, predicted
    from microbench.library.verdicts import PredictedStep
    from microbench.model.workload import StepOptions, Workload

    options = StepOptions(
        kernels, duration, layer, arguments, syncs_per_step, copy_in, copy_out, streams, replays, host, blocks, sm_share
    )
    if not isinstance(step, Workload):
        step = described(step, options)
    elif options != StepOptions():
        raise UsageError("a Workload cannot be combined with options of a step", "put them into the Workload")
    return PredictedStep(predicted(step, _name(run)))


def constants(run: RecordedRun | str | Path | None = None, *, nearest: bool = True) -> MachineConstants:
    """The constants of a machine by name, in SI base units: ``mb.constants()["launch.loop.0"].value``.

    Costs of launches, graphs, copies, waits and allocations, rates, and from which size or number on one way pays. They
    are those of ``run``: a file of `microbench constants`, which is read without anything else, or a run; by default of
    the last run from which ``predict`` takes its costs, else of a bundled one. Then ``source`` says so; with
    ``nearest=False`` that raises RunUnreadableError.
    """
    from microbench.library.constants import made, read

    name = _name(run)
    found = read(name) if name is not None else None
    return made(name, nearest=nearest) if found is None else found


def diagnose(
    *traces: str | Path,
    step: str | None = None,
    run: RecordedRun | str | Path | None = None,
    begin: str | None = None,
    end: str | None = None,
) -> DiagnosedTraces:
    """Say why the GPU waits in a profiler's trace, and what a CUDA graph would give.

    Reads traces of torch.profiler, Nsight Systems and JAX, recordings of `microbench watch`, and folders of them.
    ``step`` is the true time of a step, such as "1.93ms", or the function whose call is one, like "train.py:step".
    ``begin`` and ``end`` cut the trace by times after its first event. The costs are those of ``run``; by default of
    the last run that has them, else of a bundled one.
    """
    from microbench.core.errors import UsageError
    from microbench.library.answers import diagnosed
    from microbench.library.verdicts import DiagnosedTraces
    from microbench.model.step_file import typed_seconds

    if not traces:
        raise UsageError("no trace is given", "give files or folders of traces")
    begin_s, end_s = (typed_seconds(*each) for each in (("begin", begin), ("end", end)))
    return DiagnosedTraces(diagnosed([Path(one) for one in traces], _name(run), step, begin_s, end_s))


def watch(path: str | Path | None = None, *, stacks: bool = False) -> Recording:
    """Record what a block of this process submits to the GPU: ``with microbench.watch() as recording: step()``.

    ``path`` is that of a new file; without it the recording is temporary. With ``stacks`` the recording also says in
    which lines and functions of Python its threads were. The block begins with a UsageError where it cannot be
    recorded.
    """
    from microbench.library.recordings import Recording

    return Recording(path, stacks=stacks)


def counts(function: Callable[..., object], *arguments: object, **named: object) -> Counts:
    """Count what a call of a function submits to the GPU and waits for: ``mb.counts(step, batch).figures["launches"]``.

    The function is called four times, and then recorded three times; each count is the median of these. One that is
    async is awaited, and a generator exhausted. Counts do not depend on the time that anything takes, so they hold on a
    busy machine. The call raises a UsageError where this process cannot be recorded, and if the function submits
    nothing.
    """
    from functools import partial

    from microbench.core.calls import run_whole
    from microbench.library.recordings import counted_call

    return counted_call(run_whole(partial(function, *arguments, **named), function))


def trace_handler(folder: str | Path = "traces", *, step: str | None = None) -> Callable[[Any], None]:
    """A handler for torch.profiler: ``profile(on_trace_ready=mb.trace_handler())``.

    It saves each trace to a new file in ``folder`` and shows its diagnosis on standard error. ``step`` is as in
    ``diagnose``. A trace that cannot be diagnosed says why, and the program goes on.
    """
    from functools import partial

    from microbench.library.recordings import handle

    return partial(handle, Path(folder), step)  # which another process may get


def lightning_callback(*, steps: int = 20, after: int = 10, path: str | Path | None = None) -> Any:
    """A callback for Lightning: ``Trainer(callbacks=[mb.lightning_callback()])``.

    It records ``steps`` training batches behind the first ``after`` as ``watch`` does, to ``path`` if that is given,
    and shows their diagnosis on standard error. Where they cannot be recorded it says why, and training goes on. Raises
    UsageError without Lightning.
    """
    from microbench.library.recordings import Window, of_lightning

    return of_lightning(Window(steps, after, path))


def trainer_callback(*, steps: int = 20, after: int = 10, path: str | Path | None = None) -> Any:
    """A callback for transformers: ``Trainer(…, callbacks=[mb.trainer_callback()])``; as ``lightning_callback``."""
    from microbench.library.recordings import Window, of_transformers

    return of_transformers(Window(steps, after, path))


def _name(run: RecordedRun | str | Path | None) -> str | None:
    """The name by which a run is found. For a RecordedRun this is its own name, or its file if that name leads
    elsewhere.
    """
    if run is None or isinstance(run, str | Path):
        return None if run is None else str(run)
    from microbench.archive import store
    from microbench.core.errors import RunUnreadableError

    with suppress(RunUnreadableError):
        if store.find(run.name) == run.path:
            return run.name
    return str(run.path)

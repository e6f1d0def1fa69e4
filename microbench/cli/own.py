"""The commands measure, graph and ab: a user's own kernel or function, and two versions or surroundings of one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from microbench.cli import share
from microbench.cli.options import ANSWER, FAIL_ON, JSON, SAME_WITHIN, WHY, FailOn, Picture, Without
from microbench.cli.output import draw, print_bytes, print_json, progress, tell
from microbench.core.errors import ExitCode, UsageError
from microbench.core.model import Param
from microbench.core.options import REQUIRED, argument, flag, option
from microbench.core.units import plain
from microbench.library.options import SET, OwnOptions, overrides_of, own_axes
from microbench.library.runs import screen_of

# Options of measure that ab has not: it saves nothing, and rates follow from times.
NEITHER = ("rounds", "out", "into", "label", "bytes", "flop", "precision")
SIDE = (
    "NAME=VALUE[,NAME=VALUE], a Python or virtual environment that has microbench, or FILE.py::FUNCTION and what else "
    "measure takes"
)


def measure(
    what: str = argument("TARGET", "FILE.cu:KERNEL, FILE.py::FUNCTION or MODULE:FUNCTION, from the current folder."),
    *,
    asked: OwnOptions,
    counts: bool = flag("Also show the counts of a call: launches, kernels by family, copies."),
    json: bool = JSON,
    why: bool = WHY,
) -> int:
    """Measure a kernel or function of your own: its time, its launches, what limits it, what a graph gives.

    A function is timed, captured into a CUDA graph and compared with its replays; if the capture fails, the line that
    stops it is named. A kernel of a .cu file is compiled and timed. Rates are compared with the measured ceilings.
    """
    from microbench.diagnosis.changed import Side
    from microbench.explain.own import OWN_PARAMETERS
    from microbench.library.own import counts_of, measured_own
    from microbench.report.sheets.counts import counts_screen

    with progress() as listener:
        result = measured_own(what, asked, listener)
    if json:
        print_bytes(share.exported(result.run, "json"))
        return result.exit_code
    draw(screen_of(result.run, result.path), why=why)
    for name, counted in counts_of(result.run) if counts else ():
        draw(counts_screen(Side(name, counted)))
    lines = []  # which cases of the newest session have no figures
    for each in result.run.outcomes:
        if each.session == len(result.run.sessions) - 1 and each.status != "ok":
            axes = (f"{name}={value}" for name, value in each.case.params.items() if name not in OWN_PARAMETERS)
            words = (each.status.replace("_", " "), plain(" ".join(axes), 80), plain(each.reason, 400))
            lines.append(": ".join(filter(None, words)))
    tell([*dict.fromkeys(lines), f"saved: {result.path}"])
    return result.exit_code


def graph(
    what: str = argument("TARGET", "FILE.py::FUNCTION or MODULE:FUNCTION, from the current folder."),
    *,
    setup: str | None = option("TARGET", "A function that gets the axes it names and returns the arguments."),
    inputs: str | None = option("TARGET", "A function that returns several sets of arguments; default: drawn anew."),
    axes: Mapping[str, Sequence[Any]] | None = option(
        "NAME=VALUES", "Values of a parameter: batch=1,8,64. Repeatable; one may have several.", "--axis", read=own_axes
    ),
    compile: bool = flag("Time torch.compile too, which takes a minute or more; results are not compared."),
    out: Path | None = option("FOLDER", "Write the diff and the helper file to this new folder.", "-o", "--out"),
    apply: bool = flag("Change the file itself, which must be committed in git."),
    limit: str | None = option("TIME", "End it after this time: 5min; default: 10 minutes."),
    json: bool = ANSWER,
) -> int:
    """Make a CUDA graph of a function, prove that it computes the same, and show the change.

    The function is one of PyTorch, CuPy, Numba or cuda.core. It is called some hundred times. Each call that stops a
    capture is named, with its line and what to change. The graph is compared with the function: 200 calls from the same
    start, with inputs that differ, other work between the calls and values of the host changed. Then both are timed,
    and the change of the file is run and proved as well. If calls are in the way, graphs of what lies between them are
    tried. With several values of an axis, each gets its graph and its times. The exit code is 0 if a change is proved,
    else 1.
    """
    import msgspec

    from microbench.core.units import typed_time
    from microbench.library.graphs import LIMIT_S, make_graph, write_change
    from microbench.report.sheets import graph as drawing

    chosen = {name: str(values[0]) for name, values in (axes or {}).items()}
    several = [name for name, values in (axes or {}).items() if len(values) > 1]
    if len(several) > 1:
        raise UsageError(f"--axis {several[0]} and {several[1]} have several values", "give several to one of them")
    limit_s = typed_time(limit, 86400.0) if limit is not None else LIMIT_S

    def progress(stage: str) -> None:
        tell([f"… {stage}"], error=True)

    made = make_graph(what, setup or "", inputs or "", chosen, compile, limit_s, progress)
    along = {f"{several[0]}={chosen[several[0]]}": made.report} if several else {}
    for value in (axes or {})[several[0]][1:] if several else ():
        progress(name := f"{several[0]}={value}")
        other = {**chosen, several[0]: str(value)}
        along[name] = make_graph(what, setup or "", inputs or "", other, False, limit_s, progress, False).report
    again, ratio = made.again, (made.report if made.report.proved else made.again or made.report).ratio
    change = made.change if made.proved and (ratio is None or ratio[0] > 1) else None
    written = write_change(change, out, apply) if change is not None and (out or apply) else []
    if json:
        answer = {
            "function": made.what, "proved": made.proved, "report": msgspec.to_builtins(made.report),
            "diff": made.change.diff if made.change is not None and (change or not made.proved) else None,
            "changed_file": msgspec.to_builtins(again) if again is not None else None,
            "written": [str(one) for one in written],
        }  # fmt: skip
        print_json(answer | ({"axis": msgspec.to_builtins(along)} if along else {}))
    else:
        draw(drawing.screen(made, along))
        if change is not None:
            if not written:
                tell(["", *change.diff.splitlines(), ""])
                named = [*(["--setup", setup] if setup else []), *(["--inputs", inputs] if inputs else [])]
                command = " ".join(["microbench graph", what, *named])
                tell([f"more: {command} -o FOLDER writes both files, --apply changes yours"])
            tell([f"written: {path}" for path in written])
        elif made.proved and made.change is not None:
            tell(["no change is handed over, because it is not faster"])
    return ExitCode.MEASURED if made.proved else ExitCode.SOME_FAILED


def ab(
    names: Sequence[str] = argument(
        "[SUITE|BENCHMARK]...", "What to measure, in its quick values; default: the core.", (), read=tuple
    ),
    *,
    a: str = option("SIDE", f"{SIDE}; default: this Python as it is.", "-A", default=""),
    b: str = option("SIDE", "The side to judge, named the same way.", "-B", default=REQUIRED),
    rounds: int = option("N", "Measure each side at most N times, 6 or more.", default=10),
    values: Mapping[str, Sequence[Param]] | None = option(*SET, read=overrides_of),
    asked: Annotated[OwnOptions, *map(Without, NEITHER)],
    fail_on: FailOn | None = FAIL_ON,
    same_within: str = SAME_WITHIN,
    json: bool = ANSWER,
    picture: Picture,
) -> int:
    """Measure two sides in turn, A B, B A, …, and say which figures differ.

    Each round is a fresh process. What the host does to both of a pair falls out of their ratio. It stops when the
    figures are decided, or at the first change that --fail-on names. Two equal sides are called different in at most 1
    of 100 measurements. Nothing is saved.
    """
    from microbench.library.answers import fails, share_of
    from microbench.library.own import answer, compared_in_turn
    from microbench.report.sheets.comparison import in_turn_sheet

    within = share_of(same_within)
    with progress() as listener:
        a, b, found = compared_in_turn((a, b), names, values or {}, rounds, asked, within, fail_on, listener)
    if json:
        print_json(answer(a, b, found))
    else:
        draw(in_turn_sheet(found, a, b), picture, brief=True)
    return ExitCode.CHANGED if fail_on is not None and fails(found.comparison, fail_on) else ExitCode.MEASURED

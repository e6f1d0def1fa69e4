"""Lays out what came of a function's graph: proved or not, its gain, what was varied, and the change."""

from collections.abc import Mapping
from types import MappingProxyType

from microbench.capture.making import Made, Report, Times
from microbench.core.units import as_time, plain, size, times
from microbench.report.document import AnswerLine, Block, Cell, Screen

SHOWN, LONGEST = 6, 160
NAMES = {
    "item": "reads", "to_host": "copies", "to_gpu": "copies", "sizes": "sizes", "wait": "waits", "print": "prints",
    "file": "writes", "capturable": "optimizer",
}  # fmt: skip


def screen(made: Made, along: Mapping[str, Report] = MappingProxyType({})) -> Screen:
    """One screen: the verdict, the gain, and what to change; with ``along`` the gain for each value of an axis."""
    report = made.report
    lines = [*_lines(made), *(_value(name, one) for name, one in along.items())]
    pays = [name for name, one in along.items() if one.ratio is not None and one.ratio[1] > 1]
    if pays and pays[-1] != list(along)[-1]:
        lines.append(AnswerLine("gain ends", (Cell(f"after {pays[-1]}"),)))
    return Screen(blocks=(Block(plain(made.what), (report.gpu,) if report.gpu else (), tuple(lines)),))


def _lines(made: Made) -> list[AnswerLine]:
    report = made.report
    if report.error:
        return [AnswerLine("verdict", (Cell(f"No graph: {report.error}"),), verdict="problem")]
    if report.blockers:
        return [*_blocked(report), *(_parts(made) if made.change is not None else ())]
    if not report.proved:
        why = f"Not safe as a graph: {report.why}" if report.difference else f"No graph: {report.why}"
        lines = [AnswerLine("verdict", (Cell(why),), verdict="problem")]
        return lines + ([AnswerLine("differs", (Cell(report.difference),))] if report.difference else [])
    state = f", and {report.state} values of state at the end" if report.state else ""
    lines = [
        AnswerLine(
            "verdict",
            (Cell(f"Proved: {report.calls} calls as a graph equal the eager ones {_same(report)}"),),
            verdict="good",
        )
    ]
    if report.ratio is not None:
        eager, graph = report.times[0], report.times[1]
        gain = Cell(f"{_gain(report)} as a graph")
        saved_s = eager.median_s - graph.median_s
        pays = (
            f"capture takes {as_time(report.capture_s)}, pays off after {int(report.capture_s / saved_s) + 4} calls"
            if saved_s > 0 else "the graph is not faster"
        )  # fmt: skip
        memory = f"{size(report.memory_bytes)} more memory"
        lines.append(AnswerLine("gain", (gain, Cell(pays), Cell(memory)), verdict="good" if saved_s > 0 else "warning"))
    for one in report.times[2:]:
        lines.append(AnswerLine("or", (Cell(f"{one.name}: {one.why or _time(one)}"),)))
    compared = f"{report.outputs} outputs and inputs of each call{state}"
    lines.append(AnswerLine("compared", (Cell(compared), Cell("with other work and allocations between the calls"))))
    if report.varied:
        lines.append(AnswerLine("varied", tuple(Cell(plain(one, 60)) for one in report.varied[: 2 * SHOWN])))
    left = [*report.left, "other shapes", "several GPUs"]
    lines.append(AnswerLine("not varied", tuple(Cell(plain(one, 60)) for one in left)))
    if made.change is None:
        lines.append(AnswerLine("change", (Cell("step = microbench.graphed(step), where the function is made"),)))
    elif made.again is not None and made.again.proved:
        lines.append(AnswerLine("change", (Cell("the changed file was run and proved as well"),), verdict="good"))
    elif made.again is not None:
        again = made.again
        why = again.error or again.why or "; ".join(f"{one.call} {one.line}" for one in again.blockers)
        lines.append(AnswerLine("change", (Cell(f"the changed file is not proved: {why}"),), verdict="problem"))
    return lines


def _blocked(report: Report) -> list[AnswerLine]:
    number = len(report.blockers)
    title = f"No graph yet: {number} call{' is' if number == 1 else 's are'} in the way"
    lines = [AnswerLine("verdict", (Cell(title),), verdict="problem")]
    for one in report.blockers[: 2 * SHOWN]:
        often = f", {one.times} times" if one.times > 1 else ""
        where = plain(one.line, LONGEST) or one.call
        lines.append(
            AnswerLine(
                NAMES.get(one.kind, one.call), (Cell(f"{where}{often}: {one.why}"), Cell(one.advice)), verdict="advice"
            )
        )
    rest, eager = report.rest, report.times[0] if report.times else None
    if rest is not None and not rest.why and eager is not None:
        ratio = times(eager.median_s / rest.median_s)
        gain = f"without them a graph takes {_time(rest)} instead of {_time(eager)}: {ratio}"
        lines.append(AnswerLine("gain", (Cell(gain),)))
    elif rest is not None:
        lines.append(
            AnswerLine("also", (Cell(f"without them it cannot be captured either: {rest.why}"),), verdict="warning")
        )
    return lines


def _parts(made: Made) -> list[AnswerLine]:
    """What graphs of the parts give between calls that stay."""
    assert made.change is not None
    assert made.again is not None
    again, number = made.again, len(made.change.parts)
    title = f"keep them: {number} graph{'' if number == 1 else 's'} of what lies between"
    if not again.proved or again.ratio is None:
        why = again.error or again.why or again.stage
        return [AnswerLine("or", (Cell(f"{title}: not proved: {why}"),), verdict="warning")]
    gain = Cell(f"{_gain(again)} so")
    proof = Cell(f"proved: {again.calls} calls equal the eager ones {_same(again)}")
    return [AnswerLine("or", (Cell(title), gain, proof), verdict="good" if again.ratio[0] > 1 else "warning")]


def _value(name: str, report: Report) -> AnswerLine:
    """The gain for one value of an axis, or why there is none."""
    if not report.proved or report.ratio is None:
        number = len(report.blockers)
        why = report.error or report.why or f"{number} call{' is' if number == 1 else 's are'} in the way"
        return AnswerLine(plain(name, 20), (Cell(f"no graph: {why}"),), verdict="problem")
    cells = Cell(f"{_gain(report)} as a graph"), Cell(f"{size(report.memory_bytes)} more memory")
    return AnswerLine(plain(name, 20), cells, verdict="good" if report.ratio[1] > 1 else "warning")


def _same(report: Report) -> str:
    return f"{'bit by bit' if report.exact else 'within'} {report.scatter}".rstrip()


def _gain(report: Report) -> str:
    assert report.ratio is not None
    ratio, low, high = report.ratio
    eager, graph = report.times[0], report.times[1]
    return f"{times(ratio)} as fast ({times(low)} to {times(high)}): {_time(eager)} eager, {_time(graph)}"


def _time(one: Times) -> str:
    return as_time(one.median_s)

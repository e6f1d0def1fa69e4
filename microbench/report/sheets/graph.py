"""Lays out what came of a function's graph: proved or not, its gain, what was varied, and the change."""

from collections.abc import Mapping
from types import MappingProxyType

from microbench.analysis.evidence import Severity
from microbench.capture.making import Made, Report, Stop, Times
from microbench.core.units import as_time, plain, short_size, times
from microbench.report.document import AnswerLine, Block, Screen, answer_line

SHOWN, LONGEST = 6, 160
MORE = 1.1  # so much faster than the graph is another way worth its line
NAMES = {
    "item": "reads", "to_host": "copies", "to_gpu": "copies", "sizes": "sizes", "wait": "waits", "print": "prints",
    "file": "writes", "capturable": "optimizer", "setting": "optimizer", "library": "calls", "stream": "stream",
}  # fmt: skip
# What to change where calls cannot be replayed, by words of the reason.
IN_PLACE = "keep it in a tensor on the GPU that is written in place, or change it outside of the function"
CHANGES = {
    "random numbers of": "draw them on the GPU (device='cuda'), or pass them in as tensors",
    "what the iterator": "take from it outside of the function, and pass in what it yields",
    "an input is a tensor of the host": "pass it on the GPU; where sizes follow from its values, pad to a fixed size",
    "may compare its argument": "pass its tensors, or a dictionary of them, in place of the object",
    "each call changes its arguments": "leave them as they are: batch['labels'], not batch.pop('labels')",
    "each call changes": IN_PLACE,
    "beside PyTorch's": "work in PyTorch's: cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)",
    " stream": "give all work of the step one stream that is no default one",
    "another value in too many calls": IN_PLACE,
    "other values in too many calls": IN_PLACE,
}


def screen(made: Made, along: Mapping[str, Report] = MappingProxyType({})) -> Screen:
    """One screen: the verdict, the gain, and what to change; with ``along`` the gain for each value of an axis."""
    report = made.report
    lines = [*_lines(made), *(_value(plain(name, 20), one) for name, one in along.items())]
    pays = [name for name, one in along.items() if one.ratio is not None and one.ratio[1] > 1]
    if pays and pays[-1] != list(along)[-1]:
        lines.append(answer_line("gain ends", f"after {pays[-1]}"))
    return Screen(blocks=(Block(plain(made.what), (report.gpu,) if report.gpu else (), tuple(lines)),))


def _lines(made: Made) -> list[AnswerLine]:
    report = made.report
    if report.error:
        return [answer_line("verdict", f"No graph: {report.error}", verdict="problem")]
    if report.blockers:
        return [*_blocked(report), *([_parts(made)] if made.change is not None else ()), *_compiled(made)]
    if not report.proved:
        why = f"Not safe as a graph: {report.why}" if report.difference else f"No graph: {report.why}"
        lines = [answer_line("verdict", why, verdict="problem")]
        lines += [answer_line("differs", report.difference)] if report.difference else []
        change = next((change for word, change in CHANGES.items() if word in report.why and not report.difference), "")
        return [*lines, *([answer_line("next", change, verdict="advice")] if change else ()), *_compiled(made)]
    proved = f"Proved: {report.calls} calls as a graph equal the eager ones {_same(report)}"
    lines = [answer_line("verdict", proved, verdict="good")]
    if report.ratio is not None:
        saved_s, sure = report.times[0].median_s - report.times[1].median_s, report.ratio[1] > 1
        calls = int(report.capture_s / (saved_s or 1)) + 4
        pays = f"capture takes {as_time(report.capture_s)}, pays off after {calls} calls"
        gain = (
            f"{_gain(report)} as a graph",
            pays if sure else "in some rounds the graph was not faster",
            _memory(report),
        )
        lines.append(answer_line("gain", *gain, verdict="good" if sure else "warning"))
    lines += _compiled(made)
    state = f", and {report.state} values of state at the end" if report.state else ""
    compared = f"{report.outputs} outputs and inputs of each of these calls{state}"
    lines.append(answer_line("compared", compared, "with other work and allocations between the calls"))
    left = [*report.left, "other shapes", "several GPUs"]
    for name, varied in (("varied", report.varied[: 2 * SHOWN]), ("not varied", left)):
        lines += [answer_line(name, *(plain(one, 60) for one in varied))] if varied else []
    if made.change is None:
        lines.append(answer_line("change", "step = microbench.graphed(step), where the function is made"))
    elif made.again is not None and made.again.proved:
        lines.append(answer_line("change", "the changed file was run and proved as well", verdict="good"))
    elif made.again is not None:
        again = made.again
        why = (
            again.error
            or again.why
            or "; ".join(f"{one.call} {one.line} {one.within}".rstrip() for one in again.blockers)
        )
        lines.append(answer_line("change", f"the changed file is not proved: {why}", verdict="problem"))
    return lines


def _compiled(made: Made) -> list[AnswerLine]:
    """What torch.compile gives. Where it is clearly faster than a proved graph, the line of code for it, too."""
    report = made.report
    lines = []
    graph = max([1.0, *(of.ratio[0] for of in (report, made.again) if of is not None and of.proved and of.ratio)])
    for one in report.times:
        if one.name.startswith("torch.compile"):
            gain = f"{times(one.ratio)} as fast as eager: {_time(one)}" if one.median_s else ""
            better = one.ratio > MORE * graph
            line = f'torch.compile(step, mode="{one.name.partition(", ")[2]}"), results not compared' if better else ""
            said = f"{one.name}: {', '.join(filter(None, (gain, one.why)))}"
            lines.append(answer_line("or", said, *filter(None, (line,))))
    return lines


def _in_the_way(report: Report) -> str:
    number = len(report.blockers)
    return f"{number} call{' is' if number == 1 else 's are'} in the way"


def _blocked(report: Report) -> list[AnswerLine]:
    lines = [answer_line("verdict", f"No graph yet: {_in_the_way(report)}", verdict="problem")]
    together: dict[tuple[str, str, str], list[Stop]] = {}
    for one in report.blockers:  # calls in one file of a library are one thing to change
        file = one.within.partition(":")[0] or f"{one.call} {one.at}"
        together.setdefault((one.kind, one.line, file), []).append(one)
    for (_, line, file), alike in [*together.items()][:SHOWN]:
        one, number = alike[0], sum(each.times for each in alike)
        often = f", {number} times" if number > 1 else ""
        within = one.within
        if len(alike) > 1:
            places = list(dict.fromkeys(each.within.partition(":")[2].partition(" ")[0] for each in alike))
            within = f"{file}:{', '.join(places[:SHOWN])}{', …' if len(places) > SHOWN else ''}" if one.within else ""
        place = ", ".join(filter(None, (plain(line, LONGEST) or one.call, plain(within, LONGEST))))
        lines.append(
            answer_line(NAMES.get(one.kind, one.call), f"{place}{often}: {one.why}", one.advice, verdict="advice")
        )
    if len(together) > SHOWN:
        lines.append(answer_line("also", f"{len(together) - SHOWN} more places, which --json has"))
    rest, eager = report.rest, report.times[0] if report.times else None
    if rest is not None and not rest.why and eager is not None:
        ratio = times(eager.median_s / rest.median_s)
        gain = f"without them a graph takes {_time(rest)} instead of {_time(eager)}: {ratio}"
        lines.append(answer_line("gain", gain))
    elif rest is not None:
        also = f"without them it cannot be captured either: {rest.why}"
        lines.append(answer_line("also", also, verdict="warning"))
    return lines


def _parts(made: Made) -> AnswerLine:
    """What graphs of the parts give between calls that stay."""
    assert made.change is not None
    assert made.again is not None
    again, number = made.again, len(made.change.parts)
    title = f"keep them: {number} graph{'' if number == 1 else 's'} of what lies between"
    if not again.proved or again.ratio is None:
        return answer_line("or", f"{title}: not proved: {again.error or again.why or again.stage}", verdict="warning")
    proof = f"proved: {again.calls} calls equal the eager ones {_same(again)}"
    verdict: Severity = "good" if again.ratio[0] > 1 else "warning"
    return answer_line("or", title, f"{_gain(again)} so", proof, verdict=verdict)


def _value(name: str, report: Report) -> AnswerLine:
    """The gain for one value of an axis, or why there is none."""
    if not report.proved or report.ratio is None:
        return answer_line(name, f"no graph: {report.error or report.why or _in_the_way(report)}", verdict="problem")
    verdict: Severity = "good" if report.ratio[1] > 1 else "warning"
    return answer_line(name, f"{_gain(report)} as a graph", _memory(report), verdict=verdict)


def _memory(report: Report) -> str:
    return f"{short_size(report.memory_bytes)} more memory"


def _same(report: Report) -> str:
    return f"{'bit by bit' if report.exact else 'within'} {report.scatter}".rstrip()


def _gain(report: Report) -> str:
    assert report.ratio is not None
    ratio, low, high = report.ratio
    eager, graph = report.times[:2]
    return f"{times(ratio)} as fast ({times(low)} to {times(high)}): {_time(eager)} eager, {_time(graph)}"


def _time(one: Times) -> str:
    return as_time(one.median_s)

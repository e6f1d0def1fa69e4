"""A step drawn to scale as it is predicted: host, queue, GPU and link, in a stream above the same as a graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from microbench.explain import prediction, timeline
from microbench.explain.chosen_fit import fit_for
from microbench.explain.evidence import sentence
from microbench.explain.forecast import Forecast, Prediction, forecast
from microbench.explain.graph_gain import kernels_in_words
from microbench.model import Run
from microbench.report.curves import nice_step, short
from microbench.report.document import Lane, Mark, Report, Section, Span, TimeLine
from microbench.report.heading import head
from microbench.report.prediction import run_words
from microbench.report.step_lanes import ENGINES, each, merged
from microbench.report.steps import Step
from microbench.submission import acts
from microbench.units import as_time
from microbench.workload import Workload

# A step of so many calls, kernels or copies (twelve kernels and a wait) is drawn whole. Of a longer one the beginning
# is, until so many kernels have run, and the whole in stretches.
MOST_DRAWN = 13
BEGINNING = 8
# Where the first kernel comes later than after this share of the beginning, that begins shortly before it.
LATE, BEFORE = 0.5, 0.1
ABOUT = "to scale; predicted, not a recording; queue: what waits before the GPU"
# Steps that differ by less than this share take equally long.
ALIKE = 0.001
LONGEST_TITLE = 70
BLANK = Lane("", ())


def pictures(one: Forecast, what: str) -> list[TimeLine]:
    """The whole step; of a long one also the beginning, where each part of it can be seen. ``what`` is the step."""
    steps = [_step(one, way) for way in (one.stream, one.graph) if way is not None]
    end_s = max(step.end_s for step in steps)
    if max(step.parts for step in steps) <= MOST_DRAWN:
        lanes = [lane for step in steps for lane in (*each(step), _length(one, step), BLANK)]
        return [_line(f"{sentence(what)}, {_ways(steps)}", 0.0, end_s, lanes)]
    from_s, until_s = _beginning(steps[0])
    first = [lane for step in steps for lane in (*_cut(each(step), from_s, until_s), BLANK)]
    whole = [lane for step in steps for lane in (*merged(step), _length(one, step), BLANK)]
    length = as_time(until_s - from_s)
    title = f"{length} of {what}, from its first kernel on" if from_s else f"The first {length} of {what}"
    return [
        _line(title, from_s, until_s, first),
        _line("The whole step, its calls and kernels in stretches", 0.0, end_s, whole),
    ]


def _step(one: Forecast, prediction: Prediction) -> Step:
    return Step(prediction.way, tuple(acts(one.workload, one.fit.values, prediction.way)), prediction.played)


def in_words(workload: Workload) -> str:
    """The step in words for a title below one that names it."""
    step = timeline.alike(workload)
    return "the step" if step is None else f"a step of {kernels_in_words(step.kernels, step.duration_s)}"


def _ways(steps: Sequence[Step]) -> str:
    return "in a stream and as a graph" if len(steps) > 1 else "in a stream"


def _beginning(stream: Step) -> tuple[float, float]:
    """From when to when the first kernels run, or the first copies where there are none."""
    ran = [span for span in stream.played.work if span.lane == "gpu"] or list(stream.played.work)
    if not ran:
        return 0.0, stream.end_s
    begin_s, until_s = ran[0].begin_s, ran[:BEGINNING][-1].end_s
    return (begin_s - BEFORE * (until_s - begin_s) if begin_s > LATE * until_s else 0.0), until_s


def _line(title: str, from_s: float, until_s: float, lanes: Sequence[Lane]) -> TimeLine:
    """Lanes from 0 at ``from_s`` on; the axis says when that is."""
    length_s = until_s - from_s
    step_s = nice_step(length_s / 5) if length_s > 0 else math.inf
    sign = "+" if from_s else ""
    ticks = [Mark(0.0, as_time(from_s) if from_s else short(0.0, "s"))]
    for index in range(1, int(length_s / step_s) + 1):
        ticks.append(Mark(index * step_s, sign + short(index * step_s, "s")))
    # The last lane is the empty one that parts stream and graph.
    return TimeLine(title, ABOUT, length_s, tuple(ticks), tuple(lanes[:-1]))


def _cut(lanes: Sequence[Lane], from_s: float, until_s: float) -> Iterator[Lane]:
    """What lies in that stretch of time, cut off at both its ends and counted from its begin; no lane of a copy engine
    that does nothing meanwhile."""
    for lane in lanes:
        spans = tuple(
            msgspec.structs.replace(
                span, begin_s=max(span.begin_s - from_s, 0.0), end_s=min(span.end_s, until_s) - from_s
            )
            for span in lane.spans
            if span.begin_s < until_s and span.end_s > from_s
        )
        if spans or lane.name.strip() not in ENGINES:
            yield Lane(lane.name, spans)


def _length(one: Forecast, step: Step) -> Lane:
    """How long the step takes and, where it is shorter than the stream's, what that saves."""
    prediction = one.stream if one.graph is None or step.name == one.stream.way else one.graph
    words = as_time(step.end_s)
    if prediction.step_s < step.end_s * (1 - ALIKE):
        words += f", {as_time(prediction.step_s)} where steps follow one another"
    spans = [Span(0.0, step.end_s, words, "plain", "distance")]
    stream_s = one.stream.played.end_s
    if step.end_s < stream_s:
        spans.append(Span(step.end_s, stream_s, f"−{as_time(stream_s - step.end_s)}", "good", "distance"))
    return Lane("", tuple(spans))


def sheet(run: Run, workload: Workload, *, reference: bool = False, adding: Sequence[str] = ()) -> Report:
    """The step drawn from a run's constants, and what it means, under the heading that says whose they are.

    Raises RunUnreadableError that names what to measure where constants are missing, ``adding`` to the run.
    """
    evidence, found = fit_for(run, workload, adding)
    one = forecast(workload, found)
    told = timeline.findings(evidence, one)
    grounds = prediction.foundations(one, run_words(run), reference=reference, simulated=run.simulated)
    section = Section(
        suite=timeline.SUITE,
        title=f"timeline: {_shortened(prediction.described(workload))}",
        pictures=tuple(pictures(one, in_words(workload))),
        studies=(),
        findings=(*told, *grounds),
    )
    footer = (f"costs from run {run.run_id}", "in figures: microbench predict --help")
    return msgspec.structs.replace(head(run, reference=reference, footer=footer), sections=(section,))


def _shortened(words: str) -> str:
    """At most LONGEST_TITLE of it, ended behind a comma where there is one."""
    if len(words) <= LONGEST_TITLE:
        return words
    cut = words[:LONGEST_TITLE]
    return f"{cut[: cut.rfind(', ')] if ', ' in cut else cut}, …"

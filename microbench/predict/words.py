"""Explains a predicted step: what a graph gives it, what it waits for, how sure that is and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from microbench.analysis.evidence import Finding, Severity, listed
from microbench.analysis.graph_steps import LITTLE, kernels_in_words, title_of
from microbench.core.units import as_time, percent, round_percent, short_size, times
from microbench.predict.constants import OWN_SCATTERS
from microbench.predict.forecast import WORTH, Forecast, Prediction
from microbench.predict.model import Limit
from microbench.predict.workload import Copies, Kernels, Wait, Workload

SUITE = "prediction"
MOST_LISTED = 6
PACES: dict[Limit, str] = {
    "host": "the host sets the pace",
    "front end": "the way to the GPU and the gaps between kernels set the pace",
    "kernel": "the kernels set the pace",
    "link": "the copies set the pace",
    "sync": "waiting sets the pace",
}


def described(workload: Workload) -> str:
    """A step in a few words: "1100 kernels of 6.00 µs from PyTorch eager, 1 wait"; its own title where it has one."""
    if workload.title:
        return workload.title
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    lengths = {length for part in kernels for length in part.durations_s}
    words = f"{workload.kernels} kernels"
    if len(lengths) == 1:
        words = kernels_in_words(workload.kernels, lengths.pop())
    words += f" from {listed([title_of(layer) for layer in workload.layers])}"
    if workload.streams > 1:
        words += f" on {workload.streams} streams"
    copies = [part for part in workload.parts if isinstance(part, Copies)]
    words += "".join(f", {short_size(part.size_bytes)} {_to(part)}" for part in copies[:MOST_LISTED])
    waits = sum(isinstance(part, Wait) for part in workload.parts)
    return words + (f", {waits} wait{'' if waits == 1 else 's'}" if waits else ", no wait")


def _to(part: Copies) -> str:
    return "in" if part.direction == "h2d" else "out"


def findings(forecast: Forecast) -> list[Finding]:
    """What the figures mean; the first one is what it all comes down to."""
    found = [gain(forecast), *outside(forecast)]
    found += [_pace(one) for one in (forecast.stream, forecast.graph) if one is not None]
    if not forecast.advice:
        found.append(_nothing_to_change())
    return [*found, *_about(forecast.workload)]


def foundations(forecast: Forecast, run_words: str, *, reference: bool, simulated: bool) -> list[Finding]:
    """How sure it is and what is assumed. ``run_words`` names the run."""
    return [_certainty(forecast), *_assumed(forecast), _origin(forecast, run_words, reference, simulated)]


def gain(forecast: Forecast) -> Finding:
    """Stream against graph, and after how many steps a graph has paid."""
    stream, graph = forecast.stream, forecast.graph
    severity: Severity = "note"
    text = "Kernels and pinned copies can be captured; waits, host work and pageable copies cannot."
    if graph is None:
        title = f"The step takes {as_time(stream.step_s)}, and nothing of it can be a graph"
    elif forecast.speedup > LITTLE:
        severity = "good"
        title = f"As a graph the step takes {as_time(graph.step_s)} instead of {as_time(stream.step_s)}: "
        title += times(forecast.speedup)
        text = paying(forecast)
    elif forecast.speedup > 1 / LITTLE:
        title = f"A graph changes little: {as_time(graph.step_s)} instead of {as_time(stream.step_s)}"
        text = paying(forecast)
    else:
        title = f"As a graph the step takes longer: {as_time(graph.step_s)} instead of {as_time(stream.step_s)}"
        text = "Its kernels and copies are too few, or too far parted by waits, for a replay to be cheaper than calls."
    threshold = f"predicted, not measured; good above {LITTLE:g}×"
    return Finding("prediction.gain", severity, title, text, threshold, _rests_on(forecast), SUITE)


def paying(forecast: Forecast) -> str:
    """What making the graph costs, and when that is won back."""
    made = f"Making the graph takes {as_time(forecast.making_s)}"
    steps, planned = forecast.break_even, forecast.workload.replays
    if steps is None:
        return f"{made}, and no number of steps wins that back."
    plural = "" if steps == 1 else "s"
    if steps > planned:
        return f"{made}, won back after {steps} step{plural}: more than the {planned} planned."
    return f"{made}, won back after {steps} step{plural}."


def _pace(one: Prediction) -> Finding:
    """What a way waits for, and how long host, GPU and link are busy."""
    name = "In the stream" if one.way == "stream" else "As a graph"
    busy = [(_busy_s(one, "host"), "calls keep the host for"), (_busy_s(one, "gpu"), "kernels the GPU for")]
    busy.append((_busy_s(one, "h2d") + _busy_s(one, "d2h"), "copies the link for"))
    words = listed([f"{what} {as_time(busy_s)}" for busy_s, what in busy if busy_s > 0])
    return Finding(
        rule=f"prediction.{one.way}",
        severity="note",
        title=f"{name} {PACES[one.limit]}: the GPU has no kernel for {percent(one.idle_share)} of the time",
        text=f"In a step that begins on an idle machine {words}.",
        threshold="what most of the critical path is spent on",
        rests_on=(),
        suite=SUITE,
    )


def _busy_s(one: Prediction, lane: str) -> float:
    return sum(span.end_s - span.begin_s for span in (*one.played.host, *one.played.work) if span.lane == lane)


def _nothing_to_change() -> Finding:
    return Finding(
        rule="prediction.advice",
        severity="good",
        title="Nothing about its submission is worth changing",
        text="A graph, another layer, fewer waits, fused kernels and pinned copies were tried on the model.",
        threshold=f"a change is worth it if it saves {round_percent(WORTH)} of the step",
        rests_on=(),
        suite=SUITE,
    )


def _about(workload: Workload) -> Iterator[Finding]:
    if workload.about:
        yield Finding(
            rule="workload",
            severity="note",
            title=f"About this workload: {workload.title}",
            text=" ".join(workload.about.split()),
            threshold="as its file says",
            rests_on=(),
            suite=SUITE,
        )


def outside(forecast: Forecast) -> Iterator[Finding]:
    """Where the step goes beyond what was measured."""
    beyond = dict.fromkeys(
        words for one in (forecast.stream, forecast.graph) if one is not None for words in one.outside
    )
    if beyond:
        yield Finding(
            rule="prediction.outside",
            severity="advice",
            title="Beyond what was measured: this is an extrapolation",
            text=f"{'; '.join(beyond)}. The intervals say nothing about that.",
            threshold="larger than the largest measured",
            rests_on=(),
            suite=SUITE,
        )


def _certainty(forecast: Forecast) -> Finding:
    ranges, misfits, steps = [], [], 0
    for one in (forecast.stream, forecast.graph):
        if one is not None:
            ranges.append(f"{one.way} {as_time(one.low_s)} to {as_time(one.high_s)}")
            misfit = forecast.fit.misfit[one.way, "host" if one.limit == "host" else "gpu"]
            misfits.append(f"{percent(misfit.most)} ({one.way}, {misfit.steps} steps)")
            steps += misfit.steps
    within = f"within {listed(misfits)}"
    text = f"Of the run's own steps 95 % lie {within} of the model"
    if not steps:
        text = f"The run measured no steps to hold the model against; it is taken to hold {within}"
    text += f", as shares of their overhead and {round_percent(OWN_SCATTERS)} of their kernels' and copies' own time."
    return Finding(
        rule="prediction.interval",
        severity="note" if steps else "advice",
        title=f"At 95 %: {', '.join(ranges)}",
        text=f"{text} The interval is that and the intervals of the constants together.",
        threshold="root of the sum of squares",
        rests_on=(),
        suite=SUITE,
    )


def _assumed(forecast: Forecast) -> Iterator[Finding]:
    constants = forecast.fit.constants
    assumed = [name for name in used(forecast) if constants[name].assumed]
    by_words: dict[str, list[str]] = {}
    for name in assumed:
        by_words.setdefault(constants[name].assumed, []).append(name)
    if assumed:
        yield Finding(
            rule="prediction.assumed",
            severity="advice",
            title=f"{len(assumed)} of {len(used(forecast))} constants stand in for a measurement",
            text=f"{'; '.join(f'{listed(names)}: {words}' for words, names in by_words.items())}.",
            threshold="not measured by this run as the step has it",
            rests_on=(),
            suite=SUITE,
        )


def _origin(forecast: Forecast, run_words: str, reference: bool, simulated: bool) -> Finding:
    rows = _rests_on(forecast)
    title = f"Constants of {run_words}"
    text = f"They are fitted to {len(rows)} of its rows, of {listed(benchmarks(rows))}."
    if reference:
        title = f"Constants of the bundled reference, not of this machine: {run_words}"
        text += " `microbench run` measures this machine, a layer only where it is installed; the newest run that has "
        text += "all of these is then taken."
    elif simulated:
        title = f"Constants of a simulated GPU: {run_words}"
        text += " They say nothing about any real one."
    severity: Severity = "advice" if reference or simulated else "note"
    return Finding("prediction.origin", severity, title, text, "computed, not measured", rows, SUITE)


def used(forecast: Forecast) -> tuple[str, ...]:
    """The constants that either way rests on."""
    graph = forecast.graph.names if forecast.graph is not None else ()
    return tuple(dict.fromkeys((*forecast.stream.names, *graph)))


def _rests_on(forecast: Forecast) -> tuple[str, ...]:
    return forecast.fit.rests_on(used(forecast))


def benchmarks(rows: Iterable[str]) -> tuple[str, ...]:
    """The benchmarks that rows come from, each once."""
    return tuple(dict.fromkeys(row.split("[")[0].split(" ")[0] for row in rows))

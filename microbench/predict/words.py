"""Turns a forecast into findings: how much a graph gains, what limits the step, and how sure the forecast is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from microbench.analysis.evidence import Finding, Severity, listed
from microbench.analysis.graph_steps import LITTLE, kernels_in_words, title_of
from microbench.core.units import as_time, percent, round_percent, short_size, spread, times
from microbench.predict.constants import OWN_SCATTERS
from microbench.predict.forecast import WORTH, Forecast, Prediction
from microbench.predict.model import Limit
from microbench.predict.workload import Copies, Kernels, Wait, Workload

SUITE = "prediction"
MOST_COPIES_NAMED = 6
PACES: dict[Limit, str] = {
    "host": "the step is launch-bound",
    "front end": "gaps between kernels and the way to the GPU limit the step",
    "kernel": "the kernels limit the step",
    "link": "the copies limit the step",
    "sync": "waiting limits the step",
}


def described(workload: Workload, titles: Mapping[str, str]) -> str:
    """A step in a few words: "1100 kernels of 6.00 µs from PyTorch eager, 1 wait"; its own title where it has one.

    ``titles`` are those of the layers.
    """
    if workload.title:
        return workload.title
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    lengths = {length for part in kernels for length in part.durations_s}
    words = f"{workload.kernels} kernels"
    if len(lengths) == 1:
        words = kernels_in_words(workload.kernels, lengths.pop())
    words += f" from {listed([title_of(layer, titles) for layer in workload.layers])}"
    if workload.streams > 1:
        words += f" on {workload.streams} streams"
    copies = [part for part in workload.parts if isinstance(part, Copies)]
    for part in copies[:MOST_COPIES_NAMED]:
        words += f", {short_size(part.size_bytes)} {'in' if part.direction == 'h2d' else 'out'}"
    waits = sum(isinstance(part, Wait) for part in workload.parts)
    return words + (f", {waits} wait{'' if waits == 1 else 's'}" if waits else ", no wait")


def findings(forecast: Forecast) -> list[Finding]:
    """What the figures mean; the first finding is the verdict."""
    result = [gain(forecast), *outside(forecast)]
    result += [_pace(way) for way in (forecast.stream, forecast.graph) if way is not None]
    if not forecast.advice:
        result.append(
            Finding(
                rule="prediction.advice",
                severity="good",
                title="Nothing about its submission is worth changing",
                text="The model tried a graph, another layer, fewer waits, fused kernels and pinned copies.",
                threshold=f"a change is worth it if it saves {round_percent(WORTH)} of the step",
            )
        )
    workload = forecast.workload
    if workload.about:
        result.append(
            Finding(
                rule="prediction.workload",
                severity="note",
                title=f"About this workload: {workload.title}",
                text=" ".join(workload.about.split()),
                threshold="as its file says",
            )
        )
    return result


def foundations(forecast: Forecast, run_words: str, *, reference: bool, simulated: bool) -> list[Finding]:
    """How sure the forecast is and what is assumed. ``run_words`` names the run."""
    return [_certainty(forecast), *_assumed(forecast), _origin(forecast, run_words, reference, simulated)]


def gain(forecast: Forecast) -> Finding:
    """Stream against graph, and whether making the graph pays off."""
    stream, graph = forecast.stream, forecast.graph
    severity: Severity = "note"
    text = "Making the graph never pays off."
    if forecast.break_even is not None:
        text = "Making the graph pays off within the planned steps."
        if forecast.break_even > forecast.workload.replays:
            text = "Making the graph takes more steps to pay off than are planned."
    if graph is None:
        title = f"The step takes {as_time(stream.step_s)}; nothing of it can be a graph"
        text = "Kernels and pinned copies can be captured; waits, host work and pageable copies cannot."
    elif forecast.speedup > LITTLE:
        severity = "good"
        title = f"As a graph the step takes {as_time(graph.step_s)} instead of {as_time(stream.step_s)}: "
        title += times(forecast.speedup)
    elif forecast.speedup > 1 / LITTLE:
        title = f"A graph changes little: {as_time(graph.step_s)} instead of {as_time(stream.step_s)}"
    else:
        title = f"As a graph the step takes longer: {as_time(graph.step_s)} instead of {as_time(stream.step_s)}"
        text = "Its graphs are too short for a replay to be cheaper than the calls."
    return Finding(
        rule="prediction.gain",
        severity=severity,
        title=title,
        text=text,
        threshold=f"predicted, not measured; good above {LITTLE:g}×",
        rests_on=forecast.fit.rests_on(used(forecast)),
    )


def paying(forecast: Forecast) -> str:
    """What making the graph costs, and after how many steps that has paid."""
    made = f"Making the graph takes {as_time(forecast.making_s)}"
    steps, planned = forecast.break_even, forecast.workload.replays
    if steps is None:
        return f"{made} and never pays off."
    words = f"{made} and pays off after {steps} step{'' if steps == 1 else 's'}"
    return f"{words}: more than the {planned} planned." if steps > planned else f"{words}."


def _pace(way: Prediction) -> Finding:
    """What limits the step submitted one way, and how long GPU and host or link are busy."""
    busy_s = dict.fromkeys(("host", "gpu", "h2d", "d2h"), 0.0)
    for span in (*way.played.host, *way.played.work):
        busy_s[span.lane] = busy_s.get(span.lane, 0.0) + span.end_s - span.begin_s
    other = f"calls take the host {as_time(busy_s['host'])}"
    if way.limit == "link":
        other = f"copies take the link {as_time(busy_s['h2d'] + busy_s['d2h'])}"
    name = "In the stream" if way.way == "stream" else "As a graph"
    return Finding(
        rule=f"prediction.{way.way}",
        severity="note",
        title=f"{name} {PACES[way.limit]}: the GPU idles for {percent(way.idle_share)} of the time",
        text=f"In one step kernels take the GPU {as_time(busy_s['gpu'])}, {other}.",
        threshold="what most of the critical path is spent on",
    )


def outside(forecast: Forecast) -> Iterator[Finding]:
    """A warning where the step goes beyond what was measured."""
    ways = [way for way in (forecast.stream, forecast.graph) if way is not None]
    beyond = dict.fromkeys(words for way in ways for words in way.outside)
    if beyond:
        yield Finding(
            rule="prediction.outside",
            severity="warning",
            title="This is an extrapolation beyond what was measured",
            text=f"The step has {'; '.join(beyond)}. The intervals do not cover that.",
            threshold="larger than the largest measured",
        )


def _certainty(forecast: Forecast) -> Finding:
    ways = [way for way in (forecast.stream, forecast.graph) if way is not None]
    misfits = [forecast.fit.misfit[way.way, "host" if way.limit == "host" else "gpu"] for way in ways]
    names = {"stream": "in the stream", "graph": "as a graph"}
    within = [f"{spread(way.half_width)} {names[way.way]}" for way in ways]
    steps, most = sum(misfit.steps for misfit in misfits), percent(max(misfit.most for misfit in misfits))
    text = f"The model misses 95 % of the {steps} steps that the run measured by at most {most} of their overhead."
    if not steps:
        text = f"The run measured no steps to check the model against; it is assumed to miss {most} of their overhead."
    return Finding(
        rule="prediction.interval",
        severity="note" if steps else "advice",
        title=f"The step's time is known within {listed(within)}",
        text=text,
        advice="" if steps else "Measure graph_gain to check it.",
        threshold=(
            "at 95 %, root of the sum of squares of the constants' intervals and the model's misfit, which is a share "
            f"of the overhead and of {round_percent(OWN_SCATTERS)} of the kernels' and copies' own time"
        ),
    )


def _assumed(forecast: Forecast) -> Iterator[Finding]:
    names, constants = used(forecast), forecast.fit.constants
    by_words: dict[str, list[str]] = {}
    for name in names:
        if constants[name].assumed:
            by_words.setdefault(constants[name].assumed, []).append(name)
    if by_words:
        count = sum(map(len, by_words.values()))
        yield Finding(
            rule="prediction.assumed",
            severity="note",
            title=f"{count} of {len(names)} constants stand in for a measurement",
            text=f"{'; '.join(f'{listed(several)}: {words}' for words, several in by_words.items())}.",
            threshold="not measured by this run as the step has it",
        )


def _origin(forecast: Forecast, run_words: str, reference: bool, simulated: bool) -> Finding:
    rows = forecast.fit.rests_on(used(forecast))
    severity: Severity = "note"
    title, advice = f"The constants come from {run_words}", ""
    if reference:
        severity, title = "advice", f"The constants come from the bundled reference, not from this machine: {run_words}"
        advice = "Measure this machine by `microbench run`: the newest run with all of these constants is then used."
    elif simulated:
        severity, title = "warning", f"The constants come from a simulated GPU: {run_words}"
        advice = "Do not apply them to a real one."
    return Finding(
        rule="prediction.origin",
        severity=severity,
        title=title,
        text=f"They are fitted to {len(rows)} of its rows.",
        advice=advice,
        threshold="computed, not measured",
        rests_on=rows,
    )


def used(forecast: Forecast) -> tuple[str, ...]:
    """The constants that either way rests on."""
    graph = forecast.graph.names if forecast.graph is not None else ()
    return tuple(dict.fromkeys((*forecast.stream.names, *graph)))


def benchmarks(rows: Iterable[str]) -> tuple[str, ...]:
    """The benchmarks that rows come from, each once."""
    return tuple(dict.fromkeys(row.split("[")[0].split(" ")[0] for row in rows))

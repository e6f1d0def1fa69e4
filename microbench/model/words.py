"""Turns a forecast into findings: how much a graph gains, what limits the step, and how sure the forecast is."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding, Severity, listed, rests_on, whole
from microbench.analysis.graph_steps import LITTLE, kernel_counts, kernels_in_words, title_of, usual_kernels
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, percent, round_percent, short_size, spread, times, two_times
from microbench.model.constants import OWN_SCATTERS, Pair, half_width, pairs
from microbench.model.forecast import WARM_UPS, WORTH, Forecast, Prediction
from microbench.model.model import Limit, call_name
from microbench.model.unknowns import unknown_shares
from microbench.model.workload import Copies, Kernels, Wait, Workload

SUITE = "prediction"
MOST_COPIES_NAMED = 6
WATCH = "microbench watch python train.py"
PACES: dict[Limit, str] = {
    "host": "the step is launch-bound",
    "front end": "gaps between kernels and the launch latency limit the step",
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


def between(prediction: Prediction) -> str:
    """The time of a step: "8.19 ms", or the times at the ends of what is not known: "8.05 to 37.1 ms".

    The model's own error is left out, so that speed-ups and rates follow from these times.
    """
    times_s = [end.step_s for end in prediction.ends or (prediction,)]
    return two_times(times_s[0], times_s[-1])


def idle(prediction: Prediction) -> str:
    """The share of a step without a kernel on the GPU, or its range: "19.4 %", "19.4 % to 78.1 %"."""
    shares = sorted(end.idle_share for end in prediction.ends or (prediction,))
    return " to ".join(dict.fromkeys((percent(shares[0]), percent(shares[-1]))))


def cases(forecast: Forecast) -> tuple[tuple[str, Forecast], ...]:
    """Bare operations and model code, if only the host time is unknown and the two differ; else nothing."""
    if forecast.host is None or not forecast.stream.ends or unknown_shares(forecast.workload, forecast.fit.sms):
        return ()
    return tuple(zip(("bare operations", "typical model code"), forecast.ends, strict=True))


def speedup(forecast: Forecast) -> str:
    """The speed-up by a graph with its interval, of two cases, or its range: "1.13× (1.05 to 1.21×)", "1.13× or 4.9×",
    "1.13× to 4.9×"."""
    low, high = map(times, forecast.speedup_between)
    if not forecast.ends and low != high:
        return f"{times(forecast.speedup)} ({low.removesuffix('×')} to {high})"
    return (" or " if cases(forecast) else " to ").join(dict.fromkeys(map(times, forecast.speedups)))


def findings(forecast: Forecast) -> list[Finding]:
    """What the figures mean; the first finding is the verdict."""
    result = [gain(forecast), *outside(forecast), *_host(forecast)]
    result += [_pace(forecast, way) for way in (forecast.stream, forecast.graph) if way is not None]
    if not forecast.advice:
        text = "The model tried a graph, another layer, fewer waits, fused kernels and pinned copies."
        threshold = f"a change is worth it if it saves {round_percent(WORTH)} of the step"
        title = "Nothing about its submission is worth changing"
        result.append(Finding("prediction.advice", "good", title, text, threshold))
    workload = forecast.workload
    if workload.about:
        title, text = f"About this workload: {workload.title}", " ".join(workload.about.split())
        result.append(Finding("prediction.workload", "note", title, text, "as its file says"))
    return result


def foundations(forecast: Forecast, run_words: str, *, reference: bool, simulated: bool) -> list[Finding]:
    """How sure the forecast is and what is assumed. ``run_words`` names the run."""
    return [_certainty(forecast), *_assumed(forecast), _origin(forecast, run_words, reference, simulated)]


def gain(forecast: Forecast) -> Finding:
    """Stream against graph, and whether making the graph pays off. A range is good if all of it is."""
    stream, graph = forecast.stream, forecast.graph
    least, most = forecast.speedups
    severity: Severity = "note"
    text = "Making the graph never pays off."
    if forecast.break_even is not None:
        text = "Making the graph pays off within the planned steps."
        if forecast.break_even > forecast.workload.replays:
            text = "Making the graph takes more steps to pay off than are planned."
    if graph is None:
        title = f"The step takes {between(stream)}; nothing of it can be a graph"
        text = "Kernels and pinned copies can be captured; waits, host work and pageable copies cannot."
    elif most > LITTLE:
        severity = "good" if least > LITTLE and not (forecast.host is not None and forecast.host.assumed) else "note"
        title = f"As a graph the step takes {between(graph)} instead of {_in_stream(forecast)}: {speedup(forecast)}"
    elif least > 1 / LITTLE:
        title = f"A graph changes little: {between(graph)} instead of {between(stream)}"
    else:
        title = f"As a graph the step takes longer: {between(graph)} instead of {between(stream)}"
        text = "Its graphs are too short for a replay to be cheaper than the calls."
    threshold = f"predicted, not measured; good above {LITTLE:g}×"
    return Finding("prediction.gain", severity, title, text, threshold, forecast.fit.rests_on(used(forecast)))


def _in_stream(forecast: Forecast) -> str:
    """The time in the stream, in two cases where the host time is unknown."""
    both = [f"{as_time(one.stream.step_s)} ({name})" for name, one in cases(forecast)]
    known = forecast.host is None or not forecast.stream.ends
    typical = "" if known else f" ({as_time(forecast.stream.step_s)} in typical model code)"
    return " or ".join(both) or f"{between(forecast.stream)}{typical}"


def paying(forecast: Forecast, *, parts: bool = True) -> str:
    """What making the graph costs, and after how many steps that has paid; of a range, at both of its ends. With
    ``parts`` it says what the cost consists of."""
    several, planned = forecast.ends or (forecast,), forecast.workload.replays
    costs = sorted(one.making_s for one in several)
    paid = sorted((one.break_even for one in several), key=lambda steps: math.inf if steps is None else steps)
    made = f"Making the graph takes {two_times(costs[0], costs[-1])}{_making(forecast) if parts else ''}"
    if paid[0] is None:
        return f"{made} and never pays off."
    words = [str(steps) if steps is not None else "never" for steps in dict.fromkeys((paid[0], paid[-1]))]
    text = f"{made} and pays off after {' to '.join(words)} step{'' if words == ['1'] else 's'}".replace(
        " to never steps", " steps or never"
    )
    return f"{text}: more than the {planned} planned." if paid[0] > planned else f"{text}."


def _making(forecast: Forecast) -> str:
    """What making the graph consists of, each part at both ends of a range, or how sure the driver's part alone is."""
    first, last = (forecast.ends[0].making, forecast.ends[-1].making) if forecast.ends else (forecast.making,) * 2
    layer = forecast.workload.layer
    steps, title = WARM_UPS.get(layer, 0), title_of(layer, forecast.fit.titles)
    what = [f"{two_times(first.warm_up_s, last.warm_up_s)} for {steps} warm-up steps"] if steps else []
    if last.calls_s > 0:
        what.append(f"{two_times(first.calls_s, last.calls_s)} for the calls of {title} in the capture")
    sure = spread(half_width(forecast.fit.constants["make"]) / last.driver_s) if last.driver_s > 0 else ""
    if not what:
        return f" {sure}".rstrip()
    return f" ({', '.join([*what, f'{as_time(last.driver_s)} {sure} for the driver'])})"


def unknown(forecast: Forecast) -> Iterator[str]:
    """A sentence for each thing that makes the time a range: what was assumed, and how to give it."""
    host = forecast.host
    if host is not None:
        bare = "many launches in a call" if host.bare_s < host.call_s else "bare call"
        yield (
            f"Host time is not given: a launch takes {as_time(host.bare_s)} ({bare}) or {as_time(host.typical_s)} "
            f"(typical model code). {_flips(forecast)}. `{WATCH}` measures yours; --host takes it, less the bare "
            f"call's {as_time(host.call_s)}."
        )
    if unknown_shares(forecast.workload, forecast.fit.sms):
        yield (
            "Streams: from kernels side by side to one after another. "
            "Give the share of the SMs that each fills by --sm-share, or --blocks."
        )


def one_stream_words(forecast: Forecast) -> Iterator[str]:
    """What another stream would change, where the graph is computed without one: graph_gain was measured with two."""
    shorter = forecast.fit.constants.get("one_stream_graph")
    if forecast.graph is not None and "one_stream_graph" in forecast.graph.names and shorter and shorter.value > 0:
        longer = as_time(shorter.value)
        yield f"The program has one stream. A second one makes each gap of the graph {longer} longer, as in graph_gain."


def _flips(forecast: Forecast) -> str:
    """From which host time on the step is launch-bound."""
    host, bound_s = forecast.host, forecast.launch_bound_s
    if bound_s is None or host is None:
        return "The step is never launch-bound"
    if bound_s <= host.bare_s:
        return f"The step is launch-bound from {as_time(bound_s)} on, so in both cases"
    where = ", so in neither case" if bound_s > host.typical_s else ""
    return f"The step is launch-bound from {as_time(bound_s)} on{where}"


def drawn_as(forecast: Forecast) -> Iterator[str]:
    """What a picture of the step takes for what is not known."""
    if forecast.host is not None:
        yield f"drawn with {as_time(forecast.host.typical_s)} of host time a launch, as in typical model code"
    if unknown_shares(forecast.workload, forecast.fit.sms):
        yield "drawn with kernels side by side"


def _host(forecast: Forecast) -> Iterator[Finding]:
    """What the host time of model code rests on, and how to get the true one."""
    host = forecast.host
    if host is not None:
        layer = title_of(host.layer, forecast.fit.titles)
        fitted = ", fitted to single calls (launch_layers) and to steps (graph_gain)" if host.in_steps else ""
        title = f"What your program does between two launches of {layer} is not known"
        text = (
            f"A bare call takes {as_time(host.call_s)}{fitted}. A launch of typical model code takes "
            f"{as_time(host.typical_s)} ({host.source})."
        )
        threshold = "a framework's layer without --host"
        advice = (
            f"Record your program: `{WATCH}` says what it does there, and foresees its graph. Or give --host: the "
            f"time of a launch less {as_time(host.call_s)}."
        )
        yield Finding("prediction.host", "advice", title, text, threshold, host.rests_on, advice=advice)


def _pace(forecast: Forecast, way: Prediction) -> Finding:
    """What limits the step submitted one way, and how long GPU and host or link are busy."""
    busy_s = dict.fromkeys(("host", "gpu"), 0.0)
    for span in (*way.played.host, *way.played.work):
        busy_s[span.lane] = busy_s.get(span.lane, 0.0) + span.end_s - span.begin_s
    other = f"calls take the host {as_time(busy_s['host'])}"
    if forecast.host is not None and way.way == "stream":
        other += " in typical model code"
    summed = ", summed over streams" if forecast.workload.streams > 1 else ""
    if way.limit == "link":
        other = f"copies take the link {as_time(way.shares['link'])}"
    name = "In the stream" if way.way == "stream" else "As a graph"
    title = f"{name} {paces(way)}: the GPU idles for {idle(way)} of the time"
    text = f"In one step kernels take the GPU {as_time(busy_s['gpu'])}{summed}; {other}."
    threshold = "what most of the critical path is spent on"
    return Finding(f"prediction.{way.way}", "note", title, text, threshold)


def paces(way: Prediction) -> str:
    """What limits the step, at either end of a range."""
    first, *others = [PACES[limit] for limit in way.limits]
    return " or ".join([first, *others])


def outside(forecast: Forecast) -> Iterator[Finding]:
    """A warning where the step goes beyond what was measured."""
    ways = [way for way in (forecast.stream, forecast.graph) if way is not None]
    beyond = dict.fromkeys(words for way in ways for words in way.outside)
    if beyond:
        title = "This is an extrapolation beyond what was measured"
        text = f"The step has {'; '.join(beyond)}. The intervals do not cover that."
        threshold = "larger than the largest measured"
        yield Finding("prediction.outside", "warning", title, text, threshold)


def _certainty(forecast: Forecast) -> Finding:
    ways = [way for way in (forecast.stream, forecast.graph) if way is not None]
    misfits = [forecast.fit.misfit[way.way, "host" if way.limit == "host" else "gpu"] for way in ways]
    names = {"stream": "in the stream", "graph": "as a graph"}
    within = []  # "within ±2.0 % in the stream", "from 8.05 to 37.1 ms, each ±2.0 %, as a graph"
    for way in ways:
        each = f"from {between(way)}, each {spread(max(end.half_width for end in way.ends))}," if way.ends else ""
        within.append(f"{each or f'within {spread(way.half_width)}'} {names[way.way]}")
    steps, most = sum(misfit.steps for misfit in misfits), percent(max(misfit.most for misfit in misfits))
    off = f"off by at most {most} of the overhead (the time without kernels and copies)"
    text = f"For 95 % of the {steps} measured steps the model is {off}."
    if not steps:
        text = f"The run measured no steps to check the model against; it is assumed to be {off}."
    title = f"The step's time is known {listed(within)}"
    threshold = (
        "at 95 %, root of the sum of squares of the constants' intervals and the model's misfit, which is a share "
        f"of the overhead and of {round_percent(OWN_SCATTERS)} of the kernels' and copies' own time"
    )
    advice = "" if steps else "Measure graph_gain to check it."
    return Finding("prediction.interval", "note" if steps else "advice", title, text, threshold, advice=advice)


def _assumed(forecast: Forecast) -> Iterator[Finding]:
    names, constants = used(forecast), forecast.fit.constants
    by_words: dict[str, list[str]] = {}
    for name in names:
        if constants[name].assumed:
            by_words.setdefault(constants[name].assumed, []).append(name)
    if forecast.host is not None and forecast.host.assumed:
        by_words[forecast.host.source] = ["host time between launches"]
        names = (*names, "host time")
    if forecast.making.calls_s > 0 and all(example.capture_share is None for example in forecast.fit.model_code):
        by_words["a call takes as long in a capture as in a stream"] = ["calls in the capture"]
        names = (*names, "calls in the capture")
    if by_words:
        count = sum(map(len, by_words.values()))
        title = f"{count} of {len(names)} constants {'is' if count == 1 else 'are'} assumed, not measured"
        text = f"{'; '.join(f'{listed(several)}: {words}' for words, several in by_words.items())}."
        threshold = "not measured by this run as the step has it"
        yield Finding("prediction.assumed", "note", title, text, threshold)


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
    text = f"They are fitted to {len(rows)} of its rows."
    threshold = "computed, not measured"
    return Finding("prediction.origin", severity, title, text, threshold, rows, advice=advice)


def used(forecast: Forecast) -> tuple[str, ...]:
    """The constants that either way rests on."""
    graph = forecast.graph.names if forecast.graph is not None else ()
    return tuple(dict.fromkeys((*forecast.stream.names, *graph)))


def benchmarks(rows: Iterable[str]) -> tuple[str, ...]:
    """The benchmarks that rows come from, each once."""
    return tuple(dict.fromkeys(row.split("[")[0].split(" ")[0] for row in rows))


TO_SCALE = "timeline"
# An empty kernel's own time, roughly: what keeps 0 on a logarithmic scale.
SHORTEST_S = 1e-7
# Two speed-ups within this ratio of one another are alike.
AGREES = 1.10
SHARES: dict[Limit, str] = {
    "host": "the host", "front end": "ways and gaps", "kernel": "kernels", "link": "copies", "sync": "waits",
}  # fmt: skip


def nearest(evidence: Evidence, kernels: int, duration_s: float, layer: str = LOOP_LAYER) -> Pair | None:
    """The step of graph_gain whose kernels and duration lie nearest, by ratio; None if that layer was not measured."""
    count = usual_kernels(kernel_counts(evidence, layer), kernels)
    return min(
        pairs(evidence, layer, count) if count is not None else (),
        key=lambda pair: abs(math.log(max(pair.duration_s, SHORTEST_S) / max(duration_s, SHORTEST_S))),
        default=None,
    )


def alike(workload: Workload) -> Kernels | None:
    """The step's kernels, if they are of one length in one stream, with at most one wait at its end; else None."""
    match workload.parts:
        case (Kernels() as part,) | (Kernels() as part, Wait()):
            plain = len(set(part.durations_s)) == 1 and not part.bytes and not part.host_s and workload.streams == 1
            return part if plain else None
    return None


def to_scale(evidence: Evidence, forecast: Forecast) -> list[Finding]:
    """What a drawn step means: what its graph gives, beside the most similar measured step, and why the GPU idles."""
    predicted, step, layer = gain(forecast), alike(forecast.filled), forecast.filled.layer
    near = nearest(evidence, step.count, step.durations_s[0], step.layer or layer) if step is not None else None
    text, rows = "No measured step is like this one.", predicted.rests_on
    if near is not None:
        ratio = near.speedup / forecast.speedup
        words = "less" if ratio < 1 / AGREES else "more" if ratio > AGREES else "about as much"
        measured = kernels_in_words(whole(near.stream, "kernels"), near.duration_s)
        text = f"The nearest measured step, {measured}, gains {words}."
        rows += rests_on(near.stream, near.graph)
    return [replace(predicted, rule="timeline.gain", text=text, rests_on=rows), _idles(forecast, step)]


def _idles(forecast: Forecast, step: Kernels | None) -> Finding:
    """For how much of the step the GPU has no kernel, and why."""
    stream, graph = forecast.stream, forecast.graph
    title = f"The GPU idles for {idle(stream)} of the step in the stream"
    text = f"Most of the time the stream waits for {SHARES[stream.limit]}"
    if graph is not None:
        title += f", for {idle(graph)} as a graph"
        text += f", the graph for {SHARES[graph.limit]}"
    text, threshold = f"{text}.", "the critical path, each moment by what it was spent on"
    if step is not None:
        threshold = "time per kernel in a stream is the longer of call and kernel + gap, in a graph kernel + gap"
        values = forecast.fit.values
        call_s = values[call_name(step.layer or forecast.filled.layer, step.arguments)]
        gpu_s = step.durations_s[0] + values["gap_stream"]
        text = "The host keeps up: a graph gains only by its shorter gap between kernels."
        if step.count == 1:
            text = "One kernel waits only for its own call, its launch latency and its completion."
        elif call_s > gpu_s:
            ratio = times(call_s / gpu_s)
            text = f"The step is launch-bound: a launch call takes {ratio} as long as a kernel and its gap."
    if any(span.begin_s > before.end_s for before, span in itertools.pairwise(stream.played.host)):
        text += " The launch queue is full, and further calls wait for room."
    return Finding("timeline.limit", "note", title, text, threshold, forecast.fit.rests_on(used(forecast)))

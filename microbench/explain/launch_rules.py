"""Finds when the GPU waits for the host, and holds the launch figures that pictures and topics share."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from microbench.analysis.evidence import (
    Evidence,
    Finding,
    Rule,
    Severity,
    listed,
    rests_on,
    rule,
    said,
    sentence,
    whole,
)
from microbench.analysis.graph_steps import layer_titles
from microbench.analysis.stats import Row
from microbench.core.model import link_rate
from microbench.core.ops import COMPILED_LAYERS, LOOP_LAYER
from microbench.core.units import as_time, axis_value, percent, quantity, times, two_times
from microbench.model.constants import WRITING, Constant, combined, gap, gaps, own_s
from microbench.model.fit import fit
from microbench.model.model import Way, call_name
from microbench.model.unknowns import MEASURED, host_time

# Names on launch_layers' axes.
NATIVE = "loop"
FOUR_ARGUMENTS = 4
# Launches that use less than this share of the link's raw rate cost latency, not bandwidth.
BANDWIDTH_SHARE = 0.05
# A pinned copy of known size is counted as its payload and packet headers.
PLAUSIBLE_WIRE_BYTES = (1.0, 1.4)


def usual_gap(evidence: Evidence, way: Way) -> Constant | None:
    """The GPU's idle time behind a kernel that writes memory: its period less its duration as profilers report it.

    The program has launched into two streams. Older runs have the gap of kernels that write nothing.
    """
    return gap(evidence, way, **WRITING, launch_streams="two") or dict(gaps(evidence)).get(f"gap_{way}")


def stream_gap(evidence: Evidence) -> Constant | None:
    """The same gap in a program of one stream, which is how predictions count it."""
    known = fit(evidence).constants
    names = {"gap_stream": 1.0, "write_stream": 1.0, "one_stream_stream": -1.0}
    if any(name not in known for name in names):
        return None
    return combined([(factor, known[name]) for name, factor in names.items()], least=-math.inf)


def call(evidence: Evidence, name: str = LOOP_LAYER, arguments: int = 0) -> Constant | None:
    """A layer's launch call as it was fitted to all that the run measured: the one figure of it that is quoted."""
    return fit(evidence).constants.get(call_name(name, arguments))


def call_of(evidence: Evidence, row: Row) -> Constant:
    """The fitted launch call of a row of launch_layers."""
    return fit(evidence).constants[call_name(layer(row), whole(row, "arguments"))]


def crossover_s(evidence: Evidence, launch: Constant | None = None) -> float | None:
    """The kernel duration (s), as profilers report it, below which the GPU waits for the host: call - gap.

    ``launch`` is the launch call, by default that of the compiled loop.
    """
    launch, between = launch or call(evidence), stream_gap(evidence)
    return launch.value - between.value if launch and between else None


def sweep(evidence: Evidence, metric: str) -> list[tuple[float, Row]]:
    """launch_duration's rows of a metric by the kernels' duration in s, as profilers report it."""
    points = evidence.curve("launch_duration", metric, "duration_ns")
    return [(own_s(evidence, duration_ns), row) for duration_ns, row in points]


def layer(row: Row) -> str:
    """The layer that a row of launch_layers measured, by its name on the axis."""
    return str(row.params.get("layer"))


def titled(evidence: Evidence, row: Row) -> str:
    """A row's layer as its authors write it."""
    return layer_titles(evidence.run).get(layer(row), layer(row))


def layer_rows(evidence: Evidence, family: str, arguments: int | None = None) -> list[Row]:
    """Submit rows of a family of layers, the cheapest call first; only those with this number of arguments if given."""
    chosen = {} if arguments is None else {"arguments": arguments}
    rows = [row for row in evidence.rows("launch_layers", "submit", family=family, **chosen) if row.value > 0]
    return sorted(rows, key=lambda row: call_of(evidence, row).value)


def same_kernel_rows(evidence: Evidence) -> list[Row]:
    """Submit rows of the same empty kernel, cheapest first: with four arguments or, if not measured so, with none."""
    return layer_rows(evidence, "same_kernel", FOUR_ARGUMENTS) or layer_rows(evidence, "same_kernel", 0)


class Library(NamedTuple):
    """The cheapest way to launch from a Python library: its name, its measured row, and the fitted time of a call."""

    name: str
    row: Row
    call: Constant


def libraries(evidence: Evidence) -> list[Library]:
    """Each Python library once, those that launch the same kernel first and then those of one operation."""
    found: dict[str, Library] = {}
    for row in (*same_kernel_rows(evidence), *layer_rows(evidence, "one_op")):
        name = titled(evidence, row).partition(" (")[0]
        if layer(row) not in COMPILED_LAYERS:
            found.setdefault(name, Library(name, row, call_of(evidence, row)))
    return list(found.values())


def unmeasured(evidence: Evidence, *families: str) -> dict[str, list[str]]:
    """Python layers of these families without any figure: "not installed" and "not measured" with their titles."""
    outcomes = [each for each in evidence.outcomes("launch_layers") if each.case.params.get("family") in families]
    measured = {str(each.case.params.get("layer")) for each in outcomes if each.status == "ok"}
    titles, missing = layer_titles(evidence.run), dict[str, dict[str, None]]()
    for outcome in outcomes:
        name = str(outcome.case.params.get("layer"))
        if name not in measured and name not in COMPILED_LAYERS:
            why = "not installed" if (outcome.reason or "").startswith("needs ") else "not measured"
            missing.setdefault(why, {})[titles.get(name, name)] = None
    return {why: list(names) for why, names in missing.items()}


# Two costs differ if their ratio is at least this.
MARGIN = 1.10
# The duration sweep leaves its plateau at the first period above this many times the shortest kernels' period.
PLATEAU_MARGIN = 1.10
SWEEP_TOLERANCE = 1.5
# The layers from Python whose limits are named, as far as they were measured.
FROM_PYTHON = ("cuda_core", "cupy_raw", "numba_configured", "numba_each_call", "torch_eager")
TAIL_RATIO, WORST_RATIO = 2.0, 10.0
SCALING_SHARE = 0.5
# A host function costs too much from this many times the quickest other way to the host and back.
HOST_FUNCTION_RATIO = 2.0
WAIT_RATIO = 2.0
WAITS_NAMED = 2
TIMING_RATIO = 2.0


@rule(
    "launch.starving",
    "duration as profilers report it < call - gap, both fitted; the sweep leaves its plateau above "
    f"{PLATEAU_MARGIN:.2f} times the shortest kernels' period, and agrees within a factor of "
    f"{SWEEP_TOLERANCE:g}",
)
def starving(evidence: Evidence) -> Finding | None:
    """Below which kernel duration the GPU waits for the host, by layer, by the model and by the duration sweep."""
    submit, launch, gap = evidence.row("launch_cost", "submit"), call(evidence), stream_gap(evidence)
    crossover = crossover_s(evidence)
    if submit is None or launch is None or gap is None or crossover is None:
        return None
    points = sweep(evidence, "period")
    pairs = itertools.pairwise(points)
    # The two durations between which the period leaves the shortest kernels' plateau.
    ends = ((one[0], two[0]) for one, two in pairs if two[1].value > points[0][1].value * PLATEAU_MARGIN)
    below, above = next(ends, (crossover, crossover))
    severity: Severity = "advice"
    title = f"Kernels shorter than {as_time(crossover)} are launch-bound: the GPU waits for the host"
    text = f"A launch takes the host {as_time(launch.value)}, the GPU needs {as_time(gap.value)} between kernels."
    layers = [one for one in libraries(evidence) if layer(one.row) in FROM_PYTHON]
    if layers and crossover > 0:
        limits = [f"{as_time(crossover)} from a compiled loop", *_from_python(evidence, layers)]
        title = f"Kernels are launch-bound below {', '.join(limits)}"
        text = "There the GPU waits for the host: a launch takes longer than the kernel and the gap behind it."
    advice = "Fuse such kernels, replay them as a graph, or launch them through a cheaper layer."
    if crossover <= 0:
        severity, advice = "good", ""
        title = "Even empty kernels keep this GPU busy: the host launches faster than the GPU starts them"
    elif not below / SWEEP_TOLERANCE <= crossover <= above * SWEEP_TOLERANCE:
        severity, advice = "warning", "Believe the sweep, and measure again on an idle machine."
        title = f"Kernels shorter than {as_time(crossover)} should be launch-bound, but the duration sweep disagrees"
        text = f"The limit that the sweep shows lies between {as_time(below)} and {as_time(above)}."
    names = tuple(
        dict.fromkeys((*rests_on(submit, *(row for _, row in points), *(one.row for one in layers)), *gap.rests_on))
    )
    return said(title, text, advice, names=names, severity=severity)


def _from_python(evidence: Evidence, layers: Sequence[Library]) -> Iterator[str]:
    """The limits of kernels of one's own, and those of PyTorch: of its bare calls and, if measured, of model code."""
    known = [(one, crossover_s(evidence, one.call) or 0.0) for one in layers]
    own = [(one.name.split()[0], limit_s) for one, limit_s in known if layer(one.row) != MEASURED]
    bare_s = next((limit_s for one, limit_s in known if layer(one.row) == MEASURED), None)
    if own:
        yield f"{two_times(own[0][1], own[-1][1])} from {listed([name for name, _ in own])}"
    if bare_s is not None:
        found = fit(evidence)
        if found.model_code:
            beyond_s = host_time(found, MEASURED, 1).typical_s - found.values[call_name(MEASURED, 1)]
            yield f"{two_times(bare_s, bare_s + beyond_s)} from PyTorch (bare calls to model code)"
        else:
            yield f"{as_time(bare_s)} from PyTorch"


@rule("launch.tail", f"p99 above {TAIL_RATIO:g} times the median warns; a worst above {WORST_RATIO:g} times is noted")
def tails(evidence: Evidence) -> Finding | None:
    """How far the slowest launch calls lie from the median."""
    row = evidence.row("launch_cost", "submit")
    if row is None or row.summaries[0].per_call is None:
        return None
    p99, worst = row.over_rounds("p99") / row.value, row.over_rounds("max") / row.value
    spiky, rare = p99 > TAIL_RATIO, worst > WORST_RATIO
    text = "Nothing interrupts the submitting core for long."
    if spiky or rare:
        text = "Something stops the submitting core: interrupts, clock changes, other processes or a hypervisor."
    title = f"One launch in a hundred takes {times(p99)} the median, the worst {times(worst)}"
    advice = "Pin the process to an idle core, and read medians." if spiky else ""
    return said(title, text, advice, rows=(row,), severity="warning" if spiky else "note" if rare else "good")


@rule("launch.layers", f"layers within {MARGIN:.2f} times the cheapest count as equal")
def same_kernel(evidence: Evidence) -> Finding | None:
    """What Python adds to the launch of the same empty kernel, and which layer to choose."""
    rows = same_kernel_rows(evidence)
    loop = next((row for row in rows if layer(row) == NATIVE), None)
    layers = [row for row in rows if layer(row) not in COMPILED_LAYERS]
    runtime = next((row for row in rows if layer(row) in COMPILED_LAYERS and row is not loop), None)
    if loop is None or not layers:
        return None
    best, worst = layers[0], layers[-1]
    loop_s, best_s, worst_s = (call_of(evidence, row).value for row in (loop, best, worst))
    near = [row for row in layers if call_of(evidence, row).value <= best_s * MARGIN]
    equal = [titled(evidence, row) for row in near]
    plural = "" if len(equal) > 1 else "es"
    text = f"A compiled loop takes {as_time(loop_s)}"
    if runtime is not None and (compared := _compared(runtime, loop)):
        text += f", and {compared} by the runtime API, as in C++"
    if worst is not best:
        text += f"; {titled(evidence, worst)} takes {times(worst_s / loop_s)} as long"
    a_call = f"{as_time(best_s)} a call with {best.params.get('arguments')} arguments"
    where = "From Python,"
    if missing := unmeasured(evidence, "same_kernel").get("not measured", []):
        # A library that is launched in two ways is one layer here, as on the screen.
        libraries = {titled(evidence, row).partition(" (")[0] for row in layers}
        where = f"Of {len(libraries) + len(missing)} installed Python layers {len(libraries)} were measured; of these"
    title = f"{where} {listed(equal)} launch{plural} cheapest: {a_call}"
    text = f"{text}."
    advice = "It matters only for kernels shorter than their launch call; for longer ones any layer will do."
    return said(title, text, advice, rows=(loop, runtime, *layers))


def _compared(row: Row, other: Row) -> str:
    """How a time compares with another one; empty if the two differ but their intervals do not tell how."""
    if other.value / MARGIN <= row.value <= other.value * MARGIN:
        return "about as long"
    if row.interval.overlaps(other.interval):
        return ""
    return "more time" if row.value > other.value else "less time"


@rule("launch.traffic", f"bandwidth counts from {percent(BANDWIDTH_SHARE)} of the link's raw rate on")
def traffic(evidence: Evidence) -> Finding | None:
    """Bytes that a launch moves over the link, as a share of what the link could carry meanwhile."""
    received = evidence.row("launch_traffic", "received", work="launch", duration_ns=0, argument_bytes=0)
    received = received or evidence.row("launch_traffic", "received", work="launch")
    if received is None:
        return None
    sent = evidence.row("launch_traffic", "sent", **received.params)
    back = f" and {quantity(sent.value, 'B/launch')} back" if sent else ""
    throughput, gpu = evidence.row("launch_cost", "throughput"), evidence.gpu
    link = link_rate(gpu.link) if gpu and not (gpu.integrated or gpu.link.coherent) else None
    # The share of the link's raw rate that launches take at this host's highest launch rate.
    share = received.value / throughput.value / link if throughput and link else None
    text, heavy = "Packet headers are included.", share is not None and share >= BANDWIDTH_SHARE
    if share is not None:
        text = f"At the highest launch rate that is {percent(share)} of the link: "
        text += "bandwidth adds to the cost of a launch." if heavy else "a launch costs latency, not bandwidth."
    title = f"A launch moves {quantity(received.value, 'B/launch')} over the link to the GPU{back}"
    advice = "Pass pointers instead of large arguments." if heavy else ""
    rows = (received, sent, evidence.row("launch_cost", "throughput"))
    return said(title, text, advice, rows=rows, severity="warning" if heavy else "note")


LOW, HIGH = PLAUSIBLE_WIRE_BYTES


@rule("launch.traffic_check", f"between {LOW:g} and {HIGH:g} counted bytes for each byte of payload")
def counters(evidence: Evidence) -> Finding | None:
    """A warning where the link's byte counters do not see a copy of known size as payload and packet headers."""
    checks = (("pinned_h2d", "received_per_byte"), ("pinned_d2h", "sent_per_byte"))
    rows = [evidence.row("launch_traffic", metric, work=work) for work, metric in checks]
    wrong = next((row for row in rows if row is not None and not LOW <= row.value <= HIGH), None)
    if wrong is None:
        return None
    title = f"The link's byte counters see {wrong.value:.3f} bytes for each byte of a known copy"
    text = "Packet headers do not explain that."
    advice = "Do not rely on this run's traffic figures."
    return said(title, text, advice, rows=rows, severity="warning")


@rule(
    "launch.wait",
    f"blocking above {WAIT_RATIO:g} times spinning, from the kernel's end until the wait returns; two figures "
    "where the row has two levels",
)
def waits(evidence: Evidence) -> Finding | None:
    """What a blocking wait costs after kernels of several lengths, and a spinning one."""
    spin, blocking = (
        dict(evidence.curve("launch_sync", "from_kernel", "duration_ns", wait=wait)) for wait in ("spin", "blocking")
    )
    lengths = [length for length in spin if length in blocking and min(spin[length].value, blocking[length].value) > 0]
    if not lengths:
        return None
    shown = [length for length in lengths if length > 0][:WAITS_NAMED] or lengths[:1]
    slow = any(blocking[length].value > spin[length].value * WAIT_RATIO for length in shown)
    after = [f"{wait_words(blocking[length])} after {_kernel(length)}" for length in shown]
    spinning = f"a spinning one takes {as_time(spin[shown[-1]].value)}"
    title = f"A blocking wait takes {listed(after)}"
    text = f"The longer the host sleeps, the longer it takes to wake; {spinning}."
    if shown == [0]:
        title += f", {spinning.replace('takes ', '')}"
        text = "After longer kernels, which were not measured, it takes longer, as the host sleeps longer."
    title = title if slow else f"A blocking wait costs little more than a spinning one after {_kernel(shown[-1])}"
    text = text if slow else f"It takes {wait_words(blocking[shown[-1]])}, {spinning}."
    advice = "Spin where round trips count and a core is free; block where the core has other work." if slow else ""
    return said(title, text, advice, rows=(row for length in lengths for row in (spin[length], blocking[length])))


def wait_words(row: Row) -> str:
    """The cost of a wait, or the two costs that its samples gather around: "8.07 or 35.7 µs"."""
    *lower, highest = (as_time(value) for value in row.levels or (row.value,))
    unit = highest.rpartition(" ")[2]
    return " or ".join([*(words.removesuffix(f" {unit}") for words in lower), highest])


def _kernel(duration_ns: int) -> str:
    return f"a {axis_value('duration_ns', duration_ns).replace(' ', '-')} kernel" if duration_ns else "an empty kernel"


SYNC_CALLS = {
    "record": "an event record",
    "record_untimed": "an untimed event record",
    "query": "an event query",
    "wait_event": "a stream's wait for an event",
    "idle_event": "an event synchronise",
    "idle_stream": "a stream synchronise",
}


@rule("launch.calls", f"the most expensive call; advises against timing above {TIMING_RATIO:g} times an untimed record")
def calls(evidence: Evidence) -> Finding | None:
    """The most expensive of the calls that go with launches, and what timing adds to an event record."""
    rows = {metric: evidence.row("launch_sync", metric, wait="spin") for metric in SYNC_CALLS}
    known = {metric: row for metric, row in rows.items() if row is not None}
    submit, launch = evidence.row("launch_cost", "submit"), call(evidence)
    if submit is None or launch is None or not known:
        return None
    worst = max(known, key=lambda metric: known[metric].value)
    longest = known[worst].value
    timed, untimed = rows["record"], rows["record_untimed"]
    costly = timed is not None and untimed is not None and timed.value > untimed.value * TIMING_RATIO
    text = "Every event and synchronise call was made with nothing to wait for."
    if timed is not None and untimed is not None:
        text = f"An event record without timing takes {as_time(untimed.value)}."
    title = f"{sentence(SYNC_CALLS[worst])} takes {as_time(longest)}, a launch {as_time(launch.value)}"
    advice = "Create events that only order work with cudaEventDisableTiming." if costly else ""
    return said(title, text, advice, rows=(submit, *known.values()))


@rule(
    "launch.signals",
    f"a host function above {HOST_FUNCTION_RATIO:g} times the quickest other way to the host and back: memory "
    "operations of the stream, or launch_cost's from_kernel and to_kernel",
)
def signals(evidence: Evidence) -> Finding | None:
    """What a signal between two kernels costs: a host function, memory operations, an event to another stream."""
    function, answered, event = (
        evidence.row("launch_signals", "between", way=way) for way in ("host_function", "write_wait", "event")
    )
    if function is None:
        return None
    back, there = (evidence.row("launch_cost", metric) for metric in ("from_kernel", "to_kernel"))
    ways = {}
    if answered is not None:
        ways["use cuStreamWriteValue, a host thread that polls, and cuStreamWaitValue"] = answered.value
    if back is not None and there is not None:
        ways["synchronise and launch again"] = back.value + there.value
    quickest = min(ways, key=ways.__getitem__, default="")
    costly = bool(ways) and function.value > ways[quickest] * HOST_FUNCTION_RATIO
    title = f"A host function between two kernels costs {as_time(function.value)}"
    if answered is not None:
        title += f", a stream's write and its wait for the host {as_time(answered.value)}"
    text = "That is the time from the last instruction of one kernel to the first of the next."
    if event is not None:
        text += f" An event to a kernel of another stream costs {as_time(event.value)}."
    advice = f"Where latency counts, {quickest}: {as_time(ways[quickest])}." if costly else ""
    return said(title, text, advice, rows=(function, answered, event, back, there))


@rule("launch.threads", f"under {percent(SCALING_SHARE)} of perfect scaling threads count as waiting for one another")
def threads(evidence: Evidence) -> Finding | None:
    """How launching scales with threads, each on a stream of its own."""
    points = [(count, row) for count, row in evidence.curve("launch_threads", "rate", "threads") if row.value > 0]
    if len(points) < 2 or points[0][0] != 1:
        return None
    alone, (count, best) = points[0][1], max(points, key=lambda point: point[1].value)
    speedup = best.value / alone.value
    share, most = speedup / count, points[-1][0]
    shared = share < SCALING_SHARE or count == 1
    wait = "threads wait for a lock in the driver or for a core"
    title, text = "More threads launch no faster than one", f"The {wait}."
    if count > 1:
        title = f"{count} threads launch {times(speedup)} as fast as one"
        text = f"That is {percent(share)} of perfect scaling{f': {wait}' if shared else ''}."
        text += f" {most} threads are no faster." if count < most else ""
    advice = "Submit fewer, larger pieces of work, because more threads gain little." if shared else ""
    return said(title, text, advice, rows=(alone, best))


@rule("launch.arguments", f"submit above {MARGIN:.2f} times that of the smallest arguments")
def arguments(evidence: Evidence) -> Finding | None:
    """What the largest arguments add to a launch; silent where that is next to nothing."""
    points = evidence.curve("launch_arguments", "submit", "argument_bytes", grid_blocks=1)
    if len(points) < 2 or points[0][1].value <= 0 or points[-1][1].value <= points[0][1].value * MARGIN:
        return None
    (_, first), (most, last) = points[0], points[-1]
    added_s = last.value - first.value
    title = f"{axis_value('argument_bytes', most)} of arguments add {as_time(added_s)} to a launch"
    text = f"The call then takes {times(last.value / first.value)} as long."
    advice = "Pass a pointer to what is large and seldom changes."
    return said(title, text, advice, rows=(first, last))


RULES: tuple[Rule, ...] = (
    starving, same_kernel, traffic, counters, waits, calls, signals, threads, arguments, tails,
)  # fmt: skip

"""Turns the launch suite's rows into findings: what a launch costs, when the GPU waits for the host, what to use."""

from __future__ import annotations

import math
from statistics import median

from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, facts_of, listed, rests_on, sentence
from microbench.analysis.stats import Row
from microbench.core.ops import COMPILED_LAYERS
from microbench.core.units import as_time, axis_value, percent, quantity, times
from microbench.explain import launch_facts as launches
from microbench.model.constants import half_width
from microbench.model.model import WAYS

# Two costs differ if their ratio is at least this.
MARGIN = 1.10
SWEEP_TOLERANCE = 1.5
TAIL_RATIO, WORST_RATIO = 2.0, 10.0
STOPPED_MORE = 2.0
# Periods of two rounds are the same one if they lie within this ratio.
SAME_PERIOD = 1.05
SCALING_SHARE = 0.5
NO_FASTER = "More threads launch no faster than one"
# A host function costs too much from this many times the quickest other way to the host and back.
HOST_FUNCTION_RATIO = 2.0
WAIT_RATIO = 2.0
WAITS_NAMED = 2
TIMING_RATIO = 2.0
COLD_S = 1e-3
# A process of one stream has shorter gaps if the difference is more than a few steps of the GPU's timer.
SHORTENED_S = 50e-9


PARTS = {
    "submit": ("The call itself (submit)", "Make fewer calls: fuse kernels, or replay a graph."),
    "start": (
        "The way to the GPU (from the call's return to the kernel's begin)",
        "Queue launches ahead, so that running kernels hide it.",
    ),
    "complete": ("Noticing its end (complete)", "Synchronise once after many launches, not after each."),
}


def cost(evidence: Evidence) -> Finding | None:
    """What one launch costs, and which of its three parts is the largest."""
    submit, start, complete, trip = (
        evidence.row("launch_cost", name) for name in ("submit", "start", "complete", "round_trip")
    )
    if submit is None or start is None or complete is None or trip is None:
        return None
    parts = {"submit": submit.value, "start": max(start.value - submit.value, 0.0), "complete": complete.value}
    largest = max(parts, key=parts.__getitem__)
    words, advice = PARTS[largest]
    return Finding(
        rule="launch.cost",
        severity="note",
        title=f"A launch costs the host {as_time(submit.value)}; launch and synchronise take {as_time(trip.value)}",
        text=f"{words} is the largest part: {percent(parts[largest] / sum(parts.values()))}.",
        advice=advice,
        threshold="the largest of submit, start less submit, and complete",
        rests_on=rests_on(submit, start, complete, trip),
    )


def starving(evidence: Evidence) -> Finding | None:
    """Below which kernel duration the GPU waits for the host, by the model and by the duration sweep."""
    submit, gap = evidence.row("launch_cost", "submit"), launches.usual_gap(evidence, "stream")
    crossover = launches.crossover_s(evidence)
    if submit is None or gap is None or crossover is None:
        return None
    points = launches.sweep(evidence, "period")
    below, above = launches.plateau_end(points) or (crossover, crossover)
    severity: Severity = "advice"
    title = f"Kernels shorter than {as_time(crossover)} are launch-bound: the GPU waits for the host"
    text = f"A launch takes the host {as_time(submit.value)}, the GPU needs {as_time(gap.value)} between kernels."
    advice = "Fuse such kernels, replay them as a graph, or launch them through a cheaper layer."
    if crossover <= 0:
        severity, advice = "good", ""
        title = "Even empty kernels keep this GPU busy: the host launches faster than the GPU starts them"
    elif not below / SWEEP_TOLERANCE <= crossover <= above * SWEEP_TOLERANCE:
        severity, advice = "warning", "Believe the sweep, and measure again on an idle machine."
        title = f"Kernels shorter than {as_time(crossover)} should be launch-bound, but the duration sweep disagrees"
        text = f"The limit that the sweep shows lies between {as_time(below)} and {as_time(above)}."
    return Finding(
        rule="launch.starving",
        severity=severity,
        title=title,
        text=text,
        advice=advice,
        threshold=(
            "duration as profilers report it < submit - gap; the sweep leaves its plateau above "
            f"{launches.PLATEAU_MARGIN:.2f} times the shortest kernels' period, and agrees within a factor of "
            f"{SWEEP_TOLERANCE:g}"
        ),
        rests_on=tuple(dict.fromkeys((*rests_on(submit, *(row for _, row in points)), *gap.rests_on))),
    )


def gaps(evidence: Evidence) -> Finding | None:
    """How long the GPU is idle behind each kernel, in a stream and in a graph, and what lengthens that."""
    stream, graph = (launches.usual_gap(evidence, way) for way in WAYS)
    alone = launches.usual_gap(evidence, "graph", "one")
    if stream is None or graph is None or not evidence.rows("launch_gap"):
        return None
    text = "A graph saves the difference for each kernel, even where the host keeps up."
    if stream.value - graph.value <= half_width(stream) + half_width(graph):
        text = "A graph does not shorten the gap here."
    advice = ""
    shorter_s = graph.value - alone.value if alone is not None else 0.0
    if shorter_s > SHORTENED_S:
        left = f"{as_time(shorter_s)} shorter" if shorter_s < graph.value else "too short to measure"
        text += (
            f" While a process has launched into one stream only, a graph's gaps are {left};"
            " about eight launches into a second stream, or a profiler, end that for good."
        )
        advice = "Run the warm-up of a capture in the stream that the program uses, not in a side stream."
    return Finding(
        rule="launch.gap",
        severity="note",
        title=f"Behind a kernel that writes the GPU idles {as_time(stream.value)}, in a graph {as_time(graph.value)}",
        text=text,
        advice=advice,
        threshold="period of a chain of kernels that write, less their duration as profilers report it",
        rests_on=tuple(dict.fromkeys((*stream.rests_on, *graph.rests_on))),
    )


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
    return Finding(
        rule="launch.tail",
        severity="warning" if spiky else "note" if rare else "good",
        title=f"One launch in a hundred takes {times(p99)} the median, the worst {times(worst)}",
        text=text,
        advice="Pin the process to an idle core, and read medians." if spiky else "",
        threshold=f"p99 above {TAIL_RATIO:g} times the median warns; a worst above {WORST_RATIO:g} times is noted",
        rests_on=rests_on(row),
    )


def same_kernel(evidence: Evidence) -> Finding | None:
    """What Python adds to the launch of the same empty kernel, and which layer to choose."""
    rows = launches.same_kernel_rows(evidence)
    loop = next((row for row in rows if launches.layer(row) == launches.NATIVE), None)
    layers = [row for row in rows if launches.layer(row) not in COMPILED_LAYERS]
    runtime = next((row for row in rows if launches.layer(row) in COMPILED_LAYERS and row is not loop), None)
    if loop is None or not layers:
        return None
    best, worst = layers[0], layers[-1]
    equal = [launches.title(evidence, row) for row in layers if row.value <= best.value * MARGIN]
    plural = "" if len(equal) > 1 else "es"
    text = f"A compiled loop takes {as_time(loop.value)}"
    if runtime is not None and (compared := _compared(runtime, loop)):
        text += f", and {compared} by the runtime API, as in C++"
    if worst is not best:
        text += f"; {launches.title(evidence, worst)} takes {times(worst.value / loop.value)} as long"
    a_call = f"{as_time(best.value)} a call with {best.params.get('arguments')} arguments"
    where = "From Python,"
    if missing := launches.unmeasured(evidence, "same_kernel").get("not measured", []):
        # A library that is launched in two ways is one layer here, as on the screen.
        libraries = {launches.title(evidence, row).partition(" (")[0] for row in layers}
        where = f"Of {len(libraries) + len(missing)} installed Python layers {len(libraries)} were measured; of these"
    return Finding(
        rule="launch.layers",
        severity="advice",
        title=f"{where} {listed(equal)} launch{plural} cheapest: {a_call}",
        text=f"{text}.",
        advice="It matters only for kernels shorter than their launch call; for longer ones any layer will do.",
        threshold=f"layers within {MARGIN:.2f} times the cheapest count as equal",
        rests_on=rests_on(loop, runtime, *layers),
    )


def _compared(row: Row, other: Row) -> str:
    """How a time compares with another one; empty if the two differ but their intervals do not tell how."""
    if other.value / MARGIN <= row.value <= other.value * MARGIN:
        return "about as long"
    if row.interval.overlaps(other.interval):
        return ""
    return "more time" if row.value > other.value else "less time"


def one_op(evidence: Evidence) -> Finding | None:
    """What one operation costs through the array libraries; no ratio to the loop, as each has a kernel of its own."""
    rows = launches.layer_rows(evidence, "one_op")
    if not rows:
        return None
    best, worst = rows[0], rows[-1]
    title = f"One array operation costs {as_time(best.value)} to submit through {launches.title(evidence, best)}"
    if worst is not best:
        title += f", {as_time(worst.value)} through {launches.title(evidence, worst)}"
    several = [launches.title(evidence, row) for row in rows if (launches.kernels_per_call(row) or 1) != 1]
    more = f" {listed(several)} launch{'' if len(several) > 1 else 'es'} several kernels a call." if several else ""
    return Finding(
        rule="launch.one_op",
        severity="note",
        title=title,
        text=f"This is x + 1 on one element, a different kernel in each library.{more}",
        threshold="the cheapest and the most expensive library",
        rests_on=rests_on(*rows),
    )


def queue(evidence: Evidence) -> Finding | None:
    """How many launches the queue holds, and what a call costs once it is full."""
    points = evidence.curve("launch_queue", "depth", "argument_bytes")
    if not points:
        return None
    depth, submit, longest = points[0][1], evidence.row("launch_cost", "submit"), launches.sweep(evidence, "gated")[-1:]
    text = "A call then returns only when a kernel has begun."
    if longest and submit:
        duration_s, row = longest[0]
        text = (
            f"With kernels of {as_time(duration_s)} a call then takes {as_time(row.value)}, and the host can do "
            "nothing else."
        )
    return Finding(
        rule="launch.queue",
        severity="note",
        title=f"The launch queue holds {quantity(depth.value, 'launch')} launches; the next call blocks",
        text=text,
        threshold="the first call that blocks behind a shut gate",
        rests_on=rests_on(depth, submit, *(row for _, row in longest)),
    )


def traffic(evidence: Evidence) -> Finding | None:
    """Bytes that a launch moves over the link, as a share of what the link could carry meanwhile."""
    received = evidence.row("launch_traffic", "received", work="launch", duration_ns=0, argument_bytes=0)
    received = received or evidence.row("launch_traffic", "received", work="launch")
    if received is None:
        return None
    sent = evidence.row("launch_traffic", "sent", **received.params)
    back = f" and {quantity(sent.value, 'B/launch')} back" if sent else ""
    share = launches.link_share(evidence, received)
    text, heavy = "Packet headers are included.", share is not None and share >= launches.BANDWIDTH_SHARE
    if share is not None:
        text = f"At the highest launch rate that is {percent(share)} of the link: "
        text += "bandwidth adds to the cost of a launch." if heavy else "a launch costs latency, not bandwidth."
    return Finding(
        rule="launch.traffic",
        severity="warning" if heavy else "note",
        title=f"A launch moves {quantity(received.value, 'B/launch')} over the link to the GPU{back}",
        text=text,
        advice="Pass pointers instead of large arguments." if heavy else "",
        threshold=f"bandwidth counts from {percent(launches.BANDWIDTH_SHARE)} of the link's raw rate on",
        rests_on=rests_on(received, sent, evidence.row("launch_cost", "throughput")),
    )


def counters(evidence: Evidence) -> Finding | None:
    """A warning where the link's byte counters do not see a copy of known size as payload and packet headers."""
    low, high = launches.PLAUSIBLE_WIRE_BYTES
    checks = (("pinned_h2d", "received_per_byte"), ("pinned_d2h", "sent_per_byte"))
    rows = [evidence.row("launch_traffic", metric, work=work) for work, metric in checks]
    wrong = next((row for row in rows if row is not None and not low <= row.value <= high), None)
    if wrong is None:
        return None
    return Finding(
        rule="launch.traffic_check",
        severity="warning",
        title=f"The link's byte counters see {wrong.value:.3f} bytes for each byte of a known copy",
        text="Packet headers do not explain that.",
        advice="Do not rely on this run's traffic figures.",
        threshold=f"between {low:g} and {high:g} counted bytes for each byte of payload",
        rests_on=rests_on(*rows),
    )


def waits(evidence: Evidence) -> Finding | None:
    """What a blocking wait costs after kernels of several lengths, and a spinning one."""
    spin, blocking = (launches.waits(evidence, wait) for wait in ("spin", "blocking"))
    lengths = sorted(spin.keys() & blocking.keys())
    if not lengths:
        return None
    shown = [length for length in lengths if length > 0][:WAITS_NAMED] or lengths[:1]
    slow = any(blocking[length].value > spin[length].value * WAIT_RATIO for length in shown)
    after = [f"{launches.wait_words(blocking[length])} after {_kernel(length)}" for length in shown]
    spinning = f"a spinning one takes {as_time(spin[shown[-1]].value)}"
    title = f"A blocking wait takes {listed(after)}"
    text = f"The longer the host sleeps, the longer it takes to wake; {spinning}."
    if shown == [0]:
        title += f", {spinning.replace('takes ', '')}"
        text = "After longer kernels, which were not measured, it takes longer, as the host sleeps longer."
    return Finding(
        rule="launch.wait",
        severity="advice" if slow else "note",
        title=title if slow else f"A blocking wait costs little more than a spinning one after {_kernel(shown[-1])}",
        text=text if slow else f"It takes {launches.wait_words(blocking[shown[-1]])}, {spinning}.",
        advice="Spin where round trips count and a core is free; block where the core has other work." if slow else "",
        threshold=(
            f"blocking above {WAIT_RATIO:g} times spinning, from the kernel's end until the wait returns; two figures "
            "where the row has two levels"
        ),
        rests_on=rests_on(*(row for length in lengths for row in (spin[length], blocking[length]))),
    )


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


def calls(evidence: Evidence) -> Finding | None:
    """The most expensive of the calls that go with launches, and what timing adds to an event record."""
    rows = {metric: evidence.row("launch_sync", metric, wait="spin") for metric in SYNC_CALLS}
    known = {metric: row for metric, row in rows.items() if row is not None}
    submit = evidence.row("launch_cost", "submit")
    if submit is None or not known:
        return None
    worst = max(known, key=lambda metric: known[metric].value)
    longest = known[worst].value
    timed, untimed = rows["record"], rows["record_untimed"]
    costly = timed is not None and untimed is not None and timed.value > untimed.value * TIMING_RATIO
    text = "Every event and synchronise call was made with nothing to wait for."
    if timed is not None and untimed is not None:
        text = f"An event record without timing takes {as_time(untimed.value)}."
    return Finding(
        rule="launch.calls",
        severity="advice" if costly else "note",
        title=f"{sentence(SYNC_CALLS[worst])} takes {as_time(longest)}, a launch {as_time(submit.value)}",
        text=text,
        advice="Create events that only order work with cudaEventDisableTiming." if costly else "",
        threshold=f"the most expensive call; advises against timing above {TIMING_RATIO:g} times an untimed record",
        rests_on=rests_on(submit, *known.values()),
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
    return Finding(
        rule="launch.signals",
        severity="advice" if costly else "note",
        title=title,
        text=text,
        advice=f"Where latency counts, {quickest}: {as_time(ways[quickest])}." if costly else "",
        threshold=(
            f"a host function above {HOST_FUNCTION_RATIO:g} times the quickest other way to the host and back: memory "
            "operations of the stream, or launch_cost's from_kernel and to_kernel"
        ),
        rests_on=rests_on(function, answered, event, back, there),
    )


def threads(evidence: Evidence) -> Finding | None:
    """How launching scales with threads, each on a stream of its own."""
    points = [(count, row) for count, row in evidence.curve("launch_threads", "rate", "threads") if row.value > 0]
    if len(points) < 2 or points[0][0] != 1:
        return None
    alone, (count, best) = points[0][1], max(points, key=lambda point: point[1].value)
    speedup = best.value / alone.value
    share, most = speedup / count, points[-1][0]
    shared = share < SCALING_SHARE or count == 1
    wait = "threads wait for a lock in the driver or for a core" if shared else ""
    text = f"That is {percent(share)} of perfect scaling{': ' if wait else ''}{wait}." if count > 1 else f"The {wait}."
    if 1 < count < most:
        text += f" {most} threads are no faster."
    return Finding(
        rule="launch.threads",
        severity="advice" if shared else "note",
        title=f"{count} threads launch {times(speedup)} as fast as one" if count > 1 else NO_FASTER,
        text=text,
        advice="Submit fewer, larger pieces of work, because more threads gain little." if shared else "",
        threshold=f"under {percent(SCALING_SHARE)} of perfect scaling threads count as waiting for one another",
        rests_on=rests_on(alone, best),
    )


def streams(evidence: Evidence) -> Finding | None:
    """Whether launches into more streams are faster, and how many kernels run at once."""
    points = [(count, row) for count, row in evidence.curve("launch_streams", "rate", "streams") if row.value > 0]
    if len(points) < 2:
        return None
    (few, first), (many, last) = points[0], points[-1]
    ratio = last.value / first.value
    resident = [row for _, row in evidence.curve("launch_streams", "resident", "streams")]
    most = max((row.value for row in resident), default=0)
    text = f"Up to {quantity(most, 'launch')} kernels ran at once." if most else "One thread submitted all launches."
    if ratio <= MARGIN:
        text += " Streams overlap kernels; they do not make launches cheaper."
    return Finding(
        rule="launch.streams",
        severity="note",
        title=f"Launching into {many} streams runs at {times(ratio)} the rate of {few}",
        text=text,
        threshold=f"launching is faster above {MARGIN:.2f} times the rate",
        rests_on=rests_on(first, last, *resident),
    )


KINDS = {
    "default_stream": "a launch into the legacy default stream",
    "launch_ex": "cuLaunchKernelEx",
    "cooperative": "a cooperative launch",
    "cluster": "a cluster launch",
    "pdl": "programmatic dependent launch",
}


def kinds(evidence: Evidence) -> Finding | None:
    """The kinds of launch whose call costs more or less than a plain one, and the gap that programmatic dependent
    launch saves between kernels of no length."""
    plain = evidence.row("launch_kind", "submit", kind="own_stream")
    others = [row for row in evidence.rows("launch_kind", "submit") if row.params.get("kind") != "own_stream"]
    if plain is None or not others:
        return None
    gap, pdl = (evidence.row("launch_kind", "gap", kind=kind) for kind in ("own_stream", "pdl"))
    others.sort(key=lambda row: row.value)
    cheapest, worst = others[0], others[-1]
    costlier, cheaper = worst.value > plain.value * MARGIN, cheapest.value * MARGIN < plain.value
    shorter = gap and pdl and pdl.value * MARGIN < gap.value
    if not costlier and not cheaper and not shorter:
        return None
    share, less = percent(1 - cheapest.value / plain.value), KINDS.get(_kind(cheapest), _kind(cheapest))
    calls = f"{sentence(less)} costs {share} less to submit than a plain launch" if cheaper else ""
    if costlier:
        calls = f"{sentence(KINDS.get(_kind(worst), _kind(worst)))} costs {times(worst.value / plain.value)} a plain "
        calls += f"launch to submit{f', {less} costs less' if cheaper else ''}"
    title, text = calls, f"A plain launch into a stream takes {as_time(plain.value)}."
    if gap and pdl and shorter:
        title = "Programmatic dependent launch cuts the gap between kernels of no length from "
        title += f"{as_time(gap.value)} to {as_time(pdl.value)}"
        text = f"{calls}." if calls else "No kind of launch costs more or less to submit than a plain one."
        if cheaper and not costlier:
            text += " No kind costs more."
    return Finding(
        rule="launch.kind",
        severity="note",
        title=title,
        text=text,
        threshold=(
            f"a kind differs from {MARGIN:.2f} times a plain launch into a stream on, either way; gaps between kernels "
            "that only record their begin and end"
        ),
        rests_on=rests_on(plain, *others, gap, pdl),
    )


def _kind(row: Row) -> str:
    return str(row.params.get("kind"))


def arguments(evidence: Evidence) -> Finding | None:
    """What the largest arguments add to a launch; silent where that is next to nothing."""
    points = evidence.curve("launch_arguments", "submit", "argument_bytes", grid_blocks=1)
    if len(points) < 2 or points[0][1].value <= 0 or points[-1][1].value <= points[0][1].value * MARGIN:
        return None
    (_, first), (most, last) = points[0], points[-1]
    added_s = last.value - first.value
    return Finding(
        rule="launch.arguments",
        severity="advice",
        title=f"{axis_value('argument_bytes', most)} of arguments add {as_time(added_s)} to a launch",
        text=f"The call then takes {times(last.value / first.value)} as long.",
        advice="Pass a pointer to what is large and seldom changes.",
        threshold=f"submit above {MARGIN:.2f} times that of the smallest arguments",
        rests_on=rests_on(first, last),
    )


COLD = {
    "context": "the CUDA context",
    "nvrtc": "compiling with NVRTC",
    "module_load_lazy": "loading a module lazily",
    "module_load_eager": "loading a module eagerly",
    "first_launch_lazy": "the first launch of a lazily loaded kernel",
    "first_launch_eager": "the first launch",
    "second_launch": "the second launch",
    "numba_import": "importing Numba",
    "numba_jit": "first use of Numba",
    "cupy_import": "importing CuPy",
    "cupy_rawkernel": "first use of a CuPy RawKernel",
    "cupy_ufunc": "first use of a CuPy ufunc",
}


def cold(evidence: Evidence) -> Finding | None:
    """The two most expensive things that a process pays once, before its first result."""
    rows = sorted(evidence.rows("launch_cold", "seconds"), key=lambda row: -row.value)
    if not rows:
        return None
    names = [str(row.params.get("what")) for row in rows]
    words = [f"{COLD.get(name, name)} {as_time(row.value)}" for name, row in zip(names, rows, strict=True)]
    first = f"{sentence(COLD.get(names[0], names[0]))} costs {as_time(rows[0].value)}"
    return Finding(
        rule="launch.cold",
        severity="note",
        title="; ".join([first, *words[1:2]]),
        text="A process pays for each once; caches were empty.",
        advice="Warm up before timing anything, and keep processes alive." if rows[0].value > COLD_S else "",
        threshold=f"the two largest; warm-up is advised above {as_time(COLD_S)}",
        rests_on=rests_on(*rows),
    )


def slowest(evidence: Evidence) -> Finding | None:
    """What the slowest of many launches take, whether the machine stops the core then, and what they share."""
    rows = {name: evidence.row("launch_tail", name, beside="nothing") for name in ("p9999", "worst", "stops")}
    rare, worst, stops = rows.values()
    if rare is None or worst is None:
        return None
    idle = evidence.row("launch_tail", "idle_stops", beside="nothing")
    text, by_machine = (
        "In most tenths of the calls none took 3 us longer than the median.",
        False,
    )
    if stops is not None:
        quiet, least, most = (
            (idle.value, idle.interval.low, idle.interval.high) if idle is not None else (0.0, 0.0, 0.0)
        )
        by_machine = stops.interval.high < STOPPED_MORE * least
        if by_machine:
            whose = "the machine stops the core, not the launch"
        elif stops.interval.low > STOPPED_MORE * most:
            whose = "launch calls are slow by themselves"
        else:
            whose = "their scatter leaves open whether the machine or the launch is slow"
        text = f"A second of launch calls has {stops.value:.0f} stops, one of queries {quiet:.0f}: {whose}."
    longest_s = worst.over_rounds("max")
    return Finding(
        rule="launch.slowest",
        severity="note",
        title=f"One launch in 10 000 takes {as_time(rare.value)} or more; the worst took {as_time(longest_s)}",
        text=f"{text}{_shared(rare)}",
        advice="Give the thread a core without interrupts: isolcpus, nohz_full, irqaffinity." if by_machine else "",
        threshold=f"launches are slow by themselves if they surely stop {STOPPED_MORE:g} times as often as queries; "
        "the machine stops the core if they surely do not",
        rests_on=rests_on(rare, worst, stops, idle),
    )


def _shared(row: Row) -> str:
    """What the slow calls have in common, as a sentence: a cause before a period; empty if nothing was found."""

    def figures(name: str) -> list[float]:
        return [float(value) for value in facts_of(row, name) if isinstance(value, int | float)]

    rounds, calls = len(row.outcomes), sum(figures("slow_calls"))
    share, held = (sum(figures(name)) / rounds for name in ("off_core_bursts", "off_core_slow"))
    # Three standard deviations of the number of calls if each burst is equally likely.
    if held > share + 3 * math.sqrt(share / max(calls, 1)):
        return f" {percent(held)} of the slow calls are in bursts in which the thread left its core."
    for name, words in (
        ("slow_tick", "come with a timer's tick, {:.0f} times a second"),
        ("slow_every", "follow the one before after {:.0f} calls"),
    ):
        periods = figures(name)
        if len(periods) > rounds / 2 and max(periods) < SAME_PERIOD * min(periods):
            number = 1 / median(periods) if name == "slow_tick" else median(periods)
            return f" {percent(sum(figures(f'{name}_share')) / rounds)} of the slow calls {words.format(number)}."
    return ""


def slowest_beside(evidence: Evidence) -> Finding | None:
    """What the slowest of many launches take beside other work, and beside which they are surely slower."""
    alone = evidence.row("launch_tail", "p9999", beside="nothing")
    info = evidence.run.benchmark("launch_tail")
    titles = {} if info is None else next((axis.labels for axis in info.axes if axis.name == "beside"), {})
    found = {name: evidence.row("launch_tail", "p9999", beside=name) for name in titles if name != "nothing"}
    rows = {name: row for name, row in found.items() if row is not None}
    if alone is None or not rows:
        return None
    words = {name: f"{titles[name]}{_through_mps(row)}" for name, row in rows.items()}
    slower = {
        name: row
        for name, row in rows.items()
        if row.value > MARGIN * alone.value and row.interval.low > alone.interval.high
    }
    worst = max(slower, key=lambda name: slower[name].value, default=None)
    all_words = list(words.values())
    none = f"neither {' nor '.join(all_words)} makes" if len(all_words) > 1 else f"{all_words[0]} does not make"
    title = f"{sentence(none)} the slowest launches surely slower"
    if worst is not None:
        figures = f"{as_time(slower[worst].value)} or more instead of {as_time(alone.value)}"
        title = f"Beside {words[worst]} one launch in 10 000 takes {figures}"
    return Finding(
        rule="launch.slowest_beside",
        severity="note",
        title=title,
        text=f"It is {as_time(alone.value)} alone, "
        + f"{listed([f'{as_time(row.value)} beside {words[name]}' for name, row in rows.items()])}.",
        threshold=f"slower by more than {percent(MARGIN - 1)}, and intervals that do not overlap",
        rests_on=rests_on(alone, *rows.values()),
    )


def _through_mps(row: Row) -> str:
    """How the processes share the GPU; empty if the row has no second process or the driver does not say."""
    through = next((value for value in facts_of(row, "mps") if isinstance(value, bool)), None)
    return "" if through is None else " through MPS" if through else " without MPS"


RULES: tuple[Rule, ...] = (
    cost, starving, gaps, same_kernel, one_op, queue, traffic, counters, waits, calls, signals, threads, streams, kinds,
    arguments, cold, tails, slowest, slowest_beside,
)  # fmt: skip

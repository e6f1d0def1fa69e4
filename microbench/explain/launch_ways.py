"""Explains the ways to launch: kinds, arguments, queue, streams, threads."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on
from microbench.analysis.stats import Row
from microbench.core.model import link_rate
from microbench.core.units import as_time, axis_value, percent, quantity, rate_of, times
from microbench.explain.launch_cost import sweep

CHANGE_MARGIN = 1.10
SCALING_SHARE = 0.5

KINDS = {
    "default_stream": "the legacy default stream",
    "own_stream": "an own stream",
    "launch_ex": "cuLaunchKernelEx",
    "cooperative": "a cooperative launch",
    "cluster": "a cluster launch",
    "pdl": "programmatic dependent launch",
}


def kinds(evidence: Evidence) -> list[Finding]:
    """Which kind of launch costs more, or less, than a plain one into an own stream."""
    plain = evidence.row("launch_kind", "submit", kind="own_stream")
    others = [row for row in evidence.rows("launch_kind", "submit") if row.params.get("kind") != "own_stream"]
    if plain is None or not others:
        return []
    dearer = [row for row in others if row.value > plain.value * CHANGE_MARGIN]
    words = [f"{_kind(row)} {as_time(row.value)} ({times(row.value / plain.value)})" for row in dearer]
    text = f"A plain launch into an own stream takes {as_time(plain.value)} to submit"
    text += f"; dearer: {', '.join(words)}." if dearer else ", and no other kind is dearer by more than a tenth."
    gap, pdl = (evidence.row("launch_kind", "gap", kind=kind) for kind in ("own_stream", "pdl"))
    if gap and pdl and pdl.value * CHANGE_MARGIN < gap.value:
        text += (
            f" Programmatic dependent launch shortens the gap between dependent kernels from {as_time(gap.value)} to "
            f"{as_time(pdl.value)}."
        )
    title = "Every kind of launch costs the same to submit"
    if dearer:
        names = listed([_kind(row) for row in dearer])
        title = f"{names[0].upper()}{names[1:]} cost{'s' if len(dearer) == 1 else ''} more to submit"
    return [
        Finding(
            rule="launch.kind",
            severity="note",
            title=title,
            text=text,
            threshold=f"a kind differs above {CHANGE_MARGIN:.2f} times",
            rests_on=rests_on(plain, *others, gap, pdl),
            suite="launch",
        )
    ]


def _kind(row: Row) -> str:
    kind = str(row.params.get("kind"))
    return KINDS.get(kind, kind)


def arguments(evidence: Evidence) -> list[Finding]:
    """What the size of the kernel's arguments adds to a launch."""
    points = evidence.curve("launch_arguments", "submit", "argument_bytes", grid_blocks=1)
    if len(points) < 2 or points[0][1].value <= 0:
        return []
    (least, first), (most, last) = points[0], points[-1]
    added_s, ratio = last.value - first.value, last.value / first.value
    sizes = f"{axis_value('argument_bytes', most)} of arguments"
    dear = ratio > CHANGE_MARGIN
    title = f"Up to {sizes} cost a launch next to nothing"
    if dear:
        title = f"{sizes} add {as_time(added_s)} to a launch"
    return [
        Finding(
            rule="launch.arguments",
            severity="note",
            title=title,
            text=(
                f"Submit takes {as_time(first.value)} with {axis_value('argument_bytes', least)} and "
                f"{as_time(last.value)} with {axis_value('argument_bytes', most)} ({times(ratio)})."
                + (" Pass a pointer to what is large and seldom changes." if dear else "")
            ),
            threshold=f"told as a cost above {CHANGE_MARGIN:.2f} times the smallest",
            rests_on=rests_on(first, last),
            suite="launch",
        )
    ]


def queue(evidence: Evidence) -> list[Finding]:
    """Where the launch queue fills, and what a call then costs."""
    points = evidence.curve("launch_queue", "depth", "argument_bytes")
    if not points:
        return []
    (_, first), (most, last) = points[0], points[-1]
    depth = quantity(first.value, "launch")
    text = f"With {depth} launches unfinished in a stream, the next call waits until one has run."
    submit = evidence.row("launch_cost", "submit")
    longest = sweep(evidence, "gated")[-1:]
    if longest and submit:
        duration_s, row = longest[0]
        text += (
            f" From there a call takes as long as a kernel: with kernels of {as_time(duration_s)} it is "
            f"{as_time(row.value)} instead of {as_time(submit.value)}, and the host can do nothing else meanwhile."
        )
    if last.value * CHANGE_MARGIN < first.value:
        text += f" With {axis_value('argument_bytes', most)} of arguments only {quantity(last.value, 'launch')} fit."
    return [
        Finding(
            rule="launch.queue",
            severity="note",
            title=f"The queue is full at {depth} launches; then a call blocks",
            text=text,
            threshold="the first call that blocks behind a shut gate",
            rests_on=rests_on(first, last, submit),
            suite="launch",
        )
    ]


def streams(evidence: Evidence) -> list[Finding]:
    """Whether more streams launch faster, and how many kernels run at once."""
    points = [(count, row) for count, row in evidence.curve("launch_streams", "rate", "streams") if row.value > 0]
    if len(points) < 2:
        return []
    (few, first), (many, last) = points[0], points[-1]
    ratio = last.value / first.value
    resident = evidence.curve("launch_streams", "resident", "streams")
    text = (
        f"One thread makes {rate_of(first.value, 'launches')} into {few} stream{'s' if few > 1 else ''} and "
        f"{rate_of(last.value, 'launches')} into {many} ({times(ratio)})."
    )
    if resident:
        most = max(resident, key=lambda point: point[1].value)
        text += f" At {most[0]} streams {quantity(most[1].value, 'launch')} kernels were resident at once."
    title = "Streams overlap kernels; they do not make launching faster"
    if ratio > CHANGE_MARGIN:
        title = f"Launching into {many} streams runs at {times(ratio)} the rate of {few}"
    return [
        Finding(
            rule="launch.streams",
            severity="note",
            title=title,
            text=text,
            threshold=f"told as faster above {CHANGE_MARGIN:.2f} times the rate",
            rests_on=rests_on(first, last, *(row for _, row in resident)),
            suite="launch",
        )
    ]


def threads(evidence: Evidence) -> list[Finding]:
    """How launching scales with threads, each on a stream of its own."""
    points = [(count, row) for count, row in evidence.curve("launch_threads", "rate", "threads") if row.value > 0]
    if len(points) < 2 or points[0][0] != 1:
        return []
    one, (count, best) = points[0][1], max(points, key=lambda point: point[1].value)
    speedup = best.value / one.value
    share = speedup / count
    shared = share < SCALING_SHARE
    text = (
        f"One thread makes {rate_of(one.value, 'launches')}, {count} thread{'s' if count > 1 else ''} "
        f"{rate_of(best.value, 'launches')}: {percent(share)} of what {count} times one would be."
    )
    if shared:
        text += " They take turns somewhere (a lock in the driver, or too few cores), so each call grows longer."
    title = f"{count} threads launch {times(speedup)} as fast as one" if count > 1 else "More threads launch no faster"
    return [
        Finding(
            rule="launch.threads",
            severity="advice" if shared else "note",
            title=title,
            text=text,
            threshold=f"scaling under {percent(SCALING_SHARE)} is told as taking turns",
            rests_on=rests_on(one, best),
            suite="launch",
        )
    ]


# Explains launch_traffic: what travels over the link for each launch, and why that is latency and not bandwidth.


BANDWIDTH_SHARE = 0.05
CONSTANT_SHARE = 0.05
PLAUSIBLE_WIRE_BYTES = (1.0, 1.4)
PINNED = (("pinned_h2d", "received_per_byte", "to the GPU"), ("pinned_d2h", "sent_per_byte", "from the GPU"))
GRAPH_WORKS = ("graph_1000", "graph_100", "graph_10", "graph_1")


def traffic(evidence: Evidence) -> list[Finding]:
    """Bytes a launch over the link, held against what the link could carry meanwhile."""
    received = evidence.row("launch_traffic", "received", work="launch", duration_ns=0, argument_bytes=0)
    received = received or evidence.row("launch_traffic", "received", work="launch")
    if received is None:
        return []
    sent = evidence.row("launch_traffic", "sent", **received.params)
    back = f" and {quantity(sent.value, 'B/launch')} back" if sent else ""
    share, share_words = _share(evidence, received)
    latency = share is not None and share < BANDWIDTH_SHARE
    words = [f"A launch moves {quantity(received.value, 'B/launch')} to the GPU{back}, packet headers included."]
    words += [_over_durations(evidence), _by_arguments(evidence), _of_graphs(evidence), share_words]
    if latency:
        words.append("The link is all but idle: what its transactions cost a launch is latency, not bandwidth.")
    elif share is not None:
        words.append("That is no longer a trifle: bandwidth takes part in what a launch costs here.")
    return [
        Finding(
            rule="launch.traffic",
            severity="note" if latency or share is None else "warning",
            title=f"A launch moves {quantity(received.value, 'B/launch')} over the link to the GPU{back}",
            text=" ".join(word for word in words if word),
            threshold=(
                f"under {percent(BANDWIDTH_SHARE)} of the link's raw rate it is latency; under "
                f"{percent(CONSTANT_SHARE)} "
                "change over the durations it counts as constant"
            ),
            rests_on=rests_on(received, sent, evidence.row("launch_cost", "throughput")),
            suite="launch",
        )
    ]


def _share(evidence: Evidence, received: Row) -> tuple[float | None, str]:
    throughput, gpu = evidence.row("launch_cost", "throughput"), evidence.gpu
    link = link_rate(gpu.link) if gpu and not (gpu.integrated or gpu.link.coherent) else None
    if throughput is None or link is None:
        return None, ""
    rate = received.value / throughput.value
    share = rate / link
    words = (
        f"At {rate_of(1 / throughput.value, 'launches')}, the most this host makes, that is {quantity(rate, 'B/s')}, "
        f"{percent(share)} of the link's {quantity(link, 'B/s')}."
    )
    return share, words


def _over_durations(evidence: Evidence) -> str:
    points = evidence.curve("launch_traffic", "received", "duration_ns", work="launch", argument_bytes=0)
    if len(points) < 2:
        return ""
    values = [row.value for _, row in points]
    change = (max(values) - min(values)) / (sum(values) / len(values)) if sum(values) else 0.0
    span = f"kernels of {axis_value('duration_ns', points[0][0])} to {axis_value('duration_ns', points[-1][0])}"
    if change < CONSTANT_SHARE:
        return f"It is the same for {span} (within {percent(change)})."
    return f"It changes by {percent(change)} over {span}."


def slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Least-squares slope through points; None with fewer than two different x."""
    mean_x = sum(x for x, _ in points) / max(len(points), 1)
    mean_y = sum(y for _, y in points) / max(len(points), 1)
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else None


def _by_arguments(evidence: Evidence) -> str:
    points = evidence.curve("launch_traffic", "received", "argument_bytes", work="launch", duration_ns=0)
    per_byte = slope([(size, row.value) for size, row in points])
    return f"Each byte of arguments adds {quantity(per_byte, 'B/launch')}." if per_byte is not None else ""


def _of_graphs(evidence: Evidence) -> str:
    for work in GRAPH_WORKS:
        row = evidence.row("launch_traffic", "received", work=work)
        if row is not None:
            nodes = work.removeprefix("graph_")
            return f"A graph of {nodes} kernels needs {quantity(row.value, 'B/launch')} in all."
    return ""


def counters(evidence: Evidence) -> list[Finding]:
    """Whether the byte counters count a copy of known size plausibly: payload plus packet headers."""
    low, high = PLAUSIBLE_WIRE_BYTES
    found = [
        (row, words)
        for work, metric, words in PINNED
        if (row := evidence.row("launch_traffic", metric, work=work)) is not None
    ]
    wrong = [(row, words) for row, words in found if not low <= row.value <= high]
    if not found:
        return []
    seen = " and ".join(f"{row.value:.3f} bytes {words}" for row, words in found)
    return [
        Finding(
            rule="launch.traffic_check",
            severity="warning" if wrong else "good",
            title=f"The link's byte counters {'do not add up' if wrong else 'count a known copy right'}",
            text=(
                f"A pinned copy in the same session was counted as {seen} for each byte of payload; packet headers "
                "explain " + ("no such figure: do not rely on the traffic figures." if wrong else "what is over 1.")
            ),
            threshold=f"between {low:g} and {high:g} counted bytes for each byte of payload",
            rests_on=rests_on(*(row for row, _ in found)),
            suite="launch",
        )
    ]


# Explains what goes with launches: ways to wait, calls around them, and what is paid once a process.


WAIT_MARGIN = 2.0
COLD_S = 1e-3

SYNC_CALLS = {
    "record": "an event record",
    "record_untimed": "an untimed event record",
    "query": "an event query",
    "wait_event": "a stream's wait for an event",
    "idle_event": "an event synchronise",
    "idle_stream": "a stream synchronise",
}


def waits(evidence: Evidence) -> list[Finding]:
    """What a blocking wait costs over a spinning one."""
    spin, blocking = (evidence.row("launch_sync", "complete", wait=wait) for wait in ("spin", "blocking"))
    if spin is None or blocking is None:
        return []
    ratio = blocking.value / spin.value
    title = "A blocking wait costs little more than a spinning one"
    if ratio > WAIT_MARGIN:
        title = f"A blocking wait answers {as_time(blocking.value - spin.value)} later than a spinning one"
    return [
        Finding(
            rule="launch.wait",
            severity="advice" if ratio > WAIT_MARGIN else "note",
            title=title,
            text=(
                f"After the kernel's end a synchronise returns in {as_time(spin.value)} when it spins and in "
                f"{as_time(blocking.value)} when it sleeps ({times(ratio)}). Spin where round trips count and a core "
                "is "
                "free; block where the core has other work or kernels take milliseconds."
            ),
            threshold=f"blocking above {WAIT_MARGIN:g} times spinning",
            rests_on=rests_on(spin, blocking),
            suite="launch",
        )
    ]


def calls(evidence: Evidence) -> list[Finding]:
    """What the calls cost that go with launches: events, and synchronising with nothing to wait for."""
    found = [
        (name, row)
        for metric, name in SYNC_CALLS.items()
        if (row := evidence.row("launch_sync", metric, wait="spin")) is not None
    ]
    submit = evidence.row("launch_cost", "submit")
    if submit is None or not found:
        return []
    words = [f"{name} takes {as_time(row.value)}" for name, row in found]
    dearest_words, dearest = max(found, key=lambda one: one[1].value)
    return [
        Finding(
            rule="launch.calls",
            severity="note",
            title=f"Around a launch, {dearest_words} costs most: {as_time(dearest.value)}",
            text=(f"With nothing to wait for, {listed(words)}. A launch takes {as_time(submit.value)}."),
            threshold="the dearest is named",
            rests_on=rests_on(submit, *(row for _, row in found)),
            suite="launch",
        )
    ]


def cold(evidence: Evidence) -> list[Finding]:
    """What is paid once a process, before the first result."""
    found = sorted(evidence.rows("launch_cold", "seconds"), key=lambda row: -row.value)
    if not found:
        return []
    words = [f"{str(row.params.get('what')).replace('_', ' ')} {as_time(row.value)}" for row in found]
    slow = [row for row in found if row.value > COLD_S]
    return [
        Finding(
            rule="launch.cold",
            severity="note",
            title=f"The dearest first act of a process takes {as_time(found[0].value)}",
            text=(
                f"Once a process, caches empty: {', '.join(words)}. "
                + ("Warm up before timing anything, and keep a process alive." if slow else "All of it is soon over.")
            ),
            threshold=f"warm-up is advised above {as_time(COLD_S)}",
            rests_on=rests_on(*found),
            suite="launch",
        )
    ]

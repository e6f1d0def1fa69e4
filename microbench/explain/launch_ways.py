"""Explains the ways to launch: kinds, arguments, queue, streams, threads."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.launch_cost import sweep
from microbench.stats import Row
from microbench.units import as_time, axis_value, percent, quantity, rate_of, times

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

"""Constants of copies between host and GPU, and of the GPU's memory: latency and rate, call and way."""

from __future__ import annotations

from collections.abc import Mapping

from microbench.explain.evidence import Evidence, whole
from microbench.explain.fit_constant import around, combined, half_width, of_row, stand_in
from microbench.explain.fit_direct import Found
from microbench.fits import line
from microbench.fitted import Constant
from microbench.ops import LOOP_LAYER
from microbench.stats import Row
from microbench.submission import call_name
from microbench.workload import Direction

UNMEASURED_CALL = "a copy's call takes as long as a launch, or as what a short copy leaves for it"
UNMEASURED_WAY = "a copy's way to the GPU is a launch's"
DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")


def memory(evidence: Evidence) -> Found:
    """The best rate at which CUDA C++ reads arrays of the largest size measured: caches hold nothing of them."""
    found = evidence.rows("memory_stream", "bandwidth", kernel="read", implementation="cuda")
    found = [row for row in found if row.value > 0]
    largest = max((whole(row, "size_bytes") for row in found), default=0)
    best = max((row for row in found if whole(row, "size_bytes") == largest), key=lambda row: row.value, default=None)
    if best is not None:
        yield "memory", of_row(best)


def copies(evidence: Evidence, known: Mapping[str, Constant]) -> Found:
    """Of each direction: latency and rate of pinned and of pageable copies, the call, and the way to the engine."""
    for direction in DIRECTIONS:
        pinned = evidence.curve("link_copy", "bandwidth", "size_bytes", direction=direction, memory="pinned")
        found = dict(_latency_and_rate(direction, pinned))
        yield from found.items()
        latency = found.get(f"{direction}_latency")
        if latency is not None:
            yield from _around_a_copy(evidence, direction, latency, known)
        hosts = evidence.curve("link_copy", "bandwidth_host", "size_bytes", direction=direction, memory="pageable")
        yield from _latency_and_rate(f"{direction}_pageable", hosts)


def _seconds(size_bytes: int, row: Row) -> Constant:
    """A rate as the time of one copy."""
    rate = of_row(row)
    return around(size_bytes / rate.value, size_bytes / rate.value**2 * half_width(rate), rate.rests_on)


def _latency_and_rate(prefix: str, points: list[tuple[int, Row]]) -> Found:
    """The straight line of a copy's time over its bytes; the line's own misfit widens both intervals."""
    times = [(size, _seconds(size, row)) for size, row in points if row.value > 0]
    fitted = line((size, one.value) for size, one in times)
    if fitted is None or fitted.slope <= 0:
        return
    names = [row for _, one in times for row in one.rests_on]
    (size, first), (_, last) = times[0], times[-1]
    at_first = max(half_width(first), abs(fitted.at(size) - first.value))
    at_last = max(half_width(last) / last.value, abs(fitted.at(times[-1][0]) / last.value - 1))
    rate = 1 / fitted.slope
    yield f"{prefix}_latency", around(fitted.constant, at_first, names)
    yield f"{prefix}_rate", around(rate, rate * at_last, names)


def _around_a_copy(evidence: Evidence, direction: str, latency: Constant, known: Mapping[str, Constant]) -> Found:
    """The call, and the way: what a short copy with its synchronise takes beyond call, copy and completion.

    A call that was not measured takes as long as a launch, and no longer than leaves the way something.
    """
    submit = evidence.row("link_latency", "submit", what=f"copy_{direction}")
    taken = evidence.row("link_latency", "latency", what=f"copy_{direction}")
    completion, launch = known.get("complete"), known.get(call_name(LOOP_LAYER, 0))
    rest = None
    if taken is not None and completion is not None:
        rest = combined([(1, of_row(taken)), (-1, latency), (-1, completion)])
    if submit is not None:
        call = of_row(submit)
    elif launch is not None:
        call = stand_in(launch if rest is None or launch.value < rest.value else rest, UNMEASURED_CALL)
    else:
        return
    yield f"{direction}_call", call
    if rest is not None:
        yield f"{direction}_way", combined([(1, rest), (-1, call)])
    elif (way := known.get("way")) is not None:
        yield f"{direction}_way", stand_in(way, UNMEASURED_WAY)

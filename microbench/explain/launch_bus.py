"""Explains launch_traffic: what travels over the link for each launch, and why that is latency and not bandwidth."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.limits import link_rate
from microbench.stats import Row
from microbench.units import axis_value, percent, quantity, rate_of

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

"""Explains what goes with launches: ways to wait, calls around them, and what is paid once a process."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.units import as_time, times

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

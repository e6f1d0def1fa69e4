"""The host suite explained: what the CPU side can see, and what it costs before any GPU is involved."""

from __future__ import annotations

from microbench.analysis.evidence import Evidence, Finding, Rule, listed, rests_on
from microbench.core.units import as_time, percent, quantity, times

COARSE_CLOCK_S = 1e-6
STEPS_PER_SAMPLE = 100
ONE_CORE_SHARE = 0.5
SLEEP_MARGIN = 3.0
WAYS = {"compiled_from_python": "a compiled function", "ctypes": "ctypes", "python": "a Python function"}
HAND_OFFS = {"spin": "spinning", "event": "an event", "pipe": "a pipe"}


def clock(evidence: Evidence) -> list[Finding]:
    """What the host's clock can resolve, hence how long a sample has to be."""
    step, call = evidence.row("host_timer", "step"), evidence.row("host_timer", "call")
    if step is None or call is None:
        return []
    coarse = max(step.value, call.value) > COARSE_CLOCK_S
    text = f"Reading it takes {as_time(call.value)}, and it moves in steps of {as_time(step.value)}."
    if coarse:
        text += " The clock source is slow, often hpet or acpi_pm in place of tsc: single calls cannot be told apart."
    else:
        text += (
            f" A sample is a burst of calls, at least {STEPS_PER_SAMPLE} steps long; a single call's figure carries "
            "one reading."
        )
    return [
        Finding(
            rule="host.clock",
            severity="warning" if coarse else "good",
            title=f"The host's clock is {'too coarse' if coarse else 'fine enough'} for single calls",
            text=text,
            threshold=f"step or reading above {as_time(COARSE_CLOCK_S)}",
            rests_on=rests_on(step, call),
            suite="host",
        )
    ]


def calls(evidence: Evidence) -> list[Finding]:
    """What it costs to call anything from Python: the least any Python layer can add."""
    compiled = evidence.row("host_call", "call", how="compiled")
    found = [row for how in WAYS if (row := evidence.row("host_call", "call", how=how)) is not None]
    if compiled is None or not found:
        return []
    words = [f"{WAYS[str(row.params.get('how'))]} {as_time(row.value)}" for row in found]
    least = min(found, key=lambda row: row.value)
    return [
        Finding(
            rule="host.call",
            severity="note",
            title=f"A call from Python costs at least {as_time(least.value)}, compiled {as_time(compiled.value)}",
            text=f"Calls that do nothing, from Python: {', '.join(words)}. No Python layer adds less to a launch.",
            threshold="the cheapest way is named",
            rests_on=rests_on(compiled, *found),
            suite="host",
        )
    ]


def memory(evidence: Evidence) -> list[Finding]:
    """How much of the host's copy bandwidth one core reaches, at the largest size measured by both."""
    one = dict(evidence.curve("host_memory", "rate", "size_bytes", threads="one"))
    every = dict(evidence.curve("host_memory", "rate", "size_bytes", threads="all"))
    shared = sorted(set(one) & set(every))
    if not shared or every[shared[-1]].value <= 0:
        return []
    alone, together = one[shared[-1]], every[shared[-1]]
    share = alone.value / together.value
    limited = share < ONE_CORE_SHARE
    return [
        Finding(
            rule="host.memory",
            severity="note",
            title=f"One core copies {quantity(alone.value, 'B/s')}, all cores {quantity(together.value, 'B/s')}",
            text=(
                f"One core reaches {percent(share)} of what all cores copy, bytes read plus written. "
                + (
                    "Staging through pageable memory is copied by one core, so pinned memory is worth its setup."
                    if limited
                    else "One core is nearly enough to saturate this memory."
                )
            ),
            threshold=f"one core under {percent(ONE_CORE_SHARE)} of all",
            rests_on=rests_on(alone, together),
            suite="host",
        )
    ]


def wakeups(evidence: Evidence) -> list[Finding]:
    """What it costs to wake a sleeping thread against one that spins."""
    spin = evidence.row("host_wakeup", "round_trip", how="spin")
    sleeping = [row for how in ("event", "pipe") if (row := evidence.row("host_wakeup", "round_trip", how=how))]
    if spin is None or not sleeping:
        return []
    words = [f"through {HAND_OFFS[str(row.params.get('how'))]} {as_time(row.value)}" for row in sleeping]
    ratio = min(row.value for row in sleeping) / spin.value
    return [
        Finding(
            rule="host.wakeup",
            severity="advice" if ratio > SLEEP_MARGIN else "note",
            title=f"Waking a sleeping thread costs {times(ratio)} a spinning hand-off",
            text=(
                f"To another thread and back: spinning {as_time(spin.value)}, {listed(words)}. A blocking wait for "
                "the GPU "
                "pays for such a wake-up."
            ),
            threshold=f"a sleeping hand-off above {SLEEP_MARGIN:g} times a spinning one",
            rests_on=rests_on(spin, *sleeping),
            suite="host",
        )
    ]


RULES: tuple[Rule, ...] = (clock, calls, memory, wakeups)

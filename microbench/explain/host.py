"""Turns the host suite's rows into findings: what the CPU's clock resolves, what calls and hand-offs cost."""

from __future__ import annotations

from microbench.analysis.evidence import Evidence, Finding, Rule, doubtful, rests_on
from microbench.core.units import as_time, percent, quantity, times

COARSE_CLOCK_S = 1e-6
ONE_CORE_SHARE = 0.5
SLEEP_RATIO = 3.0


def clock(evidence: Evidence) -> Finding | None:
    """Whether the host's clock can time single calls."""
    step, call = evidence.row("host_timer", "step"), evidence.row("host_timer", "call")
    if step is None or call is None:
        return None
    coarse = max(step.value, call.value) > COARSE_CLOCK_S
    return Finding(
        rule="host.clock",
        severity="warning" if coarse else "good",
        title=f"The host's clock is {'too coarse' if coarse else 'fine enough'} to time single calls",
        text=f"A reading takes {as_time(call.value)}, and it moves in steps of {as_time(step.value)}.",
        advice="Use tsc as the kernel's clock source instead of hpet or acpi_pm." if coarse else "",
        threshold=f"step or reading above {as_time(COARSE_CLOCK_S)}",
        rests_on=rests_on(step, call),
    )


def calls(evidence: Evidence) -> Finding | None:
    """What it costs to call anything from Python: the least any Python layer can add."""
    compiled = evidence.row("host_call", "call", how="compiled")
    ways = ("compiled_from_python", "ctypes", "python")
    rows = [row for how in ways if (row := evidence.row("host_call", "call", how=how)) is not None]
    if compiled is None or not rows:
        return None
    least = min(row.value for row in rows)
    return Finding(
        rule="host.call",
        severity="note",
        title=f"A call from Python costs at least {as_time(least)}, from compiled code {as_time(compiled.value)}",
        text="No Python layer adds less to a launch.",
        threshold="the cheapest call that does nothing",
        rests_on=rests_on(compiled, *rows),
    )


def memory(evidence: Evidence) -> Finding | None:
    """How much of the host's copy bandwidth one core reaches, at the largest size measured by both."""
    alone = dict(evidence.curve("host_memory", "rate", "size_bytes", threads="one"))
    together = dict(evidence.curve("host_memory", "rate", "size_bytes", threads="all"))
    shared = sorted(set(alone) & set(together))
    if not shared or together[shared[-1]].value <= 0:
        return None
    one_core, all_cores = alone[shared[-1]], together[shared[-1]]
    share = one_core.value / all_cores.value
    if share > 1 and (doubtful(one_core) or doubtful(all_cores)):
        return None  # all cores include the one, so this is noise
    limited = share < ONE_CORE_SHARE
    return Finding(
        rule="host.memory",
        severity="note",
        title=(
            f"A copy by one core reads and writes {quantity(one_core.value, 'B/s')}, by all cores "
            f"{quantity(all_cores.value, 'B/s')}"
        ),
        text=f"One core reaches {percent(share)} of that." + " Pageable copies are staged by one core." * limited,
        advice="Use pinned memory for copies to and from the GPU." if limited else "",
        threshold=f"one core under {percent(ONE_CORE_SHARE)} of all",
        rests_on=rests_on(one_core, all_cores),
    )


def wakeups(evidence: Evidence) -> Finding | None:
    """What it costs to wake a sleeping thread against one that spins."""
    spin = evidence.row("host_wakeup", "round_trip", how="spin")
    sleeping = [row for how in ("event", "pipe") if (row := evidence.row("host_wakeup", "round_trip", how=how))]
    if spin is None or not sleeping:
        return None
    least = min(row.value for row in sleeping)
    slow = least > spin.value * SLEEP_RATIO
    return Finding(
        rule="host.wakeup",
        severity="advice" if slow else "note",
        title=f"Waking a sleeping thread takes {as_time(least)}, {times(least / spin.value)} a spinning hand-off",
        text="A blocking wait for the GPU pays for such a wake-up.",
        advice="Spin while waiting for short GPU work." if slow else "",
        threshold=f"a sleeping hand-off above {SLEEP_RATIO:g} times a spinning one",
        rests_on=rests_on(spin, *sleeping),
    )


RULES: tuple[Rule, ...] = (clock, calls, memory, wakeups)

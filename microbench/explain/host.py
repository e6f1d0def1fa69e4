"""Turns the host suite's rows into findings: what the CPU's clock resolves, and what hand-offs cost."""

from microbench.analysis.evidence import Evidence, Finding, Rule, rule, said
from microbench.core.units import as_time, times

COARSE_CLOCK_S = 1e-6
SLEEP_RATIO = 3.0


@rule("host.clock", f"step or reading above {as_time(COARSE_CLOCK_S)}")
def clock(evidence: Evidence) -> Finding | None:
    """Whether the host's clock can time single calls."""
    step, call = evidence.row("host_timer", "step"), evidence.row("host_timer", "call")
    if step is None or call is None:
        return None
    coarse = max(step.value, call.value) > COARSE_CLOCK_S
    title = f"The host's clock is {'too coarse' if coarse else 'fine enough'} to time single calls"
    text = f"A reading takes {as_time(call.value)}, and it moves in steps of {as_time(step.value)}."
    advice = "Use tsc as the kernel's clock source instead of hpet or acpi_pm." if coarse else ""
    return said(title, text, advice, rows=(step, call), severity="warning" if coarse else "good")


@rule("host.wakeup", f"a sleeping hand-off above {SLEEP_RATIO:g} times a spinning one")
def wakeups(evidence: Evidence) -> Finding | None:
    """What it costs to wake a sleeping thread against one that spins."""
    spin = evidence.row("host_wakeup", "round_trip", how="spin")
    sleeping = [row for how in ("event", "pipe") if (row := evidence.row("host_wakeup", "round_trip", how=how))]
    if spin is None or not sleeping:
        return None
    least = min(row.value for row in sleeping)
    slow = least > spin.value * SLEEP_RATIO
    title = f"Waking a sleeping thread takes {as_time(least)}, {times(least / spin.value)} a spinning hand-off"
    text = "A blocking wait for the GPU pays for such a wake-up."
    advice = "Spin while waiting for short GPU work." if slow else ""
    return said(title, text, advice, rows=(spin, *sleeping))


RULES: tuple[Rule, ...] = (clock, wakeups)

"""Explains memory_energy: joules a byte, and how much of it idling would draw as well."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, rests_on, sentence, whole
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import percent, quantity, size

BENCHMARK, POWER, ENERGY = "memory_energy", "power", "energy"
IDLE = "idle"
CHEAPER = 0.9


class Draw(NamedTuple):
    """Power under one load, energy of a byte, and the part of it above idle where idle is known."""

    load: str
    power: Row
    energy: Row
    above_idle: float | None


def draws(evidence: Evidence) -> list[Draw]:
    """Every load, on the largest arrays that it was measured on."""
    idle = evidence.row(BENCHMARK, POWER, load=IDLE)
    found: dict[str, Draw] = {}
    for row in evidence.rows(BENCHMARK, ENERGY):
        load = str(row.params.get("load"))
        size_bytes = row.params.get("size_bytes")
        power = evidence.row(BENCHMARK, POWER, load=load, size_bytes=size_bytes if isinstance(size_bytes, int) else 0)
        if power is None or row.value <= 0:
            continue
        above = row.value * (1 - idle.value / power.value) if idle is not None and idle.value < power.value else None
        one = Draw(load, power, row, above)
        if load not in found or _size(one) > _size(found[load]):
            found[load] = one
    return list(found.values())


def _size(one: Draw) -> int:
    value = one.energy.params.get("size_bytes")
    return value if isinstance(value, int) else 0


def energy(evidence: Evidence) -> list[Finding]:
    """What a byte costs in energy."""
    found = draws(evidence)
    if not found:
        return []
    idle = evidence.row(BENCHMARK, POWER, load=IDLE)
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    most = max(found, key=lambda one: one.power.value)
    words = [_words(one) for one in found]
    if idle is not None:
        words.append(f"idle {quantity(idle.value, 'W')}")
    against = ""
    if limit_w:
        share = percent(most.power.value / limit_w)
        against = f" Power reaches {share} of the board's {quantity(limit_w, 'W')}."
    shown = max(found, key=lambda one: one.energy.value)
    return [
        Finding(
            rule="memory.energy",
            severity="note",
            title=(
                f"Moving data costs {quantity(shown.energy.value, 'J/B')} ({shown.load}, "
                f"{quantity(shown.power.value, 'W')})"
            ),
            text=f"{sentence('; '.join(words))}.{against}{_small(evidence, found)}",
            threshold="energy counter over two seconds of one kernel, bytes read plus written",
            rests_on=rests_on(idle, *(row for one in found for row in (one.power, one.energy))),
            suite="memory",
        )
    ]


def _small(evidence: Evidence, found: list[Draw]) -> str:
    """What a byte of small arrays costs, by the load that shows the most of it; nothing where it costs no less."""
    pairs = [
        (one, row) for one in found for row in evidence.rows(BENCHMARK, ENERGY, load=one.load)
        if 0 < row.value < CHEAPER * one.energy.value
    ]  # fmt: skip
    if not pairs:
        return ""
    one, row = min(pairs, key=lambda pair: pair[1].value / pair[0].energy.value)
    return (
        f" On arrays of {size(whole(row, 'size_bytes'))} {one.load} takes {quantity(row.value, 'J/B')}: what a cache "
        "holds saves energy beside time."
    )


def _words(one: Draw) -> str:
    above = f", {quantity(one.above_idle, 'J/B')} above idle" if one.above_idle is not None else ""
    return f"{one.load} {quantity(one.energy.value, 'J/B')} at {quantity(one.power.value, 'W')}{above}"

"""THE VERDICT on the link: its ceiling, what copies reach of it, and the likeliest cause where that is too little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding, Severity
from microbench.explain.link_causes import SMALL, Cause, causes
from microbench.explain.link_copies import DIRECTIONS, HOST, fastest
from microbench.explain.link_facts import LinkFacts, Speed, gpu_speed, link_facts, shares_memory
from microbench.explain.link_places import sharing
from microbench.limits import ASSUMED_PAYLOAD_BYTES, Ceiling, ceiling, pcie_rate
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent, size

HEALTHY = 0.9
BROKEN = 0.6
THRESHOLD = (
    f"pinned copies of the best size by the copy engine, at least {round_percent(HEALTHY)} of the ceiling both ways; "
    f"under {round_percent(BROKEN)} a problem"
)


class Reached(NamedTuple):
    """What copies in one direction reach of what the link allows."""

    direction: str
    size_bytes: int
    row: Row
    limit: Ceiling

    @property
    def share(self) -> float:
        """1 is the ceiling."""
        return self.row.value / self.limit.value


def verdict(evidence: Evidence) -> list[Finding]:
    """Whether the link is as fast as it should be, and if not, why."""
    facts = link_facts(evidence)
    why_none = shares_memory(evidence, facts)
    if why_none is not None:
        return [_no_verdict(evidence, why_none)] if evidence.suite("link") or facts else []
    found = causes(evidence)
    reached = [one for direction in DIRECTIONS if (one := _reached(evidence, direction)) is not None]
    if reached:
        return [_judged(evidence, reached, found)]
    certain = [cause for cause in found if cause.certain]
    return _unmeasured(evidence, certain) or _unlimited(evidence) or _sound(evidence, facts)


def _reached(evidence: Evidence, direction: str) -> Reached | None:
    peak = fastest(evidence, direction)
    limit = evidence.ceiling(peak[1]) if peak is not None else None
    return Reached(direction, *peak, limit) if peak is not None and limit is not None else None


def _judged(evidence: Evidence, reached: Sequence[Reached], found: Sequence[Cause]) -> Finding:
    worst = min(reached, key=lambda one: one.share)
    over = [one for one in reached if one.row.interval.low > one.limit.value]
    certain = [cause for cause in found if cause.certain]
    severity: Severity = "good"
    if worst.share < HEALTHY or over or certain:
        severity = "problem" if worst.share < BROKEN else "warning"
        if not over and not certain and any(cause.short == SMALL for cause in found):
            severity = "note"
    shown = over[0] if over else worst
    ending = "healthy"
    if over:
        ending = "more than this ceiling allows"
    elif severity != "good":
        ending = next((cause.short for cause in [*certain, *found]), "no cause seen")
    told = found if worst.share < HEALTHY else certain
    words = [f"Pinned copies: {', '.join(_words(one) for one in reached)}.", _as_trained(evidence, worst)]
    words += [cause.words for cause in told] or [_nothing_found(evidence, severity)]
    return Finding(
        rule="link.verdict",
        severity=severity,
        title=(
            f"{_link(evidence)}: ceiling {quantity(shown.limit.value, 'B/s')} {DIRECTIONS[shown.direction]}, measured "
            f"{quantity(shown.row.value, 'B/s')} ({percent(shown.share)}): {ending}"
        ),
        text=" ".join(word for word in (*words, _assumed(reached)) if word),
        threshold=THRESHOLD,
        rests_on=(*rests_on(*(one.row for one in reached)), *(name for cause in told for name in cause.rests_on)),
        suite="link",
    )


def _words(one: Reached) -> str:
    return (
        f"{DIRECTIONS[one.direction]} {quantity(one.row.value, 'B/s')} of {quantity(one.limit.value, 'B/s')} "
        f"({percent(one.share)}) at {size(one.size_bytes)}"
    )


def _link(evidence: Evidence) -> str:
    """The link as its ceiling takes it: "PCIe 5.0 x16, payload 256 B"."""
    link = evidence.gpu.link if evidence.gpu is not None else None
    if link is None or not link.generation_max or not link.lanes_max:
        return "PCIe"
    hidden = "" if link.max_payload_bytes else " assumed"
    payload_bytes = link.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
    return f"PCIe {Speed(link.generation_max, link.lanes_max).words}, payload {payload_bytes} B{hidden}"


def _as_trained(evidence: Evidence, worst: Reached) -> str:
    """What the link carries as it is trained, where that is less than its ceiling."""
    now, gpu = link_facts(evidence).now, evidence.gpu
    if now is None or gpu is None or now == Speed(gpu.link.generation_max or 0, gpu.link.lanes_max or 0):
        return ""
    payload_bytes = gpu.link.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
    rate = pcie_rate(*now, worst.direction, payload_bytes)
    if not rate or rate >= worst.limit.value or worst.row.interval.low > rate:  # more than that: it was misread
        return ""
    share = percent(worst.row.value / rate)
    return f"Of what PCIe {now.words} carries, {quantity(rate, 'B/s')}, that is {share}."


def _nothing_found(evidence: Evidence, severity: Severity) -> str:
    if severity == "good":
        return "Copying alone, nothing holds it back." if sharing(evidence) else "Nothing holds it back."
    looked = "" if link_facts(evidence) else " `microbench run link_state --into RUN` looks at the way to the GPU."
    return f"Nothing that this run looked at explains it.{looked}"


def _assumed(reached: Sequence[Reached]) -> str:
    assumptions = dict.fromkeys(words for one in reached for words in one.limit.assumptions)
    return f"The ceiling assumes: {'; '.join(assumptions)}." if assumptions else ""


def _no_verdict(evidence: Evidence, why: str) -> Finding:
    return Finding(
        rule="link.verdict",
        severity="note",
        title="No PCIe verdict for this GPU",
        text=f"There is nothing to hold copies against: {why}. What PCIe reports of it says nothing about bandwidth.",
        threshold="an integrated GPU or a coherent chip-to-chip link",
        rests_on=("c2c", "gpu integrated"),
        suite="link",
    )


def _unmeasured(evidence: Evidence, certain: Sequence[Cause]) -> list[Finding]:
    """What facts alone say against the link."""
    if not certain:
        return []
    return [
        Finding(
            rule="link.verdict",
            severity="warning",
            title=f"The link is less than it could be: {certain[0].short}",
            text=" ".join(cause.words for cause in certain),
            threshold=(
                "under load generation and width below what GPU or slot can do, or errors; no pinned copies in this run"
            ),
            rests_on=tuple(name for cause in certain for name in cause.rests_on),
            suite="link",
        )
    ]


def _unlimited(evidence: Evidence) -> list[Finding]:
    """Copies that cannot be judged: only pageable ones, or nothing known of the link."""
    pinned = [peak for direction in DIRECTIONS if (peak := fastest(evidence, direction)) is not None]
    pageable = [
        peak for direction in DIRECTIONS if (peak := fastest(evidence, direction, "pageable", HOST)) is not None
    ]
    if not pinned and not pageable:
        return []
    peak = max(pinned or pageable, key=lambda one: one[1].value)
    why = "generation and width of the link are not known"
    advice = "The facts of `microbench run link_state` say what hides them."
    if not pinned:
        why, advice = "only pageable copies were measured", "They are staged by the host: measure memory=pinned."
    return [
        Finding(
            rule="link.verdict",
            severity="note",
            title=f"No verdict: {why}",
            text=f"The fastest copies reach {quantity(peak[1].value, 'B/s')} at {size(peak[0])}. {advice}",
            threshold="a verdict needs pinned copies and a known link",
            rests_on=rests_on(peak[1]),
            suite="link",
        )
    ]


def _sound(evidence: Evidence, facts: LinkFacts) -> list[Finding]:
    """The way was looked at and nothing is wrong with it, but link_copy, which says what it carries, was not run."""
    if not facts:
        return []
    limits = {way: ceiling(f"pcie_{direction}", evidence.gpu) for direction, way in DIRECTIONS.items()}
    carried = [f"{quantity(limit.value, 'B/s')} {way}" for way, limit in limits.items() if limit is not None]
    slowed = facts.idle and facts.now != gpu_speed(evidence, facts)
    words = [
        "An idle link slows down to save power: under load it may be faster." if slowed else "",
        "" if facts.damaging() else "link_state saw no fault of the link.",
        f"It could carry {listed(carried)}." if carried else "",
        "`microbench run link_copy --into RUN` measures what it does carry.",
    ]
    return [
        Finding(
            rule="link.verdict",
            severity="note",
            title=f"{_as_read(evidence, facts)}; link_copy not measured",
            text=" ".join(word for word in words if word),
            threshold="facts of link_state without link_copy, none of them against the link",
            rests_on=("generation_now", "lanes_now", "read_under_load"),
            suite="link",
        )
    ]


def _as_read(evidence: Evidence, facts: LinkFacts) -> str:
    """What the link runs at, as far as that is known."""
    now = facts.now
    if now is None:
        return "Generation and width of the link are not known"
    if facts.idle:
        return f"PCIe {now.words}, read when copies had ended"
    return f"PCIe {now.words} while busy" + (", all that the GPU can do" if now == gpu_speed(evidence, facts) else "")

"""Findings on the link itself: the verdict with its likeliest cause, rising errors, and settings on the path."""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, listed, rests_on, rule, said
from microbench.analysis.limits import ceiling
from microbench.core.units import percent, quantity, round_percent, size
from microbench.explain import link_facts as links
from microbench.explain.link_causes import SMALL, causes
from microbench.explain.verdicts import Cause, Reached, beyond_ceiling

HEALTHY, BROKEN = 0.9, 0.6
USUAL_PAYLOAD_BYTES = 256


def link_verdict(evidence: Evidence) -> Finding | None:
    """Whether the link is as fast as it should be, and if not, why."""
    facts = links.link_facts(evidence)
    if (shared := links.shares_memory(evidence, facts)) is not None:
        why = "this GPU is integrated" if shared == "integrated" else "a coherent chip-to-chip link joins them"
        title, text = "No PCIe verdict: GPU and host share memory", f"PCIe is not what carries copies: {why}."
        names = ("c2c", "gpu integrated")
        measured = facts or evidence.suite("link")
        return _finding("note", title, text, "", "an integrated or coherent GPU", names) if measured else None
    peaks = {way: peak[1] for way in links.DIRECTIONS if (peak := links.fastest(evidence, way)) is not None}
    limits = ((way, row, evidence.ceiling(row)) for way, row in peaks.items())
    if every := [Reached(way, row, limit) for way, row, limit in limits if limit is not None]:
        return _judged(evidence, every)
    if certain := [cause for cause in causes(evidence) if cause.certain]:
        first, rule = certain[0], "facts show a slow link or errors; the run has no pinned copies"
        text = f"{first.text}{_others(certain[1:])}"
        return _finding("warning", f"Link problem: {first.short}", text, first.advice, rule, _names(certain))
    return _without_ceiling(evidence) or _without_copies(evidence, facts)


def _finding(severity: Severity, title: str, text: str, advice: str, rule: str, names: Sequence[str]) -> Finding:
    return Finding("link.verdict", severity, title, text, rule, tuple(dict.fromkeys(names)), advice=advice)


def _names(blamed: Iterable[Cause]) -> list[str]:
    return [name for cause in blamed for name in cause.rests_on]


def _judged(evidence: Evidence, every: Sequence[Reached]) -> Finding:
    """Copies against their ceiling in one or both directions, and what may slow them down."""
    slowest, seen = min(every, key=lambda reached: reached.share), causes(evidence)
    over = next((reached for reached in every if reached.over), None)  # its ceiling is wrong
    slow, blamed = slowest.share < HEALTHY, [cause for cause in seen if cause.certain]
    # Copies are too small to judge the link by, where nothing is certainly wrong.
    small = next((cause for cause in seen if cause.name == SMALL), None) if slow else None
    small = None if over or blamed else small
    blamed += [cause for cause in seen if not cause.certain] if slow else []
    severity: Severity = "problem" if slowest.share < BROKEN else "warning"
    if small or not (slow or over or blamed):
        severity = "note" if small else "good"
    speed = links.gpu_speed(evidence, links.link_facts(evidence))
    name = f"PCIe {speed.words}" if speed is not None else "PCIe"
    worst = over or slowest
    way, share = links.DIRECTIONS[worst.what], percent(worst.share)
    reach = f"copies {way} reach {quantity(worst.row.value, 'B/s')}, {share} of the ceiling"
    advice = ""
    if over:
        title = f"Copies {way} reach {share} of the {name} ceiling, so the ceiling is wrong"
        text = f"The ceiling rests on: {', '.join((worst.limit.source, *worst.limit.assumptions))}."
        advice = "Do not rely on percentages of it."
    elif small:
        title = f"{name} is not fully tested: {reach}"
        text, advice = small.text, small.advice
    elif blamed:
        cause, advice = blamed[0], blamed[0].advice
        title = f"{name} is slow: copies {way} reach {share} of the ceiling; {cause.short}"
        if not slow:
            title = f"{name} has a problem: {cause.short}"
        text = f"{cause.text}{_others(blamed[1:])}"
    elif slow:
        title, text = f"{name} is slow: {reach}", "Nothing that this run looked at explains it."
        if not links.link_facts(evidence):
            into = evidence.run.run_id
            advice = f"Run `microbench run link_state --into {into}` to look at the path to the GPU."
    else:
        words = [
            f"Copies {links.DIRECTIONS[reached.what]} reach {quantity(reached.row.value, 'B/s')}."
            for reached in every
            if reached is not slowest
        ]
        assumptions = dict.fromkeys(words for reached in every for words in reached.limit.assumptions)
        words += [f"The ceiling assumes {'; '.join(assumptions)}."] if assumptions else []
        title, text = f"{name} is healthy: {reach}", " ".join(words) or "Nothing slows them down."
    rule = (
        f"the fastest pinned copies reach at least {round_percent(HEALTHY)} of the ceiling both ways; under "
        f"{round_percent(BROKEN)} is a problem"
    )
    rows = rests_on(*(reached.row for reached in every))
    found = _finding(severity, title, text, advice, rule, (*rows, *_names(blamed)))
    return msgspec.structs.replace(found, reached=(slowest.share, HEALTHY))


def _without_ceiling(evidence: Evidence) -> Finding | None:
    """Copies that cannot be judged: only pageable ones, or an unknown link."""
    pinned, pageable = (
        [
            peak
            for direction in links.DIRECTIONS
            if (peak := links.fastest(evidence, direction, memory, metric)) is not None
        ]
        for memory, metric in (("pinned", "bandwidth"), ("pageable", links.HOST))
    )
    if not pinned and not pageable:
        return None
    size_bytes, row = max(pinned or pageable, key=lambda point: point[1].value)
    why, advice = "the link's generation and width are unknown", "The facts of link_state say what hides them."
    if not pinned:
        why, advice = "only pageable copies were measured", "Measure memory=pinned: the host stages pageable copies."
    text = f"The fastest copies reach {quantity(row.value, 'B/s')} at {size(size_bytes)}."
    rule = "a verdict needs pinned copies and a known link"
    return _finding("note", f"No verdict: {why}", text, advice, rule, rests_on(row))


def _without_copies(evidence: Evidence, facts: links.LinkFacts) -> Finding | None:
    """link_state saw nothing wrong, but link_copy did not run."""
    if not facts:
        return None
    now, gpu = facts.now, links.gpu_speed(evidence, facts)
    read = "PCIe speed unknown"
    if now is not None:
        at_most = ", the most that the GPU supports" if now == gpu else ""
        read = f"PCIe {now.words}, read idle" if facts.idle else f"PCIe {now.words} while busy{at_most}"
    words = "" if facts.damaging() else "link_state found no fault."
    if facts.idle and now != gpu:
        words = "An idle link slows down to save power, so it may be faster under load."
    limits = {way: ceiling(f"pcie_{direction}", evidence.gpu) for direction, way in links.DIRECTIONS.items()}
    carried = [f"{quantity(limit.value, 'B/s')} {way}" for way, limit in limits.items() if limit is not None]
    words += f" The link could carry {listed(carried)}." if carried else ""
    title, rule = f"{read}; copies were not measured", "link_state without link_copy, and nothing wrong with the link"
    advice = f"Run `microbench run link_copy --into {evidence.run.run_id}` to measure them."
    return _finding("note", title, words.strip(), advice, rule, ("generation_now", "lanes_now", "read_under_load"))


def _others(others: Sequence[Cause]) -> str:
    return f" Also seen: {listed([cause.short for cause in others])}." if others else ""


@rule(
    "link.errors",
    f"a problem over {links.TOLERATED_ERRORS} (one bit in 10^12 may be wrong); rollovers, nonfatal and fatal "
    "errors from the first on",
)
def errors(evidence: Evidence) -> Finding | None:
    """Error counters that rose while the link was busy."""
    facts = links.link_facts(evidence)
    risen, damaging = facts.risen(), facts.damaging()
    if not risen:
        return None
    counts = sorted((damaging or risen).items(), key=lambda item: -item[1])
    first, *more = [f"{_counter(name)} rose by {count}" for name, count in counts]
    text = f"Damaged packets are sent again{', which costs bandwidth and latency' if damaging else ''}."
    title = f"{first} under load{'' if damaging else ', as on a healthy link'}"
    text = f"{text} {f'Also, {listed(more[:2])}.' if more else ''}".strip()
    advice = (
        "Check riser, cable and seat of the board before the link falls back to a lower speed."
        if damaging
        else "Run link_state again: only a count that keeps rising points to a fault."
    )
    names = tuple(f"{name}{links.RISEN}" for name in risen)
    return said(title, text, advice, names=names, severity="problem" if damaging else "note")


def _counter(name: str) -> str:
    return name.replace("_", " ").replace("pcie", "PCIe").replace("nvlink", "NVLink")


@rule("link.settings", "payload under 256 B, no relaxed ordering, no resizable BAR, ACS redirecting with several GPUs")
def settings(evidence: Evidence) -> Finding | None:
    """Settings on the path to the GPU that cost something."""
    facts = links.link_facts(evidence)
    if links.shares_memory(evidence, facts) is not None:
        return None
    payload_bytes = facts.number("max_payload_bytes")
    seen: list[tuple[str, str, str]] = []  # what is set, what that means, and what to do about it ("" for nothing)
    if payload_bytes is not None and payload_bytes < USUAL_PAYLOAD_BYTES:
        advice = f"Allow {USUAL_PAYLOAD_BYTES} B in the firmware."
        short, text = f"a payload of {payload_bytes} B", "Headers take more of the link with small packets."
        seen.append((short, text, advice))
    if facts.flag("relaxed_ordering") is False:
        text = "Without relaxed ordering a packet may have to wait for the one before it."
        seen.append(("relaxed ordering off", text, "Turn relaxed ordering on."))
    if facts.flag("acs") is True and len(evidence.environment.gpus) > 1:
        text = "ACS sends traffic between GPUs through the root port, past the switch that could join them."
        seen.append(("ACS redirects peers", text, "Turn ACS off where no virtual machine needs it."))
    if facts.flag("resizable_bar") is False:
        text = "The host reaches only a part of the GPU's memory directly (BAR1); copies do not need it."
        seen.append(("no resizable BAR", text, ""))
    if not seen:
        return None
    names, texts, (advice, *_) = zip(*seen, strict=True)
    title = f"On the path to the GPU: {listed(names)}"
    text = " ".join(texts[:2])
    return said(title, text, advice, names=("max_payload_bytes", "relaxed_ordering", "resizable_bar", "acs"))


OVER_LIMIT = partial(beyond_ceiling, suite="link", perhaps="a larger payload, a faster link than reported")
RULES: tuple[Rule, ...] = (link_verdict, OVER_LIMIT, errors, settings)

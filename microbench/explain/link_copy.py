"""Explains link_copy: how big a copy must be, and what each kind of host memory loses."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, rests_on, whole
from microbench.explain.finding import Finding
from microbench.explain.link_copies import DEVICE, DIRECTIONS, HOST, MEMORIES, CopyFit, copies, copy_fit
from microbench.stats import Row
from microbench.units import about_size, as_time, percent, quantity, round_percent, size

HALF, MOST = 0.5, 0.9
WIDE = 0.25
PAGEABLE_LOSS = 0.2


def copy_size(evidence: Evidence) -> list[Finding]:
    """From which size on a copy uses the link, by the fit; below which it costs no more than a launch."""
    fits = {one: fit for one in DIRECTIONS if (fit := copy_fit(evidence, DEVICE, one, "pinned")) is not None}
    if not fits:
        return []
    words = [_fit_words(DIRECTIONS[direction], fit) for direction, fit in fits.items()]
    direction, first = next(iter(fits.items()))
    waited = copy_fit(evidence, HOST, direction, "pinned")
    if waited is not None:
        words.append(
            f"With its call and a wait for each, a copy {DIRECTIONS[direction]} is at half from "
            f"{about_size(waited.size_for(HALF))} on."
        )
    submit = evidence.row("launch_cost", "submit")
    words += [_launch_words(first, submit)] if submit is not None else []
    if any(fit.line.misfit.largest > WIDE for fit in fits.values()):
        words.append("Some sizes are far off these lines: for them read the curve.")
    words.append("Gather smaller copies into one buffer and send that.")
    return [
        Finding(
            rule="link.copy_size",
            severity="note",
            title=(
                f"A copy {DIRECTIONS[direction]} reaches half its bandwidth at {about_size(first.size_for(HALF))}, "
                f"{round_percent(MOST)} at {about_size(first.size_for(MOST))}"
            ),
            text=" ".join(words),
            threshold="T = a + V / b by the least relative residuals; half at a × b, 90 % at 9 × a × b",
            rests_on=rests_on(*(row for fit in fits.values() for _, row in fit.points), submit),
            suite="link",
        )
    ]


def _fit_words(way: str, fit: CopyFit) -> str:
    return (
        f"{way.capitalize().replace('gpu', 'GPU')} T = {as_time(fit.fixed_s)} + V / {quantity(fit.bandwidth, 'B/s')} "
        f"(misfit {percent(fit.line.misfit.median)}, at most {percent(fit.line.misfit.largest)}): half at "
        f"{about_size(fit.size_for(HALF))}, {round_percent(MOST)} at {about_size(fit.size_for(MOST))}."
    )


def _launch_words(fit: CopyFit, submit: Row) -> str:
    room_s = submit.value - fit.fixed_s
    if room_s <= 0:
        return f"Even the smallest copy takes the GPU longer than a launch takes the host ({as_time(submit.value)})."
    return (
        f"Up to {about_size(room_s * fit.bandwidth)} a copy takes the GPU no longer than a launch takes the host "
        f"({as_time(submit.value)})."
    )


def memories(evidence: Evidence) -> list[Finding]:
    """What copies of pageable memory lose against pinned, and what other kinds of pinned memory change."""
    found = {way: kinds for way in DIRECTIONS if len(kinds := _largest(evidence, way)) > 1 and "pinned" in kinds}
    if not found:
        return []
    lost = {
        way: 1 - kinds["pageable"].value / kinds["pinned"].value for way, kinds in found.items() if "pageable" in kinds
    }
    worst = max(lost, key=lambda way: lost[way], default=next(iter(found)))
    heavy = lost.get(worst, 0.0) > PAGEABLE_LOSS
    kept = percent(1 - lost.get(worst, 0.0))
    title = "Kinds of pinned memory compared"
    if lost:
        title = f"Pageable copies {DIRECTIONS[worst]} reach {kept} of pinned ones"
    text = "; ".join(f"{DIRECTIONS[way]} {_kinds(kinds)}" for way, kinds in found.items())
    advice = " The driver carries pageable memory over through a buffer of its own: pin what is copied often."
    measured = next(iter(found.values()))["pinned"]
    return [
        Finding(
            rule="link.memory",
            severity="advice" if heavy else "note",
            title=title,
            text=f"Copies of {size(whole(measured, 'size_bytes'))}, each waited for: {text}.{advice if heavy else ''}",
            threshold=f"advice where pageable memory loses over {round_percent(PAGEABLE_LOSS)}",
            rests_on=rests_on(*(row for kinds in found.values() for row in kinds.values())),
            suite="link",
        )
    ]


def _largest(evidence: Evidence, direction: str) -> dict[str, Row]:
    """Each kind of memory at the largest size that pinned memory and another were measured at, timed on the host."""
    curves = {memory: dict(copies(evidence, HOST, direction, memory)) for memory in MEMORIES}
    others = {size for memory, points in curves.items() if memory != "pinned" for size in points}
    common = max((size for size in curves["pinned"] if size in others), default=None)
    return {memory: points[common] for memory, points in curves.items() if common in points} if common else {}


def _kinds(kinds: dict[str, Row]) -> str:
    return ", ".join(f"{MEMORIES[memory]} {quantity(row.value, 'B/s')}" for memory, row in kinds.items())

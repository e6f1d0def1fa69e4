"""Explains link_copy: how big a copy must be, and what each kind of host memory loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Severity, listed, rests_on, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, percent, quantity, round_percent, size, times
from microbench.explain.link_facts import (
    DEVICE,
    DIRECTIONS,
    HOST,
    MEMORIES,
    OTHERS_BUSY,
    CopyFit,
    copies,
    copy_fit,
    fastest,
    partly_alone,
)

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


# Explains link_bidirectional: what both directions carry together, and which one gives way.


TAKES_TURNS = 0.65
GIVES_WAY = 0.05


class Both(NamedTuple):
    """One direction, alone and while the other one works."""

    alone: Row
    beside: Row
    total: Row

    @property
    def kept(self) -> float:
        """The share of its rate that it keeps."""
        return self.beside.value / self.alone.value


def both(evidence: Evidence) -> dict[str, Both]:
    """Each direction at its largest size, where it was measured alone as well."""
    found = {}
    for direction in DIRECTIONS:
        peak = fastest(evidence, direction)
        curve = evidence.curve("link_bidirectional", "bandwidth", "size_bytes", direction=direction)
        sums = dict(evidence.curve("link_bidirectional", "sum_bandwidth", "size_bytes", direction=direction))
        known = [(row, sums[size]) for size, row in curve if size in sums and row.value > 0 and sums[size].value > 0]
        if peak is not None and known:
            found[direction] = Both(peak[1], *known[-1])
    return found


def together(evidence: Evidence) -> list[Finding]:
    """The sum of both directions against twice one, and which one suffers."""
    found = both(evidence)
    if len(found) < len(DIRECTIONS):
        return []
    alone = sum(one.alone.value for one in found.values())
    total = max((one.total for one in found.values()), key=lambda row: row.value)
    share = total.value / alone
    ended = [direction for direction, one in found.items() if partly_alone(one.beside)]
    severity: Severity = "note" if ended else "good"
    if share < TAKES_TURNS:
        severity = "warning"
    return [
        Finding(
            rule="link.both",
            severity=severity,
            title=f"Both directions at once carry {quantity(total.value, 'B/s')}, {percent(share)} of twice one alone",
            text=f"{_kept(found)}{_ended_first(ended)}{_limit(evidence, total)} {_meaning(found, share)}",
            threshold=f"warning under {round_percent(TAKES_TURNS)} of both alone; the sum while both are busy",
            rests_on=(*rests_on(*(row for one in found.values() for row in one)), *([OTHERS_BUSY] if ended else [])),
            suite="link",
        )
    ]


def _kept(found: dict[str, Both]) -> str:
    words = [
        f"{DIRECTIONS[direction]} {quantity(one.beside.value, 'B/s')} of {quantity(one.alone.value, 'B/s')} "
        f"({percent(one.kept)})"
        for direction, one in found.items()
    ]
    return f"While the other works, copies keep {listed(words)}."


def _ended_first(ended: Sequence[str]) -> str:
    """What the kept rates are of where the other direction was done too early; the sum counts only both."""
    if not ended:
        return ""
    words = listed([DIRECTIONS[direction] for direction in ended])
    return f" Beside copies {words} the other direction ended first, so what they keep is partly that of one alone."


def _limit(evidence: Evidence, total: Row) -> str:
    limit = evidence.ceiling(total)
    if limit is None:
        return ""
    return f" The sum is {percent(total.value / limit.value)} of its ceiling, {quantity(limit.value, 'B/s')}."


def _meaning(found: dict[str, Both], share: float) -> str:
    if share < TAKES_TURNS:
        return (
            "Link or memory take turns: look for a memory channel, an uplink or a processor link that carries both, "
            "and do not count on overlapping the two directions."
        )
    weak, strong = sorted(found, key=lambda direction: found[direction].kept)
    if found[strong].kept - found[weak].kept < GIVES_WAY:
        lost = 1 - found[weak].kept
        alike = "both give way by about as much" if lost > GIVES_WAY else "neither gives way to the other"
        return f"Overlap copies both ways: {alike}."
    reason = "its requests wait behind the other's data" if weak == "h2d" else "the other's requests take its place"
    return f"Overlap copies both ways; the one {DIRECTIONS[weak]} gives way, as {reason}."


# Explains link_chunks and link_managed: copies in pieces under kernels, and pages that move by themselves.


WORTH = 0.1
FAULTS_LOSE = 0.2
PLAIN, WITH_KERNELS = "copy", "copy_and_kernel"
MANAGED = {
    "fault_to_device": "faults of the GPU",
    "prefetch_to_device": "a prefetch to the GPU",
    "read_mostly_to_device": "read-mostly copies",
    "again_on_device": "pages already there",
    "fault_to_host": "faults of the host",
    "prefetch_to_host": "a prefetch back",
}
# Faults against the prefetch that does the same.
SAME_WAY = {"fault_to_device": "prefetch_to_device", "fault_to_host": "prefetch_to_host"}


def step_s(row: Row) -> float:
    """Seconds of a whole step."""
    return whole(row, "size_bytes") / row.value


def best_pieces(found: Sequence[Row]) -> tuple[Row, Row] | None:
    """The step in one piece, and the fastest one in several; None unless both were measured."""
    sound = [row for row in found if row.value > 0 and whole(row, "size_bytes") > 0]
    one = next((row for row in sound if row.params.get("chunks") == 1), None)
    cut = [row for row in sound if row.params.get("chunks") != 1]
    return (one, max(cut, key=lambda row: row.value)) if one is not None and cut else None


def chunks(evidence: Evidence) -> list[Finding]:
    """Whether pieces pay: for copies alone, and with a kernel on each piece."""
    with_kernels = best_pieces(evidence.rows("link_chunks", "bandwidth", work=WITH_KERNELS))
    plain = best_pieces(evidence.rows("link_chunks", "bandwidth", work=PLAIN))
    if with_kernels is None:
        return []
    one, best = with_kernels
    gained = 1 - step_s(best) / step_s(one)
    # Copy and kernels take as long as each other: hiding one behind the other halves the step at best.
    share = gained / 0.5
    pays = gained > WORTH
    pieces = _pieces(best)
    text = (
        f"{size(whole(one, 'size_bytes'))} copied and worked on as long as the copy takes: {as_time(step_s(one))} "
        f"in one piece, {as_time(step_s(best))} in {pieces}, {percent(share)} of the half that overlap can save."
    )
    if plain is not None:
        loss = step_s(plain[1]) / step_s(plain[0]) - 1
        text += f" Copies alone take {_change(loss)} in {_pieces(plain[1])}."
    advice = f" Cut large copies into {best.params['chunks']} pieces and let kernels follow on each." if pays else ""
    title = f"Overlap saves {percent(gained)} of a step of copy and kernels, in {pieces}"
    return [
        Finding(
            rule="link.chunks",
            severity="advice" if pays else "note",
            title=title if pays else _idle_pieces(best),
            text=text + advice,
            threshold=f"advice where the best pieces save over {round_percent(WORTH)}; at most half can be saved",
            rests_on=rests_on(*with_kernels, *(plain or ())),
            suite="link",
        )
    ]


def _idle_pieces(best: Row) -> str:
    """Why pieces do not pay."""
    if whole(best, "streams") == 1:
        return "Pieces do not pay in one stream: there a copy waits for the kernel before it"
    return "Pieces do not pay: copies hardly overlap with kernels"


def _pieces(row: Row) -> str:
    count, streams = row.params.get("chunks"), row.params.get("streams")
    return f"{count} pieces on {streams} stream{'' if streams == 1 else 's'}"


def _change(share: float) -> str:
    if abs(share) < 0.005:
        return "as long"
    return f"{percent(abs(share))} {'longer' if share > 0 else 'less'}"


def managed(evidence: Evidence) -> list[Finding]:
    """Managed memory by faults against prefetches against a copy."""
    found = {way: row for way in MANAGED if (row := _managed(evidence, way)) is not None}
    if not found:
        return []
    losses = {
        way: (1 - found[way].value / found[same].value, found[same].value / found[way].value)
        for way, same in SAME_WAY.items()
        if way in found and same in found
    }
    worst = max(losses, key=lambda way: losses[way][0], default=None)
    first = next(iter(found.values()))
    copy = next((row for _, row in reversed(copies(evidence, HOST, "h2d", "pinned"))), None)
    words = listed([f"{MANAGED[way]} {quantity(row.value, 'B/s')}" for way, row in found.items()])
    beside = f" A pinned copy reaches {quantity(copy.value, 'B/s')}." if copy is not None else ""
    heavy = worst is not None and losses[worst][0] > FAULTS_LOSE
    title = f"Managed memory: {MANAGED[next(iter(found))]} {quantity(first.value, 'B/s')}"
    if worst is not None:
        title = f"Managed memory takes {times(losses[worst][1])} as long by faults as by a prefetch"
    if worst is not None and not heavy:
        title = "Managed memory moves by faults nearly as fast as by a prefetch"
    advice = " Prefetch (cuMemPrefetchAsync) what a kernel will touch, or copy it." if heavy else ""
    return [
        Finding(
            rule="link.managed",
            severity="advice" if heavy else "note",
            title=title,
            text=f"{size(whole(first, 'size_bytes'))} by {words}.{beside}{advice}",
            threshold=f"advice where faults lose over {round_percent(FAULTS_LOSE)} against a prefetch",
            rests_on=rests_on(*found.values(), copy),
            suite="link",
        )
    ]


def _managed(evidence: Evidence, way: str) -> Row | None:
    curve = evidence.curve("link_managed", "bandwidth", "size_bytes", way=way)
    return next((row for size_bytes, row in reversed(curve) if row.value > 0 and size_bytes > 0), None)

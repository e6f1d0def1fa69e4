"""Explains link_chunks and link_managed: copies in pieces under kernels, and pages that move by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.explain.link_copies import HOST, copies
from microbench.stats import Row
from microbench.units import as_time, percent, quantity, round_percent, size, times

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

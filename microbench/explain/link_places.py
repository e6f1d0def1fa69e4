"""Explains link_numa and link_concurrent: whose memory is near, and which GPUs share an uplink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.link_copies import DIRECTIONS
from microbench.explain.link_facts import OTHERS_BUSY, link_facts, partly_alone
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent

FAR_LOSS = 0.05
KEEPS = 0.9
EVERYBODY = "all"


class Beside(NamedTuple):
    """One GPU's copies alone and while others copy as well."""

    gpu_index: int
    beside: str
    direction: str
    alone: Row
    together: Row

    @property
    def kept(self) -> float:
        """The share of its rate that it keeps."""
        return self.together.value / self.alone.value

    @property
    def beside_words(self) -> str:
        """Who copies as well."""
        return "all others" if self.beside == EVERYBODY else f"GPU {self.beside}"


def nodes(evidence: Evidence, direction: str) -> dict[int, Row]:
    """The rate from or to each NUMA node's memory, at the largest size."""
    found: dict[int, Row] = {}
    sizes: dict[int, int] = {}
    for row in evidence.rows("link_numa", "bandwidth", direction=direction):
        node, size = row.params.get("node"), row.params.get("size_bytes", 0)
        if isinstance(node, int) and isinstance(size, int) and row.value > 0 and size >= sizes.get(node, 0):
            found[node], sizes[node] = row, size
    return found


def own_node(evidence: Evidence) -> int | None:
    """The node that the GPU says it hangs on."""
    own = link_facts(evidence).number("numa_node")
    return evidence.gpu.numa_node if own is None and evidence.gpu is not None else own


def near_node(evidence: Evidence, found: dict[int, Row]) -> int | None:
    """The GPU's own node, unless another is clearly faster; the fastest where its own is not known or not measured."""
    own, best = own_node(evidence), max(found, key=lambda node: found[node].value, default=None)
    if own is None or best is None or own not in found:
        return best
    return best if 1 - found[own].value / found[best].value > FAR_LOSS else own


def numa(evidence: Evidence) -> list[Finding]:
    """What copies lose with memory of a far node."""
    words, losses, rows = [], [], []
    for direction, way in DIRECTIONS.items():
        found = nodes(evidence, direction)
        best = near_node(evidence, found)
        if len(found) < 2 or best is None:
            continue
        losses.append((max(1 - row.value / found[best].value for row in found.values()), best))
        places = [f"{quantity(row.value, 'B/s')} on node {node}" for node, row in found.items()]
        words.append(f"{way} {listed(places)}")
        rows += list(found.values())
    if not words:
        return []
    loss, near = max(losses)
    title = "Copies are as fast with memory of every NUMA node"
    if loss > FAR_LOSS:
        title = f"Memory of a far NUMA node costs copies {percent(loss)}"
    advice = f" Keep buffers near: `numactl --cpunodebind={near} --membind={near}`." if loss > FAR_LOSS else ""
    return [
        Finding(
            rule="link.numa",
            severity="advice" if loss > FAR_LOSS else "good",
            title=title,
            text=f"{_near_words(own_node(evidence), near, loss)}Copies {'; '.join(words)}.{advice}",
            threshold=f"advice where a far node loses over {round_percent(FAR_LOSS)}",
            rests_on=rests_on(*rows),
            suite="link",
        )
    ]


def _near_words(own: int | None, near: int, loss: float) -> str:
    """Which node is near: by what the GPU says or, where copies differ, by them."""
    if own == near or (own is None and loss > FAR_LOSS):
        return f"Node {near} is near. "
    if loss > FAR_LOSS:
        return f"Node {near} is the fastest, though the GPU is said to be on node {own}. "
    return "" if own is None else f"The GPU is on node {own}. "


def beside(evidence: Evidence) -> list[Beside]:
    """Every GPU measured alone and together."""
    together = {row.case_id: row for row in evidence.rows("link_concurrent", "together") if row.value > 0}
    return [
        Beside(index, str(row.params.get("beside")), str(row.params.get("direction")), row, together[row.case_id])
        for row in evidence.rows("link_concurrent", "alone")
        if row.value > 0 and row.case_id in together and isinstance(index := row.params.get("gpu_index"), int)
    ]


def sharing(evidence: Evidence) -> list[Beside]:
    """Those that lose by others, pairs before the whole."""
    lost = [one for one in beside(evidence) if one.kept < KEEPS]
    return sorted(lost, key=lambda one: one.beside == EVERYBODY)


def concurrent(evidence: Evidence) -> list[Finding]:
    """Which GPUs slow each other down."""
    found = beside(evidence)
    if not found:
        return []
    lost = sharing(evidence)
    ended = [one for one in found if partly_alone(one.together)]
    rests = rests_on(*(row for one in found for row in (one.alone, one.together))) + ((OTHERS_BUSY,) if ended else ())
    threshold = f"a GPU that keeps under {round_percent(KEEPS)} of its rate beside others shares an uplink"
    if not lost:
        title = "Every GPU keeps its rate while the others copy"
        text = f"{_least_words(found)}{_ended_first(ended, len(found))}"
        return [Finding("link.concurrent", "note" if ended else "good", title, text, threshold, rests, "link")]
    words = [_lost_words(direction, lost) for direction in DIRECTIONS]
    text = (
        f"{' '.join(word for word in words if word)}{_ended_first(ended, len(found))} Share out large copies over "
        "time, or place jobs so that they do not meet on one uplink."
    )
    return [Finding("link.concurrent", "warning", _shared_title(lost), text, threshold, rests, "link")]


def _least_words(found: Sequence[Beside]) -> str:
    """Who keeps least, and whether all others keep more than that."""
    least, *others = sorted(found, key=lambda one: one.kept)
    more = "every other case keeps more" if others and others[0].kept > least.kept else "no other case keeps less"
    return f"Beside {least.beside_words}, {_words(least)}{f'; {more}' if others else ''}."


def _ended_first(ended: Sequence[Beside], cases: int) -> str:
    """In how many cases the others were done too early, so that the shares kept look better than they are."""
    if not ended:
        return ""
    which = "In this case" if cases == 1 else f"In {len(ended)} of {cases} cases"
    return f" {which} the others ended first, so what is kept there is partly the rate of one GPU alone."


def _words(one: Beside) -> str:
    return (
        f"GPU {one.gpu_index} keeps {quantity(one.together.value, 'B/s')} of {quantity(one.alone.value, 'B/s')} "
        f"{DIRECTIONS.get(one.direction, one.direction)} ({percent(one.kept)})"
    )


def _lost_words(direction: str, lost: Sequence[Beside]) -> str:
    """Who loses most in one direction, and how many others lose as well."""
    own = sorted((one for one in lost if one.direction == direction), key=lambda one: one.kept)
    if not own:
        return ""
    others = len(own) - 1
    more = f"; {others} other case{'s' * (others > 1)} keep{'s' * (others == 1)} under {round_percent(KEEPS)}"
    return f"Beside {own[0].beside_words} {_words(own[0])}{more if others else ''}."


def _shared_title(lost: Sequence[Beside]) -> str:
    kept = percent(min(one.kept for one in lost))
    pairs = {tuple(sorted((one.gpu_index, int(one.beside)))) for one in lost if one.beside.isdecimal()}
    if pairs:
        named = listed([f"GPUs {first} and {second}" for first, second in sorted(pairs)])
        return f"Uplinks are shared by {named}: {kept} of a rate is kept"
    members = listed([str(index) for index in sorted({one.gpu_index for one in lost})])
    return f"An uplink is shared: {kept} of a rate is kept while all copy (GPU {members})"

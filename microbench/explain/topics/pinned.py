"""Topic pinned: what pageable memory loses in copies, what pinned memory costs to have, and when that has paid."""

from __future__ import annotations

import math

from microbench.analysis.evidence import Evidence
from microbench.core.units import about_size, as_time, percent, size
from microbench.explain.link_copy import HALF, PAGEABLE_LOSS
from microbench.explain.link_facts import DEVICE, DIRECTIONS, HOST, copies, copy_fit
from microbench.explain.link_memory import ALLOCATE, REGISTER, TOUCH, sizes
from microbench.explain.topics.topic import Gathering, Passage, Topic, both, counted, over, ratio, total, unless, up_to

COPY, PINNING = "link_copy", "link_pinning"
PRICES = {
    ALLOCATE: "to allocate and free it pinned",
    REGISTER: "to register and release it",
    TOUCH: "to map, touch and unmap it",
}
KEPT = 1 - PAGEABLE_LOSS


def figures(evidence: Evidence) -> Gathering:
    """Copies of both kinds of memory at one size, the price of that size, and from which size on a copy is fast."""
    found = Gathering(evidence)
    rates = {
        (direction, memory): dict(copies(evidence, HOST, direction, memory))
        for direction in DIRECTIONS
        for memory in ("pinned", "pageable")
    }
    common = set.intersection(*(set(points) for points in rates.values()))
    priced = common & set(sizes(evidence, REGISTER)) & set(sizes(evidence, TOUCH))
    size_bytes = max(priced or common, default=None)
    found.parameter("size", "bytes of copy and buffer", size_bytes, lambda value: size(int(value)), COPY, "size_bytes")
    for (direction, memory), points in rates.items():
        what = f"{memory} copies {DIRECTIONS[direction]}"
        found.row(f"{memory}_{direction}", what, points.get(size_bytes or 0), COPY)
    for direction, way in (("h2d", "to it"), ("d2h", "from it")):
        slots = (f"pageable_{direction}", f"pinned_{direction}")
        found.computed(f"kept_{direction}", f"pageable copies keep {way}", "pageable / pinned", percent, ratio, *slots)
    _prices(found, size_bytes or 0)
    fit = copy_fit(evidence, DEVICE, "h2d", "pinned")
    half, fitted = (fit.size_for(HALF), [row for _, row in fit.points]) if fit is not None else (None, [])
    found.fitted("half", "half the bandwidth from", "T = a + V / b, at a × b", about_size, half, fitted, COPY)
    return found


def _prices(found: Gathering, size_bytes: int) -> None:
    """What the buffer costs each way, and after how many copies registering it has paid."""
    for way, what in PRICES.items():
        for metric in ("pin", "release"):
            found.measured(f"{way}_{metric}", f"{way}: {metric}", PINNING, metric, way=way, size_bytes=size_bytes)
        found.computed(way, what, f"{way}: pin + release", as_time, total, f"{way}_pin", f"{way}_release")
    found.computed(
        "saved", "what a pinned copy saves", "bytes / pageable − pinned", as_time,
        lambda count, pageable, pinned: count / pageable - count / pinned, "size", "pageable_h2d", "pinned_h2d",
    )  # fmt: skip
    found.computed(
        "copies", "copies until that has paid", "register / saved, rounded up", counted("copy", "copies"),
        lambda price, saved: max(math.ceil(price / saved), 1) if saved > 0 else None, REGISTER, "saved",
    )  # fmt: skip


TOPIC = Topic(
    name="pinned",
    title="Pinned memory",
    about="what pageable copies lose, and when pinned memory has paid",
    suites=("link",),
    figures=figures,
    needs=("kept_h2d",),
    headline=(
        Passage("Pageable copies reach {kept_h2d} of pinned ones to the GPU, {kept_d2h} back"),
        Passage("A copy engine needs memory that stays where it is"),
    ),
    paragraphs=(
        (
            Passage(
                "A copy engine needs pages that do not move: pinned ones. Pageable memory the driver carries over "
                "through a pinned buffer of its own, on the host's time: such a copy blocks, or returns before its "
                "data have arrived."
            ),
        ),
        (
            Passage(
                "Copies of {size} reach {pinned_h2d} to the GPU from pinned memory and {pageable_h2d} from pageable; "
                "back it is {pinned_d2h} against {pageable_d2h}."
            ),
            Passage("On this machine that is no reason to pin anything.", when=over("kept_h2d", KEPT)),
        ),
        (
            Passage(
                "Pinning has its price: {size} take {allocate} to allocate pinned and free, {register} to register in "
                "place and release, {touch} to map, touch and unmap unpinned."
            ),
            Passage("A pinned copy saves {saved}, so registering has paid after {copies}.", when=over("saved", 0.0)),
        ),
        (
            Passage(
                "Allocate pinned buffers once and use them again, and register what somebody else allocated.",
                when=unless(over("kept_h2d", KEPT)),
            ),
            Passage(
                "Leave pageable what is copied only once.",
                when=both(unless(over("kept_h2d", KEPT)), unless(up_to("copies", 1.0))),
            ),
            Passage("Gather what is small: below {half} a copy spends more time on being a copy than on its bytes."),
        ),
    ),
    related=("topology", "traffic"),
)

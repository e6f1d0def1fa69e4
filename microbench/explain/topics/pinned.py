"""Topic pinned: what copies of pageable memory lose, what pinned memory costs to have, and when that pays."""

from operator import truediv

from microbench.analysis.evidence import Evidence, paid_after, rests_on
from microbench.core.units import about_size, as_time, percent, size
from microbench.explain import link_facts as links
from microbench.explain.topics.topic import Topic, TopicFigures, counted, total

COPY, PINNING = "link_copy", "link_pinning"
PRICES = {
    links.ALLOCATE: "to allocate and free it pinned",
    links.REGISTER: "to register and release it",
    links.TOUCH: "to map, touch and unmap it",
}
FAST_ENOUGH = 1 - links.PAGEABLE_LOSS


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """Copies of both kinds of memory at one size, the price of that size, and the size of a fast copy."""
    rates = {
        (direction, memory): dict(links.copies(evidence, links.HOST, direction, memory))
        for direction in links.DIRECTIONS
        for memory in ("pinned", "pageable")
    }
    common = set.intersection(*(set(points) for points in rates.values()))
    prices = (evidence.curve(PINNING, "pin", "size_bytes", way=way) for way in (links.REGISTER, links.TOUCH))
    size_bytes = max(common.intersection(*map(dict, prices)) or common, default=None)
    known.parameter("size", "bytes of copy and buffer", size_bytes, lambda value: size(int(value)), COPY, "size_bytes")
    for (direction, memory), points in rates.items():
        what = f"{memory} copies {links.DIRECTIONS[direction]}"
        known.row(f"{memory}_{direction}", what, points.get(size_bytes or 0), COPY)
    for direction, way in links.DIRECTIONS.items():
        slots, what = (f"pageable_{direction}", f"pinned_{direction}"), f"pageable of pinned, {way}"
        known.computed(f"share_{direction}", what, "pageable / pinned", percent, truediv, *slots)
    for way, what in PRICES.items():
        for metric in ("pin", "release"):
            known.measured(f"{way}_{metric}", f"{way}: {metric}", PINNING, metric, way=way, size_bytes=size_bytes or 0)
        known.computed(way, what, f"{way}: pin + release", as_time, total, f"{way}_pin", f"{way}_release")
    known.computed(
        "saved", "what a pinned copy saves", "bytes / pageable − pinned", as_time,
        lambda count, pageable, pinned: count / pageable - count / pinned, "size", "pageable_h2d", "pinned_h2d",
    )  # fmt: skip
    known.computed(
        "copies", "copies until registering pays", "register / saved, rounded up", counted("copy", "copies"),
        paid_after, links.REGISTER, "saved",
    )  # fmt: skip
    fit = links.copy_fit(evidence, links.DEVICE, "h2d", "pinned")
    half, fitted = (fit.size_for(links.HALF), [row for _, row in fit.points]) if fit is not None else (None, [])
    known.fitted(
        "half", "half the bandwidth from", "T = a + V / b, at a × b", about_size, half, rests_on(*fitted), COPY
    )


TOPIC = Topic(
    name="pinned",
    title="Pinned memory",
    about="what pageable copies lose, and when pinned memory has paid",
    suites=("link",),
    collect=figures,
    needs=("share_h2d",),
    related=("topology", "traffic"),
    text="""
    Pageable copies reach {share_h2d} of pinned ones to the GPU, {share_d2h} back
    A copy engine needs memory that stays in place

    A copy engine needs pages that stay in place: pinned memory. The driver moves pageable memory through a pinned
      buffer of its own, which costs host time: such a copy blocks, or returns before its data have arrived.

    Copies of {size} reach {pinned_h2d} to the GPU from pinned memory and {pageable_h2d} from pageable; back they reach
      {pinned_d2h} and {pageable_d2h}.
    [fast] On this machine that is no reason to pin anything.

    Pinning has its price: {size} take {allocate} to allocate pinned and free, {register} to register in place and
      release, {touch} to map, touch and unmap unpinned.
    [saves] A pinned copy saves {saved}, so registering has paid after {copies}.

    [slow] Allocate pinned buffers once and reuse them, and register buffers that other code allocated.
    [seldom] Leave memory pageable that is copied only once.
    Combine small copies: below {half} a copy spends more time on overhead than on its bytes.
    """,
    when={
        "fast": lambda value: value("share_h2d") > FAST_ENOUGH,
        "saves": lambda value: value("saved") > 0,
        "slow": lambda value: not value("share_h2d") > FAST_ENOUGH,
        "seldom": lambda value: not (value("share_h2d") > FAST_ENOUGH or value("copies") <= 1),
    },
)

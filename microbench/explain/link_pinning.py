"""Explains link_pinning: what pinned memory costs to have, and after how many copies it has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.link_copies import DIRECTIONS, HOST, Point, copies, seconds_at
from microbench.stats import Row
from microbench.units import as_time, size

ALLOCATE, REGISTER, TOUCH = "allocate", "register", "touch"
WAYS = {ALLOCATE: "allocated pinned", REGISTER: "pinned where it is"}
AT_ONCE, FEW = 1, 10


class Price(NamedTuple):
    """What a buffer costs once: had and given back."""

    pin: Row
    release: Row

    @property
    def whole_s(self) -> float:
        """Both together."""
        return self.pin.value + self.release.value


class Choice(NamedTuple):
    """One buffer, pinned one way: what that costs more than pageable memory, and what a copy saves by it."""

    way: str
    size_bytes: int
    extra_s: float
    pageable_s: dict[str, float]
    pinned_s: dict[str, float]
    rows: tuple[Row, ...]

    def copies(self, direction: str) -> int | None:
        """From how many copies in that direction on it has paid; None if a pinned copy saves nothing, or none was
        measured around that size."""
        pageable_s, pinned_s = self.pageable_s.get(direction), self.pinned_s.get(direction)
        if pageable_s is None or pinned_s is None or pageable_s <= pinned_s:
            return None
        return max(math.ceil(self.extra_s / (pageable_s - pinned_s)), AT_ONCE)


def price(evidence: Evidence, way: str, size_bytes: int) -> Price | None:
    """The cost of having that much memory that way."""
    chosen: dict[str, int | str] = {"way": way, "size_bytes": size_bytes}
    pin, release = (evidence.row("link_pinning", name, **chosen) for name in ("pin", "release"))
    return Price(pin, release) if pin is not None and release is not None else None


def sizes(evidence: Evidence, way: str) -> list[int]:
    """The sizes that were had that way, ascending."""
    return [one for one, _ in evidence.curve("link_pinning", "pin", "size_bytes", way=way)]


def choices(evidence: Evidence) -> list[Choice]:
    """Every buffer whose price and copies are both known, by way and size.

    Allocating pinned memory replaces mapping and touching pageable memory, so only the difference counts.
    """
    pinned, pageable = (
        {one: copies(evidence, HOST, one, kind) for one in DIRECTIONS} for kind in ("pinned", "pageable")
    )
    found = []
    for way in WAYS:
        for count in sizes(evidence, way):
            own, touched = price(evidence, way, count), price(evidence, TOUCH, count)
            if own is None or (way == ALLOCATE and touched is None):
                continue
            saved_s = touched.whole_s if way == ALLOCATE and touched is not None else 0.0
            rows = (*own, *(touched or ()))
            one = Choice(way, count, own.whole_s - saved_s, _at(pageable, count), _at(pinned, count), rows)
            if one.pageable_s and one.pinned_s:
                found.append(one)
    return found


def _at(curves: dict[str, list[Point]], count: int) -> dict[str, float]:
    known = {direction: seconds_at(points, count) for direction, points in curves.items()}
    return {direction: value for direction, value in known.items() if value is not None}


def pays(evidence: Evidence) -> list[Finding]:
    """Pin or not: from how many copies of which size on."""
    found = choices(evidence)
    if not found:
        return []
    largest = max(found, key=lambda one: one.size_bytes)
    used = [row for one in found for row in one.rows]
    return [
        Finding(
            rule="link.pin",
            severity="advice",
            title=_title(largest),
            text=" ".join(words for words in (*(_way_words(way, found) for way in WAYS), _advice(found)) if words),
            threshold=(
                "(pin + release, less what pageable memory costs where it is new) / (pageable copy − pinned copy), "
                "each waited for; copies straight over size between measured ones"
            ),
            rests_on=rests_on(*used),
            suite="link",
        )
    ]


def _title(one: Choice) -> str:
    counts = [count for direction in DIRECTIONS if (count := one.copies(direction)) is not None]
    if not counts:
        return f"Pinning does not pay for copies of {size(one.size_bytes)}"
    most = max(counts)
    if most == AT_ONCE:
        return f"Pinning pays with the first copy of {size(one.size_bytes)}"
    return f"Pinning pays from {most} copies of {size(one.size_bytes)} on"


def _way_words(way: str, found: Sequence[Choice]) -> str:
    own = [one for one in found if one.way == way]
    return f"{WAYS[way].capitalize()}: {listed([_choice_words(one) for one in own])}." if own else ""


def _choice_words(one: Choice) -> str:
    counts = [one.copies(direction) for direction in DIRECTIONS]
    known = [count for count in counts if count is not None]
    paid = f"after {max(known)} {'copy' if max(known) == 1 else 'copies'}" if known else "never"
    more = f"costs {as_time(one.extra_s)} more" if one.extra_s > 0 else "costs nothing more"
    return f"{size(one.size_bytes)} {more} and has paid {paid}"


def _advice(found: Sequence[Choice]) -> str:
    counts = [count for one in found for direction in DIRECTIONS if (count := one.copies(direction)) is not None]
    if not counts:
        return "Leave memory pageable."
    if max(counts) <= FEW:
        return "Pin whatever is copied more than a few times."
    return "Pin buffers that are used again and keep them; leave what is copied once pageable."

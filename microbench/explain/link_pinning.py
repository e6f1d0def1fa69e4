"""Explains link_pinning: what pinned memory costs to have, and after how many copies it has paid for itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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

    @property
    def directions(self) -> list[str]:
        """Those in which copies of both kinds of memory were measured around that size: of others nothing is known."""
        return [one for one in DIRECTIONS if one in self.pageable_s and one in self.pinned_s]

    def copies(self, direction: str) -> int | None:
        """From how many copies in one of its directions on it has paid; None if a pinned copy saves nothing."""
        saved_s = self.pageable_s[direction] - self.pinned_s[direction]
        return max(math.ceil(self.extra_s / saved_s), AT_ONCE) if saved_s > 0 else None

    @property
    def paid(self) -> dict[str, int]:
        """From how many copies on, for each direction in which it pays at all."""
        return {one: count for one in self.directions if (count := self.copies(one)) is not None}

    @property
    def never(self) -> list[str]:
        """The directions in which it does not."""
        return [one for one in self.directions if one not in self.paid]


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
            if one.directions:
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
    copied = f"copies of {size(one.size_bytes)}"
    if not one.paid:
        return f"Pinning does not pay for {copied}"
    # Where the directions differ, each is named: a count of one says nothing of the other.
    way, other = (f" {_ways(one.paid)}", f", never {_ways(one.never)}") if one.never else ("", "")
    most = max(one.paid.values())
    if most == AT_ONCE:
        return f"Pinning pays with the first copy of {size(one.size_bytes)}{way}{other}"
    return f"Pinning pays from {most} {copied}{way} on{other}"


def _ways(directions: Iterable[str]) -> str:
    return listed([DIRECTIONS[one] for one in directions])


def _way_words(way: str, found: Sequence[Choice]) -> str:
    own = [one for one in found if one.way == way]
    return f"{WAYS[way].capitalize()}: {listed([_choice_words(one) for one in own])}." if own else ""


def _choice_words(one: Choice) -> str:
    more = f"costs {as_time(one.extra_s)} more" if one.extra_s > 0 else "costs nothing more"
    return f"{size(one.size_bytes)} {more} and has paid {_paid_words(one)}"


def _paid_words(one: Choice) -> str:
    """After how many copies, of the worse direction where both pay."""
    if not one.paid:
        return "never"
    most = max(one.paid.values())
    after = f"after {most} {'copy' if most == 1 else 'copies'}"
    return f"{after} {_ways(one.paid)} but never {_ways(one.never)}" if one.never else after


def _advice(found: Sequence[Choice]) -> str:
    counts = [count for one in found for count in one.paid.values()]
    if not counts:
        return "Leave memory pageable."
    if any(one.never for one in found):
        return "Pin what is copied in a direction and size that pays; leave other memory pageable."
    if max(counts) <= FEW:
        return "Pin whatever is copied more than a few times."
    return "Pin buffers that are used again and keep them; leave what is copied once pageable."

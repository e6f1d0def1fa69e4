"""Shapes of streaming kernels in words: how wide an access is, how much is under way, how many blocks."""

from __future__ import annotations

import re

from microbench.units import size

# grid_16B_x4_t256, steps_16B_x4_t512_b8, bulk_8192B_x4_t128_b4: parts may be missing or in another order.
BEGIN = re.compile(r"(?P<style>[a-z]+)_(?P<width>[0-9]{1,7})B_x(?P<ahead>[0-9]{1,4})(?P<rest>(?:_[tb][0-9]{1,5})*)")
PART = re.compile(r"_([tb])([0-9]+)")
BULK = "bulk"
BLOCKS = {
    "grid": "no loop",
    "past": "no loop, past the L1",
    "steps": "grid-stride loop",
    "persistent": "grid-stride loop",
}


def shape_words(name: str) -> str:
    """The shape of that name in words; the name itself where it is not one of those known."""
    found = BEGIN.fullmatch(name)
    if found is None or found["style"] not in (BULK, *BLOCKS):
        return name
    parts = {kind: int(count) for kind, count in PART.findall(found["rest"])}
    width_bytes, ahead = int(found["width"]), int(found["ahead"])
    if found["style"] == BULK:
        words = [f"bulk copies of {size(width_bytes)}", f"{ahead} stage{'s' if ahead > 1 else ''}"]
    else:
        words = [f"{width_bytes}-byte accesses", f"{ahead} a thread", BLOCKS[found["style"]]]
    if "t" in parts:
        words.append(f"blocks of {parts['t']}")
    if "b" in parts:
        words.append(f"{parts['b']} blocks an SM")
    return ", ".join(words)

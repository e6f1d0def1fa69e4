"""What a table on the page sorts by: the number that a cell's words stand for, its unit and prefix included."""

from __future__ import annotations

import re

from microbench.units import BINARY, PREFIXES, SMALLER

# No beginning of a date, a time, a version or an address: those are words, which sort by their numbers as well.
FIGURE = re.compile(r"(?P<sign>[+−-]?)±?(?P<digits>\d+(?:\.\d+)?)(?![.:-]?\d)\s?(?P<unit>[^\s\d,;·]*)")
# Units that take a prefix. Longer words, "cycles" or "launches", take none, whatever letter they begin with.
UNITS = ("s", "B", "B/s", "W", "Hz", "/s", "FLOP/s", "OP/s", "J", "J/B", "J/FLOP", "J/OP", "cycles/s", "launches/s", "")
PREFIX_FACTORS = {prefix: factor for factor, prefix in PREFIXES if prefix} | {
    prefix: factor for prefixes in SMALLER.values() for factor, prefix in prefixes
}
FACTORS: dict[str, float] = {
    **{f"{prefix}{unit}": factor for unit in UNITS for prefix, factor in PREFIX_FACTORS.items()},
    **{name: float(scale) for scale, name in BINARY},
}


def sort_key(text: str) -> float | None:
    """The number at the beginning of a text in the base unit: "2.36 µs" is 2.36e-06, "64 KiB" 65536, "1.14×" 1.14.

    None for words. What is no known unit counts as one: such columns hold nothing else.
    """
    found = FIGURE.match(text)
    if found is None:
        return None
    value = float(found["digits"]) * FACTORS.get(found["unit"], 1.0)
    return -value if found["sign"] in ("-", "−") else value

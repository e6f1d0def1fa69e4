"""Which constants are the card's, and which the host's: python lab/spread.py FILE FILE … > lab/measurements/spread.csv.

The files are of machines with the same card: runs, or what ``microbench constants -o`` wrote. A line a constant: its
least, middle and greatest value, the ratio of the last to the first, and whose it is: the card's if that ratio is at
most 1.05, the host's from 1.2 on, else both's. By hand; needs no GPU.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys

import microbench as mb

CARD, HOST = 1.05, 1.2


def whose(ratio: float) -> str:
    """Whose constant spreads so over machines with one card."""
    return "card" if ratio <= CARD else "host" if ratio >= HOST else "both"


def main() -> None:
    files = [mb.constants(path) for path in sys.argv[1:]]
    cards = {one.machine.get("card") for one in files}
    if len(cards) != 1:
        raise SystemExit(f"the files are of several cards: {', '.join(sorted(map(str, cards)))}")
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("constant", "unit", "machines", "least", "middle", "greatest", "ratio", "whose"))
    for name in dict.fromkeys(name for one in files for name in one):
        values = sorted(one[name].value for one in files if name in one)
        if len(values) < 2 or not all(math.isfinite(value) and value > 0 for value in values):
            continue
        ratio = values[-1] / values[0]
        ends = [f"{value:.4g}" for value in (values[0], statistics.median(values), values[-1])]
        table.writerow(
            (name, files[0][name].unit if name in files[0] else "", len(values), *ends, f"{ratio:.3f}", whose(ratio))
        )


if __name__ == "__main__":
    main()

"""Do repeated runs agree? Share of pairs of rows graded ``stable`` whose intervals overlap, over all pairs of runs.

Run by hand on runs of one machine: ``python lab/overlap.py RUN RUN …``.
"""

import itertools
import sys
from collections import Counter

from microbench.analysis.stats import Row, rows
from microbench.library.runs import load


def stable_rows(name: str) -> tuple[dict[tuple[str, str], Row], Counter[str]]:
    """Rows of a run by case and metric, those graded stable only, and how many rows each grade has."""
    found = rows(load(name)[1])
    stable = {(row.case_id, row.metric.name): row for row in found if row.trust == "stable"}
    return stable, Counter(row.trust for row in found)


def main(names: list[str]) -> int:
    """Print the grades of each run, every pair that does not overlap, and the share that does."""
    runs = []
    for name in names:
        stable, grades = stable_rows(name)
        runs.append(stable)
        print(name, dict(grades))
    pairs = agreeing = 0
    for (first, one), (second, other) in itertools.combinations(enumerate(runs), 2):
        for key in one.keys() & other.keys():
            pairs += 1
            a, b = one[key].interval, other[key].interval
            if a.overlaps(b):
                agreeing += 1
            else:
                print(f"runs {first} and {second} differ: {key[0]} {key[1]}: {a} against {b}")
    print(f"{agreeing} of {pairs} pairs of stable rows overlap ({agreeing / pairs:.1%})" if pairs else "no pairs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

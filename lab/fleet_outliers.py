"""How often `fleet report` names sound GPUs, and a bad one. Run by hand; it prints rows of lab/measurements/fleet.csv.

Everything is SIMULATED: GPUs take recorded rounds of an H200, and sound boards lie apart by a normal spread in each
group of figures. The bad GPU is slower in the bandwidth of DRAM alone.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from fleet_scatter import campaign, groups, together

from microbench.fleet.outliers import LEAST_GPUS, Outlier, outliers, scores

GPUS = (2, 3, 4, 5, 8, 16, 64)
SPREADS = (0.0, 0.005, 0.015)
SLOWER = (0.03, 0.05, 0.10)
BAD = "DRAM bandwidth"


def named(seed: int, gpus: int, spread: float, slower: float) -> list[Outlier]:
    slow = {BAD: -math.log(1 - slower)} if slower else None
    figures = campaign(together, np.random.default_rng(seed), gpus, slow, spread)
    return outliers([scores(figures, len(groups()))])[0]


def main() -> None:
    """Print a row for each number of GPUs, spread and loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sound", type=int, default=400, help="campaigns without a bad GPU; a tenth for few GPUs")
    parser.add_argument("--bad", type=int, default=100, help="campaigns with one")
    asked = parser.parse_args()
    group, writer = groups().index(BAD), csv.writer(sys.stdout, lineterminator="\n")
    for gpus in GPUS:
        for spread in SPREADS:
            for number, slower in enumerate((0.0, *SLOWER)):
                campaigns = (asked.bad if slower else asked.sound) // (1 if gpus >= LEAST_GPUS else 10)
                several = (named(seed + 10_000 * number, gpus, spread, slower) for seed in range(campaigns))
                hits = sum(any((one.gpu, one.group) == (0, group) for one in found or ()) if slower else bool(found)
                           for found in several)  # fmt: skip
                what = f"{gpus} GPUs, {spread * 100:g} % between boards"
                quantity = f"-{slower * 100:g} % is found" if slower else "a sound GPU is named"
                share, n = f"{100 * hits / campaigns:.3g}", f"{campaigns} campaigns"
                writer.writerow(["outliers", what, quantity, "%", share, *[""] * 5, n, "simulated", "", ""])
                sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Whether a machine's constants choose the right way: python lab/crossovers.py MACHINE.toml OUT.csv [CASES] [SEED].

MACHINE.toml is what ``microbench constants -o`` gave on the same machine, from a run of launch_cost launch_layers
launch_gap launch_queue launch_sync graph_gain graph_lifecycle graph_transitions link_copy link_latency link_pinning
link_batch, without ``--set``. Random cases (500) are decided by its constants alone, then every way is timed by a C++
program, lab/crossovers.cu, which needs nvcc. A choice is right if no other way is over 1 % faster: that much the
times of equal ways differ. OUT.csv gets a line a case: the chosen way, the fastest, how much longer the chosen one
takes, and the times of all in us. By hand, on a machine with a GPU.
"""

from __future__ import annotations

import csv
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import microbench as mb

SEED, STEPS, MOST_COPIED = 46, 1000, 512 << 20
ALIKE, WORST = 0.01, 0.03
Known = Mapping[str, mb.MachineConstant]
DIRECTIONS, COUNTS, COPIED = ("h2d", "d2h"), (16, 256, 1024), (1, 10, 100)


class Case(NamedTuple):
    """What the C++ program reads, its ways in the order of their times, and the way that the constants choose."""

    line: str
    ways: tuple[str, ...]
    chosen: str


def log_uniform(chance: random.Random, least: float, most: float) -> int:
    return round(math.exp(chance.uniform(math.log(least), math.log(most))))


def copy(chance: random.Random, known: Known) -> Case:
    """A copy from or to memory that is there: pageable, pinned or registered; one of the latter two can be had."""
    direction, size = chance.choice(DIRECTIONS), log_uniform(chance, 256, 256 << 20)
    better = chance.choice(("pinned", "registered"))
    chosen = better if size >= known[f"link.{direction}_{better}_from"].value else "pageable"
    ways = tuple(way if way in ("pageable", better) else "" for way in ("pageable", "pinned", "registered"))
    return Case(f"copy {direction} {size}", ways, chosen)


def pinning(chance: random.Random, known: Known) -> Case:
    """Whether to pin a buffer that is copied some times and then freed."""
    kind, direction, times = (
        chance.choice(("allocate_pinned", "register")),
        chance.choice(DIRECTIONS),
        chance.choice(COPIED),
    )
    size = log_uniform(chance, 64 << 10, min(MOST_COPIED // times, 64 << 20)) & ~4095
    pays = size >= known[f"link.{direction}_{kind}_from.{times}"].value
    return Case(f"{kind} {direction} {size} {times}", ("pageable", kind), kind if pays else "pageable")


def pieces(chance: random.Random, known: Known) -> Case:
    """Many small copies to the GPU: a copy for each, one batched call, a kernel that gathers them."""
    count, size = chance.choice(COUNTS), log_uniform(chance, 1 << 10, 256 << 10) & ~15
    batched = size <= known[f"link.h2d_batched_up_to.{count}"].value
    batched = batched or size >= known[f"link.h2d_batched_from.{count}"].value
    chosen = "batched" if batched else "loop"
    chosen = "gather" if size <= known[f"link.h2d_gathered_up_to.{count}"].value else chosen
    return Case(f"pieces {count} {size}", ("loop", "batched", "gather"), chosen)


def graph(chance: random.Random, known: Known) -> Case:
    """A step of kernels of one length before a wait, which runs so often."""
    count, us = log_uniform(chance, 1, 256), chance.choice((2, 5, 20))
    pays = count >= known[f"graph.pays_from.loop.{us}us"].value
    return Case(f"graph {count} {us * 1000} {STEPS}", ("stream", "graph"), "graph" if pays else "stream")


def wait(chance: random.Random, known: Known) -> Case:
    """Which way to wait for a kernel of some length returns first."""
    us, ways = log_uniform(chance, 2, 20_000), ("spin", "yield", "blocking")
    near = min(("30us", 30), ("1ms", 1000), ("20ms", 20_000), key=lambda one: abs(math.log(us / one[1])))[0]
    chosen = min(ways, key=lambda way: known[f"launch.wait.{way}.{near}"].value)
    return Case(f"wait {us * 1000}", ways, chosen)


KINDS: tuple[Callable[[random.Random, Known], Case], ...] = (copy, pinning, pieces, graph, wait)


def cases(known: Known, count: int, seed: int) -> list[Case]:
    """As many of each kind, in random order."""
    chance = random.Random(seed)
    drawn = [KINDS[number % len(KINDS)](chance, known) for number in range(count)]
    chance.shuffle(drawn)
    return drawn


def timed(drawn: list[Case]) -> list[list[float]]:
    """The seconds of each way of each case, by the C++ program."""
    source = Path(__file__).with_suffix(".cu")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "crossovers"
        subprocess.run(["nvcc", "-O3", "-arch=native", "-o", str(program), str(source)], check=True)
        asked = "".join(f"{one.line}\n" for one in drawn)
        result = subprocess.run([str(program)], input=asked, stdout=subprocess.PIPE, text=True, check=True)
    return [[float(word) for word in line.split()] for line in result.stdout.splitlines()]


class Judged(NamedTuple):
    """A line of OUT.csv; ``loss`` is what the chosen way takes more than the fastest, as a share of it."""

    kind: str
    case: str
    chosen: str
    fastest: str
    loss: float
    us: str


def judged(one: Case, seconds: list[float]) -> Judged:
    times = {way: taken for way, taken in zip(one.ways, seconds, strict=True) if way}
    best = min(times, key=times.__getitem__)
    loss = round(times[one.chosen] / times[best] - 1, 4)
    words = " ".join(f"{way}={taken * 1e6:.2f}" for way, taken in times.items())
    return Judged(one.line.split()[0], one.line, one.chosen, best, loss, words)


def main() -> None:
    path, out, *rest = sys.argv[1:]
    count, seed = (int(one) for one in (*rest, *("500", str(SEED))[len(rest) :]))
    drawn = cases(mb.constants(path), count, seed)
    found = [judged(*one) for one in zip(drawn, timed(drawn), strict=True)]
    with Path(out).open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([Judged._fields, *found])
    for kind in ("", *sorted({one.kind for one in found})):
        own = [one for one in found if one.kind == kind or not kind]
        right, over = (sum(one.loss <= most for one in own) for most in (ALIKE, WORST))
        worst = max(own, key=lambda one: one.loss)
        print(
            f"{kind or 'all'}: {right} of {len(own)} right, {len(own) - over} lose over 3 %,"
            f" at worst {worst.loss:.1%} ({worst.case}: {worst.chosen}, {worst.us})"
        )


if __name__ == "__main__":
    main()

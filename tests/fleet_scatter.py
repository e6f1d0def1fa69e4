"""Campaigns of equal GPUs that differ by nothing but the scatter of recorded runs, for tests of outliers.

Each recorded figure of several rounds gives the losses of its rounds against their median. A GPU of a simulated
campaign takes a recorded round of each benchmark with all its figures, so that figures which moved together still do,
or draws each figure by itself. Intervals and deviations are those of one round on such a GPU.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import deviation_key, model_of, rows, student_factor
from microbench.archive import store
from microbench.archive.export import _ceiling
from microbench.fleet.outliers import Figures
from microbench.fleet.verdict import group_of

DATA = Path(__file__).parent / "data"
NAMES = ("quiet-h200.json.xz", "compute-h200.json.xz", "held-out.json.xz")
LEAST_ROUNDS = 3
Floats = npt.NDArray[np.float64]


class Recorded(NamedTuple):
    """A figure: its benchmark, group and metric, the losses of its rounds in each recording, and its deviation."""

    benchmark: str
    group: str
    metric: str
    losses: tuple[Floats, ...]
    share: float
    doubt: float


@cache
def recorded() -> tuple[Recorded, ...]:
    """Every figure of the recorded runs that has a deviation."""
    found: dict[str, list[Recorded]] = {}
    for path in (*(DATA / name for name in NAMES), store.bundled()["nvidia-h200"]):
        run = store.read(path)
        for row in rows(run):
            medians = np.array([summary.interval.median for summary in row.summaries])
            key = deviation_key(row.benchmark, row.metric)
            deviation = run.deviations.get(model_of(run, row.outcomes[0]), {}).get(key)
            if row.metric.kind == "count" or len(medians) < LEAST_ROUNDS or (medians <= 0).any() or deviation is None:
                continue
            sign = 1 if row.metric.kind == "time" else -1
            # The median of a few rounds is nearer to these rounds than the true median is.
            wider = np.sqrt(len(medians) / (len(medians) - 1))
            losses = wider * sign * np.log(medians / np.median(medians))
            limit = _ceiling(run, row.outcomes[0], row.measurement)
            share = row.value / limit if limit else 0.0
            one = row.measurement
            group = group_of(row.benchmark, row.metric.name, row.suite, one.clock, one.bound, share)
            doubt = student_factor(deviation.rounds) * deviation.share
            figure = Recorded(row.benchmark, group, row.metric.name, (losses,), deviation.share, doubt)
            found.setdefault(f"{row.case_id} {row.metric.name}", []).append(figure)
    return tuple(several[0]._replace(losses=tuple(one.losses[0] for one in several)) for several in found.values())


def groups() -> list[str]:
    return list(dict.fromkeys(one.group for one in recorded()))


Draw = Callable[[np.random.Generator, int], Floats]


@cache
def table() -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The losses of all recorded rounds, a row each figure; how many there are in each; the benchmark of each figure.

    The rounds of a figure with fewer are repeated.
    """
    most = max(sum(map(len, one.losses)) for one in recorded())
    names = list(dict.fromkeys(one.benchmark for one in recorded()))
    whole = np.array([np.resize(np.concatenate(one.losses), most) for one in recorded()])
    counts = np.array([sum(map(len, one.losses)) for one in recorded()])
    return whole, counts, np.array([names.index(one.benchmark) for one in recorded()])


def together(random: np.random.Generator, gpus: int) -> Floats:
    """Each GPU takes one round of each benchmark, with all its figures."""
    losses, counts, benchmark = table()
    rounds = random.integers(0, 1 << 30, (benchmark.max() + 1, gpus))
    return np.take_along_axis(losses, rounds[benchmark] % counts[:, None], axis=1)


def apart(random: np.random.Generator, gpus: int) -> Floats:
    """Each GPU takes a round of each figure by itself."""
    losses, counts, _ = table()
    return np.take_along_axis(losses, random.integers(0, 1 << 30, (len(losses), gpus)) % counts[:, None], axis=1)


def campaign(
    draw: Draw, random: np.random.Generator, gpus: int, slow: dict[str, float] | None = None, spread: float = 0.0
) -> Figures:
    """A campaign of equal GPUs, of which the first has the losses of ``slow`` added, by group.

    ``spread`` is how far sound boards lie apart in each group, as a standard deviation.
    """
    drawn = draw(random, gpus)
    names = groups()
    if spread:
        boards = random.normal(0, spread, (len(names), gpus))
        drawn += boards[[names.index(one.group) for one in recorded()]]
    for place, one in enumerate(recorded()):
        drawn[place, 0] += (slow or {}).get(one.group, 0.0)
    drawn -= np.median(drawn, axis=1, keepdims=True)
    whole = (len(recorded()), gpus)
    return Figures(
        np.array([float(names.index(one.group)) for one in recorded()]),
        drawn,
        np.broadcast_to(np.array([[one.doubt] for one in recorded()]), whole),
        np.broadcast_to(np.array([[one.share] for one in recorded()]), whole),
    )

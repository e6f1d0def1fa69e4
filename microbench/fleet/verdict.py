"""Judges a campaign in a store: which GPUs are slower than others of their class, in what, and why that may be."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.errors import RunUnreadableError, UsageError
from microbench.core.units import plain
from microbench.fleet import causes, store
from microbench.fleet.campaign import Task, read_folder
from microbench.fleet.causes import Cause, Gpu
from microbench.fleet.outliers import Figures, Outlier, losses, outliers, scores, smallest, tested

# A figure counts as bound by its ceiling if the class's median reaches at least this share of it.
BOUND = 0.5
# What figures that are bound by a ceiling are called, by the first part of the ceiling's name.
BOUNDS = {
    "pcie_h2d": "copies to the GPU", "pcie_d2h": "copies from the GPU", "dram": "DRAM bandwidth",
    "l2": "L2 bandwidth", "l1": "L1 bandwidth", "shared": "shared memory bandwidth", "gemm": "matrix products",
    "tensor": "tensor cores", "alu": "arithmetic units",
}  # fmt: skip
HOST = "calls on the host"
# A label is named if GPUs share it by chance less often than this.
CHANCE_SHARED = 0.05
# The figures that are judged: times and rates of benchmarks whose scatter is known.
JUDGED = "r.kind IN ('time', 'rate') AND r.suite <> 'own' AND r.median > 0 AND (r.deviation IS NOT NULL OR r.simulated)"
DEVIATION = "CASE WHEN r.simulated THEN coalesce(r.deviation, 0) ELSE r.deviation END"
ROWS = f"""
    SELECT n.node, n.device, r.benchmark, r."case", r.metric, r.suite, r.kind, r.bound, r.clock, r.median, r.ci_low,
        r.ci_high, {DEVIATION}, r.ceiling
    FROM rows r JOIN nodes n ON r.campaign = n.campaign AND r.node = n.node AND r.run = n.run
        AND (r.device = n.device OR r.device IS NULL)
    WHERE r.campaign = $1 AND {JUDGED}
    ORDER BY r.session
"""


class Named(NamedTuple):
    """An outlier: in what it is slow (the loss as a share by group, the largest first), and the likely causes, the
    likeliest first."""

    gpu: Gpu
    slow: dict[str, float]
    causes: tuple[Cause, ...]


class Compared(NamedTuple):
    """GPUs of one class. A row of ``loss`` is a group, a column a GPU; ``smallest`` is what would be named in each.

    Too few GPUs are not ``judged`` by each other.
    """

    name: str
    gpus: tuple[Gpu, ...]
    groups: tuple[str, ...]
    loss: FloatArray
    smallest: FloatArray
    judged: bool


class Verdict(NamedTuple):
    """A campaign: its GPUs by class, the outliers, labels that these share, tasks that failed, and which batches of the
    store are ``left_out``."""

    campaign: str
    simulated: bool
    classes: tuple[Compared, ...]
    named: tuple[Named, ...]
    shared: tuple[str, ...]
    failed: tuple[Task, ...]
    left_out: tuple[str, ...] = ()

    @property
    def gpus(self) -> list[Gpu]:
        return [gpu for one in self.classes for gpu in one.gpus]


def judged(directory: Path, campaign: str | None = None) -> Verdict:
    """The verdict on a campaign of a store, or on the newest one. Raises UsageError."""
    verdict, left_out = store.answered(directory, lambda connection: _judged(connection, directory, campaign))
    return verdict._replace(left_out=left_out)


def _judged(connection: Any, directory: Path, campaign: str | None) -> Verdict:
    chosen = campaigns_until(connection, campaign)[0]
    gpus = gpus_of(connection, chosen)
    rows = connection.execute(ROWS, [chosen]).fetchall()
    by_class: dict[str, list[Gpu]] = {}
    for gpu in gpus.values():
        by_class.setdefault(gpu.of_class, []).append(gpu)
    tables = [_table(rows, members) for members in by_class.values()]
    scored = [scores(figures, len(groups)) for figures, groups in tables]
    found = outliers(scored)
    tests = sum(map(tested, scored))
    compared = tuple(
        Compared(name, tuple(members), groups, one.loss, smallest(one, tests), tested(one) > 0)
        for (name, members), (_, groups), one in zip(by_class.items(), tables, scored, strict=True)
    )
    named = [
        each
        for members, (_, groups), several in zip(by_class.values(), tables, found, strict=True)
        for each in _named(members, groups, several)
    ]
    named.sort(key=lambda each: -max(each.slow.values()))
    failed: tuple[Task, ...] = ()
    with suppress(RunUnreadableError):  # not every store has the campaign's record
        tasks = read_folder(directory / "campaigns" / chosen).tasks
        failed = tuple(task for task in tasks if task.status not in ("ok", "waiting"))
    return Verdict(
        chosen,
        any(gpu.simulated for gpu in gpus.values()),
        compared,
        tuple(named),
        tuple(shared_labels([each.gpu for each in named], list(gpus.values()))),
        failed,
    )


def campaigns_until(connection: Any, campaign: str | None) -> list[str]:
    """That campaign of a store, or the newest one, and all before it, the newest first. Raises UsageError."""
    newest = "SELECT campaign FROM runs GROUP BY campaign ORDER BY max(began) DESC, campaign DESC"
    known = [name for (name,) in connection.execute(newest).fetchall()]
    if campaign is not None and campaign not in known:
        raise UsageError(f"there is no campaign {plain(campaign, 40)}", f"there are {', '.join(known[:10])}")
    return known[known.index(campaign) if campaign is not None else 0 :]


def gpus_of(connection: Any, campaign: str) -> dict[tuple[str, str], Gpu]:
    """The GPUs of a campaign by node and UUID, with the findings that may explain them."""
    found: dict[tuple[str, str], list[Any]] = {}
    worrying = "SELECT node, device, rule, severity, title, advice FROM findings WHERE campaign = $1"
    for node, device, *finding in connection.execute(worrying, [campaign]).fetchall():
        found.setdefault((node, device or ""), []).append(tuple(finding))
    columns = (
        "node, device, index, class, labels, numa_node, power_limit_w, temperature_c, throttled, throttle_reasons, "
        "facts, simulated"
    )
    listed = f"SELECT {columns} FROM nodes WHERE campaign = $1 ORDER BY node, index, device"
    gpus = {}
    for node, device, *more in connection.execute(listed, [campaign]).fetchall():
        findings = [*found.get((node, device), ()), *found.get((node, ""), ())]
        gpus[node, device] = Gpu._make((node, device, *more, tuple(findings)))
    return gpus


def _table(rows: Sequence[tuple[Any, ...]], members: Sequence[Gpu]) -> tuple[Figures, tuple[str, ...]]:
    """The figures of the GPUs of a class, and the names of their groups. Of several sessions the last one counts."""
    columns = {(gpu.node, gpu.device): place for place, gpu in enumerate(members)}
    figures: dict[tuple[str, str, str], int] = {}
    about: list[tuple[tuple[str, str, str, str, str | None], bool]] = []
    cells = []
    for node, device, benchmark, case, metric, suite, kind, bound, clock, *numbers in rows:
        gpu = columns.get((node, device))
        if gpu is None:
            continue
        place = figures.setdefault((benchmark, case, metric), len(figures))
        if place == len(about):
            about.append(((benchmark, metric, suite, clock, bound), kind == "rate"))
        cells.append((place, gpu, *numbers))
    table = np.full((5, len(figures), len(members)), np.nan)
    if cells:
        places, gpus, *several = zip(*cells, strict=True)
        for layer, of_layer in enumerate(several):
            table[layer, places, gpus] = np.array(of_layer, dtype=np.float64)
    values, low, high, deviation, limits = (table[layer] for layer in range(len(table)))
    rate = np.array([is_rate for _, is_rate in about], dtype=bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        doubt = np.where(rate[:, None], np.log(high / values), np.log(values / low))
        share = np.nanmedian(np.nan_to_num(values / limits, nan=0.0), axis=1) if len(about) else np.zeros(0)
    names = [group_of(*words, near) for (words, _), near in zip(about, share, strict=True)]
    groups = tuple(dict.fromkeys(names))
    numbers_of = np.array([groups.index(name) for name in names], dtype=np.float64)
    return Figures(numbers_of, losses(values, rate), doubt, deviation), groups


def group_of(benchmark: str, metric: str, suite: str, clock: str, bound: str | None, share: float) -> str:
    """The group of a figure: what it is bound by if it has a large share of that ceiling, else its benchmark's metric.

    All figures that the host's clock times form one group, except those of the host suite.
    """
    name = HOST if clock == "host" and suite != "host" else f"{benchmark} {metric}"
    return BOUNDS.get((bound or "").partition(":")[0], name) if share >= BOUND else name


def _named(members: Sequence[Gpu], groups: tuple[str, ...], several: Sequence[Outlier]) -> list[Named]:
    """The GPUs of a class that were found, each with all that it is slow in."""
    by_gpu: dict[int, dict[str, float]] = {}
    for each in sorted(several, key=lambda one: -one.loss):
        by_gpu.setdefault(each.gpu, {})[groups[each.group]] = math.expm1(each.loss)
    others = [gpu for number, gpu in enumerate(members) if number not in by_gpu]
    found = {each.gpu: by_gpu[each.gpu] for each in several}  # the most certain first
    return [
        Named(members[place], slow, tuple(causes.likely(members[place], others, slow))) for place, slow in found.items()
    ]


def shared_labels(named: Sequence[Gpu], everyone: Sequence[Gpu]) -> list[str]:
    """Sentences about labels that all named GPUs have and few others."""
    if len(named) < 2 or len(named) == len(everyone):
        return []
    said = []
    for key in dict.fromkeys(key for gpu in named for key in gpu.places):
        values = {gpu.places.get(key) for gpu in named}
        (value,) = values if len(values) == 1 else (None,)
        if value is None:
            continue
        there = sum(gpu.places.get(key) == value for gpu in everyone)
        rest = len(everyone) - there
        if rest == 0 or (there > len(named) and (there / len(everyone)) ** (len(named) - 1) > CHANCE_SHARED):
            continue
        more = there - len(named)
        alone = f"so do{'es' * (more == 1)} {more} other{'s' * (more != 1)} there" if more else "no other GPU has it"
        said.append(f"All {len(named)} have {plain(key)}={plain(value)}; {alone}, none of the {rest} elsewhere is slow")
    return said

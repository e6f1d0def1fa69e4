"""Knows how much figures vary between fresh processes, by the bundled runs and by the user's own longer runs.

The package includes the deviations of its bundled runs as a small file, because reading those runs takes a second.
``scripts/process_deviations`` writes this file, and a test compares it with the runs. The deviations of a run of three
rounds or more replace them for its own GPU, in a file of the data folder, so that no command has to search old runs.
"""

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from microbench.analysis.stats import STABLE_ROUNDS, Row, deviation_key, model_of, rows
from microbench.core import files
from microbench.core.model import HOST, Deviation, Deviations, Run

SHIPPED = Path(__file__).with_name("processes.json")
# In the data folder; the ending keeps it out of the list of runs.
LEARNED = "processes.learned"
LARGEST_BYTES = 1 << 24
# The bundled runs are of this GPU. Other models take their deviations until the user's own runs replace them.
REFERENCE_GPU = "NVIDIA H200"
MOST_OVER_MEDIAN = 5
DIGITS = 3


def measured(runs: Iterable[Run]) -> Deviations:
    """The deviations of the benchmarks in these runs, from rows of at least STABLE_ROUNDS rounds.

    A case's share is the standard deviation of its round medians about their median, divided by that median. The share
    of a metric is the mean over its cases; a wild case counts as MOST_OVER_MEDIAN times the median case.
    """
    shares: dict[tuple[str, str, int], list[tuple[float, int]]] = {}
    for run in runs:
        for row in rows(run):
            info = run.benchmark(row.benchmark)
            if info is not None and (found := _scatter(row)) is not None:
                key = model_of(run, row.outcomes[0]), deviation_key(row.benchmark, row.metric), info.version
                shares.setdefault(key, []).append((found, len(row.summaries)))
    result: Deviations = {}
    for (model, metric, version), cases in sorted(shares.items()):  # the newest version comes last and stays
        most = MOST_OVER_MEDIAN * median(scatter for scatter, _ in cases) or math.inf
        share = sum(min(scatter, most) for scatter, _ in cases) / len(cases)
        rounds = min(count for _, count in cases)
        result.setdefault(model, {})[metric] = Deviation(version, rounds, float(f"{share:.{DIGITS}g}"))
    return result


def _scatter(row: Row) -> float | None:
    values = [summary.interval.median for summary in row.summaries]
    if len(values) < STABLE_ROUNDS or not (centre := median(values)):
        return None
    scatter = math.sqrt(sum((value / centre - 1) ** 2 for value in values) / (len(values) - 1))
    return scatter if math.isfinite(scatter) else None


def attached(run: Run, folder: Path) -> Run:
    """The run with the deviations known for its GPUs and its host. ``folder`` is the data folder.

    A simulated run gets none, because its processes are all alike.
    """
    if run.simulated or not run.sessions:
        return run
    shipped, learned = _read(SHIPPED), _read(folder / LEARNED)
    names = {gpu.name for session in run.sessions for gpu in session.environment.gpus}
    known = {name: shipped.get(name, shipped.get(REFERENCE_GPU, {})) for name in names} | {HOST: shipped.get(HOST, {})}
    for name, of_name in known.items():
        own = learned.get(name, {})
        # What is shipped counts for other metrics and for newer versions of a benchmark.
        newer = {key: one for key, one in of_name.items() if key not in own or one.version > own[key].version}
        known[name] = own | newer
    return msgspec.structs.replace(run, deviations=known)


def learn(run: Run, folder: Path) -> None:
    """Store how much the processes of a run's newest session vary, if it has enough rounds.

    A folder that cannot be written to is left as it is: intervals then rest on what was known before.
    """
    newest = len(run.sessions) - 1
    if run.sessions[newest].simulated or run.sessions[newest].settings.rounds < STABLE_ROUNDS:
        return
    own = tuple(outcome for outcome in run.outcomes if outcome.session == newest)
    known = _read(folder / LEARNED)
    for model, deviations in measured([msgspec.structs.replace(run, outcomes=own)]).items():
        known[model] = known.get(model, {}) | deviations
    with contextlib.suppress(OSError):
        os.close(files.replace(folder / LEARNED, encoded(known)))


def _read(path: Path) -> Deviations:
    """The deviations in a file; none if it is absent or damaged."""
    try:
        with files.open_regular(path) as file:
            known = msgspec.json.decode(file.read(LARGEST_BYTES), type=Deviations)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return {}
    return {
        model: {key: one for key, one in several.items() if one.rounds > 1 and math.isfinite(one.share)}
        for model, several in known.items()
    }


def encoded(known: Deviations) -> bytes:
    """The content of a file of deviations."""
    return msgspec.json.format(msgspec.json.encode(known, order="sorted"), indent=1) + b"\n"

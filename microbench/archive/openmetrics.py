"""Writes a run as OpenMetrics text, which node_exporter's textfile collector and Prometheus read."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, get_args

from microbench.analysis.stats import rows
from microbench.core.model import Run, Status
from microbench.core.units import plain

# A stored unit as the end of a metric's name: base units in whole words.
UNITS = {
    "s": "seconds", "s/launch": "seconds_per_launch", "B/s": "bytes_per_second", "FLOP/s": "flops_per_second",
    "OP/s": "operations_per_second", "1/s": "per_second", "B/clk/SM": "bytes_per_cycle_and_sm",
    "FLOP/clk/SM": "flops_per_cycle_and_sm", "OP/clk/SM": "operations_per_cycle_and_sm",
    "B/launch": "bytes_per_launch", "B": "bytes", "launch": "launches", "cycle": "cycles", "Hz": "hertz", "W": "watts",
    "J/B": "joules_per_byte", "J/FLOP": "joules_per_flop", "J/OP": "joules_per_operation", "1": "ratio",
}  # fmt: skip
# Labels of every figure. An axis of the same name gets another one.
OWN = ("gpu", "model", "simulated", "stat")
END = "# EOF\n"


class Family(NamedTuple):
    """A metric: its name, what it is, its unit, and its samples by labels."""

    name: str
    help: str
    unit: str
    samples: list[tuple[dict[str, str], float]]


def to_openmetrics(run: Run) -> str:
    """The figures of a run as gauges, the newest session's of each case, and when and how it was measured.

    A figure's name is ``microbench_<benchmark>_<metric>_<unit>``. Its labels are the GPU, its model, the case's axes
    and ``stat``: median, or low and high of its 95 % interval. Text of the run is escaped.
    """
    lines = [line for family in _families(run) for line in lines_of(family)]
    return "\n".join(lines) + "\n" + END


def _families(run: Run) -> Iterator[Family]:
    models = {gpu.uuid: gpu.name for session in run.sessions for gpu in session.environment.gpus}
    newest = {(row.device, row.case_id, row.metric.name): row for row in rows(run)}
    families: dict[str, Family] = {}
    for row in newest.values():
        if not math.isfinite(row.value):
            continue
        unit = UNITS.get(row.metric.unit, "")
        name = "_".join(filter(None, (f"microbench_{_name(row.benchmark)}_{_name(row.metric.name)}", unit)))
        family = families.setdefault(name, Family(name, row.metric.about, unit, []))
        own = _of_gpu(run, row.device or "", models) | {"simulated": str(run.sessions[row.session].simulated).lower()}
        axes = {_name(name): str(value) for name, value in sorted(row.params.items())}
        labels = own | {f"axis_{name}" if name in OWN else name: value for name, value in axes.items()}
        interval = row.interval
        for stat, value in (("median", interval.median), ("low", interval.low), ("high", interval.high)):
            family.samples.append((labels | {"stat": stat}, value))
    yield from (families[name] for name in sorted(families))
    yield from _about(run, models)


def _about(run: Run, models: Mapping[str, str]) -> Iterator[Family]:
    """When the run was measured, by which version, and how many cases of each GPU have each status."""
    if not run.sessions:
        return
    session = run.sessions[-1]
    said = {
        "run": run.run_id,
        "version": session.tool_version,
        "driver": session.environment.driver_version or "",
        "simulated": str(run.simulated).lower(),
        "gpus": ", ".join(models.values()),
    }
    yield Family("microbench_run", "1, with what was measured in its labels", "", [(said, 1.0)])
    try:
        began = datetime.fromisoformat(session.started_at).timestamp()
    except ValueError:
        began = math.nan
    measured = [gpu.uuid for gpu in session.gpus] or [""]
    if math.isfinite(began):
        help = "when the newest session of the run began"
        series = [(_of_gpu(run, gpu, models), began) for gpu in measured]
        yield Family("microbench_run_started_timestamp_seconds", help, "seconds", series)
    counts = Counter((outcome.device or "", outcome.status) for outcome in run.outcomes)
    samples = [
        (_of_gpu(run, gpu, models) | {"status": status}, float(counts[gpu, status]))
        for gpu in dict.fromkeys((*measured, *(gpu for gpu, _ in counts)))
        for status in get_args(Status)
    ]
    yield Family("microbench_run_cases", "rounds of cases by status", "", samples)


def _of_gpu(run: Run, gpu: str, models: Mapping[str, str]) -> dict[str, str]:
    """The labels of a GPU ("": the host) in this run."""
    return {"gpu": gpu, "model": models.get(gpu, ""), "simulated": str(run.simulated).lower()}


def lines_of(family: Family) -> Iterator[str]:
    """A metric as lines of text."""
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} gauge"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    seen = set()
    for labels, value in family.samples:
        inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        series = f"{family.name}{{{inside}}}" if inside else family.name
        if series not in seen and math.isfinite(value):  # the text format allows each series once
            seen.add(series)
            yield f"{series} {value!r}"


def _name(text: str) -> str:
    """A name of a benchmark, metric or axis with the characters that a metric's name may have."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", text)
    return f"_{name}" if name[:1].isdigit() else name


def _escaped(text: str) -> str:
    """Text as the value of a label: on one line, with backslashes and quotes escaped."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')

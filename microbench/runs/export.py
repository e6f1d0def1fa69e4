"""A run as CSV or JSON lines, one a measurement, and as JSON: the run and what is derived from it. SI base units."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec

from microbench.analysis.clocks import is_arithmetic
from microbench.analysis.limits import ceiling, mover
from microbench.analysis.stats import Row, Summary, rows, summarize
from microbench.core.model import Measurement, Outcome, Run
from microbench.core.units import plain
from microbench.explain.rules import findings
from microbench.runs import schema

HEADER = (
    "run", "device", "simulated", "benchmark", "case", "params", "metric", "unit", "clock", "n", "median", "ci_low",
    "ci_high", "p90", "p99", "min", "ceiling", "trust", "status", "reason", "max", "tail", "verified", "version",
    "suite", "session", "round",
)  # fmt: skip
ALL_ROUNDS = "all"
# A cell that begins so is a formula to a spreadsheet; an apostrophe makes it text.
FORMULA_BEGINNINGS = ("=", "+", "-", "@")
LONGEST_TEXT = 2000


def to_csv(run: Run) -> str:
    """Header, then one row for each measurement of each round, one for each case that has none, and for a case of
    several rounds one more row a metric with ``all`` as its round: the figures and the grade over the rounds.

    Numbers are written in full; a figure that does not exist is empty. A rate's quantiles are its own.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HEADER, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cells in _rows(run):
        writer.writerow({name: _written(value) for name, value in cells.items()})
    return stream.getvalue()


def to_json_lines(run: Run) -> bytes:
    """The CSV's rows as one JSON object a line, by the names of its columns: numbers are numbers, text is as it was,
    what there is not is left out."""
    lines = (
        {name: value for name, value in cells.items() if name in HEADER and value is not None} for cells in _rows(run)
    )
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def to_json(run: Run) -> bytes:
    """One JSON object: ``simulated``, ``run`` (as in the run file), ``rows`` (each case and metric over its rounds),
    ``findings``. It can be shown again like a run file."""
    found = rows(run)
    document = {
        "simulated": run.simulated,
        "run": msgspec.Raw(schema.encode(run).strip()),
        "rows": [_row_object(run, row) for row in found],
        "findings": [msgspec.structs.asdict(each) | {"suite": each.suite} for each in findings(run, found)],
    }
    return msgspec.json.encode(document) + b"\n"


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    for outcome in run.outcomes:
        base = _case_cells(run, outcome) | {"round": outcome.round, "status": outcome.status, "reason": outcome.reason}
        if not outcome.measurements:
            yield base
        for measurement in outcome.measurements:
            yield base | _measurement_cells(run, outcome, measurement)
    for row in rows(run):
        if len(row.outcomes) > 1:
            yield _case_cells(run, row.outcomes[0]) | {"round": ALL_ROUNDS, "status": "ok"} | _row_object(run, row)


def _case_cells(run: Run, outcome: Outcome) -> dict[str, Any]:
    info = run.benchmark(outcome.case.benchmark)
    return {
        "run": run.run_id,
        "device": outcome.device,
        "simulated": run.sessions[outcome.session].simulated,
        "benchmark": outcome.case.benchmark,
        "case": outcome.case.id,
        "params": outcome.case.params,
        "suite": info.suite if info else None,
        "version": info.version if info else None,
        "session": outcome.session,
    }


def _measurement_cells(run: Run, outcome: Outcome, measurement: Measurement) -> dict[str, Any]:
    info = run.benchmark(outcome.case.benchmark)
    metric = info.metric(measurement.metric) if info else None
    cells = {
        "metric": measurement.metric,
        "unit": metric.unit if metric else None,
        "clock": measurement.clock,
        "n": measurement.n,
        "ceiling": _ceiling(run, outcome, measurement),
        "verified": measurement.verified,
    }
    if metric is None or measurement.n == 0:
        return cells
    telemetry = next(iter(outcome.telemetry.values()), None)
    arithmetic = is_arithmetic(outcome.measurements)
    return cells | _figures(summarize(metric, measurement, telemetry, arithmetic=arithmetic))


def _figures(summary: Summary) -> dict[str, Any]:
    interval = summary.interval
    return {
        "median": interval.median, "ci_low": interval.low, "ci_high": interval.high, "p90": summary.p90,
        "p99": summary.p99, "min": summary.min, "max": summary.max, "tail": summary.tail, "trust": summary.trust,
    }  # fmt: skip


def _row_object(run: Run, row: Row) -> dict[str, Any]:
    """One row over its rounds, by the names of the CSV's columns."""
    first = row.outcomes[0]
    return _case_cells(run, first) | {
        "metric": row.metric.name,
        "unit": row.metric.unit,
        "clock": row.measurement.clock,
        "n": sum(one.n for one in row.summaries),
        "median": row.interval.median,
        "ci_low": row.interval.low,
        "ci_high": row.interval.high,
        "p90": row.over_rounds("p90"),
        "p99": row.over_rounds("p99"),
        "min": row.over_rounds("min"),
        "max": row.over_rounds("max"),
        "tail": row.over_rounds("tail"),
        "ceiling": _ceiling(run, first, row.measurement),
        "trust": row.trust,
        "verified": row.measurement.verified,
        "rounds": len(row.outcomes),
    }


def _ceiling(run: Run, outcome: Outcome, measurement: Measurement) -> float | None:
    """The limit of the GPU that moves the case's data, or None."""
    gpus = run.sessions[outcome.session].environment.gpus
    tested = next((gpu for gpu in gpus if gpu.uuid == outcome.device), None)
    limit = ceiling(measurement.bound, mover(outcome.case.params, tested, gpus))
    return limit.value if limit else None


def _written(value: object) -> str:
    """A cell: numbers in full, truth as true or false, parameters as JSON, text on one line and no formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return msgspec.json.encode(value, order="sorted").decode()
    text = plain(value, LONGEST_TEXT)
    return f"'{text}" if text.lstrip().startswith(FORMULA_BEGINNINGS) else text

"""Writes a run as CSV or JSON lines, one row a measurement, or as JSON with derived values; in SI base units."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec

from microbench.analysis.clocks import is_arithmetic
from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.analysis.limits import ceiling, mover
from microbench.analysis.quantiles import Levels
from microbench.analysis.stats import Interval, Quantile, Row, rows, summarize
from microbench.archive import schema
from microbench.core.model import Measurement, Outcome, Run
from microbench.core.units import plain
from microbench.explain.link_facts import link_facts
from microbench.explain.link_paths import device_paths, modelled
from microbench.explain.rules import findings

HEADER = (
    "run", "device", "simulated", "benchmark", "case", "params", "metric", "unit", "clock", "n", "median", "ci_low",
    "ci_high", "p90", "p99", "min", "ceiling", "trust", "status", "reason", "max", "tail", "verified", "version",
    "suite", "session", "round", "interval", "low_level", "high_level",
)  # fmt: skip
QUANTILES: tuple[Quantile, ...] = ("p90", "p99", "min", "max", "tail")
# Whether an interval covers the differences between processes.
OVER_PROCESSES, WITHIN_PROCESS = "over processes", "within this process"
# A spreadsheet takes a cell that begins so for a formula; an apostrophe makes it text.
FORMULA_BEGINNINGS = ("=", "+", "-", "@")
LONGEST_TEXT = 2000


def to_csv(run: Run) -> str:
    """A header, one row for each measurement of each round, and one for each case without measurements. A case of
    several rounds has one more row for each metric, with round ``all``: the figures and the grade over the rounds.

    Numbers are written in full, missing ones are empty. A rate's quantiles are quantiles of the rate.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HEADER, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cells in _rows(run):
        writer.writerow({name: written(value) for name, value in cells.items()})
    return stream.getvalue()


def to_json_lines(run: Run) -> bytes:
    """The rows of the CSV as one JSON object a line, with its column names as keys. Text is unchanged, missing values
    are omitted."""
    lines = (
        {name: value for name, value in cells.items() if name in HEADER and value is not None} for cells in _rows(run)
    )
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def to_json(run: Run) -> bytes:
    """One JSON object: ``simulated``, ``run`` (as in the run file), ``rows`` (each case and metric over its rounds) and
    ``findings``. ``modelled_paths``, where a GPU has any, are a model of the PCIe paths to its network devices and to
    GPUs without NVLink, in B/s; None where only the ceiling is known. `show` reads it like a run file."""
    all_rows = rows(run)
    document = {
        "simulated": run.simulated,
        "run": msgspec.Raw(schema.encode(run).strip()),
        "rows": [row_cells(run, row) for row in all_rows],
        "findings": [msgspec.structs.asdict(each) | {"suite": each.suite} for each in findings(run, all_rows)],
    }
    if modelled_paths := [path for group in evidence_by_device(run, all_rows) for path in _paths(group)]:
        document["modelled_paths"] = modelled_paths
    return msgspec.json.encode(document) + b"\n"


def _paths(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for path in device_paths(evidence):
        model = modelled(path, link_facts(evidence))
        yield {
            "model": True,
            "gpu": evidence.device,
            "device": path.name,
            "near": path.near,
            "switches": path.switches,
            "narrowest": path.narrowest.words,
            "narrowest_bus_id": path.narrowest_bus_id,
            "rdma": path.rdma,
            "port_bytes_per_s": path.port_bytes_per_s,
            "write_ceiling_bytes_per_s": model.write_limit,
            "read_ceiling_bytes_per_s": model.read_limit,
            "write_bytes_per_s": model.write,
            "read_bytes_per_s": model.read,
            "added_to_a_read_s": path.added_s,
            "lowered_by": model.reductions,
        }


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    every = rows(run)
    alone = {(id(row.outcomes[0]), row.metric.name): row for row in every if len(row.outcomes) == 1}
    for outcome in run.outcomes:
        base = _case_cells(run, outcome) | {"round": outcome.round, "status": outcome.status, "reason": outcome.reason}
        if not outcome.measurements:
            yield base
        for measurement in outcome.measurements:
            yield base | _measurement_cells(run, outcome, measurement, alone.get((id(outcome), measurement.metric)))
    for row in every:
        if len(row.outcomes) > 1:
            yield _case_cells(run, row.outcomes[0]) | {"round": "all", "status": "ok"} | row_cells(run, row)


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


def _measurement_cells(run: Run, outcome: Outcome, measurement: Measurement, row: Row | None) -> dict[str, Any]:
    """One round's figures. ``row`` is that of a case with this round only: its interval covers other processes."""
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
    summary = summarize(metric, measurement, telemetry, arithmetic=is_arithmetic(outcome.measurements))
    interval = row.interval if row is not None else summary.interval
    return cells | {
        **_interval_cells(interval, summary.levels, within=row is None or row.within_process),
        **{name: getattr(summary, name) for name in (*QUANTILES, "trust")},
    }


def _interval_cells(interval: Interval, levels: Levels | None, *, within: bool) -> dict[str, Any]:
    low_level, high_level = levels or (None, None)
    return {
        "median": interval.median,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "interval": WITHIN_PROCESS if within else OVER_PROCESSES,
        "low_level": low_level,
        "high_level": high_level,
    }


def row_cells(run: Run, row: Row) -> dict[str, Any]:
    """One row over its rounds, with the CSV's column names as keys."""
    first = row.outcomes[0]
    quantiles: dict[str, float] = {name: row.over_rounds(name) for name in QUANTILES}
    return _case_cells(run, first) | {
        "metric": row.metric.name,
        "unit": row.metric.unit,
        "clock": row.measurement.clock,
        "n": sum(summary.n for summary in row.summaries),
        **_interval_cells(row.interval, row.levels, within=row.within_process),
        **quantiles,
        "ceiling": _ceiling(run, first, row.measurement),
        "trust": row.trust,
        "verified": row.measurement.verified,
        "rounds": len(row.outcomes),
    }


def _ceiling(run: Run, outcome: Outcome, measurement: Measurement) -> float | None:
    """The physical limit of the GPU that moves the case's data, or None."""
    gpus = run.sessions[outcome.session].environment.gpus
    tested = next((gpu for gpu in gpus if gpu.uuid == outcome.device), None)
    limit = ceiling(measurement.bound, mover(outcome.case.params, tested, gpus))
    return limit.value if limit else None


def written(value: object) -> str:
    """A cell: numbers in full, booleans as true or false, parameters as JSON, text on one line and never a formula."""
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

"""The recorded runs as a table: date, run, device, suites, findings, and what a person called them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microbench.explain.finding import SEVERITIES, Severity
from microbench.history import Entry
from microbench.report.document import Cell, Column, Table, Tone
from microbench.report.marks import SEVERITY_MARKS
from microbench.store import GROWING

MINUTE = 16
WORST_FIRST: tuple[Severity, ...] = tuple(reversed(SEVERITIES))
UNKNOWN = "…"
COLUMNS = (
    Column("date (UTC)", "left"),
    Column("run", "left"),
    Column("device", "left"),
    Column("suites", "left", drop=2),
    Column("findings", "left", drop=1),
    Column("label", "left"),
)


def table(found: Sequence[Entry], *, title: str, more: int = 0) -> Table:
    """One line a run, what was noted about them below; ``more`` are the older runs that are not among them."""
    return Table(title, "", COLUMNS, tuple(_row(entry) for entry in found), tuple(_notes(found, more)))


def _name(entry: Entry) -> str:
    return entry.path.stem.rpartition("-")[2] or entry.path.stem


def _row(entry: Entry) -> tuple[Cell, ...]:
    head, run = entry.head, Cell(_name(entry), tone="first")
    if head.problem:  # `show` tells why; here it would take the room of all the others
        return Cell(""), run, Cell("unreadable", tone="problem"), Cell(""), Cell(""), Cell(entry.remarks.label)
    devices = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in head.devices.items())
    return (
        Cell(head.started_at[:MINUTE].replace("T", " ")),
        run,
        Cell(devices or "no GPU", "SIMULATED" if head.simulated and "SIMULATED" not in devices else ""),
        Cell(" ".join(head.suites), tone="quiet"),
        _findings(entry.counts, unfinished=entry.path.suffix == GROWING),
        Cell(entry.remarks.label, tone="strong"),
    )


def _findings(counts: Mapping[str, int] | None, *, unfinished: bool) -> Cell:
    """How many of each severity, in the tone of the worst."""
    seen = [name for name in WORST_FIRST if counts and counts.get(name)]
    words = " ".join(f"{SEVERITY_MARKS[name]}{(counts or {})[name]}" for name in seen)
    tone: Tone = seen[0] if seen else "quiet"
    return Cell(UNKNOWN if counts is None else words or "none", "unfinished" if unfinished else "", tone)


def _notes(found: Sequence[Entry], more: int) -> list[str]:
    seen = {name for entry in found for name in entry.counts or ()}
    legend = "  ".join(f"{SEVERITY_MARKS[name]} {name}" for name in WORST_FIRST if name in seen)
    uncounted = sum(entry.counts is None and not entry.head.problem for entry in found)
    notes = [f"findings: {legend}"] if legend else []
    notes += [f"{_name(entry)}: {entry.remarks.note}" for entry in found if entry.remarks.note]
    if uncounted:
        notes.append(f"{UNKNOWN} {uncounted} not counted yet: ask again, or show the run")
    if more:
        notes.append(f"{more} older runs are not listed: --last N or --all")
    return notes

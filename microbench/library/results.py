"""Runs and their rows for programs and notebooks: results that draw themselves on a terminal and as HTML."""

from __future__ import annotations

import importlib
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.analysis.stats import rows as rows_of
from microbench.archive.export import row_cells
from microbench.core.errors import UsageError, nearest
from microbench.core.model import Param, Run
from microbench.core.units import counted, plain, quantity, spread
from microbench.explain.rules import findings as findings_of
from microbench.library.runs import consistent, is_reference, part_sheet, screen_of
from microbench.report.document import Banner, Cell, Report, Screen, Table, columns
from microbench.report.figures.figure import Figure, Origin, figures
from microbench.report.heading import REFERENCE, SIMULATED, cases_words

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

# Rows that a list of rows draws.
MOST_DRAWN = 40
# The next step if no package for tables is installed.
OR_COLUMNS = ", or use columns()"
# Names that an error lists.
MOST_NAMED = 12


class Drawn(ABC):
    """A result that draws itself.

    A notebook shows it as tables, figures and findings. On a terminal ``print(result)`` and ``result.show()`` draw what
    the command draws.
    """

    @abstractmethod
    def _sheet(self) -> Report | Screen:
        """What is drawn."""

    def _figures(self) -> Sequence[Figure]:
        """Figures that a notebook shows besides."""
        return ()

    def show(self, *, why: bool = False) -> None:
        """Draw it on standard output, in colour on a terminal. ``why`` adds to each finding the rule behind it."""
        self._draw(sys.stdout, why=why)

    def __str__(self) -> str:
        text = io.StringIO()
        self._draw(text)
        return text.getvalue()

    def _draw(self, stream: IO[str], *, why: bool = False) -> None:
        from microbench.report.terminal import terminal

        shown, console = self._sheet(), terminal.open_console(stream)
        brief = isinstance(shown, Screen) or all(section.pictures for section in shown.sections)
        terminal.draw(shown, console, brief=brief, why=why)

    def _repr_html_(self) -> str:
        from microbench.report.page.page import fragment

        return fragment(self._sheet(), self._figures())


class Sheet(Drawn):
    """A part of a result to draw, such as the suite ``name`` of a run."""

    def __init__(self, name: str, shown: Report | Screen) -> None:
        self.name = name
        self._shown = shown

    def _sheet(self) -> Report | Screen:
        return self._shown

    def __repr__(self) -> str:
        return f"<microbench.Sheet {self.name}>"


@dataclass(frozen=True)
class Row:
    """One metric of one case over its rounds, in SI base units: seconds, bytes, hertz. The names are those of the CSV.

    ``params`` are the values of the case's axes. ``median`` has the 95 % interval from ``ci_low`` to ``ci_high``, whose
    ``interval`` says if it covers the differences between processes. ``ceiling`` is the physical limit, ``trust`` the
    grade, ``verified`` how the result was checked. Unknown values are None.
    """

    run: str
    device: str | None
    simulated: bool
    suite: str | None
    benchmark: str
    version: int | None
    case: str
    params: Mapping[str, Param]
    session: int
    metric: str
    unit: str
    clock: str
    n: int
    rounds: int
    median: float
    ci_low: float
    ci_high: float
    interval: str
    p90: float
    p99: float
    min: float
    max: float
    tail: float
    low_level: float | None
    high_level: float | None
    ceiling: float | None
    trust: str
    verified: str | None


class Rows(list[Row], Drawn):
    """Rows of a run: a list, which also becomes a table of pandas, Polars or Arrow."""

    def _sheet(self) -> Screen:
        table = Table(
            counted(len(self), "row"), "",
            columns("case", "metric", "median", "", "p99", "grade", left=2, drop={"p99": 1}),
            tuple(
                (
                    Cell(row.case), Cell(row.metric), Cell(quantity(row.median, row.unit), trust=row.trust),
                    Cell(spread((row.ci_high - row.ci_low) / 2 / abs(row.median)) if row.median else "", tone="quiet"),
                    Cell(quantity(row.p99, row.unit), tone="quiet"), Cell(row.trust, tone="quiet"),
                )
                for row in self[:MOST_DRAWN]
            ),
            (f"and {len(self) - MOST_DRAWN} more",) if len(self) > MOST_DRAWN else (),
        )  # fmt: skip
        simulated = any(row.simulated for row in self)
        banners = (Banner(SIMULATED, "These rows come from a simulated GPU."),) if simulated else ()
        mark = SIMULATED if simulated else ""
        return Screen(mark, banners=banners, tables=(table,))

    def __repr__(self) -> str:
        return f"<microbench.Rows: {len(self)} rows>"

    __str__ = Drawn.__str__

    def columns(self) -> dict[str, list[Any]]:
        """The rows as columns by name, each axis in a column of its own.

        An axis whose values are numbers in one benchmark and words in another has words throughout.
        """
        names = [field.name for field in fields(Row) if field.name != "params"]
        table: dict[str, list[Any]] = {name: [getattr(row, name) for row in self] for name in names}
        for axis in dict.fromkeys(axis for row in self for axis in row.params):
            values = [row.params.get(axis) for row in self]
            words = any(isinstance(value, str) for value in values)
            table[axis] = [str(value) if words and value is not None else value for value in values]
        return table

    def to_pandas(self) -> pandas.DataFrame:
        """The columns as a DataFrame of pandas. Raises UsageError if pandas is not installed."""
        return package("pandas", OR_COLUMNS).DataFrame(self.columns())

    def to_polars(self) -> polars.DataFrame:
        """The columns as a DataFrame of Polars. Raises UsageError if Polars is not installed."""
        return package("polars", OR_COLUMNS).DataFrame(self.columns())

    def to_arrow(self) -> pyarrow.Table:
        """The columns as a Table of Arrow. Raises UsageError if pyarrow is not installed."""
        return package("pyarrow", OR_COLUMNS).table(self.columns())


def package(name: str, otherwise: str = "") -> Any:
    """The package that makes a table. Raises UsageError, whose next step also names ``otherwise``."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} cannot be imported: {plain(error)}", f"pip install {name}{otherwise}") from None


@dataclass(frozen=True)
class Problem:
    """A case that was not measured in a round: it was "skipped", "failed", "crashed" or "timed_out", and why."""

    case: str
    round: int
    status: str
    reason: str


class RecordedRun(Drawn):
    """A run: what was measured, and what it means. ``path`` is its file, ``name`` what the program called it."""

    def __init__(self, path: Path, run: Run, name: str | None = None) -> None:
        self.path = path
        self.name = name or run.run_id
        self._run = run
        self._called = name

    @property
    def id(self) -> str:
        """The id of the run, a name for it in every command."""
        return self._run.run_id

    @property
    def simulated(self) -> bool:
        """True if any session ran on the simulated GPU."""
        return self._run.simulated

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs that were measured; empty without a GPU."""
        return tuple(gpu.name for gpu in self._run.sessions[-1].gpus) if self._run.sessions else ()

    @property
    def started_at(self) -> str:
        """When its last session began: UTC in ISO 8601; "" for a run without sessions."""
        return self._run.sessions[-1].started_at if self._run.sessions else ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The cases that were not measured, with their reasons."""
        return tuple(
            Problem(one.case.id, one.round, one.status, one.reason or "")
            for one in self._run.outcomes
            if one.status != "ok"
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the figures mean: what distorts the run first, then suite by suite."""
        with consistent(self._run):
            return tuple(findings_of(self._run))

    @cached_property
    def _rows(self) -> Rows:
        with consistent(self._run):
            return Rows(Row(**row_cells(self._run, row)) for row in rows_of(self._run))

    def rows(self, name: str | None = None, metric: str | None = None, **params: Param) -> Rows:
        """The rows, as `microbench export --format json` has them: of a suite or benchmark, of a metric, of cases.

        ``params`` are values of axes: ``run.rows("launch_cost", "submit", arguments=4)``. Raises UsageError for a name
        that the run does not have.
        """
        found = self._rows
        if name is not None:
            found = _with(found, "suite or benchmark", name, lambda row: (row.suite, row.benchmark))
        if metric is not None:
            found = _with(found, "metric", metric, lambda row: (row.metric,))
        for axis in params:
            _with(found, "axis", axis, lambda row: tuple(row.params))
        return Rows(row for row in found if params.items() <= row.params.items())

    def part(self, name: str) -> Sheet:
        """A suite, the tables of a benchmark, or a figure, as `microbench show RUN PART` draws it."""
        return Sheet(name, part_sheet(name, self.path, self._run))

    def _sheet(self) -> Screen:
        return screen_of(self._run, self.path, self._called)

    def _figures(self) -> Sequence[Figure]:
        with consistent(self._run):
            groups = evidence_by_device(self._run)
            return list(figures([Origin(each, "", is_reference(self.path)) for each in groups]).values())

    def __repr__(self) -> str:
        mark = f", {SIMULATED}" if self.simulated else f", {REFERENCE}" if is_reference(self.path) else ""
        gpus = ", ".join(self.gpus) or "no GPU"
        return f"<microbench.RecordedRun {plain(self.name)}: {gpus}, {cases_words(self._run)}{mark}>"


def _with(rows: Rows, kind: str, name: str, names: Callable[[Row], tuple[str | None, ...]]) -> Rows:
    """The rows that have this name. Raises UsageError, which lists the names that there are, if none has it."""
    found = Rows(row for row in rows if name in names(row))
    if not found:
        known = list(dict.fromkeys(one for row in rows for one in names(row) if one))
        more = ", …" if len(known) > MOST_NAMED else ""
        there_are = f"there are {', '.join(known[:MOST_NAMED]) or 'none'}{more}"
        raise UsageError(f"no row has the {kind} {plain(name, 40)}", nearest(name, known) or there_are)
    return found

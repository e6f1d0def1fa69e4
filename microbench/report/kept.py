"""What showing a run has made of it, kept in the index: the whole report of a large one, its findings for the history.

A run of 200 MB takes seconds to read and to sum up, its report is a few hundred kB.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from microbench.report.document import Report
from microbench.runs import store
from microbench.runs.history import FINDINGS, severities
from microbench.runs.index import Index, opened, state_of
from microbench.runs.skim import is_large

REPORT, REPORTS_KEPT = "report", 8


def report_of(path: Path, make: Callable[[], Report]) -> Report:
    """The report that ``make`` makes of the run in that file, without asking it where a large one is known already."""
    with opened() as index:
        state = state_of(path)
        data = index.get(REPORT, path) if is_large(path) else None
        if data is not None:
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.msgpack.decode(data, type=Report)
        with _uncollected():
            report = make()
        _keep(index, path, state, report)
        return report


def keep(path: Path, report: Report) -> None:
    """Keep the report of a run that has just been finished."""
    with opened() as index:
        _keep(index, path, state_of(path), report)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Of a large run a million parts are made and all are kept: looking for garbage among them takes a fifth longer."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _keep(index: Index, path: Path, state: str | None, report: Report) -> None:
    if path.parent == store.data_folder() and index.get(FINDINGS, path) is None:
        found = (*report.environment, *(finding for section in report.sections for finding in section.findings))
        index.put(FINDINGS, path, state, severities(found))
    if is_large(path):
        index.put(REPORT, path, state, msgspec.msgpack.encode(msgspec.structs.replace(report, footer=())))
        index.keep_newest(REPORT, REPORTS_KEPT)

"""Writes docs/validation.md from the tables of lab/measurements and from recorded runs: python lab/validation.py

The text is in lab/validation.md.jinja, which asks for its numbers.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jinja2
import msgspec
import numpy as np

from microbench.analysis.stats import rows as rows_of
from microbench.archive import store
from microbench.core.model import Run

LAB = Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "validation.md"
TEMPLATE = "validation.md.jinja"
RECORDED = LAB.parent / "tests" / "data"
Row = dict[str, str]


@cache
def table(topic: str) -> tuple[Row, ...]:
    """All rows of a table of measurements."""
    with (LAB / "measurements" / f"{topic}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def chosen(topic: str, **wanted: str) -> list[Row]:
    """The rows whose columns begin with the given texts. Raises ValueError if there are none."""
    found = [row for row in table(topic) if all(row[name].startswith(text) for name, text in wanted.items())]
    if not found:
        raise ValueError(f"{topic}.csv has no row with {wanted}")
    return found


def value(topic: str, column: str = "microbench", **wanted: str) -> str:
    """What the only such row has in a column."""
    (row,) = chosen(topic, **wanted)
    return row[column]


def span(rows: Iterable[Row], column: str = "ratio") -> str:
    """From the least to the largest value of a column."""
    values = sorted((row[column] for row in rows if row[column]), key=float)
    return f"{values[0]} to {values[-1]}"


def side_by_side(rows: Sequence[Row], unit: str = "") -> str:
    """Lines of a Markdown table: what, ours, theirs, and ours over theirs with its range if there is one."""
    lines = []
    for row in rows:
        reach = f" ({row['low']}-{row['high']})" if row["low"] else ""
        what = f"{row['what']}, {row['unit']}" if row["unit"] != unit else row["what"]
        lines.append(f"| {what} | {row['microbench']} | {row['other']} | {row['ratio']}{reach} |")
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.1f} %"


class Held(msgspec.Struct):
    """Points of steps that the model never saw: how far off, how many in their intervals, how wide these are."""

    points: int
    median: str
    most: str
    inside: int
    share: str
    half_width: str


def held_out(way: str = "", layers: tuple[str, ...] = ()) -> Held:
    """All points of held-out.csv, or those of a way and of some layers."""
    points = [row for row in table("held-out") if way in ("", row["way"]) and (not layers or row["layer"] in layers)]
    errors = [abs(float(row["predicted_s"]) / float(row["measured_s"]) - 1) for row in points]
    inside = sum(float(row["low_s"]) <= float(row["measured_s"]) <= float(row["high_s"]) for row in points)
    widths = [(float(row["high_s"]) - float(row["low_s"])) / 2 / float(row["predicted_s"]) for row in points]
    most = float(np.percentile(errors, 95))
    share = percent(inside / len(points))
    return Held(len(points), percent(median(errors)), percent(most), inside, share, percent(median(widths)))


class Programs(msgspec.Struct):
    """Diagnoses of a kind of recording against true times."""

    recordings: int
    predicted: int
    median: str
    worst: str
    inside: int
    given: int
    within: int


def programs(*recorded_by: str) -> Programs:
    """All recordings of programs.csv by the given recorders."""
    rows = [row for row in table("programs") if row["recorded_by"] in recorded_by]
    graphs = [row for row in rows if row["graph_us"] and row["true_graph_us"]]
    errors = [abs(float(row["error_percent"])) for row in graphs]
    inside = sum(
        float(row["graph_low_us"]) <= float(row["true_graph_us"]) <= float(row["graph_high_us"]) for row in graphs
    )

    # The true speed-up is that of the process that was recorded later, taken before.
    def off(row: Row, column: str) -> float:
        true = float(row["eager_before_recording_us"]) / float(row["true_graph_us"])
        return abs(float(row[column]) / true - 1)

    return Programs(
        len(rows), len(graphs), f"{median(errors):.1f} %", f"{max(errors):.1f} %", inside,
        sum(off(row, "speedup_given_step") <= 0.10 for row in graphs if row["speedup_given_step"]),
        sum(off(row, "speedup") <= 0.15 for row in graphs),
    )  # fmt: skip


class Watched(NamedTuple):
    """Public programs under plain `watch`."""

    count: int
    iterations: int
    launches: str
    windows: int


def watched_programs() -> Watched:
    """All recordings of watched_programs.csv; a step is right if it is the program's own iteration."""
    found = table("watched_programs")
    return Watched(
        len(found), sum(row["reading"] == "iteration" for row in found),
        f"{sum(int(row['launches']) for row in found) / 1e6:.1f}", sum(int(row["windows"]) for row in found),
    )  # fmt: skip


@cache
def recorded(name: str) -> Run:
    """A bundled run or one of tests/data."""
    return store.read(store.bundled().get(name) or RECORDED / f"{name}.json.xz")


def grades(name: str) -> dict[str, int]:
    """How many figures of a run have each grade."""
    trusts = [row.trust for row in rows_of(recorded(name))]
    return {trust: trusts.count(trust) for trust in (*dict.fromkeys(trusts),)} | {"all": len(trusts)}


def page() -> str:
    """The page."""
    drawn = jinja2.Environment(
        loader=jinja2.FileSystemLoader(LAB), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    drawn.globals.update(
        rows=chosen, value=value, span=span, side_by_side=side_by_side, held_out=held_out, programs=programs,
        grades=grades, watched_programs=watched_programs,
    )  # fmt: skip
    return re.sub(r"^(?:(?!\||#|\n).+\n)+", wrapped, drawn.get_template(TEMPLATE).render(), flags=re.MULTILINE)


def wrapped(text: re.Match[str]) -> str:
    """A paragraph, or the entries of a list, in lines of 120 characters."""
    entries = re.split(r"^(?=- )", text[0], flags=re.MULTILINE)
    return "".join(
        textwrap.fill(" ".join(entry.split()), 120, subsequent_indent="  " * entry.startswith("- "),
                      break_long_words=False, break_on_hyphens=False) + "\n"
        for entry in entries if entry
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

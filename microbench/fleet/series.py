"""Reads from a store how slow each GPU was in each group of figures, campaign after campaign.

Only campaigns with the same settings are compared.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.errors import RunUnreadableError
from microbench.fleet.campaign import read_folder
from microbench.fleet.changes import levels
from microbench.fleet.verdict import DEVIATION, JUDGED, campaigns_until, group_of

# The points of a GPU are neighbours, the oldest first.
POINTS = """
    CREATE TEMP TABLE points AS
    SELECT (row_number() OVER (ORDER BY n.node, n.device, n.began, n.campaign) - 1)::INTEGER AS point, n.campaign,
        n.node, n.device, n.index, n.class, n.run, n.began, s.tool_version, s.cuda
    FROM nodes n JOIN runs s ON n.campaign = s.campaign AND n.run = s.run
    WHERE list_contains($1, n.campaign) AND s.preset = $2 AND s.rounds = $3 AND s.simulated = $4
"""
FIGURE = 'benchmark, version, "case", metric'
CELLS = f"""
    CREATE TEMP VIEW cells AS
    SELECT point, {FIGURE}, suite, clock, bound, kind, median, ceiling, session, {DEVIATION} AS deviation
    FROM points p JOIN rows r ON r.campaign = p.campaign AND r.node = p.node AND r.run = p.run
        AND (r.device = p.device OR r.device IS NULL)
    WHERE {JUDGED} AND isfinite(r.median) AND isfinite({DEVIATION})
"""
FIGURES = f"""
    CREATE TEMP TABLE figures AS
    SELECT (row_number() OVER (ORDER BY {FIGURE}) - 1)::INTEGER AS figure, {FIGURE}, max(suite) AS suite,
        max(clock) AS clock, max(bound) AS bound, max(kind) AS kind
    FROM cells GROUP BY {FIGURE}
"""
# Of several sessions of a run the last one counts.
VALUES = f"""
    SELECT point, figure, ln(median) * CASE WHEN c.kind = 'rate' THEN -1 ELSE 1 END AS slow, deviation,
        coalesce(median / ceiling, 0) AS share
    FROM cells c JOIN figures USING ({FIGURE}) ORDER BY session
"""

Key = tuple[str, str]  # node and UUID
Moment = tuple[str, str]  # when a run began, and its campaign


class Board(NamedTuple):
    """A GPU by its node and its number there."""

    node: str
    number: int | None


class Point(NamedTuple):
    """A GPU in a campaign, and the versions of microbench and CUDA there."""

    key: Key
    board: Board
    moment: Moment
    of_class: str
    tool_version: str
    cuda: str | None


class Series(NamedTuple):
    """How slow a GPU was in a group in each of its campaigns, and the scatter of repeated measurements."""

    group: str
    points: list[Point]
    values: FloatArray
    repeated: float


def comparable(
    connection: Any, directory: Path, campaign: str | None, last: int
) -> tuple[str, bool, int, list[Point], list[Series]]:
    """The ``last`` campaigns until that one, or the newest one, that asked for the same. Raises UsageError.

    Returns the newest and whether it is simulated, how many campaigns in between asked for something else, the points
    (those of each GPU next to each other, the oldest first), and the series.
    """
    known = campaigns_until(connection, campaign)
    settings = "SELECT preset, rounds, simulated FROM runs WHERE campaign = $1 GROUP BY ALL ORDER BY count(*) DESC"
    how = connection.execute(settings, [known[0]]).fetchall()[0]
    having = "SELECT DISTINCT campaign FROM runs WHERE preset = $1 AND rounds = $2 AND simulated = $3"
    several = {name for (name,) in connection.execute(having, how).fetchall()}
    wanted = _asked(directory, known[0])
    alike = list(islice((one for one in known if one in several and _asked(directory, one) == wanted), last))
    connection.execute(POINTS, [alike, *how])
    columns = "node, device, index, began, campaign, class, tool_version, cuda"
    listed = connection.execute(f"SELECT {columns} FROM points ORDER BY point").fetchall()
    points = [
        Point((node, device), Board(node, number), (began, campaign), *more)
        for node, device, number, began, campaign, *more in listed
    ]
    others = known.index(alike[-1]) + 1 - len({point.moment[1] for point in points})
    return known[0], how[-1], others, points, list(_series(connection, points))


def _asked(directory: Path, campaign: str) -> object:
    """What a campaign asked of its nodes, where its record is in the store, else None."""
    with suppress(RunUnreadableError):
        record = read_folder(directory / "campaigns" / campaign)
        asked = record.options
        return sorted(record.selection), sorted(asked.overrides), asked.device, asked.preset, asked.time_limit_s
    return None


def _series(connection: Any, points: Sequence[Point]) -> Iterator[Series]:
    connection.execute(CELLS)
    connection.execute(FIGURES)
    about = connection.execute("SELECT benchmark, metric, suite, clock, bound FROM figures ORDER BY figure").fetchall()
    cells = connection.execute(VALUES).fetchnumpy()
    order = np.argsort(cells["point"], kind="stable")
    point, figure, slow, deviation, share = (np.asarray(cells[name])[order] for name in cells)
    # The groups of a GPU are those of the class in which it was at last.
    newest = {point.key: point.of_class for point in points}
    names = list(dict.fromkeys(newest.values()))
    classes = np.array([names.index(newest[point.key]) for point in points], dtype=np.int64)
    groups = []
    for number in range(len(names)):
        here = classes[point] == number
        groups.append(_groups(about, figure[here], share[here]))
    starts = [at for at, each in enumerate(points) if at == 0 or each.key != points[at - 1].key]
    for start, end in pairwise([*starts, len(points)]):
        mine = slice(*np.searchsorted(point, [start, end]))
        table = np.full((2, len(about), end - start), np.nan)
        table[:, figure[mine], point[mine] - start] = slow[mine], deviation[mine]
        own = groups[classes[start]]
        for group in dict.fromkeys(own[figure[mine]]):
            values = levels(table[0, own == group])
            kept = np.flatnonzero(~np.isnan(values)).tolist()
            if kept:
                repeated = table[1, own == group][:, kept]
                known = float(np.median(repeated[~np.isnan(repeated)]))
                yield Series(group, [points[start + at] for at in kept], values[kept], known)


def _groups(about: Sequence[tuple[Any, ...]], figure: Any, share: FloatArray) -> Any:
    """The group of each figure in a class, by the share of its ceiling that it has in the middle."""
    order = np.argsort(figure, kind="stable")
    numbers, starts = np.unique(figure[order], return_index=True)
    near = np.zeros(len(about))
    for number, part in zip(
        numbers, np.split(share[order], starts[1:]), strict=False
    ):  # without figures one empty part
        near[number] = np.median(part)
    return np.array([group_of(*words) for words in zip(*zip(*about, strict=True), near, strict=True)], dtype=object)

"""Reads what the two sides of `microbench ab` are, measures them in turn, and makes the answer."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from microbench.comparison.in_turn import FIRST_LOOK, InTurn, compare_in_turn, looks
from microbench.comparison.words import summary
from microbench.core.bench import discover
from microbench.core.errors import UsageError
from microbench.core.model import Param, Run
from microbench.core.units import plain, typed_time
from microbench.core.version import __version__
from microbench.library.answers import LIMITS
from microbench.library.options import OwnOptions
from microbench.library.own import LONGEST_LIMIT_S, own_catalogue
from microbench.library.runs import consistent
from microbench.library.verdicts import as_json, compared_figure
from microbench.report.document import Report
from microbench.report.sheets.comparison import in_turn_sheet
from microbench.session.events import Listener
from microbench.session.in_turn import PRESET, Side, measure_in_turn
from microbench.session.plan import select
from microbench.session.process import Patience
from microbench.session.request import MOST_ROUNDS
from microbench.session.session import Seams

AS_IT_IS, LONGEST_NAME = "as it is", 200
# NAME=VALUE[,NAME=VALUE]; a comma before anything else belongs to the value.
VARIABLE = re.compile(r"[A-Za-z_]\w*=")
BETWEEN = re.compile(rf",(?={VARIABLE.pattern})")
SOURCES = (".py", ".cu", ".cuh")
IMPORT_S = 60.0


class SidesCompared(NamedTuple):
    """Two sides of `microbench ab`, what they are called, and what came out."""

    a: str
    b: str
    found: InTurn

    def sheet(self) -> Report:
        return in_turn_sheet(self.found, self.a, self.b)

    def to_dict(self) -> dict[str, Any]:
        """Everything that `microbench ab --json` prints, in SI base units."""
        figures = [
            msgspec.to_builtins(compared_figure(change)) | {"would_find": smallest}
            for change, smallest in zip(self.found.comparison.changes, self.found.smallest, strict=True)
        ]
        verdict, pairs, confidence = summary(self.found.comparison).title, self.found.pairs, self.found.confidence
        whole = {"a": self.a, "b": self.b, "verdict": verdict, "pairs": pairs, "confidence": confidence}
        return as_json({**whole, "figures": figures, "not_measured": self.found.unmeasured})


def compared_in_turn(
    named: tuple[str, str],
    names: Sequence[str],
    values: Mapping[str, Sequence[Param]],
    rounds: int,
    own: OwnOptions,
    same_within: float,
    fail_on: str | None,
    listener: Listener,
) -> SidesCompared:
    """Measure the two ``named`` sides in turn, until the rule of ``comparison/in_turn.py`` knows enough, or the first
    change of the limit ``fail_on`` is found.

    ``names`` and ``values`` choose benchmarks, ``own`` says how code of the user's own is called. Raises UsageError for
    whatever is wrong, and what ``measure_in_turn`` raises.
    """
    if not FIRST_LOOK <= rounds <= MOST_ROUNDS:
        raise UsageError(f"{rounds} rounds are not possible", f"give {FIRST_LOOK} to {MOST_ROUNDS}")
    sides = [_side(text, names, values, own) for text in named]
    if len({tuple(one.benchmark.name for one in side.selected) for side in sides}) > 1:
        raise UsageError("A and B are not of one kind", "give two functions, or two kernels, or no code of your own")
    when = looks(rounds)
    found: list[InTurn] = []

    def enough(pairs: int, one: Run, other: Run) -> bool:
        if pairs in when:
            with consistent(one), consistent(other):
                found.append(compare_in_turn(one, other, pairs, rounds, same_within))
        limit = LIMITS[fail_on] if fail_on is not None else ()
        return bool(found) and (found[-1].decided or found[-1].comparison.has_changed(*limit))

    limit_s = typed_time(own.limit, LONGEST_LIMIT_S) if own.limit is not None else None
    patience = Patience(silent_s=limit_s, busy_s=limit_s) if limit_s else Patience()
    measure_in_turn(sides, rounds, own.device, enough, listener, Seams(patience=patience))
    a, b = (plain(text, LONGEST_NAME) or AS_IT_IS for text in named)
    return SidesCompared(a, b, found[-1])


def _side(text: str, names: Sequence[str], values: Mapping[str, Sequence[Param]], own: OwnOptions) -> Side:
    """The side that a text describes: this Python (no text), variables, another Python, or code of the user's own."""
    path = Path(text).expanduser()
    if VARIABLE.match(text):
        parts = (one.partition("=") for one in BETWEEN.split(text))
        return Side(select(discover(), names, PRESET, values), tuple((name, value) for name, _, value in parts))
    if not text:
        return Side(select(discover(), names, PRESET, values))
    if path.is_dir() or (path.is_file() and os.access(path, os.X_OK) and path.suffix not in SOURCES):
        python = _checked(path / "bin" / "python" if path.is_dir() else path)
        return Side(select(discover(), names, PRESET, values), python=python)
    if names or values:
        raise UsageError("code of your own has no suites and benchmarks", "leave out their names and --set")
    if own.setup is not None and ":" not in own.setup:  # of the side's own file
        own = replace(own, setup=f"{text.rpartition(':')[0]}:{own.setup}")
    name, catalogue = own_catalogue(text, own)
    return Side(select(catalogue, (name,), PRESET, {}))


def _checked(python: Path) -> str:
    """The interpreter, if it has this version of microbench. Raises UsageError."""
    code = "from microbench.core.version import __version__ as version; print(version)"
    try:
        asked = subprocess.run(
            [python, "-P", "-c", code], capture_output=True, text=True, timeout=IMPORT_S, check=False
        )
        version, error = asked.stdout.strip(), asked.stderr.strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as failure:
        version, error = "", str(failure)
    if version != __version__:
        has = f"has microbench {plain(version, 20)}" if version else f"has no microbench: {plain(error, 120)}"
        raise UsageError(
            f"{plain(python)} {has}", f"install {__version__} there: {plain(python)} -m pip install CHECKOUT"
        )
    return str(python.absolute())

"""What `microbench graph` says of functions that are written to mislead it, and whether that is right."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Functions:
    """Makers of functions, by name: each is added by the decorator for its kind."""

    def __init__(self) -> None:
        self.traps: dict[str, tuple[Callable[[], Any], str]] = {}
        self.settings: dict[str, Callable[[], Any]] = {}
        self.sounds: dict[str, Callable[[], Any]] = {}

    def trap(self, says: str) -> Callable[[Any], Any]:
        """For a function whose graph gives wrong results. The report must say so."""

        def added(maker: Any) -> Any:
            self.traps[maker.__name__] = maker, says
            return maker

        return added

    def setting(self, maker: Any) -> Any:
        """This one also returns what changes a setting: the graph must notice."""
        self.settings[maker.__name__] = maker
        return maker

    def sound(self, maker: Any) -> Any:
        """The graph of this one is right."""
        self.sounds[maker.__name__] = maker
        return maker


def report_of(maker: Callable[[], Any]) -> Any:
    """What `microbench graph` says of a function: its report."""
    from microbench.capture.making import Report, examine

    function, arguments = maker()[:2]
    report = Report()
    for _ in range(2):
        function(*arguments)
    examine(function, (arguments, {}), [], report, lambda stage: None)
    return report


def notices(maker: Callable[[], Any]) -> bool:
    """Whether a graph computes as the function does, and is replayed, before and after a setting is changed."""
    from microbench.capture.graphed import Graphed
    from microbench.capture.tensors import equal

    function, arguments, change = maker()
    graph = Graphed(function)
    before = [graph(*arguments) for _ in range(6)][-1]
    change()
    after = [graph(*arguments) for _ in range(6)]
    wanted = function(*arguments)
    same = all(one.dtype == wanted.dtype and equal(one, wanted) for one in after)
    return same and not (before.dtype == wanted.dtype and equal(before, wanted)) and graph.counts["captures"] == 2


def said(report: Any) -> str:
    """A report in one line."""
    if report.blockers:
        return "in the way: " + "; ".join(f"{one.call}: {one.advice}" for one in report.blockers)
    if report.proved:
        return f"proved{'' if report.exact else ', within ' + report.scatter}, varied {len(report.varied)}"
    return f"{report.why}: {report.difference}"


def main(traps: Any, settings: Any, sound: Any, seed: Callable[[], object]) -> None:
    """Print a line for each, in OUT.csv too. ``traps`` are pairs of a maker and what must be said; the others are
    makers. ``seed`` is called before each."""
    names = sys.argv[2:] or [*traps, *settings, *sound]
    rows = [tuple(row) for row in json.loads(os.environ.get("TRAPS_SAID", "[]"))]
    for name in names:
        maker, wanted = traps[name] if name in traps else ((sound | settings)[name], "")
        began = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                seed()
                report = report_of(maker)
            words = said(report)
            right = bool(not report.proved and re.search(wanted, words)) if wanted else report.proved
            if name in settings and right and not notices(maker):
                words, right = "proved, but a setting that changes is not noticed", False
        except Exception as error:  # noqa: BLE001
            words, right = f"{type(error).__name__}: {error}"[:200], False
        kind = "trap" if wanted else "setting" if name in settings else "sound"
        rows.append((name, kind, "right" if right else "WRONG", words))
        print(f"{'' if right else 'WRONG '}{name}: {words[:230]} ({time.perf_counter() - began:.1f} s)", flush=True)
        if "illegal memory" in words:  # CUDA has ended in this process
            os.environ["TRAPS_SAID"] = json.dumps(rows)
            os.execv(sys.executable, [sys.executable, *sys.argv[:2], *names[names.index(name) + 1 :]])
    print(f"{sum(row[2] == 'right' for row in rows)} of {len(rows)} are right")
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("w", newline="") as file:
            csv.writer(file).writerows([("function", "kind", "verdict", "says"), *rows])

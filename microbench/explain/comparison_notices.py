"""What must be known before any figure of a comparison: what cannot be compared, and what is another on its sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from microbench.compare import LOST, Change, Comparison
from microbench.explain.evidence import listed
from microbench.explain.finding import Finding, Severity

SUITE = "compare"
MOST_NAMED = 3


def notices(comparison: Comparison) -> list[Finding]:
    """One run twice, simulated against real, another model, method, driver, board, and lost cases: in this order."""
    return [
        *_same_run(comparison),
        *_simulated(comparison),
        *_models(comparison),
        *_methods(comparison),
        *_drivers(comparison),
        *_boards(comparison),
        *_lost(comparison),
    ]


def figures_in_words(found: Sequence[object]) -> str:
    """How many figures: "1 figure", "12 figures"."""
    return f"{len(found)} figure{'' if len(found) == 1 else 's'}"


def _notice(rule: str, title: str, text: str, threshold: str, severity: Severity = "warning") -> Finding:
    return Finding(f"compare.{rule}", severity, title, text, threshold, suite=SUITE)


def _incomparable(comparison: Comparison, reason: str) -> list[Change]:
    return [one for one in comparison.changes if one.verdict == "incomparable" and one.reason == reason]


def _same_run(comparison: Comparison) -> Iterator[Finding]:
    if comparison.base.run_id == comparison.new.run_id:
        text = "BASE and NEW are copies of one run: a round that both hold is compared with itself, and says nothing."
        yield _notice("same_run", "ONE RUN TWICE", text, "the runs' ids are the same")


def _simulated(comparison: Comparison) -> Iterator[Finding]:
    found = _incomparable(comparison, "simulated")
    if found:
        names = ("BASE", "NEW") if comparison.base.simulated else ("NEW", "BASE")
        text = f"{names[0]} is simulated and {names[1]} is real: {figures_in_words(found)} cannot be compared."
        yield _notice("simulated", "SIMULATED AGAINST REAL", text, "one of the sessions ran on the simulated GPU")


def _models(comparison: Comparison) -> Iterator[Finding]:
    if not comparison.other_models:
        return
    pairs = listed([f"{new.name} against {base.name}" for base, new in comparison.other_models])
    shares, without = [one for one in comparison.changes if one.shares], _incomparable(comparison, "model")
    text = f"{pairs}: of {figures_in_words(shares)} the share of each GPU's own ceiling is compared"
    text += f"; {figures_in_words(without)} without a ceiling cannot be." if without else "."
    yield _notice("model", "ANOTHER GPU MODEL", text, "the name or the number of SMs differs")


def _methods(comparison: Comparison) -> Iterator[Finding]:
    found = _incomparable(comparison, "method")
    if found:
        names = listed(list(dict.fromkeys(one.new.benchmark for one in found)))
        text = f"{names}: {figures_in_words(found)} cannot be compared, because the two runs measured them differently."
        yield _notice("method", "ANOTHER METHOD", text, "the benchmark's version, or a metric's unit, differs")


def methods_in_words(comparison: Comparison, benchmark: str) -> str:
    """By which methods the two runs measured a benchmark: "method 2 in NEW, 1 in BASE"."""
    infos = comparison.base.benchmark(benchmark), comparison.new.benchmark(benchmark)
    before, after = (info.version if info is not None else None for info in infos)
    return f"method {after} in NEW, {before} in BASE" if before != after else "another unit"


def _drivers(comparison: Comparison) -> Iterator[Finding]:
    for one in comparison.differences:
        if one.name == "driver":
            text = f"{one.new.value} in NEW, {one.base.value} in BASE. What changed may be its doing."
            yield _notice("driver", "ANOTHER DRIVER", text, "the driver's version differs", "note")


def _boards(comparison: Comparison) -> Iterator[Finding]:
    others = [pair for pair in comparison.gpus if pair[0].uuid != pair[1].uuid and pair not in comparison.other_models]
    if others:
        names = listed(list(dict.fromkeys(new.name for _, new in others)))
        text = f"Both are {names}, and not the same one: what changed may lie between two boards or their hosts."
        yield _notice("board", "ANOTHER BOARD", text, "the GPU's UUID differs", "note")


def _lost(comparison: Comparison) -> Iterator[Finding]:
    """What BASE measured and NEW tried to: no ratio tells of it."""
    names = comparison.lost
    if names:
        left = len(names) - MOST_NAMED
        named = listed([*names[:MOST_NAMED], *([f"{left} more"] if left > 0 else [])])
        text = f"{len(names)} case{'' if len(names) == 1 else 's'} that BASE measured: {named}."
        yield _notice("lost", "FAILED IN NEW", text, f"NEW has it as {' or '.join(LOST)}")

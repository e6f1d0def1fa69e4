"""Explains programmatic dependent launch in graph_nodes: what it saves a kernel that needs the one in front."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import as_time, times

EQUAL = 1.05
PLACES = {"a stream": "stream", "a graph": "node"}
# How the kinds of a case end; whom a title names; when a kernel of the case needs the one in front.
CASES = {
    "": ("dependent kernels", "at once"),
    "_prologue": ("kernels that begin with 1 µs of work of their own", "after 1 µs of work of its own"),
}


class Gain(NamedTuple):
    """A kernel without PDL, and with it: by the attribute alone, and with an early trigger in the kernel in front."""

    place: str
    plain: Row
    attribute: Row | None
    trigger: Row | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """All that were measured."""
        return tuple(row for row in self[1:] if row is not None)

    @property
    def speedup(self) -> float:
        """Of the better way."""
        return self.plain.value / min(row.value for row in self.rows[1:])

    @property
    def words(self) -> str:
        """What it takes there, each way."""
        ways = [(self.attribute, "with PDL"), (self.trigger, "with an early trigger as well")]
        each = [f"{as_time(row.value)} {how}" for row, how in ways if row is not None]
        return f"in {self.place} {', '.join([as_time(self.plain.value), *each])}"


def gains(evidence: Evidence, case: str) -> list[Gain]:
    """What PDL saves in a stream and in a graph, of the kinds that end in ``case``."""
    found = []
    for place, metric in PLACES.items():
        plain, attribute, trigger = (
            evidence.row("graph_nodes", metric, kind=kind + case) for kind in ("kernel", "pdl", "pdl_trigger")
        )
        if plain is not None and (attribute is not None or trigger is not None):
            found.append(Gain(place, plain, attribute, trigger))
    return found


def dependent_launch(evidence: Evidence) -> list[Finding]:
    """What programmatic dependent launch saves: the gap, and with an early trigger what a kernel does before it waits.

    The title is of kernels with such work, where they were measured: those PDL is for.
    """
    found = {case: several for case in CASES if (several := gains(evidence, case))}
    if not found:
        return []
    words = [
        f"A kernel that needs the one in front {CASES[case][1]} takes {'; '.join(one.words for one in several)}."
        for case, several in found.items()
    ]
    case, told = list(found.items())[-1]
    whom = CASES[case][0]
    title = f"Programmatic dependent launch does not speed {whom} up"
    if any(one.speedup > EQUAL for one in told):
        speedups = listed([f"{times(one.speedup)} in {one.place}" for one in told])
        title = f"Programmatic dependent launch speeds {whom} up {speedups}"
    return [
        Finding(
            rule="graph.pdl",
            severity="note",
            title=title,
            text=(
                f"{' '.join(words)} The attribute alone can save the gap. The work before the wait runs under the "
                "kernel in front only where that one triggers early (cudaTriggerProgrammaticLaunchCompletion)."
            ),
            threshold=f"without PDL over the better way with it; told as faster above {EQUAL:.2f} times",
            rests_on=rests_on(*(row for several in found.values() for one in several for row in one.rows)),
            suite="graph",
        )
    ]

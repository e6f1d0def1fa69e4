"""Finds from counts how a step uses graphs, and optimizers that launch kernels for each parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from microbench.analysis.evidence import Finding
from microbench.core.units import as_time, counted, percent, plain, round_percent
from microbench.diagnosis.advice import program_of
from microbench.diagnosis.counts import CALLS, Counting, IntArray, Number
from microbench.diagnosis.diagnosis import REPLAYS, Diagnosis
from microbench.diagnosis.kernel_names import family
from microbench.diagnosis.steps import OPTIMIZER
from microbench.traces.trace import NONE, WORK_KINDS, name_of

SLOW_REPLAY_S = 1e-3  # of the host for one launch of a graph
MOST_SHARE = 0.95  # of the kernels, up to which graphs hold a part of a step
FEWEST_LEFT = 20  # launches beside graphs that are worth naming
FEWEST_OF_OPTIMIZER, ALIKE = 30, 10  # kernels of an optimizer in a step, and those of one family among them
FUSED = ("multi_tensor_apply", "fused", "Fused")  # in the names of kernels for many parameters at once
LONGEST = 60
MAKING = ("graphs", "updates")


def graph_use(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The findings about a trace with steps; all are about the usual step."""
    names = diagnosis.trace.names
    if diagnosis.steps is None or not any("Graph" in name or name.startswith(OPTIMIZER) for name in names):
        return
    counting = Counting(diagnosis.trace, diagnosis.steps)
    figures = counting.counts(0.0).figures
    yield from _made(diagnosis, counting, figures)
    yield from _slow(diagnosis, counting)
    recorded = diagnosis.recorded
    free = recorded is not None and all(one.where != "within" for one in recorded.blockers)
    can = free and diagnosis.bound == "launch-bound" and diagnosis.why_no_graph == REPLAYS
    yield from _part(figures, can=can and program_of(diagnosis.trace) != "jax")
    yield from _optimizer(diagnosis)


def _calls(counting: Counting, *figures: str) -> IntArray:
    places = [place for place, (figure, _) in enumerate(CALLS) if figure in figures]
    found: IntArray = np.flatnonzero(np.isin(counting.figure_of_call, places) & (counting.group_of_call != NONE))
    return found


def _made(diagnosis: Diagnosis, counting: Counting, figures: Mapping[str, Number]) -> Iterator[Finding]:
    """Graphs that are instantiated in each step, and those that are launched once for each time they are made."""
    made, launched = figures.get("graphs", 0), figures.get("replays", 0)
    if round(made) < 1:
        return
    calls = diagnosis.trace.calls[_calls(counting, "graphs")]
    takes_s = float((calls["end_ns"] - calls["begin_ns"]).sum()) * 1e-9 / counting.steps
    where = next((place for place in counting.places("graphs") if " at " in place), "")
    once = ", and each is launched once" if 0 < launched <= made else ""
    yield Finding(
        rule="diagnose.graph_made",
        severity="advice",
        title=f"Each step makes {counted(round(made), 'graph')}{once}: {as_time(takes_s)} of the host",
        text=f"It is made by {plain(where)}." if where else "",
        threshold="the usual step instantiates a graph",
        advice="Make the graph once, before the loop, and launch it again; update it if its arguments change",
    )


def _slow(diagnosis: Diagnosis, counting: Counting) -> Iterator[Finding]:
    """Launches of graphs that take milliseconds, while nothing runs on the GPU for the first half of the call."""
    trace = diagnosis.trace
    places = _calls(counting, "replays")
    if not len(places):
        return
    calls = trace.calls[places]
    length_ns = calls["end_ns"] - calls["begin_ns"]
    middle_ns = calls["begin_ns"] + length_ns // 2
    ends_ns = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, trace.work["end_ns"]))
    busy = ends_ns[np.searchsorted(trace.work["begin_ns"], middle_ns)] > middle_ns
    takes_s = float(np.median(length_ns)) * 1e-9
    if takes_s > SLOW_REPLAY_S and busy.mean() < 1 / 2:
        yield Finding(
            rule="diagnose.slow_replay",
            severity="warning",
            title=f"A launch of a graph takes {as_time(takes_s)} of the host, while the GPU has nothing to do",
            text="A graph is uploaded at its first launch, and waits for its own last launch.",
            threshold=f"half of the graph launches take more than {as_time(SLOW_REPLAY_S)}, and the GPU is idle",
            advice="Upload the graph before the loop, and split one of many thousands of nodes",
        )


def _part(figures: Mapping[str, Number], *, can: bool) -> Iterator[Finding]:
    """How much of a step graphs hold, if that is a part."""
    kernels, held, left = (figures.get(name, 0) for name in ("kernels", "kernels_in_graphs", "launches"))
    if kernels and 0 < held / kernels < MOST_SHARE and left >= FEWEST_LEFT:
        yield Finding(
            rule="diagnose.graph_part",
            severity="advice" if can else "note",
            title=f"Graphs hold {percent(held / kernels)} of the kernels; {left:,.0f} are launched one by one",
            text="",
            threshold=f"graphs hold less than {round_percent(MOST_SHARE)}, and not {FEWEST_LEFT} kernels or more",
            advice="Capture these too, or the whole step in one graph" if can else "",
        )


class PerParameter(NamedTuple):
    """An optimizer of PyTorch that launches kernels for each parameter: its name, its kernels each time, and the share
    of the steps' launches that are its own."""

    name: str
    kernels: float
    share: float


def per_parameter(diagnosis: Diagnosis) -> PerParameter | None:
    """The optimizer that launches kernels for each parameter, where the trace has its range."""
    trace = diagnosis.trace
    named = np.array([*(name.startswith(OPTIMIZER) for name in trace.names), False])
    ranges = trace.ranges[named[trace.ranges["name"]]]
    if diagnosis.steps is None or not len(ranges):
        return None
    counting = Counting(trace, diagnosis.steps)
    calls = _calls(counting, "launches")
    begins_ns = trace.calls["begin_ns"][calls]
    place = np.searchsorted(ranges["begin_ns"], begins_ns, "right") - 1
    inside = (place >= 0) & (begins_ns < ranges["end_ns"][place])
    inside &= trace.calls["thread"][calls] == ranges["thread"][place]
    own = np.isin(trace.work["call"], calls[inside]) & (trace.work["kind"] == WORK_KINDS.index("kernel"))
    names = Counter(name_of(trace, name) for name in trace.work["name"][own].tolist())
    if not names or any(word in name for name in names for word in FUSED):
        return None
    families: Counter[str] = Counter()
    for name, count in names.items():
        families[family(name).name] += count
    times = min(len(np.unique(place[inside])), counting.steps)  # what repeats may be the work for one parameter
    if families.total() < FEWEST_OF_OPTIMIZER * times or max(families.values()) < ALIKE * times:
        return None
    name = name_of(trace, int(ranges["name"][0])).removeprefix(OPTIMIZER).removesuffix(".step")
    return PerParameter(name, families.total() / times, float(inside.mean()))


def _optimizer(diagnosis: Diagnosis) -> Iterator[Finding]:
    """An optimizer that one argument makes launch fewer kernels."""
    if (found := per_parameter(diagnosis)) is not None:
        yield Finding(
            rule="diagnose.optimizer",
            severity="advice",
            title=f"The optimizer {plain(found.name, LONGEST)} launches {found.kernels:,.0f} kernels each time, for "
            f"each parameter anew: {percent(found.share)} of the launches",
            text="",
            threshold=f"{FEWEST_OF_OPTIMIZER} kernels of an optimizer each time, {ALIKE} of one kind, none fused",
            advice="Give it foreach=True, or fused=True where it has that; in one of your own use torch._foreach_add_ "
            "and its like",
        )

"""Finds the few steps that hold most of a trace's idle time, or do rare other work, so that the others are described
without them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.diagnosis.idle import Idle, gaps_of, idle
from microbench.diagnosis.recorded import STANDS_OUT, USUAL
from microbench.diagnosis.steps import FEWEST, LIKE, PAUSE_S, REPEATED, Steps, part_of
from microbench.traces.trace import Trace

FEW = 0.25  # of the steps, which are not usual
RARE = 0.05  # of the steps, which do other work, such as an evaluation, or pause
LITTLE, MUCH = 0.05, 0.15  # of all time


class Paused(NamedTuple):
    """A few steps with long pauses: how many, of how many steps, their idle time in s beyond the usual one's, its share
    of all time, the idle time of the longest pause, and the mean time of all steps in s. Where they do ``other`` work,
    all of their time beyond the usual step's counts."""

    steps: int
    of: int
    seconds: float
    share: float
    longest: Idle
    mean_s: float
    other: bool

    @property
    def most(self) -> bool:
        """Whether that is most of the time."""
        return 2 * self.share > 1


def usual_steps(trace: Trace, steps: Steps, device: int) -> tuple[Steps, Paused | None]:
    """Leave out the steps that pause, or that do rare other work: the longest run of steps between them.

    Steps pause apart if they are few and hold most of the idle time, or rare and hold much. Steps that submit more or
    less than the usual one do other work. They are left out if they are rare, take less than half of the time, and
    hardly change the share in which the GPU idles. Many steps at equal distances belong to the program.
    """
    edges_ns = steps.begins_ns
    gaps = gaps_of(trace.work, device, int(edges_ns[0]), int(edges_ns[-1]))
    step = np.searchsorted(edges_ns, gaps.begin_ns, "right") - 1
    idle_ns = np.bincount(step, gaps.end_ns - gaps.begin_ns, steps.count)
    usual_ns = np.median(idle_ns)
    submits = np.diff(np.searchsorted(np.unique(trace.work["call"]), steps.calls))
    alike = np.abs(submits - np.median(submits)) <= (1 - LIKE) * np.median(submits)
    paused = np.flatnonzero((idle_ns > STANDS_OUT * usual_ns + PAUSE_S * 1e9) & alike)
    beyond_ns, lasts_ns = float((idle_ns[paused] - usual_ns).sum()), np.diff(edges_ns)
    apart = 0 < len(paused) <= FEW * steps.count and 2 * beyond_ns > idle_ns.sum()
    apart |= 0 < len(paused) <= RARE * steps.count and beyond_ns > MUCH * lasts_ns.sum()
    if other := not apart:
        paused = np.flatnonzero((lasts_ns > STANDS_OUT * np.median(lasts_ns)) & ~alike)
        beyond_ns = float((lasts_ns[paused] - np.median(lasts_ns)).sum())
        apart = 0 < len(paused) <= RARE * steps.count and 2 * beyond_ns < lasts_ns.sum()
        apart &= bool(idle_ns.sum() / lasts_ns.sum() < usual_ns / np.median(lasts_ns) + LITTLE)
    ends = np.concatenate([[-1], paused, [steps.count]])
    run = int(np.argmax(np.diff(ends)))
    first, last = int(ends[run]) + 1, int(ends[run + 1])
    if not apart or last - first < FEWEST or _periodic(paused, steps.count):
        return steps, None
    longest = int(paused[np.argmax(idle_ns[paused])])
    found = Paused(
        len(paused), steps.count, beyond_ns * 1e-9, beyond_ns / float(edges_ns[-1] - edges_ns[0]),
        idle(trace, int(edges_ns[longest]), int(edges_ns[longest + 1]), device), steps.step_s, other,
    )  # fmt: skip
    return part_of(trace, steps, first, last), found


def _periodic(paused: npt.NDArray[np.intp], count: int) -> bool:
    """Whether these steps are many, and come at equal distances from the first to the last step."""
    apart = np.diff(paused)
    if len(paused) < FEWEST:
        return False
    every = float(np.median(apart))
    often = len(paused) > (1 - USUAL) * count
    return often and bool(np.mean(apart == every) > REPEATED and every * len(paused) > REPEATED * count)

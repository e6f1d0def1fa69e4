"""Says which step a given time belongs to: the one that repeats in the trace, a part of it, or several of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from microbench.core.errors import UsageError
from microbench.core.units import as_time, counted
from microbench.diagnosis.steps import MOST_SHAPES, Steps
from microbench.traces.trace import Trace

# A given time of a step beyond these shares of the recorded one belongs to another step.
LEAST_GIVEN, MOST_GIVEN = 0.25, 1.25
# Steps that take turns begin behind pauses this much longer than any pause within them, and the longest of them has no
# more than so many times the calls of the shortest.
LONGER, LONGEST = 1.3, 2.0
# What repeats may be one of so many equal parts of a step.
MOST_PARTS = 5


class Given(NamedTuple):
    """A given time as that of the step that repeats, in s: it holds ``holds`` of the steps that were meant, or is one
    of ``parts`` equal parts of one, or the mean of all steps, those that pause included, is ``mean`` times as long."""

    step_s: float
    holds: int = 1
    parts: int = 1
    mean: float = 1.0


def meant(
    trace: Trace, steps: Steps, kernels: float, given_s: float, works_s: float, least_s: float, likely_s: float,
    mean_s: float,
) -> Given:  # fmt: skip
    """The step that a time was given for. In the step that repeats, of so many ``kernels``, the GPU works ``works_s``.
    Without the recorder it takes at least ``least_s`` and probably ``likely_s``. All steps take ``mean_s`` as recorded.

    A shorter time is that of a part, if long pauses part the step into several of about that time. A longer one is
    that of the mean step if it is nearer to that, or that of several. Raises UsageError if it fits nothing.
    """
    longest_s = MOST_GIVEN * steps.step_s
    held = [count for count in _turns(trace, steps) if least_s <= count * given_s <= longest_s]
    if given_s < least_s and held:
        count = _nearest(held, likely_s / given_s)
        return Given(count * given_s, holds=count)
    beyond = mean_s / steps.step_s  # 1 if no step pauses
    if beyond > 1 and max(LEAST_GIVEN * mean_s, math.sqrt(beyond) * likely_s) < given_s <= MOST_GIVEN * mean_s:
        usual_s = max(given_s / beyond, works_s)
        return Given(usual_s, mean=given_s / usual_s)
    if max(LEAST_GIVEN * steps.step_s, works_s) <= given_s <= longest_s:
        return Given(given_s)
    parts = [count for count in range(2, MOST_PARTS + 1) if least_s <= given_s / count <= longest_s]
    if parts:
        count = _nearest(parts, given_s / likely_s)
        return Given(given_s / count, parts=count)
    raise UsageError(
        f"the step of {counted(round(kernels), 'kernel')} that repeats in this trace takes {as_time(steps.step_s)} "
        f"there, and {as_time(given_s)} is neither a part of that nor up to {MOST_PARTS} times that",
        "give --step the time of one such step without a profiler",
    )


def _nearest(counts: list[int], wanted: float) -> int:
    return min(counts, key=lambda count: abs(math.log(count / wanted)))


def _turns(trace: Trace, steps: Steps) -> list[int]:
    """Into how many steps of about equal length the longest pauses part what repeats."""
    calls, lengths = trace.calls, np.diff(steps.calls)
    usual = int(np.median(lengths))
    begins = steps.calls[:-1][lengths == usual]
    if usual < 2 or not len(begins):
        return []
    places = begins[:, None] + np.arange(usual)
    pauses = np.median(calls["begin_ns"][places] - calls["end_ns"][np.maximum(places - 1, 0)], axis=0)
    order = 1 + np.argsort(-pauses[1:], kind="stable")
    found = []
    for count in range(2, min(MOST_SHAPES, usual) + 1):
        cuts = np.sort(order[: count - 1])
        within = pauses[order[count - 1]] if count - 1 < len(order) else 0.0
        parts = np.diff([0, *cuts.tolist(), usual])
        if pauses[cuts].min() > LONGER * within and parts.max() <= LONGEST * parts.min():
            found.append(count)
    return found

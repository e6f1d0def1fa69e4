"""A step of kernels in a stream and in a graph, computed from measured costs: when each call returns, when each
kernel runs, when the host knows."""

from __future__ import annotations

import msgspec

Interval = tuple[float, float]


class Costs(msgspec.Struct, frozen=True):
    """What one way of submitting costs, in seconds.

    ``call_s``: a call on the host. ``way_s``: from its return until the kernel may begin. ``gap_s``: on the GPU
    between two kernels. ``complete_s``: from the end of the last kernel until the synchronise returns. ``one_call``:
    whether one call submits all kernels (a graph), or one each (a stream).
    """

    call_s: float
    way_s: float
    gap_s: float
    complete_s: float
    one_call: bool = False


class Schedule(msgspec.Struct, frozen=True):
    """When what happens, in seconds after the first call begins."""

    calls: tuple[Interval, ...]
    kernels: tuple[Interval, ...]
    end_s: float

    @property
    def idle_share(self) -> float:
        """The share of the step in which no kernel runs."""
        busy_s = sum(end - begin for begin, end in self.kernels)
        return 1 - busy_s / self.end_s if self.end_s > 0 else 0.0


def schedule(costs: Costs, kernels: int, duration_s: float) -> Schedule:
    """A step of ``kernels`` kernels (at least one) of one length, each behind the one before, and one synchronise.

    Call i returns at i times call_s. A kernel begins when its call has returned and come to the GPU, and not before
    the kernel in front has ended and the gap has passed. In a stream that makes max(call, duration + gap) a kernel,
    in a graph duration + gap.
    """
    calls = 1 if costs.one_call else kernels
    made = tuple((index * costs.call_s, (index + 1) * costs.call_s) for index in range(calls))
    ran: list[Interval] = []
    for index in range(kernels):
        begin = made[min(index, calls - 1)][1] + costs.way_s
        if ran:
            begin = max(begin, ran[-1][1] + costs.gap_s)
        ran.append((begin, begin + duration_s))
    return Schedule(made, tuple(ran), ran[-1][1] + costs.complete_s)


def period_s(costs: Costs, duration_s: float) -> float:
    """Time per kernel of a long step: the slower of host and GPU."""
    gpu_s = duration_s + costs.gap_s
    return gpu_s if costs.one_call else max(costs.call_s, gpu_s)

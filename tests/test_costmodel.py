"""The arithmetic of a step: order, no overlap, and the law of measuring: max(submit, duration + gap) a kernel."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.costmodel import Costs, Schedule, period_s, schedule

seconds = st.floats(0, 1e-3)
costs = st.builds(Costs, seconds, seconds, seconds, seconds, st.booleans())
counts = st.integers(1, 60)


@given(costs, counts, seconds)
def test_lanes_never_overlap_and_kernels_keep_their_order(one: Costs, kernels: int, duration_s: float) -> None:
    made = schedule(one, kernels, duration_s)
    assert len(made.kernels) == kernels
    assert len(made.calls) == (1 if one.one_call else kernels)
    for lane, gap_s in ((made.calls, 0.0), (made.kernels, one.gap_s)):
        assert all(begin <= end for begin, end in lane)
        assert all(later[0] >= earlier[1] + gap_s - 1e-12 for earlier, later in itertools.pairwise(lane))
    for index, (begin, _) in enumerate(made.kernels):
        assert begin >= made.calls[min(index, len(made.calls) - 1)][1]
    assert made.end_s >= made.kernels[-1][1]
    assert -1e-9 <= made.idle_share <= 1


@given(costs, counts, seconds)
def test_a_step_lasts_as_long_as_the_law_says(one: Costs, kernels: int, duration_s: float) -> None:
    law_s = one.call_s + one.way_s + (kernels - 1) * period_s(one, duration_s) + duration_s + one.complete_s
    assert schedule(one, kernels, duration_s).end_s == pytest.approx(law_s, rel=1e-9, abs=1e-12)


def test_the_slower_of_host_and_gpu_sets_the_pace() -> None:
    stream = Costs(call_s=3e-6, way_s=2e-6, gap_s=1e-6, complete_s=2e-6)
    assert period_s(stream, 1e-6) == pytest.approx(3e-6)
    assert period_s(stream, 5e-6) == pytest.approx(6e-6)
    assert period_s(Costs(3e-6, 2e-6, 1e-6, 2e-6, one_call=True), 1e-6) == pytest.approx(2e-6)


def test_idle_is_what_no_kernel_fills() -> None:
    made = schedule(Costs(1e-6, 1e-6, 2e-6, 3e-6), 2, 1e-6)
    assert made.kernels == ((2e-6, 3e-6), (pytest.approx(5e-6), pytest.approx(6e-6)))
    assert made.idle_share == pytest.approx(1 - 2 / 9)
    assert Schedule((), (), 0.0).idle_share == 0.0

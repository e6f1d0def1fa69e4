"""The launch queue of the simulated GPU: how many items it holds, and the same events from a plain simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microbench.core.ops import Copy, Launch, Op, Record
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import max_plus
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import Gpu

COSTS = FakeCosts()


def depth(gpu: Gpu, op: Op, tries: int = 1300) -> int | None:
    """How many calls behind a gate return before one blocks until the gate times out; None if none does."""
    stamps = np.zeros(tries + 1, dtype=np.int64)
    gpu.synchronize()
    gpu.gate().shut(timeout_s=0.05)
    gpu.bind(op).stamps(stamps)
    took_ns = np.diff(stamps)
    gpu.synchronize()
    return int(took_ns.argmax()) if took_ns.max() > 1e6 else None


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Launch(), COSTS.queue_slots),
        (Launch(argument_bytes=4000), COSTS.queue_depth(4000 + COSTS.launch_record_bytes)),
        (Copy("h2d", 4), COSTS.queue_slots),
        (Record(timed=False), None),
    ],
    ids=str,
)
def test_the_queue_holds_its_depth_and_half_of_it_may_stand_behind_a_gate(op: Op, expected: int | None) -> None:
    gpu = open_fake(COSTS, spread=0)
    assert depth(gpu, op) == expected
    assert gpu.bind(op).queue_slots == (expected // 2 if expected else None)


@dataclass
class PlainStream:
    """A stream of the plain simulation: when it is free, and (start, buffer bytes) of all that entered its queue."""

    free_ns: float = -math.inf
    entered: list[tuple[float, float]] = field(default_factory=list)


def plain_returns(costs: FakeCosts, runs: list[tuple[Launch, int]], gate_s: float | None) -> list[float]:
    """When each call returns, one call after another and one waiting slot after another."""
    streams = {stream: PlainStream() for stream in (0, 1)}
    now_ns, returns = 1e9, []
    if gate_s is not None:
        now_ns += costs.submit_ns
        start_ns = now_ns + costs.launch_to_start_ns
        streams[0] = PlainStream(start_ns + gate_s * 1e9, [(start_ns, 0.0)])
    for op, count in runs:
        stream, buffer_bytes = streams[op.stream], op.argument_bytes + costs.launch_record_bytes
        for _ in range(count):
            while True:
                waiting = [(start, size) for start, size in stream.entered if start > now_ns]
                fits = sum(size for _, size in waiting) + buffer_bytes <= costs.queue_buffer_bytes
                if len(waiting) < costs.queue_slots and fits:
                    break
                now_ns = min(start for start, _ in waiting)
            now_ns += costs.submit_ns + costs.submit_argument_ns * op.argument_bytes
            returns.append(now_ns)
            start_ns = max(now_ns + costs.launch_to_start_ns, stream.free_ns + costs.gap_stream_ns)
            stream.entered.append((start_ns, buffer_bytes))
            stream.free_ns = start_ns + max(op.duration_ns, costs.empty_kernel_ns)
    return returns


launches = st.builds(
    Launch,
    duration_ns=st.sampled_from([0, 2000, 30_000]),
    argument_bytes=st.sampled_from([0, 500, 3000]),
    stream=st.sampled_from([0, 1]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(launches, st.integers(1, 40)), min_size=1, max_size=6), st.sampled_from([None, 1e-4, 1e-2]))
def test_every_call_returns_when_a_plain_simulation_says(runs: list[tuple[Launch, int]], gate_s: float | None) -> None:
    costs = FakeCosts(queue_slots=12, queue_buffer_bytes=20_000, launch_record_bytes=1000, timer_call_ns=0)
    gpu = open_fake(costs, spread=0)
    if gate_s is not None:
        gpu.gate().shut(timeout_s=gate_s)
    returns: list[int] = []
    for op, count in runs:
        stamps = np.zeros(count + 1, dtype=np.int64)
        gpu.bind(op).stamps(stamps)
        returns.extend(stamps[1:].tolist())
    assert returns == pytest.approx(plain_returns(costs, runs, gate_s), rel=0, abs=1.01)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e5)), min_size=1, max_size=50))
def test_max_plus_solves_its_recurrence(pairs: list[tuple[float, float]]) -> None:
    floors, steps = np.array(pairs).T
    value, expected = -math.inf, []
    for floor, step in pairs:
        value = max(value, floor) + step
        expected.append(value)
    assert max_plus(floors, steps) == pytest.approx(expected, abs=1e-6)

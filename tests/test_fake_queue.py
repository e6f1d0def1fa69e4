"""The launch queue of the simulated GPU: its depth, what blocks, and the same events from a plain simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
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


def exact(costs: FakeCosts = COSTS) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def depth(gpu: Gpu, op: Op, tries: int = 1300) -> int:
    """How many calls behind a gate return before one blocks until the gate times out."""
    stamps = np.zeros(tries + 1, dtype=np.int64)
    gpu.synchronize()
    gpu.gate().shut(timeout_s=0.05)
    gpu.bind(op).stamps(stamps)
    took_ns = np.diff(stamps)
    assert took_ns.max() > 1e6, "no call blocked"
    gpu.synchronize()
    return int(took_ns.argmax())


@pytest.mark.parametrize("argument_bytes", [0, 2000, 2500, 4000])
def test_the_queue_holds_its_depth(argument_bytes: int) -> None:
    gpu = exact()
    op = Launch(argument_bytes=argument_bytes)
    assert depth(gpu, op) == COSTS.queue_depth(argument_bytes)
    slots = gpu.bind(op).queue_slots
    assert slots == COSTS.queue_depth(argument_bytes) // 2


def test_depths_of_other_ops() -> None:
    gpu = exact()
    assert depth(gpu, Copy("h2d", 4)) == COSTS.queue_slots
    assert depth(gpu, gpu.graph([Launch()] * 50)) == COSTS.queue_slots
    with pytest.raises(AssertionError, match="no call blocked"):
        depth(gpu, Record(timed=False))
    assert gpu.bind(Record(timed=False)).queue_slots is None


def test_small_and_large_arguments_share_the_buffer() -> None:
    gpu = exact(msgspec.structs.replace(COSTS, queue_buffer_bytes=100_000, launch_record_bytes=1000))
    stamps = np.zeros(101, dtype=np.int64)
    gpu.gate().shut()
    gpu.bind(Launch(argument_bytes=9000))(5)  # half of the buffer
    gpu.bind(Launch()).stamps(stamps)
    assert np.diff(stamps).argmax() == 50


@settings(max_examples=30, deadline=None)
@given(st.integers(200, 9000), st.integers(0, 4000), st.integers(0, 20_000))
def test_a_full_stream_runs_at_the_slower_of_submit_and_duration_with_gap(
    submit_ns: int, gap_ns: int, duration_ns: int
) -> None:
    gpu = exact(FakeCosts(submit_ns=submit_ns, gap_stream_ns=gap_ns, empty_kernel_ns=1))
    recorded = gpu.record(Launch(duration_ns=duration_ns), 3000, graph=False, gated=False)
    period_ns = (recorded.start_ns[-1] - recorded.start_ns[0]) / 2999
    assert period_ns == pytest.approx(max(submit_ns, max(duration_ns, 1) + gap_ns), abs=0.05)


def test_a_call_on_a_full_queue_takes_as_long_as_a_kernel() -> None:
    gpu = exact()
    stamps = np.zeros(3001, dtype=np.int64)
    gpu.bind(Launch(duration_ns=10_000)).stamps(stamps)
    took_ns = np.diff(stamps)
    free_ns = COSTS.submit_ns + COSTS.timer_call_ns
    assert np.allclose(took_ns[:1000], free_ns, atol=1)
    assert np.allclose(took_ns[2000:], 10_000 + COSTS.gap_stream_ns, atol=1)
    knee = int(np.argmax(took_ns > 2 * free_ns))
    period_ns = 10_000 + COSTS.gap_stream_ns
    assert knee == pytest.approx(COSTS.queue_slots / (1 - free_ns / period_ns), abs=3)


def test_blocks_beyond_the_sms_run_in_waves() -> None:
    gpu = exact()
    at_once = COSTS.sm_count * 2
    for blocks, waves in ((at_once, 1), (at_once + 1, 2)):
        op = Launch(duration_ns=5000, grid_blocks=blocks, block_threads=1024)
        recorded = gpu.record(op, 10, graph=False, gated=True)
        assert np.mean(recorded.end_ns - recorded.start_ns) == pytest.approx(waves * 5000, abs=32)


# -- against a plain simulation ----------------------------------------------------------------------------------


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
@given(
    st.lists(st.tuples(launches, st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from([None, 1e-4, 1e-2]),
)
def test_every_call_returns_when_a_plain_simulation_says(runs: list[tuple[Launch, int]], gate_s: float | None) -> None:
    costs = FakeCosts(queue_slots=12, queue_buffer_bytes=20_000, launch_record_bytes=1000, timer_call_ns=0)
    gpu = exact(costs)
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

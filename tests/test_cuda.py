"""The real GPU: every kernel and operation once, with its effect checked. compute-sanitizer runs over these tests."""

from typing import get_args

import numpy as np
import pytest
from gpu_checks import may_skip

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError
from microbench.core.model import Case, Environment, Fact, Measurement
from microbench.core.ops import (
    HIGH_PRIORITY_STREAM,
    LEGACY_STREAM,
    Copy,
    Launch,
    LayerCall,
    Memset,
    Op,
    Query,
    Record,
    SynchronizeIdle,
    Wait,
)
from microbench.experiments.launch.exchanges import (
    flag_round_trips,
    host_read_ns,
    launch_stamps,
    resident,
    round_robin_ns,
    start_stamps,
    threads_stamps,
)
from microbench.experiments.launch.second_process import second_process
from microbench.experiments.launch.stream_signals import SignalWay, stream_signals
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.sampling import SamplingLimits
from microbench.meter.timer import Meter

pytestmark = pytest.mark.gpu

OPS: tuple[Op, ...] = (
    Launch(), Launch(duration_ns=2000), Launch(argument_bytes=1), Launch(argument_bytes=4096),
    Launch(grid_blocks=1000, block_threads=1024), Launch(stream=LEGACY_STREAM), Launch(stream=HIGH_PRIORITY_STREAM),
    Launch(kind="launch_ex"), Launch(kind="cooperative"), Launch(kind="cluster", grid_blocks=2), Launch(kind="pdl"),
    Launch(kind="pdl", duration_ns=2000), Copy("h2d", 1000), Copy("d2h", 1000), Memset(1000), Record(),
    Record(timed=False), Wait(), Query(), SynchronizeIdle("stream"), SynchronizeIdle("event"), LayerCall("loop", 0),
    LayerCall("loop", 4),
)  # fmt: skip


@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_op_submits_stamps_and_waits(gpu: Gpu, op: Op) -> None:
    with may_skip():
        submit = gpu.bind(op)
    submit(10)
    assert submit.burst_ns(10) > 0
    stamps = np.zeros(11, dtype=np.int64)
    submit.stamps(stamps)
    assert (np.diff(stamps) > 0).all()
    trips = np.zeros(3, dtype=np.int64)
    submit.round_trips(trips)
    assert (trips > 0).all()
    gpu.synchronize()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("launch", [Launch(), Launch(grid_blocks=7), Launch(kind="cooperative")], ids=str)
def test_recorded_kernels_of_a_stream_run_in_order(gpu: Gpu, launch: Launch, graph: bool) -> None:
    recorded = gpu.record(launch, 50, graph=graph, gated=True)
    assert recorded.start_ns.shape == recorded.end_ns.shape == (50,)
    assert (recorded.end_ns >= recorded.start_ns).all()
    assert (recorded.start_ns[1:] >= recorded.end_ns[:-1]).all()


def test_programmatic_dependent_kernels_keep_their_order(gpu: Gpu) -> None:
    with may_skip():
        recorded = gpu.record(Launch(kind="pdl"), 50, graph=False, gated=True)
    assert (np.diff(recorded.end_ns) >= 0).all()


@pytest.mark.parametrize("duration_ns", [2_000, 20_000, 200_000])
def test_a_spin_kernel_has_the_requested_length(gpu: Gpu, duration_ns: int) -> None:
    recorded = gpu.record(Launch(duration_ns=duration_ns), 20, graph=False, gated=True)
    measured_ns = float(np.median(recorded.end_ns - recorded.start_ns))
    assert measured_ns == pytest.approx(duration_ns, rel=0.02, abs=4 * recorded.step_ns + 100)


def test_work_behind_a_shut_gate_waits_and_a_gate_that_times_out_says_so(gpu: Gpu) -> None:
    gate = gpu.gate()
    gate.shut(timeout_s=0.02)
    begin_ns = gpu.clock.now_ns()
    gpu.bind(Launch())(5)
    gpu.synchronize()
    assert gpu.clock.now_ns() - begin_ns > 15_000_000
    assert gate.was_late()
    gate.shut((0, 1, 2))
    gate.open()
    gpu.synchronize()
    assert not gate.was_late()


def test_flags_are_seen_between_call_and_wait_and_answered_and_host_memory_is_read(gpu: Gpu) -> None:
    stamps = start_stamps(gpu, 100)
    assert stamps.shape == (100, 4)
    assert (stamps[:, 1] > stamps[:, 0]).all()
    assert (stamps[:, 3] > stamps[:, 1]).all()
    assert (stamps[:, 2] > stamps[:, 0]).mean() > 0.95
    assert (flag_round_trips(gpu, 100) > 0).all()
    assert (host_read_ns(gpu, 3) > 0).all()


@pytest.mark.parametrize("blocking_event", [False, True])
def test_waits_end_after_their_kernel(gpu: Gpu, blocking_event: bool) -> None:
    stamps, round_trip_ns = launch_stamps(gpu, 5, 1_000_000, blocking_event=blocking_event)
    assert stamps.shape == (5, 5)
    assert 0 < round_trip_ns < 100_000
    assert (np.diff(stamps[:, [0, 1, 4]]) > 0).all()
    assert (np.diff(stamps[:, [0, 2, 3, 4]]) > 0).all()
    assert np.median(stamps[:, 3] - stamps[:, 2]) == pytest.approx(1_000_000, rel=0.02)


# Microseconds measured by launch_signals, once each on an H200 and on an H100 with busy hosts; words of 64 bits are
# expected to cost as much as those of 32. The gap in a stream is 1.56 by launch_kind. A host function runs in a thread
# of the driver, which must wake up, as for a blocking wait (10 to 36).
MEASURED_US: dict[SignalWay, dict[str, tuple[float, float]]] = {
    "same_stream": {"between": (1.50, 1.79)}, "event": {"between": (1.54, 1.79)},
    "event_timed": {"between": (3.07, 3.36)}, "host_function": {"between": (40.9, 41.3)},
    "write_32": {"between": (3.30, 3.46), "to_host": (1.93, 2.25)},
    "write_64": {"between": (3.30, 3.46), "to_host": (1.93, 2.25)},
    "wait_ready": {"between": (3.55, 3.71)}, "wait_32": {"from_host": (6.78, 8.18)},
    "wait_64": {"from_host": (6.78, 8.18)}, "write_wait": {"between": (5.04, 5.15)},
}  # fmt: skip


@pytest.mark.parametrize("way", get_args(SignalWay))
def test_signals_cost_what_they_cost_before(gpu: Gpu, way: SignalWay) -> None:
    """Within a factor of two; the gap in a stream has a peer in gated kernels."""
    with may_skip():
        signals = stream_signals(gpu, way, 50)
    assert len(signals.stamps) > 25, "the host was late, or the kernels were short"
    _, ended, begun, seen, answered = signals.stamps.T
    found_ns = {"between": begun - ended, "to_host": seen - ended, "from_host": begun - answered}
    for name, (low_us, high_us) in MEASURED_US[way].items():
        assert low_us / 2 < np.median(found_ns[name]) / 1000 < high_us * 2, name
    if way == "same_stream":
        chain = gpu.record(Launch(), 50, graph=False, gated=True)
        peer_ns = np.median(chain.start_ns[1:] - chain.end_ns[:-1])
        assert np.median(found_ns["between"]) == pytest.approx(peer_ns, rel=0.25, abs=2 * signals.step_ns)
    if way in ("host_function", "write_wait"):
        assert (answered >= seen).all()
        assert np.median(answered - seen) < 1000, "the host answers at once"


def test_a_kernel_of_each_stream_is_resident_and_threads_and_streams_submit(gpu: Gpu) -> None:
    assert resident(gpu, 1, 200_000) == 1
    assert resident(gpu, 8, 2_000_000) == 8
    stamps = threads_stamps(gpu, 3, 50)
    assert stamps.shape == (3, 2)
    assert (stamps[:, 1] > stamps[:, 0]).all()
    assert round_robin_ns(gpu, 4, 100) > 0


def test_the_stream_of_high_priority_has_the_highest(gpu: Gpu) -> None:
    from cuda.bindings import driver

    lowest, highest = driver.cuCtxGetStreamPriorityRange()[1:]
    normal, urgent = (gpu.bind(Launch(stream=index)).stream for index in (0, HIGH_PRIORITY_STREAM))  # type: ignore[attr-defined]
    assert [driver.cuStreamGetPriority(stream)[1] for stream in (normal, urgent)] == [lowest, highest]


def test_a_second_process_takes_its_share_of_the_gpu_until_the_case_ends(opened: Gpu) -> None:
    """By time slices: through MPS both processes run at the same time."""

    def kernels_ns() -> int:
        submit = opened.bind(Launch(duration_ns=20_000))
        opened.synchronize()
        began_ns = opened.clock.now_ns()
        submit(500)
        opened.synchronize()
        return opened.clock.now_ns() - began_ns

    with opened.case():
        alone_ns = min(kernels_ns() for _ in range(3))
    with opened.case():
        mps = second_process(opened)
        assert mps.name == "mps"
        beside_ns = min(kernels_ns() for _ in range(3))
    with opened.case():
        after_ns = min(kernels_ns() for _ in range(3))
    assert after_ns < 1.2 * alone_ns
    assert mps.value or beside_ns > 1.3 * alone_ns


@pytest.mark.parametrize("beside", ["priority", "process"])
def test_the_slowest_launches_are_measured_beside(gpu: Gpu, beside: str) -> None:
    meter = Meter(gpu.clock, gpu, limits=SamplingLimits(seconds=0.02))
    yielded = list(discover()["launch_tail"].measure(gpu, meter, launches=8000, beside=beside))
    facts = {item.name: item.value for item in yielded if isinstance(item, Fact)}
    assert {"waits", "preemptions", "interrupts"} <= facts.keys()
    assert ("mps" in facts) == (beside == "process")
    (worst,) = (item for item in yielded if isinstance(item, Measurement) and item.metric == "worst")
    assert min(worst.values) > 0


def test_a_graph_has_the_nodes_it_was_made_of(gpu: Gpu) -> None:
    graph = gpu.graph([Launch(), Memset(64), Launch(duration_ns=1000)])
    assert graph.nodes == 3
    gpu.bind(graph)(5)
    gpu.synchronize()


def test_a_refused_launch_fails_with_the_drivers_error(gpu: Gpu) -> None:
    with pytest.raises(MeasurementError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.bind(Launch(block_threads=2048))(1)


def test_the_sms_count_their_own_clock(gpu: Gpu) -> None:
    clock_hz = gpu.telemetry().sm_clock_begin_hz
    assert clock_hz is not None
    assert 1e8 < clock_hz <= (gpu.info.sm_clock_max_hz or 1e10) * 1.01


def test_a_case_frees_its_memory(opened: Gpu) -> None:
    from cuda.bindings import driver

    def free_bytes() -> int:
        return int(driver.cuMemGetInfo()[1])

    with opened.case():
        opened.bind(Copy("h2d", 64 << 20))(1)
    before = free_bytes()
    with opened.case():
        opened.bind(Copy("h2d", 64 << 20))(1)
        assert free_bytes() < before
    assert free_bytes() == before


CASES = [
    case
    for benchmark in discover().values()
    if benchmark.gpus == 1 and not benchmark.cold and benchmark.name != "launch_layers"
    for case in benchmark.cases("quick")[:3]
    if benchmark.here(Environment(facts=(Fact("numa_nodes", 1),)), case.params) is None
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_gpu_benchmark_yields_the_metrics_that_it_declares(gpu: Gpu, case: Case) -> None:
    benchmark = discover()[case.benchmark]
    meter = Meter(gpu.clock, gpu, limits=SamplingLimits(seconds=0.02))
    yielded = list(benchmark.measure(gpu, meter, **case.params))
    measured = [item for item in yielded if isinstance(item, Measurement)]
    assert measured if benchmark.metrics else yielded
    assert {item.metric for item in measured} <= {metric.name for metric in benchmark.metrics}
    assert all(np.isfinite(item.values).all() for item in measured)

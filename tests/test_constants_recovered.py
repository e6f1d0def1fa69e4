"""Every benchmark gives back the constants of the simulated machine: the method measures what it says."""

import msgspec
import pytest
from fake_session import medians

from microbench.core.bench import discover
from microbench.experiments.graph.kernels import SPIN_NS
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.protocol.gpu import STREAMS_VARIABLE, WAIT_VARIABLE, WaitMode

COSTS = FakeCosts()
OTHER = FakeCosts(
    submit_ns=5100, launch_to_start_ns=4000, flag_to_host_ns=900, host_read_ns=1700, gap_stream_ns=2300,
    gap_graph_ns=800, empty_kernel_ns=320, queue_slots=4000, thread_contention_ns=200,
    completion_ns={"auto": 7000.0, "spin": 6000.0, "yield": 7000.0, "blocking": 90_000.0},
)  # fmt: skip
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])

# A clock reading stands in each stamped time, and %globaltimer and the clock round down.
READING_S = 30e-9
STEP_S = 32e-9


def start_s(costs: FakeCosts) -> float:
    """Before the call -> the host sees the kernel's first act."""
    return (costs.submit_ns + costs.launch_to_start_ns + costs.flag_to_host_ns) * 1e-9


def complete_s(costs: FakeCosts, wait: WaitMode) -> float:
    """The host sees an empty kernel's first act -> the synchronise returns."""
    return (costs.empty_kernel_ns + costs.completion_ns[wait] - costs.flag_to_host_ns) * 1e-9


@each_machine
def test_launch_cost(costs: FakeCosts) -> None:
    figures = medians("launch_cost", costs)
    assert figures["submit"] == pytest.approx(costs.submit_ns * 1e-9, rel=1e-3)
    assert figures["start"] == pytest.approx(start_s(costs), abs=READING_S)
    assert figures["to_kernel"] == pytest.approx(start_s(costs) - costs.flag_to_host_ns * 1e-9, abs=READING_S)
    assert figures["from_kernel"] == pytest.approx(
        costs.completion_ns["auto"] * 1e-9, abs=READING_S + costs.globaltimer_step_ns * 1e-9
    )
    assert figures["complete"] == pytest.approx(complete_s(costs, "auto"), abs=READING_S)
    assert figures["round_trip"] == pytest.approx(figures["start"] + figures["complete"], abs=2e-9)
    assert figures["throughput"] == pytest.approx(costs.submit_ns * 1e-9, rel=0.01)
    assert figures["flag_round_trip"] == pytest.approx((costs.host_read_ns + costs.flag_to_host_ns) * 1e-9, abs=1e-9)
    assert figures["host_read"] == pytest.approx(costs.host_read_ns * 1e-9, abs=1e-9)


@each_machine
@pytest.mark.parametrize("streams", ["one", "two"])
def test_launch_gap(costs: FakeCosts, streams: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STREAMS_VARIABLE, streams)
    figures = medians("launch_gap", costs, kernel="spin", blocks="one", functions="same", launch_streams=streams)
    shorter_ns = costs.one_stream_gap_ns if streams == "one" else 0.0
    for way, gap_ns in (("stream", costs.gap_stream_ns), ("graph", costs.gap_graph_ns)):
        assert figures[way] == pytest.approx((SPIN_NS + gap_ns - shorter_ns) * 1e-9, abs=2e-9)
    assert ("duration" in figures) == (streams == "two")
    if streams == "two":
        assert figures["duration"] == pytest.approx(
            (SPIN_NS + costs.profiler_ns) * 1e-9, abs=costs.globaltimer_step_ns * 1e-9
        )


def test_launch_arguments_has_the_slope_of_a_byte_and_none_of_grid_and_block() -> None:
    smallest = {"argument_bytes": 0, "grid_blocks": 1, "block_threads": 32}
    empty = medians("launch_arguments", **smallest)["submit"]
    full = medians("launch_arguments", **smallest | {"argument_bytes": 4096})["submit"]
    assert (full - empty) / 4096 == pytest.approx(COSTS.submit_argument_ns * 1e-9, rel=0.01)
    for name, value in (("grid_blocks", 65536), ("block_threads", 1024)):
        assert medians("launch_arguments", **smallest | {name: value})["submit"] == pytest.approx(empty)


@each_machine
@pytest.mark.parametrize("argument_bytes", [0, 1024, 4096])
def test_launch_queue_finds_the_depth(costs: FakeCosts, argument_bytes: int) -> None:
    depth = medians("launch_queue", costs, argument_bytes=argument_bytes)["depth"]
    assert depth == costs.queue_depth(argument_bytes + costs.launch_record_bytes)


@each_machine
@pytest.mark.parametrize("duration_ns", [0, 1000, 1500, 1800, 2500, 3000, 5000, 20_000, 100_000])
def test_launch_duration_follows_the_law_of_the_stream(costs: FakeCosts, duration_ns: int) -> None:
    figures = medians("launch_duration", costs, duration_ns=duration_ns)
    runs_ns = max(duration_ns, costs.empty_kernel_ns)
    on_the_gpu_s = (runs_ns + costs.gap_stream_ns) * 1e-9
    assert figures["duration"] == pytest.approx(runs_ns * 1e-9, abs=STEP_S)
    assert figures["gated"] == pytest.approx(on_the_gpu_s, abs=costs.gap_event_ns * 1e-9 / 200 + 1e-9)
    # The burst's start and its last kernel's end are shared out over the 200 launches and more.
    rest_s = (costs.submit_ns + costs.launch_to_start_ns + runs_ns + costs.completion_ns["auto"]) * 1e-9
    slower_s = max(costs.submit_ns * 1e-9, on_the_gpu_s)
    assert slower_s * 0.99 <= figures["period"] <= slower_s + rest_s / 200


def traffic(**params: int | str) -> dict[str, float]:
    return medians("launch_traffic", **{"duration_ns": 0, "argument_bytes": 0} | params)


def test_launch_traffic_checks_itself_against_known_copies_and_an_idle_link() -> None:
    to_gpu, from_gpu, idle = (traffic(work=work) for work in ("pinned_h2d", "pinned_d2h", "idle"))
    assert (to_gpu["received_per_byte"], to_gpu["sent_per_byte"]) == pytest.approx((276 / 256, 24 / 256), rel=1e-3)
    assert from_gpu["sent_per_byte"] == pytest.approx(280 / 256, rel=1e-3)
    rates = COSTS.idle_traffic_per_s
    assert (idle["idle_received"], idle["idle_sent"]) == pytest.approx((rates.received, rates.sent), rel=0.01)


def waited_s(costs: FakeCosts, wait: WaitMode, duration_ns: int, recorded_ns: float = 0.0) -> float:
    """The end of a kernel of that length -> the wait for it returns; a blocking one depends on how long it slept."""
    slept_ns = costs.launch_to_start_ns + max(duration_ns, costs.empty_kernel_ns) - recorded_ns - costs.timer_call_ns
    growth_ns = costs.wake_growth * slept_ns**0.5 if wait == "blocking" else 0.0
    return (costs.completion_ns[wait] + growth_ns) * 1e-9


@each_machine
@pytest.mark.parametrize("duration_ns", [0, 30_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("wait", ["spin", "yield", "blocking"])
def test_a_wait_is_counted_from_the_end_of_the_kernel(costs: FakeCosts, wait: WaitMode, duration_ns: int) -> None:
    figures = medians("launch_sync", costs, wait=wait, duration_ns=duration_ns)
    expected = pytest.approx(waited_s(costs, wait, duration_ns), abs=READING_S + STEP_S)
    assert figures["from_kernel"] == expected
    assert ("record" in figures) == (duration_ns == 0)


def test_an_event_that_blocks_does_so_in_a_context_that_spins() -> None:
    benchmark = discover()["launch_sync"]
    (case,) = benchmark.cases("default", {"wait": ("blocking_event",), "duration_ns": (1_000_000,)})
    assert benchmark.process_environment(case) == {WAIT_VARIABLE: "spin"}
    figures = medians("launch_sync", COSTS, **case.params)
    expected_s = waited_s(COSTS, "blocking", 1_000_000, COSTS.untimed_record_ns)
    assert figures == {"from_kernel": pytest.approx(expected_s, abs=READING_S + STEP_S)}


def test_host_timer() -> None:
    figures = medians("host_timer")
    assert figures["call"] == pytest.approx(COSTS.timer_call_ns * 1e-9)
    coarse = medians("host_timer", msgspec.structs.replace(COSTS, timer_step_ns=100))
    assert coarse["call"] == pytest.approx(COSTS.timer_call_ns * 1e-9, rel=0.01)
    assert coarse["step"] == pytest.approx(100e-9)

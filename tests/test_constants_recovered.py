"""Every benchmark gives back the constants of the simulated machine: the method measures what it says."""

import msgspec
import pytest
from fake_session import facts, medians

from microbench.core.bench import discover
from microbench.experiments.graph.kernels import SPIN_NS
from microbench.gpu.fake.costs import FakeCosts, RecorderCosts, Traffic
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


RECORDERS = [RecorderCosts(), RecorderCosts(700.0, 4100.0, 900.0, 1200.0, 500.0, 90.0, 300.0)]


@pytest.mark.parametrize("recorder", RECORDERS, ids=["default", "other"])
def test_launch_watched(recorder: RecorderCosts) -> None:
    costs = msgspec.structs.replace(COSTS, recorder=recorder)
    nodes = {"node": recorder.node_ns + recorder.left_node_ns, "node_left": recorder.left_node_ns}
    for records, known_ns in {
        "cupti": {"call": recorder.kernel_ns} | nodes,
        "torch": {"call": recorder.call_ns, "operator": recorder.operator_ns} | nodes,
        "torch_stack": {"function": recorder.function_ns},
        "watch": {"call": recorder.watch_ns} | nodes,
    }.items():
        figures = medians("launch_watched", costs, records=records)
        assert figures == pytest.approx({name: each_ns * 1e-9 for name, each_ns in known_ns.items()}, rel=1e-3)
        models = {name: fact.value for name, fact in facts("launch_watched", costs, records=records).items()}
        per_record = [name for name in known_ns if name not in nodes] if records != "cupti" else []
        assert models == pytest.approx(
            {f"{name}_{model}": known_ns[name] * 1e-9 for name in per_record for model in costs.models}, rel=1e-3
        )


@pytest.mark.parametrize("layer", COSTS.layers)
def test_launch_layers(layer: str) -> None:
    one_op = layer in ("cupy_ufunc", "torch_eager", "torch_out", "jax_jit")
    arguments = 1 if one_op else 4
    figures = medians("launch_layers", family="one_op" if one_op else "same_kernel", layer=layer, arguments=arguments)
    call_ns = COSTS.layers[layer].call_ns + arguments * COSTS.layers[layer].argument_ns
    assert figures["submit"] == pytest.approx(call_ns * 1e-9, rel=2e-3)
    rest_ns = COSTS.launch_to_start_ns + COSTS.empty_kernel_ns + COSTS.completion_ns["auto"]
    assert figures["round_trip"] == pytest.approx((call_ns + rest_ns) * 1e-9, abs=READING_S)


@pytest.mark.parametrize("kind", ["launch_ex", "cooperative", "cluster", "pdl", "default_stream"])
def test_launch_kind(kind: str) -> None:
    figures = medians("launch_kind", kind=kind)
    more_ns = COSTS.kind_submit_ns.get(kind, COSTS.legacy_stream_submit_ns)
    assert figures["submit"] == pytest.approx((COSTS.submit_ns + more_ns) * 1e-9, rel=1e-3)
    assert figures["gap"] == pytest.approx((COSTS.gap_stream_ns + COSTS.kind_gap_ns.get(kind, 0)) * 1e-9, abs=1e-9)
    own = medians("launch_kind", kind="own_stream")
    assert own["submit"] == pytest.approx(COSTS.submit_ns * 1e-9, rel=1e-3)


@pytest.mark.parametrize("streams", [1, 8, 128])
def test_launch_streams(streams: int) -> None:
    figures = medians("launch_streams", streams=streams)
    assert figures["rate"] == pytest.approx(1e9 / COSTS.submit_ns, rel=0.02)
    assert figures["resident"] == min(streams, COSTS.resident_kernels)


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


@pytest.mark.parametrize(("params", "expected"), [
    ({"work": "launch"}, Traffic(1800, 300)),
    ({"work": "launch", "duration_ns": 50_000}, Traffic(1800, 300)),
    ({"work": "launch", "argument_bytes": 4096}, Traffic(1800 + 1.1 * 4096, 300)),
    ({"work": "graph_1"}, Traffic(251, 150)), ({"work": "graph_1000"}, Traffic(1250, 200)),
    ({"work": "memset"}, Traffic(200, 95)), ({"work": "copy_h2d"}, Traffic(250 + 69, 115 + 6)),
    ({"work": "copy_d2h"}, Traffic(200, 110 + 70)), ({"work": "record"}, Traffic(180, 155)),
], ids=str)  # fmt: skip
def test_launch_traffic(params: dict[str, int | str], expected: Traffic) -> None:
    figures = traffic(**params)
    assert (figures["received"], figures["sent"]) == pytest.approx((expected.received, expected.sent), rel=0.01)


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


@each_machine
@pytest.mark.parametrize("wait", ["spin", "yield", "blocking"])
def test_calls_around_events(costs: FakeCosts, wait: WaitMode) -> None:
    figures = medians("launch_sync", costs, wait=wait, duration_ns=0)
    expected_ns = {
        "idle_stream": costs.idle_stream_ns, "idle_event": costs.idle_event_ns, "record": costs.timed_record_ns,
        "query": costs.query_ns, "wait_event": costs.wait_event_ns,
    }  # fmt: skip
    for name, cost_ns in expected_ns.items():
        assert figures[name] == pytest.approx(cost_ns * 1e-9, rel=2e-3), name


@each_machine
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_launch_threads(costs: FakeCosts, threads: int) -> None:
    figures = medians("launch_threads", costs, threads=threads)
    submit_s = (costs.submit_ns + (threads - 1) * costs.thread_contention_ns) * 1e-9
    assert figures["submit"] == pytest.approx(submit_s, rel=1e-3)
    assert figures["rate"] == pytest.approx(threads / submit_s, rel=1e-3)


def test_first_acts_calls_and_hand_offs_are_each_a_figure() -> None:
    for benchmark, axis, metric, costs_s in (
        ("launch_cold", "what", "seconds", COSTS.cold_s),
        ("host_call", "how", "call", {how: cost_ns * 1e-9 for how, cost_ns in COSTS.host_call_ns.items()}),
        ("host_wakeup", "how", "round_trip", {how: cost_ns * 1e-9 for how, cost_ns in COSTS.host_wakeup_ns.items()}),
    ):
        assert set(discover()[benchmark].axes[axis].full) == set(costs_s)
        for value, cost_s in costs_s.items():
            assert medians(benchmark, **{axis: value})[metric] == pytest.approx(cost_s), value


def test_host_timer() -> None:
    figures = medians("host_timer")
    assert figures["call"] == pytest.approx(COSTS.timer_call_ns * 1e-9)
    coarse = medians("host_timer", msgspec.structs.replace(COSTS, timer_step_ns=100))
    assert coarse["call"] == pytest.approx(COSTS.timer_call_ns * 1e-9, rel=0.01)
    assert coarse["step"] == pytest.approx(100e-9)


def test_host_memory_counts_bytes_read_and_written() -> None:
    one, together = (medians("host_memory", threads=threads, size_bytes=1 << 30) for threads in ("one", "all"))
    assert one["rate"] == pytest.approx(2 * COSTS.host_core_bytes_per_s, rel=1e-3)
    assert together["rate"] == pytest.approx(2 * COSTS.host_memory_bytes_per_s, rel=1e-3)

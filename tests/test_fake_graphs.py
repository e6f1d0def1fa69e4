"""Graphs of the simulated GPU: lives, changes, chains, branches, iterations, steps, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
import numpy as np
import pytest
from fake_session import run_case
from hypothesis import given, settings
from hypothesis import strategies as st

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Case
from microbench.core.ops import Copy, Launch, LayerCall, Memset, Op, Query, Record, SynchronizeIdle
from microbench.gpu.fake.costs import FakeCosts, GraphCosts, NodeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.fake.graphs import dependencies, schedule
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.graphs import AllocationWay, Change, ChangeWay, Decider, Life, Made, NodeKind, Shape
from microbench.gpu.protocol.submit import Submit
from microbench.measure.sampling import NANOSECOND_S
from microbench.run.messages import Refused
from microbench.run.worker import guarded

COSTS = FakeCosts()
GRAPHS = COSTS.graphs
MIB = 1 << 20
REST_NS = COSTS.launch_to_start_ns + COSTS.completion_ns["auto"]


def exact(costs: FakeCosts = COSTS) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def step_ns(submit: Submit, calls: int = 1) -> float:
    """Calls and a synchronise, less the reading of the clock: the second time, as the first may be dearer."""
    out_ns = np.zeros(2, dtype=np.int64)
    submit.round_trips(out_ns, calls)
    return float(out_ns[1]) - COSTS.timer_call_ns


# -- lives and changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", get_args(Made))
@pytest.mark.parametrize("spread", [0, 0.02])
def test_a_lifes_stamps_never_run_backwards(made: Made, spread: float) -> None:
    gpu = open_fake(spread=spread)
    stamps = gpu.graphs.lives(300, 20, made)
    assert stamps.shape == (20, len(Life))
    assert (np.diff(stamps.ravel()) >= 0).all()


def test_a_built_graph_is_uploaded_by_its_first_launch() -> None:
    nodes = 200
    (built,), (captured,) = (exact().graphs.lives(nodes, 1, made) for made in get_args(Made)[::-1])
    assert built[Life.READY] == built[Life.UPLOADED] == built[Life.INSTANTIATED]
    assert captured[Life.READY] > captured[Life.UPLOADED] > captured[Life.INSTANTIATED]
    calls_ns = [life[Life.CALLED] - life[Life.READY] for life in (built, captured)]
    assert calls_ns[0] - calls_ns[1] == pytest.approx(GRAPHS.upload.at(nodes), abs=2)
    replays_ns = [life[Life.DONE] - life[Life.READY] for life in (built, captured)]
    upload_ns = GRAPHS.upload.at(nodes) + GRAPHS.upload_on_gpu.at(nodes)
    assert replays_ns[0] - replays_ns[1] == pytest.approx(upload_ns, abs=2)


def test_an_upload_ends_on_the_gpu_after_its_call() -> None:
    (life,) = exact().graphs.lives(50, 1, "capture")
    behind_ns = life[Life.READY] - life[Life.UPLOADED]
    assert behind_ns == pytest.approx(GRAPHS.upload_on_gpu.at(50) + REST_NS, abs=COSTS.timer_call_ns + 2)


@pytest.mark.parametrize("way", get_args(ChangeWay))
def test_only_the_first_replay_pays_for_a_change(way: ChangeWay) -> None:
    stamps = exact().graphs.changes(way, 100, 100, 3)
    assert stamps.shape == (3, len(Change))
    assert (np.diff(stamps.ravel()) >= 0).all()
    assert (stamps[1:] - stamps[1:, :1] == stamps[:-1] - stamps[:-1, :1]).all(), "each change is like the one before"
    (change, *_) = stamps
    next_ns, later_ns = (
        change[Change.CALLED] - change[Change.CHANGED],
        change[Change.AGAIN_CALLED] - change[Change.AGAIN],
    )
    extra_ns = GRAPHS.upload.at(100) if way == "rebuild" else 100 * GRAPHS.changed_launch_ns
    assert next_ns - later_ns == pytest.approx(extra_ns, abs=2)
    captures = way in ("exec_update", "rebuild")
    assert (change[Change.RECORDED] > change[Change.BEGIN]) == captures
    assert (change[Change.DISPOSED] > change[Change.AGAIN_DONE]) == captures


def test_as_many_nodes_change_as_there_are() -> None:
    with pytest.raises(MeasurementError, match="11 of 10 nodes"):
        exact().graphs.changes("set_params", 10, 11, 1)


def test_a_refused_update_names_the_drivers_reason_and_other_ways_still_work() -> None:
    gpu = exact(FakeCosts(refuses_updates=True))
    with pytest.raises(MeasurementError, match="refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"):
        gpu.graphs.changes("exec_update", 10, 10, 1)
    for way in ("set_params", "set_grid", "rebuild"):
        assert gpu.graphs.changes(way, 10, 10, 1).all()  # type: ignore[arg-type]
    with pytest.raises(Skip, match="CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"):
        gpu.graphs.chain("kernel", 5).update_ns()


def test_a_refused_update_is_a_failed_case_in_the_drivers_words() -> None:
    case = Case("graph_update", {"changed_nodes": 10, "nodes": 10, "way": "exec_update"})
    found = guarded(lambda: run_case(discover()["graph_update"], case, FakeCosts(refuses_updates=True)))
    assert isinstance(found, Refused)
    assert (found.status, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" in found.reason) == ("failed", True)


# -- capture -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "called"),
    [
        (Query(), "cuEventQuery"),
        (SynchronizeIdle("stream"), "cuStreamSynchronize"),
        (SynchronizeIdle("event"), "cuEventSynchronize"),
    ],
    ids=str,
)
def test_a_capture_broken_by_a_forbidden_call_leaves_the_next_one_whole(op: Op, called: str) -> None:
    gpu = exact()
    with pytest.raises(MeasurementError, match=f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {called}"):
        gpu.graph([Launch(), op, Launch()])
    assert gpu.graph([Launch(), Launch()]).nodes == 2


def test_what_is_captured_runs_one_after_the_other() -> None:
    gpu = exact()
    nodes = GRAPHS.nodes
    chain: list[Op] = [Launch(duration_ns=2000), Memset(4), Copy("h2d", 4), Launch(kind="pdl")]
    gaps_ns = 3 * COSTS.gap_graph_ns + sum(nodes[kind].gap_ns for kind in ("memset", "copy_h2d", "pdl"))
    runs_ns = 2000 + 2 * COSTS.empty_kernel_ns + COSTS.copy_fixed_ns
    call_ns = COSTS.graph_submit_ns + 4 * COSTS.graph_node_submit_ns
    call_ns += nodes["memset"].launch_ns + nodes["copy_h2d"].launch_ns
    assert step_ns(gpu.bind(gpu.graph(chain))) == pytest.approx(call_ns + gaps_ns + runs_ns + REST_NS, abs=2)


@pytest.mark.parametrize("layer", ["loop", "cuda_core", "cupy_raw", "numba_configured"])
@pytest.mark.parametrize("duration_ns", [None, 0, 3000])
def test_a_layer_captures_its_calls_and_replays_them(layer: str, duration_ns: int | None) -> None:
    gpu = exact()
    call = LayerCall(layer, duration_ns=duration_ns)
    graph = gpu.graph([call] * 10)
    assert (graph.nodes, graph.layer) == (10, layer)
    gpu.synchronize()
    call_ns = gpu.bind(graph).burst_ns(20) / 20
    expected_ns = COSTS.graph_submit_ns + 10 * COSTS.graph_node_submit_ns + COSTS.layers[layer].replay_ns
    assert call_ns == pytest.approx(expected_ns, abs=2)
    runs_ns = 10 * max(duration_ns or 0, COSTS.empty_kernel_ns) + 9 * COSTS.gap_graph_ns
    assert step_ns(gpu.bind(graph)) == pytest.approx(expected_ns + runs_ns + REST_NS, abs=2)


def test_calls_of_a_layer_cost_what_they_do_with_the_length_as_an_argument() -> None:
    gpu = exact()
    layer = COSTS.layers["cupy_raw"]
    for op, arguments in ((LayerCall("cupy_raw", duration_ns=0), 0), (LayerCall("cupy_raw", duration_ns=500), 1)):
        gpu.synchronize()
        expected_ns = layer.call_ns + arguments * layer.argument_ns
        assert gpu.bind(op).burst_ns(50) / 50 == pytest.approx(expected_ns, abs=1)


def test_a_graph_is_of_one_layer() -> None:
    with pytest.raises(MeasurementError, match="one layer"):
        exact().graph([LayerCall("cupy_raw"), LayerCall("cuda_core")])
    with pytest.raises(MeasurementError, match="one layer"):
        exact().graph([LayerCall("cupy_raw"), Launch()])
    with pytest.raises(Skip, match="no layer warp"):
        exact().graph([LayerCall("warp", duration_ns=0)])


# -- chains ------------------------------------------------------------------------------------------------------


def test_every_kind_of_node_is_simulated_and_checked_in_words_that_say_so() -> None:
    gpu = exact()
    graph_only = {"child", "empty", "if_taken", "if_skipped"}
    kernels = {kind for kind in get_args(NodeKind) if kind.startswith("kernel") or kind.endswith("_prologue")}
    assert set(GRAPHS.nodes) == set(get_args(NodeKind)) - kernels, "kernels are what is compared with"
    for kind in get_args(NodeKind):
        chain = gpu.graphs.chain(kind, 20)
        assert (chain.stream is None) == (kind in graph_only), kind
        assert "SIMULATED" in chain.check()
        chain.graph(2)
        if chain.stream is not None:
            chain.stream(20)
        gpu.synchronize()


def test_a_conditional_node_cannot_be_updated() -> None:
    chain = exact().graphs.chain("if_taken", 5)
    with pytest.raises(Skip, match=r"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE \(ERROR_NOT_SUPPORTED\)"):
        chain.update_ns()
    chain.check()


def stream_ns(gpu: Gpu, kind: NodeKind) -> float:
    """GPU time of a call of that kind in a stream, behind others of its kind."""
    stream = gpu.graphs.chain(kind, 1).stream
    assert stream is not None
    gate, events = gpu.gate(), gpu.events()
    gate.shut()
    events.start()
    stream(100)
    events.stop()
    gate.open()
    return (events.elapsed_s() / NANOSECOND_S - COSTS.gap_event_ns) / 100


def test_an_early_trigger_shortens_the_gap_in_a_stream() -> None:
    gpu, plain_ns = exact(), COSTS.gap_stream_ns + GRAPHS.dependent_kernel_ns
    assert stream_ns(gpu, "kernel") == pytest.approx(plain_ns, abs=1)
    assert stream_ns(gpu, "pdl") == pytest.approx(plain_ns + COSTS.kind_gap_ns["pdl"], abs=1)
    assert stream_ns(gpu, "pdl_trigger") - stream_ns(gpu, "pdl") == pytest.approx(GRAPHS.trigger_gap_ns, abs=1)


def test_a_prologue_hides_under_the_kernel_in_front_only_behind_an_early_trigger() -> None:
    gpu = exact()
    kinds: tuple[NodeKind, ...] = ("kernel", "pdl", "pdl_trigger")
    for kind, seen_ns in zip(kinds, (GRAPHS.prologue_ns, GRAPHS.prologue_ns, 0), strict=True):
        longer: NodeKind = f"{kind}_prologue"  # type: ignore[assignment]
        assert stream_ns(gpu, longer) - stream_ns(gpu, kind) == pytest.approx(seen_ns, abs=1)
        periods_ns = [
            (step_ns(gpu.graphs.chain(one, 31).graph) - step_ns(gpu.graphs.chain(one, 11).graph)) / 20
            for one in (kind, longer)
        ]
        assert periods_ns[1] - periods_ns[0] == pytest.approx(seen_ns, abs=1)


def test_nodes_that_the_host_submits_keep_it_at_each_replay() -> None:
    gpu = exact()
    calls_ns = {}
    for kind in get_args(NodeKind):
        submit = gpu.graphs.chain(kind, 220).graph
        gpu.synchronize()
        calls_ns[kind] = submit.burst_ns(10) / 10
    dear = {kind for kind, call_ns in calls_ns.items() if call_ns > 10 * calls_ns["kernel_empty"]}
    assert dear == {"memset", "copy_h2d", "copy_d2h", "copy_d2d", "host", "event_record", "event_wait"}


# -- what an older driver or GPU has not -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "use", "words"),
    [
        (12020, lambda g: g.chain("if_taken", 1), "conditional nodes need a driver of CUDA 12.4; this one has 12.2"),
        (12030, lambda g: g.chain("if_skipped", 1), "conditional nodes need a driver of CUDA 12.4; this one has 12.3"),
        (12030, lambda g: g.loop("while"), "conditional nodes need a driver of CUDA 12.4; this one has 12.3"),
        (12020, lambda g: g.chain("pdl", 1), "programmatic edges need a driver of CUDA 12.3; this one has 12.2"),
        (11080, lambda g: g.loop("tail_launch"), "from the device need a driver of CUDA 12.0; this one has 11.8"),
    ],
)
def test_an_old_driver_is_a_skip_that_names_the_version(
    version: int, use: Callable[[object], object], words: str
) -> None:
    with pytest.raises(Skip, match=words):
        use(exact(FakeCosts(cuda_driver_version=version)).graphs)


def test_a_kernel_with_a_prologue_needs_no_new_gpu() -> None:
    exact(FakeCosts(compute_capability=(7, 0), cuda_driver_version=11080)).graphs.chain("kernel_prologue", 2)


@pytest.mark.parametrize("kind", ["pdl", "pdl_trigger", "pdl_prologue", "pdl_trigger_prologue"])
def test_an_old_gpu_is_a_skip_that_names_the_capability(kind: NodeKind) -> None:
    gpu = exact(FakeCosts(compute_capability=(8, 0)))
    assert gpu.info.compute_capability == (8, 0)
    with pytest.raises(Skip, match=r"dependent launch needs compute capability 9\.0; this GPU has 8\.0"):
        gpu.graphs.chain(kind, 1)


def test_a_driver_that_is_just_new_enough_has_all() -> None:
    graphs = exact(FakeCosts(cuda_driver_version=12040)).graphs
    for kind in get_args(NodeKind):
        graphs.chain(kind, 2)
    for decider in get_args(Decider):
        graphs.loop(decider).run_ns(2)


# -- branches ----------------------------------------------------------------------------------------------------


def test_dependencies_of_a_small_fork() -> None:
    assert dependencies(Shape(2, 2, True, 0)) == [(), (0,), (1,), (0,), (3,), (2, 4)]
    assert dependencies(Shape(1, 3, False, 0)) == [(), (0,), (1,)]
    assert dependencies(Shape(3, 1, False, 0)) == [(), (), ()]


def test_a_chain_runs_as_a_captured_chain_does() -> None:
    gpu = exact()
    shaped = gpu.graphs.shape(Shape(1, 64, False, 5000))
    captured = gpu.bind(gpu.graph([Launch(duration_ns=5000)] * 64))
    assert step_ns(shaped.graph) == pytest.approx(step_ns(captured), abs=1)


def test_independent_kernels_start_as_fast_as_the_front_end_can() -> None:
    starts_ns = schedule(dependencies(Shape(64, 1, False, 0)), 5000, COSTS)
    assert starts_ns.tolist() == [COSTS.front_end_ns * node for node in range(64)]


def test_a_full_gpu_starts_a_kernel_when_another_ends() -> None:
    costs = FakeCosts(resident_kernels=4, front_end_ns=10)
    starts_ns = schedule(dependencies(Shape(12, 1, False, 0)), 1000, costs)
    assert starts_ns.tolist() == [wave * 1000 + 10 * place for wave in range(3) for place in range(4)]


def test_a_fork_begins_and_ends_behind_its_gaps() -> None:
    branches, length, runs_ns = 4, 3, 2000.0
    starts_ns = schedule(dependencies(Shape(branches, length, True, 0)), runs_ns, COSTS)
    period_ns, late_ns = runs_ns + COSTS.gap_graph_ns, (branches - 1) * COSTS.front_end_ns
    assert starts_ns[-1] == pytest.approx((length + 1) * period_ns + late_ns)
    firsts_ns = starts_ns[1 : 1 + branches * length : length]
    assert firsts_ns.tolist() == [period_ns + COSTS.front_end_ns * branch for branch in range(branches)]


@settings(max_examples=60, deadline=None)
@given(
    branches=st.integers(1, 20),
    length=st.integers(1, 6),
    joined=st.booleans(),
    runs_ns=st.integers(1, 5000),
    front_end_ns=st.integers(1, 2000),
    gap_ns=st.integers(0, 2000),
    resident=st.integers(1, 8),
)
def test_any_schedule_keeps_the_edges_the_front_end_and_the_room(
    branches: int, length: int, joined: bool, runs_ns: int, front_end_ns: int, gap_ns: int, resident: int
) -> None:
    costs = FakeCosts(front_end_ns=front_end_ns, gap_graph_ns=gap_ns, resident_kernels=resident)
    before = dependencies(Shape(branches, length, joined, runs_ns))
    starts_ns = schedule(before, runs_ns, costs)
    assert len(starts_ns) == Shape(branches, length, joined, runs_ns).kernels
    for node, those in enumerate(before):
        assert all(starts_ns[node] >= starts_ns[other] + runs_ns + gap_ns for other in those)
    ordered_ns = np.sort(starts_ns)
    assert (np.diff(ordered_ns) >= front_end_ns).all()
    assert (ordered_ns[resident:] >= ordered_ns[:-resident] + runs_ns).all()
    # Nobody waits without a reason: each start is held by an edge, by the front end or by a kernel that ended then.
    for node, start_ns in enumerate(starts_ns):
        reasons = {0.0} | {starts_ns[other] + runs_ns + gap_ns for other in before[node]}
        reasons |= set(starts_ns + front_end_ns) | set(starts_ns + runs_ns)
        assert start_ns in reasons


def test_streams_part_and_meet_by_events() -> None:
    gpu = exact()
    shaped = gpu.graphs.shape(Shape(4, 2, True, 100_000))
    assert "SIMULATED" in shaped.check()
    calls_ns = 10 * COSTS.submit_ns + 4 * COSTS.untimed_record_ns + 6 * COSTS.wait_event_ns
    assert step_ns(shaped.streams) > 4 * 100_000, "the first, two in a row, the last"
    assert step_ns(shaped.streams) < 4 * 100_000 + calls_ns + 4 * COSTS.gap_stream_ns + REST_NS
    gpu.synchronize()
    assert shaped.streams.burst_ns(3) / 3 == pytest.approx(calls_ns, abs=COSTS.timer_call_ns)


def test_kernels_that_come_before_those_they_depend_on_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = exact()
    monkeypatch.setattr("microbench.gpu.fake.graphs.Wait", lambda stream, other: Record(timed=False, stream=stream))
    shaped = gpu.graphs.shape(Shape(4, 2, True, 100_000))
    with pytest.raises(MeasurementError, match="streams: kernel 3 came before"):
        shaped.check()


def test_a_round_trip_on_several_streams_waits_for_all() -> None:
    shaped = exact().graphs.shape(Shape(8, 1, False, 1_000_000))
    took_ns = step_ns(shaped.streams)
    assert took_ns == pytest.approx(8 * COSTS.submit_ns + 1_000_000 + REST_NS, abs=COSTS.timer_call_ns)
    assert shaped.streams.queue_slots is not None
    stamps = np.zeros(5, dtype=np.int64)
    shaped.streams.stamps(stamps)
    assert (np.diff(stamps) >= 8 * COSTS.submit_ns).all()


# -- iterations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decider", get_args(Decider))
def test_iterations_cost_the_same_each(decider: Decider) -> None:
    loop = exact().graphs.loop(decider)
    times_ns = np.array([loop.run_ns(count) for count in (1, 11, 21)])
    assert np.diff(times_ns)[0] == pytest.approx(np.diff(times_ns)[1], abs=2)


def test_a_poll_is_over_before_a_synchronise() -> None:
    graphs = exact().graphs
    saved_ns = graphs.loop("host_sync").run_ns(100) - graphs.loop("host_poll").run_ns(100)
    assert saved_ns / 100 == pytest.approx(COSTS.completion_ns["auto"] - COSTS.flag_to_host_ns, abs=1)


# -- allocation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "held_bytes"),
    [
        ("graph_nodes", 4 * MIB),
        ("graph_outside", 3 * MIB),
        ("stream_kept", 4 * MIB),
        ("stream_released", 0),
        ("stream_outside", 3 * MIB),
    ],
)
def test_what_a_step_holds_between_steps(way: AllocationWay, held_bytes: int) -> None:
    step = exact().graphs.step(way, 3 * MIB, 5)
    assert "SIMULATED" in step.check()
    assert step.held_bytes() == held_bytes


def test_a_pool_that_releases_pays_for_its_pages_once_a_step() -> None:
    graphs = exact().graphs
    for pairs in (1, 7):
        steps = {way: graphs.step(way, 64 * MIB, pairs) for way in ("stream_kept", "stream_released")}  # type: ignore[arg-type]
        for step in steps.values():
            step.check()
        times_ns = {way: step_ns(step.submit) for way, step in steps.items()}
        pages_ns = 32 * (GRAPHS.map_page_ns + GRAPHS.release_page_ns)
        assert times_ns["stream_released"] - times_ns["stream_kept"] == pytest.approx(pages_ns, abs=2)


def test_a_pool_goes_with_its_case() -> None:
    gpu = exact()
    with gpu.case():
        gpu.graphs.step("stream_released", 64 * MIB, 1).submit(1)
    began_ns = gpu.clock.now_ns()
    gpu.synchronize()
    assert gpu.clock.now_ns() - began_ns < 5000


# -- the life of a case ------------------------------------------------------------------------------------------


def test_what_was_made_of_graphs_in_a_case_is_of_no_use_afterwards() -> None:
    gpu = exact()
    with gpu.case():
        graphs = gpu.graphs
        chain, loop = graphs.chain("kernel", 3), graphs.loop("while")
        shaped, step = graphs.shape(Shape(2, 2, True, 0)), graphs.step("stream_kept", MIB, 1)
    uses: list[Callable[[], object]] = [
        lambda: graphs.lives(1, 1, "capture"),
        chain.check,
        chain.instantiate_ns,
        lambda: chain.graph(1),
        lambda: loop.run_ns(1),
        lambda: shaped.streams(1),
        shaped.check,
        step.check,
    ]
    for use in uses:
        with pytest.raises(MeasurementError, match="case that has ended"):
            use()


def test_costs_that_are_asked_for_are_the_ones_that_are_paid() -> None:
    nodes = {**GRAPHS.nodes, "empty": NodeCosts(gap_ns=1000, duration_ns=2000)}
    costs = msgspec.structs.replace(COSTS, graphs=msgspec.structs.replace(GRAPHS, nodes=nodes))
    assert isinstance(costs.graphs, GraphCosts)
    chain = exact(costs).graphs.chain("empty", 11)
    expected_ns = 10 * (COSTS.gap_graph_ns + 1000) + 11 * 2000
    call_ns = COSTS.graph_submit_ns + 11 * COSTS.graph_node_submit_ns
    assert step_ns(chain.graph) == pytest.approx(call_ns + expected_ns + REST_NS, abs=2)

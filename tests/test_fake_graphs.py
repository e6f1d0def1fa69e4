"""Graphs of the simulated GPU: what is captured, what a driver refuses, when kernels of branches start."""

from typing import get_args

import numpy as np
import pytest
from fake_session import exact, run_case
from hypothesis import given, settings
from hypothesis import strategies as st

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Case
from microbench.core.ops import Copy, Launch, LayerCall, Memset, Op, Query, SynchronizeIdle
from microbench.experiments.graph.allocation import allocating_step
from microbench.experiments.graph.chains import Shape, dependencies, schedule
from microbench.experiments.graph.lives import Change, ChangeWay, Made, graph_changes, graph_lives
from microbench.experiments.graph.nodes import Decider, NodeKind, decided_loop, node_chain
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import Submit
from microbench.session.messages import Refused
from microbench.session.worker import guarded

COSTS = FakeCosts()
GRAPHS = COSTS.graphs
MIB = 1 << 20
REST_NS = COSTS.launch_to_start_ns + COSTS.completion_ns["auto"]


def step_ns(submit: Submit) -> float:
    """A call and a synchronise, less the reading of the clock: the second time, as the first may cost more."""
    out_ns = np.zeros(2, dtype=np.int64)
    submit.round_trips(out_ns)
    return float(out_ns[1]) - COSTS.timer_call_ns


@pytest.mark.parametrize("spread", [0, 0.02])
def test_stamps_of_lives_and_changes_never_run_backwards(spread: float) -> None:
    gpu = open_fake(spread=spread)
    for made in get_args(Made):
        assert (np.diff(graph_lives(gpu, 300, 20, made).ravel()) >= 0).all()
    for way in get_args(ChangeWay):
        assert (np.diff(graph_changes(gpu, way, 100, 100, 3).ravel()) >= 0).all()


def test_each_change_is_like_the_one_before() -> None:
    for way in get_args(ChangeWay):
        stamps = graph_changes(exact(), way, 100, 100, 3)
        assert stamps.shape == (3, len(Change))
        assert (stamps[1:] - stamps[1:, :1] == stamps[:-1] - stamps[:-1, :1]).all()
    with pytest.raises(MeasurementError, match="11 of 10 nodes"):
        graph_changes(exact(), "set_params", 10, 11, 1)


def test_a_refused_update_names_the_drivers_reason_and_other_ways_still_work() -> None:
    refusing = FakeCosts(refuses_updates=True)
    gpu = exact(refusing)
    with pytest.raises(Skip, match="CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"):
        node_chain(gpu, "kernel", 5).update_ns()
    assert graph_changes(gpu, "rebuild", 10, 10, 1).all()
    with pytest.raises(Skip, match=r"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE \(ERROR_NOT_SUPPORTED\)"):
        node_chain(exact(), "if_taken", 5).update_ns()
    case = Case("graph_update", {"changed_nodes": 10, "nodes": 10, "way": "exec_update"})
    outcome = guarded(lambda: run_case(discover()["graph_update"], case, refusing))
    assert isinstance(outcome, Refused)
    assert (outcome.status, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" in outcome.reason) == ("failed", True)


@pytest.mark.parametrize(("op", "called"), [
    (Query(), "cuEventQuery"),
    (SynchronizeIdle("stream"), "cuStreamSynchronize"),
    (SynchronizeIdle("event"), "cuEventSynchronize"),
], ids=str)  # fmt: skip
def test_a_capture_broken_by_a_forbidden_call_leaves_the_next_one_whole(op: Op, called: str) -> None:
    gpu = exact()
    with pytest.raises(MeasurementError, match=f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {called}"):
        gpu.graph([Launch(), op, Launch()])
    assert gpu.graph([Launch(), Launch()]).nodes == 2


def test_what_is_captured_runs_one_after_the_other() -> None:
    gpu, nodes = exact(), GRAPHS.nodes
    chain: list[Op] = [Launch(duration_ns=2000), Memset(4), Copy("h2d", 4), Launch(kind="pdl")]
    gaps_ns = 3 * COSTS.gap_graph_ns + sum(nodes[kind].gap_ns for kind in ("memset", "copy_h2d", "pdl"))
    runs_ns = 2000 + 2 * COSTS.empty_kernel_ns + COSTS.copy_fixed_ns
    call_ns = COSTS.graph_submit_ns + 4 * COSTS.graph_node_submit_ns
    call_ns += nodes["memset"].launch_ns + nodes["copy_h2d"].launch_ns
    assert step_ns(gpu.bind(gpu.graph(chain))) == pytest.approx(call_ns + gaps_ns + runs_ns + REST_NS, abs=2)


def test_a_graph_is_of_one_layer() -> None:
    with pytest.raises(MeasurementError, match="one layer"):
        exact().graph([LayerCall("cupy_raw"), LayerCall("cuda_core")])
    with pytest.raises(MeasurementError, match="one layer"):
        exact().graph([LayerCall("cupy_raw"), Launch()])
    with pytest.raises(Skip, match="no layer warp"):
        exact().graph([LayerCall("warp", duration_ns=0)])


def test_a_driver_that_is_just_new_enough_has_every_kind_of_node_and_decider() -> None:
    gpu = exact(FakeCosts(cuda_driver_version=12040))
    kernels = {kind for kind in get_args(NodeKind) if kind.startswith("kernel") or kind.endswith("_prologue")}
    assert set(GRAPHS.nodes) == set(get_args(NodeKind)) - kernels, "kernels are the reference of all node costs"
    for kind in get_args(NodeKind):
        chain = node_chain(gpu, kind, 20)
        assert (chain.stream is None) == (kind in ("child", "empty", "if_taken", "if_skipped")), kind
        assert "SIMULATED" in chain.check()
    for decider in get_args(Decider):
        times_ns = np.array([decided_loop(gpu, decider)(count) for count in (1, 11, 21)])
        assert np.diff(times_ns)[0] == pytest.approx(np.diff(times_ns)[1], rel=0.1)
    old = exact(FakeCosts(compute_capability=(7, 0), cuda_driver_version=11080))
    node_chain(old, "kernel_prologue", 2)


def test_dependencies_of_a_small_fork() -> None:
    assert dependencies(Shape(2, 2, True, 0)) == [(), (0,), (1,), (0,), (3,), (2, 4)]
    assert dependencies(Shape(1, 3, False, 0)) == [(), (0,), (1,)]
    assert dependencies(Shape(3, 1, False, 0)) == [(), (), ()]


@settings(max_examples=60, deadline=None)
@given(
    branches=st.integers(1, 20), length=st.integers(1, 6), joined=st.booleans(), runs_ns=st.integers(1, 5000),
    front_end_ns=st.integers(1, 2000), gap_ns=st.integers(0, 2000), resident=st.integers(1, 8),
)  # fmt: skip
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
    # Each start waits for a reason: an edge, the front end, or a kernel that ended then.
    for node, start_ns in enumerate(starts_ns):
        reasons = {0.0} | {starts_ns[other] + runs_ns + gap_ns for other in before[node]}
        reasons |= set(starts_ns + front_end_ns) | set(starts_ns + runs_ns)
        assert start_ns in reasons


def test_a_pool_goes_with_its_case() -> None:
    gpu = exact()
    with gpu.case():
        allocating_step(gpu, "stream_released", 64 * MIB, 1).submit(1)
    began_ns = gpu.clock.now_ns()
    gpu.synchronize()
    assert gpu.clock.now_ns() - began_ns < 5000

"""CUDA Graphs on a real GPU: nodes have their effect in order, changes arrive, refusals give the driver's reason."""

from typing import get_args

import numpy as np
import pytest
from gpu_checks import may_skip
from worker_run import outcomes, run

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import LOOP_LAYER, IntArray, Launch, LayerCall, Op, Query, SynchronizeIdle
from microbench.experiments.graph.allocation import AllocationWay, allocating_step
from microbench.experiments.graph.chains import Shape, shaped_work
from microbench.experiments.graph.lives import (
    Change,
    ChangeWay,
    Life,
    Made,
    graph_changes,
    graph_footprint,
    graph_layer_lives,
    graph_lives,
)
from microbench.experiments.graph.nodes import Decider, NodeKind, decided_loop, node_chain
from microbench.experiments.launch.models import jitted_step, process_recorder
from microbench.gpu.layers.base import spinning
from microbench.gpu.layers.jax import Output
from microbench.gpu.protocol.gpu import Gpu

pytestmark = pytest.mark.gpu

WITHOUT_STREAM_EFFECT = ("kernel_empty", "event_wait")


@pytest.mark.parametrize("made", get_args(Made))
@pytest.mark.parametrize("nodes", [1, 50])
def test_a_life_is_stamped_in_its_order(gpu: Gpu, made: Made, nodes: int) -> None:
    stamps = graph_lives(gpu, nodes, 3, made)
    assert stamps.shape == (3, len(Life))
    assert (np.diff(stamps, axis=1) >= 0).all()
    assert (stamps[:, Life.DESTROYED] > stamps[:, Life.DONE]).all()
    uploaded = stamps[:, Life.READY] > stamps[:, Life.INSTANTIATED]
    assert uploaded.all() == (made == "capture")


@pytest.mark.parametrize("name", [name for name in spinning() if name != LOOP_LAYER])
@pytest.mark.filterwarnings("default")
def test_a_librarys_graph_takes_longer_to_make_than_the_drivers(gpu: Gpu, name: str) -> None:
    """Measured on an H200: until it is ready, a graph of 100 kernels takes cuda.core 277 us, CuPy 316 us, Numba 1.01 ms
    and PyTorch 1.32 ms without its upload. The bundled run has the driver's 222 us. PyTorch before 2.9 also collects
    garbage, for tens of ms.
    """
    call, nodes = LayerCall(name, duration_ns=0), 100
    with may_skip():
        gpu.bind(call)
        graph_layer_lives(gpu, call, nodes, 3)
        stamps = graph_layer_lives(gpu, call, nodes, 20)
    graph_lives(gpu, nodes, 3, "capture")
    driver = graph_lives(gpu, nodes, 20, "capture")
    apart = np.diff(np.delete(stamps, Life.MADE, axis=1), axis=1)
    assert (apart >= 0).all()
    assert (stamps[:, Life.MADE] == 0).all() == (name == "cupy_raw")

    def took_ns(of: IntArray, first: Life, last: Life) -> float:
        return float(np.median(of[:, last] - of[:, first]))

    make_ns, drivers_ns = (took_ns(of, Life.BEGIN, Life.INSTANTIATED) for of in (stamps, driver))
    assert drivers_ns < make_ns < 200e6
    if name != "cupy_raw":
        instantiate_ns, drivers_ns = (took_ns(of, Life.MADE, Life.INSTANTIATED) for of in (stamps, driver))
        assert 0.7 * drivers_ns < instantiate_ns < 2 * drivers_ns
    replayed_ns = took_ns(stamps, Life.READY, Life.DONE)
    assert replayed_ns > 0.8 * 100 * 500, "a node of an empty kernel takes 0.5 us or more"


@pytest.mark.parametrize("output", get_args(Output))
@pytest.mark.filterwarnings("default")
def test_jaxs_step_runs_its_kernels_with_command_buffers_and_without(gpu: Gpu, output: Output) -> None:
    """Measured on an H100 with a busy host: a step of 100 kernels takes 550 us in a stream; as a graph 351 us where the
    result is new memory, so that XLA updates the graph, and 230 us where it takes the memory of a donated argument.
    """
    with may_skip():
        step, recorder = jitted_step(gpu, 100, output), process_recorder(gpu, "cupti")
    assert step.check()
    out_ns = np.zeros(50, dtype=np.int64)
    took_ns = {}
    for name, way in (("stream", step.stream), ("graph", step.graph)):
        recorded = recorder.recorded(lambda way=way: way.round_trips(np.zeros(1, dtype=np.int64)))  # type: ignore[misc]
        assert recorded.kernels == 100, f"{name}: CUPTI counts the kernels that ran"
        way.round_trips(out_ns)
        took_ns[name] = float(np.median(out_ns))
    assert 50e3 < took_ns["graph"] < 1.1 * took_ns["stream"]
    assert step.check()


def test_the_footprint_of_a_larger_graph_is_no_smaller(gpu: Gpu) -> None:
    small, large = (graph_footprint(gpu, nodes, 5) for nodes in (1, 3000))
    assert large.device_bytes >= small.device_bytes
    assert large.device_bytes > 0


@pytest.mark.parametrize(("way", "changed"), [("set_params", 1), ("set_params", 20), ("set_grid", 20),
                                              ("exec_update", 20), ("rebuild", 20)])  # fmt: skip
def test_changes_arrive(gpu: Gpu, way: ChangeWay, changed: int) -> None:
    stamps = graph_changes(gpu, way, 20, changed, 3)
    assert stamps.shape == (3, len(Change))
    assert (np.diff(stamps, axis=1) >= 0).all()
    whole = way in ("exec_update", "rebuild")
    assert (stamps[:, Change.RECORDED] > stamps[:, Change.BEGIN]).all() == whole
    assert (stamps[:, Change.DISPOSED] > stamps[:, Change.AGAIN_DONE]).all() == whole


def test_a_change_that_does_not_arrive_is_noticed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.experiments.graph import lives

    def nothing(*arguments: object) -> int:
        return 0

    graph_changes(gpu, "set_params", 5, 5, 1)
    monkeypatch.setattr(lives.loops, "change_nodes", nothing)
    with pytest.raises(MeasurementError, match="node 0 after the change"):
        graph_changes(gpu, "set_params", 5, 5, 1)


@pytest.mark.parametrize("kind", get_args(NodeKind))
def test_nodes_of_every_kind_have_their_effect_before_and_after_an_update(gpu: Gpu, kind: NodeKind) -> None:
    chain = node_chain(gpu, kind, 12)
    assert chain.check()
    assert chain.instantiate_ns() > 0
    try:
        assert chain.update_ns() > 0
    except Skip as skip:  # conditional nodes: no document says which drivers can update them
        assert kind in ("if_taken", "if_skipped"), skip  # noqa: PT017
    assert chain.check()


@pytest.mark.parametrize("kind", get_args(NodeKind))
@pytest.mark.parametrize("side", ["graph", "_checked"])
def test_a_missing_effect_is_noticed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, kind: NodeKind, side: str) -> None:
    chain = node_chain(gpu, kind, 5)
    if kind == "if_skipped" or (side == "_checked" and (chain.stream is None or kind in WITHOUT_STREAM_EFFECT)):
        pytest.skip("has no effect to miss")
    monkeypatch.setattr(chain, side, lambda count: None)
    with pytest.raises(MeasurementError, match=r" where |ran before"):
        chain.check()


def test_an_update_to_another_topology_is_refused_with_the_drivers_reason(gpu: Gpu) -> None:
    long, short = (node_chain(gpu, "kernel", count) for count in (5, 4))
    long._graphs[1] = short._graphs[1]  # type: ignore[attr-defined]
    with pytest.raises(Skip, match=r"refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE.*TOPOLOGY"):
        long.update_ns()
    assert long.check()


@pytest.mark.usefixtures("data")
def test_a_refused_update_is_a_failed_case_with_the_drivers_reason_and_the_run_goes_on() -> None:
    result = run("topology", backend="microbench.gpu.open")
    assert [outcome.status for outcome in outcomes(result)] == ["ok", "failed", "failed"]
    for refused in outcomes(result)[1:]:
        expected = "the driver refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"
        assert (refused.reason or "").startswith(expected)
        assert "TOPOLOGY" in (refused.reason or "")


@pytest.mark.usefixtures("data")
def test_a_broken_capture_is_a_failed_case_with_the_drivers_reason_and_the_run_goes_on() -> None:
    result = run("captured", backend="microbench.gpu.open")
    assert [outcome.status for outcome in outcomes(result)] == ["failed", "failed", "ok"]
    for broken in outcomes(result)[:2]:
        assert "CUDA_ERROR_STREAM_CAPTURE" in (broken.reason or "")
        assert broken.measurements == ()


@pytest.mark.parametrize("forbidden", [SynchronizeIdle(), SynchronizeIdle("event")], ids=str)
def test_a_broken_capture_gives_the_drivers_reason_and_leaves_the_stream_usable(gpu: Gpu, forbidden: Op) -> None:
    with pytest.raises(MeasurementError, match="CUDA_ERROR_STREAM_CAPTURE"):
        gpu.graph([Launch(), forbidden, Launch()])
    gpu.bind(gpu.graph([Launch()] * 3))(2)
    gpu.synchronize()
    with pytest.raises(MeasurementError, match="CUDA_ERROR"):
        gpu.graph([Query()])


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("branches", [1, 4, 16])
def test_shapes_keep_their_edges(gpu: Gpu, branches: int, joined: bool) -> None:
    shaped = shaped_work(gpu, Shape(branches, 16 // branches, joined, 1000))
    assert "every kernel" in shaped.check()
    out = np.zeros(3, dtype=np.int64)
    for submit in (shaped.graph, shaped.streams):
        submit.round_trips(out)
        assert (out > 0).all()


@pytest.mark.parametrize("decider", get_args(Decider))
def test_a_loop_runs_the_iterations_and_more_take_longer(gpu: Gpu, decider: Decider) -> None:
    loop = decided_loop(gpu, decider)
    for iterations in (1, 4, 40):
        assert loop(iterations) > 0  # it raises for any other number
    assert min(loop(40) for _ in range(3)) > min(loop(4) for _ in range(3))


@pytest.mark.parametrize("way", get_args(AllocationWay))
@pytest.mark.parametrize(("size_bytes", "pairs"), [(4096, 1), (1 << 22, 3)])
def test_allocated_memory_carries_values(gpu: Gpu, way: AllocationWay, size_bytes: int, pairs: int) -> None:
    step = allocating_step(gpu, way, size_bytes, pairs)
    assert step.check()
    step.submit(3)
    gpu.synchronize()
    assert step.check()
    held = step.held_bytes()
    assert held == 0 if way == "stream_released" else held >= size_bytes


def test_an_old_driver_skips_what_it_lacks_with_the_version_needed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.gpu.cuda import case

    monkeypatch.setattr(case.driver, "cuDriverGetVersion", lambda: (0, 12020))
    for kind in ("if_taken", "pdl"):
        with pytest.raises(Skip, match=r"need a driver of CUDA 12\.\d; this one has 12\.2"):
            node_chain(gpu, kind, 3)  # type: ignore[arg-type]


def test_after_a_capture_that_failed_the_program_goes_on() -> None:
    torch = pytest.importorskip("torch")
    from microbench import graphed

    step = graphed(lambda a: torch.rand_like(a) + a.sum().item(), warm_up=1)
    step(torch.ones(4, device="cuda"))
    with pytest.raises(RuntimeError):
        step(torch.ones(4, device="cuda"))
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(4, device="cuda").sum().item() > 0, "random numbers are drawn without a graph again"

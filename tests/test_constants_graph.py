"""Every benchmark of the graph suite gives back the constants of the simulated machine."""

import math
from typing import get_args

import pytest
from fake_session import exactly, medians, medians_of

from microbench.benchmarks.graph.graph_lifecycle import MOST_REPLAYS, REPLAYED_NODES
from microbench.benchmarks.graph.graph_nodes import LONG, STREAM_CALLS
from microbench.benchmarks.graph.graph_shape import KERNELS
from microbench.core.model import Fact, Measurement
from microbench.experiments.graph.allocation import AllocationWay
from microbench.experiments.graph.changes import ChangeWay
from microbench.experiments.graph.iterations import Decider
from microbench.experiments.graph.nodes import NodeKind
from microbench.gpu.fake.costs import CallCosts, FakeCosts, GraphCosts, LayerCosts, Line, NodeCosts

COSTS = FakeCosts()
OTHER = FakeCosts(
    submit_ns=5100, launch_to_start_ns=4000, flag_to_host_ns=900, gap_stream_ns=2300, gap_graph_ns=800,
    gap_event_ns=1700, gap_wait_ns=450, empty_kernel_ns=320, front_end_ns=400, graph_submit_ns=2200,
    graph_node_submit_ns=3.5, copy_fixed_ns=2000, memset_submit_ns=1500, untimed_record_ns=260, wait_event_ns=310,
    completion_ns={"auto": 7000.0},
    layers={
        "loop": LayerCosts(5100, 20, replay_ns=0),
        "cuda_core": LayerCosts(7000, 300, replay_ns=450),
        "cupy_raw": LayerCosts(9100, 300, replay_ns=2450, make_ns=3000, one_call=True),
        "torch_eager": LayerCosts(15_000, replay_ns=3450, make_ns=900_000, uploads=False),
    },
    graphs=GraphCosts(
        capture=Line(7000, 900), build=Line(1000, 1100), instantiate=Line(11_000, 2600), upload=Line(500, 300),
        upload_on_gpu=Line(4000, 700), destroy=Line(900, 1200), destroy_captured=Line(400, 510),
        device_memory=Line(2 << 20, 500), host_memory=Line(1000, 9000), set_params=Line(900, 710),
        set_grid=Line(800, 820), exec_update=Line(7700, 330), changed_launch_ns=95,
        nodes={
            kind: NodeCosts(70 + 3 * at, 80 * at, 0.5 * at, 90 * at, 11 * at)
            for at, kind in enumerate(COSTS.graphs.nodes)
        },
        calls={"copy_d2d": CallCosts(900, 2100), "host": CallCosts(3300, 4100)},
        dependent_kernel_ns=900, prologue_ns=2700, trigger_gap_ns=-130, look_ns=150, while_iteration_ns=2500,
        tail_iteration_ns=9100, allocate=CallCosts(1900, 400), free=CallCosts(300, 50), allocate_node_ns=1500,
        free_node_ns=2500, map_page_ns=1000, release_page_ns=800,
    ),
)  # fmt: skip
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])

# The clock shows whole nanoseconds, so each of two readings may be one short.
CLOCK_S = 2e-9
MIB = 1 << 20


def rest_ns(costs: FakeCosts) -> float:
    """What a step ends with: from the last call's return to the first kernel, and from the last kernel to the host."""
    return costs.launch_to_start_ns + costs.completion_ns["auto"]


def replay_ns(costs: FakeCosts, nodes: int) -> float:
    return costs.graph_submit_ns + nodes * costs.graph_node_submit_ns


def line_ns(costs: FakeCosts, nodes: int, duration_ns: float = 0) -> float:
    return nodes * costs.kernel_ns(duration_ns) + (nodes - 1) * costs.gap_graph_ns


class Plain:
    """The law of streams call by call, without batches: host, streams and events on one clock from 0."""

    def __init__(self, costs: FakeCosts) -> None:
        self.costs = costs
        self.host_ns = 0.0
        self.free_ns: dict[int, float] = {}
        self.event_ns: dict[int, float] = {}

    def call(self, call_ns: float, gap_ns: float, runs_ns: float, stream: int = 0, held_ns: float = 0.0) -> None:
        self.host_ns += call_ns
        arrives_ns = self.host_ns + self.costs.launch_to_start_ns
        behind_ns = self.free_ns.get(stream, -math.inf) + gap_ns
        self.free_ns[stream] = max(arrives_ns, behind_ns, held_ns) + runs_ns

    def launch(self, stream: int, duration_ns: float) -> None:
        self.call(self.costs.submit_ns, self.costs.gap_stream_ns, self.costs.kernel_ns(duration_ns), stream)

    def record(self, stream: int) -> None:
        self.call(self.costs.untimed_record_ns, 0, 0, stream)
        self.event_ns[stream] = self.free_ns[stream]

    def wait(self, stream: int, other: int) -> None:
        self.call(self.costs.wait_event_ns, self.costs.gap_wait_ns, 0, stream, self.event_ns[other])

    @property
    def step_s(self) -> float:
        """Until a synchronise of all has returned, and the clock was read."""
        ended_ns = max(self.free_ns.values()) + self.costs.completion_ns["auto"]
        return (ended_ns + self.costs.timer_call_ns) * 1e-9


@each_machine
@pytest.mark.parametrize("submitter", ["loop", "cuda_core"])
@pytest.mark.parametrize("kernels", [1, 10, 100])
@pytest.mark.parametrize("duration_ns", [0, 2000, 5000, 50_000])
def test_graph_gain(costs: FakeCosts, submitter: str, kernels: int, duration_ns: int) -> None:
    figures = medians("graph_gain", costs, submitter=submitter, kernels=kernels, duration_ns=duration_ns)
    layer, runs_ns = costs.layers[submitter], costs.kernel_ns(duration_ns)
    call_ns = layer.call_ns + (layer.argument_ns if duration_ns else 0)
    period_ns = max(call_ns, runs_ns + costs.gap_stream_ns)
    stream_ns = call_ns + (kernels - 1) * period_ns + runs_ns + rest_ns(costs) + costs.timer_call_ns
    assert figures["stream"] == pytest.approx(stream_ns * 1e-9 / kernels, abs=CLOCK_S)
    call_ns = replay_ns(costs, kernels) + layer.replay_ns
    graph_ns = call_ns + line_ns(costs, kernels, duration_ns) + rest_ns(costs) + costs.timer_call_ns
    assert figures["graph"] == pytest.approx(graph_ns * 1e-9 / kernels, abs=CLOCK_S)


def life_s(costs: FakeCosts, nodes: int) -> dict[str, float]:
    """What the host's clock shows of each act, in seconds: a reading stands in the time that it ends, unless the host
    waits for the GPU meanwhile."""
    graphs, reading_ns = costs.graphs, costs.timer_call_ns
    first_ns = replay_ns(costs, nodes) + graphs.upload.at(nodes) + reading_ns
    on_gpu_ns = graphs.upload_on_gpu.at(nodes) + rest_ns(costs)
    times_ns = {
        "capture": graphs.capture.at(nodes) + reading_ns, "build": graphs.build.at(nodes) + reading_ns,
        "instantiate": graphs.instantiate.at(nodes) + reading_ns, "upload": graphs.upload.at(nodes) + reading_ns,
        "ready": graphs.upload.at(nodes) + reading_ns + on_gpu_ns,
        "uploaded_launch": replay_ns(costs, nodes) + reading_ns, "first_launch": first_ns,
        "first_replay": first_ns + on_gpu_ns + line_ns(costs, nodes),
        "relaunch": replay_ns(costs, nodes), "destroy": graphs.destroy.at(nodes) + reading_ns,
    }  # fmt: skip
    return {name: time_ns * 1e-9 for name, time_ns in times_ns.items()}


@each_machine
@pytest.mark.parametrize("nodes", [1, 10, 100, 1000, 10_000])
def test_graph_lifecycle(costs: FakeCosts, nodes: int) -> None:
    figures = medians("graph_lifecycle", costs, nodes=nodes)
    for name, expected_s in life_s(costs, nodes).items():
        assert figures[name] == pytest.approx(expected_s, rel=1e-6, abs=CLOCK_S + costs.timer_call_ns * 1e-9 / 10), name
    replays = max(min(REPLAYED_NODES // nodes, MOST_REPLAYS), 1)
    each_ns = costs.gap_stream_ns + line_ns(costs, nodes) + costs.gap_event_ns / replays
    step_ns = costs.globaltimer_step_ns / replays / nodes
    assert figures["node"] == pytest.approx(each_ns / nodes * 1e-9, abs=(step_ns + 0.01) * 1e-9)
    assert figures["device_memory"] == costs.graphs.device_memory.at(nodes)
    assert figures["host_memory"] == costs.graphs.host_memory.at(nodes)


@each_machine
@pytest.mark.parametrize("submitter", ["cuda_core", "cupy_raw", "torch_eager"])
@pytest.mark.parametrize("nodes", [10, 100, 1000])
def test_graph_library(costs: FakeCosts, submitter: str, nodes: int) -> None:
    rows = exactly("graph_library", costs, {"submitter": submitter, "nodes": nodes})
    figures, own, graphs, reading_ns = medians_of("graph_library", rows), costs.layers[submitter], costs.graphs, 25
    capture_ns = own.make_ns + graphs.capture.at(nodes) + nodes * (own.call_ns - costs.submit_ns)
    upload_ns, on_gpu_ns = graphs.upload.at(nodes), graphs.upload_on_gpu.at(nodes)
    make_ns = capture_ns + graphs.instantiate.at(nodes)
    first_ns = replay_ns(costs, nodes) + own.replay_ns + line_ns(costs, nodes) + rest_ns(costs)
    if submitter == "torch_eager":
        make_ns += costs.idle_stream_ns
        first_ns += upload_ns + on_gpu_ns
    else:
        make_ns += upload_ns + on_gpu_ns + rest_ns(costs)
    expected_ns = {"make": make_ns, "first_replay": first_ns, "replay": replay_ns(costs, nodes) + own.replay_ns}
    if submitter != "cupy_raw":
        expected_ns |= {"capture": capture_ns, "instantiate": graphs.instantiate.at(nodes)}
    assert figures.keys() == expected_ns.keys()
    for name, time_ns in expected_ns.items():
        readings = 0 if name == "replay" else 4 if name == "make" else 1
        assert figures[name] * 1e9 == pytest.approx(time_ns, abs=readings * reading_ns + 3 + time_ns * 1e-6), name
    unknown = [row.reason for row in rows if isinstance(row, Fact)]
    assert unknown == (["the library captures and instantiates by one call"] if submitter == "cupy_raw" else [])
    assert all(row.verified for row in rows if isinstance(row, Measurement))


@pytest.mark.parametrize("output", ["new", "donated"])
@pytest.mark.parametrize("kernels", [10, 100])
def test_graph_jax(output: str, kernels: int) -> None:
    figures, costs = medians("graph_jax", None, kernels=kernels, output=output), COSTS
    call_ns, reading_ns = costs.layers["jax_jit"].call_ns, costs.timer_call_ns
    launches_ns = call_ns + kernels * costs.submit_ns  # longer than the kernels run
    update_ns = costs.graphs.set_params.at(kernels) if output == "new" else 0
    replay = call_ns + update_ns + replay_ns(costs, kernels)
    ends_ns = rest_ns(costs) + reading_ns
    expected_ns = {
        "stream": (launches_ns + costs.empty_kernel_ns + ends_ns) / kernels,
        "graph": (replay + line_ns(costs, kernels) + ends_ns) / kernels,
        "stream_submit": launches_ns,
        "graph_submit": replay,
    }
    assert figures == pytest.approx({name: time_ns * 1e-9 for name, time_ns in expected_ns.items()}, abs=6e-9)


@each_machine
@pytest.mark.parametrize(("way", "nodes", "changed"), [
    *((way, nodes, nodes) for way in get_args(ChangeWay) for nodes in (1, 100, 1000)),
    *((way, 100, changed) for way in ("set_params", "set_grid") for changed in (1, 10)),
])  # fmt: skip
def test_graph_update(costs: FakeCosts, way: ChangeWay, nodes: int, changed: int) -> None:
    figures = medians("graph_update", costs, way=way, nodes=nodes, changed_nodes=changed)
    graphs, reading_ns = costs.graphs, costs.timer_call_ns
    rebuilt = way == "rebuild"
    acts = {"set_params": graphs.set_params, "set_grid": graphs.set_grid, "exec_update": graphs.exec_update}
    later_ns = replay_ns(costs, nodes) + reading_ns
    on_gpu_ns = line_ns(costs, nodes) + rest_ns(costs)
    extra_ns = graphs.upload.at(nodes) if rebuilt else changed * graphs.changed_launch_ns
    expected_ns = {
        "change": (graphs.instantiate if rebuilt else acts[way]).at(changed) + reading_ns,
        "next_launch": later_ns + extra_ns,
        "next_replay": later_ns + extra_ns + on_gpu_ns + (graphs.upload_on_gpu.at(nodes) if rebuilt else 0),
        "later_launch": later_ns,
        "later_replay": later_ns + on_gpu_ns,
    }
    if way in ("exec_update", "rebuild"):
        expected_ns["record"] = graphs.capture.at(nodes) + reading_ns
        expected_ns["dispose"] = (graphs.destroy if rebuilt else graphs.destroy_captured).at(nodes) + reading_ns
    assert figures == pytest.approx({name: time_ns * 1e-9 for name, time_ns in expected_ns.items()}, abs=CLOCK_S)


def runs_ns(costs: FakeCosts, kind: NodeKind) -> float:
    """How long a node of that kind runs, of those that a stream can hold too as long as there."""
    if kind in ("kernel", "pdl", "pdl_trigger", "pdl_trigger_prologue"):
        return costs.graphs.dependent_kernel_ns
    if kind in ("kernel_prologue", "pdl_prologue"):
        return costs.graphs.dependent_kernel_ns + costs.graphs.prologue_ns
    if kind in ("kernel_empty", "memset"):
        return costs.empty_kernel_ns + (4 / costs.memset_bytes_per_s * 1e9 if kind == "memset" else 0)
    if kind in ("copy_h2d", "copy_d2h"):
        return costs.copy_fixed_ns + costs.on_the_link_bytes(kind[-3:], 4) / costs.link_bytes_per_s * 1e9
    return costs.graphs.node(kind).duration_ns


def stream_ns(costs: FakeCosts, kind: NodeKind) -> float:
    if kind in ("event_record", "event_wait"):
        return costs.gap_event_ns if kind == "event_record" else costs.gap_wait_ns
    if kind in costs.graphs.calls:
        return costs.gap_stream_ns + costs.graphs.calls[kind].duration_ns
    shorter_ns = costs.kind_gap_ns["pdl"] if kind.startswith("pdl") else 0
    trigger_ns = costs.graphs.trigger_gap_ns if kind in ("pdl_trigger", "pdl_trigger_prologue") else 0
    return costs.gap_stream_ns + shorter_ns + trigger_ns + runs_ns(costs, kind)


@each_machine
@pytest.mark.parametrize("kind", get_args(NodeKind))
def test_graph_nodes(costs: FakeCosts, kind: NodeKind) -> None:
    figures = medians("graph_nodes", costs, kind=kind)
    graphs, own, reading_ns = costs.graphs, costs.graphs.node(kind), costs.timer_call_ns
    period_ns = costs.gap_graph_ns + own.gap_ns + runs_ns(costs, kind)
    assert figures["node"] == pytest.approx(period_ns * 1e-9, abs=costs.globaltimer_step_ns * 1e-9 / 100)
    graph_only = kind in ("child", "empty", "if_taken", "if_skipped")
    assert ("stream" in figures) != graph_only
    if not graph_only:
        queued_ns = stream_ns(costs, kind) + costs.gap_event_ns / STREAM_CALLS
        assert figures["stream"] == pytest.approx(queued_ns * 1e-9, abs=1e-9)
    launch_ns = replay_ns(costs, LONG) + LONG * own.launch_ns
    assert figures["launch"] == pytest.approx(launch_ns * 1e-9, abs=reading_ns * 1e-9 / 10)
    instantiate_ns = (graphs.instantiate.constant + reading_ns) / LONG + graphs.instantiate.slope + own.instantiate_ns
    assert figures["instantiate"] == pytest.approx(instantiate_ns * 1e-9, abs=CLOCK_S / LONG)
    assert ("update" in figures) == (own.update_ns is not None)
    if own.update_ns is not None:
        update_ns = (graphs.exec_update.constant + reading_ns) / LONG + graphs.exec_update.slope + own.update_ns
        assert figures["update"] == pytest.approx(update_ns * 1e-9, abs=CLOCK_S / LONG)


@each_machine
@pytest.mark.parametrize("decider", get_args(Decider))
def test_graph_nodes_finds_what_an_iteration_costs(costs: FakeCosts, decider: Decider) -> None:
    figures = medians("graph_nodes", costs, kind=decider)["iteration"]
    graphs = costs.graphs
    started_ns = costs.submit_ns + costs.launch_to_start_ns + graphs.dependent_kernel_ns + graphs.look_ns
    expected_ns = {
        "host_sync": started_ns + costs.completion_ns["auto"],
        "host_poll": started_ns + costs.flag_to_host_ns,
        "while": graphs.while_iteration_ns,
        "tail_launch": graphs.tail_iteration_ns,
    }
    assert figures == pytest.approx(expected_ns[decider] * 1e-9, abs=CLOCK_S)


def branches_ns(costs: FakeCosts, branches: int, duration_ns: int, joined: bool) -> float:
    """GPU time of the graph: a branch goes on when its kernel ended or when the front end has been round."""
    kernel_ns, gap_ns, length = costs.kernel_ns(duration_ns), costs.gap_graph_ns, KERNELS // branches
    round_ns = max(kernel_ns + gap_ns, branches * costs.front_end_ns)
    inner_ns = (length - 1) * round_ns + (branches - 1) * costs.front_end_ns + kernel_ns
    return inner_ns + (2 * (kernel_ns + gap_ns) if joined else 0)


def on_streams(costs: FakeCosts, branches: int, duration_ns: int, joined: bool) -> Plain:
    plain = Plain(costs)
    others = range(1, branches) if joined else ()
    if joined:
        plain.launch(0, duration_ns)
        plain.record(0)
    for one in others:
        plain.wait(one, 0)
    for _ in range(KERNELS // branches):
        for one in range(branches):
            plain.launch(one, duration_ns)
    for one in others:
        plain.record(one)
    for one in others:
        plain.wait(0, one)
    if joined:
        plain.launch(0, duration_ns)
    return plain


@each_machine
@pytest.mark.parametrize("duration_ns", [0, 20_000])
@pytest.mark.parametrize(("shape", "branches"), [
    ("chain", 1),
    ("fork_join", 2),
    pytest.param("fork_join", 8, marks=pytest.mark.slow),
    pytest.param("fork_join", 64, marks=pytest.mark.slow),
    ("independent", 64),
])  # fmt: skip
def test_graph_shape(costs: FakeCosts, shape: str, branches: int, duration_ns: int) -> None:
    figures = medians("graph_shape", costs, shape=shape, branches=branches, duration_ns=duration_ns)
    joined = shape == "fork_join"
    call_ns = replay_ns(costs, KERNELS + 2 * joined)
    graph_ns = call_ns + branches_ns(costs, branches, duration_ns, joined) + rest_ns(costs) + costs.timer_call_ns
    assert figures["graph"] == pytest.approx(graph_ns * 1e-9, abs=CLOCK_S)
    plain = on_streams(costs, branches, duration_ns, joined)
    assert figures["streams"] == pytest.approx(plain.step_s, abs=CLOCK_S)
    assert figures["graph_submit"] == pytest.approx(call_ns * 1e-9, abs=costs.timer_call_ns * 1e-9 / 10)
    assert figures["streams_submit"] == pytest.approx(plain.host_ns * 1e-9, abs=costs.timer_call_ns * 1e-9)


def stream_step(costs: FakeCosts, pairs: int, *, allocates: bool, pages: int = 0) -> Plain:
    plain, graphs = Plain(costs), costs.graphs
    for pair in range(pairs):
        if allocates:
            map_ns = 0 if pair else pages * graphs.map_page_ns
            plain.call(graphs.allocate.submit_ns + map_ns, 0, graphs.allocate.duration_ns)
        plain.launch(0, graphs.dependent_kernel_ns)
        if allocates:
            plain.call(graphs.free.submit_ns, 0, graphs.free.duration_ns)
    return plain


def graph_step_ns(costs: FakeCosts, pairs: int, *, allocates: bool) -> tuple[int, float]:
    graphs = costs.graphs
    pair_ns = graphs.dependent_kernel_ns + costs.gap_graph_ns
    if allocates:
        pair_ns += 2 * costs.gap_graph_ns + graphs.allocate_node_ns + graphs.free_node_ns
    return (3 if allocates else 1) * pairs, pairs * pair_ns - costs.gap_graph_ns


@each_machine
@pytest.mark.parametrize("way", get_args(AllocationWay))
@pytest.mark.parametrize("size_bytes", [4096, 64 * MIB])
@pytest.mark.parametrize("pairs", [1, 10])
def test_graph_memory(costs: FakeCosts, way: AllocationWay, size_bytes: int, pairs: int) -> None:
    figures = medians("graph_memory", costs, way=way, size_bytes=size_bytes, pairs=pairs)
    pages, graphs = math.ceil(size_bytes / (2 * MIB)), costs.graphs
    outside, released = way.endswith("outside"), way == "stream_released"
    assert figures["held"] == (0 if released else size_bytes if outside else pages * 2 * MIB)
    if way.startswith("graph"):
        nodes, on_gpu_ns = graph_step_ns(costs, pairs, allocates=not outside)
        submit_ns = replay_ns(costs, nodes)
        step_s = (submit_ns + on_gpu_ns + rest_ns(costs) + costs.timer_call_ns) * 1e-9
    else:
        mapped = pages if released else 0
        plain = stream_step(costs, pairs, allocates=not outside, pages=mapped)
        step_s = plain.step_s + mapped * graphs.release_page_ns * 1e-9
        submit_ns = plain.host_ns
    assert figures["step"] == pytest.approx(step_s, abs=CLOCK_S)
    assert figures["submit"] == pytest.approx(submit_ns * 1e-9, abs=CLOCK_S + costs.timer_call_ns * 1e-9)

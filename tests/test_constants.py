"""Every benchmark on a simulated machine of other constants: its figures and facts, one case a line.

tests/data/snapshots/constants has them. When they were written, each was what a formula made of the constants;
test_constants_recovered.py has such formulas for what most figures rest on: launches, gaps, the queue and waits."""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import snapshots
from fake_session import exactly, facts, medians, medians_of

from microbench.analysis import fits
from microbench.benchmarks.graph.graph_shape import KERNELS
from microbench.core.bench import SUITES, discover
from microbench.core.errors import Skip
from microbench.core.model import Fact, Measurement
from microbench.experiments.link.pipeline import chunked_copy
from microbench.gpu.fake.costs import FakeCosts, LinkCosts, MemoryCosts, Rates, ShapeCosts
from microbench.gpu.fake.environment import fake_environment
from microbench.gpu.fake.gpu import open_fake

MOST_CASES = 20  # of a benchmark; of more, every so many
KEPT = {"compute_capability", "gpus", "numa_nodes", "models", "l2_near_share", "most_load", "cold_s"}


def other(value: Any, place: str = "") -> Any:
    """The costs with each number multiplied by a factor of its own."""
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        changed = {name: other(getattr(value, name), f"{place}.{name}") for name in fields if name not in KEPT}
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, dict):
        return {key: other(one, f"{place}.{key}") for key, one in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value
    changed = value * random.Random(place).uniform(0.8, 1.0)
    return round(changed) if isinstance(value, int) else changed


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite != "own"])
def test_figures_are_those_of_the_constants(suite: str) -> None:
    costs = other(FakeCosts(gpus=2, links=LinkCosts(numa_nodes=2)))
    here, lines = fake_environment(costs), []
    for benchmark in discover().values():
        every = [one for one in benchmark.cases("default") if benchmark.here(here, one.params) is None]
        for case in every[:: -(-len(every) // MOST_CASES) or 1] if benchmark.suite == suite else ():
            try:
                rows = exactly(benchmark.name, costs, dict(case.params))
            except Skip as skip:
                lines.append(f"{case.id} skipped: {skip}")
                continue
            figures = [f"{name} {value:.4g}" for name, value in medians_of(benchmark.name, rows).items()]
            figures += [
                f"{row.name}={row.reason if row.value is None else row.value}" for row in rows if isinstance(row, Fact)
            ]
            lines.append(f"{case.id} {', '.join(figures)}")
    snapshots.same(f"constants/{suite}", "\n".join(lines))


COSTS = FakeCosts(gpus=2)
OTHER = other(COSTS)
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])

# The clock shows whole nanoseconds, so each of two readings may be one short.
CLOCK_S = 2e-9


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
    ("chain", 1), ("fork_join", 2), pytest.param("fork_join", 8, marks=pytest.mark.slow),
    pytest.param("fork_join", 64, marks=pytest.mark.slow), ("independent", 64),
])  # fmt: skip
def test_graph_shape(costs: FakeCosts, shape: str, branches: int, duration_ns: int) -> None:
    figures = medians("graph_shape", costs, shape=shape, branches=branches, duration_ns=duration_ns)
    joined = shape == "fork_join"
    call_ns = replay_ns(costs, KERNELS + 2 * joined)
    graph_ns = call_ns + branches_ns(costs, branches, duration_ns, joined) + rest_ns(costs) + costs.timer_call_ns
    assert figures["graph"] == pytest.approx(graph_ns * 1e-9, abs=CLOCK_S)
    plain = on_streams(costs, branches, duration_ns, joined)
    assert figures["streams"] == pytest.approx(plain.step_s, abs=CLOCK_S)
    assert figures["graph_submit"] == pytest.approx(call_ns * 1e-9, abs=CLOCK_S + costs.timer_call_ns * 1e-9 / 10)
    assert figures["streams_submit"] == pytest.approx(plain.host_ns * 1e-9, abs=costs.timer_call_ns * 1e-9)


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def payload_rate(costs: FakeCosts, direction: str) -> float:
    return costs.link_bytes_per_s * 256 / (276 if direction == "h2d" else 280)


def copy_s(costs: FakeCosts, direction: str, memory: str, size_bytes: int, metric: str) -> float:
    figures = medians("link_copy", costs, direction=direction, memory=memory, size_bytes=size_bytes)
    return size_bytes / figures[metric]


@each_machine
@pytest.mark.parametrize("memory", ["pinned", "registered", "write_combined"])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_line_through_copies_has_fixed_cost_and_bandwidth(costs: FakeCosts, direction: str, memory: str) -> None:
    sizes = [1, KIB, 16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB]
    fit = fits.line((size, copy_s(costs, direction, memory, size, "bandwidth")) for size in sizes)
    assert fit is not None
    assert fit.constant == pytest.approx((costs.gap_stream_ns + costs.copy_fixed_ns) * 1e-9, rel=0.02)
    assert 1 / fit.slope == pytest.approx(payload_rate(costs, direction), rel=0.01)
    assert fit.misfit.largest < 0.03


@each_machine
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_large_pageable_copies_are_as_fast_as_the_hosts_own_copy(costs: FakeCosts, direction: str) -> None:
    figures = medians("link_copy", costs, direction=direction, memory="pageable", size_bytes=256 * MIB)
    assert set(figures) == {"bandwidth_host"}, "what blocks cannot be timed behind a gate"
    assert figures["bandwidth_host"] == pytest.approx(costs.links.staging_bytes_per_s, rel=0.06)
    assert figures["bandwidth_host"] < costs.links.staging_bytes_per_s


@pytest.mark.parametrize(("access", "width_bytes", "offset_bytes", "wire_bytes"), [
    ("read", 16, 0, 128 + 20), ("read", 16, 32, 128 + 20 * 5 / 4), ("write", 16, 0, 128 + 24),
    ("write", 16, 96, 128 + 24 * 5 / 4), ("write", 8, 64, 128 + 24 * 3 / 2), ("write", 4, 4, 128 + 24 * 2),
    ("read", 4, 0, 128 + 20),
])  # fmt: skip
def test_kernels_fill_the_link_with_packets_of_a_line_unless_the_sms_hold_them(
    access: str, width_bytes: int, offset_bytes: int, wire_bytes: float
) -> None:
    params: dict[str, int | str] = {"access": access, "width_bytes": width_bytes, "offset_bytes": offset_bytes}
    figures = medians("link_zero_copy", COSTS, size_bytes=256 * MIB, **params)
    fastest = min(COSTS.link_bytes_per_s * 128 / wire_bytes, COSTS.links.sm_bytes_per_s[width_bytes])
    assert figures["bandwidth"] == pytest.approx(fastest, rel=0.002)
    received, sent = (wire_bytes, (wire_bytes - 128) * 24 / 20) if access == "read" else (0.0, wire_bytes)
    assert figures["received_per_byte"] == pytest.approx(received / 128, abs=1e-4)
    assert figures["sent_per_byte"] == pytest.approx(sent / 128, abs=1e-4)


def test_single_reads_show_the_misses() -> None:
    params: dict[str, int | str] = {"footprint_bytes": 64 * MIB, "order": "random", "what": "host_read"}
    latency, stride = exactly("link_latency", COSTS, params)
    assert stride == Fact("stride_bytes", 128, source="a line holds the address of the next")
    assert isinstance(latency, Measurement)
    assert latency.per_call is not None
    assert latency.per_call.min == pytest.approx(COSTS.host_read_ns * 1e-9)
    assert latency.per_call.p99 == pytest.approx((COSTS.host_read_ns + COSTS.links.translation_miss_ns) * 1e-9)


def step_s(costs: FakeCosts, work: str, chunks: int, streams: int) -> float:
    params: dict[str, int | str] = {"work": work, "chunks": chunks, "streams": streams, "size_bytes": 64 * MIB}
    return 64 * MIB / medians("link_chunks", costs, **params)["bandwidth"]


@each_machine
def test_pieces_on_two_streams_hide_all_kernels_but_the_last(costs: FakeCosts) -> None:
    copy = step_s(costs, "copy", 1, 1)
    assert step_s(costs, "copy_and_kernel", 1, 1) == pytest.approx(2 * copy, rel=0.01)
    assert step_s(costs, "copy_and_kernel", 16, 1) == pytest.approx(2 * copy, rel=0.08), "one stream takes turns"
    for chunks, streams in ((4, 2), (16, 2), (16, 4), (32, 4)):
        hidden = copy * (1 + 1 / chunks)
        assert hidden < step_s(costs, "copy_and_kernel", chunks, streams) < hidden * 1.08


@each_machine
def test_kernels_take_all_sms_one_after_the_other(costs: FakeCosts) -> None:
    """Kernels of four times the copy: on any number of streams they take their whole time."""
    gpu = open_fake(costs, spread=0)
    kernel_ns = round(4 * 64 * MIB / payload_rate(costs, "h2d") * 1e9)
    pipeline, out_ns = chunked_copy(gpu, 64 * MIB, 16, 4, kernel_ns), np.zeros(2, dtype=np.int64)
    pipeline.submit.round_trips(out_ns)
    assert kernel_ns < out_ns[1] < kernel_ns * (1 + 1 / 32)


@each_machine
def test_each_piece_of_a_copy_costs_its_fixed_part(costs: FakeCosts) -> None:
    whole, cut = step_s(costs, "copy", 1, 1), step_s(costs, "copy", 128, 1)
    assert (cut - whole) / 127 == pytest.approx((costs.gap_stream_ns + costs.copy_fixed_ns) * 1e-9, rel=0.02)


@each_machine
def test_gpus_with_uplinks_of_their_own_keep_their_rate(costs: FakeCosts) -> None:
    links = msgspec.structs.replace(costs.links, uplink_factor=2.0)
    params: dict[str, int | str] = {"direction": "h2d", "gpu_index": 1, "beside": "all", "size_bytes": 64 * MIB}
    figures = medians("link_concurrent", msgspec.structs.replace(costs, links=links), **params)
    assert figures["together"] == pytest.approx(figures["alone"], rel=1e-3)


SHAPES = {"narrow": ShapeCosts(1 << 10, Rates(1.0, 1.0, 1.0)), "wide": ShapeCosts(64 << 10, Rates(1.0, 1.0, 1.0))}


@pytest.mark.parametrize(("costs", "kernel", "shape"), [
    (COSTS, "read", "bulk_16384B_x4_b2_t256"),
    (COSTS, "write", "grid_16B_x4_t256"),
    (FakeCosts(compute_capability=(8, 0)), "read", "steps_16B_x4_b4_t512"),  # has no bulk copies
    (FakeCosts(memory=MemoryCosts(shapes=SHAPES)), "triad", "wide"),  # too little in flight loses against a lower rate
])  # fmt: skip
def test_the_search_finds_the_best_shape_of_each_kernel(costs: FakeCosts, kernel: str, shape: str) -> None:
    figures = facts("memory_stream", costs, kernel=kernel, dtype="fp64", implementation="cuda", size_bytes=GIB)
    assert figures["shape"].value == shape


def test_arrays_in_the_l2_are_as_fast_as_the_l2() -> None:
    params: dict[str, int | str] = {"kernel": "read", "dtype": "fp64", "implementation": "cuda", "size_bytes": 16 * MIB}
    seconds = 16 * MIB / medians("memory_stream", COSTS, **params)["bandwidth"]
    around_s = (COSTS.gap_stream_ns + COSTS.empty_kernel_ns) * 1e-9
    l2_rate = COSTS.memory.l2_bytes_per_clock * COSTS.sm_count * COSTS.sm_clock_hz
    assert 16 * MIB / (seconds - around_s) == pytest.approx(l2_rate, rel=0.12), "the first answer takes its latency"


def test_an_l2_of_one_part_has_one_mode() -> None:
    costs = FakeCosts(memory=MemoryCosts(l2_far_cycles=230.0))
    assert facts("memory_latency", costs, space="global", footprint_bytes=8 * MIB)["l2_modes"].value == 1


def test_beyond_the_reach_of_translations_each_read_looks_its_page_up() -> None:
    memory = COSTS.memory
    within, beyond = (
        medians("memory_latency", COSTS, space="global", footprint_bytes=size_bytes)["cycles"]
        for size_bytes in (memory.translation_reach_bytes, 8 * memory.translation_reach_bytes)
    )
    assert beyond - within == pytest.approx(7 / 8 * memory.translation_miss_cycles, rel=0.1)


def test_nobody_else_holds_memory() -> None:
    assert facts("memory_capacity", COSTS)["memory_holders"].value == "nobody else"


def test_older_gpus_have_no_clusters() -> None:
    older = msgspec.structs.replace(COSTS, compute_capability=(8, 9))
    with pytest.raises(Skip, match="no clusters of 2 blocks"):
        medians("memory_cluster", older, cluster_blocks=2)


@pytest.mark.parametrize("way", ["copy", "copy_2d", "memset"])
def test_a_line_through_copies_has_the_fixed_cost_and_the_bandwidth(way: str) -> None:
    times = 1 if way == "memset" else 2
    points = [
        (times * size, times * size / medians("memory_copy", COSTS, way=way, size_bytes=size)["bandwidth"])
        for size in (64, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 4 * GIB)
    ]
    fit = fits.line(points)
    own = COSTS.memory.engines.get(way)
    fixed_ns, rate = (own.duration_ns, own.bytes_per_s) if own else (COSTS.empty_kernel_ns, COSTS.memset_bytes_per_s)
    assert fit is not None
    assert fit.constant == pytest.approx((COSTS.gap_stream_ns + fixed_ns) * 1e-9, rel=0.02)
    assert 1 / fit.slope == pytest.approx(rate, rel=0.01)


@each_machine
def test_a_byte_takes_its_joules_above_idle(costs: FakeCosts) -> None:
    memory = costs.memory
    idle_w = medians("memory_energy", costs, load="idle", size_bytes=GIB)["power"]
    assert idle_w == pytest.approx(memory.idle_power_w, rel=0.06)
    figures = medians("memory_energy", costs, load="read", size_bytes=GIB)
    bytes_per_s = figures["power"] / figures["energy"]
    assert (figures["power"] - idle_w) / bytes_per_s == pytest.approx(memory.joules_per_byte, rel=0.08)

"""Every benchmark on a simulated machine of other constants: its figures and facts, one case a line.

tests/data/snapshots/constants has them. When they were written, each was what a formula made of the constants. Other
tests here are of other cases, and of what a figure is checked against."""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import snapshots
from fake_session import exactly, facts, medians, told

from microbench.core.bench import SUITES, discover
from microbench.core.errors import Skip
from microbench.core.model import Fact, Measurement
from microbench.experiments.link.pipeline import chunked_copy
from microbench.gpu.fake.costs import FakeCosts, LinkCosts, MemoryCosts, Rates, ShapeCosts
from microbench.gpu.fake.gpu import fake_environment, open_fake
from microbench.gpu.protocol.gpu import WAIT_VARIABLE

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
            said = told(benchmark.name, costs, dict(case.params))
            lines.append(f"{case.id} {said}")
    snapshots.same(f"constants/{suite}", "\n".join(lines))


COSTS = FakeCosts(gpus=2)
OTHER = other(COSTS)
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def payload_rate(costs: FakeCosts, direction: str) -> float:
    return costs.link_bytes_per_s * 256 / (276 if direction == "h2d" else 280)


def test_launch_arguments_has_the_slope_of_a_byte_and_none_of_grid_and_block() -> None:
    smallest = {"argument_bytes": 0, "grid_blocks": 1, "block_threads": 32}
    empty = medians("launch_arguments", **smallest)["submit"]
    full = medians("launch_arguments", **smallest | {"argument_bytes": 4096})["submit"]
    assert (full - empty) / 4096 == pytest.approx(COSTS.submit_argument_ns * 1e-9, rel=0.01)
    for name, value in (("grid_blocks", 65536), ("block_threads", 1024)):
        assert medians("launch_arguments", **smallest | {name: value})["submit"] == pytest.approx(empty)


def test_launch_traffic_checks_itself_against_known_copies_and_an_idle_link() -> None:
    to_gpu, from_gpu, idle = (
        medians("launch_traffic", work=work, duration_ns=0, argument_bytes=0)
        for work in ("pinned_h2d", "pinned_d2h", "idle")
    )
    assert (to_gpu["received_per_byte"], to_gpu["sent_per_byte"]) == pytest.approx((276 / 256, 24 / 256), rel=1e-3)
    assert from_gpu["sent_per_byte"] == pytest.approx(280 / 256, rel=1e-3)
    rates = COSTS.idle_traffic_per_s
    assert (idle["idle_received"], idle["idle_sent"]) == pytest.approx((rates.received, rates.sent), rel=0.01)


def test_an_event_that_blocks_does_so_in_a_context_that_spins() -> None:
    benchmark = discover()["launch_sync"]
    (case,) = benchmark.cases("default", {"wait": ("blocking_event",), "duration_ns": (1_000_000,)})
    assert benchmark.process_environment(case) == {WAIT_VARIABLE: "spin"}


def test_a_coarse_clock_has_its_step() -> None:
    coarse = medians("host_timer", msgspec.structs.replace(COSTS, timer_step_ns=100))
    assert (coarse["call"], coarse["step"]) == pytest.approx((COSTS.timer_call_ns * 1e-9, 100e-9), rel=0.01)


def test_single_reads_show_the_misses() -> None:
    params: dict[str, int | str] = {"footprint_bytes": 64 * MIB, "order": "random", "what": "host_read"}
    latency, stride = exactly("link_latency", COSTS, params)
    assert stride == Fact("stride_bytes", 128, source="a line holds the address of the next")
    assert isinstance(latency, Measurement)
    assert latency.per_call is not None
    assert latency.per_call.min == pytest.approx(COSTS.host_read_ns * 1e-9)
    assert latency.per_call.p99 == pytest.approx((COSTS.host_read_ns + COSTS.links.translation_miss_ns) * 1e-9)


@each_machine
def test_kernels_take_all_sms_one_after_the_other(costs: FakeCosts) -> None:
    """Kernels of four times the copy: on any number of streams they take their whole time."""
    gpu = open_fake(costs, spread=0)
    kernel_ns = round(4 * 64 * MIB / payload_rate(costs, "h2d") * 1e9)
    pipeline, out_ns = chunked_copy(gpu, 64 * MIB, 16, 4, kernel_ns), np.zeros(2, dtype=np.int64)
    pipeline.submit.round_trips(out_ns)
    assert kernel_ns < out_ns[1] < kernel_ns * (1 + 1 / 32)


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


def test_an_l2_of_one_part_has_one_mode() -> None:
    costs = FakeCosts(memory=MemoryCosts(l2_far_cycles=230.0))
    assert facts("memory_latency", costs, space="global", footprint_bytes=8 * MIB)["l2_modes"].value == 1


def test_older_gpus_have_no_clusters() -> None:
    older = msgspec.structs.replace(COSTS, compute_capability=(8, 9))
    with pytest.raises(Skip, match="no clusters of 2 blocks"):
        medians("memory_cluster", older, cluster_blocks=2)

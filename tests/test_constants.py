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


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def payload_rate(costs: FakeCosts, direction: str) -> float:
    return costs.link_bytes_per_s * 256 / (276 if direction == "h2d" else 280)


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


def test_arrays_in_the_l2_are_as_fast_as_the_l2() -> None:
    params: dict[str, int | str] = {"kernel": "read", "dtype": "fp64", "implementation": "cuda", "size_bytes": 16 * MIB}
    seconds = 16 * MIB / medians("memory_stream", COSTS, **params)["bandwidth"]
    around_s = (COSTS.gap_stream_ns + COSTS.empty_kernel_ns) * 1e-9
    l2_rate = COSTS.memory.l2_bytes_per_clock * COSTS.sm_count * COSTS.sm_clock_hz
    assert 16 * MIB / (seconds - around_s) == pytest.approx(l2_rate, rel=0.12), "the first answer takes its latency"


def test_an_l2_of_one_part_has_one_mode() -> None:
    costs = FakeCosts(memory=MemoryCosts(l2_far_cycles=230.0))
    assert facts("memory_latency", costs, space="global", footprint_bytes=8 * MIB)["l2_modes"].value == 1


def test_older_gpus_have_no_clusters() -> None:
    older = msgspec.structs.replace(COSTS, compute_capability=(8, 9))
    with pytest.raises(Skip, match="no clusters of 2 blocks"):
        medians("memory_cluster", older, cluster_blocks=2)


@each_machine
def test_a_byte_takes_its_joules_above_idle(costs: FakeCosts) -> None:
    memory = costs.memory
    idle_w = medians("memory_energy", costs, load="idle", size_bytes=GIB)["power"]
    assert idle_w == pytest.approx(memory.idle_power_w, rel=0.06)
    figures = medians("memory_energy", costs, load="read", size_bytes=GIB)
    bytes_per_s = figures["power"] / figures["energy"]
    assert (figures["power"] - idle_w) / bytes_per_s == pytest.approx(memory.joules_per_byte, rel=0.08)

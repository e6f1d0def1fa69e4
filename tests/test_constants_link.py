"""Every benchmark of the link suite gives back the constants of the simulated machine."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from fake_session import exactly, medians

from microbench.analysis import fits
from microbench.core.model import Fact, Measurement
from microbench.experiments.link.pipeline import chunked_copy
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.gpu import open_fake

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COSTS = FakeCosts(gpus=2)
OTHER = FakeCosts(
    gpus=2, copy_fixed_ns=3000, link_bytes_per_s=30e9, host_read_ns=2100, gap_stream_ns=900,
    links=LinkCosts(staging_bytes_per_s=7e9, fault_batch_ns=9000, peer_bytes_per_s=150e9, uplink_factor=1.2),
)  # fmt: skip
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])


def payload_rate(costs: FakeCosts, direction: str) -> float:
    return costs.link_bytes_per_s * 256 / (276 if direction == "h2d" else 280)


Row = tuple[str, dict[str, Any], dict[str, float], float]


def on_each_machine(costs: FakeCosts) -> Iterator[Row]:
    """A benchmark, its parameters, and its figures, which lie within a share of what is given."""
    links = costs.links
    up, down = payload_rate(costs, "d2h"), payload_rate(costs, "h2d")
    around_ns = costs.launch_to_start_ns + costs.completion_ns["auto"] + costs.timer_call_ns
    copied_s = {
        (direction, size_bytes): (submit_ns + around_ns + costs.copy_fixed_ns) * 1e-9 + size_bytes / rate
        for direction, submit_ns, rate in (
            ("h2d", costs.copy_h2d_submit_ns, down),
            ("d2h", costs.copy_d2h_submit_ns, up),
        )
        for size_bytes in (4, 64 * KIB, 64 * MIB)
    }
    # Upwards go 280 bytes for 256 written and 24 of requests for 256 read: taking turns, both get the same of it.
    each = costs.link_bytes_per_s * 256 / (280 + 24)
    for direction, rate in (("h2d", down), ("d2h", up)):
        # The host pays for call, start and synchronise as well.
        params: dict[str, Any] = {"direction": direction, "memory": "pinned", "size_bytes": 64 * KIB}
        yield "link_copy", params, {"bandwidth_host": 64 * KIB / copied_s[direction, 64 * KIB]}, 1e-4
        params = {"direction": direction, "size_bytes": 512 * MIB}
        yield "link_bidirectional", params, {"bandwidth": each, "sum_bandwidth": 2 * each}, 0.005
        # GPUs share their uplink.
        params = {"direction": direction, "gpu_index": 1, "beside": "all", "size_bytes": 64 * MIB}
        yield "link_concurrent", params, {"alone": rate, "together": rate * links.uplink_factor / 2}, 0.01
    # Reads beyond the reach of translations miss as often as a page is absent.
    for order in ("sequential", "random"):
        for footprint_bytes in (links.translation_reach_bytes, GIB):
            missed = 1 - links.translation_reach_bytes / footprint_bytes if order == "random" else 0
            read_ns = costs.host_read_ns + links.translation_miss_ns * missed
            params = {"what": "host_read", "footprint_bytes": footprint_bytes, "order": order}
            yield "link_latency", params, {"latency": read_ns * 1e-9}, 1e-3 if missed else 1e-4
    for what, latency_s in (
        ("flag", (costs.host_read_ns + costs.flag_to_host_ns) * 1e-9),
        ("copy_h2d", copied_s["h2d", 4]),
        ("memset", (costs.memset_submit_ns + around_ns + 64) * 1e-9),
    ):
        params = {"what": what, "footprint_bytes": 0, "order": "sequential"}
        yield "link_latency", params, {"latency": latency_s}, 1e-4
    # A batch of faults has its cost, a prefetch is a copy, and pages that are there cost nothing.
    reads_s = 64 * MIB / links.device_read_bytes_per_s
    faults, host_faults = 64 * MIB / links.fault_batch_bytes, 64 * MIB / links.host_fault_bytes
    launched_ns = costs.submit_ns + costs.launch_to_start_ns + costs.completion_ns["auto"] + costs.empty_kernel_ns
    for way, moved_s in (
        ("fault_to_device", faults * links.fault_batch_ns * 1e-9 + 64 * MIB / down + reads_s),
        ("read_mostly_to_device", faults * links.read_mostly_batch_ns * 1e-9 + 64 * MIB / down + reads_s),
        ("fault_to_host", host_faults * links.host_fault_ns * 1e-9 + 64 * MIB / up),
        ("prefetch_to_device", copied_s["h2d", 64 * MIB]),
        ("prefetch_to_host", copied_s["d2h", 64 * MIB]),
        ("again_on_device", launched_ns * 1e-9 + reads_s),
    ):
        yield "link_managed", {"way": way, "size_bytes": 64 * MIB}, {"bandwidth": 64 * MIB / moved_s}, 0.01
    # Without access the data go through the host: up the shared uplink with the requests for them.
    through_host = min(up, links.uplink_factor * each)
    by_sms = min(links.peer_sm_bytes_per_s, links.peer_bytes_per_s)
    for way, access, rate in (
        *((f"engine_{way}", "on", links.peer_bytes_per_s) for way in ("read", "write", "both_read", "both_write")),
        ("sm_read", "on", by_sms),
        ("sm_write", "on", by_sms),
        ("engine_write", "off", through_host),
    ):
        params = {"first": 1, "second": 0, "way": way, "access": access, "size_bytes": 512 * MIB}
        yield "link_peer", params, {"bandwidth": rate}, 0.01
    params = {"first": 1, "second": 0, "way": "latency", "access": "on", "size_bytes": 0}
    yield "link_peer", params, {"latency": links.peer_read_ns * 1e-9}, 1e-4
    # Pinning is a call and a cost a page.
    for way, own in links.pinning.items():
        for pages in (1, 256, 16 * KIB):
            pin_s, release_s = ((cost.at(pages) + costs.timer_call_ns) * 1e-9 for cost in (own.take, own.release))
            params = {"way": way, "size_bytes": pages * 4 * KIB}
            yield "link_pinning", params, {"pin": pin_s, "release": release_s}, 2e-3


def on_other_machines() -> Iterator[tuple[FakeCosts, str, dict[str, Any], dict[str, float], float]]:
    """The same for machines with more nodes or GPUs."""
    nodes = FakeCosts(links=LinkCosts(numa_nodes=2))
    for direction in ("h2d", "d2h"):
        for node, rate in enumerate((payload_rate(nodes, direction), nodes.links.far_node_bytes_per_s)):
            params: dict[str, Any] = {"direction": direction, "node": node, "size_bytes": 64 * MIB}
            yield nodes, "link_numa", params, {"bandwidth": rate}, 0.01
    for gpus in (4, 8):
        several = FakeCosts(gpus=gpus)
        params = {"direction": "d2h", "gpu_index": 0, "beside": "all", "size_bytes": 64 * MIB}
        share = payload_rate(several, "d2h") * several.links.uplink_factor / gpus
        yield several, "link_concurrent", params, {"together": share}, 0.01


ROWS = [*((costs, *row) for costs in (COSTS, OTHER) for row in on_each_machine(costs)), *on_other_machines()]


@pytest.mark.parametrize(
    ("costs", "name", "params", "figures", "within"), ROWS, ids=[f"{row[1]}-{row[2]}-{[*row[3]]}" for row in ROWS]
)
def test_figures_are_those_of_the_constants(
    costs: FakeCosts, name: str, params: dict[str, Any], figures: dict[str, float], within: float
) -> None:
    found = medians(name, costs, **params)
    assert {figure: found[figure] for figure in figures} == pytest.approx(figures, rel=within)


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
    ("read", 16, 0, 128 + 20),
    ("read", 16, 32, 128 + 20 * 5 / 4),
    ("write", 16, 0, 128 + 24),
    ("write", 16, 96, 128 + 24 * 5 / 4),
    ("write", 8, 64, 128 + 24 * 3 / 2),
    ("write", 4, 4, 128 + 24 * 2),
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

"""Every benchmark of the link suite gives back the constants of the simulated machine."""

import msgspec
import numpy as np
import pytest
from fake_session import exactly, medians

from microbench.analysis import fits
from microbench.core.model import Fact, Measurement
from microbench.experiments.link.managed import ManagedWay
from microbench.experiments.link.pinning import PinningWay
from microbench.experiments.link.pipeline import chunked_copy
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.gpu import open_fake

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COSTS = FakeCosts(gpus=2)
OTHER = FakeCosts(
    gpus=2,
    copy_fixed_ns=3000,
    link_bytes_per_s=30e9,
    host_read_ns=2100,
    gap_stream_ns=900,
    links=LinkCosts(staging_bytes_per_s=7e9, fault_batch_ns=9000, peer_bytes_per_s=150e9, uplink_factor=1.2),
)
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])


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
@pytest.mark.parametrize(("direction", "submit"), [("h2d", "copy_h2d_submit_ns"), ("d2h", "copy_d2h_submit_ns")])
def test_the_host_pays_for_call_start_and_synchronise_as_well(costs: FakeCosts, direction: str, submit: str) -> None:
    host_s = copy_s(costs, direction, "pinned", 64 * KIB, "bandwidth_host")
    around_ns = getattr(costs, submit) + costs.launch_to_start_ns + costs.completion_ns["auto"] + costs.timer_call_ns
    expected_s = (around_ns + costs.copy_fixed_ns) * 1e-9 + 64 * KIB / payload_rate(costs, direction)
    assert host_s == pytest.approx(expected_s, abs=2e-9)


@each_machine
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_large_pageable_copies_are_as_fast_as_the_hosts_own_copy(costs: FakeCosts, direction: str) -> None:
    figures = medians("link_copy", costs, direction=direction, memory="pageable", size_bytes=256 * MIB)
    assert set(figures) == {"bandwidth_host"}, "what blocks cannot be timed behind a gate"
    assert figures["bandwidth_host"] == pytest.approx(costs.links.staging_bytes_per_s, rel=0.06)
    assert figures["bandwidth_host"] < costs.links.staging_bytes_per_s


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_far_node_is_as_fast_as_the_way_between_the_processors(direction: str) -> None:
    costs = FakeCosts(links=LinkCosts(numa_nodes=2))
    near, far = (
        medians("link_numa", costs, direction=direction, node=node, size_bytes=64 * MIB)["bandwidth"] for node in (0, 1)
    )
    assert near == pytest.approx(payload_rate(costs, direction), rel=0.01)
    assert far == pytest.approx(costs.links.far_node_bytes_per_s, rel=0.01)


@each_machine
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_requests_take_from_what_writes_could_have(costs: FakeCosts, direction: str) -> None:
    """Upwards go 280 bytes for 256 written and 24 of requests for 256 read: taking turns, both get the same of it."""
    figures = medians("link_bidirectional", costs, direction=direction, size_bytes=512 * MIB)
    each = costs.link_bytes_per_s * 256 / (280 + 24)
    assert figures["bandwidth"] == pytest.approx(each, rel=0.005)
    assert figures["sum_bandwidth"] == pytest.approx(2 * each, rel=0.005)


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


def read_s(costs: FakeCosts, footprint_bytes: int, order: str) -> float:
    return medians("link_latency", costs, what="host_read", footprint_bytes=footprint_bytes, order=order)["latency"]


@each_machine
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_reads_beyond_the_reach_of_translations_miss_as_often_as_a_page_is_absent(costs: FakeCosts, order: str) -> None:
    links = costs.links
    for footprint_bytes in (links.translation_reach_bytes, GIB):
        missed = 1 - links.translation_reach_bytes / footprint_bytes if order == "random" else 0
        expected_ns = costs.host_read_ns + links.translation_miss_ns * missed
        assert read_s(costs, footprint_bytes, order) == pytest.approx(expected_ns * 1e-9, rel=1e-3 if missed else 1e-4)


def test_single_reads_show_the_misses() -> None:
    params: dict[str, int | str] = {"footprint_bytes": 64 * MIB, "order": "random", "what": "host_read"}
    latency, stride = exactly("link_latency", COSTS, params)
    assert stride == Fact("stride_bytes", 128, source="a line holds the address of the next")
    assert isinstance(latency, Measurement)
    assert latency.per_call is not None
    assert latency.per_call.min == pytest.approx(COSTS.host_read_ns * 1e-9)
    assert latency.per_call.p99 == pytest.approx((COSTS.host_read_ns + COSTS.links.translation_miss_ns) * 1e-9)


@each_machine
def test_the_other_exchanges(costs: FakeCosts) -> None:
    def latency(what: str) -> float:
        return medians("link_latency", costs, what=what, footprint_bytes=0, order="sequential")["latency"]

    around_ns = costs.launch_to_start_ns + costs.completion_ns["auto"] + costs.timer_call_ns
    on_wire_ns = 4 * 276 / 256 / costs.link_bytes_per_s * 1e9
    copy_ns = costs.copy_h2d_submit_ns + around_ns + costs.copy_fixed_ns + on_wire_ns
    assert latency("flag") == pytest.approx((costs.host_read_ns + costs.flag_to_host_ns) * 1e-9, abs=1e-9)
    assert latency("copy_h2d") == pytest.approx(copy_ns * 1e-9, abs=2e-9)
    assert latency("memset") == pytest.approx((costs.memset_submit_ns + around_ns + 64) * 1e-9, abs=2e-9)


@pytest.mark.parametrize("way", COSTS.links.pinning)
@pytest.mark.parametrize("act", ["pin", "release"])
def test_pinning_is_a_call_and_a_cost_a_page(way: PinningWay, act: str) -> None:
    sizes = [4 * KIB, MIB, 64 * MIB]
    fit = fits.line(
        (size // (4 * KIB), medians("link_pinning", COSTS, way=way, size_bytes=size)[act]) for size in sizes
    )
    costs = COSTS.links.pinning[way]
    expected = costs.take if act == "pin" else costs.release
    assert fit is not None
    assert fit.constant == pytest.approx((expected.constant + COSTS.timer_call_ns) * 1e-9, rel=2e-3)
    assert fit.slope == pytest.approx(expected.slope * 1e-9, rel=2e-3)


def managed_s(costs: FakeCosts, way: ManagedWay, size_bytes: int = 64 * MIB) -> float:
    return size_bytes / medians("link_managed", costs, way=way, size_bytes=size_bytes)["bandwidth"]


@each_machine
@pytest.mark.parametrize(("way", "direction", "batch_bytes", "cost"), [
    ("fault_to_device", "h2d", "fault_batch_bytes", "fault_batch_ns"),
    ("read_mostly_to_device", "h2d", "fault_batch_bytes", "read_mostly_batch_ns"),
    ("fault_to_host", "d2h", "host_fault_bytes", "host_fault_ns"),
])  # fmt: skip
def test_cost_of_a_fault_batch(costs: FakeCosts, way: ManagedWay, direction: str, batch_bytes: str, cost: str) -> None:
    links = costs.links
    batches = 64 * MIB / getattr(links, batch_bytes)
    each_s = getattr(links, cost) * 1e-9 + getattr(links, batch_bytes) / payload_rate(costs, direction)
    reads_s = 64 * MIB / links.device_read_bytes_per_s if direction == "h2d" else 0.0
    assert managed_s(costs, way) == pytest.approx(batches * each_s + reads_s, rel=0.01)


@each_machine
def test_a_prefetch_is_a_copy_and_pages_that_are_there_cost_nothing(costs: FakeCosts) -> None:
    for way, direction in (("prefetch_to_device", "h2d"), ("prefetch_to_host", "d2h")):
        copied_s = copy_s(costs, direction, "pinned", 64 * MIB, "bandwidth_host")
        assert managed_s(costs, way) == pytest.approx(copied_s, rel=0.01)  # type: ignore[arg-type]
    around_ns = costs.submit_ns + costs.launch_to_start_ns + costs.completion_ns["auto"] + costs.empty_kernel_ns
    expected_s = around_ns * 1e-9 + 64 * MIB / costs.links.device_read_bytes_per_s
    assert managed_s(costs, "again_on_device") == pytest.approx(expected_s, rel=0.01)


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


def peer(costs: FakeCosts, way: str, access: str = "on") -> dict[str, float]:
    return medians("link_peer", costs, first=1, second=0, way=way, access=access, size_bytes=512 * MIB)


@each_machine
def test_peers_keep_their_bandwidth_and_latency(costs: FakeCosts) -> None:
    links = costs.links
    for way in ("engine_read", "engine_write", "engine_both_read", "engine_both_write"):
        assert peer(costs, way)["bandwidth"] == pytest.approx(links.peer_bytes_per_s, rel=0.01), way
    for way in ("sm_read", "sm_write"):
        most = min(links.peer_sm_bytes_per_s, links.peer_bytes_per_s)
        assert peer(costs, way)["bandwidth"] == pytest.approx(most, rel=0.01), way
    assert peer(costs, "latency")["latency"] == pytest.approx(links.peer_read_ns * 1e-9, rel=1e-4)
    # Without access the data go through the host: up the shared uplink with the requests for them.
    up = links.uplink_factor * costs.link_bytes_per_s * 256 / (280 + 24)
    expected = min(payload_rate(costs, "d2h"), up)
    assert peer(costs, "engine_write", "off")["bandwidth"] == pytest.approx(expected, rel=0.01)


@each_machine
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_gpus_share_their_uplink(costs: FakeCosts, direction: str) -> None:
    params: dict[str, int | str] = {"direction": direction, "gpu_index": 1, "beside": "all", "size_bytes": 64 * MIB}
    figures = medians("link_concurrent", costs, **params)
    rate = payload_rate(costs, direction)
    assert figures["alone"] == pytest.approx(rate, rel=0.01)
    assert figures["together"] == pytest.approx(rate * costs.links.uplink_factor / 2, rel=0.01)
    links = msgspec.structs.replace(costs.links, uplink_factor=2.0)
    own_uplinks = medians("link_concurrent", msgspec.structs.replace(costs, links=links), **params)
    assert own_uplinks["together"] == pytest.approx(own_uplinks["alone"], rel=1e-3)


def test_more_gpus_get_less_of_it() -> None:
    rates = []
    for gpus in (2, 4, 8):
        costs = FakeCosts(gpus=gpus)
        params: dict[str, int | str] = {"direction": "d2h", "gpu_index": 0, "beside": "all", "size_bytes": 64 * MIB}
        rates.append(medians("link_concurrent", costs, **params)["together"])
    assert np.array(rates[:-1]) / np.array(rates[1:]) == pytest.approx([2, 2], rel=0.02)

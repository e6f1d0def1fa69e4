"""Costs of links on the simulated machine: made up, round numbers of the order of a data-centre GPU on PCIe 5.0 x16.

What a copy by a copy engine costs stands in FakeCosts: other suites copy too.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from microbench.gpu.fake.graph_costs import Line
from microbench.gpu.link_api import PinningWay

HOST_PAGE_BYTES = 4096


class PageCosts(msgspec.Struct, frozen=True):
    """Host time of a call, in ns, with what each page of HOST_PAGE_BYTES adds: to have memory, and to give it back."""

    have: Line
    release: Line


def _pinning() -> dict[PinningWay, PageCosts]:
    return {
        "allocate": PageCosts(Line(30_000, 500), Line(20_000, 250)),
        "register": PageCosts(Line(20_000, 150), Line(15_000, 80)),
        "touch": PageCosts(Line(3000, 250), Line(2000, 50)),
    }


def _sm_rates() -> dict[int, float]:
    return {4: 48e9, 8: 50e9, 16: 70e9}


class LinkCosts(msgspec.Struct, frozen=True):
    """One cost for each thing that can be done with a link; times are ns unless the last word says otherwise."""

    # What becomes of moved data: "lost" leaves every movement out, "damaged" spoils its last byte.
    arrives: Literal["right", "lost", "damaged"] = "right"
    # Host memory: how much may be taken at once, where it lies, what it costs to have.
    host_memory_limit_bytes: int = 64 << 30
    numa_nodes: int = 1  # node 0 is near
    far_node_bytes_per_s: float = 40e9
    pinning: dict[PinningWay, PageCosts] = msgspec.field(default_factory=_pinning)
    # Copies of pageable memory go through a staging buffer, piece by piece.
    staging_bytes_per_s: float = 16e9  # the host's own copy
    staging_piece_bytes: int = 512 << 10
    early_return_bytes: int = 64 << 10  # up to here a copy to the GPU returns before its data have arrived
    # Kernels on host memory: packets of at most a line, and the most that SMs ask for by bytes a thread.
    sm_packet_bytes: int = 128
    sm_bytes_per_s: dict[int, float] = msgspec.field(default_factory=_sm_rates)
    # Dependent reads of host memory: host_read_ns, and more where a page's translation is not at hand.
    translation_page_bytes: int = 2 << 20
    translation_entries: int = 16
    translation_miss_ns: float = 300.0
    # Managed memory: faults are handled a batch at a time, the data of one batch travelling before the next is seen.
    managed_memory: bool = True
    fault_batch_bytes: int = 512 << 10
    fault_batch_ns: float = 20_000.0
    read_mostly_batch_ns: float = 15_000.0  # the host keeps its pages
    host_fault_bytes: int = 64 << 10
    host_fault_ns: float = 12_000.0
    device_read_bytes_per_s: float = 3e12
    # Other GPUs: each pair has a way of its own, and all hang below one switch, whose uplink carries ``uplink_factor``
    # (1 or more) times what one GPU's link does.
    peer_denied: tuple[tuple[int, int], ...] = ()  # (first, second): no peer access of first to second
    nvlinks: int = 18  # where there are several GPUs
    nvlink_bytes_per_s: float = 25e9  # one link, one direction
    peer_bytes_per_s: float = 400e9  # by a copy engine, each direction
    peer_sm_bytes_per_s: float = 350e9
    peer_fixed_ns: float = 1500.0
    peer_read_ns: float = 850.0
    uplink_factor: float = 1.5

    def pages(self, size_bytes: int) -> int:
        """Host pages that hold that much."""
        return -(-size_bytes // HOST_PAGE_BYTES)

"""Physical ceilings by name of bound: what a rate should be held against, from what the device reports of itself."""

from __future__ import annotations

import msgspec

from microbench.model import GpuInfo, LinkInfo

# Gigatransfers a second and lane by generation, and the share of the bits that the line code leaves.
# Source: PCI Express base specification (generation 6: FLIT mode, 236 of 256 bytes).
TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
CODE_SHARE = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 236 / 256}
# Bytes that every packet carries beside its payload: posted writes, completions, either in FLIT mode.
# Source: pcie-bench/pcie-model (SIGCOMM 2018); confirmed to the byte by the H200's own packet counters.
WRITE_HEADER_BYTES, COMPLETION_HEADER_BYTES, FLIT_HEADER_BYTES = 24, 20, 16
FLIT_GENERATION = 6
ASSUMED_PAYLOAD_BYTES = 256


class Ceiling(msgspec.Struct, frozen=True):
    """The most that physics allows: ``value`` in ``unit``, ``clock`` it holds at, where from, and what was assumed."""

    value: float
    unit: str
    clock: str
    source: str
    assumptions: tuple[str, ...] = ()


def pcie_raw_rate(generation: int, lanes: int) -> float | None:
    """Bytes a second and direction on the wire after the line code, packet headers included; None if unknown."""
    if generation not in TRANSFERS_PER_S:
        return None
    return TRANSFERS_PER_S[generation] * lanes / 8 * CODE_SHARE[generation]


def pcie_rate(generation: int, lanes: int, direction: str, payload_bytes: int) -> float | None:
    """Payload bytes a second that a copy engine can reach in packets of ``payload_bytes``; None if unknown.

    ``direction`` "d2h" are posted writes, raw x P / (P + 24); "h2d" completions, raw x P / (P + 20).
    """
    raw = pcie_raw_rate(generation, lanes)
    if raw is None:
        return None
    header_bytes = COMPLETION_HEADER_BYTES if direction == "h2d" else WRITE_HEADER_BYTES
    if generation >= FLIT_GENERATION:
        header_bytes = FLIT_HEADER_BYTES
    return raw * payload_bytes / (payload_bytes + header_bytes)


def link_rate(link: LinkInfo) -> float | None:
    """Raw bytes a second and direction of the link at its full speed; None when the link is unknown."""
    if not link.generation_max or not link.lanes_max:
        return None
    return pcie_raw_rate(link.generation_max, link.lanes_max)


def ceiling(bound: str | None, gpu: GpuInfo | None) -> Ceiling | None:
    """The limit of that name on that GPU; None where there is none or the device does not say enough.

    Bounds: "pcie_h2d", "pcie_d2h". A GPU with memory of the host's own has no PCIe verdict.
    """
    if gpu is None or gpu.integrated or bound not in ("pcie_h2d", "pcie_d2h"):
        return None
    link = gpu.link
    if not link.generation_max or not link.lanes_max:
        return None
    payload_bytes = link.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
    value = pcie_rate(link.generation_max, link.lanes_max, bound.removeprefix("pcie_"), payload_bytes)
    if value is None:
        return None
    assumptions = [] if link.max_payload_bytes else [f"{ASSUMED_PAYLOAD_BYTES}-byte packets, size hidden"]
    if link.generation_max >= FLIT_GENERATION:
        assumptions.append("FLIT mode, low confidence")
    source = f"PCIe {link.generation_max} x{link.lanes_max}, {payload_bytes}-byte packets"
    return Ceiling(value, "B/s", "link", source, tuple(assumptions))

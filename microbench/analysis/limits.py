"""Computes the physical ceiling of a rate from the name of its bound and the properties of the GPU."""

from collections.abc import Iterable, Mapping

import msgspec

from microbench.analysis.rates import PER_CLOCK, Rate, rate_of
from microbench.core.model import GpuInfo, LinkInfo, Param, pcie_raw_rate
from microbench.core.units import quantity

# Bytes of a packet that are not payload: posted writes, completions, and both in FLIT mode.
# Source: pcie-bench/pcie-model (SIGCOMM 2018); confirmed to the byte by the H200's own packet counters.
WRITE_HEADER_BYTES, COMPLETION_HEADER_BYTES, FLIT_HEADER_BYTES = 24, 20, 16
FLIT_GENERATION = 6
ASSUMED_PAYLOAD_BYTES = 256
# SMs access mapped host memory in packets of a cache line, whatever the payload size of the link. A copy engine sends a
# read request, one header, for every 256 bytes it receives. Both show in the H200's byte counters.
SM_PACKET_BYTES = 128
REQUESTED_BYTES = 256
PCIE_BOUNDS = ("pcie_h2d", "pcie_d2h", "pcie_sm_read", "pcie_sm_write", "pcie_both")
NVLINK_BOUNDS = {"nvlink": 1, "nvlink_both": 2}
# Bytes that an SM can read in a clock cycle from its shared memory (32 banks of 4 bytes) and from its L1.
# Sources: CUDA C++ Programming Guide, shared memory of compute capability 5.x and later; Jia et al., Dissecting the
# NVIDIA Turing T4 GPU via Microbenchmarking (2019), for the L1 of 7.5, half as wide as that of 7.0.
SHARED_BYTES_PER_CLOCK = 128
L1_BYTES_PER_CLOCK = {
    (7, 0): 128, (7, 2): 128, (7, 5): 64, (8, 0): 128, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128,
    (10, 0): 128, (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
# The L2 has none: an H200's 37.2 B/clk/SM would be 58 % of the 64 bytes that microbenchmarks of older GPUs give to an
# SM's port, and 96 % of the 5120 bytes that the whole L2 of an A100 sends (white paper). NVIDIA states neither for the
# H200.
# HBM and GDDR transfer twice per cycle of the memory clock that NVML and the driver report.
TRANSFERS_PER_MEMORY_CLOCK = 2
# Parameters with the CUDA index of the GPU whose link moves the data, if that may differ from the GPU under test.
MOVERS = ("first", "gpu_index")


class Ceiling(msgspec.Struct, frozen=True):
    """A physical limit: ``value`` in ``unit`` at ``clock``, with its source and assumptions."""

    value: float
    unit: str
    clock: str
    source: str
    assumptions: tuple[str, ...] = ()


def pcie_rate(generation: int, lanes: int, direction: str, payload_bytes: int) -> float | None:
    """The highest payload rate of a copy engine, in B/s, with packets of ``payload_bytes``; None if unknown.

    "d2h" copies are posted writes, raw x P / (P + 24); "h2d" copies are completions, raw x P / (P + 20).
    """
    raw = pcie_raw_rate(generation, lanes)
    if raw is None:
        return None
    header_bytes = COMPLETION_HEADER_BYTES if direction == "h2d" else WRITE_HEADER_BYTES
    return raw * _payload_share(generation, header_bytes, payload_bytes)


def pcie_both_rate(generation: int, lanes: int, payload_bytes: int) -> float | None:
    """The highest payload rate of both directions together, in B/s, with copy engines busy both ways; None if unknown.

    Completions fill the link towards the GPU. In the other direction their requests, a header for every 256 bytes,
    compete with the writes: h2d + (raw - h2d x 24 / 256) x P / (P + 24). This is the maximum, because a byte more of
    h2d costs less than a byte of d2h. Source: the byte counters of an H200, which sent 24/256 of what it read.
    """
    raw = pcie_raw_rate(generation, lanes)
    h2d = pcie_rate(generation, lanes, "h2d", payload_bytes)
    if raw is None or h2d is None:
        return None
    request_bytes = FLIT_HEADER_BYTES if generation >= FLIT_GENERATION else WRITE_HEADER_BYTES
    left = raw - h2d * request_bytes / REQUESTED_BYTES
    return h2d + left * _payload_share(generation, WRITE_HEADER_BYTES, payload_bytes)


def _payload_share(generation: int, header_bytes: int, payload_bytes: int) -> float:
    """The share of a packet that is payload; in FLIT mode all headers have one length."""
    return payload_bytes / (payload_bytes + (FLIT_HEADER_BYTES if generation >= FLIT_GENERATION else header_bytes))


def mover(params: Mapping[str, Param], gpu: GpuInfo | None, gpus: Iterable[GpuInfo]) -> GpuInfo | None:
    """The GPU whose link is the limit of a case: the one of ``gpus`` that its parameters name, else ``gpu``."""
    index = next((params[name] for name in MOVERS if name in params), None)
    return next((other for other in gpus if other.index == index), gpu) if isinstance(index, int) else gpu


def ceiling(bound: str | None, gpu: GpuInfo | None) -> Ceiling | None:
    """The limit called ``bound`` on this GPU. None for an unknown name, or if the GPU does not report what it needs.

    PCIe at the GPU's full generation and width: "pcie_h2d", "pcie_d2h" and "pcie_both" (the sum) for copy engines,
    "pcie_sm_read" and "pcie_sm_write" for kernels on host memory. An integrated or coherently linked GPU has no PCIe
    ceiling. All NVLinks of the GPU: "nvlink" in one direction, "nvlink_both" the sum. Device memory: "dram". Caches of
    all SMs at their highest clock: "shared", "l1" in B/s, or with "_per_clock" in B/clk/SM at any clock; "l2" has no
    known limit. Tensor cores and ALUs, dense, at their highest clock: "tensor:", "gemm:" or "alu:" and a type or an
    instruction, or with "_per_clock" at any clock; "sparse:" is the same of tensor cores that skip zeros.
    """
    if gpu is None or bound is None:
        return None
    if bound == "dram":
        return _dram_ceiling(gpu)
    if (rate := cache_rate(bound, gpu) or rate_of(bound, gpu)) is not None:
        if not bound.endswith(PER_CLOCK):
            return _at_clock(rate, gpu, gpu.sm_clock_max_hz)
        return Ceiling(rate.value, rate.unit, "any SM clock", _sourced(rate), rate.assumptions)
    if bound in NVLINK_BOUNDS:
        links, each = gpu.link.nvlinks, gpu.link.nvlink_bytes_per_s
        if not links or not each:
            return None
        source = f"{links} NVLinks of {quantity(each, 'B/s')}"
        assumptions = ("the line rate: packet headers are not counted", "all links lead to the other GPU")
        return Ceiling(links * each * NVLINK_BOUNDS[bound], "B/s", "link", source, assumptions)
    if gpu.integrated or gpu.link.coherent or bound not in PCIE_BOUNDS:
        return None
    return _pcie_ceiling(bound, gpu.link)


def _pcie_ceiling(bound: str, link: LinkInfo) -> Ceiling | None:
    generation, lanes = link.generation_max, link.lanes_max
    if not generation or not lanes:
        return None
    by_sms = bound.startswith("pcie_sm_")
    payload_bytes = SM_PACKET_BYTES if by_sms else link.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
    way = "both ways"
    if bound == "pcie_both":
        value = pcie_both_rate(generation, lanes, payload_bytes)
    else:
        # Kernels' reads are completions, like a copy to the device; their writes are posted writes.
        down = bound in ("pcie_h2d", "pcie_sm_read")
        value = pcie_rate(generation, lanes, "h2d" if down else "d2h", payload_bytes)
        way = "to the GPU" if down else "from the GPU"
    if value is None:
        return None
    assumptions = []
    if by_sms:
        assumptions.append("SMs move host memory in cache lines, as an H200's do")
    elif not link.max_payload_bytes:
        assumptions.append(f"{ASSUMED_PAYLOAD_BYTES}-byte packets, size hidden")
    if bound == "pcie_both":
        assumptions.append(f"a read request for every {REQUESTED_BYTES} bytes, as an H200 sends them")
    if generation >= FLIT_GENERATION:
        assumptions.append("FLIT mode, low confidence")
    source = f"PCIe {generation} x{lanes} {way}, {payload_bytes}-byte packets"
    return Ceiling(value, "B/s", "link", source, tuple(assumptions))


def _dram_ceiling(gpu: GpuInfo) -> Ceiling | None:
    """Memory clock x 2 x bus width, at the highest clock that the board reports."""
    clock_hz, bits = gpu.memory_clock_max_hz, gpu.memory_bus_bits
    if not clock_hz or not bits:
        return None
    assumptions = ("all of the board's memory: a MIG instance has a share of it",) if gpu.mig else ()
    value, clock = clock_hz * TRANSFERS_PER_MEMORY_CLOCK * bits / 8, f"memory clock {_megahertz(clock_hz)}"
    return Ceiling(value, "B/s", clock, f"{clock} x {TRANSFERS_PER_MEMORY_CLOCK} x {bits} bit", assumptions)


def cache_rate(bound: str, gpu: GpuInfo) -> Rate | None:
    """What an SM can read in a clock cycle from "shared" or "l1"; None for another bound or an unknown architecture."""
    own = L1_BYTES_PER_CLOCK.get(gpu.compute_capability or (0, 0))
    caches = {"shared": ("shared memory", SHARED_BYTES_PER_CLOCK), "l1": ("L1", own)}
    name, size_bytes = caches.get(bound.removesuffix(PER_CLOCK), ("", None))
    return Rate(float(size_bytes), "B/clk/SM", name) if own is not None and size_bytes is not None else None


def ceiling_at(bound: str | None, gpu: GpuInfo | None, clock_hz: float | None) -> Ceiling | None:
    """The limit of tensor cores or ALUs at that SM clock: rate x SMs x clock, in FLOP/s or OP/s.

    None for another bound, or if the architecture, the number of SMs or the clock is unknown.
    """
    rate = rate_of(bound, gpu)
    return _at_clock(rate, gpu, clock_hz) if rate is not None and gpu is not None else None


def _at_clock(rate: Rate, gpu: GpuInfo, clock_hz: float | None) -> Ceiling | None:
    if not gpu.sm_count or not clock_hz:
        return None
    clock, unit = f"SM clock {_megahertz(clock_hz)}", rate.unit.replace("/clk/SM", "/s")
    source = _sourced(rate, f" x {gpu.sm_count} SMs x {clock}")
    return Ceiling(rate.value * gpu.sm_count * clock_hz, unit, clock, source, rate.assumptions)


def _sourced(rate: Rate, times: str = "") -> str:
    return f"{rate.by} {quantity(rate.value, rate.unit)}{times}{f' ({rate.source})' if rate.source else ''}"


def _megahertz(clock_hz: float) -> str:
    return f"{clock_hz / 1e6:.0f} MHz"

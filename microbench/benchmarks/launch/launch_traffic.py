"""How many bytes does one launch move over PCIe?

Question
    How many bytes does a launch move to and from the GPU, and do they depend on the kernel or on its arguments?
Method
    The GPU's own PCIe byte counters (NVML fields 197 and 198; on older drivers sampled rates, marked coarse) are read
    before and after several thousand calls. Idle traffic and the traffic of reading the counters are subtracted. Packet
    headers are included. In the same session pinned copies of known size check the counters in both directions.
Reading
    A few kilobytes a launch hardly use the link's bandwidth. A launch costs the latency of its exchanges, not their
    bytes.
"""

from microbench.core.ops import Copy, Launch, Memset, Op, Record
from microbench.meter.benchmark import Axis, Benchmark, Gpu, MeasurementError, Meter, Metric, Params, Results, Skip
from microbench.meter.counters import idle_traffic, traffic

CALLS = 5000
WORK_NS = 200_000_000
PAYLOAD_BYTES = 64 << 20
PAYLOADS = 8
SMALL_BYTES = 64
# Packet headers add 8 % to 256-byte packets and 16 % to 128-byte ones; a counter outside this range is wrong.
PLAUSIBLE_PER_BYTE = (1.0, 1.35)
NOT_PCIE_PER_BYTE = 0.1

OPS: dict[str, Op] = {
    "memset": Memset(SMALL_BYTES),
    "copy_h2d": Copy("h2d", SMALL_BYTES),
    "copy_d2h": Copy("d2h", SMALL_BYTES),
    "record": Record(),
}
PINNED: dict[str, Copy] = {"pinned_h2d": Copy("h2d", PAYLOAD_BYTES), "pinned_d2h": Copy("d2h", PAYLOAD_BYTES)}
GRAPHS: dict[str, int] = {"graph_1": 1, "graph_10": 10, "graph_100": 100, "graph_1000": 1000}
WORKS = ("idle", *PINNED, "launch", *GRAPHS, *OPS)


def combines(params: Params) -> bool:
    """Only a plain launch has a duration or arguments, and only one of the two."""
    varied = [name for name in ("duration_ns", "argument_bytes") if params[name] != 0]
    return len(varied) == 0 or (params["work"] == "launch" and len(varied) == 1)


def pinned(gpu: Gpu, meter: Meter, copy: Copy) -> Results:
    """Checks the counters with a copy of known size. Raises Skip where they are too coarse or do not count the link."""
    if gpu.pcie_bytes().coarse:
        raise Skip("needs the GPU's byte counters: this driver has sampled rates only")
    payload_bytes = PAYLOADS * copy.size_bytes
    measured = traffic(meter, "received_per_byte", "sent_per_byte", gpu.bind(copy), PAYLOADS, payload_bytes)
    checked = measured[0 if copy.direction == "h2d" else 1]
    low, high = PLAUSIBLE_PER_BYTE
    per_byte = sorted(checked.values)[len(checked.values) // 2] / payload_bytes
    if per_byte < NOT_PCIE_PER_BYTE:
        raise Skip("this GPU's copies do not cross PCIe: its memory is the host's, or has a link of its own")
    if not low <= per_byte <= high:
        raise MeasurementError(f"the counters saw {per_byte:.3f} bytes for each byte of a known copy")
    yield from measured


def measure(gpu: Gpu, meter: Meter, work: str, duration_ns: int, argument_bytes: int) -> Results:
    if work == "idle":
        yield from idle_traffic(meter, "idle_received", "idle_sent")
    elif work in PINNED:
        yield from pinned(gpu, meter, PINNED[work])
    elif work in GRAPHS:
        graph = gpu.graph([Launch()] * GRAPHS[work])
        yield from traffic(meter, "received", "sent", gpu.bind(graph), max(CALLS // GRAPHS[work], 100))
    else:
        op = OPS.get(work, Launch(duration_ns=duration_ns, argument_bytes=argument_bytes))
        count = min(CALLS, WORK_NS // duration_ns) if duration_ns else CALLS
        yield from traffic(meter, "received", "sent", gpu.bind(op), count)


BENCHMARK = Benchmark(
    title="PCIe traffic of a launch",
    metrics=(
        Metric("received", "count", "B/launch", "PCIe bytes to the GPU for a call, including headers"),
        Metric("sent", "count", "B/launch", "PCIe bytes from the GPU for a call, including headers"),
        Metric("idle_received", "count", "B/s", "PCIe bytes to the GPU while nothing is submitted"),
        Metric("idle_sent", "count", "B/s", "PCIe bytes from the GPU while nothing is submitted"),
        Metric("received_per_byte", "count", "1", "PCIe bytes to the GPU for each byte of a known pinned copy"),
        Metric("sent_per_byte", "count", "1", "PCIe bytes from the GPU for each byte of a known pinned copy"),
    ),
    axes={
        "work": Axis("what is submitted", ("pinned_h2d", "launch"), WORKS, WORKS),
        "duration_ns": Axis(
            "duration of the kernel; at 0 it is empty and has no arguments, else it has 8 bytes of them",
            (0, 10_000),
            (0, 2_000, 10_000, 50_000),
            (0, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000),
            maximum=20_000_000,
        ),
        "argument_bytes": Axis(
            "bytes of the parameter block", (0,), (0, 1024, 4096), (0, 64, 256, 1024, 2048, 4096), maximum=4096
        ),
    },
    combines=combines,
)

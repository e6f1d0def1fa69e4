"""How fast do kernels read and write host memory directly?

Question
    How fast do kernels read and write mapped host memory without a copy, by the width of their accesses and the offset
    of the buffer, and how many bytes do they put on the wire?
Method
    A kernel on all SMs reads pinned host memory into device memory, or writes it from there, every byte once. It is
    queued behind a gate, timed by events, and compared byte for byte at the end. The GPU's own PCIe byte counters give
    the bytes on the wire for each byte of payload.
Reading
    Copy engines send 256-byte packets, SMs 128-byte ones, whose headers take more of the link. A buffer that does not
    begin on a 128-byte line splits each warp's access, which costs reads and narrow writes most.
"""

from microbench.experiments.link.copies import Access, kernel_copy
from microbench.gpu.protocol.gpu import Transfer
from microbench.meter.benchmark import MIB, Axis, Benchmark, Fact, Gpu, Meter, Metric, Params, Results, Skip, moved
from microbench.meter.counters import traffic

WIDTHS_BYTES = (4, 8, 16)
COUNTED_BYTES = 1 << 30  # the counters wrap at 4 GiB


def combines(params: Params) -> bool:
    """Offsets that keep each access aligned to its width."""
    width_bytes = int(params["width_bytes"])
    return width_bytes in WIDTHS_BYTES and int(params["offset_bytes"]) % width_bytes == 0


def packets(gpu: Gpu, meter: Meter, transfer: Transfer) -> Results:
    """Bytes on the wire for each byte of payload, or a Fact that says why they cannot be counted."""
    count = max(COUNTED_BYTES // transfer.size_bytes, 1)
    try:
        if gpu.pcie_bytes().coarse:
            raise Skip("this driver has sampled rates only")
        payload_bytes = count * transfer.size_bytes
        yield from traffic(meter, "received_per_byte", "sent_per_byte", transfer.submit, count, payload_bytes)
    except Skip as skip:
        yield Fact("pcie_bytes_counted", False, reason=str(skip), source="NVML")


def measure(gpu: Gpu, meter: Meter, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> Results:
    transfer = kernel_copy(gpu, access, width_bytes, offset_bytes, size_bytes)
    yield from moved(meter, transfer, device="bandwidth", bound=f"pcie_sm_{access}")
    yield from packets(gpu, meter, transfer)


BENCHMARK = Benchmark(
    title="Zero-copy kernels",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes read or written over the kernel's time on the device"),
        Metric("received_per_byte", "count", "1", "PCIe bytes to the GPU for each byte of payload"),
        Metric("sent_per_byte", "count", "1", "PCIe bytes from the GPU for each byte of payload"),
    ),
    axes={
        "access": Axis.same("direction of the kernel's accesses to host memory", ("read", "write")),
        "width_bytes": Axis("bytes a thread moves at a time", (16,), (4, 16), WIDTHS_BYTES),
        "offset_bytes": Axis.sizes(
            "offset of the buffer from the start of a page", "0 B", "0 32 B", "0 4 8 16 32 64 96 B", most="4095 B"
        ),
        "size_bytes": Axis(
            "bytes of the buffer", (256 * MIB,), (256 * MIB,), (256 * MIB,), minimum=MIB, maximum=COUNTED_BYTES
        ),
    },
    combines=combines,
)

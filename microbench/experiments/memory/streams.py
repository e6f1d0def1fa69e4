"""Streaming kernels over large arrays: CUDA C++ in several launch shapes, of which the fastest is sought."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from microbench.core.model import Fact
from microbench.experiments.memory import stream_libraries as libraries
from microbench.experiments.memory.stream_libraries import DataType, Implementation, StreamKernel
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Skip, check, driver, experiment
from microbench.gpu.fake.costs import ShapeCosts
from microbench.gpu.fake.transfers import FakeKernel, through_ns
from microbench.gpu.protocol.gpu import Gpu, Transfer
from microbench.meter.timer import Meter, gated
from microbench.meter.transfers import warm_s

TRIALS = 3
TRIAL_S = 1e-3
MOST_CALLS = 100
KINDS: tuple[StreamKernel, ...] = ("read", "write", "copy", "scale", "add", "triad", "dot")
POISON_BYTE = 0xA5
MOST_BLOCKS = (1 << 31) - 1
ARRAYS = 3
NAME = re.compile(r"(grid|past|steps|bulk)_(\d+)B_x(\d+)_t(\d+)(?:_b(\d+))?")


class Shape(NamedTuple):
    """How a kernel traverses its arrays.

    ``grid``: as many blocks as there are tiles, each thread with ``ahead`` (1, 4, 8) vectors of ``width_bytes`` (16,
    32) in flight. ``past``: like ``grid`` with one vector, and loads that bypass the L1 (those of kernels that only
    read always do). ``steps``: ``blocks_per_sm`` blocks on each SM that step through the tiles. ``bulk``: those blocks,
    with ``ahead`` stages of ``width_bytes`` filled and emptied by bulk copies.
    """

    style: str
    width_bytes: int
    ahead: int
    threads: int
    blocks_per_sm: int = 0

    @property
    def name(self) -> str:
        """As results name it: grid_16B_x4_t256, steps_16B_x4_t256_b8, bulk_8192B_x4_t128_b4."""
        blocks = f"_b{self.blocks_per_sm}" if self.blocks_per_sm else ""
        return f"{self.style}_{self.width_bytes}B_x{self.ahead}_t{self.threads}{blocks}"

    @classmethod
    def named(cls, name: str) -> Shape:
        """The shape of that name. Raises MeasurementError for another text."""
        match = NAME.fullmatch(name)
        if match is None:
            raise MeasurementError(f"{name} is no shape of a streaming kernel")
        return cls(match[1], int(match[2]), int(match[3]), int(match[4]), int(match[5] or 0))

    @property
    def bulk(self) -> bool:
        return self.style == "bulk"

    @property
    def function(self) -> str:
        name = f"tiles{self.ahead}"
        return "bulk" if self.bulk else f"{name}_past_l1" if self.style == "past" else name

    def shared_bytes(self, kernel: StreamKernel) -> int:
        return max(libraries.ROLES[kernel].read, 1) * self.width_bytes * self.ahead if self.bulk else 0


# Of 130 shapes tried on an H200, the fastest for each kernel or nearly so. One vector a thread won for kernels
# that write: blocks of 128 past the L1 for copy and scale, of 1024 for add and triad, of 256 for write. More in flight
# won for those that only read; bulk copies came within 1 % for reads.
ANYWHERE = (
    Shape("past", 16, 1, 128), Shape("grid", 16, 1, 256), Shape("grid", 16, 1, 1024), Shape("grid", 16, 4, 512),
    Shape("grid", 16, 8, 256), Shape("steps", 16, 4, 512, 4),
)  # fmt: skip
BY_BULK = (Shape("bulk", 4096, 4, 128, 2), Shape("bulk", 16384, 2, 128, 4))
BY_32_BYTES = (Shape("grid", 32, 1, 128), Shape("grid", 32, 4, 256))
BULK_SINCE, WIDE_SINCE = (9, 0), (10, 0)
RESERVED_BYTES = 2048  # what the driver and the kernel's own barriers take of a block's shared memory


def _fits(case: Case, shape: Shape, kernel: StreamKernel) -> bool:
    """True if an SM has the threads, and the shared memory, of all blocks."""
    attribute = case.context.attribute
    if not shape.bulk:
        return shape.threads * max(shape.blocks_per_sm, 1) <= attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    block_bytes = shape.shared_bytes(kernel)
    within_block = block_bytes < attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    most_bytes = attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
    return within_block and (block_bytes + RESERVED_BYTES) * shape.blocks_per_sm <= most_bytes


def _cuda_stream(case: Case, arrays: libraries.Arrays, kernel: StreamKernel, shape: Shape) -> libraries.Streaming:
    """A streaming kernel of kernels/memory_stream.cu in one launch shape."""
    tile_bytes = shape.threads * shape.ahead * shape.width_bytes
    in_steps = shape.blocks_per_sm * case.sms if shape.blocks_per_sm else 0
    blocks = in_steps or min(max(arrays.size_bytes // tile_bytes, 1), MOST_BLOCKS)
    # A block of a kernel without an output array writes its own sum.
    parts = case.device_memory(libraries.WORD_BYTES * blocks) if libraries.ROLES[kernel].out is None else 0
    addresses = [arrays.address(name) for name in libraries.ROLES[kernel][:3]]
    of_bulk = (shape.width_bytes, shape.ahead) if shape.bulk else ()
    row = Parameters([(*addresses, arrays.size_bytes, parts, *of_bulk)])
    defines = {"KIND": KINDS.index(kernel), "ELEMENT": 8 * libraries.ELEMENT_BYTES[arrays.dtype]}
    wide = 16 if shape.bulk else shape.width_bytes
    function = case.function("memory_stream", shape.function, WIDE=wide, **defines)
    shared_bytes = shape.shared_bytes(kernel)
    allow_shared_memory(function, shared_bytes)
    op = Launch(grid_blocks=blocks, block_threads=shape.threads)
    submit = launch(case, function, op, row, shared_bytes=shared_bytes)
    if not parts:
        return libraries.Streaming(arrays, kernel, submit)

    def poison() -> None:
        check(driver.cuMemsetD8(parts, POISON_BYTE, libraries.WORD_BYTES * blocks))
        case.synchronize()

    return libraries.Streaming(arrays, kernel, submit, poison, lambda: arrays.add_up(parts, blocks))


def _shapes(case: Case, kernel: StreamKernel, implementation: Implementation) -> Sequence[str]:
    """Names of the launch shapes worth trying for this kernel on this GPU; a library chooses for itself and has one."""
    if implementation != "cuda":
        return (implementation,)
    candidates = [*ANYWHERE]
    if case.context.capability >= BULK_SINCE:
        candidates += BY_BULK
    if case.context.capability >= WIDE_SINCE:
        candidates += BY_32_BYTES
    return [shape.name for shape in candidates if _fits(case, shape, kernel)]


def _simulated_shapes(machine: Machine, kernel: StreamKernel, implementation: Implementation) -> Sequence[str]:
    """Raises Skip for a library that the simulated machine does not have."""
    costs, memory = machine.costs, machine.costs.memory
    if implementation == "cuda":
        return [name for name, shape in memory.shapes.items() if shape.compute_capability <= costs.compute_capability]
    if implementation not in memory.libraries:
        raise Skip(f"the simulated machine has no {implementation}")
    return [implementation]


def _stream(case: Case, kernel: StreamKernel, dtype: DataType, size_bytes: int, shape: str) -> Transfer:
    """A kernel of STREAM over arrays of ``size_bytes`` each; kernels of one case share their arrays.

    ``shape`` is one of ``shapes``: that of a kernel in CUDA C++, or a library. The ``size_bytes`` of the result are
    bytes read plus bytes written by one call.
    """
    arrays = case.once(libraries.Arrays, dtype, size_bytes)
    match shape:
        case "cupy":
            return libraries.cupy_stream(case, arrays, kernel)
        case "numba":
            return libraries.numba_stream(case, arrays, kernel)
        case _:
            return _cuda_stream(case, arrays, kernel, Shape.named(shape))


def _simulated_stream(machine: Machine, kernel: StreamKernel, dtype: DataType, size_bytes: int, shape: str) -> Transfer:
    """An SM has as many bytes in flight as the shape says, and DRAM gives the shape's share of its rate."""
    memory, element_bytes, roles = machine.costs.memory, libraries.ELEMENT_BYTES[dtype], libraries.ROLES[kernel]
    machine.room.hold(("arrays", dtype, size_bytes), ARRAYS * size_bytes)
    own: ShapeCosts | None = (memory.shapes | memory.libraries).get(shape)
    if own is None or own.compute_capability > machine.costs.compute_capability:
        raise Skip(f"the simulated GPU has no shape {shape}")
    if size_bytes < element_bytes:
        raise Skip(f"{size_bytes} B hold no element of {dtype}")
    moved_bytes = size_bytes // element_bytes * element_bytes * (roles.read + roles.written)
    rate = memory.dram_bytes_per_s.of(roles.read, roles.written) * own.share.of(roles.read, roles.written)
    busy_ns = through_ns(machine.costs, moved_bytes, own.in_flight_bytes, rate)
    return FakeKernel(machine, busy_ns, moved_bytes, submit_ns=own.submit_ns)


shapes = experiment(_shapes, _simulated_shapes)
stream = experiment(_stream, _simulated_stream)


def fastest(
    gpu: Gpu, meter: Meter, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int
) -> tuple[Transfer, Fact]:
    """The kernel in its fastest shape by the median of TRIALS samples each, and the fact ``shape``.

    It must be measured again, because the best of several trials is partly luck. Raises MeasurementError if all gates
    of one shape were late.
    """

    def make(shape: str) -> Transfer:
        return stream(gpu, kernel, dtype, size_bytes, shape)

    names = shapes(gpu, kernel, implementation)
    if len(names) == 1:
        return make(names[0]), Fact("shape", names[0], source="the only one")
    trials = {}
    for shape in names:
        transfer = make(shape)
        transfer.fresh()  # on memory full of zeros another shape of dot won on an H200, and then lost 6 %
        count = min(max(round(TRIAL_S / warm_s(transfer.submit)), 1), MOST_CALLS)
        take = gated(gpu, transfer.submit, count)
        samples = [sample for _ in range(TRIALS) for sample in take()]
        if not samples:
            raise MeasurementError("a shape could not be tried: the gate timed out each time")
        trials[shape] = float(np.median(samples)) / count
    best = min(trials, key=lambda shape: trials[shape])
    return make(best), Fact("shape", best, source=f"the fastest of {len(names)}")

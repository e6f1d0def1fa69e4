"""Streaming kernels in CUDA C++: which shapes there are on an architecture, and one of them bound to its arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.bound import Submit
from microbench.gpu.context import Context, check
from microbench.gpu.graphs.base import Case
from microbench.gpu.memory.arrays import ROLES, Arrays
from microbench.gpu.memory_api import ELEMENT_BYTES, READ_ARRAYS, WRITTEN_ARRAYS, StreamKernel
from microbench.gpu.submit import Parameters, launch
from microbench.ops import Launch

KINDS: tuple[StreamKernel, ...] = ("read", "write", "copy", "scale", "add", "triad", "dot")
WORD_BYTES = 8
POISON_BYTE = 0xA5
MOST_BLOCKS = (1 << 31) - 1
NAME = re.compile(r"(grid|past|steps|bulk)_(\d+)B_x(\d+)_t(\d+)(?:_b(\d+))?")


class Shape(NamedTuple):
    """How a kernel goes through its arrays.

    ``grid``: as many blocks as there are tiles, each thread with ``ahead`` (1, 4, 8) vectors of ``width_bytes`` (16,
    32) under way. ``steps``: ``blocks_per_sm`` blocks on each SM that step through the tiles. ``bulk``: those blocks,
    with ``ahead`` stages of ``width_bytes`` filled and emptied by bulk copies. ``past``: like ``grid`` with one vector,
    whose loads leave the L1 alone (those of kernels that only read always do).
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
        """The shape of that name. Raises MeasurementError for none."""
        found = NAME.fullmatch(name)
        if found is None:
            raise MeasurementError(f"{name} is no shape of a streaming kernel")
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]), int(found[5] or 0))

    @property
    def bulk(self) -> bool:
        """True if the data go through shared memory by bulk copies."""
        return self.style == "bulk"

    @property
    def function(self) -> str:
        """Its kernel in kernels/memory_stream.cu."""
        name = f"tiles{self.ahead}"
        return "bulk" if self.bulk else f"{name}_past_l1" if self.style == "past" else name


# Of 130 shapes tried on an H200 those that were first for some kernel, or near it. One vector a thread won for kernels
# that write: blocks of 128 past the L1 for copy and scale, of 1024 for add and triad, of 256 for write. More under way
# won for those that only read; bulk copies came within 1 % for reads.
ANYWHERE = (
    Shape("past", 16, 1, 128), Shape("grid", 16, 1, 256), Shape("grid", 16, 1, 1024), Shape("grid", 16, 4, 512),
    Shape("grid", 16, 8, 256), Shape("steps", 16, 4, 512, 4),
)  # fmt: skip
BY_BULK = (Shape("bulk", 4096, 4, 128, 2), Shape("bulk", 16384, 2, 128, 4))
BY_32_BYTES = (Shape("grid", 32, 1, 128), Shape("grid", 32, 4, 256))
BULK_SINCE, WIDE_SINCE = (9, 0), (10, 0)
RESERVED_BYTES = 2048  # what the driver and the kernel's own barriers take of a block's shared memory


class CudaStream:
    """See DeviceMemory.stream of memory_api.py: a Transfer."""

    blocks = False

    def __init__(self, case: Case, arrays: Arrays, kernel: StreamKernel, shape_name: str) -> None:
        self._context = case.context
        self._arrays = arrays
        self._kernel: StreamKernel = kernel
        self.size_bytes = arrays.size_bytes * (READ_ARRAYS[kernel] + WRITTEN_ARRAYS[kernel])
        shape = Shape.named(shape_name)
        blocks = self._blocks(shape)
        self._blocks_launched = blocks
        self._parts = case.context.device_memory(WORD_BYTES * blocks) if kernel in ("read", "dot") else 0
        roles = ROLES[kernel]
        addresses = [arrays.address(name) for name in roles]
        of_bulk = (shape.width_bytes, shape.ahead) if shape.bulk else ()
        row = Parameters([(*addresses, arrays.size_bytes, self._parts, *of_bulk)])
        defines = {"KIND": KINDS.index(kernel), "ELEMENT": 8 * ELEMENT_BYTES[arrays.dtype]}
        wide = 16 if shape.bulk else shape.width_bytes
        function = case.modules.function("memory_stream", shape.function, WIDE=wide, **defines)
        shared_bytes = self._shared_bytes(shape)
        if shared_bytes:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, most, shared_bytes))
        launched = Launch(grid_blocks=blocks, block_threads=shape.threads)
        self.submit: Submit = launch(function, launched, case.stream(0), row, shared_bytes=shared_bytes)

    def _blocks(self, shape: Shape) -> int:
        if shape.blocks_per_sm:
            return shape.blocks_per_sm * self._context.attribute("MULTIPROCESSOR_COUNT")
        tile_bytes = shape.threads * shape.ahead * shape.width_bytes
        return min(max(self._arrays.size_bytes // tile_bytes, 1), MOST_BLOCKS)

    def _shared_bytes(self, shape: Shape) -> int:
        if not shape.bulk:
            return 0
        return max(READ_ARRAYS[self._kernel], 1) * shape.width_bytes * shape.ahead

    def fresh(self) -> None:
        """See Transfer."""
        self._arrays.fresh(self._kernel)
        if self._parts:
            check(driver.cuMemsetD8(self._parts, POISON_BYTE, WORD_BYTES * self._blocks_launched))
            self._context.synchronize()

    def check(self) -> str:
        """See Transfer."""
        total = self._arrays.add_up(self._parts, self._blocks_launched) if self._parts else None
        return self._arrays.check(self._kernel, total)


def shapes_of(context: Context, kernel: StreamKernel) -> Sequence[str]:
    """Names of the shapes worth trying on this GPU for that kernel."""
    capability = (context.attribute("COMPUTE_CAPABILITY_MAJOR"), context.attribute("COMPUTE_CAPABILITY_MINOR"))
    shapes = [*ANYWHERE]
    if capability >= BULK_SINCE:
        shapes += BY_BULK
    if capability >= WIDE_SINCE:
        shapes += BY_32_BYTES
    return [shape.name for shape in shapes if _fits(context, shape, kernel)]


def _fits(context: Context, shape: Shape, kernel: StreamKernel) -> bool:
    """Whether an SM has the threads, and the shared memory of all its blocks."""
    most_threads = context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    most_bytes = context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
    if not shape.bulk:
        return shape.threads * max(shape.blocks_per_sm, 1) <= most_threads
    block_bytes = max(READ_ARRAYS[kernel], 1) * shape.width_bytes * shape.ahead
    within_block = block_bytes < context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    return within_block and (block_bytes + RESERVED_BYTES) * shape.blocks_per_sm <= most_bytes

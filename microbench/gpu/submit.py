"""Ops bound to driver entry points: each becomes an address and its integer arguments for the compiled loops."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import Skip
from microbench.gpu.api import SAFE_QUEUE_SLOTS, IntArray
from microbench.gpu.context import Context, check_code, entry_point
from microbench.host import loops
from microbench.host.native import c_address
from microbench.ops import Launch

# Large parameter blocks share a buffer of about 4.0e6 bytes; a launch takes its arguments and 1574 bytes of it
# (found on data-centre drivers of the 580 series by launch_queue), of which half is used.
ARGUMENT_BUFFER_BYTES = 4.0e6
LAUNCH_RECORD_BYTES = 1574


def safe_slots(argument_bytes: int) -> int:
    """How many launches may stand behind a gate: half of what the driver was found to take."""
    return min(SAFE_QUEUE_SLOTS, int(ARGUMENT_BUFFER_BYTES / (argument_bytes + LAUNCH_RECORD_BYTES) / 2))


class Parameters:
    """kernelParams of many launches: row i holds pointers to its own copy of 64-bit arguments.

    ``address`` is that of row 0, ``stride`` the bytes to the next, 0 for a row that serves every launch.
    A kernel reads as many low bytes of each argument as its type has (the host is little-endian).
    """

    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self._values = np.array(rows, dtype=np.uint64).reshape(len(rows), -1)
        slots = self._values.ctypes.data + 8 * np.arange(self._values.size, dtype=np.uint64)
        self._pointers: npt.NDArray[np.uint64] = slots.astype(np.uint64)
        self.address = int(self._pointers.ctypes.data)
        self.stride = 8 * self._values.shape[1] if len(rows) > 1 else 0

    def point(self, argument: int, address: int) -> None:
        """Have an argument of row 0 read from somewhere else when the kernel is launched."""
        self._pointers[argument] = address


class DriverSubmit:
    """A Submit whose calls are made by compiled loops: its figures are those of a C program.

    ``keep`` are objects whose memory the arguments point to.
    """

    def __init__(
        self,
        what: str,
        address: int,
        arguments: list[int],
        *,
        stream: int,
        queue_slots: int | None = SAFE_QUEUE_SLOTS,
        stride: int = 0,
        keep: tuple[Any, ...] = (),
    ) -> None:
        size = loops.NARROW_ARGUMENTS if len(arguments) <= loops.NARROW_ARGUMENTS else loops.WIDE_ARGUMENTS
        self.what = what
        self.address = address
        self.arguments: IntArray = np.zeros(size, dtype=np.int64)
        self.arguments[: len(arguments)] = np.array(arguments, dtype=np.uint64).astype(np.int64)
        self.queue_slots = queue_slots
        self.stride = stride
        self.stream = stream
        self._keep = keep
        self._clock = c_address("clock_gettime")
        self._synchronize = entry_point("cuStreamSynchronize")

    def __call__(self, count: int) -> None:
        check_code(loops.submit(self.address, self.arguments, self.stride, count), self.what)

    def burst_ns(self, count: int) -> int:
        code, elapsed_ns = loops.submit_timed(self.address, self.arguments, self.stride, count, self._clock)
        check_code(code, self.what)
        return int(elapsed_ns)

    def stamps(self, out_ns: IntArray) -> None:
        code = loops.submit_stamped(self.address, self.arguments, self.stride, self._clock, out_ns)
        check_code(code, self.what)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        code = loops.round_trips(
            self.address, self.arguments, calls, self._synchronize, self.stream, self._clock, out_ns
        )
        check_code(code, self.what)


def launch(
    function: int,
    op: Launch,
    stream: int,
    parameters: Parameters | None,
    keep: tuple[Any, ...] = (),
    shared_bytes: int = 0,
) -> DriverSubmit:
    """A plain launch by cuLaunchKernel; ``shared_bytes`` of dynamic shared memory a block, which the kernel allows."""
    address = parameters.address if parameters else 0
    arguments = [function, op.grid_blocks, 1, 1, op.block_threads, 1, 1, shared_bytes, stream, address, 0]
    return DriverSubmit(
        "cuLaunchKernel",
        entry_point("cuLaunchKernel"),
        arguments,
        stream=stream,
        queue_slots=safe_slots(op.argument_bytes),
        stride=parameters.stride if parameters else 0,
        keep=(parameters, *keep),
    )


def copy(direction: Literal["h2d", "d2h"], device: int, host: int, size_bytes: int, stream: int) -> DriverSubmit:
    """An asynchronous copy by a copy engine, between device memory and host memory of any kind."""
    to_device = direction == "h2d"
    name = "cuMemcpyHtoDAsync" if to_device else "cuMemcpyDtoHAsync"
    ends = [device, host] if to_device else [host, device]
    return DriverSubmit(name, entry_point(name), [*ends, size_bytes, stream], stream=stream)


def launch_extended(
    context: Context, function: int, op: Launch, stream: int, parameters: Parameters | None
) -> DriverSubmit:
    """A launch by cuLaunchKernelEx with the attribute that the op's kind names.

    Raises Skip where the GPU has no such launch.
    """
    attributes = _attributes(context, op)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = op.grid_blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = op.block_threads, 1, 1
    config.hStream = driver.CUstream(stream)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    address = parameters.address if parameters else 0
    return DriverSubmit(
        f"cuLaunchKernelEx ({op.kind})",
        entry_point("cuLaunchKernelEx"),
        [int(config.getPtr()), function, address, 0],
        stream=stream,
        queue_slots=safe_slots(op.argument_bytes),
        stride=parameters.stride if parameters else 0,
        keep=(config, attributes, parameters),
    )


def _attributes(context: Context, op: Launch) -> list[Any]:
    attribute = driver.CUlaunchAttribute()
    ids = driver.CUlaunchAttributeID
    hopper = context.attribute("COMPUTE_CAPABILITY_MAJOR") >= 9
    if op.kind == "launch_ex":
        return []
    if op.kind == "cooperative":
        if not context.attribute("COOPERATIVE_LAUNCH"):
            raise Skip("this GPU or driver has no cooperative launch")
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        return [attribute]
    if not hopper:
        raise Skip(f"a {op.kind} launch needs compute capability 9.0")
    if op.kind == "cluster":
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = op.grid_blocks
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    else:
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
    return [attribute]

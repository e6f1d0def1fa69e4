"""A short kernel in a stream with all SMs, with priority or with SMs of its own; and one that fills all other SMs."""

import time
from typing import Any, Literal

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import HIGH_PRIORITY_STREAM, IntArray
from microbench.gpu.cuda.context import STREAM_NON_BLOCKING, error_name
from microbench.gpu.experiment import Case, Launch, Machine, Parameters, Scoped, check, driver, experiment, launch
from microbench.gpu.fake.machine import bound
from microbench.gpu.protocol.gpu import Submit, require_driver

# The short kernel's stream. The long one runs in another stream: of all SMs, or in green_quarter and green_half of a
# second green context, which has the other SMs.
GreenStream = Literal["plain", "priority", "green_quarter", "green_half", "green_shared"]
PARTS: dict[GreenStream, int] = {"green_quarter": 4, "green_half": 2, "green_shared": 2}
# CUDA 12.5 has cuGreenCtxStreamCreate. A driver or GPU without green contexts, and one whose SMs cannot be divided so,
# answer CUDA_ERROR_NOT_SUPPORTED, _INVALID_RESOURCE_TYPE or _INVALID_RESOURCE_CONFIGURATION.
GREEN_VERSION, GREEN, LACKING = 12050, "streams of green contexts", (801, 914, 915)
# Blocks of the long kernel leave no room for another block on an SM, and follow each other WAVES times: priority counts
# only when a block ends. 512 divides the threads that an SM holds, in every generation.
WAVES, BLOCK_NS, BLOCK_THREADS, FILLED_S = 5, 200_000, 512, 1.0
SPREAD, SPREAD_NS = 8, 20_000  # blocks for each SM that show where a kernel runs
SM_WORDS = 1024


class ShortKernel:
    """A kernel of one block in one kind of stream. ``sms`` is how many SMs it may use.

    Raises Skip if GPU or driver have no such stream.
    """

    short: Submit
    sms: int

    def __init__(self, case: Case, kind: GreenStream) -> None:
        self._case, self._flag, self._out = case, case.pinned(1), np.zeros(1, dtype=np.int64)
        self._blocks, self._apart = case.device_memory(4 * (2 * SM_WORDS + 1)), kind in ("green_quarter", "green_half")
        stream, other, self.sms, self._filled = HIGH_PRIORITY_STREAM if kind == "priority" else 0, 1, case.sms, case.sms
        if kind in PARTS:
            case.require_driver(GREEN_VERSION, GREEN)
            sm = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
            whole = granted(driver.cuDeviceGetDevResource(case.context.device, sm))
            own, _, rest = granted(driver.cuDevSmResourceSplitByCount(1, whole, 0, case.sms // PARTS[kind]))
            stream, self.sms = green_stream(case, own[0]), int(own[0].sm.smCount)
            other = stream + 1  # of all SMs
            if self._apart:
                other, self._filled = green_stream(case, rest), int(rest.sm.smCount)
        cubin = case.context.kernels.cubin("launch_green")
        library = check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
        case.own(lambda: driver.cuLibraryUnload(library))
        # A CUkernel runs in the context of the stream; a CUfunction would belong to the current one.
        count, fill = (int(check(driver.cuLibraryGetKernel(library, name))) for name in (b"count_on_sm", b"fill"))
        self.short = launch(case, count, Launch(stream=stream), Parameters([(self._blocks, 0)]))
        spread = Launch(grid_blocks=SPREAD * self.sms, stream=stream)
        self._spread = launch(case, count, spread, Parameters([(self._blocks, case.cycles(SPREAD_NS))]))
        at_once = self._filled * (case.context.attribute("MAX_THREADS_PER_MULTIPROCESSOR") // BLOCK_THREADS)
        op = Launch(grid_blocks=WAVES * at_once, block_threads=BLOCK_THREADS, stream=other)
        filled, flag = self._blocks + 4 * SM_WORDS, int(self._flag.ctypes.data)
        row = (filled, filled + 4 * SM_WORDS, at_once, flag, case.cycles(BLOCK_NS))
        self._long, self._long_blocks = launch(case, fill, op, Parameters([row])), WAVES * at_once

    def beside_ns(self) -> int:
        """Host time from the short kernel's launch until the host knows its end; the long one fills its SMs before."""
        self._flag[0] = 0
        self._long(1)
        until_s = time.monotonic() + FILLED_S
        while not self._flag[0]:
            if time.monotonic() > until_s:
                raise MeasurementError("a long kernel did not fill its SMs: is another process using this GPU?")
        self.short.round_trips(self._out)
        self._case.synchronize()
        return int(self._out[0])

    def check(self) -> str:
        """Run both kernels. Raises MeasurementError if a block is missing, or ran on an SM that is not its own."""
        self._case.clear(self._blocks, 4 * 2 * SM_WORDS)
        for submit in (self._spread, self._long):
            submit(1)
            self._case.synchronize()
        short, long = self._case.read(self._blocks, 2 * SM_WORDS, np.uint32).reshape(2, SM_WORDS)
        if int(short.sum()) != SPREAD * self.sms or int(long.sum()) != self._long_blocks:
            raise MeasurementError("blocks of a kernel are missing")
        used, filled, both = (int(np.count_nonzero(where)) for where in (short, long, short * long))
        if used > self.sms or filled > self._filled or (self._apart and both):
            raise MeasurementError(
                f"kernels that may use {self.sms} and {self._filled} SMs ran on {used} and {filled}, both on {both}"
            )
        return "every block counted itself on an SM that its stream may use"


def granted(result: Any) -> Any:
    """As ``check``; raises Skip where GPU or driver have no green contexts."""
    if (code := int(result[0])) in LACKING:
        raise Skip(f"this GPU or its driver does not make green contexts of this size: {error_name(code)}")
    return check(result)


def green_stream(case: Case, sms: Any) -> int:
    """The index of a new stream in a new green context of these SMs. The case destroys both."""
    description = granted(driver.cuDevResourceGenerateDesc([sms], 1))
    flags = int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)  # CUDA 12 requires it
    green = granted(driver.cuGreenCtxCreate(description, case.context.device, flags))
    case.own(lambda: driver.cuGreenCtxDestroy(green))
    stream = check(driver.cuGreenCtxStreamCreate(green, STREAM_NON_BLOCKING, 0))
    case.own(lambda: driver.cuStreamDestroy(stream))
    return case.adopt(int(stream))


class SimulatedShortKernel(Scoped, ShortKernel):
    """SIMULATED: the short kernel waits for the whole long one, for one of its blocks, or on its own SMs for none."""

    def __init__(self, machine: Machine, kind: GreenStream) -> None:
        super().__init__(machine)
        costs = machine.costs
        if kind in PARTS:
            require_driver(costs.cuda_driver_version, GREEN_VERSION, GREEN)
        self.sms = costs.sm_count // PARTS.get(kind, 1)
        self.short = bound(machine, Launch())
        self._out: IntArray = np.zeros(1, dtype=np.int64)
        self._waits_ns = BLOCK_NS * {"plain": WAVES, "priority": 1, "green_shared": WAVES}.get(kind, 0)

    def beside_ns(self) -> int:
        self.short.round_trips(self._out)
        return int(self._out[0] + self._machine.spent(self._machine.noise.device(self._waits_ns, 1))[0])

    def check(self) -> str:
        return self._machine.ran("every block counted itself on an SM (SIMULATED)", self.short)


short_kernel = experiment(ShortKernel, SimulatedShortKernel)

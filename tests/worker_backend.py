"""Devices for workers under test: what the tests of runner and worker put in place of microbench/gpu/open.py."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from microbench.core.errors import DeviceAbsentError, Skip
from microbench.core.model import Environment, GpuInfo, Telemetry
from microbench.core.ops import IntArray
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import Gpu

ONE, OTHER, STUBBORN = "GPU-one", "GPU-other", "GPU-stubborn"
NO_GPU = "no driver is installed"


class RealClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()


class TinyHost:
    """As much of a Host as the floors need."""

    simulated = False

    def __init__(self) -> None:
        self.clock = RealClock()

    def clock_stamps(self, count: int) -> IntArray:
        return np.arange(count, dtype=np.int64) * 30


class TinyGpu:
    """As much of a Gpu as a worker needs itself. It says on request what was done to it."""

    def __init__(self, uuid: str) -> None:
        self.clock = RealClock()
        self.uuid = uuid
        self.done: list[str] = []

    @contextmanager
    def case(self) -> Iterator[None]:
        self.done.append("begin")
        try:
            yield
        finally:
            self.done.append("end")

    def telemetry(self) -> Telemetry:
        self.done.append("telemetry")
        return Telemetry(sm_clock_begin_hz=1e9 + len(self.done), throttle_reasons=(f"reason {len(self.done)}",))


class TinyCold:
    pass


def load_gpu(device: str) -> None:
    """What is imported kills the process if the environment says so."""
    if os.environ.get("KILLED_BY_IMPORT"):
        os._exit(3)


def open_gpu(device: str) -> TinyGpu | Gpu:
    """The stubborn one is simulated whole, with a driver that refuses to update graphs."""
    if device == STUBBORN:
        return open_fake(FakeCosts(refuses_updates=True))
    if device == "GPU-hanging":
        time.sleep(600)
    if device == "GPU-refusing":
        raise Skip("this GPU does not like us")
    return TinyGpu(device)


def open_host(device: str | None) -> TinyHost:
    return TinyHost()


def open_cold(device: str) -> TinyCold:
    return TinyCold()


def gpu(uuid: str) -> GpuInfo:
    return GpuInfo(name="tiny", uuid=uuid, simulated=uuid == "GPU-fake")


def probe_environment(device: str | None) -> Environment:
    """What there is to find depends on the name asked for; without one, on a variable."""
    asked = device or os.environ.get("TINY_MACHINE", "nothing")
    if asked == "crash":
        os.abort()
    if asked == "hang":
        time.sleep(600)
    if asked == "absent":
        raise DeviceAbsentError("absent is not here", "plug it in")
    if asked == "confused":
        raise RuntimeError("the driver answers nonsense")
    if asked in ("nothing", "all"):
        return Environment(no_gpu_reason=NO_GPU, no_gpu_next_step="install one")
    found = {
        "one": (ONE,), "two": (ONE, OTHER), "fake": ("GPU-fake",), "refusing": ("GPU-refusing",),
        "hanging": ("GPU-hanging",), "stubborn": (STUBBORN,),
    }[asked]  # fmt: skip
    return Environment(gpus=tuple(gpu(uuid) for uuid in found))

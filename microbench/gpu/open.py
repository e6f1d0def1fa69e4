"""Opening a device by name: "fake" or a GPU's UUID. Backends are imported only when asked for."""

from __future__ import annotations

from microbench.core.model import Environment
from microbench.gpu.protocol.gpu import ColdStarts, Gpu, Host

FAKE = "fake"


def open_gpu(device: str) -> Gpu:
    """The GPU of that UUID, or the simulated one. Raises DeviceAbsentError or MeasurementError."""
    if device == FAKE:
        from microbench.gpu.fake.gpu import open_fake

        return open_fake()
    from microbench.gpu.cuda.device import open_gpu as open_cuda

    return open_cuda(device)


def open_host(device: str | None) -> Host:
    """This machine's CPU side, or with "fake" the simulated one."""
    if device == FAKE:
        from microbench.gpu.fake.environment import FakeHost

        return FakeHost()
    from microbench.host.native import NativeHost

    return NativeHost()


def open_cold(device: str) -> ColdStarts:
    """First acts on the GPU of that UUID, or on the simulated one; nothing has touched the GPU yet."""
    if device == FAKE:
        from microbench.gpu.fake.environment import open_fake_cold

        return open_fake_cold()
    from microbench.gpu.cuda.device import open_cold as open_cuda_cold

    return open_cuda_cold(device)


def probe_environment(device: str | None) -> Environment:
    """This machine and the GPUs that ``device`` selects: None and "all" every one, "cuda:N", a UUID, or "fake".

    Raises DeviceAbsentError when a named one is not here, UsageError when it is no name of a device.
    """
    if device == FAKE:
        from microbench.gpu.fake.environment import fake_environment

        return fake_environment()
    from microbench.gpu.cuda.probe import probe

    return probe(device)

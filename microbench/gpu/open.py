"""Opens a device by name: "fake" or a GPU's UUID. A backend is imported when it is first asked for."""

from __future__ import annotations

from microbench.core.model import Environment
from microbench.gpu.protocol.gpu import ColdStarts, Gpu, Host

FAKE = "fake"


def open_gpu(device: str) -> Gpu:
    """The GPU with this UUID, or the simulated one. Raises DeviceAbsentError or MeasurementError."""
    if device == FAKE:
        from microbench.gpu.fake.gpu import open_fake

        return open_fake()
    from microbench.gpu.cuda.device import open_gpu as open_cuda

    return open_cuda(device)


def open_host(device: str | None) -> Host:
    """The CPU side of this machine, or of the simulated one."""
    if device == FAKE:
        from microbench.gpu.fake.environment import FakeHost

        return FakeHost()
    from microbench.host.native import NativeHost

    return NativeHost()


def open_cold(device: str) -> ColdStarts:
    """First acts on the GPU with this UUID, or on the simulated one, in a process that has not touched it yet."""
    if device == FAKE:
        from microbench.gpu.fake.environment import open_fake_cold

        return open_fake_cold()
    from microbench.gpu.cuda.cold import CudaColdStarts

    return CudaColdStarts(device)


def probe_environment(device: str | None) -> Environment:
    """This machine and the GPUs that ``device`` selects: None or "all" for every GPU, "cuda:N", a UUID, or "fake".

    Raises DeviceAbsentError if the named GPU is absent, UsageError if ``device`` is not a device name.
    """
    if device == FAKE:
        from microbench.gpu.fake.environment import fake_environment

        return fake_environment()
    from microbench.gpu.probe import probe

    return probe(device)

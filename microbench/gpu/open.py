"""Opens a device by name: "fake" or a GPU's UUID. A backend is imported when it is first needed."""

from functools import partial

from microbench.core.errors import DeviceAbsentError, MeasurementError
from microbench.core.model import Environment
from microbench.gpu.protocol.gpu import ColdStarts, Gpu, Host

FAKE = "fake"


def load_gpu(device: str) -> None:
    """Import what ``open_gpu`` needs, without touching the GPU."""
    if device == FAKE:
        import microbench.gpu.fake.gpu
    else:
        import microbench.gpu.cuda.device  # noqa: F401


def open_gpu(device: str) -> Gpu:
    """The GPU with this UUID, or the simulated one. Raises DeviceAbsentError or MeasurementError."""
    if device == FAKE:
        from microbench.gpu.fake.gpu import open_fake, seed_here

        return open_fake(seed=seed_here())
    from microbench.gpu.cuda.device import open_gpu as open_cuda

    return open_cuda(device)


def open_host(device: str | None) -> Host:
    """The CPU side of this machine, or of the simulated one."""
    if device == FAKE:
        from microbench.gpu.fake.gpu import FakeHost, costs_here, seed_here

        return FakeHost(costs_here(), seed=seed_here())
    from microbench.host.native import NativeHost

    return NativeHost()


def open_cold(device: str) -> ColdStarts:
    """First uses of the GPU with this UUID, or of the simulated one, in a process that has not touched it yet."""
    if device == FAKE:
        from microbench.gpu.fake.gpu import costs_here, open_fake_cold, seed_here

        return open_fake_cold(costs_here(), seed=seed_here())
    from microbench.gpu.cuda import cold

    return partial(cold.seconds, device)


def probe_environment(device: str | None) -> Environment:
    """This machine and the GPUs that ``device`` selects: None or "all" for every GPU, "cuda:N", a UUID, or "fake".

    With None only the first is measured; the others may be the far ends of its links. Without a GPU package the
    Environment says why there is no GPU. Raises DeviceAbsentError if a named GPU is absent, UsageError if ``device``
    is not a device name.
    """
    if device == FAKE:
        from microbench.gpu.fake.gpu import fake_environment

        return fake_environment()
    from microbench.gpu.cuda import probe
    from microbench.gpu.machine.diagnosis import why_no_gpu

    probe.check_name(device)
    absent = why_no_gpu()
    if absent is None:
        try:
            return probe.environment_of(device)
        except MeasurementError as error:
            reason, next_step = str(error), "see `microbench doctor`"
    else:
        reason, next_step = absent.reason, absent.next_step
    if device not in (None, "all"):
        raise DeviceAbsentError(f"{device} is not here: {reason}", next_step)
    return Environment(
        packages=probe.packages(),
        facts=probe.facts_near(None),
        no_gpu_reason=reason,
        no_gpu_next_step=next_step,
    )

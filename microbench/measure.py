"""One case measured whole: the device opened, the benchmark run to its end, its yield checked and put together."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from microbench import schema
from microbench.bench import Benchmark
from microbench.errors import MeasurementError
from microbench.gpu.api import Gpu, HostClock
from microbench.messages import Job, Order
from microbench.model import Fact, Measurement, Outcome, Series, Telemetry
from microbench.timing import Meter


class MonotonicClock:
    """The clock of a cold process, which has neither a GPU nor a Host to bring one."""

    def now_ns(self) -> int:
        """See HostClock."""
        return time.monotonic_ns()


@dataclass
class Device:
    """What the job's seam opened: first argument of a benchmark, the clock of its Meter, and the GPU if it is one."""

    target: Any
    clock: HostClock
    gpu: Gpu | None = None
    seen: set[str] = field(default_factory=set)


def open_device(job: Job) -> Device:
    """Open what the job asks for. Raises whatever the backend does."""
    backend: Any = importlib.import_module(job.backend)
    if job.seam == "host":
        host = backend.open_host(job.device)
        return Device(host, host.clock)
    if job.seam == "cold":
        return Device(backend.open_cold(job.device), MonotonicClock())
    gpu = backend.open_gpu(job.device)
    return Device(gpu, gpu.clock, gpu)


def measure(benchmark: Benchmark, device: Device, meter: Meter, order: Order) -> Outcome:
    """One case measured whole: a benchmark that raises leaves no number behind, whatever it yielded before.

    Raises what the benchmark does, and MeasurementError for results that cannot be stored.
    """
    with device.gpu.case() if device.gpu else nullcontext():
        before = device.gpu.telemetry() if device.gpu else None
        found = list(benchmark.measure(device.target, meter, **order.case.params))
        after = device.gpu.telemetry() if device.gpu else None
    measurements = tuple(item for item in found if isinstance(item, Measurement))
    facts = tuple(item for item in found if isinstance(item, Fact))
    series = tuple(item for item in found if isinstance(item, Series))
    if len(measurements) + len(facts) + len(series) != len(found):
        raise MeasurementError(f"{benchmark.name} yields what is no Measurement, Fact or Series")
    _check_metrics(benchmark, [one.metric for one in measurements])
    telemetry = {order.device: both_ends(before, after)} if order.device and before and after else {}
    outcome = Outcome(
        order.case, order.session, order.round, "ok",
        measurements=measurements, facts=facts, series=series, telemetry=telemetry, device=order.device,
    )  # fmt: skip
    schema.encode_outcome(outcome)  # refuses a NaN here, where it is this case's failure
    return outcome


def _check_metrics(benchmark: Benchmark, names: Sequence[str]) -> None:
    for name in names:
        if name not in {metric.name for metric in benchmark.metrics}:
            raise MeasurementError(f"{benchmark.name} yields {name}, which it does not declare")
        if names.count(name) > 1:
            raise MeasurementError(f"{benchmark.name} yields {name} twice")


def both_ends(before: Telemetry, after: Telemetry) -> Telemetry:
    """One telemetry of the readings before and after a case: both SM clocks, every reason seen, else the later one."""
    return msgspec.structs.replace(
        after,
        sm_clock_begin_hz=before.sm_clock_begin_hz,
        sm_clock_end_hz=after.sm_clock_end_hz or after.sm_clock_begin_hz,
        throttle_reasons=tuple(dict.fromkeys((*before.throttle_reasons, *after.throttle_reasons))),
    )

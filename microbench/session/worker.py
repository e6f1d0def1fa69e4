"""The worker process: opens one device, measures the cases that the parent orders, and sends the outcomes.

It is started as ``python -m microbench.session.worker``. microbench/session/messages.py lists the messages. They go to
a private stream, so that a library's print cannot break them.
"""

import ctypes
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic  # a user's function may replace the names in the module
from typing import IO, Any, TypeVar

import msgspec

from microbench.archive import schema
from microbench.core.bench import Benchmark, discover
from microbench.core.errors import MeasurementError, MicrobenchError, Skip
from microbench.core.model import Fact, Measurement, Outcome, Series, Telemetry
from microbench.gpu.protocol.gpu import Gpu, HostClock
from microbench.host.affinity import cpus_near, find_cores, pin
from microbench.host.native import MonotonicClock
from microbench.meter.floors import host_floors, measure_floors
from microbench.meter.sampling import SamplingLimits
from microbench.meter.timer import Meter
from microbench.session import messages
from microbench.session.plan import FAKE

Result = TypeVar("Result")
Send = Callable[[messages.Message], None]

HERE = Path(__file__).parent


@dataclass
class Device:
    """The opened device: ``target`` is a benchmark's first argument, ``clock`` its Meter's clock.

    ``gpu`` is set for a GPU. ``seen`` names the benchmarks that this process has measured.
    """

    target: Any
    clock: HostClock
    gpu: Gpu | None = None
    seen: set[str] = field(default_factory=set)


def open_device(job: messages.Job) -> Device:
    """Open the job's device. Raises whatever the backend raises."""
    backend: Any = importlib.import_module(job.backend)
    if job.seam == "host":
        host = backend.open_host(job.device)
        return Device(host, host.clock)
    if job.seam == "cold":
        return Device(backend.open_cold(job.device), MonotonicClock())
    gpu = backend.open_gpu(job.device)
    return Device(gpu, gpu.clock, gpu)


def measure(benchmark: Benchmark, device: Device, meter: Meter, order: messages.Order) -> Outcome:
    """Measure one case. If the benchmark raises, nothing that it yielded before is kept.

    Raises what the benchmark raises, and MeasurementError for results that cannot be stored.
    """
    with device.gpu.case() if device.gpu else nullcontext():
        before = device.gpu.telemetry() if device.gpu else None
        items = list(benchmark.measure(device.target, meter, **order.case.params))
        after = device.gpu.telemetry() if device.gpu else None
    measurements = tuple(item for item in items if isinstance(item, Measurement))
    facts = tuple(item for item in items if isinstance(item, Fact))
    series = tuple(item for item in items if isinstance(item, Series))
    if len(measurements) + len(facts) + len(series) != len(items):
        raise MeasurementError(f"{benchmark.name} yields something that is not a Measurement, Fact or Series")
    names = [measurement.metric for measurement in measurements]
    for name in names:
        if name not in {metric.name for metric in benchmark.metrics}:
            raise MeasurementError(f"{benchmark.name} yields {name}, which it does not declare")
        if names.count(name) > 1:
            raise MeasurementError(f"{benchmark.name} yields {name} twice")
    telemetry = {order.device: both_ends(before, after)} if order.device and before and after else {}
    outcome = Outcome(
        order.case, order.session, order.round, "ok",
        measurements=measurements, facts=facts, series=series, telemetry=telemetry, device=order.device,
    )  # fmt: skip
    schema.encode_outcome(outcome)  # raises for a NaN here, so that this case fails
    return outcome


def both_ends(before: Telemetry, after: Telemetry) -> Telemetry:
    """The telemetry of a case: both SM clocks, the throttle reasons of both readings, all else from ``after``."""
    return msgspec.structs.replace(
        after,
        sm_clock_begin_hz=before.sm_clock_begin_hz,
        sm_clock_end_hz=after.sm_clock_end_hz or after.sm_clock_begin_hz,
        throttle_reasons=tuple(dict.fromkeys((*before.throttle_reasons, *after.throttle_reasons))),
    )


def guarded(action: Callable[[], Result]) -> Result | messages.Refused:
    """What ``action`` returns, or a Refused that says why it failed."""
    try:
        return action()
    except Skip as skip:
        return messages.Refused("skipped", str(skip))
    except MicrobenchError as error:
        return messages.Refused("failed", error.cause, error.next_step, int(error.exit_code))
    except MeasurementError as error:
        return messages.Refused("failed", str(error))
    except Exception as error:  # noqa: BLE001 - THE BOUNDARY: benchmarks call any library, and each raises its own
        traceback.print_exc()
        return messages.Refused("failed", f"{type(error).__name__}: {error} ({_place(error)})")


def _place(error: Exception) -> str:
    """The innermost traceback line in this package outside run/, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame for frame in frames if Path(frame.filename).parent != HERE and HERE.parent in Path(frame.filename).parents
    ]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def run_case(job: messages.Job, device: Device, benchmark: Benchmark, order: messages.Order, send: Send) -> Outcome:
    """Measure one case; an error becomes an outcome too."""
    began_s = monotonic()
    if benchmark.name not in device.seen:
        device.seen.add(benchmark.name)
        send(messages.Busy("loading and compiling"))
    limits, tick = SamplingLimits(seconds=order.seconds), throttled(send, every_s=0.25)
    meter = Meter(device.clock, device.gpu, job.floors, limits, tick)
    outcome = guarded(lambda: measure(benchmark, device, meter, order))
    if isinstance(outcome, messages.Refused):
        outcome = Outcome(
            order.case, order.session, order.round, outcome.status, reason=outcome.reason, device=order.device
        )
    return msgspec.structs.replace(outcome, wall_s=round(monotonic() - began_s, 6))


def throttled(send: Send, every_s: float) -> Callable[[str, int, float], None]:
    """A Meter's tick that sends at most one message in ``every_s`` seconds, the first at once."""
    sent_s = -every_s

    def tick(metric: str, n: int, value: float) -> None:
        nonlocal sent_s
        if monotonic() - sent_s >= every_s:
            sent_s = monotonic()
            send(messages.Tick(metric, n, value))

    return tick


def serve(job: messages.Job, orders: Iterable[bytes], send: Send) -> None:
    """Open the device, then measure each order until a case fails or the orders end."""
    send(messages.Busy("opening the device"))
    if job.seam == "gpu":  # the driver's own memory and threads belong near the GPU too
        pin(cpus_near(job.near_node, job.allowed_cpus))
    opened = guarded(lambda: (discover(job.benchmarks), open_device(job)))
    if isinstance(opened, messages.Refused):
        send(opened)
        return
    benchmarks, device = opened
    if job.seam != "cold":  # cold starts are measured unpinned, as in any program
        pin((find_cores(job.near_node).worker_core,))  # after opening, so that the driver's threads stay unpinned
    send(messages.Ready())
    for line in orders:
        order = msgspec.json.decode(line, type=messages.Order)
        outcome = run_case(job, device, benchmarks[order.case.benchmark], order, send)
        send(messages.CaseDone(outcome))
        if outcome.status not in ("ok", "skipped"):
            return  # the error may have broken the CUDA context: the parent starts a new process


def probe(job: messages.Job, send: Send) -> None:
    """Send the environment, then the floors: the host's first, because opening the GPU may end this process."""
    send(messages.Busy("looking at the machine"))
    backend: Any = importlib.import_module(job.backend)
    environment = guarded(lambda: backend.probe_environment(job.device))
    if isinstance(environment, messages.Refused):
        send(environment)
        return
    send(messages.Probed(environment))
    gpu = environment.gpus[0] if environment.gpus else None
    fake = FAKE if gpu is not None and gpu.simulated else None
    floors = guarded(lambda: host_floors(backend.open_host(fake)))
    if not isinstance(floors, messages.Refused):
        send(messages.FloorsFound(floors))
    if gpu is not None:
        send(messages.Busy("opening the GPU"))
        floors = guarded(lambda: measure_floors(backend.open_host(fake), backend.open_gpu(fake or gpu.uuid)))
        if not isinstance(floors, messages.Refused):
            send(messages.FloorsFound(floors))
    send(messages.Ready())


def prepared(job: messages.Job, orders: IO[bytes], send: Send) -> bool:
    """Import what the job will need without touching the GPU, then wait for the parent's line; False if the parent does
    not need this process any more."""
    pin(cpus_near(job.near_node, job.allowed_cpus))
    backend: Any = importlib.import_module(job.backend)
    guarded(lambda: backend.load_gpu(job.device))  # what cannot be imported is reported when the device is opened
    for name in job.packages:
        guarded(partial(importlib.import_module, name))  # or by the cases that need it
    guarded(lambda: discover(job.benchmarks))
    send(messages.Waiting())
    return bool(orders.readline())


def main() -> None:
    """Run the worker until its orders end."""
    # Private copies of stdin and stdout: a library reads from an empty stdin and prints to stderr.
    orders = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    job = msgspec.json.decode(orders.readline(), type=messages.Job)
    # The kernel kills this process when the parent ends, because nothing else would stop a case that hangs.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != job.parent_pid:
        sys.exit("the parent is gone")

    def send(message: messages.Message) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    if job.waits and not prepared(job, orders, send):
        return
    pin(job.allowed_cpus)  # this process has inherited the parent's pinning
    if job.seam == "probe":
        probe(job, send)
    else:
        serve(job, orders, send)


if __name__ == "__main__":
    main()

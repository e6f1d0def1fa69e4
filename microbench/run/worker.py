"""The child: opens one device, measures one case after another, and answers in JSON lines on a private stream.

Started as ``python -m microbench.run.worker``; microbench/run/messages.py says who says what.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np

from microbench.core.bench import Benchmark, discover
from microbench.core.errors import MeasurementError, MicrobenchError, Skip
from microbench.core.model import Fact, Floors, Measurement, Outcome, Series, Telemetry
from microbench.core.ops import Launch, SynchronizeIdle
from microbench.gpu.protocol.gpu import Gpu, Host, HostClock
from microbench.host.affinity import cpus_near, find_cores, pin
from microbench.measure.sampling import SamplingLimits, clock_step_ns
from microbench.measure.timer import Meter
from microbench.run.messages import Busy, Done, Floored, Job, Message, Order, Probed, Ready, Refused, Started, Tick
from microbench.run.plan import FAKE
from microbench.runs import schema

# The floors of a session: the cheapest thing each way of timing can see, which no sample should come near.


STAMPS = 10_000
REPEATS = 30
CALLS = 100
NANOSECOND_S = 1e-9


def host_floors(host: Host) -> Floors:
    """Step and cost of the host's clock, from readings with nothing between them.

    The cost is the median time of a reading; where the clock steps more coarsely than a reading takes, the mean.
    """
    host.clock_stamps(STAMPS)  # compiles the loop, warms the cache
    stamps_ns = host.clock_stamps(STAMPS)
    between_ns = np.diff(stamps_ns)
    step_ns = clock_step_ns(stamps_ns)
    call_ns = float(np.median(between_ns)) or float(stamps_ns[-1] - stamps_ns[0]) / len(between_ns)
    return Floors(
        timer_step_s=step_ns * NANOSECOND_S if step_ns else None,
        timer_call_s=call_ns * NANOSECOND_S if call_ns > 0 else None,
    )


def measure_floors(host: Host, gpu: Gpu | None = None) -> Floors:
    """The host's floors and, with a GPU, those of its ways of timing: medians of REPEATS. None where there is none."""
    floors = host_floors(host)
    if gpu is None:
        return floors
    with gpu.case():
        readings_s = _event_readings_s(gpu)
        return msgspec.structs.replace(
            floors,
            empty_submit_s=_call_s(gpu, Launch()),
            event_pair_s=round(statistics.median(readings_s), 12) if readings_s else None,
            event_step_s=_step_s(readings_s),
            idle_sync_s=_call_s(gpu, SynchronizeIdle("stream")),
        )


def _call_s(gpu: Gpu, op: Launch | SynchronizeIdle) -> float | None:
    """Host time of one call, from bursts with the GPU idle before each."""
    try:
        submit = gpu.bind(op)
    except Skip:
        return None
    bursts_ns = []
    for _ in range(REPEATS + 1):
        gpu.synchronize()
        bursts_ns.append(submit.burst_ns(CALLS))
    gpu.synchronize()
    return statistics.median(bursts_ns[1:]) / CALLS * NANOSECOND_S  # the first one loads the kernel


def _event_readings_s(gpu: Gpu) -> list[float]:
    """What a pair of events around nothing reads, both queued behind a gate, REPEATS times."""
    gate, events = gpu.gate(), gpu.events()
    readings_s = []
    for _ in range(REPEATS):
        gate.shut()
        events.start()
        events.stop()
        gate.open()
        gpu.synchronize()
        if not gate.was_late():
            readings_s.append(events.elapsed_s())
    return readings_s


def _step_s(readings_s: list[float]) -> float | None:
    """The least by which two readings differ, to the nanosecond (a reading is a float of milliseconds)."""
    distinct = sorted({round(reading_s, 9) for reading_s in readings_s})
    return min((round(second - first, 9) for first, second in pairwise(distinct)), default=None)


# One case measured whole: the device opened, the benchmark run to its end, its yield checked and put together.


class MonotonicClock:
    """The clock of a cold process, which has neither a GPU nor a Host to bring one."""

    def now_ns(self) -> int:
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


Result = TypeVar("Result")
Send = Callable[[Message], None]

TICK_EVERY_S = 0.25
PR_SET_PDEATHSIG = 1
HERE = Path(__file__).parent


def guarded(action: Callable[[], Result]) -> Result | Refused:
    """What ``action`` returns, or in words why it could not."""
    try:
        return action()
    except Skip as skip:
        return Refused("skipped", str(skip))
    except MicrobenchError as error:
        return Refused("failed", error.cause, error.next_step, int(error.exit_code))
    except MeasurementError as error:
        return Refused("failed", str(error))
    except Exception as error:  # noqa: BLE001 - THE BOUNDARY: benchmarks call any library, and each raises its own
        traceback.print_exc()
        return Refused("failed", f"{type(error).__name__}: {error} ({_place(error)})")


def _place(error: Exception) -> str:
    """The innermost line of a benchmark or backend of this package that the error passed, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame for frame in frames if Path(frame.filename).parent != HERE and HERE.parent in Path(frame.filename).parents
    ]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def run_case(job: Job, device: Device, benchmark: Benchmark, order: Order, send: Send) -> Outcome:
    """One case from its start to its outcome, whatever happens in it."""
    began_s = time.monotonic()
    send(Started(order.case.id))
    if benchmark.name not in device.seen:
        device.seen.add(benchmark.name)
        send(Busy("loading and compiling"))
    meter = Meter(
        device.clock, device.gpu, job.floors, SamplingLimits(seconds=order.seconds), seldom(send, TICK_EVERY_S)
    )
    found = guarded(lambda: measure(benchmark, device, meter, order))
    if isinstance(found, Refused):
        found = Outcome(order.case, order.session, order.round, found.status, reason=found.reason, device=order.device)
    return msgspec.structs.replace(found, wall_s=round(time.monotonic() - began_s, 6))


def seldom(send: Send, every_s: float) -> Callable[[str, int, float], None]:
    """A Meter's tick that sends at most one message in ``every_s`` seconds, the first at once."""
    sent_s = -every_s

    def tick(metric: str, n: int, value: float) -> None:
        nonlocal sent_s
        if time.monotonic() - sent_s >= every_s:
            sent_s = time.monotonic()
            send(Tick(metric, n, value))

    return tick


def serve(job: Job, orders: Iterable[bytes], send: Send) -> None:
    """Open the device, then measure what is ordered until a case fails or no more orders come."""
    send(Busy("opening the device"))
    if job.seam == "gpu":  # the driver's own memory and threads belong near the GPU too
        pin(cpus_near(job.near_node, job.allowed_cpus))
    opened = guarded(lambda: (discover(job.benchmarks), open_device(job)))
    if isinstance(opened, Refused):
        send(opened)
        return
    benchmarks, device = opened
    if job.seam != "cold":  # what is first in a process is measured as any program meets it
        pin((find_cores(job.near_node).plan.worker_core,))  # after opening: the driver's threads stay free
    send(Ready())
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        outcome = run_case(job, device, benchmarks[order.case.benchmark], order, send)
        send(Done(outcome))
        if outcome.status not in ("ok", "skipped"):
            return  # which errors spoil a CUDA context is not known here: a fresh process is always right


def probe(job: Job, send: Send) -> None:
    """Say what the machine is, then the floors: of the host first, as opening the GPU may end this process."""
    send(Busy("looking at the machine"))
    backend: Any = importlib.import_module(job.backend)
    environment = guarded(lambda: backend.probe_environment(job.device))
    if isinstance(environment, Refused):
        send(environment)
        return
    send(Probed(environment))
    gpu = environment.gpus[0] if environment.gpus else None
    fake = FAKE if gpu is not None and gpu.simulated else None
    floors = guarded(lambda: host_floors(backend.open_host(fake)))
    if not isinstance(floors, Refused):
        send(Floored(floors))
    if gpu is not None:
        send(Busy("opening the GPU"))
        floors = guarded(lambda: measure_floors(backend.open_host(fake), backend.open_gpu(fake or gpu.uuid)))
        if not isinstance(floors, Refused):
            send(Floored(floors))
    send(Ready())


def private_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output for ourselves alone: what a library reads is empty, what it prints goes to stderr."""
    orders = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return orders, answers


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the parent is gone: nothing else would stop a case that hangs."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the parent is gone")


def main() -> None:
    """One worker's life."""
    orders, answers = private_streams()
    job = msgspec.json.decode(orders.readline(), type=Job)
    die_with_parent(job.parent_pid)
    pin(job.allowed_cpus)  # the parent has pinned itself, and this process has inherited that

    def send(message: Message) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    if job.seam == "probe":
        probe(job, send)
    else:
        serve(job, orders, send)


if __name__ == "__main__":
    main()

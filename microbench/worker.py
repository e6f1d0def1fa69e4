"""The child: opens one device, measures one case after another, and answers in JSON lines on a private stream.

Started as ``python -m microbench.worker``; microbench/messages.py says who says what.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from microbench.bench import Benchmark, discover
from microbench.errors import MeasurementError, MicrobenchError, Skip
from microbench.floors import host_floors, measure_floors
from microbench.host.affinity import cpus_near, find_cores, pin
from microbench.measure import Device, measure, open_device
from microbench.messages import Busy, Done, Floored, Job, Message, Order, Probed, Ready, Refused, Started, Tick
from microbench.model import Outcome
from microbench.plan import FAKE
from microbench.sampling import SamplingLimits
from microbench.timing import Meter

Result = TypeVar("Result")
Send = Callable[[Message], None]

TICK_EVERY_S = 0.25
PR_SET_PDEATHSIG = 1
PACKAGE = Path(__file__).parent


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
        frame for frame in frames if Path(frame.filename).parent != PACKAGE and PACKAGE in Path(frame.filename).parents
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

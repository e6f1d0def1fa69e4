"""Asks a worker what the machine is: the parent itself never opens a GPU."""

from __future__ import annotations

from microbench.errors import DeviceAbsentError, UsageError
from microbench.messages import Floored, Probed, Ready, Refused
from microbench.model import Environment, Floors
from microbench.process import WorkerCrashedError, WorkerProcess, WorkerSilentError

LOOK_CLOSER = "see `microbench doctor`"


def probe(worker: WorkerProcess, device: str | None) -> tuple[Environment, Floors]:
    """The machine and its floors, as a worker with the job "probe" finds them.

    A probe that dies or hangs (a broken driver may) is no end: what it said before counts, else that is the reason for
    no GPU. Raises DeviceAbsentError when ``device`` was named and no GPU is here, UsageError when it is no name of one.
    """
    environment, floors = _listen(worker)
    if device is not None and not environment.gpus:
        raise DeviceAbsentError(
            f"{device} is not here: {environment.no_gpu_reason or 'no GPU'}",
            environment.no_gpu_next_step or LOOK_CLOSER,
        )
    return environment, floors


def _listen(worker: WorkerProcess) -> tuple[Environment, Floors]:
    environment, floors, reason = None, Floors(), ""
    try:
        while not isinstance(message := worker.receive(), Ready):
            if isinstance(message, Probed):
                environment = message.environment
            elif isinstance(message, Floored):
                floors = message.floors
            elif isinstance(message, Refused):
                for error in (DeviceAbsentError, UsageError):
                    if message.exit_code == error.exit_code:
                        raise error(message.reason, message.next_step)
                reason = message.reason
                break
        worker.close()
    except (WorkerCrashedError, WorkerSilentError) as failure:
        reason = str(failure)
    if environment is None:
        environment = Environment(no_gpu_reason=f"the search for a GPU failed: {reason}", no_gpu_next_step=LOOK_CLOSER)
    return environment, floors

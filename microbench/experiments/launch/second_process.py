"""Starts a second process that keeps the same GPU busy with kernels, so that calls can be measured beside it.

``python -m microbench.experiments.launch.second_process UUID CPU`` is that process. It ends when its standard input
does, and so also when the process that started it dies.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import IO

from microbench.core.model import Fact
from microbench.core.units import plain
from microbench.gpu.cuda.context import Context
from microbench.gpu.cuda.submit import bind_launch
from microbench.gpu.cuda.timing import SmClock
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Skip, experiment
from microbench.gpu.fake.gpu import SIMULATED
from microbench.host import affinity
from microbench.host.affinity import pin


def real_core_interrupts(case: Case) -> int:
    """Interrupts of the core that submits, so far. Raises Skip if the kernel does not say."""
    return affinity.core_interrupts(case.board.cores.worker_core)


def preemptions(machine: Machine) -> int:
    """How many of the late host calls count as preemptions; the others count as interrupts."""
    return round(machine.noise.late * machine.costs.preempted_share)


thread_state = experiment(
    lambda case: affinity.thread_state(),
    lambda machine: affinity.ThreadState(waits=0, preemptions=preemptions(machine)),
)
core_interrupts = experiment(real_core_interrupts, lambda machine: machine.noise.late - preemptions(machine))


MODULE = "microbench.experiments.launch.second_process"
READY = b"the first kernels have run\n"
# The parent of a worker waits for 60 s without a message.
START_S, END_S = 45.0, 10.0
# Each batch of kernels, one block on every SM, is followed by a wait, as in a program that reads its results.
BATCH, KERNEL_NS = 50, 20_000
MPS_SOURCE = "CU_DEVICE_ATTRIBUTE_MPS_ENABLED"


def real_second_process(case: Case) -> Fact:
    """Start the process; it has launched kernels when this returns, and it is ended with the case.

    It runs on the watcher's core. Returns the fact ``mps``: whether both processes share the GPU through MPS. Raises
    Skip without a second core or if the GPU admits one process only, MeasurementError if the process does not start,
    and at the end of the case if it had ended by itself.
    """
    cores = case.board.cores
    if not cores.watcher_alone:
        raise Skip("the second process needs a core of its own")
    mps = through_mps(case.context)
    if not mps.value and case.context.attribute("COMPUTE_MODE"):
        raise Skip("the GPU's compute mode does not admit a second process")
    process = ExitStack()
    command = [sys.executable, "-P", "-m", MODULE, case.board.info.uuid, str(cores.watcher_core)]
    process.enter_context(running(command))
    case.own(process.close)
    return mps


def simulated_second_process(machine: Machine) -> Fact:
    """The second process makes each launch call longer; its kernels are not simulated."""
    machine.beside_ns = machine.costs.second_process_ns
    return Fact("mps", False, source=SIMULATED)


second_process = experiment(real_second_process, simulated_second_process)


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that writes READY once it has launched kernels. The block begins then; the program ends with it.

    Raises MeasurementError, with the end of the program's stderr, if it does not start or ends before the block does.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        TemporaryFile() as errors,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, env=variables) as process,
    ):
        try:
            assert process.stdout is not None
            heard, deadline_s = b"", time.monotonic() + START_S
            while READY not in heard:
                left_s = max(deadline_s - time.monotonic(), 0.0)
                if not select.select([process.stdout], [], [], left_s)[0]:
                    late = f"the second process launched nothing within {START_S:g} s"
                    raise MeasurementError(f"{late}{_last_words(errors)}")
                data = os.read(process.stdout.fileno(), 4096)
                if not data:
                    with suppress(subprocess.TimeoutExpired):  # stderr may come after the end of stdout
                        process.wait(END_S)
                    raise MeasurementError(f"the second process did not start{_last_words(errors)}")
                heard += data
            yield process
            if process.poll() is not None:
                raise MeasurementError(f"the second process ended too early{_last_words(errors)}")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()


def through_mps(context: Context) -> Fact:
    """The fact ``mps``: whether contexts of this GPU are shared through MPS."""
    try:
        return Fact("mps", bool(context.attribute("MPS_ENABLED")), source=MPS_SOURCE)
    except MeasurementError as error:  # the driver is older than the attribute
        return Fact("mps", None, source=MPS_SOURCE, reason=str(error))


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {plain(last)}" if last else ""


def main(uuid: str, cpu: int) -> None:
    """Launch kernels until the standard input ends."""
    pin((cpu,))  # before the driver starts threads, which would sit on the submitting core
    case = Case(Context(uuid))
    case.clock_hz = case.once(SmClock).read_hz()
    launch = bind_launch(case, Launch(KERNEL_NS, grid_blocks=case.sms))
    told = False
    while not select.select([sys.stdin], [], [], 0)[0]:
        launch(BATCH)
        case.synchronize()
        if not told:
            told = True
            os.write(sys.stdout.fileno(), READY)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

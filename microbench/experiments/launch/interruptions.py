"""What took the submitting thread off its core: waits, preemptions and interrupts."""

from microbench.gpu.experiment import Case, Machine, experiment
from microbench.host import affinity


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

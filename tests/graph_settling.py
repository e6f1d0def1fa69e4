"""How direct launches in a fresh context change the GPU time of a graph of 1000 empty kernels.

It is the reason for timing.settle() at the begin of every case of the real GPU; docs/validation.md quotes its output.
"""

import sys

import numpy as np
from cuda.bindings import driver

from microbench.core.ops import Launch
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.device import CudaGpu
from microbench.gpu.cuda.submit import captured, launch
from microbench.gpu.cuda.timing import TimingEvents
from microbench.gpu.open import probe_environment

NODES = 1000
LAUNCHES = 16
REPLAYS = 9


def main() -> None:
    """Print the number of launches and the ns a node whenever that time changes by more than a hundredth."""
    gpu = CudaGpu(probe_environment(None).gpus[0].uuid)
    case = gpu.subject()
    stream = case.stream(0)
    empty = launch(case, case.function("launch", "empty"), Launch())
    executable, _ = captured(case, stream, lambda: empty(NODES))
    events = TimingEvents(case, 0)

    def node_ns() -> float:
        took = []
        for _ in range(REPLAYS):
            events.start()
            check(driver.cuGraphLaunch(executable, stream))
            events.stop()
            took.append(events.elapsed_s())
        return float(np.median(took)) / NODES * 1e9

    node_ns()
    shown = 0.0
    for launches in range(LAUNCHES + 1):
        now = node_ns()
        if abs(now - shown) > 0.01 * shown:
            sys.stdout.write(f"after {launches} launches: {now:.0f} ns a node\n")
            shown = now
        empty(1)
        gpu.synchronize()
    sys.stdout.write(f"after {LAUNCHES} launches: {shown:.0f} ns a node\n")
    gpu.close()


if __name__ == "__main__":
    main()

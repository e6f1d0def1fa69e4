"""What direct launches of a fresh context do to a graph of 1000 empty kernels: its GPU time a node after each of them.

Why every case of the real GPU begins with recording.settle(); docs/validation.md quotes what this prints.
"""

from __future__ import annotations

import sys

import numpy as np
from cuda.bindings import driver

from microbench.core.ops import Launch
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.device import CudaGpu
from microbench.gpu.cuda.probe import probe
from microbench.gpu.cuda.submit import launch
from microbench.gpu.cuda.timing import TimingEvents, capture

NODES = 1000
LAUNCHES = 16
REPLAYS = 9


def main() -> None:
    """Print one line: launches so far and ns a node, whenever that changes by more than a hundredth."""
    gpu = CudaGpu(probe(None).gpus[0].uuid)
    case = Case(gpu._context, gpu._modules, gpu._spin_gate, gpu._stream, gpu._cycles)
    stream = gpu._stream(0)
    one = launch(gpu._modules.function("launch", "empty"), Launch(), stream, None)
    graph = capture(stream, lambda: one(NODES))
    executable = case.executable(graph)
    events = TimingEvents(gpu._context, stream)

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
        one(1)
        gpu.synchronize()
    sys.stdout.write(f"after {LAUNCHES} launches: {shown:.0f} ns a node\n")
    gpu.close()


if __name__ == "__main__":
    main()

"""What it costs the simulated host to have memory that the GPU can copy from, and to give it back."""

from __future__ import annotations

import numpy as np

from microbench.gpu.api import IntArray
from microbench.gpu.fake.links.ends import require_host_memory
from microbench.gpu.fake.machine import Machine
from microbench.gpu.link_api import Pinning, PinningWay


def pinning(machine: Machine, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    """See Links.pinning."""
    links, clock, noise = machine.costs.links, machine.clock, machine.noise
    require_host_memory(machine.costs, "pageable" if way == "touch" else "pinned", size_bytes)
    costs, pages = links.pinning[way], links.pages(size_bytes)
    out_ns: IntArray = np.zeros((count, len(Pinning)), dtype=np.int64)
    for row in out_ns:
        row[Pinning.BEGIN] = clock.now_ns()
        clock.pass_ns(noise.one(costs.have.at(pages)))
        row[Pinning.PINNED] = clock.now_ns()
        row[Pinning.RELEASED_BEGIN] = clock.now_ns()
        clock.pass_ns(noise.one(costs.release.at(pages)))
        row[Pinning.RELEASED] = clock.now_ns()
    return out_ns

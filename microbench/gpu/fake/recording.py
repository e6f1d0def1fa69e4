"""Kernels of the simulated GPU that record their own begin and end, in a stream or in a graph."""

from __future__ import annotations

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.api import Recorded
from microbench.gpu.fake.calls import Call, call_of, replay_of
from microbench.gpu.fake.capture import chain_of, graph_of
from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.submit import FakeGate
from microbench.ops import Launch


def record(machine: Machine, launch: Launch, count: int, *, graph: bool, gated: bool) -> Recorded:
    """See Gpu.record. Raises MeasurementError for more than may stand behind a gate."""
    costs = machine.costs
    if not graph:
        starts_ns = _starts_ns(machine, call_of(launch, costs, {}), count, gated=gated)
        duration_ns = costs.kernel_ns(launch.duration_ns, launch.grid_blocks, launch.block_threads)
        return _recorded(machine, starts_ns, starts_ns + duration_ns)
    chain = chain_of([launch] * count, costs)
    call = replay_of(graph_of(chain), costs, launch.stream)
    machine.clock.pass_ns(costs.graphs.capture.at(count) + costs.graphs.instantiate.at(count))
    gaps_ns, durations_ns, _ = np.array(chain).T
    gaps_ns[0] = 0.0
    ends_ns = _starts_ns(machine, call, 1, gated=gated)[0] + np.cumsum(gaps_ns + durations_ns)
    return _recorded(machine, ends_ns - durations_ns, ends_ns)


def _starts_ns(machine: Machine, call: Call, count: int, *, gated: bool) -> FloatArray:
    """When each of ``count`` calls' items started, all submitted at once."""
    slots = call.queue_slots(machine.costs) or count
    if gated and count > slots:
        raise MeasurementError(f"{count} kernels do not fit behind a gate ({slots} may)")
    gate = FakeGate(machine)
    if gated:
        gate.shut((call.stream,))
    batches = machine.make(call, count).batches
    if gated:
        gate.open()
    machine.synchronize(call.stream)
    if gate.was_late():
        raise MeasurementError("the gate timed out")
    return np.concatenate([batch.starts_ns for batch in batches if batch.starts_ns is not None])


def _recorded(machine: Machine, starts_ns: FloatArray, ends_ns: FloatArray) -> Recorded:
    stamps = machine.globaltimer_ns
    return Recorded(stamps(starts_ns), stamps(ends_ns), machine.costs.globaltimer_step_ns)

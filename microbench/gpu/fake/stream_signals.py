"""Pairs of simulated kernels with a signal between them: events, host functions, stream memory operations."""

from __future__ import annotations

import numpy as np

from microbench.core.ops import IntArray, Launch
from microbench.gpu.fake.device import Item
from microbench.gpu.fake.machine import Call, Machine, call_of
from microbench.gpu.protocol.gpu import SIGNAL_HELD_NS, SIGNAL_KERNEL_NS, SignalStamps, SignalWay

NEVER_NS = 1e9  # the time-out of a wait, which the host always answers before that


def stream_signals(machine: Machine, way: SignalWay, count: int) -> SignalStamps:
    costs = machine.costs
    stamps: IntArray = np.array([_pair(machine, way) for _ in range(count)], dtype=np.int64)
    return SignalStamps(stamps, round(costs.host_read_ns + costs.flag_to_host_ns), costs.globaltimer_step_ns)


def _pair(machine: Machine, way: SignalWay) -> tuple[int, int, int, int, int]:
    """One row of SignalStamps. The signal between the kernels delays the second one on top of the stream's gap."""
    costs, own, clock = machine.costs, machine.costs.signals, machine.clock
    to_host_ns, from_host_ns = (
        float(machine.noise.device(cost_ns, 1)[0])
        for cost_ns in (
            own.host_function_to_ns if way == "host_function" else own.write_to_host_ns,
            own.host_function_from_ns if way == "host_function" else own.wait_from_host_ns,
        )
    )
    began_ns = clock.time_ns
    first = machine.make(call_of(Launch(SIGNAL_KERNEL_NS), costs, {}), 1).batches[0]
    hold, stream = None, 0
    if way in ("event", "event_timed"):
        timed, stream = way == "event_timed", 1
        machine.spend(costs.timed_record_ns if timed else costs.untimed_record_ns)
        delay = Item(duration_ns=own.event_timed_ns if timed else own.event_ns, queued=False)
        machine.make(Call(costs.wait_event_ns, delay, stream), 1, after=first)
    elif way == "host_function":
        machine.make(Call(own.call_ns, Item(duration_ns=to_host_ns + from_host_ns, queued=False)), 1)
    if way.startswith("write"):
        machine.make(Call(own.call_ns, Item(duration_ns=own.write_ns, queued=False)), 1)
    if way == "wait_ready":
        machine.make(Call(own.call_ns, Item(duration_ns=own.wait_ready_ns, queued=False)), 1)
    elif way in ("wait_32", "wait_64", "write_wait"):
        returned_ns, hold = machine.device.shut((0,), clock.time_ns, machine.noise.one(own.call_ns), NEVER_NS)
        clock.wait_until(returned_ns)
    second = machine.make(call_of(Launch(stream=stream), costs, {}), 1).batches[0]
    queued_ns, seen_ns, answered_ns = clock.now_ns(), 0, 0
    assert first.ends_ns is not None, "nothing may hold the first kernel"
    ended_ns = float(first.ends_ns[0])
    if way == "host_function":
        seen_ns = answered_ns = clock.shown(ended_ns + to_host_ns)
    elif way.startswith("write"):
        clock.wait_until(ended_ns + to_host_ns)
        seen_ns = clock.now_ns()
    if hold is not None:
        clock.wait_until(began_ns + (0 if way == "write_wait" else SIGNAL_HELD_NS))
        answered_ns = clock.now_ns()
        machine.device.open(hold, clock.time_ns + from_host_ns)
    machine.synchronize(stream)
    assert second.starts_ns is not None, "all work of a synchronised stream has ended"
    ended, begun = machine.globaltimer_ns(np.array([ended_ns, second.starts_ns[0]]))
    return queued_ns, int(ended), int(begun), seen_ns, answered_ns

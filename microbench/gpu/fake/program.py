"""A Submit of the simulated GPU that makes several different calls, into one stream or several."""

from __future__ import annotations

from collections.abc import Callable

from microbench.gpu.api import IntArray
from microbench.gpu.fake.machine import Machine


class FakeProgram:
    """``act`` makes all calls of one submission. Round trips wait for every stream."""

    def __init__(self, machine: Machine, act: Callable[[], object], queue_slots: int | None) -> None:
        self.queue_slots = queue_slots
        self._machine = machine
        self._scope = machine.scope
        self._act = act

    def __call__(self, count: int) -> None:
        self._machine.check(self._scope)
        for _ in range(count):
            self._act()

    def burst_ns(self, count: int) -> int:
        clock = self._machine.clock
        began_ns = clock.now_ns()
        self(count)
        return clock.now_ns() - began_ns

    def stamps(self, out_ns: IntArray) -> None:
        clock = self._machine.clock
        out_ns[0] = clock.now_ns()
        for index in range(1, len(out_ns)):
            self(1)
            out_ns[index] = clock.now_ns()

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        clock = self._machine.clock
        for index in range(len(out_ns)):
            began_ns = clock.now_ns()
            self(calls)
            self._machine.synchronize()
            out_ns[index] = clock.now_ns() - began_ns

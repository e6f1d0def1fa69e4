"""Time on the device alone: calls queued behind a gate, so that submission is over before the first may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microbench.gpu.api import Gpu, Submit

WARM_UP_CALLS = 20


def gated(gpu: Gpu, submit: Submit, count: int) -> Callable[[], Sequence[float]]:
    """What times ``count`` calls of an op of stream 0 between two events, in seconds; nothing where the gate was late.

    As many calls must fit the launch queue.
    """
    gate, events = gpu.gate(), gpu.events()
    submit(min(count, WARM_UP_CALLS))  # first launches load code, which would block behind a shut gate
    gpu.synchronize()

    def take() -> Sequence[float]:
        gate.shut()
        events.start()
        submit(count)
        events.stop()
        gate.open()
        gpu.synchronize()
        return () if gate.was_late() else (events.elapsed_s(),)

    return take

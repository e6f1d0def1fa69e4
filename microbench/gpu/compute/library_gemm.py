"""A library's matrix product as a Gemm: its prepared calls in turn, a graph of them, the operands that it works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu import binding, recording
from microbench.gpu.api import Submit
from microbench.gpu.compute.operands import Operands
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers.base import LayerHandle, LayerSubmit
from microbench.text import plain

Call = Callable[[], object]


def in_turn(calls: Sequence[Call]) -> Call:
    """One call that makes the next of these each time, from the first again after the last."""
    if len(calls) == 1:
        return calls[0]
    following = cycle(calls).__next__

    def call() -> None:
        following()()

    return call


class LibraryGemm:
    """See Gemm of compute_api.py: ``calls`` are one for each copy of B, and submit to stream 0 of the case.

    Each is made once here, so that its code is loaded and the library's own memory taken: none of that can be done
    behind a gate. ``keep`` is what the calls have addresses of. Raises MeasurementError for one of the library's own
    ``refusals``.
    """

    def __init__(
        self,
        case: Case,
        operands: Operands,
        calls: Sequence[Call],
        keep: object = None,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self._case, self._operands, self._keep = case, operands, keep
        self._call = in_turn(calls)
        self.submit: Submit = LayerSubmit(LayerHandle(call=self._call, stream_handle=case.stream(0)), driver)
        try:
            for call in calls:
                call()
        except refusals as error:
            raise MeasurementError(f"the library refuses its own guess: {plain(error)}") from error
        case.context.synchronize()

    def graph(self, calls: int) -> Submit:
        """See Gemm. Raises Skip for a library that lets nobody capture its calls, MeasurementError for a driver that
        refuses."""
        stream = self._case.stream(0)

        def submit() -> None:
            for _ in range(calls):
                self._call()

        try:
            executable, _ = recording.instantiate(self._case.context, stream, submit)
        except NotImplementedError as error:
            raise Skip(f"these calls are not for graphs: {plain(error)}") from error
        return binding.bind_graph(executable, stream)

    def fresh(self) -> None:
        """See Gemm."""
        self._operands.fresh()

    def check(self) -> str:
        """See Gemm."""
        return self._operands.check()

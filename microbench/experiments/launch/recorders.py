"""Profilers of this process that can be switched on for a while: CUPTI, torch.profiler, and `microbench watch`."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from microbench.core.units import plain
from microbench.gpu.experiment import Case, Machine, MeasurementError, Skip, experiment
from microbench.gpu.layers.torch_recorder import TorchRecorder
from microbench.gpu.protocol.recorder import Recorded, Recorder, RecorderKind
from microbench.host.affinity import pinned
from microbench.recorder import cells, program
from microbench.recorder.cupti import NotRecorded


class WatchRecorder:
    """A Recorder. Its recordings are temporary files. Raises Skip where this process cannot be recorded."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._recorded():
            yield

    def recorded(self, run: Callable[[], object]) -> Recorded:
        with self._recorded() as ended:
            run()
            kinds = ended()
        return Recorded(
            kernels=int((kinds == cells.KERNEL).sum()), calls=int(np.isin(kinds, (cells.DRIVER, cells.RUNTIME)).sum())
        )

    @contextmanager
    def _recorded(self) -> Iterator[Callable[[], np.ndarray]]:
        """Record; the yielded function ends the recording and returns the kinds of its rows."""
        early: list[str] = []
        with tempfile.TemporaryDirectory(prefix="microbench-recording-") as folder:
            try:
                recorder = program.begin_here(Path(folder), lambda cause, next_step: early.append(cause))
            except (NotRecorded, OSError) as error:
                raise Skip(f"microbench watch does not record here: {plain(error)}") from error
            ended = False

            def end() -> np.ndarray:
                nonlocal ended
                ended = True
                recorder.end()
                rows = np.fromfile(recorder.path, np.dtype(list(cells.ROW)))
                return np.asarray(rows["kind"])

            try:
                yield end
            finally:
                if not ended:
                    recorder.end()
        if early:
            raise MeasurementError(f"the recording ended early: {plain(early[0])}")


def real_recorder(case: Case, kind: RecorderKind) -> Recorder:
    """Prepare a profiler by an empty recording. From then on this process counts as recorded."""
    with pinned(case.board.cores.allowed):  # CUPTI's threads begin at its first recording
        recorder: Recorder
        if kind == "cupti":
            recorder = case.context.kernel_records
        else:
            recorder = WatchRecorder() if kind == "watch" else TorchRecorder(kind)
        with recorder.recording():
            case.synchronize()
    return recorder


class SimulatedRecorder:
    """A simulated profiler after its empty recording; it adds the same cost to every step."""

    def __init__(self, machine: Machine, kind: RecorderKind) -> None:
        self._machine, self._kind = machine, kind
        with self.recording():
            machine.synchronize()

    @contextmanager
    def recording(self) -> Iterator[None]:
        kind, costs, watch = self._kind, self._machine.costs.recorder, self._machine.watch
        watch.call_ns = {"cupti": costs.kernel_ns, "watch": costs.watch_ns}.get(kind, costs.call_ns)
        watch.operator_ns = costs.operator_ns if kind in ("torch_cpu", "torch_stack") else 0.0
        watch.function_ns = costs.function_ns if kind == "torch_stack" else 0.0
        watch.node_ns = costs.left_node_ns + costs.node_ns
        try:
            yield
        finally:
            watch.call_ns = watch.operator_ns = watch.function_ns = 0.0
            watch.node_ns = costs.left_node_ns

    def recorded(self, run: Callable[[], object]) -> Recorded:
        kind, watch = self._kind, self._machine.watch
        watch.kernels = watch.calls = watch.operators = watch.functions = 0
        with self.recording():
            run()
        if kind == "cupti":
            return Recorded(watch.kernels)
        operators = watch.operators if kind in ("torch_cpu", "torch_stack") else 0
        return Recorded(watch.kernels, watch.calls, operators, watch.functions if kind == "torch_stack" else 0)


process_recorder = experiment(real_recorder, SimulatedRecorder)

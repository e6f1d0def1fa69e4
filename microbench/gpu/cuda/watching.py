"""The recorder of `microbench watch` in this process, so that its cost per call and per node can be measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import plain
from microbench.gpu.protocol.recorder import Recorded
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

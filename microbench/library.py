"""What programs and notebooks use of microbench: ``watch`` records a block of the program itself and explains it."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from microbench.watch.context import ProcessRecording, in_words

if TYPE_CHECKING:
    from microbench.diagnose.diagnosis import Diagnosis
    from microbench.traces.trace import Table, Trace


def watch(path: str | os.PathLike[str] | None = None, *, stacks: bool = False) -> Recording:
    """Record what a block of this process submits to the GPU: ``with microbench.watch() as recording: step()``.

    ``path`` is that of a new file; without it the recording is temporary. With ``stacks`` the recording also says which
    lines of Python the threads were in. The block begins with a UsageError where it cannot be recorded.
    """
    return Recording(path, stacks=stacks)


class Tables(NamedTuple):
    """A recording as two pandas DataFrames: work of GPUs, and CUDA calls. ``work["call"]`` is an index of ``calls``."""

    work: Any
    calls: Any


class Recording(ProcessRecording):
    """A recorded block, which can be asked once the block has ended."""

    @cached_property
    def trace(self) -> Trace:
        """The recording as the diagnosis reads it. Raises UsageError if the block used no GPU."""
        from microbench.traces.reading import read

        trace = read(self.path)
        if not len(trace.work):
            raise in_words(
                "the block submitted nothing to a GPU", "record a block that runs kernels, copies or memsets"
            )
        return trace

    def diagnosis(self) -> Diagnosis:
        """Why the GPU waits, by the costs of your newest run that has them, else those of the bundled reference."""
        from microbench.cli.diagnose import costs_of
        from microbench.diagnose.diagnosis import diagnose

        fit, gpu, _ = costs_of(None)
        return diagnose(self.trace, fit, costs_of=gpu)

    def to_pandas(self) -> Tables:
        """The tables of work and calls, with times in ns. Raises UsageError without pandas."""
        try:
            import pandas
        except ImportError:
            raise in_words("to_pandas needs pandas, which is not installed", "pip install pandas") from None
        trace = self.trace
        return Tables(*(_frame(pandas, columns(trace, table)) for table in (trace.work, trace.calls)))


def columns(trace: Trace, table: Table) -> dict[str, Any]:
    """The columns of a table of the trace, with names, kinds and memories in words."""
    import numpy as np

    from microbench.traces.trace import MEMORIES, WORK_KINDS

    words: dict[str, tuple[object, ...]] = {
        "name": (*trace.names, None),
        "kind": WORK_KINDS,
        "source": MEMORIES,
        "target": MEMORIES,
        "thread": (*(thread.number for thread in trace.threads), None),
    }
    found = {}
    for name in table.dtype.names or ():
        found[name] = table[name]
        if name in words:  # the last of the words stands for none
            found[name] = np.array(words[name], object)[table[name]]
    return found


def _frame(pandas: Any, columns: dict[str, Any]) -> Any:
    """A DataFrame in which numbers that the trace does not have are missing."""
    from microbench.traces.trace import NONE

    frame = pandas.DataFrame(columns)
    for name in frame.columns:
        if frame[name].dtype.kind == "i" and not name.endswith("_ns"):
            frame[name] = frame[name].astype("Int64").mask(frame[name] == NONE)
    return frame

"""microbench: what it costs to submit work to a CUDA GPU, and what limits it.

As a library, ``import microbench as mb`` gives the names in ``microbench.__all__``; every other name is private and may
change. The public names follow ``microbench.__version__`` by semantic versioning: until 1.0 a minor version may change
one, and the changelog says so. The import is quick: packages are loaded when a function needs them.

All values are in SI base units, except that the tables of a recording have times in ns. What a function raises for
wrong input, a missing device or an unreadable file is a ``microbench.MicrobenchError``, with its cause and the next
step.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from microbench.core.version import __version__

__all__ = [
    "ComparedFigure", "ComparedRuns", "Copies", "Counts", "DeviceAbsentError", "DiagnosedTraces", "Event", "Finding",
    "HostWork", "Kernels", "MachineConstant", "MachineConstants", "MicrobenchError", "PredictedStep", "Problem",
    "RecordedRun", "Recording", "ResultNotWrittenError", "Row", "Rows", "RunUnreadableError", "Sheet", "Tables",
    "UsageError", "Wait", "Workload", "__version__", "compare", "constants", "counts", "diagnose", "graphed",
    "lightning_callback", "load", "measure", "predict", "run", "trace_handler", "trainer_callback", "watch",
]  # fmt: skip

if TYPE_CHECKING:
    from microbench.analysis.evidence import Finding
    from microbench.core.errors import (
        DeviceAbsentError,
        MicrobenchError,
        ResultNotWrittenError,
        RunUnreadableError,
        UsageError,
    )
    from microbench.diagnosis.counts import Counts
    from microbench.library.constants import MachineConstant, MachineConstants
    from microbench.library.recordings import Recording, Tables
    from microbench.library.results import Problem, RecordedRun, Row, Rows, Sheet
    from microbench.library.surface import (
        compare,
        constants,
        counts,
        diagnose,
        graphed,
        lightning_callback,
        load,
        measure,
        predict,
        run,
        trace_handler,
        trainer_callback,
        watch,
    )
    from microbench.library.verdicts import ComparedFigure, ComparedRuns, DiagnosedTraces, PredictedStep
    from microbench.model.workload import Copies, Event, HostWork, Kernels, Wait, Workload

# Where each public name is defined; the module is imported when the name is first used.
_PLACES = {
    "analysis.evidence": ("Finding",),
    "core.errors": (
        "DeviceAbsentError", "MicrobenchError", "ResultNotWrittenError", "RunUnreadableError", "UsageError",
    ),
    "diagnosis.counts": ("Counts",),
    "library.constants": ("MachineConstant", "MachineConstants"),
    "library.recordings": ("Recording", "Tables"),
    "library.results": ("Problem", "RecordedRun", "Row", "Rows", "Sheet"),
    "library.surface": (
        "compare", "constants", "counts", "diagnose", "graphed", "lightning_callback", "load", "measure", "predict",
        "run", "trace_handler", "trainer_callback", "watch",
    ),
    "library.verdicts": ("ComparedFigure", "ComparedRuns", "DiagnosedTraces", "PredictedStep"),
    "model.workload": ("Copies", "Event", "HostWork", "Kernels", "Wait", "Workload"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            found = getattr(importlib.import_module(f"{__name__}.{place}"), name)
            setattr(sys.modules[__name__], name, found)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

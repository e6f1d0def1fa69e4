"""PyTorch's profiler as a Recorder: torch.profiler starts and stops it, and its records are counted in its trace."""

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base
from microbench.gpu.layers.torch import INSTALL, load_torch
from microbench.gpu.protocol.recorder import Recorded, RecorderKind

# What torch.profiler raises if it cannot record: it is running already, CUPTI is missing, or a version lacks a feature.
REFUSALS = (RuntimeError, AssertionError, AttributeError, ImportError, OSError, TypeError, ValueError)
CATEGORY = re.compile(rb'"cat":\s*"(\w+)"')


class TorchRecorder:
    """torch.profiler in one of its modes. Raises Skip without PyTorch."""

    def __init__(self, kind: RecorderKind) -> None:
        load_torch()
        self._profiler: Any = base.load("torch.profiler", INSTALL)
        self._kind = kind

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._profiled():
            yield

    def recorded(self, run: Callable[[], object]) -> Recorded:
        with self._profiled() as profile:
            run()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            with _refusing():
                profile.export_chrome_trace(str(path))
                return counted(path.read_bytes())

    @contextmanager
    def _profiled(self) -> Iterator[Any]:
        with _refusing():
            known = self._profiler.ProfilerActivity
            activities = [known.CUDA] if self._kind == "torch_cuda" else [known.CPU, known.CUDA]
            profile = self._profiler.profile(activities=activities, with_stack=self._kind == "torch_stack")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the profiler warns that an earlier recording's events are lost
                profile.start()
        try:
            yield profile
        finally:
            with _refusing():
                profile.stop()


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise Skip(f"torch.profiler does not record here ({type(error).__name__}: {plain(error)})") from error


def counted(trace: bytes) -> Recorded:
    """The records in a trace as torch.profiler writes it; ``diagnose`` counts those of the same categories."""
    categories = Counter(match[1] for match in CATEGORY.finditer(trace))
    return Recorded(
        kernels=categories[b"kernel"],
        calls=categories[b"cuda_runtime"] + categories[b"cuda_driver"],
        operators=categories[b"cpu_op"],
        functions=categories[b"python_function"],
    )

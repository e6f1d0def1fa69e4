"""The compiled loops beside their twin in C on a real GPU: same function, same stream, alternated burst by burst."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from c_library import build

from microbench.analysis.stats import median_interval

BURST = 300
PAIRS = 300
pytestmark = pytest.mark.gpu


def alternate(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
    """A B A B …, which of the two is first changing with each pair, so that drift is nobody's."""
    left, right = [], []
    for pair in range(PAIRS):
        if pair % 2:
            left.append(ours())
            right.append(theirs())
        else:
            right.append(theirs())
            left.append(ours())
    return left, right


@pytest.mark.parametrize("arguments", [0, 4])
def test_a_burst_from_the_compiled_loop_takes_as_long_as_one_from_c(tmp_path: Path, arguments: int) -> None:
    from microbench.core.ops import LayerCall
    from microbench.gpu.cuda.device import CudaGpu
    from microbench.gpu.cuda.probe import probe
    from microbench.gpu.cuda.submit import DriverSubmit

    twin = build("loop", tmp_path)
    twin.twin_submit.restype = ctypes.c_int64
    gpu = CudaGpu(probe(None).gpus[0].uuid)
    with gpu.case():
        submit = gpu.bind(LayerCall("loop", arguments))
        assert isinstance(submit, DriverSubmit)
        a = [int(value) for value in submit.arguments]
        pointers = [ctypes.c_void_p(value) for value in (submit.address, a[0], a[8], a[9])]

        def ours() -> float:
            gpu.synchronize()
            return float(submit.burst_ns(BURST))

        def theirs() -> float:
            gpu.synchronize()
            return float(twin.twin_submit(pointers[0], pointers[1], a[1], a[4], pointers[2], pointers[3], BURST))

        for warm_up in (ours, theirs):
            warm_up()
        left, right = alternate(ours, theirs)
    gpu.close()
    assert min(right) > 0, "the twin's launches failed"
    ratio = median_interval([a / b for a, b in zip(left, right, strict=True)])
    report = {
        "arguments": arguments,
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "ours_s": float(np.median(left)) / BURST * 1e-9,
        "twin_s": float(np.median(right)) / BURST * 1e-9,
        "pairs": PAIRS,
    }
    if "TWIN_REPORT" in os.environ:
        with Path(os.environ["TWIN_REPORT"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
    assert 0.97 <= ratio.median <= 1.03, report

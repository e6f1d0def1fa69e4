"""A chain in a stream and as a graph beside its twin in C on a real GPU: same kernel and stream, in turn."""

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
from microbench.core.ops import IntArray
from microbench.gpu.protocol.submit import Submit

STEPS = 10
PAIRS = 60
TOLERANCE = 0.05
pytestmark = pytest.mark.gpu


def alternated(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
    """A B B A …, each a step's median time in ns."""
    left, right = [], []
    for pair in range(PAIRS):
        for mine in (True, False) if pair % 2 else (False, True):
            (left if mine else right).append(ours() if mine else theirs())
    return left, right


def pointers(*values: int) -> list[ctypes.c_void_p]:
    """Addresses as C takes them."""
    return [ctypes.c_void_p(value & (1 << 64) - 1) for value in values]


@pytest.mark.parametrize(("kernels", "duration_ns"), [(100, 0), (1000, 0), (100, 5000)])
def test_stream_and_graph_take_as_long_as_in_c(tmp_path: Path, kernels: int, duration_ns: int) -> None:
    from microbench.core.ops import LOOP_LAYER, LayerCall
    from microbench.gpu.cuda.context import entry_point
    from microbench.gpu.cuda.device import CudaGpu
    from microbench.gpu.cuda.probe import probe
    from microbench.gpu.cuda.submit import DriverSubmit

    twin = build("graph", tmp_path)
    twin.twin_graph.restype = ctypes.c_void_p
    gpu = CudaGpu(probe(None).gpus[0].uuid)
    with gpu.case():
        call = LayerCall(LOOP_LAYER, duration_ns=duration_ns)
        stream = gpu.bind(call)
        graph = gpu.bind(gpu.graph([call] * kernels))
        assert isinstance(stream, DriverSubmit)
        function, handle, parameters = pointers(*(int(stream.arguments[place]) for place in (0, 8, 9)))
        names = ("cuStreamBeginCapture", "cuLaunchKernel", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
                 "cuGraphLaunch", "cuStreamSynchronize")  # fmt: skip
        begin, launch, end, instantiate, replay, wait = pointers(*(entry_point(name) for name in names))
        executable = twin.twin_graph(begin, launch, end, instantiate, function, handle, parameters, kernels)
        assert executable, "the twin made no graph"
        out: IntArray = np.zeros(STEPS, dtype=np.int64)
        address = ctypes.c_void_p(out.ctypes.data)

        def ours(submit: Submit, calls: int) -> Callable[[], float]:
            def take() -> float:
                submit.round_trips(out, calls)
                return float(np.median(out))

            return take

        def twin_stream() -> float:
            assert twin.twin_stream_steps(launch, wait, function, handle, parameters, kernels, STEPS, address) == 0
            return float(np.median(out))

        def twin_graph() -> float:
            assert twin.twin_graph_steps(replay, wait, ctypes.c_void_p(executable), handle, STEPS, address) == 0
            return float(np.median(out))

        ways = {"stream": (ours(stream, kernels), twin_stream), "graph": (ours(graph, 1), twin_graph)}
        reports = {}
        for name, (mine, theirs) in ways.items():
            mine(), theirs()
            left, right = alternated(mine, theirs)
            ratio = median_interval([a / b for a, b in zip(left, right, strict=True)])
            reports[name] = {
                "way": name, "kernels": kernels, "duration_ns": duration_ns, "ratio": ratio.median, "low": ratio.low,
                "high": ratio.high, "ours_s": float(np.median(left)) / kernels * 1e-9,
                "twin_s": float(np.median(right)) / kernels * 1e-9, "pairs": PAIRS,
            }  # fmt: skip
    gpu.close()
    if "TWIN_REPORT" in os.environ:
        with Path(os.environ["TWIN_REPORT"]).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(report) + "\n" for report in reports.values())
    for report in reports.values():
        assert abs(float(str(report["ratio"])) - 1) <= TOLERANCE, reports

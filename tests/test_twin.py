"""Launches and graphs beside their twins in C on a real GPU: same functions and stream, alternated step by step."""

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from c_library import TWIN, build

from microbench.analysis.stats import median_interval
from microbench.core.ops import LOOP_LAYER, IntArray, LayerCall
from microbench.gpu.protocol.gpu import Gpu, Submit

BURST = 300
STEPS = 10
Take = Callable[[], float]
pytestmark = pytest.mark.gpu


def compare(ours: Take, theirs: Take, pairs: int, tolerance: float, calls: int, **what: object) -> None:
    """Take both ``pairs`` times and assert that the median ratio is 1; which comes first changes with each pair.

    TWIN_REPORT names a file for the figures; times are for each of ``calls``.
    """
    ours(), theirs()
    left: list[float] = []
    right: list[float] = []
    for pair in range(pairs):
        for mine in (True, False) if pair % 2 else (False, True):
            (left if mine else right).append(ours() if mine else theirs())
    assert min(right) > 0, "the twin's calls failed"
    ratio = median_interval([a / b for a, b in zip(left, right, strict=True)])
    report = {
        **what, "ratio": ratio.median, "low": ratio.low, "high": ratio.high, "pairs": pairs,
        "ours_s": float(np.median(left)) / calls * 1e-9, "twin_s": float(np.median(right)) / calls * 1e-9,
    }  # fmt: skip
    if "TWIN_REPORT" in os.environ:
        with Path(os.environ["TWIN_REPORT"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
    assert abs(ratio.median - 1) <= tolerance, report


def pointers(*values: int) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(value & (1 << 64) - 1) for value in values]


@pytest.mark.parametrize("arguments", [0, 4])
def test_a_burst_of_the_compiled_loop_takes_as_long_as_one_in_c(gpu: Gpu, tmp_path: Path, arguments: int) -> None:
    from microbench.gpu.cuda.submit import DriverSubmit

    twin = build("loop", tmp_path)
    twin.twin_submit.restype = ctypes.c_int64
    submit = gpu.bind(LayerCall(LOOP_LAYER, arguments))
    assert isinstance(submit, DriverSubmit)
    a = [int(value) for value in submit.arguments]
    launch, function, stream, parameters = pointers(submit.address, a[0], a[8], a[9])

    def ours() -> float:
        gpu.synchronize()
        return float(submit.burst_ns(BURST))

    def theirs() -> float:
        gpu.synchronize()
        return float(twin.twin_submit(launch, function, a[1], a[4], stream, parameters, BURST))

    compare(ours, theirs, 300, 0.03, BURST, arguments=arguments)


@pytest.mark.parametrize("arguments", [0, 4])
def test_a_burst_by_the_runtime_takes_as_long_as_one_in_cplusplus(gpu: Gpu, tmp_path: Path, arguments: int) -> None:
    from microbench.gpu.cuda.submit import DriverSubmit

    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    library = tmp_path / "runtime_loop.so"
    command = ["nvcc", "-O2", "-arch=native", "-shared", "-cudart", "shared", "-Xcompiler", "-fPIC", "-o", library]
    subprocess.run([*command, TWIN / "runtime_loop.cu"], check=True)
    twin = ctypes.CDLL(str(library))
    twin.twin_burst.restype = ctypes.c_int64
    submit = gpu.bind(LayerCall("cuda_runtime", arguments))
    assert isinstance(submit, DriverSubmit)

    def ours() -> float:
        gpu.synchronize()
        return float(submit.burst_ns(BURST))

    def theirs() -> float:
        gpu.synchronize()
        return float(twin.twin_burst(ctypes.c_void_p(submit.stream), arguments, BURST))

    compare(ours, theirs, 300, 0.05, BURST, api="runtime", arguments=arguments)


@pytest.mark.parametrize(("kernels", "duration_ns"), [(100, 0), (1000, 0), (100, 5000)])
def test_stream_and_graph_take_as_long_as_in_c(gpu: Gpu, tmp_path: Path, kernels: int, duration_ns: int) -> None:
    from microbench.gpu.cuda.context import entry_point
    from microbench.gpu.cuda.submit import DriverSubmit

    twin = build("graph", tmp_path)
    twin.twin_graph.restype = ctypes.c_void_p
    call = LayerCall(LOOP_LAYER, duration_ns=duration_ns)
    stream, graph = gpu.bind(call), gpu.bind(gpu.graph([call] * kernels))
    assert isinstance(stream, DriverSubmit)
    function, handle, parameters = pointers(*(int(stream.arguments[place]) for place in (0, 8, 9)))
    names = ("cuStreamBeginCapture", "cuLaunchKernel", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
             "cuGraphLaunch", "cuStreamSynchronize")  # fmt: skip
    begin, launch, end, instantiate, replay, wait = pointers(*(entry_point(name) for name in names))
    executable = twin.twin_graph(begin, launch, end, instantiate, function, handle, parameters, kernels)
    assert executable, "the twin made no graph"
    out: IntArray = np.zeros(STEPS, dtype=np.int64)
    address = ctypes.c_void_p(out.ctypes.data)

    def ours(submit: Submit, calls: int) -> Take:
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

    what = {"kernels": kernels, "duration_ns": duration_ns}
    compare(ours(stream, kernels), twin_stream, 60, 0.05, kernels, way="stream", **what)
    compare(ours(graph, 1), twin_graph, 60, 0.05, kernels, way="graph", **what)

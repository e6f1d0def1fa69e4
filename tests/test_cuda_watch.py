"""Programs on a real GPU that are watched: no kernel is lost, each has its call, and the end is the program's own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from test_traces_nsys import names, sound

from microbench.diagnose.idle import idle
from microbench.traces.reading import read
from microbench.traces.trace import NONE, WORK_KINDS, Trace
from microbench.watch import program

pytestmark = pytest.mark.gpu

NUMBA = """
import os, signal, sys
import numpy as np
from numba import cuda

@cuda.jit
def add_one(values):
    values[cuda.grid(1)] += 1

values = cuda.to_device(np.zeros(1024, np.float32))
for step in range(200):
    for _ in range(50):
        add_one[4, 256](values)
    cuda.synchronize()
assert (values.copy_to_host() == 10_000).all()
"""
TORCH = """
import torch
values = torch.zeros(1024, device="cuda")
for step in range(300):
    for _ in range(50):
        values.add_(1)
    torch.cuda.synchronize()
assert (values == 15_000).all()
"""
CAPTURED = """
graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph, stream=stream):
    for _ in range(50):
        values.add_(1)
for step in range(100):
    graph.replay()
torch.cuda.synchronize()
"""
PROFILED = """
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CUDA]):
    values.add_(1)
    torch.cuda.synchronize()
"""


SLOW = """
import time
def slow():
    time.sleep(0.02)
for step in range(50):
    for _ in range(20):
        values.add_(1)
    slow()
torch.cuda.synchronize()
"""
BACKWARD = """
weights = [torch.rand(256, 256, device="cuda", requires_grad=True) for _ in range(50)]
for step in range(100):
    out = torch.rand(256, 256, device="cuda")
    for one in weights:
        out = out @ one
    out.sum().backward()
torch.cuda.synchronize()
"""


def watched(folder: Path, text: str, *, stacks: bool = False) -> tuple[int, Trace]:
    (folder / "program.py").write_text(text)
    (folder / "recordings").mkdir()
    ended = program.watch(
        [sys.executable, str(folder / "program.py")], folder / "recordings", program.How(stacks=stacks)
    )
    assert ended.reasons == ()
    (path,) = (folder / "recordings").iterdir()
    trace = read(path)
    sound(trace)
    assert (trace.lost, trace.unread) == ({}, {})
    return ended.status, trace


def kernels(trace: Trace, name: str) -> int:
    """How many kernels have this in their name; each must have its call."""
    own = trace.work[[WORK_KINDS[kind] == "kernel" for kind in trace.work["kind"]]]
    assert (own["call"] != NONE).all()
    assert (own["begin_ns"] >= trace.calls["begin_ns"][own["call"]]).all()
    return sum(name in one for one in names(trace, own))


def test_a_watched_program_of_numba_loses_no_kernel(tmp_path: Path) -> None:
    status, trace = watched(tmp_path, NUMBA)
    assert status == 0
    assert kernels(trace, "add_one") == 10_000
    assert any(trace.gpus.values())
    assert "cuLaunchKernel" in "".join(trace.names)


def test_a_watched_program_of_torch_loses_no_kernel_inside_or_outside_of_a_graph(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + CAPTURED)
    assert status == 0
    assert kernels(trace, "elementwise") >= 20_000
    assert (trace.work["node"] != NONE).sum() >= 5000
    assert trace.versions["torch"] != "unknown"


def test_a_profiler_within_a_watched_program_harms_neither(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + PROFILED + TORCH)
    assert status == 0
    assert kernels(trace, "elementwise") >= 30_000


def test_with_stacks_the_line_is_named_in_which_the_gpu_waits(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + SLOW, stacks=True)
    assert status == 0
    found = idle(trace, int(trace.work["begin_ns"][0]), int(trace.work["end_ns"].max()), 0)
    line = f"program.py:{(TORCH + SLOW).splitlines().index('    time.sleep(0.02)') + 1} slow"
    assert line in [place.name for place in found.places[:3]], "CUPTI numbers threads as Python does, on this clock"
    assert sum(place.seconds for place in found.places if place.name == line) == pytest.approx(50 * 0.02, rel=0.2)


def test_while_pytorchs_backward_pass_submits_the_main_thread_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    status, trace = watched(tmp_path, TORCH + BACKWARD, stacks=True)
    assert status == 0
    line = (TORCH + BACKWARD).splitlines().index("    out.sum().backward()") + 1
    assert f"main thread at program.py:{line} <module>" in names(trace, trace.ranges)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_of_a_killed_program_nearly_all_is_there(tmp_path: Path, number: signal.Signals) -> None:
    status, trace = watched(tmp_path, f"{NUMBA}\nimport time\ntime.sleep(1)\nos.kill(os.getpid(), {number:d})")
    assert status == -number
    assert 0 < kernels(trace, "add_one") <= 10_000

"""The pytest plugin in a tiny project: what passes, what fails with which words, and what is skipped without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PLUGIN = "microbench.cli.pytest_plugin"
PROJECT = """
import pytest
from microbench.core.ops import Launch

@pytest.fixture
def kernel(microbench_gpu):
    return microbench_gpu.bind(Launch(duration_ns=2000))

def step(kernel, times):
    for _ in range(times):
        kernel(1)

def test_passes(microbench, kernel):
    microbench(step, kernel, 3, at_most_launches=3, graph=True, at_least_gain=1.05)

def test_too_many(microbench, kernel):
    microbench(step, kernel, times=4, at_most_launches=3)

def test_gains_less(microbench, kernel):
    microbench(step, kernel, 3, at_least_gain=50)

def test_waits(microbench, microbench_gpu, kernel):
    def waiting():
        kernel(1)
        microbench_gpu.synchronize()
    microbench(waiting, graph=True)

def test_may_wait(microbench, microbench_gpu, kernel):
    microbench(lambda: (kernel(1), microbench_gpu.synchronize()), graph=False)

def test_denied(microbench, kernel):
    microbench(step, kernel, 1, graph=False)
"""


def run(folder: Path, device: str) -> str:
    (folder / "test_mine.py").write_text(PROJECT)
    loaded = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    plugin = () if loaded else ("-p", PLUGIN)
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PYTEST_ADDOPTS": "", "COLUMNS": "200",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", *plugin, "-rA", "-p", "no:cacheprovider", "--microbench-device", device]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return ended.stdout + ended.stderr


def test_launches_graphs_and_gains_are_asserted(tmp_path: Path) -> None:
    said = run(tmp_path, "fake")
    assert "4 failed, 2 passed" in said
    assert "PASSED test_mine.py::test_passes" in said
    assert "PASSED test_mine.py::test_may_wait" in said
    assert "4 launches, more than 3:" in said
    assert "times as fast as a call, not 50 times" in said
    line = PROJECT.splitlines().index("        microbench_gpu.synchronize()") + 1
    assert f"no graph can hold it: test_mine.py:{line} in waiting: microbench_gpu.synchronize()" in said
    assert "a graph can hold it, which graph=False denies" in said


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_tests_are_skipped(tmp_path: Path) -> None:
    said = run(tmp_path, "cuda:0")
    assert "6 skipped" in said
    assert "microbench: " in said


def test_the_package_names_the_plugin() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\nmicrobench = "{PLUGIN}"' in project

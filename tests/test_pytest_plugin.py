"""The pytest plugin in a tiny project: what passes, what fails with which words, and what is skipped without a GPU."""

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


COUNTED = """
import os
from microbench.core.ops import Launch

def test_step(microbench, microbench_gpu):
    kernel, more = (microbench_gpu.bind(Launch(duration_ns=ns)) for ns in (2000, 7000))
    def step(times):
        for _ in range(times):
            kernel(1)
        for _ in os.environ.get("CHANGED", ""):
            more(1)
            microbench_gpu.synchronize()
    found = microbench.counts(step, 3)
    assert found.figures["launches"] == 3 + len(os.environ.get("CHANGED", ""))
    microbench.counts(step, times=2)
"""


def run(folder: Path, device: str, *options: str, project: str = PROJECT) -> str:
    (folder / "test_mine.py").write_text(project)
    loaded = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    plugin = () if loaded else ("-p", PLUGIN)
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PYTEST_ADDOPTS": "", "COLUMNS": "200",
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "pytest",
        *plugin,
        "-rA",
        "-p",
        "no:cacheprovider",
        "--microbench-device",
        device,
        *options,
    ]
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


def test_counts_are_held_against_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(tmp_path, "fake", project=COUNTED)
    assert "there is no baseline" in said
    assert "1 passed" in run(tmp_path, "fake", "--update-counts", project=COUNTED)
    base = tmp_path / "counts" / "test_mine.test_step.json"
    kept = base.read_bytes()
    assert (tmp_path / "counts" / "test_mine.test_step-2.json").is_file()
    said = run(tmp_path, "fake", project=COUNTED)
    assert "1 passed" in said
    assert "warning" not in said
    monkeypatch.setenv("CHANGED", "x")
    said = run(tmp_path, "fake", project=COUNTED)
    assert "1 failed" in said
    for words in ("more than the baseline counts:", "  1 more launch\n", "  1 more wait for the GPU: cuCtxSynchronize",
                  "  1 more kernels simulated_7000ns"):  # fmt: skip
        assert words in said
    assert base.read_bytes() == kept
    assert "1 passed" in run(tmp_path, "fake", "--update-counts", project=COUNTED)
    monkeypatch.delenv("CHANGED")
    said = run(tmp_path, "fake", project=COUNTED)
    assert "1 passed, 2 warnings" in said
    assert "pytest --update-counts keeps them" in said


MANY = """
import asyncio, unittest
import pytest
from microbench.core.ops import Launch

def steps(gpu, times):
    kernel = gpu.bind(Launch(duration_ns=2000))
    return lambda: [kernel(1) for _ in range(times)]

class TestA:
    def test_step(self, microbench, microbench_gpu):
        microbench.counts(steps(microbench_gpu, 3))

class TestB:
    def test_step(self, microbench, microbench_gpu):
        microbench.counts(steps(microbench_gpu, 9))

IDS = ["a/b", "a b", "a  b", "a", "[", "x" * 300, "", "../up"]

@pytest.mark.parametrize("name", IDS)
def test_named(microbench, microbench_gpu, name):
    microbench.counts(steps(microbench_gpu, 2 + IDS.index(name)))

class TestUnit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def given(self, microbench, microbench_gpu):
        self.microbench, self.gpu = microbench, microbench_gpu

    def test_step(self):
        for times in (1, 2):
            self.microbench.counts(steps(self.gpu, times))
        self.microbench(steps(self.gpu, 2), at_most_launches=2, graph=True)

def test_async(microbench, microbench_gpu):
    step = steps(microbench_gpu, 2)
    async def awaited():
        await asyncio.sleep(0)
        step()
    assert microbench.counts(awaited).figures["launches"] == 2
    microbench(awaited, at_most_launches=2)
    async def within():
        await asyncio.to_thread(microbench.counts, step)
        with pytest.raises(pytest.fail.Exception, match="an event loop runs already"):
            microbench.counts(awaited)
    asyncio.run(within())
"""


@pytest.mark.parametrize("options", [
    (), pytest.param(("--import-mode=importlib",), marks=pytest.mark.slow),
    pytest.param(("-n2",), marks=pytest.mark.slow),
    pytest.param(("-n2", "--dist", "loadfile"), marks=pytest.mark.slow),
])  # fmt: skip
def test_each_test_has_baselines_of_its_own_wherever_it_runs(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Tests of one name in several classes, and parameters that a file name cannot hold, shared a baseline."""
    assert "12 passed" in run(tmp_path, "fake", "--update-counts", *options, project=MANY)
    names = {path.name for path in (tmp_path / "counts").iterdir()}
    assert len(names) == 2 + 8 + 2 + 2, names
    assert {"test_mine.TestA.test_step.json", "test_mine.test_named_a_.json"} < names
    said = run(tmp_path, "fake", *options, project=MANY)
    assert "12 passed" in said
    assert "warning" not in said


@pytest.mark.slow
def test_two_processes_write_a_baseline_at_once(tmp_path: Path) -> None:
    said = run(tmp_path, "fake", "--dist", "each", "--tx", "2*popen", "--update-counts", project=MANY)
    assert "24 passed" in said
    assert "24 passed" in run(tmp_path, "fake", "--dist", "each", "--tx", "2*popen", project=MANY)
    assert not list(tmp_path.glob("counts/.*"))


def test_a_damaged_baseline_is_an_error_in_words_and_can_be_written_anew(tmp_path: Path) -> None:
    project = MANY.partition("class TestB")[0]
    base = tmp_path / "counts" / "test_mine.TestA.test_step.json"
    base.parent.mkdir()
    base.write_text("<<<<<<< HEAD\n{}")
    said = run(tmp_path, "fake", project=project)
    assert "test_mine.TestA.test_step.json holds no counts" in said
    assert "or by pytest --update-counts" in said
    assert "JSONDecodeError" not in said
    assert "1 passed" in run(tmp_path, "fake", "--update-counts", project=project)
    assert "1 passed" in run(tmp_path, "fake", project=project)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_tests_are_skipped(tmp_path: Path) -> None:
    said = run(tmp_path, "cuda:0")
    assert "6 skipped" in said
    assert "microbench: " in said


def test_the_package_names_the_plugin() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\nmicrobench = "{PLUGIN}"' in project

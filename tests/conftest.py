"""What every test shares: real GPUs only on demand, user data out of the home folder, which microbench is tested."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import microbench
from microbench.gpu.protocol.gpu import Gpu

# The folder that the built wheel was installed into; scripts/test sets it for its second run.
WHEEL_VARIABLE = "MICROBENCH_TEST_WHEEL"
PACKAGE = Path(microbench.__file__).resolve().parent
# What only the built wheel can show: commands and processes, files that are read at run time, kernels, compiled loops.
# Arithmetic and words are those of the source, whose every file the wheel holds (test_packaging): they run once.
ON_THE_WHEEL = frozenset({
    "test_affinity", "test_cli", "test_cold", "test_compare_cli", "test_crashes",
    "test_doctor", "test_driver", "test_export", "test_figures_cli", "test_graph_loops", "test_kernels_compile",
    "test_layers_python", "test_layers_submit", "test_loops", "test_nvml", "test_packaging",
    "test_page", "test_page_loops", "test_predict_cli", "test_probe", "test_runner", "test_schema",
    "test_share_export", "test_snapshots", "test_store", "test_view", "test_worker", "test_workloads",
})  # fmt: skip


def pytest_report_header() -> str:
    return f"microbench: {PACKAGE}"


def pytest_sessionstart() -> None:
    folder = os.environ.get(WHEEL_VARIABLE)
    if folder and not PACKAGE.is_relative_to(Path(folder).resolve()):
        raise pytest.UsageError(f"the wheel in {folder} is to be tested, but microbench comes from {PACKAGE}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem not in ON_THE_WHEEL:
            item.add_marker(pytest.mark.source)
    if "gpu" in config.option.markexpr:
        return
    unasked = pytest.mark.skip(reason="needs a real GPU: run with -m gpu")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(unasked)


@pytest.fixture(scope="session", autouse=True)
def home_left_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs and caches go to a folder of this session, and no variable of the person testing changes a result.

    Numba's compiled loops stay in its usual cache: compiling them takes longer than most tests.
    """
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("MICROBENCH_") and name != WHEEL_VARIABLE:
                patch.delenv(name)
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS"):
            patch.delenv(name, raising=False)
        for name in ("DATA", "CACHE", "STATE", "CONFIG"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        yield


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of recorded runs, empty and this test's own."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MICROBENCH_DATA", str(folder))
    return folder


@pytest.fixture(scope="module")
def opened() -> Iterator[Gpu]:
    """The first real GPU, opened once for a file of tests."""
    from microbench.gpu.cuda.device import open_gpu
    from microbench.gpu.cuda.probe import probe

    gpu = open_gpu(probe(None).gpus[0].uuid)
    yield gpu
    gpu.close()


@pytest.fixture
def gpu(opened: Gpu) -> Iterator[Gpu]:
    """The first real GPU, in a case of its own."""
    with opened.case():
        yield opened

"""What all tests share: GPU and slow tests only on demand, and user data outside the home folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from microbench.gpu.protocol.gpu import Gpu


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too (CI runs them always)")


def all_tests(config: pytest.Config) -> bool:
    return bool(config.getoption("--slow") or os.environ.get("CI"))


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("few", max_examples=25)
    settings.load_profile("default" if all_tests(config) else "few")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {"gpu": "needs a real GPU: run with -m gpu"}
    if not all_tests(config):
        reasons["slow"] = "slow: run with --slow"
    for marker, reason in reasons.items():
        if marker not in config.option.markexpr:
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def home_left_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs and caches go to a folder of this session, and no variable of the user changes a result.

    Numba's compiled loops stay in its usual cache, because compiling them takes longer than most tests; for the same
    reason processes that tests start may write bytecode.
    """
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("MICROBENCH_"):
                patch.delenv(name)
        for name in ("PYTHONDONTWRITEBYTECODE", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS"):
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

"""What all tests share: GPU and slow tests only on demand, and user data outside the home folder."""

import gc
import os
import re
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from typer import testing

from microbench.analysis import stats
from microbench.archive import store
from microbench.core.model import Run
from microbench.gpu.protocol.gpu import Gpu

GPU_ONLY = re.compile(r"test_(cuda|twin)\w*\.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too (CI runs them always)")


def all_tests(config: pytest.Config) -> bool:
    return bool(config.getoption("--slow") or os.environ.get("CI"))


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(100_000, 20, 100)  # looking through all that is remembered takes a tenth of the time
    settings.register_profile("all", deadline=None)
    settings.register_profile("few", deadline=None, max_examples=15)
    settings.load_profile("all" if all_tests(config) else "few")
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # under nohup or &; processes that tests start would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    remember_runs()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [] if "gpu" in config.option.markexpr else ["tests of a real GPU are left out; -m gpu runs them"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that hold nothing but GPU tests are not imported unless those are asked for."""
    return True if "gpu" not in config.option.markexpr and GPU_ONLY.match(collection_path.name) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect GPU and slow tests unless they are asked for; skipping a thousand tests one by one takes seconds."""
    absent = {"gpu"} if all_tests(config) else {"gpu", "slow"}
    absent = {marker for marker in absent if marker not in config.option.markexpr}
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in absent)]
    gone = set(left_out)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in gone]
    for item in items:
        if {"place", "here"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.flaky(reruns=2))  # a busy machine may stop the program that it watches


Result = TypeVar("Result")
REMEMBERED = 64
RECORDED = tuple((Path(__file__).parent / "data").glob("*.json.xz"))


def remember_runs() -> None:
    """Each process of tests reads a bundled or recorded run once, computes the rows and the report of a run once, and
    makes the commands once."""
    store.read = once_for({*store.bundled().values(), *RECORDED}, store.read)
    stats.rows = remembered(stats.rows)
    # Imported only now, so that modules that import a remembered function by name get it.
    from microbench.analysis import evidence

    evidence.evidence_by_device = remembered(evidence.evidence_by_device)
    from microbench.report.sheets import view

    assert (view.rows, view.evidence_by_device) == (stats.rows, evidence.evidence_by_device)
    view.build = remembered(view.build)
    testing._get_command = cache(testing._get_command)


def once_for(kept: set[Path], read: Callable[..., Run]) -> Callable[..., Run]:
    read_kept = cache(read)
    return lambda path, **how: read_kept(path) if path in kept and not how else read(path, **how)


def remembered(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function, which computes its result for the same Run only once; a Run never changes."""
    results: dict[int, tuple[Run, Result]] = {}

    def of(run: Run, *more: object, **options: object) -> Result:
        if any(value is not None for value in more) or options:
            return function(run, *more, **options)
        found = results.pop(id(run), None) or (run, function(run))
        if len(results) >= REMEMBERED:
            results.pop(next(iter(results)))  # the least recently used one
        results[id(run)] = found
        return found[1]

    return of


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recorded runs that holds whatever a test writes."""
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where programs that are recorded find a GPU package, which takes seconds to make."""
    from watched import Place

    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def other(place: Any) -> Any:
    """A program of C in that place."""
    from watched import NotPython

    return NotPython(place)


@pytest.fixture
def here(place: Any, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in an environment in which programs find the package and microbench itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)
    root = str(Path(stats.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(place.site), root)))
    return tmp_path


@pytest.fixture(scope="module")
def opened() -> Iterator[Gpu]:
    from microbench.gpu.cuda.device import open_gpu
    from microbench.gpu.open import probe_environment

    gpu = open_gpu(probe_environment(None).gpus[0].uuid)
    yield gpu
    gpu.close()


@pytest.fixture
def gpu(opened: Gpu) -> Iterator[Gpu]:
    """The first real GPU, in a case of its own."""
    with opened.case():
        yield opened

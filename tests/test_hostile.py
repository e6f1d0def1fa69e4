"""Tests that odd machines, odd files in the data folder and forged files end in one line, soon and in little memory."""

from pathlib import Path

import pytest
from numba.core.caching import CacheImpl

from microbench.host import loops
from microbench.run import doctor
from microbench.runs import store


@pytest.fixture
def without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an account, and no HOME, as in a container."""

    def no_account(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_account)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "MICROBENCH_DATA", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("without_home")
def test_without_a_home_the_data_folder_is_below_the_root_folder() -> None:
    assert store.data_folder() == Path("/.local/share/microbench")
    doctor.loop_cache_folder()  # does not raise


def test_without_a_folder_for_its_cache_a_loop_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in CacheImpl.__subclasses__():
        monkeypatch.setattr(kind, "_locator_classes", [])
    assert loops.compiled(lambda number: number + 1)(1) == 2

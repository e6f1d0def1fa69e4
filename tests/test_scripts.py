"""The README's two commands: which packages they choose, when .venv is made again, that nothing half made is used."""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("set_up", SCRIPTS / "set_up.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


set_up = loaded()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, its name with a space."""
    root = tmp_path / "a checkout"
    shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_text(f"{name} as first written", encoding="utf-8")
    return root


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pip was asked for, one entry a call; the stand-in leaves the command behind as pip would."""
    asked: list[str] = []

    def install(root: Path, wanted: Any) -> None:
        asked.append(set_up.requirement(root, wanted).removeprefix(str(root)))
        stand_in_command(root)

    monkeypatch.setattr(set_up, "install", install)
    monkeypatch.setattr(set_up.venv, "create", lambda folder, **_: (folder / "bin").mkdir())
    return asked


def stand_in_command(root: Path) -> None:
    command = root / ".venv" / "bin" / "microbench"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text('#!/bin/sh\nprintf "%s|" "$@"\n', encoding="utf-8")
    command.chmod(0o755)


def make(root: Path, gpu_packages: str | None = None, tests: bool = False) -> None:
    set_up.make_ready(root, set_up.state_wanted(root, gpu_packages, tests))


@pytest.mark.parametrize(
    ("reported", "error", "expected"),
    [(12000, 0, "cu12"), (12090, 0, "cu12"), (13000, 0, "cu13"), (14010, 0, "cu13"), (11080, 0, None), (0, 999, None)],
)
def test_packages_follow_the_driver(
    monkeypatch: pytest.MonkeyPatch, reported: int, error: int, expected: str | None
) -> None:
    def driver_version(pointer: Any) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = reported
        return error

    monkeypatch.setattr(set_up.ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=driver_version))
    assert set_up.packages_for(set_up.driver_cuda()) == expected


def test_without_a_driver_there_are_no_gpu_packages() -> None:
    assert set_up.packages_for(set_up.driver_cuda("libcuda-that-is-not-there.so.1")) is None


@pytest.mark.parametrize(("gpu_packages", "tests", "extras"), [
    (None, False, ""), ("cu13", False, "[cu13]"), (None, True, "[test,compile]"), ("cu12", True, "[cu12,test]"),
])  # fmt: skip
def test_extras(checkout: Path, installed: list[str], gpu_packages: str | None, tests: bool, extras: str) -> None:
    make(checkout, gpu_packages, tests)
    assert installed == [extras]


def test_a_ready_environment_is_left_alone(checkout: Path, installed: list[str]) -> None:
    make(checkout)
    make(checkout)
    assert len(installed) == 1


@pytest.mark.parametrize("changed", ["", "pyproject.toml", "constraints.txt"])
def test_tools_of_tests_stay_and_changed_requirements_are_installed_over(
    checkout: Path, installed: list[str], changed: str
) -> None:
    make(checkout)
    kept = checkout / ".venv" / "kept"
    kept.touch()
    make(checkout, tests=True)
    if changed:
        (checkout / changed).write_text("changed", encoding="utf-8")
    make(checkout, tests=False)
    assert (installed, kept.exists()) == (["", *["[test,compile]"] * (2 if changed else 1)], True)


def test_another_driver_or_folder_makes_a_new_environment(checkout: Path, installed: list[str]) -> None:
    make(checkout, "cu12")
    (checkout / ".venv" / "left").touch()
    make(checkout, "cu13")
    assert not (checkout / ".venv" / "left").exists()
    (checkout / ".venv" / "left").touch()
    moved = checkout.rename(checkout.with_name("moved"))
    make(moved, "cu13")
    assert not (moved / ".venv" / "left").exists()
    assert installed == ["[cu12]", "[cu13]", "[cu13]"]


@pytest.mark.parametrize("when", ["first", "added"])
def test_an_interrupted_set_up_starts_afresh(
    checkout: Path, installed: list[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    if when == "added":
        make(checkout)
    whole = set_up.install

    def interrupted(root: Path, wanted: Any) -> None:
        whole(root, wanted)
        (root / ".venv" / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(set_up, "install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(checkout, tests=True)
    monkeypatch.setattr(set_up, "install", whole)
    make(checkout, tests=True)
    assert not (checkout / ".venv" / "half").exists()
    assert installed[-2:] == ["[test,compile]", "[test,compile]"]


def test_ctrl_c_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(root: Path, wanted: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(set_up, "make_ready", interrupted)
    assert set_up.main([]) == 130
    assert capsys.readouterr().err == "microbench: interrupted; the next call starts the set-up again\n"


def test_an_environment_of_somebody_else_is_never_touched(checkout: Path, installed: list[str]) -> None:
    stand_in_command(checkout)
    with pytest.raises(set_up.SetUpError, match="was not made by this script: move it away"):
        make(checkout)
    assert installed == []
    assert (checkout / ".venv/bin/microbench").exists()


TWO_AT_ONCE = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("set_up", sys.argv[1] + "/scripts/set_up.py")
set_up = importlib.util.module_from_spec(spec)
spec.loader.exec_module(set_up)
root = pathlib.Path(sys.argv[1])

def install(root, wanted):
    with open(root / "installed", "a") as log:
        log.write("x")
    time.sleep(0.3)
    (root / ".venv/bin/microbench").touch()

set_up.install = install
set_up.venv.create = lambda folder, **_: (folder / "bin").mkdir()
set_up.make_ready(root, set_up.state_wanted(root, None, False))
"""


def test_two_at_once_make_one_environment(checkout: Path) -> None:
    command = [sys.executable, "-c", TWO_AT_ONCE, str(checkout)]
    both = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert (checkout / "installed").read_text(encoding="utf-8") == "x"


def run(root: Path, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(root / "scripts" / script), *arguments]
    environment = {**os.environ, "MICROBENCH_PYTHON": sys.executable, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")


def mark_ready(root: Path) -> None:
    stand_in_command(root)
    wanted = set_up.state_wanted(root, set_up.packages_for(set_up.driver_cuda()), tests=False)
    (root / set_up.RECORD).write_text(json.dumps(wanted), encoding="utf-8")


def test_microbench_passes_its_arguments_on(checkout: Path) -> None:
    mark_ready(checkout)
    result = run(checkout, "microbench", "run", "--set", "axis=a b")
    assert (result.returncode, result.stdout, result.stderr) == (0, "run|--set|axis=a b|", "")


def test_microbench_works_through_a_link(checkout: Path) -> None:
    mark_ready(checkout)
    link = checkout.parent / "elsewhere" / "scripts" / "linked"
    link.parent.mkdir(parents=True)
    link.symlink_to(checkout / "scripts" / "microbench")
    assert run(link.parent.parent, "linked", "list").stdout == "list|"


@pytest.mark.parametrize("script", ["microbench", "test"])
def test_a_python_that_does_not_suit_is_one_clear_line(checkout: Path, script: str) -> None:
    result = run(checkout, script, MICROBENCH_PYTHON="/bin/false")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "microbench: /bin/false is not Python 3.11 to 3.14: install one, or name it in MICROBENCH_PYTHON\n"
    )


@pytest.mark.slow
def test_pip_s_failure_is_told_and_nothing_runs(checkout: Path) -> None:
    # The stand-in pyproject.toml is not TOML, so pip gives up before it looks for any package.
    result = run(checkout, "microbench", "list")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith(
        "microbench: pip could not install the packages; its reason is above: fix it and call again\n"
    )
    assert "Traceback" not in result.stderr

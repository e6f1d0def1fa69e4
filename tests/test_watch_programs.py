"""Kinds of programs of Python and how they are started: under watch each runs as it does alone, and is recorded."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipapp
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from test_watch_job import python
from watched import CELLS_OF_A_STEP, CUPTI, Place, cells_of

STEPS = "import torch\ntorch.steps(30)\nprint('ran', flush=True)\n"
PYTHON = [sys.executable, "program.py"]


def compared(
    place: Place, folder: Path, command: list[str], steps: int, lay_out: Callable[[], object], **more: str
) -> None:
    """Run a command alone and then watched, in one folder that is laid out anew. Assert that both are alike, and that
    the recordings hold so many steps."""
    folder.mkdir()
    ran = []
    for watched in (False, True):
        shutil.rmtree(folder)
        folder.mkdir()
        os.chdir(folder)
        lay_out()
        variables = {"PYTHONDONTWRITEBYTECODE": "1", **more}
        if watched:
            done = place.ran(command, folder, **variables)
            ran.append((done.code, done.output, done.errors, set(files(folder)) - {"reasons", "recordings"}))
        else:
            environment = place.environment(**variables)
            alone = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            ran.append((alone.returncode, alone.stdout, alone.stderr, set(files(folder))))
    assert ran[1] == ran[0]
    assert sum(map(cells_of, done.traces)) == steps * CELLS_OF_A_STEP, done.reasons


def files(folder: Path) -> list[str]:
    kept = [path.relative_to(folder) for path in folder.rglob("*") if not path.name.endswith(".rows")]
    return [str(path) for path in kept if path.parts[0] not in ("reasons", "recordings") or len(path.parts) == 1]


def program(text: str) -> Callable[[], object]:
    return lambda: Path("program.py").write_text(text)


# How a program is started


def archive() -> None:
    Path("app").mkdir()
    Path("app/__main__.py").write_text(STEPS)
    zipapp.create_archive("app", "app.pyz")


def package() -> None:
    Path("pack").mkdir()
    Path("pack/__main__.py").write_text(f"import sys\nprint(sys.argv[1:], sys.path[0], __name__)\n{STEPS}")


def module_in_venv() -> None:
    program(STEPS + "import sys; print(sys.prefix, sys.executable)")()
    for outer, inner in ((sys.executable, "outer"), ("outer/bin/python", "inner")):
        subprocess.run([outer, "-m", "venv", "--without-pip", inner], check=True)


def conda() -> None:
    """An environment with its own lib/, from which its packages load libcupti, and a wrapper as `conda run` is one."""
    program(STEPS)()
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in ("bin", "lib"):
        Path("conda", folder).mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), f"conda/bin/{version}")
    Path("conda/bin/python").symlink_to(version)
    for path in (base / "lib").glob("*python*"):
        Path("conda/lib", path.name).symlink_to(path)
    wrapper = Path("run")
    wrapper.write_text(
        '#!/bin/sh\nexport CONDA_PREFIX="$PWD/conda" PATH="$PWD/conda/bin:$PATH"\n'
        'export LD_LIBRARY_PATH="$PWD/conda/lib:$LD_LIBRARY_PATH"\nexec "$@"\n'
    )
    wrapper.chmod(0o755)


STARTED: Mapping[str, tuple[list[str], Callable[[], object]]] = {
    "-c": ([sys.executable, "-c", STEPS], lambda: None),
    "-m": ([sys.executable, "-m", "pack", "a"], package),
    "folder": ([sys.executable, "pack", "a"], package),
    "zipapp": ([sys.executable, "app.pyz"], archive),
    "-O": ([sys.executable, "-OO", "program.py"], program(STEPS + "assert 0")),
    "-W error": ([sys.executable, "-W", "error", "-X", "dev", "program.py"], program(STEPS)),
    "pipe": (["sh", "-c", f"{sys.executable} program.py | cat; exit 3"], program(STEPS)),
    "venv in venv": (["inner/bin/python", "program.py"], module_in_venv),
    "conda": (["./run", "python", "program.py"], conda),
    "first line": (["./program"], lambda: Path("program").write_text(f"#!{sys.executable}\n{STEPS}")),
}


@pytest.mark.parametrize("kind", [
    "-c", "zipapp", *(pytest.param(kind, marks=pytest.mark.slow) for kind in STARTED if kind not in ("-c", "zipapp")),
])  # fmt: skip
def test_however_a_program_is_started(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    command, lay_out = STARTED[kind]

    def laid_out() -> None:
        lay_out()
        for path in map(Path, command[:1]):
            if path.is_file() and not path.is_absolute():
                path.chmod(0o755)

    home = {"PYTHONHOME": sys.base_prefix} if kind == "conda" else {}
    compared(place, tmp_path / "run", command, 30, laid_out, **home)


def test_libcupti_of_conda_is_found(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUPTI lies in the environment's lib/. No variable names that folder; the packages find it there themselves."""
    monkeypatch.chdir(tmp_path)

    def laid_out() -> None:
        conda()
        shutil.copytree(place.site / "torch", "site/torch")
        shutil.copy(place.site / CUPTI, "conda/lib/libcupti.so.12")
        text = (place.site / "torch" / "__init__.py").read_text().replace(CUPTI, "../conda/lib/libcupti.so.12")
        Path("site/torch/__init__.py").write_text(text)

    compared(
        place, tmp_path / "run", ["conda/bin/python", "program.py"], 30, laid_out, PYTHONPATH="site",
        PYTHONHOME=f"{tmp_path}/run/conda",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_other_pythons_are_recorded(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    found = python(version)
    if not found:
        pytest.skip(f"no Python {version} here")
    monkeypatch.chdir(tmp_path)
    compared(place, tmp_path / "run", [found[0], "program.py"], 30, program(STEPS))
    compared(place, tmp_path / "raises", [found[0], "program.py"], 0, broken("import nowhere"), PYTHONPATH="broken")


@pytest.mark.slow
@pytest.mark.parametrize("tool", [
    ("jupyter", "nbconvert", "--execute", "--to", "markdown", "--stdout", "--log-level=ERROR", "program.ipynb"),
    ("ipython", "--colors=NoColor", "-c", "%run program.py"),
    ("uv", "run", "--offline", "--no-project", "--python", sys.executable, "program.py"),
    ("coverage", "run", "--data-file=covered", "program.py"),
], ids=lambda tool: str(tool[0]))  # fmt: skip
def test_tools_that_run_programs(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: tuple[str, ...]
) -> None:
    """Of those that are here."""
    if shutil.which(tool[0]) is None:
        pytest.skip(f"no {tool[0]} here")
    monkeypatch.chdir(tmp_path)
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None, "source": STEPS}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    book = json.dumps({"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})

    def laid_out() -> None:
        program(STEPS)()
        Path("program.ipynb").write_text(book)

    compared(place, tmp_path / "run", list(tool), 30, laid_out)


PYTESTED = """
import pytest, torch
@pytest.mark.parametrize("number", range(4))
def test_steps(number):
    torch.steps(10)
def test_output(capfd):
    print("x")
    assert capfd.readouterr().out == "x\\n"
def test_fails():
    assert 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n2",)])
def test_pytest(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    if options and importlib.util.find_spec("xdist") is None:
        pytest.skip("no xdist here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    inner = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, "test_mine.py"]
    line = f"{' '.join(inner)} >said; echo $?; grep -o '[0-9]* failed, [0-9]* passed' said; rm said"
    compared(
        place, tmp_path / "run", ["sh", "-c", line], 40, lambda: Path("test_mine.py").write_text(PYTESTED)
    )  # fmt: skip


# What a program does


POOL = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
def work(number):
    import torch
    torch.steps(10)
    return number * 2
if __name__ == "__main__":
    context = multiprocessing.get_context("{}")
    with context.Pool(1) as pool:
        print(pool.map(work, range(2)))
        pool.close()
        pool.join()
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        print(list(pool.map(work, range(1))))
    for end in (sys.exit, os.abort):
        child = context.Process(target=end, args=(7,) if end is sys.exit else ())
        child.start()
        child.join()
        print(child.exitcode)
"""
TREE = """
import subprocess, sys
import torch
torch.steps(10)
left = int(sys.argv[1]) if len(sys.argv) > 1 else 2
print(left, flush=True)
sys.exit(subprocess.run([sys.executable, __file__, str(left - 1)]).returncode if left else 9)
"""
DAEMON = """
import os, sys
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3):
            os.close(number)
            os.open(os.devnull, os.O_RDWR)
        import torch
        torch.steps(30)
        open("done", "w").close()
        sys.exit()
    os._exit(0)
os.close(writing)
os.wait()
print(os.read(reading, 1))
"""
AGAIN = """
import os, sys
import torch
torch.steps(10)
if len(sys.argv) < 3:
    print(len(sys.argv), flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv, "x"])
"""
TRACED = """
import os, sys
seen = set()
def trace(frame, event, argument):
    seen.add(frame.f_code.co_filename)
sys.settrace(trace)
if sys.version_info >= (3, 12):
    own = sys.monitoring
    own.use_tool_id(own.COVERAGE_ID, "coverage")
    own.register_callback(own.COVERAGE_ID, own.events.PY_START, lambda code, offset: seen.add(code.co_filename))
    own.set_events(own.COVERAGE_ID, own.events.PY_START)
import torch
torch.steps(30)
sys.settrace(None)
library = os.path.dirname(os.__file__)
print(sorted(name for name in seen if os.path.isfile(name) and not name.startswith(library)))
"""
ASYNC = """
import asyncio
import torch
async def main():
    await asyncio.gather(*(asyncio.to_thread(torch.steps, 10) for _ in range(3)))
    process = await asyncio.create_subprocess_exec("false")
    print(await process.wait())
asyncio.run(main(), debug=True)
"""
DOES: Mapping[str, tuple[str, int]] = {
    "spawn": (POOL.format("spawn"), 30),
    "forkserver": (POOL.format("forkserver"), 30),
    "fork": (POOL.format("fork"), 30),
    "tree of processes": (TREE, 30),
    "daemon": (DAEMON, 30),
    "executes itself": (AGAIN, 10),
    "changes its folder": ("import os\nos.mkdir('a')\nos.chdir('a')\nos.rmdir('../a')\n" + STEPS, 30),
    "coverage": (TRACED, 30),
    "threads": (
        "import threading\ndef steps():\n    import torch\n    torch.steps(10)\n"
        "several = [threading.Thread(target=steps) for _ in range(3)]\n[each.start() for each in several]\n"
        "[each.join() for each in several]\nprint(threading.active_count(), threading.current_thread().name)", 30,
    ),
    "asyncio": (ASYNC, 30),
    "reload": ("import importlib, torch\nprint(vars(torch.__loader__))\nimportlib.reload(torch).steps(30)", 30),
}  # fmt: skip


@pytest.mark.parametrize("kind", [
    "coverage", *(pytest.param(kind, marks=pytest.mark.slow) for kind in DOES if kind != "coverage"),
])  # fmt: skip
def test_whatever_a_program_does(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What measures coverage sees no file of microbench."""
    monkeypatch.chdir(tmp_path)
    text, steps = DOES[kind]
    compared(place, tmp_path / "run", [sys.executable, "-W", "ignore", "program.py"], steps, program(text))


def broken(text: str) -> Callable[[], object]:
    def laid_out() -> None:
        Path("broken/torch").mkdir(parents=True)
        Path("broken/torch/__init__.py").write_text(text)
        program("import torch")()

    return laid_out


@pytest.mark.parametrize("text", [
    "1 / 0", *(pytest.param(text, marks=pytest.mark.slow) for text in (
        "import nowhere", "raise ImportError('x')", "raise SystemExit(3)", "def", "raise KeyboardInterrupt",
        "import ctypes; ctypes.CDLL('/no/where')",
    )),
])  # fmt: skip
def test_the_traceback_of_a_package_that_cannot_be_imported_has_no_frame_of_microbench(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    compared(place, tmp_path / "run", PYTHON, 0, broken(text), PYTHONPATH="broken")

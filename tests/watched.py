"""Programs to be watched: a folder with a GPU package that a stand-in for libcupti belongs to, and how they are run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from c_library import TWIN, compiled
from test_traces_nsys import sound

from microbench.core.c_library import library
from microbench.recorder import program
from microbench.recorder.program import WHOLE, How
from microbench.traces.reading import read
from microbench.traces.trace import Trace

INJECTED = program.INJECTED
CUPTI = "nvidia/cuda_cupti/lib/libcupti.so.12"
# A GPU package as PyTorch is one: it loads the libcupti that lies beside it. Its functions hold Python's lock.
TORCH = f"""
import ctypes, os
__version__ = "2.11.0"
site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
cuda = ctypes.CDLL("libcuda.so.1") if os.environ.get("LD_LIBRARY_PATH") else None
library = ctypes.PyDLL(os.path.join(site, "{CUPTI}"))
unlocked = ctypes.CDLL(os.path.join(site, "{CUPTI}"))
def steps(count, kernels=20): library.stand_in_steps(count, kernels)
def catch_up(): library.stand_in_now()
def kinds(): library.stand_in_kinds()
"""
CELLS_OF_A_STEP = 42  # 20 launches and their kernels, a wait and its call


class Recorded(NamedTuple):
    """A program that has run: how, what it wrote, its recordings and what the recorders said at its end."""

    code: int
    output: str
    errors: str
    files: list[Path]
    reasons: list[tuple[str, str]]

    @property
    def traces(self) -> list[Trace]:
        return [read(path) for path in self.files]


class Place:
    """A folder with the package, libcuda beside it, and the recorder's library. Skips the test without a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site, self.drivers = folder, folder / "site", folder / "drivers"
        compiled(TWIN / "cupti_stand_in.c", folder, "-O2", "-Wall", "-Werror", "-Wno-unused-parameter", "-pthread")
        for copy in (self.site / CUPTI, self.drivers / "libcuda.so.1"):
            copy.parent.mkdir(parents=True)
            shutil.copy(folder / "cupti_stand_in.so", copy)
        (self.site / "torch").mkdir()
        (self.site / "torch" / "__init__.py").write_text(TORCH)
        made = library(program.SOURCE)
        assert made is not None
        self.library = made

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a program that finds the package and the driver."""
        variables = {"PYTHONPATH": str(self.site), "LD_LIBRARY_PATH": str(self.drivers), **more}
        return {**{name: value for name, value in os.environ.items() if "NSYS" not in name}, **variables}

    def recorded(
        self,
        text: str,
        folder: Path,
        *options: str,
        how: How = WHOLE,
        recordings: str = "recordings",
        injected: bool = False,
        **more: str,
    ) -> Recorded:
        """Run a program of Python in ``folder`` with the recorder in it, as `microbench watch` does."""
        (folder / "program.py").write_text(text)
        return self.ran([sys.executable, *options, "program.py"], folder, injected, how, recordings, **more)

    def ran(
        self,
        command: list[str],
        folder: Path,
        injected: bool = False,
        how: How = WHOLE,
        recordings: str = "recordings",
        **more: str,
    ) -> Recorded:
        """Run a command in ``folder`` in the environment that `microbench watch` makes."""
        reasons, found = folder / "reasons", folder / "recordings"
        reasons.mkdir()
        found.mkdir()
        own = self.environment(**more)
        watching = program.variables(folder / recordings, reasons, how, self.library, injected=injected)
        watching["PYTHONPATH"] = os.pathsep.join((str(INJECTED), own["PYTHONPATH"]))
        variables = {**own, **watching, **{name: own[name] for name in more if name != "PYTHONPATH"}}
        result = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=variables)
        told = [(cause, next_step) for cause, next_step in program.left(reasons)]
        return Recorded(result.returncode, result.stdout, result.stderr, sorted(found.iterdir()), told)


def cells_of(trace: Trace) -> int:
    """How many rows of a recording became rows of the trace."""
    return len(trace.work) + len(trace.calls) + len(trace.syncs)


class NotPython:
    """A program of C that uses the made-up GPU. Skips the test without a compiler."""

    def __init__(self, place: Place) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc"))), None)
        if compiler is None:
            pytest.skip("no cc here")
        self.place, self.program = place, place.folder / "not_python"
        self.cupti = place.folder / "linked" / "libcupti.so.12"
        self.cupti.parent.mkdir()
        linked = os.pathsep.join(map(str, (place.drivers, self.cupti.parent)))
        self.variables = {"MICROBENCH_WATCH_CUDA": "12", "STAND_IN": str(self.cupti), "LD_LIBRARY_PATH": linked}
        shutil.copy(place.site / CUPTI, self.cupti)
        source = TWIN / "not_python.c"
        subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", self.program, source, "-ldl"], check=True)

    def recorded(self, folder: Path, *arguments: str | int, how: How = WHOLE, **more: str) -> Recorded:
        """Run the program in ``folder``, as `microbench watch` does; see not_python.c for its arguments."""
        command = [str(self.program), *map(str, arguments)]
        recordings = more.pop("recordings", "recordings")
        return self.place.ran(command, folder, True, how, recordings, **{**self.variables, **more})


def turning(seconds: float, *lines: str, before: str = "") -> str:
    """A program whose loop takes so long, each turn of which runs these lines."""
    loop = f"{before}begin = time.monotonic()\nwhile time.monotonic() - begin < {seconds}:\n"
    turn = ("torch.library.stand_in_now()", *lines)
    return f"\nimport time, torch\n{loop}" + "".join(f"    {line}\n" for line in turn)


def alone(done: Recorded) -> Trace:
    """Run a program to its end, and return its only recording, which must be whole."""
    assert (done.code, done.errors, done.reasons) == (0, "", [])
    (trace,) = done.traces
    sound(trace)
    return trace


def only(done: Recorded, steps: int) -> None:
    """Assert that the program ran to its end, and that one recording holds all of so many steps."""
    trace = alone(done)
    assert cells_of(trace) == steps * CELLS_OF_A_STEP
    assert (trace.lost, trace.unread) == ({}, {})


def not_recorded(done: Recorded, cause: str, next_step: str) -> None:
    """Assert that the program ran as ever, and that the reason is there, in words and on one line each."""
    assert (done.code, done.output, done.errors) == (0, "ran\n", "")
    ((told, told_next),) = done.reasons
    assert cause in told
    assert next_step in told_next
    assert "\n" not in told + told_next

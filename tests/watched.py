"""Programs to be watched: a folder with a GPU package that a stand-in for libcupti belongs to, and how they are run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from c_library import TWIN, compiled

from microbench.traces.reading import read
from microbench.traces.trace import Trace
from microbench.watch import machine_code

INJECTED = Path(machine_code.__file__).parent / "inject"
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
    """A folder with the package, libcuda beside it, and the compiled callbacks. Skips the test without a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site, self.drivers = folder, folder / "site", folder / "drivers"
        compiled(TWIN / "cupti_stand_in.c", folder, "-O2", "-Wall", "-Werror", "-Wno-unused-parameter", "-pthread")
        for library in (self.site / CUPTI, self.drivers / "libcuda.so.1"):
            library.parent.mkdir(parents=True)
            shutil.copy(folder / "cupti_stand_in.so", library)
        (self.site / "torch").mkdir()
        (self.site / "torch" / "__init__.py").write_text(TORCH)
        self.code = folder / "callbacks"
        self.code.write_bytes(machine_code.callbacks())

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a program that finds the package and the driver."""
        variables = {"PYTHONPATH": str(self.site), "LD_LIBRARY_PATH": str(self.drivers), **more}
        return {**{name: value for name, value in os.environ.items() if "NSYS" not in name}, **variables}

    def recorded(
        self,
        program: str,
        folder: Path,
        *,
        for_s: float | None = None,
        windows: tuple[float | None, float | None] = (None, None),
        stacks: bool = False,
        recordings: str = "recordings",
        **more: str,
    ) -> Recorded:
        """Run a program in ``folder`` with the recorder in it, as `microbench watch` does."""
        reasons, found = folder / "reasons", folder / "recordings"
        reasons.mkdir()
        found.mkdir()
        (folder / "program.py").write_text(program)
        window_s, every_s = windows
        settings = {
            "folder": str(folder / recordings), "code": str(self.code), "reasons": str(reasons), "for_s": for_s,
            "window_s": window_s, "every_s": every_s, "stacks": stacks,
        }  # fmt: skip
        variables = self.environment(**more)
        variables["PYTHONPATH"] = os.pathsep.join((str(INJECTED), variables["PYTHONPATH"]))
        result = subprocess.run(
            [sys.executable, "program.py"], capture_output=True, text=True, cwd=folder, check=False,
            env={**variables, "MICROBENCH_WATCH": json.dumps(settings)},
        )  # fmt: skip
        lines = [line for path in sorted(reasons.iterdir()) for line in path.read_text().splitlines()]
        told = [(cause, next_step) for cause, next_step in map(json.loads, lines)]
        return Recorded(result.returncode, result.stdout, result.stderr, sorted(found.iterdir()), told)


def cells_of(trace: Trace) -> int:
    """How many rows of a recording became rows of the trace."""
    return len(trace.work) + len(trace.calls) + len(trace.syncs)

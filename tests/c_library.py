"""Small C libraries built at test time with the machine's compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

TWIN = Path(__file__).parent / "twin"


def build(name: str, folder: Path) -> ctypes.CDLL:
    """tests/twin/NAME.c as a loaded shared library. Raises CalledProcessError with the compiler's words."""
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    library = folder / f"{name}.so"
    options = ["-O2", "-Wall", "-Werror", "-Wno-unused-parameter", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", library, TWIN / f"{name}.c"], check=True)
    return ctypes.CDLL(str(library))


def address(library: ctypes.CDLL, name: str) -> int:
    """Address of a function of the library."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

"""Small C libraries built at test time with the machine's compiler."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

TWIN = Path(__file__).parent / "twin"


def build(name: str, folder: Path, *options: str) -> ctypes.CDLL:
    """tests/twin/NAME.c as a loaded shared library. Raises CalledProcessError with the compiler's words."""
    return compiled(TWIN / f"{name}.c", folder, "-O2", "-Wall", "-Werror", "-Wno-unused-parameter", *options)


def compiled(source: Path, folder: Path, *options: str) -> ctypes.CDLL:
    """A file of C, or of C++ by its ending, as a shared library in ``folder``. Skips the test without a compiler."""
    names = ("cc", "gcc") if source.suffix == ".c" else ("c++", "g++")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        pytest.skip(f"no {names[0]} here")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, *options, "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


def address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

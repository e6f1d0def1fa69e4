"""Gets a C library, which records programs or serves Python: from the package, else compiled for this user."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

import platformdirs

from microbench.core import files

IN_CHECKOUT = (Path(__file__).parents[2] / "pyproject.toml").is_file()
# The library stays loaded, because CUPTI calls it until the process is gone.
OPTIONS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wl,-z,nodelete")
COMPILERS = ("cc", "gcc", "clang")
LONGEST_S = 60  # that a compiler may take
DIGEST_BYTES = 32
MISSING = (
    "no C compiler works here, and this package has no library for this machine",
    "install a C compiler (cc, gcc, clang, or what CC names)",
)


def library(source: Path) -> Path | None:
    """The library of a source; None without one for this machine and without a C compiler that works.

    The package's own comes first, but in a checkout what the compiler makes.
    """
    compiled = [(_compiled, name) for name in (os.environ.get("CC"), *COMPILERS) if name]
    kept = [(prebuilt, platform.machine())]
    for make, given in (*compiled, *kept) if IN_CHECKOUT else (*kept, *compiled):
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            path = make(source, given)
            ctypes.CDLL(str(path))  # a file system may refuse to run code
            return path
    return None


def prebuilt(source: Path, machine: str) -> Path:
    """Where a release keeps the library that is made of a source for a processor; scripts/libraries makes it."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    return source.with_name(f"{source.stem}-{machine}-{digest}.so")


def _compiled(source: Path, name: str) -> Path:
    """The library in the user's cache, where it is compiled once for each version of the compiler.

    Raises OSError, ValueError and subprocess.SubprocessError.
    """
    compiler = shlex.split(name)
    version = _run([*compiler, "--version"])
    key = hashlib.sha256(repr((OPTIONS, version)).encode() + source.read_bytes()).hexdigest()
    kept = platformdirs.user_cache_path("microbench", appauthor=False) / f"{source.stem}-{key[:16]}.so"
    with contextlib.suppress(OSError):
        data = kept.read_bytes()
        if data[-DIGEST_BYTES:] == hashlib.sha256(data[:-DIGEST_BYTES]).digest():
            return kept
    with tempfile.TemporaryDirectory(prefix="microbench-") as folder:
        made = Path(folder) / "made.so"
        _run([*compiler, *OPTIONS, "-o", str(made), str(source), "-ldl"])
        code = made.read_bytes()
    kept.parent.mkdir(parents=True, exist_ok=True)
    os.close(files.replace(kept, code + hashlib.sha256(code).digest()))  # what follows a library is not loaded
    return kept


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=LONGEST_S).stdout

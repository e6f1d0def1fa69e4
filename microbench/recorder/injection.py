"""Gets the C library that records programs which are not Python: from the package, else compiled for this user.

CUDA's driver loads the library that CUDA_INJECTION64_PATH names into each process that starts CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import platformdirs

from microbench.core import files
from microbench.recorder import cupti

SOURCE = Path(__file__).parent / "inject" / "injection.c"
CARRIED = SOURCE.with_name("libinjection-x86_64.so")
VARIABLE = "CUDA_INJECTION64_PATH"
# The library stays loaded, because CUPTI calls it until the process is gone.
OPTIONS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wl,-z,nodelete")
COMPILERS = ("cc", "gcc", "clang")
LONGEST_S = 60  # that a compiler may take
DIGEST_BYTES = 32


def library() -> Path | None:
    """The library; None without a C compiler that works."""
    if CARRIED.is_file():
        return CARRIED
    for name in filter(None, (os.environ.get("CC"), *COMPILERS)):
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            path = _compiled(shlex.split(name))
            ctypes.CDLL(str(path))  # a file system may refuse to run code
            return path
    return None


def variables(path: Path, folder: Path, reasons: Path, for_s: float | None) -> dict[str, str]:
    """The variables of the environment by which the library begins, writes into ``folder`` and finds libcupti."""
    return {
        VARIABLE: str(path),
        "MICROBENCH_WATCH_FOLDER": str(folder),
        "MICROBENCH_WATCH_REASONS": str(reasons),
        "MICROBENCH_WATCH_FOR_MS": "" if for_s is None else str(round(for_s * 1000)),
        "MICROBENCH_WATCH_CUDA": ",".join(map(str, cupti.majors())),
        "MICROBENCH_WATCH_CUPTI": next(cupti.paths(), ""),
    }


def _compiled(compiler: list[str]) -> Path:
    """The library in the user's cache, where it is compiled once for each version of the compiler.

    Raises OSError and subprocess.SubprocessError.
    """
    version = _run([*compiler, "--version"])
    key = hashlib.sha256(repr((OPTIONS, version)).encode() + SOURCE.read_bytes()).hexdigest()
    kept = platformdirs.user_cache_path("microbench", appauthor=False) / f"watch-{key[:16]}.so"
    with contextlib.suppress(OSError):
        data = kept.read_bytes()
        if data[-DIGEST_BYTES:] == hashlib.sha256(data[:-DIGEST_BYTES]).digest():
            return kept
    with tempfile.TemporaryDirectory(prefix="microbench-") as folder:
        made = Path(folder) / "injection.so"
        _run([*compiler, *OPTIONS, "-o", str(made), str(SOURCE), "-ldl"])
        code = made.read_bytes()
    kept.parent.mkdir(parents=True, exist_ok=True)
    os.close(files.replace(kept, code + hashlib.sha256(code).digest()))  # what follows a library is not loaded
    return kept


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=LONGEST_S).stdout

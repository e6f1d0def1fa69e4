"""Finds the CUPTI library that the program itself would load."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator

# In a process there must be one libcupti only, so its folder is looked for in the order in which packages find theirs.
PACKAGE_FOLDERS = {13: "nvidia/cu13/lib", 12: "nvidia/cuda_cupti/lib"}
TOOLKIT_FOLDERS = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
LOADED = re.compile(r"/.*/libcupti\.so[.\d]*$", re.MULTILINE)
TORCH_CUDA = re.compile(r"""^cuda\b[^=]*=\s*['"](\d+)""", re.MULTILINE)
CUDA_13 = 13000
INSTALL = "pip install nvidia-cuda-cupti (for CUDA 12 nvidia-cuda-cupti-cu12) for that Python"


class NotRecorded(Exception):
    """The process cannot be recorded: the cause and what to do, one line each."""

    def __init__(self, cause: str, next_step: str) -> None:
        super().__init__(cause)
        self.cause, self.next_step = cause, next_step


def path() -> str:
    """The library that this process would load. Raises NotRecorded."""
    for found in paths():
        return found
    raise NotRecorded(f"no libcupti.so.12 or .13 is installed for {sys.executable}", INSTALL)


def paths() -> Iterator[str]:
    """Paths of the library, that first which this process would load."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        yield from LOADED.findall(maps.read())[:1]
    found = majors()
    linked = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for major in found:
        for folder in linked:
            yield from _there(folder, major)
        for entry in sys.path:
            yield from _there(os.path.join(entry, PACKAGE_FOLDERS[major]), major)
    for major in found:  # of conda, whose packages load it though the system may have a newer toolkit
        yield from _there(os.path.join(sys.prefix, "lib"), major)
    homes = [os.environ.get("CUDA_HOME") or "/usr/local/cuda", *(f"/usr/local/cuda-{major}" for major in found)]
    for major in found:
        for home in homes:
            for folder in TOOLKIT_FOLDERS:
                yield from _there(os.path.join(home, folder), major)


def _there(folder: str, major: int) -> Iterator[str]:
    path = os.path.join(folder, f"libcupti.so.{major}")
    if os.path.isfile(path):
        yield path


def majors() -> tuple[int, ...]:
    """The major versions of CUDA in the order in which to look for them: PyTorch's own first, none that is too new for
    the driver."""
    for entry in sys.path:
        try:
            with open(os.path.join(entry, "torch", "version.py"), encoding="utf-8") as file:
                match = TORCH_CUDA.search(file.read())
        except (OSError, UnicodeDecodeError):
            continue
        if match and int(match[1]) in PACKAGE_FOLDERS:
            own = int(match[1])
            return (own, *(major for major in PACKAGE_FOLDERS if major != own))
        break
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return tuple(PACKAGE_FOLDERS)
    return (12,) if 0 < version.value < CUDA_13 else (13, 12)

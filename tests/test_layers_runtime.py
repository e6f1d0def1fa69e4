"""The layer of the CUDA runtime API, with a stand-in for libcudart in C that keeps what a launch was given."""

import ctypes
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from c_library import build
from layer_stand_ins import CONTEXT, STREAM

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.layers import base
from microbench.gpu.layers.base import open_layer
from microbench.host import loops

NAME = "cuda_runtime"


class NotFound(RuntimeError):
    """What pathfinder raises."""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    library = build("runtime", tmp_path)
    library.stand_in_seen.restype = ctypes.POINTER(ctypes.c_long)
    found(monkeypatch, str(tmp_path / "runtime.so"))
    return library


def found(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Let pathfinder find that library, or none."""

    def load(name: str) -> SimpleNamespace:
        assert name == "cudart"
        if not path:
            raise NotFound("no libcudart\nin many places")
        return SimpleNamespace(abs_path=path)

    pathfinder = ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib = load  # type: ignore[attr-defined]
    pathfinder.DynamicLibNotFoundError = NotFound  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)


@pytest.mark.parametrize("arguments", [0, 4])
def test_the_compiled_loop_launches_what_a_call_launches(runtime: ctypes.CDLL, arguments: int) -> None:
    handle = open_layer(NAME, CONTEXT, arguments)
    handle.call()
    seen = runtime.stand_in_seen()[:14]
    values = [*CONTEXT.pointers, 0] if arguments else [0] * 4
    # Two launches before this one; the kernel; grid; block; shared memory; stream; the kernel's arguments.
    assert seen == [1, 1, 1, 1, 1, base.BLOCK_THREADS, 1, 1, 0, STREAM, *values]
    assert handle.compiled is not None
    assert loops.submit(handle.compiled.address, np.array([*handle.compiled.arguments, *[0] * 8])[:11], 0, 3) == 0
    assert runtime.stand_in_seen()[:14] == [4, *seen[1:]]
    handle.close()
    assert runtime.stand_in_unloaded() == 1


def test_without_a_library_or_with_an_old_one_it_is_skipped(
    runtime: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, "")
    with pytest.raises(Skip, match=r"^needs libcudart: pip install [^\n]* \(no libcudart\)$"):
        open_layer(NAME, CONTEXT, 0)
    found(monkeypatch, "libc.so.6")
    with pytest.raises(Skip, match=r"older than CUDA 12\.8"):
        open_layer(NAME, CONTEXT, 0)


def test_an_error_of_the_runtime_has_its_name(runtime: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base.KERNELS, 4, "missing")
    with pytest.raises(MeasurementError, match="the CUDA runtime: cudaErrorSymbolNotFound"):
        open_layer(NAME, CONTEXT, 4)

"""What a Python layer says when its library is missing, broken, or cannot work here: one line and the next step."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from capture_stand_ins import Launches
from layer_stand_ins import CASES, CONTEXT, put_stand_ins

from microbench.core.errors import Skip
from microbench.gpu.layers import base


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return put_stand_ins(monkeypatch)


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_a_missing_package_is_skipped_with_its_install_line(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, name: str, arguments: int
) -> None:
    layer = base.find_layer(name)
    package = "cuda.bindings.driver" if name == "cuda_bindings" else layer.PACKAGE

    def missing(wanted: str) -> Any:
        if wanted == package:
            raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)
        return sys.modules[wanted]

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Skip) as caught:
        layer.open_layer(CONTEXT, arguments)
    assert str(caught.value) == f"needs {package}: {layer.INSTALL}"


def test_a_missing_parent_is_a_missing_package() -> None:
    with pytest.raises(Skip, match=r"^needs no_such_parent_here\.child: pip install it$"):
        base.load("no_such_parent_here.child", "pip install it")


@pytest.mark.parametrize("error", [
    ImportError("libnvrtc.so.13: cannot open\nshared object"), AttributeError("np has no row_stack"),
    ModuleNotFoundError("No module named 'its_dependency'", name="its_dependency"), RuntimeError("ABI version"),
])  # fmt: skip
def test_a_broken_package_is_skipped_with_its_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(wanted: str) -> Any:
        raise error

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(Skip) as caught:
        base.load("cupy", "pip install cupy")
    text = str(caught.value)
    assert text.startswith(f"cupy does not import here ({type(error).__name__}: ")
    assert "\n" not in text


def unusable_torch(torch: Any) -> None:
    torch.version.cuda = None


def no_gpu_for_torch(torch: Any) -> None:
    torch.cuda.is_available = lambda: False


def no_code_for_this_gpu(torch: Any) -> None:
    def ones(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    torch.ones = ones


@pytest.mark.parametrize(("spoil", "words"), [
    (unusable_torch, "built without CUDA"), (no_gpu_for_torch, "sees no GPU"), (no_code_for_this_gpu, "no code for"),
])  # fmt: skip
def test_a_pytorch_that_cannot_work_here_is_skipped(
    launches: Launches, spoil: Callable[[Any], None], words: str
) -> None:
    spoil(sys.modules["torch"])
    with pytest.raises(Skip, match=words):
        base.open_named("torch_eager", CONTEXT, 1)


def test_another_pytorch_error_is_a_failure(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    def illegal(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(sys.modules["torch"], "ones", illegal)
    with pytest.raises(RuntimeError, match="illegal memory"):
        base.open_named("torch_eager", CONTEXT, 1)


def test_libraries_without_a_gpu_are_skipped(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_backend(backend: str) -> None:
        raise RuntimeError("Unknown backend: 'gpu'")

    cuda = sys.modules["numba.cuda"]
    monkeypatch.setattr(sys.modules["cupy"], "is_available", lambda: False)
    monkeypatch.setattr(sys.modules["warp"], "is_cuda_available", lambda: False)
    monkeypatch.setattr(sys.modules["jax"], "local_devices", no_backend)
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "cuda_error", lambda: "\nCUDA driver library\ncannot be found\n", raising=False)
    for name in ("cupy_raw", "warp", "jax_jit", "numba_configured"):
        with pytest.raises(Skip, match="sees no GPU") as caught:
            base.open_named(name, CONTEXT, base.find_layer(name).ARGUMENTS[0])
        assert "\n" not in str(caught.value)


def test_numbas_simulator_is_no_gpu(launches: Launches) -> None:
    sys.modules["numba"].config.ENABLE_CUDASIM = 1
    with pytest.raises(Skip, match="unset it"):
        base.open_named("numba_each_call", CONTEXT, 0)


def test_an_old_cuda_core_is_skipped(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["cuda.core"], "launch")
    with pytest.raises(Skip, match=r"older than 1\.0: pip install"):
        base.open_named("cuda_core", CONTEXT, 0)


@pytest.mark.parametrize(("error", "expected"), [
    (RuntimeError("Failed to find C compiler. Please specify via CC"), Skip),
    (subprocess.CalledProcessError(1, ["gcc", "main.c"]), Skip),
    (RuntimeError("Triton Error [CUDA]: an illegal memory access"), RuntimeError),
])  # fmt: skip
def test_triton_without_a_compiler_is_skipped_and_no_other_error_is(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            raise error

    monkeypatch.setattr(sys.modules["triton"], "jit", lambda function: Kernel())
    with pytest.raises(expected):
        base.open_named("triton", CONTEXT, 0)

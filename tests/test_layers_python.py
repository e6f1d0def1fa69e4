"""The Python layers against stand-ins of their libraries: the right stream, one library call a call, clear skips."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from capture_stand_ins import STREAM, Launches
from layer_stand_ins import CASES, CONTEXT, ONE_OP, SAME_KERNEL, Array, put_stand_ins

from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.gpu.layers import base
from microbench.gpu.layers.base import kernels_of_one_call

# What the layers import; listing them must import none.
PACKAGES = ("cuda.bindings.driver", "cuda.core", "cupy", "numba.cuda", "torch", "triton", "warp", "jax")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return put_stand_ins(monkeypatch)


# -- finding layers ----------------------------------------------------------------------------------------------------


def test_the_folder_is_the_registry() -> None:
    assert set(base.layer_names("same_kernel")) == set(SAME_KERNEL)
    assert set(base.layer_names("one_op")) == set(ONE_OP)
    assert set(base.layer_names()) == set(SAME_KERNEL + ONE_OP)


@pytest.mark.parametrize("name", SAME_KERNEL + ONE_OP)
def test_each_layer_declares_what_it_is(name: str) -> None:
    layer = base.find_layer(name)
    assert layer.INSTALL.startswith("pip install ")
    assert layer.ABOUT
    assert "\n" not in layer.ABOUT
    counts = layer.ARGUMENTS
    assert counts == ((0, 4) if layer.FAMILY == "same_kernel" else (1,))


def test_listing_layers_imports_none_of_their_packages() -> None:
    code = f"""
import sys
from microbench.gpu.layers.base import layer_names
layer_names()
print([name for name in {PACKAGES!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_layer_is_a_usage_error_that_names_the_others() -> None:
    with pytest.raises(UsageError) as caught:
        base.find_layer("cupy_row")
    assert "cupy_row" in caught.value.cause
    assert "cupy_raw" in caught.value.next_step


def test_an_argument_count_that_is_not_measured_is_skipped(launches: Launches) -> None:
    with pytest.raises(Skip, match="0 or 4 arguments, not 2"):
        base.open_named("cupy_raw", CONTEXT, 2)
    assert launches == []


# -- the wiring of each layer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_opening_launches_and_each_call_is_one_launch(launches: Launches, name: str, arguments: int) -> None:
    handle = base.open_named(name, CONTEXT, arguments)
    assert launches, "the kernel must be compiled and launched before anything is timed"
    launches.clear()
    for count in (1, 2, 3):
        handle.call()
        assert len(launches) == count
    assert len(set(map(repr, launches))) == 1


@pytest.mark.parametrize(("name", "arguments"), [case for case in CASES if case[0] != "jax_jit"])
def test_calls_go_to_the_workers_stream(launches: Launches, name: str, arguments: int) -> None:
    handle = base.open_named(name, CONTEXT, arguments)
    handle.call()
    assert handle.stream_handle == STREAM
    assert {stream for _, stream, _ in launches} == {STREAM}


@pytest.mark.parametrize("name", SAME_KERNEL)
def test_a_kernel_gets_three_pointers_and_one_integer_or_nothing(launches: Launches, name: str) -> None:
    base.open_named(name, CONTEXT, 0)
    library, _, values = launches.pop()
    assert library.endswith(" empty")
    assert values == ()
    base.open_named(name, CONTEXT, 4)
    library, _, values = launches.pop()
    assert library.endswith(("four_arguments", "touch"))
    assert len(values) == 4
    assert values[:3] in ((16, 32, 48), ("array",) * 3, ("tensor",) * 3)
    assert values[3] == 0


def test_numba_is_configured_once_or_at_each_call(launches: Launches) -> None:
    empty = sys.modules["microbench._kernels.numba_kernels"].empty
    for name, configurations in (("numba_configured", 0), ("numba_each_call", 5)):
        handle = base.open_named(name, CONTEXT, 0)
        before = empty.configured
        for _ in range(5):
            handle.call()
        assert empty.configured - before == configurations


@pytest.mark.parametrize(("package", "name", "arguments"), [
    ("cupy", "cupy_raw", 0), ("cupy", "cupy_ufunc", 1), ("torch", "torch_out", 1), ("torch", "triton", 4),
])  # fmt: skip
def test_closing_sets_the_librarys_stream_back(launches: Launches, package: str, name: str, arguments: int) -> None:
    current = sys.modules[package].current
    handle = base.open_named(name, CONTEXT, arguments)
    assert current["stream"] == STREAM
    assert current["device"] == 3
    handle.close()
    assert int(getattr(current["stream"], "handle", current["stream"])) == 0


def test_cupy_13_has_no_stream_protocol(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = sys.modules["cupy"]
    external = cupy.cuda.Stream
    monkeypatch.delattr(cupy.cuda.Stream, "from_external")
    cupy.cuda.ExternalStream = lambda handle, device: external(handle)
    base.open_named("cupy_raw", CONTEXT, 0)
    assert launches[0][1] == STREAM


def test_jax_waits_for_its_last_result_and_cannot_be_captured(launches: Launches) -> None:
    handle = base.open_named("jax_jit", CONTEXT, 1)
    assert handle.stream_handle is None
    assert handle.synchronize is not None
    launches.clear()
    handle.call()
    handle.synchronize()
    assert [library for library, _, _ in launches] == ["jax add", "jax wait"]
    fact = kernels_of_one_call(handle, driver=None)
    assert fact.value is None
    assert "stream of its own" in (fact.reason or "")


@pytest.mark.parametrize("name", ["cupy_ufunc", "torch_eager", "torch_out", "jax_jit"])
def test_a_wrong_sum_is_a_failure(launches: Launches, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "jax_jit":
        wrong: Any = lambda function: lambda x: Array(3.0, lambda: None)  # noqa: E731
        monkeypatch.setattr(sys.modules["jax"], "jit", wrong)
    else:
        monkeypatch.setattr(Array, "__add__", lambda self, other: Array(3.0, lambda: None))
    with pytest.raises(MeasurementError, match=f"{name}: 1 \\+ 1 gave 3"):
        base.open_named(name, CONTEXT, 1)


# -- Numba's kernels on its simulator ----------------------------------------------------------------------------------


def test_numba_kernels_run_on_the_simulator() -> None:
    code = """
import numpy as np
from microbench._kernels import numba_kernels
a, b, total = np.arange(8.0), np.full(8, 2.0), np.zeros(8)
numba_kernels.empty[1, 32]()
numba_kernels.touch[1, 32](a, b, total, 0)
print(total.tolist())
numba_kernels.touch[1, 32](a, b, total, 5)
print(total.tolist())
"""
    environment = {"NUMBA_ENABLE_CUDASIM": "1", "PATH": "", "PYTHONPATH": str(Path(base.__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([0.0] * 8), str([2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0])]

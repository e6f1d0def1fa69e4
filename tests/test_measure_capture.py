"""Captures of own functions with a stand-in for CUDA's driver and for PyTorch, and kernels compiled without a GPU."""

import ctypes
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from microbench.core.errors import MeasurementError, UsageError
from microbench.core.targets import argument, check_kernel, target
from microbench.experiments.own import callables, culprit
from microbench.experiments.own.callables import OwnCall
from microbench.experiments.own.kernel import KernelSpec
from microbench.experiments.own.step import NotCapturedError

bindings = pytest.importorskip("cuda.bindings.driver")
own_kernel = pytest.importorskip("microbench.experiments.own.kernel")
own_step = pytest.importorskip("microbench.experiments.own.step")

INVALIDATED = 901
ELEMENTWISE = b"_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvif"


class Driver:
    """What captures call of cuda.bindings.driver. The graph has ``nodes`` kernels with an address and a number."""

    CUfunction, CUkernel, CUstream, CUgraph, CUgraphExec = (
        getattr(bindings, name) for name in ("CUfunction", "CUkernel", "CUstream", "CUgraph", "CUgraphExec")
    )
    CUstreamCaptureMode, CUstreamCaptureStatus = bindings.CUstreamCaptureMode, bindings.CUstreamCaptureStatus
    CUgraphNodeType = bindings.CUgraphNodeType

    def __init__(self) -> None:
        self.broken = False
        self.nodes = 2
        self.address = 4096

    def cuStreamCreate(self, flags: int) -> tuple[int, int]:  # noqa: N802
        assert flags == 0, "a blocking stream, on which work of the default stream is an error"
        return 0, 5

    def cuStreamBeginCapture(self, stream: int, mode: object) -> tuple[int]:  # noqa: N802
        self.broken = False
        return (0,)

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[object, ...]:  # noqa: N802
        return (
            0,
            bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED if self.broken else 1,
            1, None, None, None, 0,
        )  # fmt: skip

    def cuStreamEndCapture(self, stream: int) -> tuple[int, int]:  # noqa: N802
        return (INVALIDATED if self.broken else 0), 99

    def cuGraphGetNodes(self, graph: int, count: int = 0) -> tuple[int, list[int], int]:  # noqa: N802
        return 0, [11] * self.nodes, self.nodes

    def cuGraphNodeGetType(self, node: int) -> tuple[int, object]:  # noqa: N802
        return 0, bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL

    def cuGraphKernelNodeGetParams(self, node: int) -> tuple[int, object]:  # noqa: N802
        self.values = (ctypes.c_uint64 * 2)(self.address, 7)
        first = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * 2)(first, first + 8)
        shape = dict.fromkeys(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), 1)
        return 0, SimpleNamespace(
            func=bindings.CUfunction(7), kern=bindings.CUkernel(0), kernelParams=ctypes.addressof(self.pointers),
            **shape,
        )  # fmt: skip

    def cuFuncGetName(self, function: object) -> tuple[int, bytes]:  # noqa: N802
        return 0, ELEMENTWISE

    def cuFuncGetParamInfo(self, function: object, place: int) -> tuple[int, int | None, int | None]:  # noqa: N802
        return (0, 8 * place, 8) if place < 2 else (1, None, None)

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, 123

    def cuGraphDestroy(self, graph: int) -> tuple[int]:  # noqa: N802
        return (0,)

    cuGraphExecDestroy = cuGraphDestroy  # noqa: N815
    cuStreamDestroy = cuGraphDestroy  # noqa: N815

    def cuGraphLaunch(self, graph: object, stream: int) -> tuple[int]:  # noqa: N802
        return (0,)


class Case:
    """What a step takes from the current case. Every recorded run has one kernel of 5 us."""

    context = SimpleNamespace(
        device=0, kernel_records=SimpleNamespace(durations_ns=lambda run: [run(), np.array([5000])][1])
    )

    def adopt(self, handle: int) -> int:
        assert handle == 5
        return 1

    def own(self, release: Callable[[], object]) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    stand_in = Driver()
    monkeypatch.setattr(own_step, "driver", stand_in)
    monkeypatch.setattr(own_step, "error_name", lambda code: f"CUDA error {code}")
    for name in ("torch", "cupy", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return stand_in


def step_of(call: Callable[[], object]) -> Any:
    return own_step.OwnStep(Case(), OwnCall(call, (), __file__))


def test_a_step_is_captured_replayed_and_compared(driver: Driver) -> None:
    values = np.arange(4.0)
    step = step_of(lambda: values * 2)
    first = step.capture(follow=True)
    assert [node.name for node in first.nodes] == ["at::native::vectorized_elementwise_kernel<4, float>"] * 2
    assert first.nodes[0].arguments == (4096).to_bytes(8, "little") + (7).to_bytes(8, "little")
    again = step.capture()
    assert again.nodes == first.nodes
    assert step.compare(again) == callables.EQUAL
    driver.address = 8192
    assert step.capture().nodes != first.nodes
    out_ns = np.zeros(3, dtype=np.int64)
    again.replay.round_trips(out_ns)
    assert (out_ns > 0).all()
    assert step.profiled_ns().tolist() == [5000]
    assert step.submit.queue_slots == 510 // 2


def test_a_capture_that_breaks_silently_names_the_line(driver: Driver) -> None:
    def step() -> int:
        value = 1
        driver.broken = True  # here
        value += 1
        return value

    with pytest.raises(NotCapturedError) as refused:
        step_of(step).capture(follow=True)
    assert refused.value.blocker.error == f"CUDA error {INVALIDATED}"
    assert refused.value.blocker.line.endswith("in step: driver.broken = True  # here")


def test_a_call_into_a_compiled_package_is_named_and_not_taken_for_the_users_code(tmp_path: Path) -> None:
    compiled: dict[str, Any] = {}
    launcher = "def launch():\n    check_or_raise()\ndef check_or_raise():\n    raise RuntimeError('implicit')\n"
    exec(compile(launcher, "cuda/core/_launcher.pyx", "exec"), compiled)

    def step() -> None:
        compiled["launch"]()

    ended = culprit.follow(step, lambda: False, __file__)
    assert (ended.line.partition(": ")[2], ended.called) == ('compiled["launch"]()', "launch")


def test_packages_in_an_environment_below_the_users_folder_are_not_the_users_code() -> None:
    follower = culprit._Follower(lambda: False, "/project/train.py")
    assert follower.is_user("/project/models/net.py")
    assert not follower.is_user("/project/.venv/lib/python3.12/site-packages/torch/nn/functional.py")
    assert not follower.is_user("cuda/core/_launcher.pyx")


def test_a_call_that_raises_in_the_capture_names_the_error_and_the_line(driver: Driver) -> None:
    capturing = False

    def item() -> None:
        if capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with …")

    made = step_of(lambda: item())
    capturing = True
    with pytest.raises(NotCapturedError) as refused:
        made.capture(follow=True)
    assert refused.value.blocker.error == ("RuntimeError: CUDA error: operation not permitted when stream is capturing")
    assert "in item: raise RuntimeError" in refused.value.blocker.line


def test_an_empty_graph_is_no_graph(driver: Driver) -> None:
    step = step_of(lambda: None)
    driver.nodes = 0
    with pytest.raises(NotCapturedError, match="the graph is empty"):
        step.capture()


class Torch(ModuleType):
    """The part of PyTorch that captures use; it notes what is done in which order."""

    def __init__(self, driver: Driver) -> None:
        super().__init__("torch")
        self.done: list[str] = []
        done = self.done

        class CUDAGraph:
            def __init__(self, keep_graph: bool = False) -> None:
                self.kept = keep_graph

            def raw_cuda_graph(self) -> int:
                assert self.kept
                return 99

            def instantiate(self) -> None:
                done.append("instantiate")

            def replay(self) -> None:
                done.append("replay")

            def reset(self) -> None:
                done.append("reset")

        @contextmanager
        def graph(graph: CUDAGraph, pool: object, stream: object) -> Iterator[None]:
            driver.broken = False
            done.append(f"capture into {pool}")
            yield
            if driver.broken:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

        self.cuda = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, set_device=lambda index: None,
            current_stream=lambda: 0, set_stream=lambda stream: None, ExternalStream=lambda handle: handle,
            graph_pool_handle=lambda: "one pool", CUDAGraph=CUDAGraph, graph=graph,
        )  # fmt: skip

    def zeros(self, count: int, device: str) -> object:
        return object()


def test_pytorch_captures_by_its_own_means_into_one_pool(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(driver)
    monkeypatch.setitem(sys.modules, "torch", torch)
    step = step_of(lambda: None)
    assert step.library == "PyTorch"
    step.capture(follow=True)
    step.capture().replay(2)
    captures = ["capture into one pool"] * 2  # the first keeps the pool
    expected = [*captures, "instantiate", "reset", "capture into one pool", "instantiate", "replay", "replay"]
    assert torch.done == expected


def test_what_pytorch_cannot_capture_has_the_error_of_the_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch(driver))

    def step() -> None:
        driver.broken = True

    with pytest.raises(NotCapturedError) as refused:
        step_of(step).capture(follow=True)
    assert "previous error during capture" in refused.value.blocker.error
    assert "in step: driver.broken = True" in refused.value.blocker.line


# Kernels

SOURCE = """
extern "C" __global__ void saxpy(const float* x, float* y, float a) { y[threadIdx.x] += a * x[threadIdx.x]; }
template <typename T> __global__ void scale(T* x, T a) { x[threadIdx.x] *= a; }
extern "C" __global__ void spilling(float* x) {
    float v[256];
    for (int i = 0; i < 256; i++) v[i] = x[i * 32 + threadIdx.x];
    for (int r = 0; r < 8; r++) for (int i = 0; i < 256; i++) v[i] = v[(i * 7 + r) % 256] * 1.5f + v[i];
    for (int i = 0; i < 256; i++) x[i * 32 + threadIdx.x] = v[i];
}
"""


def spec(folder: Path, name: str, *options: str, arguments: tuple[str, ...] = ()) -> KernelSpec:
    path = folder / "own.cu"
    path.write_text(SOURCE)
    return KernelSpec(str(path), name, (1, 1, 1), (32, 1, 1), tuple(map(argument, arguments)), options=options)


@pytest.mark.slow
def test_kernels_compile_with_their_symbols_and_spills(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    compiled = {name: own_kernel.compile_file(spec(tmp_path, name), "90") for name in ("saxpy", "scale<float>")}
    assert compiled["saxpy"][1:] == (b"saxpy", 0), "its symbol and the bytes spilled"
    assert compiled["scale<float>"][1] == b"_Z5scaleIfEvPT_S0_"
    assert own_kernel.compile_file(spec(tmp_path, "spilling", "--maxrregcount=32"), "90")[2] > 0
    for name, options, cause in (
        ("nosuch", (), "it has no kernel nosuch"),
        ("scale<int*>", (), "does not compile for sm_90"),
        ("saxpy", ("--nonsense",), "NVRTC refuses an option: --nonsense"),
    ):
        with pytest.raises(MeasurementError, match=cause):
            own_kernel.compile_file(spec(tmp_path, name, *options), "90")


EMPTY = 'extern "C" __global__ void k() {}\n'
# 2 ** 41 instances of a template, each of its own.
ENDLESS = """template <int N, long M> struct F { static const long v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v; };
template <long M> struct F<0, M> { static const long v = M; };
extern "C" __global__ void k(long *x) { *x = F<40, 1>::v; }
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (b"\xef\xbb\xbf" + EMPTY.encode(), ""),
        (b"// 5 \xb5s \xff\xfe\n/* \xff */\n" + EMPTY.encode(), ""),
        ((EMPTY + "// x\n" * 1_000_000).encode(), ""),
        (EMPTY.encode("utf-16"), "is no text: it holds a zero byte"),
        (EMPTY.encode() + b"\0 what the compiler would not read", "is no text"),
        (b" " * (17 << 20), "has over 16 MiB"),
        (f"int 5;\n{EMPTY.replace('k()', 'q()')}".encode(), r"own.cu\(1\): error: "),
        (f'#include "{{folder}}/secret"\n{EMPTY}'.encode(), "an error in line 1 of {folder}/secret$"),
        (f'__device__ int x =\n#include "../secret"\n;{EMPTY}'.encode(), "an error in line 1 of .*secret$"),
        (f'#include "beside.h"\n{EMPTY}'.encode(), r'beside.h\(1\): error: identifier "beside" is undefined$'),
        (f'#include "/dev/zero"\n{EMPTY}'.encode(), "cannot open source file"),
        (f"#error {'x' * 100_000}\n{EMPTY}".encode(), "xxx$"),
        (ENDLESS.encode(), "out of memory"),
    ],
)  # fmt: skip
def test_odd_sources_compile_or_are_refused_with_a_word_and_no_text_of_other_files(
    source: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(own_kernel, "MOST_COMPILER_BYTES", 200 << 20)
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    folder = tmp_path / "kernels"
    folder.mkdir()
    (tmp_path / "secret").write_text("API_KEY = hunter2 error\n")
    (folder / "beside.h").write_text("__device__ int of = beside;\n")
    path = folder / "own.cu"
    path.write_bytes(source.replace(b"{folder}", str(tmp_path).encode()))
    one = KernelSpec(str(path), "k", (1, 1, 1), (1, 1, 1))
    if not told:
        assert own_kernel.compile_file(one, "90")[1] == b"k"
        return
    with pytest.raises((MeasurementError, UsageError), match=told.format(folder=tmp_path)) as refused:
        own_kernel.compile_file(one, "90")
    assert len(str(refused.value)) < 1000
    assert "hunter2" not in str(refused.value)
    assert "API_KEY" not in str(refused.value)
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits


@pytest.mark.parametrize(
    "part", ["/*", "__global__ a(", "__global__ void a(", "__global__ x() ", "//", "a,", "__global__"]
)
def test_a_source_that_repeats_itself_is_read_in_linear_time(part: str, tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(EMPTY + part * (1_000_000 // len(part)))
    check_kernel(target(f"{path}:k"), [], {})
    path.write_text(f"__global__ void k({part * (1_000_000 // len(part))})")
    with suppress(UsageError):
        check_kernel(target(f"{path}:k"), [], {})


def test_arguments_are_held_against_what_the_compiled_kernel_takes(tmp_path: Path) -> None:
    def info(*sizes: int) -> Callable[[int], Any]:
        return lambda place: (0, 0, sizes[place]) if place < len(sizes) else (1, None, None)

    good = spec(tmp_path, "scale<float>", arguments=("f32[4]", "2.0f"))
    own_kernel.check_sizes(good, info(8, 4))
    own_kernel.check_sizes(good, lambda place: (bindings.CUresult.CUDA_ERROR_NOT_SUPPORTED, None, None))
    for sizes, cause in (
        ((8,), "takes 1 arguments, 2 are given"),
        ((8, 4, 4), "takes more than 2 arguments"),
        ((8, 8), "argument 2 of scale<float> has 8 bytes, but a number of type f32 was given, which has 4"),
    ):
        with pytest.raises(MeasurementError, match=cause):
            own_kernel.check_sizes(good, info(*sizes))


def test_arrays_are_filled_by_type() -> None:
    floats = own_kernel.filled(argument("f16[64]"))
    assert floats.dtype == np.float16
    assert 0 <= floats.min() < floats.max() <= 1
    assert own_kernel.filled(argument("bf16[64]")).dtype == np.uint16
    assert not own_kernel.filled(argument("u64[64]")).any()

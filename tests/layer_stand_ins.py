"""Stand-ins for the libraries of the Python layers. One list records all launches; a refused call breaks a capture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from microbench.gpu.layers.base import LayerContext

STREAM = 0xABC0


class Code(int):
    name = "CUDA_ERROR_STAND_IN"


OK, BAD = Code(0), Code(700)


Launch = tuple[str, int, tuple[Any, ...]]


class Launches(list[Launch]):
    """Launches of the stand-ins: library, stream, arguments. During a capture they go to ``captured``.

    With a ``refusal`` a captured launch raises it and breaks the capture: ending it is an error as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Launch] | None = None
        self.broken = False
        self.refusal: Exception | None = None
        self.graphs: list[str] = []

    def add(self, library: str, stream: int, *arguments: Any) -> None:
        if self.captured is None:
            self.append((library, stream, arguments))
            return
        if self.refusal is not None:
            self.broken = True
            raise self.refusal
        self.captured.append((library, stream, arguments))

    def begin_capture(self) -> None:
        assert self.captured is None
        self.captured, self.broken = [], False

    def end_capture(self) -> list[Launch] | None:
        """What was captured; None after a broken capture, which is ended too."""
        captured, self.captured = self.captured, None
        return None if self.broken else captured


def driver_graph_stand_ins(launches: Launches) -> dict[str, Any]:
    """Stream capture. A graph is the list of its launches; ``launches.graphs`` records what happens to graphs."""

    def begin(stream: int, mode: str) -> tuple[Code]:
        assert (stream, mode) == (STREAM, "relaxed")
        launches.begin_capture()
        return (OK,)

    def end(stream: int) -> tuple[Code, Any]:
        assert stream == STREAM
        graph = launches.end_capture()
        return (BAD if graph is None else OK), graph

    def recording(act: str) -> Callable[..., tuple[Code]]:
        def tell(*handles: Any) -> tuple[Code]:
            launches.graphs.append(act)
            return (OK,)

        return tell

    def replay(graph: list[Launch], stream: int) -> tuple[Code]:
        assert stream == STREAM
        launches.extend(graph)
        return (OK,)

    return {
        "CUstreamCaptureMode": SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
        "CUgraph": lambda address: address, "cuStreamBeginCapture": begin, "cuStreamEndCapture": end,
        "cuGraphGetNodes": lambda graph: (OK, None, len(graph)),
        "cuGraphInstantiate": lambda graph, flags: (OK, list(graph)), "cuGraphUpload": recording("upload"),
        "cuGraphLaunch": replay, "cuGraphDestroy": recording("destroy"),
        "cuGraphExecDestroy": recording("destroy executable"),
    }  # fmt: skip


class CoreError(Exception):
    """cuda.core's error, which is no RuntimeError."""


class CoreStream(int):
    """A stream of cuda.core: its handle, and builders of graphs on it."""

    def __new__(cls, handle: int, launches: Launches) -> CoreStream:
        made = super().__new__(cls, handle)
        made.launches = launches
        return made

    def create_graph_builder(self) -> CoreBuilder:
        return CoreBuilder(self)


class CoreBuilder:
    """A graph builder of cuda.core: closing it ends its capture, which is an error if the capture is broken."""

    def __init__(self, stream: CoreStream) -> None:
        self.stream, self.launches = stream, stream.launches
        self.building, self.graph = False, None
        self.graph_definition = SimpleNamespace(nodes=lambda: set(range(len(self.graph))))

    def begin_building(self) -> CoreBuilder:
        self.launches.begin_capture()
        self.building = True
        return self

    def end_building(self) -> CoreBuilder:
        self.building, self.graph = False, self.launches.end_capture()
        if self.graph is None:
            raise CoreError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        return self

    def complete(self) -> SimpleNamespace:
        graph, tell, stream = list(self.graph), self.launches.graphs.append, self.stream

        def launch(where: CoreStream) -> None:
            assert where is stream
            self.launches.extend(graph)

        return SimpleNamespace(
            upload=lambda where: tell("upload"), launch=launch, close=lambda: tell("destroy executable")
        )

    def close(self) -> None:
        if self.building:
            self.end_building()
        self.launches.graphs.append("destroy")


CONTEXT = LayerContext(cubin=b"cubin", stream_handle=STREAM, device_index=3, pointers=(16, 32, 48))
SAME_KERNEL = (
    "cuda_bindings", "cuda_core", "cupy_raw", "cute_dsl", "numba_configured", "numba_each_call", "tilelang", "triton",
    "warp",
)  # fmt: skip
SPINNING = ("cuda_core", "cupy_raw", "numba_configured")
GRAPHING = (*SPINNING, "torch_eager")
ONE_OP = ("cupy_ufunc", "torch_eager", "torch_out", "jax_jit")
CASES = [(name, arguments) for name in SAME_KERNEL for arguments in (0, 4)] + [(name, 1) for name in ONE_OP]


class Array:
    """An array of one element, whose sum is a launch on the current stream."""

    def __init__(self, value: float, add: Callable[[], None]) -> None:
        self.value, self._add = value, add

    def __add__(self, other: float) -> Array:
        self._add()
        return Array(self.value + other, self._add)

    def __getitem__(self, index: int) -> float:
        return self.value

    def item(self) -> float:
        return self.value


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(members)
    return made


def driver_stand_in(launches: Launches) -> ModuleType:
    def launch(function: Any, *rest: Any) -> tuple[Code]:
        grid_and_block, stream, parameters = rest[:6], rest[7], rest[8]
        assert grid_and_block == (1, 1, 1, 32, 1, 1)
        launches.add(f"cuda.bindings {function}", int(stream), *(parameters[0] if parameters else ()))
        return (OK,)

    return module(
        "driver",
        CUstream=int,
        cuLibraryLoadData=lambda cubin, *options: (OK, f"library of {cubin.decode()}"),
        cuLibraryGetKernel=lambda library, name: (OK, name.decode()),
        cuKernelGetFunction=lambda kernel: (OK, kernel),
        cuLaunchKernel=launch,
        cuLibraryUnload=lambda library: (OK,),
        **driver_graph_stand_ins(launches),
    )


def core_stand_in(launches: Launches) -> ModuleType:
    def launch(where: CoreStream | CoreBuilder, config: tuple[int, int], kernel: str, *arguments: Any) -> None:
        assert config == (1, 32)
        stream = where.stream if isinstance(where, CoreBuilder) else where
        assert isinstance(where, CoreBuilder) == (launches.captured is not None)
        launches.add(f"cuda.core {kernel}", stream, *arguments)

    return module(
        "core",
        launch=launch,
        Device=lambda index: SimpleNamespace(set_current=lambda: None),
        ObjectCode=SimpleNamespace(from_cubin=lambda cubin: SimpleNamespace(get_kernel=lambda name: name)),
        Stream=SimpleNamespace(from_handle=lambda handle: CoreStream(handle, launches)),
        LaunchConfig=lambda grid, block: (grid, block),
    )


def cupy_stand_in(launches: Launches) -> ModuleType:
    current = {"stream": 0, "device": 0}

    class Stream:
        def __init__(self, handle: int) -> None:
            self.handle = handle

        @classmethod
        def from_external(cls, foreign: Any) -> Stream:
            version, handle = foreign.__cuda_stream__()
            assert version == 0
            return cls(handle)

        def use(self) -> None:
            current["stream"] = self.handle

        def begin_capture(self) -> None:
            assert self.handle == STREAM
            launches.begin_capture()

        def end_capture(self) -> Any:
            graph = launches.end_capture()
            if graph is None:
                raise RuntimeError("cudaErrorStreamCaptureInvalidated")
            return SimpleNamespace(
                graph=graph,
                launch=lambda where: launches.extend(graph),
                upload=lambda where: launches.graphs.append("upload"),
            )

    class RawModule:
        def __init__(self, path: str) -> None:
            assert Path(path).read_bytes() == b"cubin"

        def get_function(self, name: str) -> Callable[..., None]:
            def kernel(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
                assert (grid, block, current["device"]) == ((1,), (32,), 3)
                launches.add(f"cupy {name}", current["stream"], *arguments)

            return kernel

    return module(
        "cupy", __version__="14.0",
        is_available=lambda: True,
        current=current, float32=np.float32, int32=np.int32, uint64=np.uint64,
        ones=lambda count, dtype: Array(1.0, lambda: launches.add("cupy add", current["stream"])),
        zeros=lambda count, dtype: "array",
        RawModule=RawModule,
        cuda=SimpleNamespace(
            Stream=Stream,
            get_current_stream=lambda: Stream(current["stream"]),
            Device=lambda index: SimpleNamespace(use=lambda: current.update(device=index)),
        ),
    )  # fmt: skip


class NumbaError(Exception):
    """Numba's error of the driver, which is no RuntimeError."""


def numba_stand_in(launches: Launches) -> ModuleType:
    return module(
        "cuda",
        is_available=lambda: True,
        external_stream=lambda handle: handle,
        device_array=lambda count, dtype: "array",
    )


def numba_kernels_stand_in(launches: Launches) -> ModuleType:
    class Dispatcher:
        def __init__(self, name: str) -> None:
            self.name, self.configured = name, 0

        def __getitem__(self, configuration: tuple[int, int, int]) -> Callable[..., None]:
            blocks, threads, stream = configuration
            assert (blocks, threads) == (1, 32)
            self.configured += 1
            return lambda *arguments: launches.add(f"numba {self.name}", stream, *arguments)

    return module("numba_kernels", empty=Dispatcher("empty"), touch=Dispatcher("touch"), spin=Dispatcher("spin"))


class TorchGraph:
    """PyTorch's graph: with ``keep_graph`` it is instantiated by a call of its own, and shows what was captured."""

    def __init__(self, launches: Launches, keep_graph: bool) -> None:
        assert keep_graph
        self.launches = launches
        self.captured: list[Launch] | None = None
        self.executable: list[Launch] | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.launches.begin_capture()
        yield  # a capture that failed is ended by reset
        self.captured = self.launches.end_capture()

    def instantiate(self) -> None:
        assert self.captured is not None
        self.executable = list(self.captured)

    def raw_cuda_graph(self) -> list[Launch]:
        assert self.captured is not None
        return self.captured

    def replay(self) -> None:
        assert self.executable is not None
        self.launches.extend(self.executable)

    def reset(self) -> None:
        if self.launches.captured is not None:
            self.launches.end_capture()
        self.captured = self.executable = None
        self.launches.graphs.append("reset")


def torch_stand_in(launches: Launches) -> ModuleType:
    current: dict[str, Any] = {"stream": 0, "device": 0}

    def scope(graph: TorchGraph, stream: int) -> Any:
        assert stream == current["stream"]
        return graph.scope()

    def ones(count: int, dtype: Any, device: str) -> Array:
        return Array(1.0, lambda: launches.add("torch add", current["stream"]))

    def add(x: Array, one: int, out: Array) -> Array:
        out.value = (x + one).value
        return out

    return module(
        "torch", __version__="2.0", version=SimpleNamespace(cuda="13.0"), current=current, float32="float32", ones=ones,
        zeros=lambda count, dtype, device: "tensor",
        empty_like=lambda x: Array(float("nan"), lambda: None),
        add=add,
        cuda=SimpleNamespace(
            is_available=lambda: True,
            set_device=lambda index: current.update(device=index),
            current_stream=lambda: current["stream"],
            ExternalStream=lambda handle: handle,
            set_stream=lambda stream: current.update(stream=stream),
            CUDAGraph=lambda keep_graph: TorchGraph(launches, keep_graph),
            graph=scope,
            empty_cache=lambda: launches.graphs.append("empty cache"),
        ),
    )  # fmt: skip


def triton_stand_in(launches: Launches) -> ModuleType:
    class Kernel:
        def __init__(self, function: Callable[..., None]) -> None:
            self.name = function.__name__

        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            def launch(*arguments: Any, num_warps: int) -> None:
                assert (grid, num_warps) == ((1,), 1)
                launches.add(f"triton {self.name}", sys.modules["torch"].current["stream"], *arguments)

            return launch

    return module("triton", jit=Kernel)


class CuteError(Exception):
    """CuTe DSL's error, which is no RuntimeError."""

    def __init__(self, message: str, error_code: int | None = None) -> None:
        super().__init__(message)
        self.message, self.error_code = message, error_code


def cute_stand_in(launches: Launches) -> ModuleType:
    """Compiling is running the launching function, which makes a kernel of its annotated parameters."""

    def kernel(function: Callable[..., None]) -> Callable[..., Any]:
        kinds = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
        assert not kinds or list(kinds.values()) == ["pointer"] * 3 + [np.int32]

        def called(*arguments: Any) -> SimpleNamespace:
            def launch(grid: tuple[int, int, int], block: tuple[int, int, int], stream: int) -> None:
                assert (grid, block) == ((1, 1, 1), (32, 1, 1))
                launches.add(f"cutlass {function.__name__}", stream, *arguments)

            return SimpleNamespace(launch=launch)

        return called

    def compile_for(launcher: Callable[..., None], *arguments: Any) -> Callable[..., None]:
        assert len(arguments) in (1, 5)
        return launcher

    return module(
        "cute", kernel=kernel, jit=lambda function: function, compile=compile_for, Pointer="pointer",
        AddressSpace=SimpleNamespace(gmem="gmem"),
    )  # fmt: skip


def make_ptr(kind: str, address: int, space: str) -> int:
    assert (kind, space) == ("float32", "gmem")
    return address


def tilelang_stand_in(launches: Launches) -> ModuleType:
    """A kernel takes PyTorch's current stream from its tensors, and without one TVM's, which is 0."""

    def compile_for(name: str) -> Callable[..., None]:
        def kernel(*arguments: Any) -> None:
            streams = sys.modules["torch" if arguments else "tvm_ffi"].current
            launches.add(f"tilelang {name}", streams["stream"], *arguments)

        return kernel

    return module("tilelang", compile=compile_for, set_log_level=lambda level: None, disable_cache=lambda: None)


def tilelang_language(launches: Launches) -> ModuleType:
    def prim_func(function: Callable[..., None]) -> str:
        kinds = [kind for name, kind in function.__annotations__.items() if name != "return"]
        assert len({*map(id, kinds)}) == len(kinds), "parameters of one annotation object are one parameter"
        return function.__name__

    return module(
        "language", prim_func=prim_func, float32="float32", int32="int32", Tensor=lambda shape, kind: [shape, kind]
    )


def tvm_ffi_stand_in(launches: Launches) -> ModuleType:
    current = {"stream": 0}

    @contextmanager
    def use_torch_stream() -> Iterator[None]:
        current["stream"] = sys.modules["torch"].current["stream"]
        try:
            yield
        finally:
            current["stream"] = 0

    return module("tvm_ffi", current=current, use_torch_stream=use_torch_stream)


def warp_stand_in(launches: Launches) -> ModuleType:
    def launch(kernel: str, dim: int, inputs: list[Any], stream: int, block_dim: int) -> None:
        assert (dim, block_dim) == (32, 32)
        launches.add(f"warp {kernel}", stream, *inputs)

    def make_stream(device: str, cuda_stream: int) -> int:
        assert device == "cuda:3"
        return cuda_stream

    return module(
        "warp",
        init=lambda: None,
        is_cuda_available=lambda: True,
        get_device=lambda name: name,
        Stream=make_stream, float32="float32", int32="int32",
        array=lambda dtype: f"array of {dtype}",
        zeros=lambda count, dtype, device: "array",
        kernel=lambda function: function.__name__,
        launch=launch,
    )  # fmt: skip


def jax_stand_in(launches: Launches) -> ModuleType:
    class Result(Array):
        def block_until_ready(self) -> None:
            launches.add("jax wait", 0)

    def jit(
        function: Callable[[Any], Any],
        compiler_options: dict[str, Any] | None = None,
        donate_argnums: tuple[int, ...] = (),
    ) -> Callable[[Any], Any]:
        options = dict(compiler_options or {})

        def call(x: Any) -> Any:
            if (folder := Path(options.pop("xla_dump_to", ""))).name:
                barriers.clear()
                function(0.0)
                xla_dump(folder, len(barriers), bool(options["xla_gpu_enable_command_buffer"]))
            launches.add("jax add", 0, *donate_argnums)
            return Result(function(float(x[0])), lambda: None)

        return call

    barriers: list[float] = []

    def barrier(x: float) -> float:
        barriers.append(x)
        return x

    devices = [SimpleNamespace(local_hardware_id=index) for index in (0, 3)]

    def put(x: Any, device: Any) -> Any:
        assert device is devices[1]
        return x

    lax = SimpleNamespace(optimization_barrier=barrier)
    return module("jax", local_devices=lambda backend: devices, device_put=put, jit=jit, lax=lax)


def xla_dump(folder: Path, kernels: int, buffers: bool) -> None:
    """The files in which XLA 0.10.2 shows a program's kernels and command buffers, shortened."""
    fusion = "  %loop_add_fusion = u32[1]{0} fusion(%x.1), kind=kLoop, calls=%fused_add\n"
    name = "module_0001.jit_step.sm_9.0a_gpu_after_optimizations"
    (folder / f"{name}.txt").write_text("ENTRY %main.1 (x.1: u32[1]) -> u32[1] {\n" + fusion * kernels + "}\n")
    (folder / f"{name}-buffer-assignment.txt").write_text(fusion * kernels)
    thunks = "".join(f"    {at + 1:03d}: kCustomKernel loop_add_fusion grid: [1, 1, 1]\n" for at in range(kernels))
    (folder / "module_0001.jit_step.thunk_sequence.txt").write_text(thunks)
    if buffers:
        path = folder / "module_0001.jit_step.thunk_sequence_after_thunk_passes.txt"
        path.write_text(f"000: kCommandBuffer\n{thunks}")


def put_stand_ins(monkeypatch: pytest.MonkeyPatch) -> Launches:
    made = Launches()
    stand_ins = {
        "cuda.bindings.driver": driver_stand_in, "cuda.core": core_stand_in,
        "cuda.core._utils.cuda_utils": lambda _: module("cuda_utils", CUDAError=CoreError), "cupy": cupy_stand_in,
        "numba": lambda _: module("numba", config=SimpleNamespace(ENABLE_CUDASIM=0)), "numba.cuda": numba_stand_in,
        "numba.cuda.cudadrv.error": lambda _: module("error", CudaDriverError=NumbaError),
        "microbench._kernels.numba_kernels": numba_kernels_stand_in, "torch": torch_stand_in, "triton": triton_stand_in,
        "warp": warp_stand_in, "jax": jax_stand_in, "tilelang": tilelang_stand_in,
        "tilelang.language": tilelang_language, "tvm_ffi": tvm_ffi_stand_in,
        "cutlass": lambda _: module("cutlass", Float32="float32", Int32=np.int32), "cutlass.cute": cute_stand_in,
        "cutlass.cute.runtime": lambda _: module("runtime", make_ptr=make_ptr),
        "cutlass.base_dsl.common": lambda _: module("common", DSLBaseError=CuteError),
    }  # fmt: skip
    for name, make in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, make(made))
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return made

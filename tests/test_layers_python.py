"""The Python layers against stand-ins of their libraries: declarations, each call's wiring, skips, and graphs."""

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layer_stand_ins import (
    BAD,
    CASES,
    CONTEXT,
    GRAPHING,
    ONE_OP,
    SAME_KERNEL,
    SPINNING,
    STREAM,
    Array,
    CoreBuilder,
    CoreError,
    CuteError,
    Launches,
    NumbaError,
    put_stand_ins,
)

from microbench.analysis.graph_steps import layer_titles
from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.core.model import Run
from microbench.core.ops import COMPILED_LAYERS, LOOP_LAYER
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.layers import base
from microbench.gpu.layers import jax as jax_layer
from microbench.gpu.layers.base import (
    LayerGraph,
    LayerHandle,
    LayerSubmit,
    find_layer,
    kernels_of_one_call,
    layer_names,
    layers,
    open_layer,
    open_spinning,
    replays,
)
from microbench.gpu.layers.jax import JaxStep, Output
from microbench.gpu.layers.torch import elements_for


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return put_stand_ins(monkeypatch)


@pytest.mark.parametrize("layer", layers(), ids=lambda layer: layer.name)
def test_each_layer_declares_what_it_is(layer: base.Layer) -> None:
    assert layer.install.startswith("pip install ")
    assert layer.about
    assert "\n" not in layer.about
    with pytest.raises(Skip, match=" arguments, not 2"):
        open_layer(layer.name, CONTEXT, 2)


def test_layers_are_listed_by_family_in_a_fixed_order() -> None:
    assert tuple(layer.name for layer in layers()) == ("cuda_runtime", *SAME_KERNEL, *ONE_OP)
    assert tuple(layer.name for layer in layers("one_op")) == ONE_OP
    assert base.spinning() == (LOOP_LAYER, *SPINNING, "torch_eager")
    with pytest.raises(UsageError) as caught:
        find_layer("cupy_row")
    assert "cupy_row" in caught.value.cause
    assert "cupy_raw" in caught.value.next_step


def test_every_word_for_a_layer_means_one_layer() -> None:
    names = layer_names()
    assert len(names) == sum(1 + len(submitter.aliases) for submitter in base.submitters())
    assert all(word == word.lower() for word in names)
    assert (names["cupy_raw"], names["pytorch"], names["c++"]) == ("cupy_raw", "torch_eager", LOOP_LAYER)


@pytest.mark.parametrize("benchmark", ["launch_layers", "graph_gain"])
def test_a_run_records_the_titles_of_its_layers(benchmark: str) -> None:
    info = discover()[benchmark].info([])
    assert layer_titles(Run(1, "run", (), (info,), ())) == base.layer_titles()


def test_the_simulated_gpu_has_the_declared_costs() -> None:
    costs = FakeCosts().layers
    assert costs.keys() == {*COMPILED_LAYERS, *SAME_KERNEL, *ONE_OP} - {"cute_dsl", "tilelang", "warp"}
    assert costs["cupy_raw"] == base.LayerCosts(5500, 650, replay_ns=1500, make_ns=15_000, one_call=True)
    assert costs[LOOP_LAYER] == base.LayerCosts(3200, 10, replay_ns=0)


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_each_call_is_one_launch_into_the_workers_stream(launches: Launches, name: str, arguments: int) -> None:
    handle = open_layer(name, CONTEXT, arguments)
    assert launches, "the kernel must be compiled and launched before anything is timed"
    launches.clear()
    for count in (1, 2, 3):
        handle.call()
        assert len(launches) == count
    assert len(set(map(repr, launches))) == 1
    if name != "jax_jit":
        assert handle.stream_handle == launches[0][1] == STREAM


@pytest.mark.parametrize("name", SAME_KERNEL)
def test_a_kernel_gets_three_pointers_and_one_integer_or_nothing(launches: Launches, name: str) -> None:
    open_layer(name, CONTEXT, 0)
    library, _, values = launches.pop()
    assert library.endswith(" empty")
    assert values == ()
    open_layer(name, CONTEXT, 4)
    library, _, values = launches.pop()
    assert library.endswith(("four_arguments", "touch"))
    assert len(values) == 4
    assert values[:3] in ((16, 32, 48), ("array",) * 3, ("tensor",) * 3)
    assert values[3] == 0


def test_numba_is_configured_once_or_at_each_call(launches: Launches) -> None:
    empty = sys.modules["microbench._kernels.numba_kernels"].empty
    for name, configurations in (("numba_configured", 0), ("numba_each_call", 5)):
        handle = open_layer(name, CONTEXT, 0)
        before = empty.configured
        for _ in range(5):
            handle.call()
        assert empty.configured - before == configurations


@pytest.mark.parametrize(("package", "name", "arguments"), [
    ("cupy", "cupy_raw", 0), ("cupy", "cupy_ufunc", 1), ("torch", "torch_out", 1), ("torch", "triton", 4),
    ("torch", "tilelang", 4), ("torch", "tilelang", 0),
])  # fmt: skip
def test_closing_restores_the_librarys_stream(launches: Launches, package: str, name: str, arguments: int) -> None:
    current = sys.modules[package].current
    handle = open_layer(name, CONTEXT, arguments)
    assert current["stream"] == STREAM
    assert current["device"] == 3
    handle.close()
    assert int(getattr(current["stream"], "handle", current["stream"])) == 0


def test_cupy_13_has_no_stream_protocol(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = sys.modules["cupy"]
    external = cupy.cuda.Stream
    monkeypatch.delattr(cupy.cuda.Stream, "from_external")
    cupy.cuda.ExternalStream = lambda handle, device: external(handle)
    open_layer("cupy_raw", CONTEXT, 0)
    assert launches[0][1] == STREAM


def test_jax_waits_for_its_last_result_and_cannot_be_captured(launches: Launches) -> None:
    handle = open_layer("jax_jit", CONTEXT, 1)
    assert handle.stream_handle is None
    assert handle.synchronize is not None
    launches.clear()
    handle.call()
    handle.synchronize()
    assert [library for library, _, _ in launches] == ["jax add", "jax wait"]
    fact = kernels_of_one_call(handle, driver=None)
    assert fact.value is None
    assert "stream of its own" in (fact.reason or "")


@pytest.mark.parametrize("output", ["new", "donated"])
def test_jaxs_step_is_two_programs_of_the_same_kernels(launches: Launches, output: Output) -> None:
    step = JaxStep(3, 20, output)
    assert (step.stream.queue_slots, step.graph.queue_slots) == (16, 16)
    launches.clear()
    step.graph(2)
    assert launches == [("jax add", 0, () if output == "new" else (0,))] * 2
    assert "kernels" in step.check()
    out = np.zeros(2, dtype=np.int64)
    launches.clear()
    step.stream.round_trips(out)
    assert [library for library, _, _ in launches] == ["jax wait", *["jax add", "jax wait"] * 2]
    assert step.check()
    assert JaxStep(3, 100, output).stream.queue_slots == 5


@pytest.mark.parametrize(("found", "error", "words"), [
    ((1, 0), MeasurementError, "XLA made 1 kernels of 20 additions"),
    ((20, 0), Skip, "0 command buffers where they are on"), ((20, 1), Skip, "1 command buffers where they are off"),
])  # fmt: skip
def test_a_jax_program_of_other_kernels_is_not_measured(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, found: tuple[int, int], error: type[Exception], words: str
) -> None:
    monkeypatch.setattr(jax_layer, "dumped", lambda folder: found)
    with pytest.raises(error, match=words):
        JaxStep(3, 20, "new")


def test_a_jax_that_takes_no_options_for_a_function_is_skipped(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["jax"], "jit", raising("No such compile option"))
    with pytest.raises(Skip, match="does not take XLA's options for one function: No such compile option"):
        JaxStep(3, 20, "new")


def test_a_wrong_result_of_jaxs_step_is_a_failure(launches: Launches) -> None:
    step = JaxStep(3, 20, "donated")
    step._programs[0]._kernels = 19
    with pytest.raises(MeasurementError, match="a step of 19 additions to "):
        step.check()


def test_older_xla_has_command_buffers_in_its_program(tmp_path: Path) -> None:
    text = "  %fusion.1 = u32[1]{0} fusion(%p)\n  %call = u32[1]{0} call(%x), to_apply=%command_buffer\n"
    (tmp_path / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt").write_text(text)
    assert jax_layer.dumped(tmp_path) == (1, 1)


@pytest.mark.parametrize("name", ONE_OP)
def test_a_wrong_sum_is_a_failure(launches: Launches, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "jax_jit":
        wrong: Any = lambda function: lambda x: Array(3.0, lambda: None)  # noqa: E731
        monkeypatch.setattr(sys.modules["jax"], "jit", wrong)
    else:
        monkeypatch.setattr(Array, "__add__", lambda self, other: Array(3.0, lambda: None))
    with pytest.raises(MeasurementError, match=f"{name}: 1 \\+ 1 gave 3"):
        open_layer(name, CONTEXT, 1)


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_a_missing_package_is_skipped_with_its_install_line(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, name: str, arguments: int
) -> None:
    layer = find_layer(name)
    package = "cuda.bindings.driver" if name == "cuda_bindings" else layer.package

    def missing(wanted: str) -> Any:
        if wanted == package:
            raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)
        return sys.modules[wanted]

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Skip) as caught:
        layer.open(CONTEXT, arguments)
    assert str(caught.value) == f"needs {package}: {layer.install}"


@pytest.mark.parametrize("error", [
    ImportError("libnvrtc.so.13: cannot open\nshared object"), AttributeError("np has no row_stack"),
    ModuleNotFoundError("No module named 'its_dependency'", name="its_dependency"), RuntimeError("ABI version"),
])  # fmt: skip
def test_a_broken_package_is_skipped_with_its_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(wanted: str) -> Any:
        raise error

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(Skip) as caught:
        base.load("cupy", "pip install cupy")
    text = str(caught.value)
    assert text.startswith(f"cupy does not import here ({type(error).__name__}: ")
    assert "\n" not in text


def raising(words: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(words)

    return call


@pytest.mark.parametrize(("spoil", "words", "expected"), [
    (lambda torch: setattr(torch.version, "cuda", None), "built without CUDA", Skip),
    (lambda torch: setattr(torch.cuda, "is_available", lambda: False), "sees no GPU", Skip),
    (lambda torch: setattr(torch, "ones", raising("no kernel image is available for execution")), "no code for", Skip),
    (lambda torch: setattr(torch, "ones", raising("illegal memory access")), "illegal memory", RuntimeError),
])  # fmt: skip
def test_a_pytorch_that_cannot_work_here_is_skipped_and_no_other_error_is(
    launches: Launches, spoil: Callable[[Any], None], words: str, expected: type[Exception]
) -> None:
    spoil(sys.modules["torch"])
    with pytest.raises(expected, match=words):
        open_layer("torch_eager", CONTEXT, 1)


def test_libraries_without_a_gpu_are_skipped(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = sys.modules["numba.cuda"]
    monkeypatch.setattr(sys.modules["cupy"], "is_available", lambda: False)
    monkeypatch.setattr(sys.modules["warp"], "is_cuda_available", lambda: False)
    monkeypatch.setattr(sys.modules["jax"], "local_devices", raising("Unknown backend: 'gpu'"))
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "cuda_error", lambda: "\nCUDA driver library\ncannot be found\n", raising=False)
    for name in ("cupy_raw", "warp", "jax_jit", "numba_configured"):
        with pytest.raises(Skip, match="sees no GPU") as caught:
            open_layer(name, CONTEXT, base.ARGUMENTS[find_layer(name).family][0])
        assert "\n" not in str(caught.value)
    sys.modules["numba"].config.ENABLE_CUDASIM = 1
    with pytest.raises(Skip, match="unset it"):
        open_layer("numba_each_call", CONTEXT, 0)
    monkeypatch.delattr(sys.modules["cuda.core"], "launch")
    with pytest.raises(Skip, match=r"older than 1\.0: pip install"):
        open_layer("cuda_core", CONTEXT, 0)


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
        open_layer("triton", CONTEXT, 0)


@pytest.mark.parametrize(("name", "error", "expected", "words"), [
    ("tilelang", ValueError("No registered target detector found an available target."), Skip, "No registered target"),
    ("tilelang", RuntimeError("{}\nCompilation error:\nnvcc fatal : no such gpu\n\nCommand: nvcc"), Skip,
     "compiler: nvcc .* gpu$"),
    ("tilelang", RuntimeError("cuModuleLoadData failed with error: CUDA_ERROR_NO_BINARY_FOR_GPU"), Skip,
     "NO_BINARY_FOR_GPU"),
    ("tilelang", RuntimeError("CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS"), RuntimeError, "ILLEGAL_ADDRESS"),
    ("cute_dsl", KeyError("sm_75"), Skip, "does not compile for this GPU: 'sm_75'$"),
    ("cute_dsl", KeyError("a"), KeyError, "a"),
    ("cute_dsl", CuteError("cudaErrorNoKernelImageForDevice (error code: 209) \n\x1b[0m", 209), Skip,
     r"\(error code: 209\)$"),
    ("cute_dsl", CuteError("cudaErrorIllegalAddress (error code: 700) \n", 700), CuteError, "700"),
    ("cute_dsl", CuteError("CUDA launch failed"), CuteError, "launch failed"),
])  # fmt: skip
def test_a_compiler_without_code_for_this_gpu_is_skipped_and_no_other_error_is(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, expected: type[Exception],
    words: str,
) -> None:  # fmt: skip
    def refuse(*arguments: Any) -> None:
        raise error

    compiler = {"tilelang": "tilelang", "cute_dsl": "cutlass.cute"}[name]
    monkeypatch.setattr(sys.modules[compiler], "compile", refuse)
    with pytest.raises(expected, match=words):
        open_layer(name, CONTEXT, 0)
    assert (sys.modules["torch"].current["stream"], sys.modules["tvm_ffi"].current["stream"]) == (0, 0)


ERRORS = {"cuda_core": CoreError, "cupy_raw": RuntimeError, "numba_configured": NumbaError}


def graph_of(handle: LayerHandle, count: int) -> LayerGraph:
    assert handle.graph is not None
    return handle.graph(count)


@pytest.mark.parametrize("name", SPINNING)
@pytest.mark.parametrize(("cycles", "kernel", "arguments"), [(0, "empty", ()), (2**33, "spin", (2**33,))])
def test_a_call_spins(launches: Launches, name: str, cycles: int, kernel: str, arguments: tuple[int, ...]) -> None:
    handle = open_spinning(name, CONTEXT, cycles)
    assert len(launches) == 1, "the kernel must be compiled and launched before anything is timed"
    handle.call()
    library, stream, values = launches[1]
    assert library.endswith(f" {kernel}")
    assert (stream, values, len(launches)) == (STREAM, arguments, 2)
    assert all(isinstance(value, np.uint64) for value in values), "launch.cu takes 64 bits without a sign"


@pytest.mark.parametrize("name", sorted(set(SAME_KERNEL + ONE_OP) - {*SPINNING, "torch_eager"}))
def test_other_layers_have_no_kernel_of_a_given_length(launches: Launches, name: str) -> None:
    with pytest.raises(Skip, match=f"^{name} is not measured with kernels of a given length$"):
        open_spinning(name, CONTEXT, 1000)
    assert launches == []


@pytest.mark.parametrize(("wanted_s", "elements"), [(2e-6, 250_000), (50e-6, 12_250_000), (0.5e-6, 1)])
def test_pytorchs_operation_gets_as_many_elements_as_take_that_long(wanted_s: float, elements: int) -> None:
    found = elements_for(wanted_s, lambda count: 1e-6 + count * 4e-12)  # a GPU of 1 us a kernel and 4 ps an element
    assert found == pytest.approx(elements, rel=0.02)


@pytest.mark.parametrize("name", SPINNING)
@pytest.mark.parametrize("cycles", [0, 500])
def test_a_graph_holds_the_calls_and_a_replay_makes_them(launches: Launches, name: str, cycles: int) -> None:
    handle = open_spinning(name, CONTEXT, cycles)
    launches.clear()
    graph = graph_of(handle, 3)
    assert launches == [], "a capture launches nothing"
    assert launches.captured is None
    assert "upload" in launches.graphs
    assert graph.nodes() == 3
    graph.launch()
    replayed = list(launches)
    assert len(replayed) == 3
    launches.clear()
    for _ in range(3):
        handle.call()
    assert replayed == list(launches)
    replaying = replays(handle, graph)
    replaying.call()
    assert list(launches) == 2 * replayed
    assert launches.graphs == ["upload"]
    replaying.close()
    # CuPy destroys its graphs itself.
    assert launches.graphs[1:] == ([] if name == "cupy_raw" else ["destroy executable", "destroy"])


def test_pytorchs_graph_is_reset_and_its_memory_freed(launches: Launches) -> None:
    handle = open_spinning("torch_eager", CONTEXT, 0)
    launches.clear()
    graph = graph_of(handle, 3)
    assert (launches, launches.captured, graph.nodes()) == ([], None, 3)
    graph.launch()
    assert [library for library, _, _ in launches] == ["torch add"] * 3
    assert launches.graphs == [], "PyTorch has no upload"
    graph.close()
    assert launches.graphs == ["reset", "empty cache"]
    launches.refusal = RuntimeError("operation not permitted\nwhen stream is capturing")
    with pytest.raises(Skip, match=r"PyTorch cannot capture .*: operation not permitted when stream is capturing$"):
        graph_of(handle, 3)
    assert launches.captured is None


@pytest.mark.parametrize("name", GRAPHING)
def test_the_phases_of_making_a_graph_are_stamped_in_their_order(launches: Launches, name: str) -> None:
    handle = open_spinning(name, CONTEXT, 0)
    began_ns = time.monotonic_ns()
    graph = graph_of(handle, 3)
    ended_ns = time.monotonic_ns()
    assert (graph.captured_ns is None) == (name == "cupy_raw"), "CuPy captures and instantiates by one call"
    assert began_ns <= (graph.captured_ns or began_ns) <= graph.instantiated_ns <= ended_ns


@pytest.mark.parametrize("name", SPINNING)
def test_a_refused_capture_is_a_skip_with_the_librarys_reason(launches: Launches, name: str) -> None:
    handle = open_spinning(name, CONTEXT, 500)
    launches.refusal = ERRORS[name]("operation not permitted\nwhen stream is capturing")
    with pytest.raises(Skip, match=r"cannot capture .*: operation not permitted when stream is capturing$"):
        graph_of(handle, 3)
    assert launches.captured is None, "the stream must not be left capturing"
    launches.refusal = KeyError("bug")
    with pytest.raises(KeyError):
        graph_of(handle, 3)
    assert launches.captured is None
    launches.refusal = None
    launches.clear()
    handle.call()
    assert len(launches) == 1
    assert graph_of(handle, 2).nodes() == 2


def test_cuda_core_1_0_is_skipped_as_it_shows_no_nodes(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(CoreBuilder):
        graph_definition = property()  # type: ignore[assignment]  # reading it is an AttributeError

        def __init__(self, stream: Any) -> None:
            self.stream, self.launches, self.building, self.graph = stream, stream.launches, False, None

    handle = open_spinning("cuda_core", CONTEXT, 0)
    monkeypatch.setattr("layer_stand_ins.CoreBuilder", Older)
    with pytest.raises(Skip, match=r"since 1\.1"):
        graph_of(handle, 4).nodes()


@pytest.mark.parametrize(("function", "expected", "destroyed"), [
    ("cuStreamBeginCapture", Skip, []), ("cuGraphGetNodes", MeasurementError, ["upload"]),
    ("cuGraphInstantiate", MeasurementError, ["destroy"]),
    ("cuGraphUpload", MeasurementError, ["destroy executable", "destroy"]),
])  # fmt: skip
def test_numba_graphs_check_each_call_of_the_driver(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, function: str, expected: type[Exception], destroyed: list[str]
) -> None:
    handle = open_spinning("numba_configured", CONTEXT, 500)
    monkeypatch.setattr(sys.modules["cuda.bindings.driver"], function, lambda *arguments: (BAD, None, None))
    with pytest.raises(expected, match="CUDA_ERROR_STAND_IN"):
        graph_of(handle, 3).nodes()
    assert launches.graphs == destroyed
    assert launches.captured is None


def test_a_failed_replay_of_a_numba_graph_is_an_error(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cuda.bindings.driver"], "cuGraphLaunch", lambda *arguments: (BAD,))
    graph = graph_of(open_spinning("numba_configured", CONTEXT, 500), 3)
    with pytest.raises(MeasurementError, match="CUDA_ERROR_STAND_IN"):
        graph.launch()


def test_replays_wait_as_the_layer_does_and_close_the_graph_alone() -> None:
    acts: list[str] = []

    def act(name: str) -> Callable[[], object]:
        return lambda: acts.append(name)

    handle = LayerHandle(act("call"), None, synchronize=act("wait"), close=act("close the layer"))
    replaying = replays(handle, LayerGraph(act("replay"), lambda: 3, act("close the graph"), instantiated_ns=0))
    LayerSubmit(replaying, driver=None).round_trips(np.zeros(1, dtype=np.int64))
    replaying.close()
    assert acts == ["wait", "replay", "wait", "close the graph"]
    assert replaying.graph is None


def test_the_error_classes_of_cuda_core_and_numba_exist_where_expected() -> None:
    utilities = pytest.importorskip("cuda.core._utils.cuda_utils")
    assert issubclass(utilities.CUDAError, Exception)
    errors = pytest.importorskip("numba.cuda.cudadrv.error")
    assert issubclass(errors.CudaDriverError, Exception)

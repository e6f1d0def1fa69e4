"""PyTorch: x + 1 in eager mode, torch.add with out=, and matrix products with out=."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base
from microbench.gpu.protocol.matrices import Element, GemmType, Matrices, matrix_bytes

PACKAGE = "torch"
INSTALL = "pip install torch (a build for your CUDA version: pytorch.org)"
Result = TypeVar("Result")
MOST_ELEMENTS = 1 << 28
# Calls in the graph that times one call, and replays of that graph.
TUNING_NODES, TUNING_REPLAYS = 20, 5


def load_torch() -> Any:
    """PyTorch. Raises Skip if it is missing, built without CUDA, or sees no GPU."""
    torch = base.load(PACKAGE, INSTALL)
    if torch.version.cuda is None:
        raise Skip(f"this PyTorch ({torch.__version__}) is built without CUDA: {INSTALL}")
    if not torch.cuda.is_available():
        raise Skip(f"PyTorch {torch.__version__} sees no GPU that it can use; is it built for a newer CUDA? {INSTALL}")
    return torch


def use_stream(torch: Any, stream_handle: int, device_index: int) -> Callable[[], object]:
    """Make a CUstream PyTorch's current stream. Entering it at each call would be timed with the call.

    Returns what restores the previous stream.
    """
    torch.cuda.set_device(device_index)
    previous = torch.cuda.current_stream()
    torch.cuda.set_stream(torch.cuda.ExternalStream(stream_handle))
    return lambda: torch.cuda.set_stream(previous)


def first(call: Callable[[], Result]) -> Result:
    """The result of a first call. Raises Skip if this build of PyTorch has no code for this GPU."""
    try:
        return call()
    except RuntimeError as error:
        if "no kernel image" in str(error):
            raise Skip(f"this PyTorch has no code for this GPU: {plain(error)}") from error
        raise


def open_eager(context: base.LayerContext, arguments: int, *, out: bool = False) -> base.LayerHandle:
    """x + 1, in memory of its own or with ``out=``. Raises MeasurementError if 1 + 1 is not 2."""
    torch = load_torch()
    restore = use_stream(torch, context.stream_handle, context.device_index)
    x = first(lambda: torch.ones(1, dtype=torch.float32, device="cuda"))
    y = torch.empty_like(x) if out else None
    call = (lambda: torch.add(x, 1, out=y)) if out else (lambda: x + 1)
    base.check_sum("torch_out" if out else "torch_eager", float(first(call).item()))
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)


def open_eager_spin(context: base.LayerContext, cycles: int) -> base.LayerHandle:
    """x + 1 on so many elements that it takes as long as a kernel that spins for ``cycles``; on one element for 0.

    PyTorch has no operation of a given length with the usual host cost: ``torch.cuda._sleep`` bypasses the dispatcher,
    so it only gives the time to match.
    """
    torch = load_torch()
    restore = use_stream(torch, context.stream_handle, context.device_index)
    elements = 1
    if cycles:
        wanted_s = _node_s(torch, partial(torch.cuda._sleep, cycles))
        elements = elements_for(wanted_s, lambda count: _node_s(torch, _plus_one(torch, count)))
    call = first(lambda: _plus_one(torch, elements))
    call()
    return base.LayerHandle(
        call=call, stream_handle=context.stream_handle, close=restore, graph=partial(_graph, torch, call)
    )


def elements_for(wanted_s: float, seconds: Callable[[int], float]) -> int:
    """The number of elements, within 2 %, on which an operation takes ``wanted_s``; 1 if one element takes as long."""
    low, high = 1, 1
    while high < MOST_ELEMENTS and seconds(high) < wanted_s:
        low, high = high, high * 4
    while high - low > max(high // 50, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if seconds(middle) < wanted_s else (low, middle)
    return low


def _plus_one(torch: Any, elements: int) -> Callable[[], object]:
    x = torch.ones(elements, dtype=torch.float32, device="cuda")
    return lambda: x + 1


def _node_s(torch: Any, call: Callable[[], object]) -> float:
    """Time of one call as a node of a graph, in s: the fastest of several replays."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(TUNING_NODES):
            call()
    times = []
    for _ in range(TUNING_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / TUNING_NODES)
    return float(min(times))


def _graph(torch: Any, call: Callable[[], object], count: int) -> base.LayerGraph:
    """A ``torch.cuda.CUDAGraph`` of ``count`` calls. The captured graph is kept after instantiation, so that its nodes
    can be counted.

    PyTorch has no upload call. Closing the graph frees the memory of its calls; otherwise the next capture would free
    it.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = torch.cuda.current_stream()
    with base.capturing("PyTorch", (RuntimeError,), graph.reset), torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            call()
    captured_ns = time.monotonic_ns()
    graph.instantiate()
    instantiated_ns = time.monotonic_ns()

    def nodes() -> int:
        driver = base.load_driver()
        return base.node_count(driver, driver.CUgraph(graph.raw_cuda_graph()))

    def close() -> None:
        graph.reset()
        torch.cuda.empty_cache()

    return base.LayerGraph(graph.replay, nodes, close, instantiated_ns, captured_ns)


LAYERS = (
    base.Layer(
        name="torch_eager",
        title="PyTorch eager",
        family="one_op",
        aliases=("torch", "pytorch"),
        package=PACKAGE,
        install=INSTALL,
        about="x + 1 on a PyTorch tensor of one float32; the result's memory comes from PyTorch's allocator",
        simulated=base.LayerCosts(9000, make_ns=400_000, uploads=False),
        open=open_eager,
        open_spin=open_eager_spin,
    ),
    base.Layer(
        name="torch_out",
        title="PyTorch out=",
        family="one_op",
        package=PACKAGE,
        install=INSTALL,
        about="torch.add(x, 1, out=y) on tensors of one float32; nothing is allocated",
        simulated=base.LayerCosts(8000),
        open=partial(open_eager, out=True),
    ),
)


# Matrix products: torch.matmul, torch._scaled_mm and torch._int_mm.
TORCH_TYPES: dict[Element, str] = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "int8": "int8", "int32": "int32",
}  # fmt: skip
REFUSED: dict[GemmType, str] = {
    "fp16_acc16": "PyTorch accumulates fp16 in fp32",
    "mxfp8": "PyTorch's product of mxfp8 wants scales in an order of its own",
    "nvfp4": "PyTorch's product of nvfp4 wants scales in an order of its own",
}


class Raw:
    """Device memory of the case as an object with the CUDA array interface, as bytes."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


def function_name(dtype: GemmType) -> str:
    """Name of the function that multiplies a type. Raises Skip for a type that PyTorch does not multiply."""
    if dtype in REFUSED:
        raise Skip(REFUSED[dtype])
    if dtype.startswith("fp8"):
        return "torch._scaled_mm"
    return "torch._int_mm" if dtype == "int8" else "torch.matmul"


def torch_calls(
    stream_handle: int, device_index: int, matrices: Matrices, own: Callable[[Callable[[], object]], None]
) -> tuple[Callable[[], object], ...]:
    """A product with ``out=D`` for each copy of B on that stream; ``own`` receives a function that restores PyTorch.

    fp8 has scales of 1 and a result of bf16. Each call is made once. Raises Skip if PyTorch is missing or refuses.
    """
    function_name(matrices.dtype)
    torch = load_torch()
    own(torch.cuda.empty_cache)
    own(use_stream(torch, stream_handle, device_index))
    if matrices.dtype in ("fp32", "tf32"):
        own(partial(setattr, torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32))
        torch.backends.cuda.matmul.allow_tf32 = matrices.dtype == "tf32"

    def viewed(address: int, element: Element, rows: int, columns: int) -> Any:
        raw = torch.as_tensor(Raw(address, matrix_bytes(element, rows, columns)), device=f"cuda:{device_index}")
        return raw.view(getattr(torch, TORCH_TYPES[element])).view(rows, columns)

    a = viewed(matrices.a, matrices.elements.a, matrices.rows, matrices.depth)
    d = viewed(matrices.d, matrices.elements.d, matrices.rows, matrices.columns)
    views = [viewed(copy, matrices.elements.b, matrices.columns, matrices.depth) for copy in matrices.b]
    calls = tuple(_product(torch, matrices.dtype, a, view.t(), d) for view in views)
    try:
        for call in calls:
            first(call)
    except (RuntimeError, ValueError, TypeError) as error:
        raise Skip(f"PyTorch {torch.__version__}, {matrices.dtype}: {plain(error)}") from error
    return calls


def _product(torch: Any, dtype: GemmType, a: Any, b: Any, d: Any) -> Callable[[], object]:
    """One call of the library, whose function and arguments are already looked up."""
    if dtype == "int8":
        return partial(torch._int_mm, a, b, out=d)
    if not dtype.startswith("fp8"):
        return partial(torch.matmul, a, b, out=d)
    scale = torch.ones((), dtype=torch.float32, device=a.device)
    fast = dtype.endswith("_fast")
    return partial(torch._scaled_mm, a, b, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=fast, out=d)

"""A user's function: loaded and bound to its arguments; its library, streams, captures and outputs.

No library is imported here: the function itself has imported those that it uses.
"""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.calls import run_whole
from microbench.core.errors import MeasurementError
from microbench.core.model import Param
from microbench.core.targets import Target, target
from microbench.core.units import plain
from microbench.experiments.own.culprit import called
from microbench.gpu.layers import cupy as own_cupy
from microbench.gpu.layers import torch as own_torch
from microbench.gpu.protocol.gpu import Gpu

Array = npt.NDArray[Any]
TITLES = {
    "torch": "PyTorch", "cupy": "CuPy", "numba": "Numba", "numba_cuda": "Numba", "jax": "JAX", "jaxlib": "JAX",
    "cuda": "cuda.core",
}  # fmt: skip
# Modules whose import tells the library of a function that returns nothing, the most conclusive first.
TELLING = ("triton", "torch", "cupy", "jax", "numba.cuda", "cuda.core")
TORCH = "PyTorch"
JAX = "JAX"  # it submits to streams of its own
DEEPEST = 5
# Half-precision results differ in the third digit if sums are taken in another order.
RELATIVE = {2: 2e-2, 4: 1e-4, 8: 1e-9}
EQUAL = "outputs of two replays equal those of two calls"


class Output(NamedTuple):
    """One array that a function returned: where it is in the result, and its values on the host."""

    path: str
    values: Array


def leaves(result: object, path: str = "output", deep: int = 0) -> Iterator[tuple[str, Any]]:
    """The arrays in a result, each with its place: "output", "output[1]", "output['loss']"."""
    if isinstance(result, dict) and deep < DEEPEST:
        for key, value in result.items():
            yield from leaves(value, f"{path}[{key!r}]", deep + 1)
    elif isinstance(result, tuple | list) and deep < DEEPEST:
        for index, value in enumerate(result):
            yield from leaves(value, f"{path}[{index}]", deep + 1)
    elif hasattr(result, "shape") and hasattr(result, "dtype"):
        yield path, result


def package_of(thing: object) -> str:
    """The package of an object's class, such as "torch"."""
    return type(thing).__module__.partition(".")[0]


def library_of(result: object, arguments: Sequence[object]) -> str:
    """The name of the library that a function uses, found by its outputs, then its arguments, then the imported
    modules.

    Triton has no arrays of its own; its kernels are named by the graph.
    """
    for values in (result, tuple(arguments)):
        for _, leaf in leaves(values):
            if package_of(leaf) in TITLES:
                return TITLES[package_of(leaf)]
    named = {package_of(argument) for argument in arguments}
    for name in TELLING:
        top = name.partition(".")[0]
        if top in named or (name in sys.modules and name != "numba.cuda"):
            return TITLES.get(top, TORCH)
    return "CUDA"


def stream_of(arguments: Sequence[object]) -> int | None:
    """The CUstream among a function's arguments; None if it gets none."""
    for argument in arguments:
        if not type(argument).__name__.endswith("Stream"):
            continue
        if hasattr(argument, "__cuda_stream__"):
            return int(argument.__cuda_stream__()[1])
        for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy 13, Numba
            handle = getattr(argument, name, None)
            if handle is not None:
                return int(getattr(handle, "value", handle) or 0)
    return None


def use_stream(handle: int, device_index: int) -> Callable[[], object]:
    """Make a CUstream the current one of PyTorch and CuPy if imported. Returns a function that restores theirs."""
    restore = ExitStack()
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available():
        restore.callback(own_torch.use_stream(torch, handle, device_index))
    if cupy is not None and cupy.is_available():
        restore.callback(own_cupy.use_stream(cupy, handle, device_index))
    return restore.close


def refuse_unrun(result: object) -> None:
    """Raise MeasurementError for what a function returned and nobody has run."""
    unrun = inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)
    if unrun and package_of(result) in ("builtins", "asyncio", "_asyncio"):
        if inspect.iscoroutine(result):
            result.close()  # else Python would warn that it was never awaited
        raise MeasurementError(
            f"it returns a {type(result).__name__} that nobody runs: name a function that is async or a generator"
        )


def ready(result: object) -> None:
    """Wait for outputs of JAX, whose calls return before their work is submitted."""
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(result)


def with_wait(library: str, call: Callable[[], object]) -> tuple[Callable[[], object], Callable[[], object]]:
    """A call, and a function that waits for its outputs in the library's own way.

    JAX owns its streams, so its wait is for the outputs.
    """
    if library != JAX:
        return call, lambda: None
    kept: list[object] = [None]

    def called() -> object:
        kept[0] = result = call()
        return result

    return called, lambda: ready(kept[0])


def on_host(leaf: Any) -> Array:
    """An array's values on the host, as numbers that NumPy knows."""
    if package_of(leaf) == "torch":
        tensor = leaf.detach()
        if not tensor.dtype.is_complex and tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 2:
            tensor = tensor.float()
        return np.asarray(tensor.cpu().numpy())
    for name in ("copy_to_host", "get"):  # Numba, CuPy
        if hasattr(leaf, name):
            return np.array(getattr(leaf, name)())
    return np.array(leaf)


def outputs(result: object) -> list[Output]:
    """A copy on the host of every array that a function returned."""
    return [Output(path, on_host(leaf)) for path, leaf in leaves(result)]


def address_of(leaf: Any) -> int | None:
    """The address of an array on the GPU; None if the array does not tell it."""
    if package_of(leaf) == "torch":
        return int(leaf.data_ptr()) if leaf.is_cuda else None
    interface = getattr(leaf, "__cuda_array_interface__", None)
    return int(interface["data"][0]) if interface else None


def tolerance(values: Array, leaf: Any) -> float:
    """The relative difference that equal sums may have in the type of an output; 0 for whole numbers."""
    if values.dtype.kind not in "fcV":
        return 0.0
    itemsize = int(getattr(leaf.dtype, "itemsize", None) or values.dtype.itemsize)
    return RELATIVE.get(itemsize // 2 if values.dtype.kind == "c" else itemsize, 2e-2)


def first_difference(before: Sequence[Output], after: Sequence[Output], relative: Sequence[float]) -> str | None:
    """The first output that differs, with the first place in it and both values; None if all agree."""
    if len(before) != len(after):
        return f"{len(before)} outputs became {len(after)}"
    for (path, one), (_, other), share in zip(before, after, relative, strict=True):
        if one.shape != other.shape:
            return f"{path} has shape {one.shape}, then {other.shape}"
        if np.array_equal(one, other):  # gigabytes would take a minute below
            continue
        # Sums of large numbers may cancel, so small values may differ by a share of the usual ones. A few huge values,
        # such as those of a mask, must not make all others equal.
        sizes = np.abs(one[np.isfinite(one)]) if share else np.zeros(0)
        scale = float(np.median(sizes)) if sizes.size else 0.0
        equal = np.isclose(one, other, rtol=share, atol=share * scale * 0.1, equal_nan=True) if share else one == other
        if not np.all(equal):
            place = tuple(int(index) for index in np.argwhere(~np.asarray(equal))[0]) if one.ndim else ()
            at = f"[{', '.join(map(str, place))}]" if place else ""
            return f"{path}{at}: {plain(one[place], 30)}, then {plain(other[place], 30)}"
    return None


def judged(calls: Sequence[Sequence[Output]], replays: Sequence[Sequence[Output]], relative: Sequence[float]) -> str:
    """Say whether the outputs of two calls equal those of two replays, or why they cannot be compared.

    A graph repeats the values that were captured. If calls differ from one another and replays do not, the step depends
    on a value that the host computes at each call and that the graph has frozen. If both differ, the step changes a
    state, or draws random numbers. Raises MeasurementError if the graph computes something else.
    """
    if not calls[0]:
        return "not compared: the function returns no arrays and gets none"
    if not any(np.isfinite(one.values).any() for one in calls[0] if one.values.dtype.kind in "fciub"):
        return "not compared: no output has a finite number"
    changing = first_difference(calls[0], calls[1], relative)
    differs = first_difference(calls[1], replays[0], relative)
    if changing is None:
        differs = differs or first_difference(calls[1], replays[1], relative)
        if differs is not None:
            raise MeasurementError(
                f"the graph computes something else: {differs} (a call, then a replay); "
                "does the function read memory that moves, or values that the host changes?"
            )
        return EQUAL
    if first_difference(replays[0], replays[1], relative) is None:
        raise MeasurementError(
            f"the graph computes something else: calls give new outputs ({changing}) and replays always the same; "
            "a value that the host computes at each call is frozen in the graph"
        )
    return f"not compared: each call gives other outputs ({changing}); fix its seed and state in --setup"


class TorchCaptures:
    """Captures by PyTorch's rules: torch.cuda.graph with a private pool that all captures of a step share.

    A first, empty graph keeps the pool alive. A later capture then gets the same memory as the capture before it, so
    addresses differ only if the function's own addresses do.
    """

    def __init__(self, handle: int) -> None:
        self._torch = torch = sys.modules["torch"]
        self._stream = torch.cuda.ExternalStream(handle)
        self._pool = torch.cuda.graph_pool_handle()
        self._keeper = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._keeper, pool=self._pool, stream=self._stream):
            self._kept = torch.zeros(1, device="cuda")

    def begin(self) -> Any:
        """A graph that is kept uninstantiated, so that its nodes can be read. Raises MeasurementError."""
        try:
            return self._torch.cuda.CUDAGraph(keep_graph=True)
        except TypeError:
            raise MeasurementError("needs a PyTorch whose CUDAGraph has keep_graph (2.8 or newer)") from None

    def scope(self, graph: Any) -> Any:
        return self._torch.cuda.graph(graph, pool=self._pool, stream=self._stream)


# A parameter of this name gets the GPU object of microbench's own protocol, so that the function also runs on the
# simulated GPU.
GPU = "gpu"


class OwnCall(NamedTuple):
    """A user's function with its arguments bound: ``call`` runs it once and returns what it returns.

    ``arguments`` are its arguments, ``file`` is its source file ("" if unknown).
    """

    call: Callable[[], object]
    arguments: tuple[object, ...] = ()
    file: str = ""


def bound(gpu: Gpu, function: str, setup: str, axes: Mapping[str, Param]) -> OwnCall:
    """Load a function and bind its arguments: what setup returns, and the axes that the function names.

    Setup gets the axes that it names. A tuple that it returns becomes positional arguments, a dictionary arguments by
    name, anything else the only argument, None no argument. Raises MeasurementError for what cannot be loaded or
    called, and whatever setup raises.
    """
    step: Callable[..., Any] = called(partial(load, function), "")
    values = {name: _typed(value) for name, value in axes.items()}
    made = set_up(gpu, setup, axes) if setup else None
    positional = made if isinstance(made, tuple) else () if made is None or isinstance(made, dict) else (made,)
    given = made if isinstance(made, dict) else {}
    unknown = [name for name in values if not setup and name not in _parameters(step) and not _takes_any(step)]
    if unknown:
        raise MeasurementError(f"{function} has no parameter {plain(unknown[0], 40)}, which is an axis")
    named = _named(gpu, step, values, taken=len(positional)) | given
    try:
        inspect.signature(step).bind(*positional, **named)
    except TypeError as error:
        raise MeasurementError(f"{function} cannot be called: {error}; --setup can return its arguments") from None
    except ValueError:  # a function of C without a signature
        pass
    call = partial(step, *positional, **named) if positional or named else step
    return OwnCall(run_whole(call, _inner(step)), (*positional, *named.values()), _file_of(step))


def set_up(gpu: Gpu, setup: str, axes: Mapping[str, Param]) -> Any:
    """What setup returns for these axes, of which it gets those that it names."""
    prepare: Callable[..., Any] = called(partial(load, setup), "")
    prepared = partial(prepare, **_named(gpu, prepare, {name: _typed(value) for name, value in axes.items()}))
    made = called(run_whole(prepared, _inner(prepare)), _file_of(prepare))
    refuse_unrun(made)
    return made


WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "none": None}


def _typed(value: Param) -> int | float | str | bool | None:
    """A value of an axis as a function gets it: "0.5" is a number, "true", "false" and "none" are Python's."""
    if isinstance(value, str) and value.lower() in WORDS:
        return WORDS[value.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return value if isinstance(value, int) else kind(value)
    return value


def load(text: str) -> Callable[..., Any]:
    """The function that a text names. Raises MeasurementError with the nearest name for one that does not exist."""
    wanted = target(text)
    module: Any = _module(wanted)
    names = wanted.name.split(".")
    found = reduce(lambda holder, name: getattr(holder, name, None), names, module)
    if not callable(found):
        callables = [name for name, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(names[0], callables, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        what = "is no function" if found is not None else "does not exist"
        raise MeasurementError(f"{plain(wanted.name, 60)} {what} in {plain(wanted.place)}{hint}")
    loaded: Callable[..., Any] = found
    return loaded


def _module(wanted: Target) -> ModuleType:
    """The module of a target, imported as a program in the current folder would import it.

    Raises MeasurementError if it does not exist; what it raises itself is the user's error.
    """
    path = Path(wanted.place).resolve() if wanted.kind == "file" else None
    folder = str(path.parent) if path is not None else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if path is None:
        try:
            return importlib.import_module(wanted.place)
        except ModuleNotFoundError as error:
            if error.name and f"{wanted.place}.".startswith(f"{error.name}."):
                raise MeasurementError(f"there is no module {plain(error.name)} here or in what is installed") from None
            raise
    if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise MeasurementError(f"{plain(path.name)} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in _parameters(function).values())


def _named(gpu: Gpu, function: Callable[..., Any], values: Mapping[str, object], taken: int = 0) -> dict[str, Any]:
    """The axes that a function names, and the GPU if it asks for it; its first ``taken`` parameters are given."""
    known: dict[str, Any] = {GPU: gpu, **values}
    chosen = {name: known[name] for name in list(_parameters(function))[taken:] if name in known}
    return {**values, **chosen} if _takes_any(function) else chosen


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a wrapped function, a partial one or an object with __call__ runs."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    called: Callable[..., Any] = type(function).__call__
    return called


def _file_of(step: Callable[..., Any]) -> str:
    try:
        return inspect.getsourcefile(inspect.unwrap(step)) or ""
    except TypeError:
        return ""

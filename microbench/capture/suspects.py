"""Calls of CuPy and Numba that stop a capture. PyTorch tells of each operation; these libraries do not, so that each of
their calls that may be in the way is tried in a capture of its own."""

from __future__ import annotations

import contextlib
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from microbench.capture.graphed import PER_THREAD, Captured, described, handle_of
from microbench.experiments.own.culprit import attempt

# Methods without a name of their own in the user's code.
OPERATORS = {
    "__getitem__", "__setitem__", "__float__", "__int__", "__bool__", "__complex__", "__matmul__", "__rmatmul__",
    "__imatmul__", "__str__", "__repr__", "__format__", "__mul__", "__rmul__",
}  # fmt: skip
OF_ARRAYS = OPERATORS - {"__mul__", "__rmul__"}  # which are products of sparse matrices
READS = {
    "get", "item", "tolist", "asnumpy", "tobytes", "tofile", "dump", "dumps", "__float__", "__int__", "__bool__",
    "__complex__", "__str__", "__repr__", "__format__", "copy_to_host", "save", "savez",
}  # fmt: skip
SIZES = {
    "nonzero", "flatnonzero", "argwhere", "where", "unique", "extract", "compress", "bincount", "repeat", "__getitem__",
    "__setitem__",
}  # fmt: skip
WAITS = {"synchronize", "deviceSynchronize", "streamSynchronize", "eventSynchronize"}
PACKAGES = (
    "cupy", "cupy.linalg", "cupy.random", "cupy.fft", "cupyx.scipy.linalg", "cupyx.scipy.signal", "cupyx.scipy.sparse",
    "cupyx.scipy.sparse.linalg", "cupyx.scipy.ndimage", "cupyx.scipy.special", "cupyx.scipy.interpolate", "numba.cuda",
)  # fmt: skip
LIBRARIES = "cuBLAS", "cuRAND", "cuSPARSE", "cuSOLVER", "cuTENSOR"
OF_CLASSES = {
    "cupy": ("ndarray",), "cupy.cuda": ("Stream", "ExternalStream", "Event"),
    "cupy.random": ("RandomState", "Generator"), "numba.cuda.cudadrv.devicearray": ("DeviceNDArray",),
    "numba.cuda.cudadrv.driver": ("Stream", "Event"), "numba.cuda.dispatcher": ("_LaunchConfiguration",),
}  # fmt: skip


@contextlib.contextmanager
def suspected(looking: Any, names: dict[str, Any], stream: Any) -> Iterator[None]:
    """Note in ``looking`` each call that a capture forbids. If it has results, such calls return these instead.

    ``names`` are the globals of the user's function, ``stream`` is its own.
    """
    within = [0]  # calls that others make are theirs
    known: dict[Any, BaseException | None] = {}

    def tried(real: Callable[..., Any], name: str, args: Any, named: Any) -> BaseException | None:
        """The error of a capture of this call; once for each kind of arguments."""
        if any(isinstance(one, types.FunctionType) for one in (*args, *named.values())):
            return None  # it calls functions of the user, which would run twice
        try:
            kind: Any = real, described((args, named), [])
            hash(kind)
        except TypeError:
            kind = object()
        if kind not in known:
            looking.quiet = True
            call = partial(real, *args, **named)
            if name == "__call__":  # a capture looks at what kernels get
                call = partial(lambda kernel, *given: type(kernel).__call__(kernel, *given), *args)
            known[kind] = attempt(partial(Captured, call, stream)).error
            looking.quiet = False
        return known[kind]

    def watched(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            if within[0]:
                return real(*args, **named)
            within[0] += 1
            try:
                if looking.given is not None:
                    return next(looking.given, None) if next(looking.stops, False) else real(*args, **named)
                error = tried(real, name, args, named)
                result = real(*args, **named)
                looking.stopped.append(error is not None)
                if error is not None:
                    looking.results.append(result)
                    looking.note(*_told(name, error, args))
                return result
            finally:
                within[0] -= 1

        return called

    with contextlib.ExitStack() as stack:
        ways: dict[int, Any] = {}
        for holder, name, real in _calls():
            ways[id(real)] = each = watched(real, name)
            with contextlib.suppress(TypeError, AttributeError):  # a class of C that cannot be changed
                stack.enter_context(mock.patch.object(holder, name, each))
        for key, value in list(names.items()):  # from cupy import dot
            if id(value) in ways and not key.startswith("__"):
                stack.callback(names.__setitem__, key, value)
                names[key] = ways[id(value)]
        yield


def _calls() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Functions and methods that may be in the way: where they are, their names, and themselves."""
    for package, holder in [(name, sys.modules.get(name)) for name in PACKAGES]:
        for name, value in vars(holder).items() if holder is not None else ():
            if name[0] != "_" and _is_function(value):
                yield holder, name, value
            elif isinstance(value, type) and package == "cupyx.scipy.sparse":
                yield from ((value, *each) for each in _methods(value, OPERATORS))
    for package, classes in OF_CLASSES.items():
        for name in classes:
            kind: Any = getattr(sys.modules.get(package), name, None)
            if kind is not None:
                special = {"__call__"} if name == "_LaunchConfiguration" else OF_ARRAYS
                only = WAITS if "Stream" in name or name == "Event" else None
                yield from ((kind, *each) for each in _methods(kind, special, only))
    runtime = sys.modules.get("cupy.cuda.runtime")
    yield from ((runtime, name, getattr(runtime, name)) for name in WAITS if hasattr(runtime, name))


def _methods(kind: type, special: set[str], only: set[str] | None = None) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(kind):
        if (name[0] != "_" and (only is None or name in only)) or (name in special and only is None):
            value = getattr(kind, name)
            if callable(value) and not isinstance(value, type | types.MethodType):
                yield name, value


def _is_function(value: Any) -> bool:
    return type(value).__name__ in ("function", "cython_function_or_method", "builtin_function_or_method")


def _told(name: str, error: BaseException, args: Any) -> tuple[str, str, str]:
    """A blocker's kind, the call, and why it is one."""
    said = f"{error} {error.__context__ or ''}"
    call = name.strip("_") if name in OF_ARRAYS else "a kernel" if name == "__call__" else name
    library = next((one for one in LIBRARIES if one in said), "")
    if library:
        return "library", call, f"CuPy allows no call of {library} under capture"
    if name in WAITS:
        return "wait", call, "the host waits for the GPU"
    if name in READS:
        small = getattr(args[0] if args else None, "size", 0) == 1
        return ("item" if small else "to_host"), call, "the host waits for a value of the GPU"
    if name in SIZES and ("D2H" in said or "synchronous" in said):
        return "sizes", call, "the size of the result depends on values, so the host waits for them"
    if "D2H" in said or "synchronous" in said:
        return "library", call, "it reads a value of the GPU within"
    if "another stream" in said or (name == "__call__" and handle_of(args[0].stream) <= PER_THREAD):
        return "stream", call, "it is launched in another stream than the rest, which the capture does not see"
    if (
        "H2D" in said
        or "array of the host" in said
        or name in ("to_device", "copy_to_device", "set", "asarray", "array")
    ):
        return "to_gpu", call, "a copy from ordinary memory of the host"
    return "capture", call, str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def operations(call: Callable[[], Any], code: types.CodeType | None, stream: Any) -> Counter[int]:
    """How many nodes a graph of a call has, by the line of ``code`` that makes them. Source: cuStreamGetCaptureInfo in
    CUDA's driver API."""
    from cuda.bindings import driver

    found, before = Counter[int](), [0, 0]

    def nodes() -> int:
        handle = handle_of(stream or sys.modules["cupy"].cuda.get_current_stream())
        return int(driver.cuGraphGetNodes(driver.cuStreamGetCaptureInfo(handle)[3])[-1])

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is not code:
            return None
        made = nodes()
        found[before[0]] += made - before[1]
        before[:] = frame.f_lineno, made
        return trace

    def traced() -> None:
        others = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(others)

    Captured(traced, stream)
    return found

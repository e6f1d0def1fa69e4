"""CuPy and its CUDA graphs, played on the CPU: a capture records every operation and runs none; a replay runs them all
on the same memory. What CuPy refuses under capture is refused here."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

CURRENT: list[Any] = []
BY_VALUES = (np.nonzero, np.unique, np.argwhere, np.flatnonzero)


def capturing() -> Any:
    return next((one for one in CURRENT[-1:] if one.graph is not None), None)


def refuse(what: str) -> None:
    if capturing() is not None:
        raise RuntimeError(f"the current stream is capturing, so {what} are disallowed")


def on_host(value: Any) -> Any:
    if isinstance(value, ndarray):
        return value.view(np.ndarray)
    if isinstance(value, tuple | list):
        return type(value)(on_host(one) for one in value)
    return {key: on_host(one) for key, one in value.items()} if isinstance(value, dict) else value


def on_gpu(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(on_gpu(one) for one in value)
    return np.asarray(value).view(ndarray) if isinstance(value, np.ndarray | np.generic) else value


def launch(function: Callable[..., Any], args: Any, named: Any) -> Any:
    """Run an operation, or record it: its results are then memory of which nobody knows what it holds."""
    out = named.get("out")
    args, named, stream = on_host(args), on_host(named), capturing()
    if stream is None:
        result = function(*args, **named)
        return out[0] if isinstance(out, tuple) else on_gpu(result)
    with np.errstate(all="ignore"):
        copies = [np.copy(one) if isinstance(one, np.ndarray) else one for one in args]
        shape = function(*copies, **(named | {"out": None} if out is not None else named))
    if isinstance(shape, tuple | list):
        made = [np.full_like(one, 77) for one in shape]
        stream.graph.append(
            lambda: [np.copyto(one, new) for one, new in zip(made, function(*args, **named), strict=True)]
        )
        return type(shape)(on_gpu(one) for one in made)
    into = on_host(out[0] if isinstance(out, tuple) else out) if out is not None else np.full_like(shape, 77)
    named = {key: value for key, value in named.items() if key != "out"}
    stream.graph.append(lambda: np.copyto(into, function(*args, **named), casting="unsafe"))
    return out[0] if isinstance(out, tuple) else out if out is not None else on_gpu(into)


class ndarray(np.ndarray):  # noqa: N801 - as CuPy calls it
    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **named: Any) -> Any:
        if method == "at":
            return launch_in_place(ufunc.at, args)
        return launch(getattr(ufunc, method), args, named)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in BY_VALUES:
            refuse("D2H transfers")
        return launch(function, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        keys: Any = key if isinstance(key, tuple) else (key,)
        if any(isinstance(one, list) for one in keys):
            refuse("H2D transfers")
        if any(isinstance(one, np.ndarray) and one.dtype == bool for one in keys):
            refuse("D2H transfers")
        if any(isinstance(one, np.ndarray | list) for one in keys):
            return launch(np.ndarray.__getitem__, (self, key), {})
        return on_gpu(np.asarray(self.view(np.ndarray)[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        launch_in_place(np.ndarray.__setitem__, (self, key, value))

    def get(self, *_: Any, **__: Any) -> Any:
        refuse("D2H transfers")
        return np.array(self.view(np.ndarray))

    def set(self, values: Any) -> None:
        refuse("H2D transfers")
        self.view(np.ndarray)[...] = values

    def item(self) -> Any:
        return self.get().item()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def copy(self, order: Any = "C") -> Any:
        return launch(np.copy, (self,), {"order": order})

    def astype(self, dtype: Any, **_: Any) -> Any:
        return launch(lambda one: one.astype(dtype), (self,), {})

    def cumsum(self, axis: Any = None) -> Any:
        return launch(np.cumsum, (self,), {"axis": axis})

    def tobytes(self, *_: Any) -> bytes:
        return self.get().tobytes()

    def __matmul__(self, other: Any) -> Any:
        if capturing() is not None:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        return launch(np.matmul, (self, other), {})

    @property
    def data(self) -> Any:
        whole: Any = self
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        return SimpleNamespace(ptr=self.ctypes.data, mem=SimpleNamespace(ptr=whole.ctypes.data))

    device = SimpleNamespace(id=0)


ndarray.__module__ = "cupy"


def launch_in_place(function: Any, args: Any) -> None:
    args, stream = on_host(args), capturing()
    if stream is None:
        function(*args)
    else:
        stream.graph.append(lambda: function(*args))


class Stream:
    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.graph: list[Any] | None = None
        self.ptr = 0 if null else id(self)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __enter__(self) -> Any:
        CURRENT.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        CURRENT.pop()

    def synchronize(self) -> None:
        if capturing() is self or (self.ptr == 0 and capturing() is not None):
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    def is_capturing(self) -> bool:
        return self.graph is not None

    def wait_event(self, event: Any) -> None:
        event.waits.append((self.ptr, event.of))

    def begin_capture(self) -> None:
        self.graph = []

    def end_capture(self) -> Any:
        steps, self.graph = self.graph or [], None
        return SimpleNamespace(launch=lambda stream=None: [step() for step in steps])


Stream.__module__ = "cupy.cuda.stream"


class Pool:
    malloc = None


class Event:
    waits: list[Any] = []  # noqa: RUF012 - pairs of a stream that waits and the one that it waits for

    def __init__(self, disable_timing: bool = False) -> None:
        self.of = 0

    def record(self, stream: Any) -> None:
        self.of = stream.ptr

    def synchronize(self) -> None:
        pass


class Played(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        real = getattr(np, name)
        if isinstance(real, np.ufunc | type) or not callable(real):
            return real

        def made(*args: Any, **named: Any) -> Any:
            return launch(real, args, named) if real not in BY_VALUES else real(*args, **named)

        vars(self)[name] = made
        return made


def cupy_on_host() -> Any:
    cupy: Any = Played("cupy")

    def asarray(given: Any, dtype: Any = None) -> Any:
        refuse("H2D transfers") if not isinstance(given, ndarray) else None
        return on_gpu(np.array(given, dtype))

    def standard_normal(shape: Any, dtype: Any = float) -> Any:
        if capturing() is not None:
            raise NotImplementedError("calling cuRAND API during stream capture is currently unsupported")
        return on_gpu(np.random.default_rng().standard_normal(shape).astype(dtype))

    def by_values(real: Any) -> Any:
        def called(*args: Any, **named: Any) -> Any:
            return real(*args, **named)

        return called

    null = Stream(null=True)
    runtime: Any = ModuleType("cupy.cuda.runtime")
    runtime.memGetInfo = lambda: (10**8, 10**9)
    runtime.deviceSynchronize = lambda: refuse("synchronous API calls")
    pool = SimpleNamespace(malloc=None, free_all_blocks=lambda: None)
    cuda: Any = ModuleType("cupy.cuda")
    cuda.Stream, cuda.ExternalStream, cuda.runtime, cuda.Event = Stream, Stream, runtime, Event
    Stream.null = null  # type: ignore[attr-defined]
    cuda.MemoryPool, cuda.using_allocator = Pool, lambda malloc: nullcontext()
    cuda.get_current_stream = lambda: CURRENT[-1] if CURRENT else null
    random: Any = ModuleType("cupy.random")
    random.standard_normal, random.random = standard_normal, lambda size: on_gpu(np.random.default_rng().random(size))
    cupy.ndarray, cupy.cuda, cupy.random, cupy.get_default_memory_pool = ndarray, cuda, random, lambda: pool
    cupy.asarray = cupy.array = asarray
    cupy.asnumpy = lambda one: one.get()
    for real in BY_VALUES:
        setattr(cupy, real.__name__, by_values(real))
    return cupy


@contextmanager
def installed() -> Iterator[Any]:
    """The package as the program would import it."""
    cupy = cupy_on_host()
    modules = {"cupy": cupy, "cupy.cuda": cupy.cuda, "cupy.cuda.runtime": cupy.cuda.runtime, "cupy.random": cupy.random}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            module.__file__ = "site-packages/cupy/__init__.py"
            patch.setitem(sys.modules, name, module)
        yield cupy

"""Finds all calls of a function that stop a capture, not only the first, with the user's line and the change to make.

The function runs once without a capture, and each operation is looked at. Then a capture is tried in which those calls
return what they returned before, so that what else stops it shows, and how fast the rest would be.
"""

from __future__ import annotations

import builtins
import ctypes
import inspect
import io
import linecache
import re
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from microbench.capture.graphed import (
    TENSOR,
    Captured,
    TorchDispatchMode,
    handle_of,
    of_library,
    torch,
    uses_torch,
)
from microbench.capture.suspects import suspected
from microbench.experiments.own.culprit import Followed, attempt, follow

GPU = "cuda"
READS = "the host waits for a value of the GPU"
SIZES = "the size of the result depends on values, so the host waits for them"
ADVICE = {
    "item": "keep the tensor, and read it after the loop or every hundredth step",
    "to_host": "copy results to the host after the step, not in it",
    "to_gpu": "make the tensor on the GPU once, before the loop, or pass it as an input",
    "sizes": "make the indices once, before the loop (mask.nonzero()), or keep the size fixed by where()",
    "wait": "remove it: a replay needs no wait within",
    "capturable": "give the optimizer capturable=True, and fused=True if it takes that: else it has more kernels then",
    "setting": "make it a tensor on the GPU (lr=torch.tensor(1e-3, device='cuda')), and fill it before the step",
    "library": "keep it out of the graph, or compute it by a kernel of your own (for products: nvmath-python)",
    "stream": "give each kernel the same stream: kernel[grid, block, stream]",
    "print": "print after the step: a replay runs no code of the host",
    "file": "do it before or after the step: a replay runs no code of the host",
    "capture": "",
}
# What helps if the call is a library's own.
SWITCHES = {
    "torch.distributions": "give the distribution validate_args=False: its checks read values",
    "torch.amp": "give the optimizer fused=True: then the GPU decides whether scaler.step() is left out",
    "torch_geometric": "add the self-loops once, before the loop: add_self_loops=False, or GCNConv(cached=True)",
    "torch_geometric.nn.aggr": "pass dim_size, the number of groups: without it the largest index is read",
}
PARTS = (
    ("torch/amp/grad_scaler.py", "torch.amp"), ("torch/distributions/", "torch.distributions"),
    ("torch_geometric/nn/aggr/", "torch_geometric.nn.aggr"),
)  # fmt: skip
PLUMBING = ("torch/_", "torch/utils/", "torch/nn/modules/module.py")  # between an operation and what calls it
# Operations whose result has a size that values decide.
BY_VALUES = (
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "bincount",
    "is_nonzero",
)
HERE = str(Path(__file__).parent)
INVALIDATED = 2  # CU_STREAM_CAPTURE_STATUS_INVALIDATED
# Functions of C that look outside of the process or change something there, by their module or that of their object.
OUTSIDE = {
    "posix": "access kill link listdir lstat mkdir mkfifo posix_spawn pwrite read remove rename replace rmdir scandir "
    "sendfile stat symlink system truncate unlink utime write writev",
    "_posixsubprocess": "fork_exec",
    "_io": "read readall readinto readline readlines write writelines",
    "_csv": "writerow writerows",
    "sqlite3": "execute executemany executescript",
    "_socket": "recv recv_into send sendall sendmsg sendto",
    "numpy": "tofile dump",
    "torch._C": "write_record",
}
LEFT_OUT = {(module, name) for module, names in OUTSIDE.items() for name in names.split()}
# What loads and compiles code, reads its lines, or warns.
BUILDERS = re.compile(
    r"-packages/(torch/(_dynamo|_inductor|_functorch|_[a-z]+\.py|fx|jit|utils/cpp_extension)|triton/|cupy/|numba/)"
    r"|<frozen importlib|/(linecache|inspect|tokenize|traceback|warnings)\.py$"
)
IN_MEMORY = (io.StringIO, io.BytesIO)  # mostly the call's own
WAITS = [(one, "synchronize") for one in (torch.cuda, torch.cuda.Stream, torch.cuda.Event)] if torch else []


class Blocker(NamedTuple):
    """A call that no capture allows: its kind (a key of ADVICE), where it is, what it is, and what to do.

    ``at`` is the line of the function itself that leads to it, 0 if unknown. ``within`` is the line of a library that
    the user's ``line`` calls, "" if it makes the call itself.
    """

    kind: str
    line: str
    call: str
    why: str
    advice: str
    times: int = 1
    at: int = 0
    within: str = ""


class Looked(NamedTuple):
    """The blockers of one run, each line once; what they returned, in order; operations by line of the function; of
    calls that were tried, in order, whether a capture forbids them; and the function's globals and stream."""

    blockers: list[Blocker]
    results: list[Any]
    operations: Counter[int]
    stopped: list[bool]
    names: dict[str, Any]
    stream: Any


def blockers(
    function: Callable[..., Any], call: Callable[[], Any], optimizers: list[Any], stream: Any = None
) -> Looked:
    """Call ``call`` once, and find what in ``function``, which it calls, would stop a capture. ``stream`` is the
    function's own."""
    found: list[Blocker] = [
        Blocker("capturable", "", f"{type(one).__name__}.step", "its step count is on the host", ADVICE["capturable"])
        for one in optimizers
        if any(group.get("capturable") is False for group in one.param_groups)
    ]
    before = settings(optimizers)
    inner = inspect.unwrap(function)
    looking, names = Looking(code=getattr(inner, "__code__", None)), getattr(inner, "__globals__", {})
    cupy = sys.modules.get("cupy")
    with ExitStack() as stack:
        if stream is None and cupy is not None and not uses_torch():  # work of other libraries may ask for it
            stream = stack.enter_context(cupy.cuda.Stream())
        stack.enter_context(_watched(looking))
        stack.enter_context(suspected(looking, names, stream))
        if torch:
            stack.enter_context(looking)
            # Libraries ask whether a capture is going on, and then leave out what would stop it.
            stack.enter_context(mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True))
            for name in (one for one in dir(torch.optim.Optimizer) if one.endswith("graph_capture_health_check")):
                stack.enter_context(mock.patch.object(torch.optim.Optimizer, name))
        call()
    looking.frame = None  # it holds what the call made
    found += looking.found
    once = settings(optimizers)
    changed = [key for key, value in once.items() if before.get(key, value) != value]
    if changed and attempt(call).error is None:
        again = settings(optimizers)
        found += [
            Blocker(
                "setting", "", f"{type(optimizers[place]).__name__}'s {name}",
                "the step sets it anew, and a replay keeps the first value", ADVICE["setting"],
            )
            for place, name in dict.fromkeys((key[0], key[2]) for key in changed if again.get(key) != once[key])
        ]  # fmt: skip
    merged: dict[tuple[str, str, str, int, str], Blocker] = {}
    for one in found:
        key = one.kind, one.line, one.call, one.at, one.within
        merged[key] = merged[key]._replace(times=merged[key].times + 1) if key in merged else one
    return Looked(list(merged.values()), looking.results, looking.operations, looking.stopped, names, stream)


def settings(optimizers: list[Any]) -> dict[tuple[int, int, str], Any]:
    """The numbers in the groups of optimizers but NaN, by the places of both and their names."""
    return {
        (place, number, name): value
        for place, one in enumerate(optimizers)
        for number, group in enumerate(one.param_groups)
        for name, value in group.items()
        if isinstance(value, int | float | tuple) and not isinstance(value, bool) and value == value
    }


class Looking(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operation, and keeps what those return that a capture forbids. With ``results`` it gives them back
    instead of running them. Operations are counted by the line of ``code`` that leads to them."""

    def __init__(
        self, results: list[Any] | None = None, code: types.CodeType | None = None, stopped: Sequence[bool] = ()
    ) -> None:
        super().__init__()
        self.found: list[Blocker] = []
        self.results: list[Any] = []
        self.operations: Counter[int] = Counter()
        self.given = iter(results) if results is not None else None
        self.quiet = False  # while a call is tried
        self.stopped: list[bool] = []
        self.stops = iter(stopped)
        self._code = code
        self.frame: types.FrameType | None = None

    def _at(self) -> int:
        """The line at which the function is: autograd's thread, which it does not call, works for it meanwhile."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        self.frame = frame or self.frame
        return self.frame.f_lineno if self.frame is not None else 0

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.quiet:
            return function(*args, **(kwargs or {}))
        kind = kind_of(function, args, kwargs or {})
        if self._code is not None:
            self.operations[self._at()] += 1
        if not kind:
            return function(*args, **(kwargs or {}))
        if self.given is not None:
            return next(self.given, None)
        result = function(*args, **(kwargs or {}))
        self.results.append(result)
        why = SIZES if kind == "sizes" else "a copy from ordinary memory of the host" if kind == "to_gpu" else READS
        self.note(kind, function.overloadpacket.__name__.lstrip("_"), why)
        return result

    def note(self, kind: str, call: str, why: str) -> None:
        """Keep a blocker with the user's line."""
        if self.quiet:
            return
        at, frame = self._at(), sys._getframe(1)
        line, within = user_line(frame)
        line, package = line or user_line(self.frame)[0], library(frame)  # autograd's thread has no line of the user's
        own = f"look in {package} for an option or a newer version without it; else " if within and package else ""
        advice = SWITCHES.get(package, f"{own}{ADVICE[kind]}")
        self.found.append(Blocker(kind, line, call, why, advice, at=at, within=within))


def kind_of(function: Any, args: Any, kwargs: Any) -> str:
    """Why an operation stops a capture, as a key of ADVICE; "" if it does not."""
    name = function.overloadpacket.__name__
    tensors = [one for one in args if isinstance(one, TENSOR)]
    if name == "_local_scalar_dense":
        return "item" if tensors and tensors[0].device.type == GPU else ""
    if name in ("_to_copy", "copy_"):
        source = tensors[-1]
        target = kwargs.get("device") if name == "_to_copy" else tensors[0].device
        to = torch.device(target).type if target is not None else source.device.type
        if source.device.type == to:
            return ""
        if to == "cpu":
            return "to_host"
        return "" if source.is_pinned() and name == "copy_" else "to_gpu"
    on_gpu = any(one.device.type == GPU for one in tensors)
    if on_gpu and name in BY_VALUES:
        return "sizes"
    if on_gpu and name in ("index", "index_put", "index_put_") and len(args) > 1:
        chosen = [one for one in args[1] or () if isinstance(one, TENSOR)]
        if any(one.device.type != GPU for one in chosen):
            return "to_gpu"
        return "sizes" if any(one.dtype in (torch.bool, torch.uint8) for one in chosen) else ""
    if on_gpu and name == "repeat_interleave" and kwargs.get("output_size") is None:
        return "sizes"
    return ""


def _called(looking: Looking, frame: types.FrameType, event: str, function: Any) -> None:
    """Note a call from Python to C that looks outside of the process or changes something there, but for what loads and
    compiles code, and warnings."""
    if event != "c_call" or type(function) is not types.BuiltinFunctionType:
        return
    kinds = type(function.__self__).__mro__  # an object may compute its attributes, so none is read
    modules = {function.__module__, *(one.__module__ for one in kinds)}
    in_memory = any(one in kinds for one in IN_MEMORY)
    if in_memory or all((one, function.__name__) not in LEFT_OUT for one in modules):
        return
    within: types.FrameType | None = frame
    while within is not None:
        file = within.f_code.co_filename
        if BUILDERS.search(file) or file.startswith(HERE):  # which reads lines of the code
            return
        imported = within.f_code.co_name == "<module>"
        within = within.f_back if imported or of_library(within.f_code) else None
    looking.note("file", function.__name__, "a replay reads, writes and starts nothing")


def _checkpoints(looking: Looking) -> AbstractContextManager[Any]:
    """Notes what torch.save writes on Python 3.12, whose profiler sees no function of pybind11."""

    real: Any = torch and torch.save

    def saved(*args: Any, **named: Any) -> Any:
        looking.note("file", "save", "a replay reads, writes and starts nothing")
        return real(*args, **named)

    seen = torch and looking.given is None and sys.version_info[:2] == (3, 12)
    return mock.patch.object(torch, "save", saved) if seen else nullcontext()


@contextmanager
def _watched(looking: Looking) -> Iterator[None]:
    """Notes calls of the host: waits, prints, and what is read, written or started outside of the process."""
    trace = looking.given is None

    def wait(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*args: Any, **named: Any) -> Any:
            if not trace:
                return None
            looking.note("wait", name, "the host waits for the GPU")
            return real(*args, **named)

        return waited

    def printed(*args: Any, **named: Any) -> None:
        if trace:
            looking.note("print", "print", "a replay prints nothing")

    def made(real: Callable[..., Any]) -> Callable[..., Any]:
        """torch.tensor([…], device="cuda"), whose copy no operation shows."""

        def make(data: Any, *args: Any, **named: Any) -> Any:
            device = named.get("device")
            there = isinstance(data, TENSOR) or hasattr(data, "__cuda_array_interface__")
            on_gpu = device is not None and torch.device(device).type == GPU and not there
            if on_gpu and not trace:
                return next(looking.given or iter(()), None)
            result = real(data, *args, **named)
            if on_gpu:
                looking.note("to_gpu", real.__name__, "a copy from ordinary memory of the host")
                looking.results.append(result)
            return result

        return make

    real_open = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        if trace and any(letter in mode for letter in "wax+"):
            looking.note("file", "open", "a replay reads, writes and starts nothing")
        return real_open(file, mode, *args, **named)

    with ExitStack() as stack:
        stack.enter_context(_checkpoints(looking))
        if trace:
            before = sys.getprofile()  # of C, such as cProfile's, it is no function and cannot be set again
            stack.callback(sys.setprofile, before if callable(before) else None)
            sys.setprofile(partial(_called, looking))
            stack.callback(threading.setprofile, threading.getprofile())
            threading.setprofile(partial(_called, looking))
        for holder, name in WAITS:
            title = f"{getattr(holder, '__name__', 'cuda').rpartition('.')[2]}.{name}"
            stack.enter_context(mock.patch.object(holder, name, wait(title, getattr(holder, name))))
        for name in ("tensor", "as_tensor") if torch else ():
            stack.enter_context(mock.patch.object(torch, name, made(getattr(torch, name))))
        stack.enter_context(mock.patch.object(builtins, "print", printed))
        for module in (builtins, io):  # pathlib takes that of io
            stack.enter_context(mock.patch.object(module, "open", opened))
        yield


def rest(call: Callable[[], Any], looked: Looked, capture: Callable[[Callable[[], Any]], Any]) -> Any:
    """What ``capture`` makes of a call in which every blocker is replaced by its result. Raises what capture raises."""
    looking = Looking(looked.results, stopped=looked.stopped)

    def replaced() -> Any:
        seen = looking if torch else nullcontext()
        with seen, _watched(looking), suspected(looking, looked.names, looked.stream):
            return call()

    return capture(replaced)


def ended(call: Callable[[], Any], stream: Any = None) -> str:
    """Capture a call, and name what makes the capture fail, with the user's line and the library's.

    That is the first operation of PyTorch, or the first function of C that Python calls, after which CUDA says that the
    capture is invalid. "" if nothing ends it. ``stream`` is the function's own.
    """
    ran, ending = Followed(), Ending()

    def whole() -> None:
        nonlocal ran
        if uses_torch():
            ending.stream = torch.cuda.current_stream()
            with ending:
                ran = follow(call, lambda: broken(ending.stream), "")
            return
        ending.stream = stream or sys.modules["cupy"].cuda.get_current_stream()
        ran = follow(call, lambda: broken(ending.stream), "")
        if ran.error is not None:
            raise ran.error

    failed = attempt(partial(Captured, whole, stream)).error or ran.error
    what, line = ending.operation or ran.called, ending.line or ran.line
    return f"{what or 'a call'} at {line}" if failed is not None and line else what


def broken(stream: Any) -> bool:
    """Whether an error has ended the capture in a stream. Source: cuStreamIsCapturing in CUDA's driver API."""
    status = ctypes.c_int()
    asked = ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing
    return bool(asked(ctypes.c_void_p(handle_of(stream)), ctypes.byref(status)) or status.value == INVALIDATED)


class Ending(TorchDispatchMode):  # type: ignore[misc]
    """Finds the operation that ends the capture in ``stream``, and its line."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: Any = None
        self.operation = self.line = ""

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        was_broken = self.stream is None or broken(self.stream)
        try:
            return function(*args, **(kwargs or {}))
        finally:
            if not was_broken and broken(self.stream):
                self.operation = function.overloadpacket.__name__.lstrip("_")
                self.line = ", ".join(filter(None, user_line(sys._getframe(1))))


def library(frame: types.FrameType | None) -> str:
    """The innermost installed package; "" if the user's own code comes first. Of PyTorch only PARTS count."""
    while frame is not None:
        file = frame.f_code.co_filename
        package = file.rpartition("-packages/")[2].partition("/")[0] if "-packages/" in file else ""
        for part, name in PARTS:
            if part in file:
                return name
        if not file.startswith(HERE):  # which is in a package too where it is installed
            if package not in ("", "torch"):
                return package
            if not of_library(frame.f_code):
                return ""
        frame = frame.f_back
    return ""


def user_line(frame: types.FrameType | None) -> tuple[str, str]:
    """The innermost line of the user's code above a frame, and that of a library which it calls, or "": "train.py:88 in
    step: net(x)", "torchaudio/models/conformer.py:14 _lengths_to_padding_mask"."""
    within = ""
    while frame is not None:
        file, where = frame.f_code.co_filename, f"{frame.f_lineno} {frame.f_code.co_name}"
        package = file.rpartition("-packages/")[2] if "-packages/" in file else ""
        if not (of_library(frame.f_code) or file.startswith(HERE)):
            source = linecache.getline(file, frame.f_lineno).strip()
            line = f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}: {source[:60].rstrip(':')}"
            return line, within
        if package and not within and not package.startswith(PLUMBING) and not file.startswith(HERE):
            within = f"{package}:{where}"
        frame = frame.f_back
    return "", ""

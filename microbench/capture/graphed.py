"""Runs a PyTorch function as a CUDA graph: ``step = graphed(step)``, or ``@graphed``.

This file needs PyTorch alone, because `microbench graph` hands over a copy of it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sysconfig
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

SCALARS = (bool, int, float, complex, str, bytes, type(None))
LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})


def graphed(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function run as a CUDA graph. Options are those of Graphed."""
    return functools.partial(graphed, **options) if function is None else Graphed(function, **options)


class Graphed:
    """A function that replays a CUDA graph of itself.

    The first calls run as before (``warm_up``), the next is captured, the others are replayed. A graph fits a call if
    inputs have the same shapes, strides, types and devices, and if all else is the same by which the host decides:
    arguments that are no tensors; what the function reads from its module, its closure and its objects; an optimizer's
    settings; grad mode and autocast; what ``also()`` returns. Otherwise the call is captured again, for at most
    ``most`` graphs, and then runs without a graph. ``counts`` says how often each happened, ``reasons`` why a call was
    not replayed.

    Tensors are copied to where the graph reads them, unless each call so far has passed the same one. What a call
    returns is a copy without a gradient, so backward() belongs into the function; with ``copies=False`` it is the
    graph's own memory, which the next call overwrites.

    Raises RuntimeError if a call cannot be captured. Source: "CUDA Graphs" in PyTorch's notes on CUDA semantics.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        warm_up: int = 3,
        most: int = 4,
        copies: bool = True,
        also: Callable[[], Any] = lambda: None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.also = function, also
        self.options: dict[str, Any] = {"warm_up": warm_up, "most": most, "copies": copies, "also": also}
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._warm_up, self._most = warm_up, most
        self._graphs: dict[Any, Graph] = {}
        self._passed: dict[Any, list[list[Any]]] = {}  # the tensors of each kind's warm-ups
        self._moving: set[int] = set()  # places of inputs for which another tensor came
        self._guards = list(guards(function))
        self._last: Graph | None = None
        self._changing = ""  # what the function itself changes, of that by which the host decides

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """As a method, it has graphs for each object."""
        if owner is None:
            return self
        bound = Graphed(types.MethodType(self.function, owner), **self.options)
        owner.__dict__[self.function.__name__] = bound
        return bound

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        tensors: list[Any] = []
        inputs = described((arguments, named) if named else arguments, tensors)
        graph = self._last
        if graph is None or not graph.fits(inputs, self.also()):
            key = inputs, (*_modes(), self.also()), tuple([_held(*guard) for guard in self._guards])
            graph = self._graphs.get(key)
            if graph is None:
                return self._first(key, arguments, named, tensors)
            graph.guarded = [(*guard, now(*guard)) for guard in self._guards]  # equal values, other objects
            self._last = graph
        moved = graph.moved(tensors)
        if moved:
            self._moving |= moved
            self._forget(graph)
            return self._eager("another tensor came for an input that had been the same", arguments, named)
        self.counts["replays"] += 1
        return graph.replay(tensors)

    def _eager(self, reason: str, arguments: Any, named: Any) -> Any:
        self.counts["eager"] += 1
        self.reasons[reason] += 1
        return self.function(*arguments, **named)

    def _forget(self, graph: Graph) -> None:
        self._graphs = {key: one for key, one in self._graphs.items() if one is not graph}
        self._passed.clear()
        self._last = None

    def _first(self, key: Any, arguments: Any, named: Any, tensors: list[Any]) -> Any:
        """A call that no graph fits: a warm-up, the capture, or a call without a graph."""
        if self._changing:
            return self._eager(f"each call changes {self._changing}, and a replay would not", arguments, named)
        if len(self._graphs) >= self._most or (key not in self._passed and len(self._passed) >= 2 * self._most):
            return self._eager(self._difference(key), arguments, named)
        passed = self._passed.setdefault(key, [])
        marks = [marked(one) for one in tensors]
        if len(passed) < self._warm_up:
            passed.append(tensors)
            self.counts["warm-ups"] += 1
            side, main = torch.cuda.Stream(), torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                result = self.function(*arguments, **named)
            main.wait_stream(side)
            self._written = [was_written(one, mark) for one, mark in zip(tensors, marks, strict=True)]
            return mapped(result, detached=True)  # a gradient would keep nodes that belong to this stream
        same = [
            place not in self._moving and all(call[place] is one for call in passed)
            for place, one in enumerate(tensors)
        ]
        if any(wrote and not fixed for wrote, fixed in zip(self._written, same, strict=True)):
            return self._eager("it writes to an input, and each call passes another tensor", arguments, named)
        self.counts["captures"] += 1
        self._guards = list(guards(self.function))  # the first calls may have made what it reads
        before = [_held(*guard) for guard in self._guards]
        graph = Graph(self.function, arguments, named, tensors, same, self.options["copies"])
        after = [_held(*guard) for guard in self._guards]
        changed = [str(key) for (_, key), one, other in zip(self._guards, before, after, strict=True) if one != other]
        if changed:
            self._changing = ", ".join(changed)
            return graph.replay(tensors)  # it is right for this call, and for no other
        key = *key[:2], tuple([_held(*guard) for guard in self._guards])
        graph.expected = key[0], key[1]
        graph.guarded = [(*guard, now(*guard)) for guard in self._guards]
        self._graphs[key] = self._last = graph
        self.counts["replays"] += 1
        return graph.replay(tensors)

    def _difference(self, key: Any) -> str:
        """What a call has that the last kind of call had not."""
        last = next(reversed(self._passed))
        if key[0] != last[0]:
            return "an input has another shape, type or device, or an argument another value"
        if key[1] != last[1]:
            return "grad mode, autocast or what also() returns is another"
        names = [
            str(name) for (_, name), one, other in zip(self._guards, key[2], last[2], strict=False) if one != other
        ]
        return f"{', '.join(names) or 'what it reads'} has another value in too many calls"


class Graph:
    """One captured call: its graph, where it reads its inputs (None: the call's own tensor), and what it returned."""

    expected: tuple[Any, Any]
    guarded: list[tuple[Any, Any, Any]]

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        named: Any,
        tensors: list[Any],
        same: list[bool],
        copies: bool,
    ) -> None:
        self._same, self._copies = same, copies
        self._inputs = [
            one if fixed or not one.is_cuda else one.detach().clone().requires_grad_(one.requires_grad)
            for one, fixed in zip(tensors, same, strict=True)
        ]
        arguments, named = mapped((arguments, named), iter(self._inputs).__next__)
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        gc.collect()  # what only a cycle keeps may hold nodes of a backward that belong to another stream
        with contextlib.ExitStack() as failed:
            failed.callback(_after_failure, stream)
            with torch.cuda.graph(self._graph):
                result = function(*arguments, **named)
            failed.pop_all()
        self._result = mapped(result, detached=True)

    def fits(self, inputs: Any, also: Any) -> bool:
        """Whether a call may be replayed: inputs of this kind, and nothing that the host decides by has changed."""
        for holder, key, value in self.guarded:
            if now(holder, key) is not value:
                return False
        return bool((inputs, (*_modes(), also)) == self.expected)

    def moved(self, tensors: list[Any]) -> set[int]:
        """The places of inputs that are read where they are, and for which another tensor has come."""
        return {
            place
            for place, (same, static, given) in enumerate(zip(self._same, self._inputs, tensors, strict=True))
            if given is not static and (same or not given.is_cuda)
        }

    def replay(self, tensors: list[Any]) -> Any:
        """What the graph returns for these inputs."""
        for static, given in zip(self._inputs, tensors, strict=True):
            if static is not given:
                if static.requires_grad:
                    static, given = static.detach(), given.detach()
                static.copy_(given)
        self._graph.replay()
        return mapped(self._result) if self._copies else self._result


def guards(function: Any) -> Iterator[tuple[Any, Any]]:
    """Where the host keeps what the function reads directly, as pairs of a holder and a key.

    These are globals, closure cells, the plain attributes and tensors of objects among these, and the settings of
    optimizers. Functions of the user's are followed, those of libraries are not.
    """
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (*SCALARS, torch.Tensor, type, types.ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, types.MethodType):
            waiting += [one.__func__, one.__self__]
        elif isinstance(one, types.FunctionType):
            waiting.append(getattr(one, "__wrapped__", None))
            if not of_library(one.__code__):
                for holder, key in _read_by(one):
                    yield holder, key
                    waiting.append(now(holder, key))
        elif isinstance(one, torch.optim.Optimizer):
            yield from ((group, key) for group in one.param_groups for key in group if key != "params")
        elif hasattr(one, "__dict__"):
            attributes = vars(one)
            yield from (
                (attributes, key) for key in attributes if isinstance(attributes[key], (*SCALARS, torch.Tensor))
            )
            if isinstance(one, torch.nn.Module):
                waiting.append(getattr(type(one), "forward", None))
            else:
                waiting += [each for each in attributes.values() if isinstance(each, torch.optim.Optimizer)]


def of_library(code: types.CodeType) -> bool:
    """Whether code belongs to Python or to an installed package."""
    file = code.co_filename
    return file.startswith((*LIBRARIES, "<")) or "-packages" in file


def _read_by(function: types.FunctionType) -> Iterator[tuple[Any, Any]]:
    """The globals and cells that a function and the functions within it read."""
    codes, names = [function.__code__], function.__globals__
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            if name in names and not isinstance(names[name], types.ModuleType | type):
                yield names, name
    yield from ((cell, "cell_contents") for cell in function.__closure__ or ())


def now(holder: Any, key: Any) -> Any:
    """The value that a holder has now: a dictionary, a list or a cell."""
    if isinstance(holder, dict):
        return holder.get(key)
    if isinstance(holder, list):
        return holder[key] if key < len(holder) else None
    try:
        return holder.cell_contents
    except ValueError:  # an empty cell
        return None


def _held(holder: Any, key: Any) -> Any:
    """A value as keys compare it: plain ones by type and value, all else by identity."""
    value = now(holder, key)
    return (type(value), value) if isinstance(value, SCALARS) else Same(value)


class Same:
    """Equal only to itself; it keeps the object alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _after_failure(stream: torch.cuda.Stream) -> None:
    """After a capture that failed: back to the stream, and random numbers are no longer a graph's."""
    torch.cuda.set_stream(stream)
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def marked(one: torch.Tensor) -> Any:
    """What shows later that a tensor was written to: its version, or a copy where inference mode keeps none."""
    return one.clone() if one.is_inference() else one._version


def was_written(one: torch.Tensor, mark: Any) -> bool:
    """Whether a tensor was written to since it was marked."""
    return not torch.equal(one, mark) if isinstance(mark, torch.Tensor) else bool(one._version != mark)


def _modes() -> Any:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")


def described(value: Any, tensors: list[Any]) -> Any:
    """What must be equal for a graph to fit; the tensors within are added to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    if isinstance(value, SCALARS):
        return type(value), value
    if isinstance(value, tuple | list):
        return type(value), tuple([described(each, tensors) for each in value])
    if isinstance(value, dict):
        return type(value), tuple([(key, described(each, tensors)) for key, each in value.items()])
    return Same(value)


def mapped(value: Any, tensor: Callable[[], Any] | None = None, detached: bool = False) -> Any:
    """The same structure with other tensors, or with copies of its own, or with its own without a gradient."""
    if isinstance(value, torch.Tensor):
        own = value.detach()
        return tensor() if tensor is not None else own if detached else own.clone()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[mapped(each, tensor, detached) for each in value])
    if isinstance(value, tuple | list):
        return type(value)(mapped(each, tensor, detached) for each in value)
    if isinstance(value, dict):
        copied = {key: mapped(each, tensor, detached) for key, each in value.items()}
        return copied if type(value) is dict else type(value)(copied)
    return value

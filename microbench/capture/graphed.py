"""Runs a function of PyTorch, CuPy, Numba or cuda.core as a CUDA graph: ``step = graphed(step)``, or ``@graphed``.

This file needs the library that the function uses, and no other: `microbench graph` hands over a copy of it.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import copy
import ctypes
import dis
import enum
import functools
import gc
import importlib
import io
import itertools
import numbers
import operator
import os
import random
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

torch: Any = None
# If a program uses another library, it takes seconds to import for nothing.
if sys.modules.get("torch") or not {"cupy", "numba.cuda", "cuda.core"} & sys.modules.keys():
    with contextlib.suppress(ImportError):
        torch = importlib.import_module("torch")
TorchDispatchMode: Any = torch.utils._python_dispatch.TorchDispatchMode if torch else object
if torch:
    from torch import get_default_dtype, is_autocast_enabled, is_grad_enabled

TENSOR: Any = (torch.Tensor,) if torch else ()
MODULE: Any = (torch.nn.Module,) if torch else ()
OPTIMIZER: Any = (torch.optim.Optimizer,) if torch else ()
SCALARS = (bool, int, float, complex, str, bytes, type(None))
SETTINGS: Any = (*SCALARS, numbers.Number, enum.Enum, frozenset)
SETTINGS += (torch.dtype, torch.device) if torch else ()
LOOKED = (*SETTINGS, tuple, Iterator)
WHOLE = *TENSOR, *MODULE, *OPTIMIZER, type, types.FunctionType, types.ModuleType
OPEN = set[type]()  # of data: a call is told by what such an object holds, since each call passes another
PER_THREAD = 2  # the largest handle of the default streams, in which no capture begins
ANEW = 3  # so many other objects of data, none of them again, open their class
KERNELS = {"triton", "cupy", "numba", "numba_cuda", "cuda", "pycuda"}  # packages whose kernels PyTorch does not see
OF_HOST = "an input is a tensor of the host, whose values a graph keeps, and another one came"
ELSEWHERE = "an input is what it also reads elsewhere, and a graph has a copy of it"
CALLED = "()"  # the key of a value that its holder returns
NOTHING = tuple, (), ()  # what a call without arguments is described by
MOST_ENTRIES, MOST_OBJECTS = 64, 20_000  # of a container whose values are looked at; of all that is reached
MOST_BYTES = 1 << 28  # of the host's arrays that are compared around a capture
LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
# So many places are looked at in turn, every so many calls, of those whose changes are counted.
EACH, EVERY = 8, 16
Place = tuple[Any, Any, Any, str]  # a holder, a key, a value, a name
NONE: frozenset[str] = frozenset()
GRADIENT = operator.attrgetter("grad")
SEQUENCES = tuple, list
BYTES: Any = bytearray, array.array, memoryview, ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array
PLAIN: Any = (torch.Tensor, torch.nn.Parameter) if torch else ()
OF_LAYERS = set(vars(torch.nn.Module())) - {"training"} if torch else set[str]()
OF_ALL = [
    one
    for name, one in (vars(torch.nn.modules.module).items() if torch else ())
    if re.fullmatch("_global_(forward|backward).*_hooks", name)
]
FORWARD = ("forward", "backward", "setup_context")
# What reads attributes that no code names.
BY_NAME = {"getattr", "hasattr", "asdict", "astuple", "fields", "replace", "repr", "str", "__match_args__"}
SHAPES = {"shape", "size", "ndim", "dim", "numel", "nelement", "dtype", "device", "stride"}
CALLS, NEW = (*FORWARD, "__call__"), ("__init__", "__new__", "__post_init__")
OF_OPTIMIZERS = ("param_groups", "state", "defaults")
MAKING = ("__init__", "__new__", "__repr__", "__setattr__", "__getstate__", "__setstate__", "__reduce__", "__del__")
# Methods that write to a container.
CHANGING = {
    "__setitem__", "append", "appendleft", "add", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault",
    "update",
}  # fmt: skip


def graphed(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function run as a CUDA graph. Options are those of Graphed."""
    return partial(graphed, **options) if function is None else Graphed(function, **options)


def nothing() -> None:
    """Return None: by default nothing else decides whether a graph fits a call."""


class Graphed:
    """A function that replays a CUDA graph of itself.

    The first calls run as before (``warm_up``), the next is captured, the others are replayed. A graph fits a call if
    inputs have the same shapes, strides, types and devices, and if all else is the same by which the host decides:
    arguments that are no tensors (plain data by what it holds, if other objects come each time); what the function's
    code names (see Reads); an optimizer's settings; grad mode, autocast and the default type; what ``also()`` returns.
    Otherwise the call is captured again, for at most ``most`` graphs, and then runs without a graph. ``counts`` says
    how often each happened, ``reasons`` why a call was not replayed.

    Tensors are copied to where the graph reads them, unless each call so far has passed the same one. What a call
    returns is a copy without a gradient, so backward() belongs into the function; with ``copies=False`` it is the
    graph's own memory, which the next call overwrites. Tensors here are PyTorch's and arrays of CuPy; memory of Numba
    and cuda.core is read where it is. Their kernels are captured in the one stream that the function reaches.

    Raises RuntimeError if a call cannot be captured. Source: "CUDA Graphs" in PyTorch's notes on CUDA semantics.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        warm_up: int = 3,
        most: int = 4,
        copies: bool = True,
        also: Callable[[], Any] = nothing,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.also = function, also
        self.options: dict[str, Any] = {"warm_up": warm_up, "most": most, "copies": copies, "also": also}
        self._counts: Counter[str] = Counter()
        self._replays = 0  # an attribute is faster than a Counter
        self.reasons: Counter[str] = Counter()
        self._warm_up, self._most = max(warm_up, 1), most
        self._graphs: list[Graph] = []
        self._passed: dict[Any, list[list[Any]]] = {}  # the tensors of each kind's warm-ups
        self._apart: set[type] = set()  # classes whose objects the function may tell apart
        self._came: dict[str, Any] = {}  # the objects of data that came as an argument, by its name
        self._moving: set[int] = set()  # places of inputs for which another tensor came
        self._places: dict[Any, list[tuple[str, Any, Any]]] = {}  # what the function reads, by its inputs
        self._last: Graph | None = None
        self._kept = False  # by an object, as its method
        self._changing = ""  # what the function itself changes, of that by which the host decides
        self._never: dict[Any, str] = {}  # why calls of a kind have no graph, whatever comes
        # What a kind's last warm-up bound anew, and of that what it did not compute with.
        self._anew: dict[Any, list[Place]] = {}
        self._unread: dict[Any, set[tuple[int, Any]]] = {}
        self._noted: dict[Any, tuple[list[bool], str]] = {}  # by kind: inputs written to, and a strange result

    @property
    def counts(self) -> Counter[str]:
        """How often calls were replays, warm-ups, captures, or eager."""
        return self._counts + Counter(replays=self._replays)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """As a method, it has graphs for each object, which that object keeps."""
        if owner is None:
            return self
        kept, key = getattr(owner, "__dict__", None), f"graphed {id(self)}"
        if not isinstance(kept, dict):  # in a class, or an object with slots alone, nothing can be kept
            return types.MethodType(self.function, owner)
        bound = kept.get(key)
        method = types.MethodType(self.function, owner)
        if bound is None or bound.function != method:  # a copy has what the first object kept
            bound = kept[key] = Graphed(method, **self.options)
            bound._kept = True
        return bound

    def __reduce__(self) -> Any:
        """A copy, or what is loaded from a file, begins without graphs."""
        return (nothing, ()) if self._kept else (_remade, (self.function, self.options))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        tensors: list[Any] = []
        inputs = described((arguments, named) if named else arguments, tensors) if arguments or named else NOTHING
        if len(tensors) > 1 and len({*map(id, tensors)}) < len(tensors):
            inputs = inputs, _twins(tensors)
        also, graph = self.also(), self._last
        if graph is None or not graph.fits(inputs, also):
            graph = next((one for one in self._graphs if one.fits(inputs, also)), None)
            if graph is None:
                for one in self._graphs if len(self._graphs) < self._most else ():
                    one.doubt()
                return self._first((inputs, _modes(), also), arguments, named, tensors)
            self._last = graph
        for place, one in graph.fixed:
            if tensors[place] is not one:
                self._moving |= {place for place, one in graph.fixed if tensors[place] is not one}
                self._graphs.remove(graph)
                self._forget()
                same = "another tensor came for an input that had been the same"
                return self._eager(same if on_gpu(one) else OF_HOST, arguments, named)
        if tensors and not graph.reached.isdisjoint(map(id, tensors)):
            return self._eager(ELSEWHERE, arguments, named)
        self._replays += 1
        return graph.replay(tensors)

    def _forget(self) -> None:
        self._passed.clear()
        self._anew.clear()
        self._places.clear()
        self._last = None

    def _eager(self, reason: str, arguments: Any, named: Any) -> Any:
        self._counts["eager"] += 1
        self.reasons[reason] += 1
        return self.function(*arguments, **named)

    def _first(self, kind: Any, arguments: Any, named: Any, tensors: list[Any]) -> Any:
        """A call that no graph fits: a warm-up, the capture, or a call without a graph."""
        if opened(self._came, (arguments, named), self.function):
            self._graphs.clear()  # those for one object each
            self._moving.clear()  # its tensors have places now
            self._forget()
            return self(*arguments, **named)
        places = self._places.get(kind[0])
        if why := self._why_not(kind, places, arguments, named, tensors):
            return self._eager(why, arguments, named)
        if places is None:
            places = self._places[kind[0]] = Reads(self.function, (arguments, named)).places
        key = *kind, tuple([held(now(*place)) for _, *place in places])
        if key not in self._passed and len(self._passed) >= 2 * self._most:
            return self._eager(self._difference(kind), arguments, named)
        passed = self._passed.setdefault(key, [])
        if len(passed) < self._warm_up or key not in self._noted:
            passed.append(tensors)
            self._counts["warm-ups"] += 1
            passes, reads = of_inputs(arguments, named), Reads(self.function, (arguments, named))
            marks = [marked(one) for one in tensors]
            before, seen = reads.values(), len(passed) == self._warm_up and not reads.has_kernels()
            observed = Observed(self._anew.get(key, [])) if seen else contextlib.nullcontext()
            with aside(), observed:
                result = self.function(*arguments, **named)
            if isinstance(observed, Observed):
                places_now = [now(*one) for one in reads.behind.values()]
                bound = [now(*one[:2]) for one in before if now(*one[:2]) is not one[2]]
                observed.returned([result, places_now, bound])
            self._unread[key] = observed.unread if isinstance(observed, Observed) else set()
            self._anew[key] = [one for one in before if now(*one[:2]) is not one[2]]
            written = [was_written(one, mark) for one, mark in zip(tensors, marks, strict=True)]
            written = [*map(operator.or_, written, self._noted.get(key, (written, ""))[0])]
            after = of_inputs(arguments, named)
            if len(passed) == self._warm_up:  # the first calls may make what is missing
                self._changing = next((what for what, value in passes.items() if after[what] != value), "")
            known = {id(one) for _, one in _leaves((arguments, named))}
            known |= {id(one) for one in reads.reached() if is_opaque(one)}  # as before, they are written to in place
            self._noted[key] = written, strange(result, known)
            self._seen = places, key
            self._places[kind[0]] = Reads(self.function, (arguments, named)).places  # it may have made what it reads
            return mapped(result, detached=True)  # a gradient would keep nodes that belong to this stream
        written, odd = self._noted[key]
        if odd:
            returns = f"it returns a {odd}, of which a replay makes no copy: return tensors, lists or dictionaries"
            return self._eager(returns, arguments, named)
        same = [
            place not in self._moving and all(call[place] is one for call in passed)
            for place, one in enumerate(tensors)
        ]
        if any(wrote and not fixed for wrote, fixed in zip(written, same, strict=True)):
            return self._eager("it writes to an input, and each call passes another tensor", arguments, named)
        return self._capture(kind, arguments, named, tensors, same, self._unread.get(key, set()))

    def _why_not(self, kind: Any, places: Any, arguments: Any, named: Any, tensors: list[Any]) -> str:
        """Why a call has no graph, whatever comes; "" if it may have one."""
        if torch is None and sys.modules.get("torch"):
            return "PyTorch was imported after this file, which must know it"
        if why := self._never.get(kind[0]):
            return why
        if self._changing:
            return f"each call changes {self._changing}, and a replay would not"
        if len(self._graphs) >= self._most or (places is None and len(self._places) >= 2 * self._most):
            return self._difference(kind)
        if any(place in self._moving and not on_gpu(one) for place, one in enumerate(tensors)):
            return OF_HOST
        if any(type(one) not in (*PLAIN, *arrays()) for one in tensors):
            return "an input is a tensor of a class of its own, which a graph's copy is not"
        if any(isinstance(one, Iterator) for _, one in _leaves((arguments, named))):
            return "an argument is an iterator, and a replay takes nothing from it"
        classes = OPEN.intersection([one for _, one in _leaves((arguments, named)) if isinstance(one, type)])
        if classes and not classes & self._apart:
            self._apart |= apart(self.function)
        if told := classes & self._apart:
            name = min(one.__name__ for one in told)
            return f"it knows another {name}, and may compare its argument with that"
        return ""

    def _capture(
        self, kind: Any, arguments: Any, named: Any, tensors: list[Any], same: list[bool], unread: set[tuple[int, Any]]
    ) -> Any:
        """Capture the call and replay it. The graph is kept if others may be replayed: what this one binds anew must be
        ``unread``, or it is state."""
        self._came.clear()
        reads = Reads(self.function, (arguments, named))  # the first calls may have made what it reads
        if why := reads.streams_forbid():
            self._never[kind[0]] = why
            return self._eager(why, arguments, named)
        if any(id(one) in reads.tensors and not fixed for one, fixed in zip(tensors, same, strict=True)):
            return self._eager(ELSEWHERE, arguments, named)
        self._counts["captures"] += 1
        places = self._places[kind[0]] = reads.places
        before, state, grads = [held(now(*place)) for _, *place in places], reads.state(tensors), reads.gradients()
        maybe = reads.values()
        behind = [(*place, now(*place)) for place in reads.behind.values()]
        drawn = [Drawn(*place) for place in reads.iterators()]
        memory = [(name, one, address(one)) for name, one in reads.tensors.values()]
        given = [
            (f"{name}.grad", one.grad)
            for name, one, _ in memory
            if isinstance(one, TENSOR) and one.is_leaf and one.grad is not None and one.grad.layout is torch.strided
        ]
        memory += [(name, grad, address(grad)) for name, grad in given]
        renew(one for _, one, _ in memory)
        try:
            stream, copies = next(iter(reads.streams.values()), None), self.options["copies"]
            cupy = reads.uses_cupy() or not all(isinstance(one, TENSOR) for one in tensors)
            graph = Graph(self.function, arguments, named, tensors, same, copies, stream, cupy)
        finally:
            for one in drawn:
                bind(*one.place, one.given)
        anew = [one for one in maybe if now(*one[:2]) is not one[2]]  # what the function binds
        reads.kept += [one for one in maybe if now(*one[:2]) is one[2] and (id(one[0]), one[1]) not in reads.states]
        graph.guard(kind, reads, tensors, grads, [one for one in anew if (id(one[0]), one[1]) in unread])
        known = _storages([one for _, one, _ in memory])
        graph.behind = [
            (holder, key, mapped(one, detached=True), isinstance(one, SCALARS) or made <= known)
            for holder, key, was, *_ in (*behind, *anew)
            if (one := now(holder, key)) is not was
            and not any(one is each for _, each, _ in memory)  # a swap
            and ((made := _storages(one)) or isinstance(one, SCALARS))
            and (is_tensor(one) or not made & known)  # a list of parameters keeps these
        ]
        self._seen = places, (*kind, tuple([held(now(*place)) for _, *place in places]))
        changing = [f"what the iterator {one.name} yields" for one in drawn if one.taken]
        changing += [name for name, value in reads.state(tensors).items() if value != state[name]]
        changing += [name for holder, key, value, name in reads.kept if now(holder, key) is not value]
        changing += [name for holder, key, _, name in anew if (id(holder), key) not in unread]
        changing += [f"the memory of {name}" for name, one, place in memory if address(one) != place]
        self._changing = ", ".join([*_changed(places, before, self._seen[1][-1]), *changing])
        if not self._changing:  # else it is right for this call, and for no other
            self._graphs.append(graph)
            self._last = graph
            self._replays += 1
        return graph.replay(tensors)

    def _difference(self, kind: Any) -> str:
        """What a call has that the last call with a graph, or before one, had not."""
        places, (*seen, values) = self._seen
        if kind[0] != seen[0]:
            return "an input has another shape, type or device, or an argument another value"
        if kind[1:] != tuple(seen[1:]):
            return "grad mode, autocast or what also() returns is another"
        names = _changed(places, values, [held(now(*place)) for _, *place in places])
        has = "have other values" if len(names) > 1 else "has another value"
        return f"{', '.join(names) or 'what it reads'} {has} in too many calls"


def _changed(places: Any, before: Any, after: Any) -> list[str]:
    return [name for (name, *_), one, other in zip(places, before, after, strict=True) if one != other]


def _remade(function: Callable[..., Any], options: dict[str, Any]) -> Graphed:
    return Graphed(function, **options)


class Graph:
    """One captured call: its graph, where it reads its inputs (None: the call's own tensor), and what it returned."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Any,
        named: Any,
        tensors: list[Any],
        same: list[bool],
        copies: bool,
        stream: Any = None,
        cupy: bool = True,
    ) -> None:
        self._copies = copies
        self._learning, self._grads = list[Any](), list[Any]()  # leaves whose gradients it makes anew, and these
        self._looks: Callable[[], Any] = nothing  # compiled: whether all is the same, these gradients, too
        self._same = False
        self.behind: list[tuple[Any, Any, Any, bool]] = []  # what a call leaves in attributes, and whether as it is
        self.reached = set[int]()  # tensors that it reads elsewhere, and not as an input
        fixed = [one if stays or not on_gpu(one) else None for one, stays in zip(tensors, same, strict=True)]
        own: dict[int, Any] = {}
        for one, stays in zip(tensors, fixed, strict=True):
            if stays is None and id(one) not in own:
                own[id(one)] = _own_copy(one)
        inputs = [own[id(one)] if stays is None else one for one, stays in zip(tensors, fixed, strict=True)]
        self.fixed = [(place, one) for place, one in enumerate(fixed) if one is not None]  # read where they are
        self._copied = [
            (place, one.detach().copy_ if isinstance(one, TENSOR) else partial(one.__setitem__, ...))
            for place, one in enumerate(inputs)
            if fixed[place] is None
        ]
        arguments, named = mapped((arguments, named), iter(inputs).__next__)
        _looking()  # which may take a second once
        gc.collect()  # what only a cycle keeps may hold nodes of a backward that belong to another stream
        self._captured = Captured(partial(function, *arguments, **named), stream, cupy)  # it keeps the graph's memory
        self._launch, self._runs_in = self._captured.launch, self._captured.runs_in
        self._result = mapped(self._captured.result, detached=True)

    def guard(
        self,
        kind: Any,
        reads: Reads,
        inputs: Iterable[Any],
        grads: list[tuple[str, Any, Any]],
        unread: list[Place],
    ) -> None:
        """Keep what a call must be like: its inputs and modes, and the values at the places that the function reads.

        ``grads`` are names of leaves, leaves, and their gradients before the capture.
        """
        self._kind, self._turn, self._bound = (kind[0], kind[2]), 0, BOUND[0] + HOOKS.next_id
        # Looked at in each call.
        self._each = [
            (is_autocast_enabled if get is _autocast and not value else get, CALLED, value, "a mode")
            for get, value in zip(MODES, kind[1], strict=True)
        ]
        self._each += [
            one if type(one[0]) in (dict, list) else (partial(now, *one[:2]), CALLED, *one[2:])
            for one in reads.kept
            if not isinstance(one[1], Part)
        ]
        kind_of = _alike if reads.asks_shapes() else type
        self._each += [
            (partial(_same, partial(_like, kind_of, *one[:2]), kind_of(one[2])), CALLED, True, one[3]) for one in unread
        ]
        # Looked at if a change was counted, and in turn.
        self._counted: list[Place] = [one for one in reads.kept if isinstance(one[1], Part)]
        for name, holder, key in reads.places:
            value = now(holder, key)
            if isinstance(key, Part) or type(holder) in (dict, list):
                (self._counted if isinstance(key, Part) else self._each).append((holder, key, value, name))
            elif key is CALLED and holder() is not value:  # another object each time, such as a long length
                self._each.append((partial(_same, partial(_held, holder), held(value)), CALLED, True, name))
            else:
                get = now if isinstance(holder, dict | list) else getattr
                self._each.append((holder if key is CALLED else partial(get, holder, key), CALLED, value, name))
        self._each += [(partial(_on_host, one), CALLED, _on_host(one), name) for name, one in reads.of_host(inputs)]
        self._counted += [
            (partial(_same, partial(_laid, one), _laid(one)), CALLED, True, f"the memory of {name}")
            for name, one in reads.tensors.values()
        ]
        of_layers, others = [*reads.of_layers()], reads.facts()  # a change of layers or hooks is counted
        self._layered = len(of_layers)
        self.reached = {id(one) for _, one in reads.tensors.values()} - {id(one) for _, one in self.fixed}
        self._slow: list[Place] = [
            (partial(_same, get, get()), CALLED, True, name) for name, get in (*of_layers, *others)
        ]
        # Or others come to its address. Objects stand for the memory of other libraries.
        self._memory = [one.untyped_storage() if isinstance(one, TENSOR) else one for _, one in reads.tensors.values()]
        # A gradient that the function drops and makes anew is its own. Else a call must find what the capture found.
        self._made = [(one, one.grad) for _, one, before in grads if one.grad is not before]
        self._learning, self._grads = [one for one, _ in self._made], [grad for _, grad in self._made]
        for name, one, before in grads:
            if before is None or one.grad is before:
                places = self._each if id(one) in reads.leading else self._counted
                places.append((partial(getattr, one, "grad"), CALLED, before, f"{name}.grad"))
        self._part()

    def _part(self) -> None:
        """The places that each call looks at, by how: entries, attributes and calls."""
        self._calls = [(get, value) for get, key, value, _ in self._each if key is CALLED]
        self._entries = [(holder, key, value) for holder, key, value, _ in self._each if key is not CALLED]
        self._looks = nothing

    def _compile(self) -> None:
        """Look at all that by a compiled function, and at the gradients that the graph makes anew."""
        if (looking := _looking()) is None:
            return
        groups: list[list[Any]] = [[], [], [(one, "grad", grad) for one, grad in self._made], []]
        for holder, key, value in self._entries:
            groups[type(holder) is list].append((holder, key, value))
        for get, value in self._calls:
            read = isinstance(get, partial) and get.func is getattr and len(get.args) == 2
            groups[2 if read else 3].append((*get.args, value) if read else (get, None, value))
        kept = [*itertools.chain(*itertools.chain(*groups))]
        self._looks = looking((array.array("q", [*map(len, groups), *map(id, kept)]).tobytes(), kept))

    def _unchanged(self) -> bool:
        """Whether what each call looks at is the very same objects."""
        for holder, key, value in self._entries:
            if holder[key] is not value:
                return False
        for get, value in self._calls:  # noqa: SIM110 - a generator takes twice as long
            if get() is not value:
                return False
        return True

    def fits(self, inputs: Any, also: Any) -> bool:
        """Whether a call may be replayed: such inputs, and nothing that the host decides by has changed.

        Raises RuntimeError if something has changed that was not counted, which earlier replays did not see.
        """
        self._same = self._looks()
        try:
            if not self._same and not self._unchanged():
                if _other(self._each, 0, len(self._each)):
                    return False
                self._part()
            elif self._looks is nothing:  # values that are set anew and stay equal are not looked at so
                self._compile()
        except (LookupError, AttributeError, ValueError):  # it is no longer there
            return False
        if (inputs, also) != self._kind:  # as a tuple: what also() returns may be the same and not equal to itself
            return False
        bound = BOUND[0] + HOOKS.next_id
        self._turn += 1
        if bound != self._bound:
            slow = len(self._slow) if self._bound < 0 else self._layered
            if _other(self._counted, 0, len(self._counted)) or _other(self._slow, 0, slow):
                return False
            self._bound = bound
        elif not self._turn % EACH:
            if self._turn % EVERY:
                self._look(self._slow, 1)
            else:
                self._look(self._counted, EACH)
        return True

    def doubt(self) -> None:
        """Look at all places in the next call that fits, because another one did not fit."""
        self._bound = -1

    def _look(self, places: list[Place], each: int) -> None:
        """Look at the next ``each`` of these places."""
        rounds = len(places) // each + 1
        first = self._turn // EVERY % rounds * each
        for holder, key, value, _ in places[first : first + each]:
            found = holder() if key is CALLED else dict.get(holder, key)
            if found is not value and (name := _other(places, first, first + each)):
                self._bound = -1  # the next call looks at all
                raise RuntimeError(
                    f"{name} has changed in a way that nothing tells of, and up to "
                    f"{EVERY * rounds} replays did not see it: name it in also"
                )

    def replay(self, tensors: list[Any]) -> Any:
        """What the graph returns for these inputs."""
        if self._runs_in is None:
            return self._replay(tensors)
        with self._runs_in():
            return self._replay(tensors)

    def _replay(self, tensors: list[Any]) -> Any:
        for place, copy_in in self._copied:
            given = tensors[place]
            copy_in(given.detach() if isinstance(given, TENSOR) and given.requires_grad else given)
        self._launch()
        if self._learning and not self._same and any(map(operator.is_not, map(GRADIENT, self._learning), self._grads)):
            for one, grad in self._made:
                one.grad = grad
        for holder, key, one, same in self.behind:
            bind(holder, key, mapped(one) if self._copies and not same else one)
        return mapped(self._result) if self._copies else self._result


@functools.cache
def _looking() -> Any:
    """What makes a compiled function that looks at places; None without microbench, or a library for this machine."""
    try:
        from microbench.core.c_library import library

        path = library(Path(__file__).with_name("looking.c"))
        made = ctypes.PyDLL(str(path)).looking if path is not None else None
    except (ImportError, OSError):
        made = None
    if made is None:
        return None
    made.restype, made.argtypes = ctypes.py_object, [ctypes.py_object]
    return made


def _own_copy(given: Any) -> Any:
    """A copy with the same strides, unless elements share memory."""
    if not isinstance(given, TENSOR):
        return given.copy(order="K")
    one = given.detach()
    try:
        own = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device).copy_(one)
    except RuntimeError:
        own = one.clone()
    return own.requires_grad_(given.requires_grad)


class Captured:
    """One captured call: what it returned, what launches its graph, and the memory that the graph uses. ``runs_in``
    makes a context in which CuPy's work keeps its order with the graph's, if that needs one.

    With PyTorch, ``torch.cuda.graph`` captures; in a stream of Numba or cuda.core cuda.core; else CuPy. Arrays that
    CuPy makes meanwhile come from a pool that only the graph has. ``cupy`` says whether the function may use it.
    """

    def __init__(self, call: Callable[[], Any], stream: Any = None, cupy: bool = True) -> None:
        self.runs_in: Any = None
        package = sys.modules.get("cupy")
        self._kept: list[Any] = []
        with contextlib.ExitStack() as within:
            if package is not None:  # also for libraries that use it
                self._kept.append(package.cuda.MemoryPool())
                within.enter_context(package.cuda.using_allocator(self._kept[0].malloc))
            if stream is None and package is None and torch is None:
                raise RuntimeError("no capture begins in the default stream: give each kernel the same other one")
            if uses_torch() or (stream is None and package is None):
                self._by_torch(call, package if cupy else None)
            elif stream is None or type(stream).__module__.startswith("cupy"):
                self._by_cupy(call, package, stream)
            else:
                self._by_core(call, package if cupy else None, stream)
        self._kept += _plans(package) if package is not None else []

    def _by_torch(self, call: Callable[[], Any], cupy: Any) -> None:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        more = {"capture_error_mode": "relaxed"} if cupy is not None else {}  # CuPy takes memory from the driver
        with contextlib.ExitStack() as after, contextlib.ExitStack() as failed:
            failed.callback(after_failure, stream)
            if is_autocast_enabled():  # what autocast around the call has cached goes when it ends
                after.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
                torch.set_autocast_cache_enabled(False)
            with torch.cuda.graph(graph, **more):
                of_torch = torch.cuda.current_stream()
                with of_cupy(of_torch), _nowhere_else(handle_of(of_torch)):
                    self.result = call()
            failed.pop_all()
        self.launch = graph.replay
        self.runs_in = (lambda: of_cupy(torch.cuda.current_stream())) if cupy is not None else None

    def _by_core(self, call: Callable[[], Any], cupy: Any, stream: Any) -> None:
        from cuda.core import Device

        device = Device()
        device.set_current()
        of_core = device.create_stream(stream)
        builder, of_cupys = of_core.create_graph_builder(), of_cupy(stream)
        with of_cupys, _numbas_memory(self._kept), _nowhere_else(handle_of(stream)), contextlib.ExitStack() as failed:
            failed.callback(builder.close)  # which ends what an error has broken
            builder.begin_building()
            self.result = call()
            builder.end_building()
            failed.pop_all()
        graph = builder.complete()
        self.launch = partial(graph.launch, of_core)
        self.runs_in = _in_turn(cupy, of_cupys) if cupy is not None else None

    def _by_cupy(self, call: Callable[[], Any], cupy: Any, stream: Any) -> None:
        capturing = stream if stream is not None else cupy.cuda.Stream()
        with capturing, _nowhere_else(handle_of(capturing)):
            capturing.begin_capture()
            try:
                self.result = call()
            finally:
                graph = capturing.end_capture()
        self.launch = graph.launch
        self.runs_in = _in_turn(cupy, stream) if stream is not None else None


def _plans(cupy: Any) -> list[Any]:
    """CuPy's plans of Fourier transforms, whose memory a graph uses, and which CuPy drops when others come."""
    cache = cupy.fft.config.get_plan_cache() if "cupy.fft" in sys.modules else ()
    return [node.plan for _, node in cache]


def _in_turn(cupy: Any, stream: Any) -> Callable[[], Any]:
    """Makes ``stream`` CuPy's current stream. Its work starts after the caller's, and ends before what the caller
    submits next."""
    begun, ended = cupy.cuda.Event(disable_timing=True), cupy.cuda.Event(disable_timing=True)

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        outside = cupy.cuda.get_current_stream()
        if outside.ptr == stream.ptr:
            yield
            return
        begun.record(outside)
        stream.wait_event(begun)
        with stream:
            yield
        ended.record(stream)
        outside.wait_event(ended)

    return turn


PATCHING = threading.RLock()  # of one thread at a time, or what is put back is not what was there


def _holds_host_array(one: Any) -> bool:
    """Whether an argument of a Numba kernel is an array of the host, also one to copy in or out, or within a tuple."""
    numpy, one = sys.modules["numpy"], getattr(one, "value", one)
    return isinstance(one, numpy.ndarray | numpy.void) or (isinstance(one, tuple) and any(map(_holds_host_array, one)))


@contextlib.contextmanager
def _nowhere_else(handle: int) -> Iterator[None]:
    """Refuse work of CuPy and Numba in other streams, which a capture in this one does not see, and arrays of the host
    as arguments of Numba's kernels, which it copies in each launch."""
    numba, cupy, thread = sys.modules.get("numba.cuda.dispatcher"), sys.modules.get("cupy"), threading.get_ident()

    def entering(real: Callable[..., Any]) -> Callable[..., Any]:
        def entered(stream: Any) -> Any:
            mine = threading.get_ident() == thread
            if mine and handle_of(stream) != handle and not stream.is_capturing():
                raise RuntimeError("it works in another stream, which the capture does not see")
            return real(stream)

        return entered

    def launching(real: Callable[..., Any]) -> Callable[..., Any]:
        def launched(configured: Any, *arguments: Any) -> Any:
            mine = threading.get_ident() == thread
            if mine and handle_of(configured.stream) != handle:
                raise RuntimeError("a kernel is launched in another stream, which the capture does not see")
            if mine and any(map(_holds_host_array, arguments)):
                raise RuntimeError("a kernel gets an array of the host, which is copied in each launch")
            return real(configured, *arguments)

        return launched

    kinds = {getattr(cupy.cuda, name) for name in ("Stream", "ExternalStream")} if cupy is not None else set()
    owners = {(next(each for each in kind.__mro__ if name in vars(each)), name)
              for kind in kinds for name in ("__enter__", "use") if hasattr(kind, name)}  # fmt: skip
    places = [(*place, entering) for place in owners]
    if numba is not None and hasattr(numba, "_LaunchConfiguration"):
        places.append((numba._LaunchConfiguration, "__call__", launching))
    with PATCHING, contextlib.ExitStack() as stack:
        for owner, name, changed in places:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, changed(getattr(owner, name)))
        yield


@contextlib.contextmanager
def _numbas_memory(kept: list[Any]) -> Iterator[None]:
    """Keep what Numba allocates meanwhile, or it would give that back while a graph writes to it."""
    cuda = sys.modules.get("numba.cuda")
    if cuda is None:
        yield
        return
    manager = cuda.current_context().memory_manager
    real = manager.memalloc

    def memalloc(size: int) -> Any:
        kept.append(real(size))
        return kept[-1]

    manager.memalloc = memalloc
    try:
        yield
    finally:
        del manager.memalloc


def of_cupy(stream: Any) -> Any:
    """Make a stream of another library CuPy's current one, if CuPy is there."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return contextlib.nullcontext()
    if hasattr(type(stream), "__cuda_stream__") and hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(handle_of(stream))


def uses_torch() -> bool:
    """Whether PyTorch has work on a GPU in this process."""
    return torch is not None and torch.cuda.is_initialized()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Another stream of PyTorch for a while, as a capture has one; CuPy's is the same."""
    if not uses_torch():
        yield
        return
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side), of_cupy(side):
        yield
    main.wait_stream(side)


def handle_of(stream: Any) -> int:
    """The CUDA stream of a stream object of a library; 0 for the default one."""
    if hasattr(type(stream), "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    known = [getattr(stream, name, 0) for name in ("cuda_stream", "ptr", "handle")]
    return int(next((getattr(one, "value", one) for one in known if one), 0) or 0)


def arrays() -> Any:
    """The class of CuPy's arrays, if the program has imported CuPy."""
    cupy = sys.modules.get("cupy")
    return (cupy.ndarray,) if cupy is not None else ()


def is_tensor(one: Any) -> bool:
    """Whether it is a tensor of PyTorch or an array of CuPy."""
    return isinstance(one, (*TENSOR, *arrays()))


def is_stream(one: Any) -> bool:
    """Whether it is a stream of CuPy, Numba or cuda.core."""
    kind = type(one)
    of_cupy_13 = kind.__name__.endswith("Stream") and kind.__module__.startswith("cupy")
    return of_cupy_13 or (hasattr(kind, "__cuda_stream__") and not kind.__module__.startswith("torch"))


def is_opaque(one: Any) -> bool:
    """Whether it is an object of Numba or CUDA Python, such as a kernel or an array: only its identity is looked at,
    and of how kernels are launched what is public."""
    return not isinstance(one, types.ModuleType) and type(one).__module__.startswith(("numba.cuda", "cuda."))


def on_gpu(one: Any) -> bool:
    """Whether a tensor is on a GPU, as CuPy's arrays are."""
    return bool(one.is_cuda) if isinstance(one, TENSOR) else True


def _laid(one: Any) -> Any:
    """Where a tensor's values are; of an array, whose shape may be set, how they lie, too."""
    return address(one) if isinstance(one, TENSOR) else (address(one), one.shape, one.strides)


def address(one: Any) -> int:
    """Where a tensor's values are."""
    return int(one.data_ptr() if isinstance(one, TENSOR) else one.data.ptr)


class Reads:
    """What a function reads from the host, found from the names in its code and in the code that it calls.

    These are globals, closure cells, entries and lengths of containers, context variables, variables of the
    environment, settings of optimizers, and attributes: of objects, classes, the user's modules, and layers within
    models. ``places`` are triples of a name, a holder and a key. Functions of libraries are not followed, methods of
    their objects are. ``left`` names what is not looked at, ``tensors`` are those that it reaches, of which the
    ``leading`` ones (by identity) stand for the others of their model. ``kept`` are tensors that objects of libraries
    hold, which their methods may bind anew.
    """

    def __init__(self, function: Any, arguments: Any = ()) -> None:
        self._names: set[str] = set()
        self._written: set[str] = set()
        self._root = function
        while True:  # until no code is found that names more
            known = len(self._names)
            self._found: dict[tuple[int, Any], tuple[str, Any, Any]] = {}
            self._seen: dict[tuple[int, frozenset[str]], Any] = {}
            self.left: dict[str, None] = {}
            self.tensors: dict[int, tuple[str, Any]] = {}
            self.streams: dict[int, Any] = {}  # of other libraries than PyTorch, by handle
            self.kept: list[Place] = []  # tensors that objects of libraries hold
            self.maybe: dict[tuple[int, Any], tuple[str, Any, Any]] = {}  # places that the function may bind anew
            self.states: set[tuple[int, Any]] = set()  # of these, tensors of optimizers, which facts() looks at
            self.behind: dict[tuple[int, Any], tuple[Any, Any]] = {}  # where it leaves what it does not read
            self._large: dict[int, tuple[str, Any]] = {}  # containers and arrays that only a capture looks at
            self.rebound: set[int] = set()  # what is at such places
            self.asked: set[str] = set()  # what code asks of objects: "is", "id", "len"
            self._own: list[tuple[str, Any]] = []  # functions and objects of the user's
            self._ordered: dict[int, tuple[str, dict[Any, Any]]] = {}
            self.leading: set[int] = set()
            self._layers: dict[int, tuple[str, Any]] = {}
            self._optimizers: dict[int, tuple[str, Any]] = {}
            self._within: set[int] = set()  # layers of layers
            self._waiting = deque([("", function, NONE), *((name, one, NONE) for name, one in _leaves(arguments))])
            self._waiting.extend(("a hook of all layers", hook, NONE) for hooks in OF_ALL for hook in hooks.values())
            while self._waiting and len(self._seen) < MOST_OBJECTS:
                name, one, more = self._waiting.popleft()
                if isinstance(one, TENSOR):
                    self._of_tensor(name, one)
                elif isinstance(one, arrays()):
                    self.tensors.setdefault(id(one), (name, one))
                elif not isinstance(one, SETTINGS) and (id(one), more) not in self._seen:
                    self._seen[id(one), more] = one  # kept, so that no other object gets its number
                    if is_stream(one):
                        self.streams.setdefault(handle_of(one), one)
                    elif not is_opaque(one):
                        self._visit(name, one, more)
                    elif type(one).__name__ == "LaunchConfig":
                        names = [key for key in dir(one) if key[0] != "_" and not callable(getattr(one, key))]
                        self._found[id(one), dir] = name, partial(operator.attrgetter(*names), one), CALLED
                    elif type(one).__name__ == "_LaunchConfiguration":  # kernel[grid, block, stream]
                        self._waiting.append((f"{name}.stream", one.stream, NONE))
            if self._waiting:
                self.left[f"what is beyond {MOST_OBJECTS} objects"] = None
            if len(self._names) == known:
                break
        self.places = list(self._found.values())

    def reached(self) -> Iterable[Any]:
        """All objects that were looked at."""
        return self._seen.values()

    def asks_shapes(self) -> bool:
        """Whether the code reads the shape, the type or the device of a tensor."""
        return bool(self.asked & {"len"} or self._names & SHAPES)

    def iterators(self) -> list[tuple[str, Any, Any]]:
        """The places of iterators whose ``__next__`` is not the user's."""
        return [place for place in self.places if _draws(now(*place[1:]))]

    def of_host(self, inputs: Iterable[Any] = ()) -> list[tuple[str, Any]]:
        """Tensors of the host that a replay does not copy again: the graph keeps their values."""
        reached = *self.tensors.values(), *((f"the input {place}", one) for place, one in enumerate(inputs))
        return [(name, one) for name, one in reached if not (on_gpu(one) or one.is_inference() or one.is_pinned())]

    def state(self, inputs: Iterable[Any]) -> dict[str, Any]:
        """What a call may change on the host without binding a name: its tensors' versions, entries, random numbers."""
        versions: dict[str, Any] = {name: _on_host(one) for name, one in self.of_host(inputs)}
        for name, one in self._large.values():
            parts = (one, one.values()) if isinstance(one, Mapping) else (one,)
            is_array = hasattr(type(one), "__array_interface__")
            versions[name] = hash(one.tobytes()) if is_array else [[*map(Same, tuple(each))] for each in parts]
        for name, *place in self.places:
            one = now(*place)
            if isinstance(one, io.IOBase) and not one.closed and one.seekable():
                try:
                    versions[f"the position in {name}"] = one.tell()
                except OSError:  # a loop reads its lines
                    versions[f"the position in {name}"] = object()
        return versions | host_random(self._seen.values())

    def values(self) -> list[Place]:
        """What is at the places that the function may bind anew."""
        return [(holder, key, now(holder, key), name) for name, holder, key in self.maybe.values()]

    def _packages(self) -> set[str]:
        """The names of the packages whose objects the function reaches."""
        reached = *self.reached(), *(one for _, one in self.tensors.values())
        of = (one.__name__ if isinstance(one, types.ModuleType) else type(one).__module__ for one in reached)
        return {str(name).partition(".")[0] for name in of}

    def has_kernels(self) -> bool:
        """Whether the function launches kernels that PyTorch does not see, which may compute with anything."""
        return torch is None or not KERNELS.isdisjoint(self._packages())

    def uses_cupy(self) -> bool:
        """Whether it reaches CuPy, or any array of it."""
        return not {"cupy", "cupyx"}.isdisjoint(self._packages())

    def streams_forbid(self, default: bool = True) -> str:
        """Why these streams forbid a capture, "" if they allow it. ``default`` says whether a default stream forbids it
        too: a function may wait for one, but a capture does not see its work."""
        own = [handle for handle in self.streams if handle > PER_THREAD]
        if self.streams and uses_torch():
            return "it uses a stream of another library beside PyTorch's, and a capture sees one"
        if default and len(own) < len(self.streams):
            return "it uses a default stream, in which no capture begins"
        return f"it uses {len(own)} streams, and a capture sees one" if len(own) > 1 else ""

    def gradients(self) -> list[tuple[str, Any, Any]]:
        """The leaves, with their gradients, if any code names a backward pass."""
        if not any("backward" in name for name in self._names):
            return []
        of_torch = [each for each in self.tensors.values() if isinstance(each[1], TENSOR)]
        return [(name, one, one.grad) for name, one in of_torch if one.is_leaf and one.requires_grad]

    def _learns(self) -> bool:
        return torch is not None and any("backward" in name or name == "grad" for name in self._names)

    def of_layers(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """What to look at if a change of layers, parameters or hooks was counted."""
        for name, one in self.tensors.values() if self._learns() else ():
            if isinstance(one, TENSOR):
                yield f"what {name} has for a gradient", partial(_learning, one)
        if self._layers:
            yield "the hooks of all layers", partial(_hooked, torch.nn.modules.module)
        for name, layer in self._layers.values():
            yield f"what {name} holds, or its hooks", partial(_held_by_layer, layer, self._names | {"forward"})
        for name, optimizer in self._optimizers.values():
            yield f"the hooks of {name}", partial(_hooked, optimizer)

    def facts(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """What is looked at in turn only: code, classes, orders of dictionaries, and tensors of optimizers."""
        if torch:
            yield "PyTorch's precision of products", torch.get_float32_matmul_precision
        for name, one in self._own:
            yield name, partial(_code if isinstance(one, types.FunctionType) else _kind, one)
        for name, each in self._ordered.values() if {"items", "values", "keys"} & self._names else ():
            yield f"the order of {name}", partial(_order, each)
        for name, optimizer in self._optimizers.values() if "step" in self._names else ():
            yield f"a tensor of {name}", partial(_tensors, optimizer)

    def _add(self, name: str, holder: Any, key: Any, more: frozenset[str] = NONE) -> None:
        """A place, and what is there: ``more`` are names that code of a library reads of it."""
        self._found.setdefault((id(holder), key), (name, holder, key))
        self._waiting.append((name, now(holder, key), more))

    def _visit(self, name: str, one: Any, more: frozenset[str]) -> None:
        kind: Any = type(one)
        if one is os.environ or one is os.getenv:
            self._found[0, "environ"] = "os.environ", ENVIRONMENT, CALLED
        elif isinstance(one, types.FunctionType):
            self._of_function(one)
        elif parts := _parts(name, one):
            self._waiting.extend((*part, NONE) for part in parts)
            if kind.__name__ == "Graphed":  # what is set on it is meant for the function
                for key in vars(one).keys() & self._names - {"function", "also", "options", "reasons"}:
                    self._add(f"{name}.{key}", vars(one), key)
        elif isinstance(one, contextvars.ContextVar):
            self._add(f"{name}.get()", partial(one.get, None), CALLED)
        elif isinstance(one, weakref.ref):
            self._add(f"{name}()", one, CALLED, more)
        elif isinstance(one, types.ModuleType | type):
            self._of_names(name, one)
        elif isinstance(one, types.MappingProxyType | collections.ChainMap | collections.UserDict):
            if len(one) <= MOST_ENTRIES:
                self._found[id(one), dict] = name, lambda: tuple(one.items()), CALLED
            else:
                self.left[f"{name}, of more than {MOST_ENTRIES} entries"] = None
                self._large[id(one)] = name, one
            self._waiting.extend((f"{name}[{key!r}]", value, more) for key, value in one.items())
            if _is_own(kind):
                self._of_object(name, one, more)
        elif isinstance(one, dict | list | tuple | set | deque):
            self._of_container(name, one, more)
            if kind not in (dict, list, tuple, set, deque) and _is_own(kind):
                self._of_object(name, one, more)
        elif isinstance(one, OPTIMIZER):
            self._of_optimizer(name, one, kind)
        else:
            self._of_object(name, one, more)

    def _of_names(self, name: str, one: types.ModuleType | type) -> None:
        """A module, or a class, and the class of that class."""
        if isinstance(one, types.ModuleType):
            if _is_own(one):
                self._of_attributes(name, vars(one), NONE)
        else:
            for each in filter(_is_own, (one, type(one))):
                self._of_class(name, one, each)
            if issubclass(one, enum.Enum) and _is_own(one):
                self._waiting.extend((f"{name}.{each.name}.value", each.value, NONE) for each in one)
        if _is_own(one) and {"getattr", "hasattr"} & self._names:  # what is not there may come
            self._found[id(one), len] = f"the attributes of {name}", vars(one).__len__, CALLED

    def _of_tensor(self, name: str, one: Any) -> None:
        if type(one) in PLAIN and one.layout is torch.strided and id(one) not in self.tensors:
            self.tensors[id(one)] = name, one
            if "." not in name:
                self.leading.add(id(one))
            self._of_attributes(name, vars(one), NONE)
            for each in (one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)):
                self._waiting.extend((f"a hook of {name}", hook, NONE) for hook in (each or {}).values())

    def _of_function(self, one: types.FunctionType) -> None:
        if by_type := getattr(one, "registry", {}).values():  # of functools.singledispatch
            self._own.append((f"what {one.__name__} is registered for", one))
        self._waiting.extend(("", each, NONE) for each in (getattr(one, "__wrapped__", None), *by_type))
        typed = one.__code__.co_filename[:1] == "<" and one.__globals__.get("__name__") == "__main__"
        if of_library(one.__code__) and not typed and one is not self._root:
            return
        self._own.append((f"the code of {one.__name__}", one))
        read, written, known = _named(one.__code__)
        self.asked |= (known & {"len", "id"}) | (read & {"is"})
        self._names |= read | ({"__dict__"} if "vars" in known else NONE) | (known & BY_NAME)
        self._written |= written
        for name in _stored(one.__code__) - known:
            self.behind[id(one.__globals__), name] = one.__globals__, name
        for name in known:
            package = f"{one.__globals__.get('__package__')}."
            parents = [package[: place + 1] for place, each in enumerate(package) if each == "."]
            imported = next(filter(None, (sys.modules.get(each + name) for each in ("", *reversed(parents)))), None)
            value = one.__globals__.get(name, imported)
            if name in one.__globals__:
                self._add(name, one.__globals__, name)
            elif isinstance(value, types.ModuleType | type):
                self._waiting.append((name, value, NONE))
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=False):
            self._add(name, cell, "cell_contents")
        for each in (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()):
            self._waiting.append((f"{one.__name__}.default", each, NONE))
        for defaults in (one.__kwdefaults__ or {}, Defaults(one)):
            for key, each in defaults.items() if isinstance(defaults, dict) else enumerate(defaults):
                if _draws(each):
                    self._found[id(one), key] = f"a default of {one.__name__}", defaults, key
        self._of_attributes(one.__name__, vars(one), NONE)
        if {"getattr", "hasattr"} & self._names:
            self._found[id(vars(one)), len] = f"the attributes of {one.__name__}", vars(one).__len__, CALLED
        if {"environ", "getenv"} & {*read, *known}:
            self._found[0, "environ"] = "os.environ", ENVIRONMENT, CALLED

    def _of_optimizer(self, name: str, one: Any, kind: Any) -> None:
        self._optimizers[id(one)] = name, one
        for key, hooks in vars(one).items():
            if key.endswith("_hooks") and isinstance(hooks, dict):
                self._waiting.extend((f"a hook of {name}", hook, NONE) for hook in hooks.values())
        for number, state in enumerate(one.state.values()):
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, numbers.Number):  # an optimizer of one's own may count its steps so
                    self._found[id(state), key] = f"{name}.state[{number}][{key!r}]", state, key
                elif isinstance(value, TENSOR):
                    self.maybe[id(state), key] = f"{name}.state[{number}][{key!r}]", state, key
                    self.states.add((id(state), key))
        for key, each in (("param_groups", one.param_groups), ("state", one.state)):
            self._found[id(each), len] = f"len({name}.{key})", each.__len__, CALLED
        for key in ("param_groups", "state"):  # load_state_dict() binds others
            self._found.setdefault((id(vars(one)), key), (f"{name}.{key}", vars(one), key))
        for number, group in enumerate(one.param_groups):
            if "get" in self._names:  # what is not there may come
                self._found[id(group), len] = f"len({name}.param_groups[{number}])", group.__len__, CALLED
            for key in group:
                if key != "params":
                    self._add(f"{name}.param_groups[{number}][{key!r}]", group, key)
        if _is_own(kind):
            for key in [each for each in vars(one) if each in self._names and each not in OF_OPTIMIZERS]:
                self._add(f"{name}.{key}", vars(one), key)
            self._of_class(name, one, kind)

    def _of_container(self, name: str, one: Any, more: frozenset[str]) -> None:
        # No code that is followed writes to any, or binds another one in its place.
        fixed = not self._written & CHANGING and not more and id(one) not in self.rebound
        if type(one) is not tuple and (not more or isinstance(one, list | deque)):
            self._found[id(one), len] = f"len({name})", one.__len__, CALLED
        if not more and isinstance(one, set | deque) and len(one) <= MOST_ENTRIES:
            copied = frozenset if isinstance(one, set) else tuple
            self._found[id(one), copied] = name, partial(copied, one), CALLED
        if isinstance(one, set):
            self._large.update({id(one): (name, one)} if len(one) > MOST_ENTRIES and not more else {})
            self._waiting.extend((f"an element of {name}", each, more) for each in one)
            return
        entries: list[tuple[Any, Any]] = list(one.items() if isinstance(one, dict) else enumerate(one))
        if len(one) > MOST_ENTRIES:
            self.left[f"{name}, of more than {MOST_ENTRIES} entries"] = None
            self._large.update({id(one): (name, one)} if not more else {})
            entries = [each for each in entries if each[0] in self._names or each[0] in more]
        if isinstance(one, dict) and not more and len(one) <= MOST_ENTRIES:
            self._ordered[id(one)] = name, one
        for number, (key, value) in enumerate(entries):
            named = f"{name}[{number if isinstance(key, TENSOR) else repr(key)}]"
            if isinstance(one, dict | list) and (fixed or isinstance(value, LOOKED)):
                self._add(named, one, key, more)
            else:
                if isinstance(one, dict | list) and not more:
                    self.maybe[id(one), key] = named, one, key
                self._waiting.append((named, value, more))

    def _of_attributes(
        self,
        name: str,
        one: dict[str, Any],
        more: frozenset[str],
        layer: type[str] | None = None,
        every: bool = False,
        theirs: frozenset[str] | None = None,
    ) -> None:
        """The entries of an object's or a module's dictionary that code names; those that only a library's code names,
        and what code binds anew, only if they are settings. Of a layer, ``layer`` makes the keys. What is there is a
        library's if ``theirs`` has the key: by default all of ``more``."""
        theirs = more if theirs is None else theirs
        for key in [each for each in one if each in self._written and each not in self._names]:
            self.behind[id(one), key] = one, key
        for key in [each for each in one if every or each in self._names or each in more]:
            if layer and (key in OF_LAYERS or (key == "training" and "." in name and key not in more)):
                continue
            value, named = one[key], f"{name}.{key}"
            fixed = (every or key in self._names) and key not in self._written and id(one) not in self.rebound
            if isinstance(value, LOOKED) or fixed:
                self._add(named, one, layer(key) if layer else key, more if key in theirs else NONE)
            else:
                if key in self._names or _are_numbers(value):
                    self.rebound |= {id(value), id(getattr(value, "__dict__", value))}
                    self.maybe[id(one), key] = named, one, layer(key) if layer else key
                elif is_tensor(value) and not layer:
                    self.kept.append((one, key, value, named))
                self._waiting.append((named, value, more if key in theirs else NONE))

    def _of_object(self, name: str, one: Any, more: frozenset[str]) -> None:
        kind: Any = type(one)
        if isinstance(one, Iterator) and not isinstance(one, weakref.ProxyTypes):
            self.left[f"what the iterator {name} yields"] = None
        if hasattr(kind, "__array_interface__"):
            if one.size <= MOST_ENTRIES:
                self._found[id(one), bytes] = name, one.tobytes, CALLED
            else:
                self.left[f"the host's array {name}"] = None
                bytes_ = one.nbytes + sum(getattr(each, "nbytes", 0) for _, each in self._large.values())
                self._large.update({id(one): (name, one)} if bytes_ < MOST_BYTES else {})
        if isinstance(one, BYTES):
            if len(bytes(one)) <= 8 * MOST_ENTRIES or isinstance(one, bytearray | array.array):
                self._found[id(one), bytes] = name, partial(bytes, one), CALLED
            else:
                self.left[f"the host's memory {name}"] = None
        if not all(_is_own(each) for each in kind.__mro__ if each not in (object, *MODULE)):
            named = self._names & {*dir(kind)}  # if none, a library's code calls its methods: any of them
            called = frozenset(named or ([] if isinstance(one, MODULE) else dir(kind)))
            theirs, more = more | _method_names(kind, called, own=False), more | _method_names(kind, called)
        else:
            theirs = more
        attributes = getattr(one, "__dict__", {})
        if isinstance(one, MODULE):
            self._of_layer(name, one, more, theirs)
        else:
            if _is_own(kind) or not more:  # no object of a library's, which may add to itself
                self._found[id(attributes), len] = f"the attributes of {name}", attributes.__len__, CALLED
            holds_values = not _is_own(kind) or hasattr(kind, "__dataclass_fields__")
            made_names = "__dict__" in self._names or (holds_values and BY_NAME & self._names)
            self._of_attributes(name, attributes, more, every=bool(made_names), theirs=theirs)
            self._waiting.append((name, attributes.get("__wrapped__"), NONE))
        for each in kind.__mro__:
            for key, member in vars(each).items():
                known = key in self._names or key in more
                if isinstance(member, types.MemberDescriptorType) and known:
                    with contextlib.suppress(AttributeError):  # nothing is there
                        member.__get__(one, kind)
                        self._add(f"{name}.{key}", one, key, more)
        if _is_own(kind):
            self._own.append((f"the class of {name}", one))
            self._of_class(name, one, kind, more)
            if {"getattr", "hasattr"} & self._names:
                self._found[id(kind), len] = f"the attributes of {kind.__name__}", vars(kind).__len__, CALLED

    def _of_layer(self, name: str, one: Any, more: frozenset[str], theirs: frozenset[str]) -> None:
        kind: Any = type(one)
        attributes = vars(one)
        if isinstance(one, torch.jit.ScriptModule):
            for part, each in one.named_modules():
                self._found[id(each), "training"] = (
                    f"{name}.{part}.training",
                    partial(getattr, each, "training"),
                    CALLED,
                )
            self.left[f"the settings of {name}, which is compiled"] = None
            self._waiting.extend((f"{name}.{key}", each, NONE) for key, each in one.state_dict(keep_vars=True).items())
            return
        methods = kind.__setattr__, kind.__delattr__
        bound = Part if methods == (torch.nn.Module.__setattr__, torch.nn.Module.__delattr__) else str
        WATCHED.add(id(one))
        self._layers[id(one)] = name, one
        self._of_attributes(name, attributes, more, layer=bound, theirs=theirs)
        if _is_own(kind) and ("." not in name or "training" in self._names):
            self._add(f"{name}.training", attributes, bound("training"))
        for part in ("_parameters", "_buffers", "_modules"):
            for key, value in attributes[part].items():
                sure = key not in self._written and (key in self._names or part != "_buffers")
                places = self._found if sure else self.maybe
                places[id(attributes[part]), key] = f"{name}.{key}", attributes[part], Part(key)
                self._waiting.append((f"{name}.{key}", value, NONE))
        self._within |= {id(each) for each in attributes["_modules"].values()}
        if "forward" in attributes:  # it was patched
            self._found[id(attributes), "forward"] = f"{name}.forward", attributes, bound("forward")
        if isinstance(one, torch.nn.Sequential | torch.nn.ModuleList):  # which bind others when one is taken out
            self._found[id(attributes), "_modules"] = f"the layers of {name}", attributes, bound("_modules")
        first = next((each for each in one.parameters() if type(each) in PLAIN), None)
        if id(one) not in self._within and first is not None:
            self.leading.add(id(first))
            if (storage := first.untyped_storage()) is first.untyped_storage():  # to() moves it
                self._found[id(first), CALLED] = f"the memory of {name}", first.untyped_storage, CALLED
            del storage
            parts = [(name, one), *((f"{name}.{key}", each) for key, each in one.named_children())]
            for part, each in parts[: EACH + 1] if self._learns() else ():  # the others are looked at in turn
                for key, leaf in itertools.islice(each.named_parameters(), 1):
                    learns = f"{part}.{key}.requires_grad", partial(getattr, leaf, "requires_grad"), CALLED
                    self._found[id(leaf), "requires_grad"] = learns
        hooks = [attributes[each] for each in OF_LAYERS if each.endswith("_hooks")]
        self._waiting.extend((name, each, NONE) for part in hooks for each in part.values())

    def _of_class(self, name: str, holder: Any, kind: Any, more: frozenset[str] = NONE) -> None:
        """What code names of a user's class: as the holder has it, which is the class or an object of it. A library's
        code calls the methods in ``more``."""
        own = () if holder is kind else getattr(holder, "__dict__", ())
        for each in filter(_is_own, kind.__mro__):
            for key, value in list(vars(each).items()):
                function = _inner(value)
                if isinstance(function, types.FunctionType):
                    named = key in self._names or key in CALLS or key in more
                    if named or (key[:2] == "__" and key not in MAKING) or (holder is kind and key in NEW):
                        self._waiting.append((name, value, NONE))
                    if named and isinstance(value, types.FunctionType | staticmethod | property):
                        self._found[id(kind), key] = f"{name}.{key}", kind, key
                    elif named:
                        self._found[id(each), key] = f"{name}.{key}", partial(vars(each).get, key), CALLED
                elif key in self._names and isinstance(kind, enum.EnumMeta):
                    continue
                elif key in self._names and hasattr(value, "__get__"):
                    self._found[id(each), key] = f"{name}.{key}", partial(vars(each).get, key), CALLED
                    self._waiting.append((f"{name}.{key}", value, NONE))
                elif key in self._names and key not in own:
                    self._add(f"{name}.{key}", kind if isinstance(holder, dict | list) else holder, key)


class Part(str):
    """A key of a layer's dictionaries: what setattr() or a method of torch.nn.Module binds there is counted."""

    __slots__ = ()


def _count(layer: Any, *_: Any) -> None:
    if not torch.compiler.is_compiling() and id(layer) in WATCHED:  # or torch.compile would compile anew
        BOUND[0] += 1


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(layer: Any, *given: Any, **named: Any) -> Any:
        try:
            return method(layer, *given, **named)
        finally:
            _count(layer)

    functools.update_wrapper(called, method)
    called.__code__ = called.__code__.replace(co_name=method.__name__)  # torch.compile knows methods by their code
    return called


def _removing(remove: Callable[[Any], None]) -> Callable[[Any], None]:
    def removed(handle: Any) -> None:
        remove(handle)
        BOUND[0] += 1

    return functools.update_wrapper(removed, remove)


BOUND, WATCHED = [0], set[int]()  # how often a layer that a graph looks at has changed
# What counts hooks.
HOOKS: Any = torch.utils.hooks.RemovableHandle if torch else types.SimpleNamespace(next_id=0)
if torch:
    for each in ("module", "parameter", "buffer"):
        getattr(torch.nn.modules.module, f"register_module_{each}_registration_hook")(_count)
    for each in ("__setattr__", "__delattr__", "requires_grad_"):
        setattr(torch.nn.Module, each, _counted(getattr(torch.nn.Module, each)))
    HOOKS.remove = _removing(HOOKS.remove)


def _alike(value: Any) -> Any:
    return type(value), *((value.shape, value.dtype, value.device) if is_tensor(value) else ())


def _like(kind_of: Callable[[Any], Any], holder: Any, key: Any) -> Any:
    return kind_of(now(holder, key))


def _same(get: Callable[[], Any], value: Any) -> bool:
    return bool(get() == value)


def _hooked(of: Any) -> Any:
    hooks = [value for key, value in vars(of).items() if key.endswith("_hooks") and isinstance(value, dict)]
    return [[*map(Same, each.values())] for each in hooks if each]


def _held_by_layer(layer: Any, names: set[str]) -> Any:
    own = vars(layer)
    parts = own["_parameters"], own["_buffers"], own["_modules"]
    order = [*own["_modules"]] if isinstance(layer, torch.nn.ModuleDict) else ()
    return type(layer), own.keys() & names, [*map(len, parts)], order, _hooked(layer)


def _order(of: dict[Any, Any]) -> Any:
    return held(tuple(of))


def _learning(one: Any) -> Any:
    hooks, others = one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)
    return one.requires_grad, [*map(Same, (hooks or {}).values())], [*map(Same, (others or {}).values())]


def _code(of: types.FunctionType) -> Any:
    registered, named = len(getattr(of, "registry", ())), tuple((of.__kwdefaults__ or {}).items())
    return held((of.__code__, of.__defaults__, named)), registered


def _kind(of: Any) -> Any:
    return type(of), Same(getattr(of, "__dict__", None))


def _tensors(of: Any) -> Any:
    """Those of its groups and its state."""
    state = (value for each in of.state.values() for value in (each.values() if isinstance(each, dict) else ()))
    return [
        Same(each)
        for each in (*state, *(one for group in of.param_groups for one in group["params"]))
        if isinstance(each, TENSOR)
    ]


def _on_host(one: Any) -> Any:
    """What tells that a tensor of the host has other values: these, or its version if they are many."""
    return tuple(one.flatten().tolist()) if one.numel() <= MOST_ENTRIES else one._version


class Defaults(list[Any]):
    """The defaults of a function, which has what is set here."""

    def __init__(self, function: types.FunctionType) -> None:
        super().__init__(function.__defaults__ or ())
        self._function = function

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._function.__defaults__ = tuple(self)


class Observed(TorchDispatchMode):  # type: ignore[misc]
    """Notes which values a call computes with, of those at places that it may bind anew: state, and no log."""

    def __init__(self, places: list[Place]) -> None:
        super().__init__()
        # Kept, so that no other memory gets their numbers.
        self._values = {(id(holder), key): now(holder, key) for holder, key, *_ in places}
        self._of = {place: _storages(one) for place, one in self._values.items() if not isinstance(one, WHOLE[1:])}
        self._used: set[int] = set()

    def __enter__(self) -> Any:
        return super().__enter__() if self._of else self

    def __exit__(self, *raised: Any) -> None:
        if self._of:
            super().__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._used |= _storages((args, kwargs))
        return func(*args, **(kwargs or {}))

    def returned(self, result: Any) -> None:
        """What is returned is read, too."""
        self._used |= _storages(result)

    @property
    def unread(self) -> set[tuple[int, Any]]:
        """The places whose values were not computed with."""
        return {place for place, storages in self._of.items() if storages and not storages & self._used}


def _storages(value: Any, within: int = 8) -> set[int]:
    """Identities of the memory of all tensors in a value, also within containers and objects."""
    if isinstance(value, TENSOR):
        return {value.untyped_storage()._cdata} if value.layout is torch.strided else set()
    if isinstance(value, arrays()):
        return {value.data.mem.ptr}
    found, waiting, seen = set[int](), [value], dict[int, Any]()
    for _ in range(within):
        these, waiting = waiting, []
        for one in these:
            if is_tensor(one):
                found |= _storages(one)
            elif not isinstance(one, (*SETTINGS, *WHOLE)) and id(one) not in seen:
                seen[id(one)] = one
                inner = one if isinstance(one, tuple | list | dict) else vars(one) if holds(one) else ()
                waiting += inner.values() if isinstance(inner, dict) else inner
    return found


class Drawn:
    """Stands for an iterator during a capture, and counts what is ``taken`` from it."""

    def __init__(self, name: str, holder: Any, key: Any) -> None:
        self.name, self.place, self.taken, self.given = name, (holder, key), 0, now(holder, key)
        bind(holder, key, self)

    def __iter__(self) -> Drawn:
        return self

    def __next__(self, *_: Any) -> Any:
        self.taken += 1
        return self.given() if isinstance(self.given, types.MethodWrapperType) else next(self.given)

    __call__ = __next__

    def __getattr__(self, name: str) -> Any:
        self.taken += 1
        return getattr(self.given, name)


def _draws(one: Any) -> bool:
    """Whether it gives another value each time: an iterator, or its ``__next__``, but not one of the user's."""
    if isinstance(one, types.MethodWrapperType) and one.__name__ == "__next__":
        one = one.__self__
    if isinstance(one, io.IOBase) and (one.closed or one.seekable() or not one.readable()):
        return False  # see state(); or a stream that is only written to, such as a logger's
    return isinstance(one, Iterator) and not isinstance(one, weakref.ProxyTypes) and not _is_own(type(one))


def host_random(values: Iterable[Any] = ()) -> dict[str, Any]:
    """The states of the host's random numbers, and of those generators among values, by what draws them."""
    states: dict[str, Any] = {}
    for one in values:
        if isinstance(one, random.Random):
            system = isinstance(one, random.SystemRandom)  # which has no state
            states[f"a {type(one).__name__}, {id(one):#x}"] = object() if system else one.getstate()
        else:
            kind = type(one)
            name = "bit_generator" if hasattr(kind, "bit_generator") else "_bit_generator"
            drawing: Any = getattr(one, name, None) if hasattr(kind, name) else None
            if hasattr(type(drawing), "state"):
                states[f"a {kind.__name__}, {id(one):#x}"] = str(drawing.state)
    states["random"] = random.getstate()
    if torch:
        states["torch (host)"] = bytes(torch.get_rng_state().tolist())
    if (numpy := sys.modules.get("numpy")) is not None:
        drawn = numpy.random.get_state()
        states["numpy.random"] = drawn[1].tobytes(), drawn[2]
    return {f"random numbers of {name}": state for name, state in states.items()}


def bind(holder: Any, key: Any, value: Any) -> None:
    """Set a value where the function reads it: a global, cell, entry, attribute, or context variable."""
    if isinstance(holder, dict | list):
        holder[key] = value
    elif key is CALLED:
        variable = getattr(getattr(holder, "func", None), "__self__", None)
        if isinstance(variable, contextvars.ContextVar):
            variable.set(value)
    elif isinstance(holder, types.CellType):
        holder.cell_contents = value
    else:
        kinds = *(holder.__mro__ if isinstance(holder, type) else ()), *type(holder).__mro__
        owner = next(each for each in kinds if key in vars(each))
        if isinstance(vars(owner)[key], types.MemberDescriptorType):
            object.__setattr__(holder, key, value)
        else:
            setattr(owner, key, value)


class Environment:
    """The variables of the environment: the same copy as long as they are the same."""

    def __init__(self) -> None:
        self._copy: dict[Any, Any] = {}

    def __call__(self) -> dict[Any, Any]:
        if os.environ._data != self._copy:  # type: ignore[attr-defined]
            self._copy = dict(os.environ._data)  # type: ignore[attr-defined]
        return self._copy


ENVIRONMENT = Environment()


def _parts(name: str, one: Any) -> list[tuple[str, Any]]:
    """What is called where this is called, with what is bound to it; empty if it is no function of that kind."""
    if isinstance(one, partial):
        return [(name, each) for each in (one.func, *one.args, one.keywords)]
    if isinstance(one, types.MethodType):
        return [(name, one.__func__), (name or "self", one.__self__)]
    if isinstance(one, types.BuiltinMethodType) and not isinstance(one.__self__, types.ModuleType | None):
        return [(name, one.__self__)]
    if isinstance(one, staticmethod | classmethod | property | functools.cached_property):
        return [(name, _inner(one))]
    return [(name, one.function)] if type(one).__name__ == "Graphed" else []


def _leaves(value: Any, name: str = "argument") -> Iterator[tuple[str, Any]]:
    """The objects among arguments, whose identity a call is told by."""
    if isinstance(value, tuple | list | dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, f"{name}[{key!r}]")
    elif type(value) in OPEN:
        yield from _leaves((type(value), vars(value)), name)
    elif not isinstance(value, SETTINGS) and not is_tensor(value):
        yield name, value


def opened(before: dict[str, Any], arguments: Any, function: Any) -> bool:
    """Note the objects of data in a call's arguments in ``before``, and tell whether that opens a class.

    A class is OPEN once ANEW different objects have come, unless the function may compare them.
    """
    found: set[type] = set()
    for name, one in _leaves(arguments) if len(before) <= MOST_ENTRIES else ():
        seen = before.setdefault(name, []) if _is_data(one) else None
        if seen is None or (seen and seen[-1] is one):
            continue
        first = len(seen) < ANEW and not any(one is each for each in seen)
        before[name] = [*seen, one] if first else None  # no more are kept
        found |= {type(one)} if first and len(seen) == ANEW - 1 else set()
    OPEN.update(found := found - apart(function) if found else found)
    return bool(found)


def apart(function: Any) -> set[type]:
    """The classes of objects that a function reaches without its arguments. It may compare an argument with these."""
    reads = Reads(function)
    skipped = set() if reads.asked & {"is", "id"} else reads.rebound  # what it keeps of calls, if it compares nothing
    reached = [one for one in reads.reached() if id(one) not in skipped]
    reached += [now(*place) for _, *place in reads.places]
    keys = (key for one in reached if isinstance(one, dict | set | frozenset) for key in one)
    return {type(one() if isinstance(one, weakref.ref) else one) for one in (*reached, *keys)}


def _is_data(one: Any) -> bool:
    """Whether it is an object of tensors and settings alone."""
    inner, kinds = getattr(one, "__dict__", {}), [each for each in type(one).__mro__ if each not in BLANK]
    if isinstance(one, WHOLE) or any(
        isinstance(part, types.MemberDescriptorType) for each in kinds for part in vars(each).values()
    ):
        return False
    try:
        blank(type(one))
    except TypeError:  # a class of C, whose objects hold more
        return False
    return not any(_leaves(inner)) and _has_tensors([inner])


BLANK = types.SimpleNamespace, object


def blank(kind: Any) -> Any:
    """An object of a class of data, without attributes."""
    return next(each for each in BLANK if issubclass(kind, each)).__new__(kind)


@functools.cache
def _named(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """What code, and code within it, names: attributes and texts that it reads, attributes that it writes, globals."""
    keywords, before = set[Any](), None  # names of arguments, which are no attributes
    for one in dis.get_instructions(code):
        if one.opname in ("KW_NAMES", "CALL_KW"):
            keywords.add(code.co_consts[one.arg or 0] if one.opname == "KW_NAMES" else before and before.argval)
        before = one
    of_tuples = (part for part in code.co_consts if isinstance(part, tuple | frozenset) and part not in keywords)
    constants = itertools.chain(code.co_consts, *of_tuples)
    read: set[str] = {each for each in constants if isinstance(each, str) and each.isidentifier()}
    written, known = set[str](), set[str]()
    for one in dis.get_instructions(code):
        if one.opname in ("STORE_ATTR", "DELETE_ATTR"):
            written.add(one.argval)
        elif one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            written.add("__setitem__")
        elif one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
            known.add(one.argval)
        elif one.opname in ("IS_OP", "CONTAINS_OP"):
            read.add("is")  # no attribute has this name
        elif one.opname == "MATCH_CLASS":
            read.add("__match_args__")
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"):
            read.add(one.argval)
            known |= {one.argval} if one.opname == "IMPORT_FROM" else NONE
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            for names, more in zip((read, written, known), _named(each), strict=True):
                names |= more
    return frozenset(read), frozenset(written | (read & CHANGING)), frozenset(known)


@functools.cache
def _stored(code: types.CodeType) -> frozenset[str]:
    """The names of the globals that a function assigns, also in functions within it."""
    within = (_stored(each) for each in code.co_consts if isinstance(each, types.CodeType))
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}
    return frozenset(own.union(*within))


@functools.cache
def _method_names(kind: type, called: frozenset[str], own: bool = True) -> frozenset[str]:
    """What the methods of a library's class, and of the user's ``own`` that derives from it, read by name: those that
    are called and those that they call."""
    methods: dict[str, list[types.CodeType]] = {}
    for each in kind.__mro__:
        if each not in (object, *MODULE) and (own or not _is_own(each)):
            for key, value in vars(each).items():
                if isinstance(function := _inner(value), types.FunctionType):
                    methods.setdefault(key, []).append(function.__code__)
    waiting = [key for key in methods if key in called or key in FORWARD or (key[:2] == "__" and key not in MAKING)]
    names, done = set[str](), set[str]()
    while waiting:
        key = waiting.pop()
        if key not in done:
            done.add(key)
            found = {name for code in methods[key] for name in _named(code)[0]}
            names |= found
            waiting += [name for name in found if name in methods]
    return frozenset(names)


def _inner(value: Any) -> Any:
    """The function of a method, a property or a decorated one."""
    for name in ("fget", "func", "__func__"):
        value = getattr(value, name, None) or value
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value


@functools.cache
def _is_own(one: Any) -> bool:
    """Whether a class or a module is the user's: of no library, and not Python's."""
    module = isinstance(one, types.ModuleType)
    name = one.__name__ if module else one.__module__
    first = name.partition(".")[0]
    if first in sys.builtin_module_names:
        return False
    known = (one if module else sys.modules.get(name)), sys.modules.get(first)  # neither, if loaded without a name
    return not any(_in_library(getattr(each, "__file__", None) or "") for each in known)


def _in_library(file: str) -> bool:
    return file.startswith((*LIBRARIES, "<")) or "-packages" in file


def of_library(code: types.CodeType) -> bool:
    """Whether code belongs to Python or to an installed package."""
    return _in_library(code.co_filename)


def now(holder: Any, key: Any) -> Any:
    """The value that a holder has now: an entry, an attribute, or what it returns; None if there is none."""
    try:
        if isinstance(holder, dict):
            return dict.get(holder, key)
        return holder[key] if isinstance(holder, list) else holder() if key is CALLED else getattr(holder, key)
    except (LookupError, AttributeError, ValueError):  # such as an empty cell
        return None


def _are_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, such as the learning rates of a scheduler."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, numbers.Number) for each in value)


def held(value: Any) -> Any:
    """A value as it is compared: plain ones by type and value, all else by identity."""
    if type(value) in SCALARS or isinstance(value, numbers.Number):
        return plain(value)
    if isinstance(value, tuple):
        return type(value), tuple([held(each) for each in value])
    if isinstance(value, types.MethodType):
        return Same(value.__func__), Same(value.__self__)
    return (type(value), value) if isinstance(value, SETTINGS) else Same(value)


def _held(get: Callable[[], Any]) -> Any:
    return held(get())


def _other(places: list[Place], first: int, last: int) -> str:
    """The name of the first place whose value is not as it was. Equal values take its place: identity is faster."""
    for number, (holder, key, value, name) in enumerate(places[first:last], first):
        found = now(holder, key)
        if found is not value:
            if held(found) != held(value):
                return name
            places[number] = holder, key, found, name
    return ""


class Same:
    """Equal only to itself; it keeps the object alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def renew(tensors: Iterable[Any]) -> None:
    """Make PyTorch drop the nodes that add up the gradients of these leaves. The next backward pass makes new ones.

    A result of an earlier call, such as a loss that is kept, keeps the old nodes alive. They run in that call's stream,
    and a capture fails if this is the default stream. Nodes that a Python object holds, or that belong to one of
    several processes, may have hooks; they stay.
    """
    if torch is None or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    held = {id(getattr(one, "variable", None)) for one in gc.get_objects() if type(one).__name__ == "AccumulateGrad"}
    for one in tensors:
        if (
            isinstance(one, TENSOR)
            and one.is_leaf
            and one.requires_grad
            and one.layout is torch.strided
            and id(one) not in held
        ):
            data = one.data
            try:  # PyTorch drops the node of a tensor whose type changes
                one.data = data.new_empty(0, dtype=torch.float32 if data.dtype is torch.float64 else torch.float64)
            finally:
                one.data = data


def after_failure(stream: Any) -> None:
    """After a capture that failed: back to the stream, and random numbers are no longer a graph's."""
    torch.cuda.set_stream(stream)
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def marked(one: Any) -> Any:
    """What shows later that a tensor was written to: its version, or a copy where inference mode or CuPy keeps none."""
    if not isinstance(one, TENSOR):
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()  # other streams may write to it
        return one.copy()
    return one.clone() if one.is_inference() else one._version


def was_written(one: Any, mark: Any) -> bool:
    """Whether a tensor was written to since it was marked."""
    if not isinstance(one, TENSOR):
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()
        return not sys.modules["cupy"].array_equal(one, mark, equal_nan=one.dtype.kind in "fc")
    return not torch.equal(one, mark) if isinstance(mark, TENSOR) else bool(one._version != mark)


def _autocast() -> Any:
    return is_autocast_enabled() and torch.get_autocast_dtype("cuda")


MODES = (get_default_dtype, is_grad_enabled, _autocast) if torch else ()


def _modes() -> Any:
    return tuple([get() for get in MODES])


def plain(value: Any) -> Any:
    """A scalar as it is compared: by type and value, and 0.0 is not -0.0."""
    return (type(value), value) if value else (type(value), value, repr(value))


def described(value: Any, tensors: list[Any]) -> Any:
    """What must be equal for a graph to fit; the tensors within are added to ``tensors``."""
    kind = type(value)
    if kind in PLAIN or (kind is not tuple and isinstance(value, TENSOR)):
        tensors.append(value)
        of = value.shape, value.stride(), value.dtype, value.device, value.requires_grad
        return of if kind in PLAIN and (value.is_leaf or not of[-1]) else (*of, kind, value.is_leaf)
    if kind is tuple or isinstance(value, SEQUENCES):
        parts = []
        for each in value:
            if type(each) in PLAIN and not each.requires_grad:  # as above, without a call
                tensors.append(each)
                parts.append((each.shape, each.stride(), each.dtype, each.device, False))
            else:
                parts.append(described(each, tensors))
        return kind, tuple(parts), () if kind in (tuple, list) else _marks(value)
    if isinstance(value, SCALARS):
        return plain(value) if kind in SCALARS else (plain(value), _marks(value))
    if isinstance(value, arrays()):
        tensors.append(value)
        return kind, value.shape, value.strides, value.dtype, value.device.id
    if isinstance(value, dict):
        return kind, tuple([(key, described(each, tensors)) for key, each in value.items()])
    if isinstance(value, (*SETTINGS, types.MethodType)):  # another object each time
        return held(value)
    return (kind, described(vars(value), tensors)) if kind in OPEN else Same(value)


def _marks(value: Any) -> Any:
    """The plain attributes of a value of a class that derives from a plain one."""
    own = getattr(value, "__dict__", None)
    return tuple([(key, plain(each)) for key, each in own.items() if isinstance(each, SCALARS)]) if own else ()


def _twins(tensors: list[Any]) -> tuple[int, ...]:
    """For each input: the number of the first input that is the same tensor."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(one), place) for place, one in enumerate(tensors)])


def mapped(value: Any, tensor: Callable[[], Any] | None = None, detached: bool = False) -> Any:
    """The same structure with other tensors, or with copies of its own, or with its own without a gradient."""
    if isinstance(value, TENSOR):
        own = value.detach()
        return tensor() if tensor is not None else own if detached else own.clone()
    if isinstance(value, arrays()):
        return tensor() if tensor is not None else value if detached else value.copy(order="K")
    kind: Any = type(value)
    if isinstance(value, tuple | list):
        items = [mapped(each, tensor, detached) for each in value]
        if (
            kind in (tuple, list) or (torch and kind is torch.Size) or hasattr(kind, "n_fields")
        ):  # such as the result of torch.max
            return kind(items)
        other: Any = tuple.__new__(kind, items) if isinstance(value, tuple) else list.__new__(kind)
        if isinstance(value, list):
            list.extend(other, items)
        return _with_attributes(other, value, zip(value, items, strict=True), tensor, detached)
    if isinstance(value, dict):
        copied = {key: mapped(each, tensor, detached) for key, each in value.items()}
        if kind is dict or not _is_own(kind):
            return kind(value.default_factory, copied) if isinstance(value, collections.defaultdict) else kind(copied)
        other = kind.__new__(kind)
        if isinstance(value, collections.defaultdict):
            other.default_factory = value.default_factory
        put = collections.OrderedDict.__setitem__ if isinstance(value, collections.OrderedDict) else dict.__setitem__
        for key, each in copied.items():
            put(other, key, each)
        return _with_attributes(other, value, zip(value.values(), copied.values(), strict=True), tensor, detached)
    if kind in OPEN or (tensor is None and holds(value)):
        other = blank(kind) if kind in OPEN else copy.copy(value)
        vars(other).update(mapped(vars(value), tensor, detached))
        return other
    return value


def _with_attributes(other: Any, value: Any, pairs: Iterable[tuple[Any, Any]], tensor: Any, detached: bool) -> Any:
    """A container with the attributes of the one that it is mapped from. Those that are its items stay so."""
    attributes = getattr(value, "__dict__", None)
    if attributes is value:  # entries are attributes
        other.__dict__ = other
    elif attributes:
        known = {id(one): new for one, new in pairs}
        for key, each in attributes.items():
            new = each if tensor is not None else mapped(each, detached=detached)
            vars(other)[key] = known.get(id(each), new)
    return other


def holds(value: Any) -> bool:
    """Whether it is an object, such as a dataclass, with tensors among its attributes."""
    return not isinstance(value, MODULE) and any(
        isinstance(each, (*SEQUENCES, dict)) or is_tensor(each) for each in getattr(value, "__dict__", {}).values()
    )


def strange(value: Any, known: set[int]) -> str:
    """The class of what is in a result, holds or gives tensors, and is neither known nor copied by mapped(); or ""."""
    if id(value) in known:
        return ""
    if is_opaque(value):
        return type(value).__name__
    if isinstance(value, Iterator) or (isinstance(value, types.FunctionType) and _has_tensors([value])):
        return type(value).__name__
    if isinstance(value, (*SETTINGS, *WHOLE, *arrays())):
        return ""
    each = list(value.values() if isinstance(value, dict) else value) if isinstance(value, tuple | list | dict) else []
    if each or holds(value):
        each += getattr(value, "__dict__", {}).values() if getattr(value, "__dict__", None) is not value else ()
        return next(filter(None, (strange(one, known) for one in each)), "")
    each = gc.get_referents(value)
    deeper = [one for part in each if isinstance(part, dict | tuple) for one in gc.get_referents(part)]
    return type(value).__name__ if _has_tensors([value, *each, *deeper]) else ""


def _has_tensors(each: Iterable[Any], within: int = 8) -> bool:
    """Whether there are tensors among these values or in what they hold, down to ``within`` levels."""
    waiting, seen = [*each], dict[int, Any]()
    for _ in range(within):
        found, waiting = waiting, []
        for one in found:
            if is_tensor(one):
                return True
            if id(one) in seen or isinstance(one, (*SCALARS, *MODULE, *OPTIMIZER, type, types.ModuleType)):
                continue
            seen[id(one)] = one
            if isinstance(one, types.FunctionType):
                waiting += gc.get_referents(*(one.__closure__ or ()))
                waiting += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            else:
                waiting += one.values() if isinstance(one, dict) else one if isinstance(one, tuple | list) else ()
                inner = getattr(one, "__dict__", None)
                waiting += inner.values() if isinstance(inner, dict) else ()
    return False


def of_inputs(arguments: Any, named: Any) -> dict[str, Any]:
    """What a call may leave in its arguments, by words for it."""
    tensors: list[Any] = []
    its_arguments = described((arguments, named), tensors), [*map(Same, tensors)]
    of_torch = [one for one in tensors if isinstance(one, TENSOR)]
    return {
        "its arguments": its_arguments,
        "the gradient of an input": [Same(one.grad) for one in of_torch if one.is_leaf],
        "the attributes of an input": [len(vars(one)) for one in of_torch],
    }

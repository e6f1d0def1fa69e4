"""All that a function can reach and change: tensors, numbers, containers and random numbers. It is kept, put back, and
compared between two runs."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from microbench.capture.graphed import (
    MODULE,
    OPTIMIZER,
    SCALARS,
    TENSOR,
    Reads,
    arrays,
    bind,
    host_random,
    is_opaque,
    is_tensor,
    now,
    of_library,
    torch,
    uses_torch,
)
from microbench.capture.tensors import clone, fill, random_states, synchronize, viewed

MOST = 200_000  # things that are looked at
PARTS = "_parameters", "_buffers", "_modules"
DRAWING: Any = random.Random, np.random.Generator, np.random.RandomState
SEED = 3  # of CuPy's random numbers, whose states cannot be read
OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType, types.GeneratorType)
OF_TORCH: Any = (torch.Generator, torch.dtype, torch.device) if torch else ()
ENDS = (*SCALARS, *TENSOR, np.ndarray, *OF_TORCH)


class Reached(NamedTuple):
    """What a function reaches: the values at the ends by path, and the containers that hold them."""

    ends: dict[str, Any]
    containers: list[Any]
    bindings: dict[str, tuple[Any, Any]]  # of globals, cells and plain values: a holder and a key by path
    objects: list[Any]  # modules, optimizers, and generators of random numbers of the host
    left: list[str]  # what was left out
    places: list[tuple[str, Any, Any]]  # at which a graph looks: paths, holders and keys


def reached(function: Callable[..., Any], arguments: Any = (), before: Reached | None = None) -> Reached:
    """Walk from a function through what it reads: globals, cells, objects, modules, optimizers, and its arguments.

    The places at which a graph looks are those of ``before``, if it is given.
    """
    ends: dict[str, Any] = {}
    containers: list[Any] = []
    bindings: dict[str, tuple[Any, Any]] = {}
    seen: dict[int, Any] = {}
    waiting: deque[tuple[str, Any]] = deque([("", function), ("argument", arguments)])
    while waiting and len(seen) < MOST:
        path, one = waiting.popleft()
        if isinstance(one, (*ENDS, *arrays())):
            if not is_tensor(one) or id(one) not in seen:
                ends[path] = one
            if is_tensor(one) and id(one) not in seen:
                seen[id(one)] = one
                if isinstance(one, TENSOR) and one.is_leaf and one.grad is not None:
                    ends[f"{path}.grad"] = one.grad
            continue
        if id(one) in seen or isinstance(one, OPAQUE):
            continue
        if is_opaque(one):
            if (view := viewed(one)) is not None:
                seen[id(one)] = ends[path] = view
            continue
        seen[id(one)] = one  # kept, so that no other object gets its number
        waiting.extend(_within(path, one, containers, bindings))
    reads = before or Reads(function, arguments)
    known = {(id(holder), key) for holder, key in bindings.values()}
    for path, holder, key in reads.places:
        if (id(holder), key) not in known and path not in bindings:
            bindings[path] = holder, key
            value = now(holder, key)
            if isinstance(value, (*ENDS, *arrays())) and id(value) not in seen:
                ends.setdefault(path, value)
    objects = [one for one in seen.values() if isinstance(one, (*MODULE, *OPTIMIZER, *DRAWING))]
    left = [*reads.left, *([f"what is beyond {MOST} things that it reaches"] if waiting else [])]
    return Reached(ends, containers, bindings, objects, left, reads.places)


Found = Iterator[tuple[str, Any]]
Bindings = dict[str, tuple[Any, Any]]


def _within(path: str, one: Any, containers: list[Any], bindings: Bindings) -> Found:
    """What is within a container, an object or a function of the user's, each with its path."""
    if isinstance(one, functools.partial | types.MethodType | types.FunctionType):
        yield from _of_function(path, one, bindings)
    elif isinstance(one, dict | list | tuple | deque | set):
        if not isinstance(one, tuple):
            containers.append(one)
        if isinstance(one, set):
            yield f"{path}.values", repr(sorted(map(repr, one)))
            return
        entries = list(one.items() if isinstance(one, dict) else enumerate(one))
        for number, (key, value) in enumerate(entries):
            named = f"{path}[{number if isinstance(key, TENSOR) else repr(key)}]"
            if isinstance(value, SCALARS) and isinstance(one, dict | list):
                bindings[named] = one, key
            yield named, value
    else:
        yield from _of_object(path, one, containers, bindings)


def _of_function(path: str, one: Any, bindings: Bindings) -> Found:
    if isinstance(one, functools.partial):
        yield path, one.func
        yield from ((f"argument[{number}]", value) for number, value in enumerate(one.args))
        yield from one.keywords.items()
    elif isinstance(one, types.MethodType):
        yield path, one.__func__
        yield path or "self", one.__self__
    elif hasattr(one, "__wrapped__"):  # torch.no_grad() and its like
        yield path, one.__wrapped__
    elif not of_library(one.__code__):
        for name in _names(one.__code__):
            if name in one.__globals__ and not isinstance(one.__globals__[name], OPAQUE):
                bindings[name] = one.__globals__, name
                yield name, one.__globals__[name]
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=False):
            bindings[name] = cell, "cell_contents"
            yield name, now(cell, "cell_contents")
        yield from ((f"{one.__name__}.default[{number}]", each) for number, each in enumerate(one.__defaults__ or ()))


def _of_object(path: str, one: Any, containers: list[Any], bindings: Bindings) -> Found:
    kind = type(one)
    if kind.__name__ == "Graphed":  # of the helper that was handed over, or of this package
        yield path, one.function
    elif isinstance(one, MODULE):
        hooks = [each for key, each in vars(one).items() if key.endswith("_hooks")]  # a library may add some in a call
        parts = vars(one), *(vars(one)[name] for name in PARTS), *hooks
        containers += [each for each in parts if isinstance(each, dict)]
        for name in PARTS:
            yield from ((f"{path}.{key}", value) for key, value in vars(one)[name].items())
        yield path, getattr(kind, "forward", None)
        own = ((key, value) for key, value in vars(one).items() if key[0] != "_" or is_tensor(value))
        yield from ((f"{path}.{key}", value) for key, value in own)
    elif hasattr(one, "__dict__"):
        containers.append(vars(one))
        for key, value in list(vars(one).items()):
            if isinstance(value, SCALARS) and not kind.__module__.startswith("torch."):
                bindings[f"{path}.{key}"] = vars(one), key
            yield f"{path}.{key}", value
        yield path, kind.__dict__.get("__call__")
    else:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield f"{path}.{name}", getattr(one, name, None)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


class Kept:
    """The state of a function at one moment, which ``restore`` puts back in place."""

    def __init__(self, function: Callable[..., Any], arguments: Any = ()) -> None:
        synchronize()
        self.reached = found = reached(function, arguments)
        self._tensors = {
            id(one): (one, one.detach().clone(), one.grad)
            for one in found.ends.values() if isinstance(one, TENSOR)
        }  # fmt: skip
        self._arrays: list[tuple[Any, Any]] = [
            (one, clone(one)) for one in found.ends.values() if isinstance(one, (np.ndarray, *arrays()))
        ]
        self._generators = [(one, one.get_state()) for one in found.ends.values() if isinstance(one, OF_TORCH[:1])]
        self._containers = [(one, one.copy()) for one in found.containers]
        self._bindings = [(*place, now(*place)) for place in found.bindings.values()]
        old = np.random.get_state()  # noqa: NPY002 - what the user's function may draw from
        self._rewinding = [*filter(None, map(_rewinding, found.objects))]
        self._random = random.getstate(), old, torch and torch.get_rng_state(), cuda_random()

    def restore(self) -> None:
        """Put back the bindings of every container, the values of every tensor, and the random numbers' states."""
        for one, before in self._containers:
            _put_back(one, before)
        for holder, key, value in self._bindings:
            if now(holder, key) is not value:
                with contextlib.suppress(AttributeError):  # it cannot be put back
                    bind(holder, key, value)
        for one, values, grad in self._tensors.values():
            if one.is_leaf and one.grad is not grad:
                one.grad = grad
            fill(one, values)
        for one, values in self._arrays:
            fill(one, values)
        for one, state in self._generators:
            one.set_state(state)
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002
        for rewind in self._rewinding:
            rewind()
        for one in random_states():
            one.seed(SEED)
        if torch:
            torch.set_rng_state(self._random[2])
        if self._random[3] is not None:
            torch.cuda.set_rng_state(self._random[3])


def _rewinding(one: Any) -> Callable[[], object] | None:
    """What gives a generator of random numbers the state that it has now."""
    if isinstance(one, random.Random) and not isinstance(one, random.SystemRandom):
        return partial(one.setstate, one.getstate())
    if isinstance(one, DRAWING[1:]):
        bits = one.bit_generator if isinstance(one, np.random.Generator) else one._bit_generator
        return partial(setattr, bits, "state", copy.deepcopy(bits.state))
    return None


def _put_back(one: Any, before: Any) -> None:
    if isinstance(one, set):
        one.clear()
        one.update(before)
    elif isinstance(one, list | deque):
        if len(one) != len(before) or any(a is not b for a, b in zip(one, before, strict=True)):
            one.clear()
            one.extend(before)
    elif list(one) != list(before) or any(one[key] is not before[key] for key in before):
        one.clear()
        one.update(before)


def cuda_random() -> Any:
    """The state of the GPU's default generator, or None without a GPU."""
    return torch.cuda.get_rng_state() if uses_torch() and torch.cuda.is_available() else None


class After(NamedTuple):
    """What a function reaches after a run: copies of tensors and arrays, plain values, and random states."""

    values: dict[str, Any]
    randoms: dict[str, Any]


def after(function: Callable[..., Any], arguments: Any = (), before: Reached | None = None) -> After:
    """The state that a run has left; ``before`` is what the function reached before the run."""
    values = {
        path: clone(one) if isinstance(one, np.ndarray) or is_tensor(one) else one
        for path, one in reached(function, arguments, before).ends.items()
        if not isinstance(one, OF_TORCH)
    }
    gpu = cuda_random()
    of_gpu = {"random numbers of torch (GPU)": gpu.numpy().tobytes()} if gpu is not None else {}
    return After(values, host_random() | of_gpu)

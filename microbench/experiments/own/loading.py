"""Loads a user's function, calls its setup, and binds the arguments that it names."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from microbench.core.calls import run_whole
from microbench.core.errors import MeasurementError
from microbench.core.model import Param
from microbench.core.targets import Target, target
from microbench.core.units import plain
from microbench.experiments.own.callables import refuse_unrun
from microbench.experiments.own.culprit import called
from microbench.gpu.protocol.gpu import Gpu

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
    made: Any = None
    if setup:
        prepare: Callable[..., Any] = called(partial(load, setup), "")
        prepared = partial(prepare, **_named(gpu, prepare, values))
        made = called(run_whole(prepared, _inner(prepare)), _file_of(prepare))
        refuse_unrun(made)
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

"""microbench: what it costs to submit work to a CUDA GPU, and what limits it."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microbench.library import watch as watch

__version__ = "0.1.0"

# Functions of library.py that have the name of a room. The room's module stays the attribute of that name, so that its
# files can be imported in any order, and can be called.
_CALLABLE_ROOMS = ("watch",)


class _CallableRoom(ModuleType):
    """A room that, when it is called, calls the function of library.py that has its name."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        library = importlib.import_module("microbench.library")
        return getattr(library, self.__name__.rpartition(".")[2])(*arguments, **named)


class _Package(ModuleType):
    """This package: Python sets an attribute when a room has been imported, and some rooms can then be called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLABLE_ROOMS and isinstance(value, ModuleType):
            value.__class__ = _CallableRoom
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _CALLABLE_ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")


sys.modules[__name__].__class__ = _Package

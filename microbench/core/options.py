"""How an option is declared: once, as a field of a dataclass with its default and help, for command and programs."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from typing import Any

REQUIRED = MISSING


@dataclass(frozen=True)
class Option:
    """What the command says of an option besides its name and default.

    ``names`` replace the field's own name. A repeatable option has ``read``, which makes its value from the typed
    texts. ``least`` is the lowest number it takes. A ``positional`` one is an argument.
    """

    metavar: str | None
    help: str
    names: tuple[str, ...] = ()
    least: float | None = None
    read: Callable[[list[str]], Any] | None = None
    positional: bool = False


def option(metavar: str | None, help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A field for an option; ``more`` are further fields of Option. A ``default`` that can be called makes it."""
    made = {"default_factory": default} if callable(default) else {"default": default}
    return field(**made, metadata={"option": Option(metavar, help, names, **more)})


def flag(help: str, *names: str) -> Any:
    """A field for an option without a value."""
    return option(None, help, *names, default=False)


def argument(metavar: str, help: str, default: Any = REQUIRED, **more: Any) -> Any:
    """A field for an argument of the command; one without a default must be given."""
    return option(metavar, help, default=default, positional=True, **more)

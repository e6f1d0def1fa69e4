"""How an option is declared: once, with its help, for the command and for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """What the command says of an option, or of an argument, besides its name and its default.

    An option is called like its parameter unless it has ``names``, with a space between several. A repeatable one has
    ``read``, which makes its value from the typed texts. ``least`` is the lowest number it takes.
    """

    metavar: str | None
    help: str
    names: str = ""
    least: float | None = None
    hidden: bool = False
    read: Callable[[list[str]], Any] | None = None


class Argument(Option):
    """An argument of the command: it is told by its place."""

"""Derives the parser's options from the parameters of a command, in which a dataclass stands for its fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from microbench.core.options import Argument, Option

Reader = Callable[[list[str]], Any]


class Without(NamedTuple):
    """Says beside a dataclass which of its options the command lacks."""

    name: str


def signature_of(function: Callable[..., Any]) -> tuple[inspect.Signature, Callable[[dict[str, Any]], dict[str, Any]]]:
    """The signature that the parser gets, and what makes the function's arguments of the parsed values."""
    parameters: list[inspect.Parameter] = []
    readers: dict[str, Reader] = {}
    groups: dict[str, Any] = {}  # the dataclass of each parameter that has one
    group_of: dict[str, str] = {}  # the parameter that an option goes into
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, metadata = getattr(hints[name], "__origin__", hints[name]), getattr(hints[name], "__metadata__", ())
        if not is_dataclass(kind):
            parameters.append(_parsed(name, hints[name], parameter.default, readers))
            continue
        groups[name] = kind
        inner = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            if Without(field.name) not in metadata:
                group_of[field.name] = name
                parameters.append(_parsed(field.name, inner[field.name], field.default, readers))

    def arguments(parsed: dict[str, Any]) -> dict[str, Any]:
        # A repeatable option that was not given is left out, and has the default of its parameter or field.
        given = {name: readers[name](value) if name in readers else value for name, value in parsed.items()
                 if value or name not in readers}  # fmt: skip
        made = {
            group: kind(**{name: given.pop(name) for name in list(given) if group_of.get(name) == group})
            for group, kind in groups.items()
        }
        return given | made

    return inspect.Signature(parameters), arguments


def _parsed(name: str, hint: Any, default: Any, readers: dict[str, Reader]) -> inspect.Parameter:
    """The parameter as the parser takes it; a repeatable one is noted in ``readers``."""
    if metadata := getattr(hint, "__metadata__", ()):
        option: Option = metadata[0]
        kind = hint.__origin__
        if option.read is not None:
            readers[name], kind, default = option.read, list[str] | None, None
        if isinstance(option, Argument):
            declared = typer.Argument(metavar=option.metavar, help=option.help)
        else:
            names = option.names.split() or [f"--{name.strip('_').replace('_', '-')}"]
            least = option.least
            declared = typer.Option(*names, metavar=option.metavar, help=option.help, min=least, hidden=option.hidden)
        hint = Annotated[kind, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)

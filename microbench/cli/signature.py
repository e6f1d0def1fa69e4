"""Derives the parser's options from the parameters of a command, in which a dataclass stands for its fields."""

import inspect
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from microbench.core.options import REQUIRED, Option

Arguments = dict[str, Any]


class Without(NamedTuple):
    """Says beside a dataclass which of its options the command lacks."""

    name: str


def signature_of(function: Callable[..., Any]) -> tuple[inspect.Signature, Callable[[Arguments], Arguments]]:
    """The signature that the parser gets, and what makes the function's arguments of the parsed values."""
    declared: dict[str, tuple[Field[Any], Any]] = {}  # each option and its type
    groups: dict[str, Any] = {}  # the dataclass of each parameter that has one
    group_of: dict[str, str] = {}  # the parameter that an option goes into
    passed: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        lacking = getattr(hints[name], "__metadata__", ())
        kind = hints[name].__origin__ if lacking else hints[name]
        if is_dataclass(kind):
            groups[name] = kind
            inner = get_type_hints(kind)
            for field in fields(kind):
                if Without(field.name) not in lacking:
                    group_of[field.name], declared[field.name] = name, (field, inner[field.name])
        elif isinstance(parameter.default, Field):
            declared[name] = parameter.default, kind
        else:  # the parser's own context
            passed.append(parameter.replace(annotation=kind))

    def arguments(parsed: Arguments) -> Arguments:
        values: Arguments = {}
        for name, value in parsed.items():
            read = declared[name][0].metadata["option"].read if name in declared else None
            if value or read is None:
                values[name] = value if read is None else read(value)
            elif name not in group_of:  # a dataclass takes its own default
                values[name] = declared[name][0].default
        for group, kind in groups.items():
            own = [name for name in values if group_of.get(name) == group]
            values[group] = kind(**{name: values.pop(name) for name in own})
        return values

    parameters = [_parameter(name, field, kind) for name, (field, kind) in declared.items()]
    return inspect.Signature([*passed, *parameters]), arguments


def _parameter(name: str, field: Field[Any], kind: Any) -> inspect.Parameter:
    """The option as the parser takes it."""
    option: Option = field.metadata["option"]
    default = inspect.Parameter.empty if field.default is REQUIRED else field.default
    if option.read is not None:
        kind, default = list[str] | None, None
    about: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    if option.positional:
        shown = typer.Argument(**about)
    else:
        names = option.names or (f"--{name.strip('_').replace('_', '-')}",)
        shown = typer.Option(*names, min=option.least, **about)
    annotation = Annotated[kind, shown]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

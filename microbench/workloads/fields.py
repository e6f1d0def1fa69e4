"""One value of a workload as somebody wrote it: checked, and in SI units; its error says where and what would be right.

Each takes ``where``, the place for the error: "decode.toml, part 3, size" or "--copy-in".
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable

from microbench.errors import UsageError
from microbench.explain.launch_layers import TITLES
from microbench.text import plain
from microbench.units import short_size, typed_size, typed_time
from microbench.workload import MOST_BYTES

LONGEST_SHOWN = 40
# What people call a layer, and what stands for it.
ALIASES = {
    "c": "loop", "c++": "loop", "cpp": "loop", "compiled": "loop", "torch": "torch_eager", "pytorch": "torch_eager",
    "numba": "numba_configured", "cupy": "cupy_raw", "jax": "jax_jit", "cuda.core": "cuda_core",
    "cuda.bindings": "cuda_bindings",
}  # fmt: skip


def whole(value: object, where: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        written = f'"{shown(value)}"' if isinstance(value, str) else shown(value)
        raise UsageError(f"{where}: {written} is no whole number", f"give one from {least} to {most}")
    if not least <= value <= most:
        cause = "too small" if value < least else "too large"
        raise UsageError(f"{where}: {shown(value)} is {cause}", f"give a whole number from {least} to {most}")
    return value


def number(value: object, where: str, most: float) -> float:
    """A number above 0, up to ``most``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {shown(value)} is no number above 0", "give one, such as 1 or 0.5")
    if value > most:
        raise UsageError(f"{where}: {shown(value)} is too large", f"give a number of at most {most:g}")
    return float(value)


def seconds(value: object, where: str) -> float:
    """A time with its unit, or 0."""
    text = value if isinstance(value, str) else "0" if value == 0 and not isinstance(value, bool) else None
    if text is None:
        raise UsageError(f"{where}: {shown(value)} is no time", 'give a number and its unit: "6us", "0.2ms", or 0')
    return typed(typed_time, text, where)


def size_bytes(value: object, where: str, least: int = 0) -> int:
    """A size with its unit, or a whole number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str):
        found = round(typed(typed_size, value, where))
    else:
        raise UsageError(f"{where}: {shown(value)} is no size", 'give a number and its unit: "16 KiB", "12 MB"')
    if not least <= found <= MOST_BYTES:
        sizes = f"from {least} B to {short_size(MOST_BYTES)}"
        raise UsageError(f"{where}: {shown(value)} is too {'small' if found < least else 'large'}", f"give {sizes}")
    return found


def words(value: object, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise UsageError(f"{where}: {shown(value)} is no text", 'give a text in quotes, such as "token"')
    return value


def one_of(value: object, where: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        listed = ", ".join(choices)
        step = f"did you mean {near[0]}? there are {listed}" if near else f"choose one of {listed}"
        raise UsageError(f"{where}: there is no {shown(value)}", step)
    return value


def layer_named(value: object, where: str) -> str:
    """A layer by its own name or by what people call it: "torch" is torch_eager, "c" the compiled loop."""
    text = words(value, where).strip().lower()
    if text in TITLES:
        return text
    if text in ALIASES:
        return ALIASES[text]
    near = difflib.get_close_matches(text, [*TITLES, *ALIASES], n=1)
    listed = ", ".join(TITLES)
    step = f"did you mean {near[0]}? there are {listed}" if near else f"choose one of {listed}"
    raise UsageError(f"{where}: there is no layer {shown(value)}", step)


def typed(read: Callable[[str], float], text: str, where: str) -> float:
    """What ``read`` makes of it, with the place before its error."""
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.cause}", error.next_step) from None


def shown(value: object) -> str:
    """A value as its file has it."""
    text = "true" if value is True else "false" if value is False else value
    return plain(text, LONGEST_SHOWN)

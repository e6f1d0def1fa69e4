"""Reads how a user names a kernel or function of their own: its place, a kernel's arguments, and small formulas.

Parent and worker read the same texts, so that a mistake is found before anything runs and a case's parameters are what
the user typed.
"""

import ast
import operator
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from microbench.core.errors import UsageError, nearest
from microbench.core.files import open_regular
from microbench.core.units import plain, typed_size

MOST_LISTED = 8
MOST_SOURCE_BYTES = 16 << 20
TargetKind = Literal["kernel", "file", "module"]
EXAMPLES = "kernels.cu:saxpy, mypackage.steps:decode_step or train.py::step"
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
# A kernel's name, perhaps with template arguments: scale<float>, sums::total.
KERNEL_NAME = re.compile(r"[A-Za-z_][\w:]*(?:<.*>)?")


class Target(NamedTuple):
    """The place of a kernel or function: its file or module, and its name in it."""

    kind: TargetKind
    place: str
    name: str


def target(text: str) -> Target:
    """What was named: FILE.cu:KERNEL, FILE.py::FUNCTION or MODULE:FUNCTION. Raises UsageError."""
    place, colon, name = text.partition("::" if ".py::" in text else ":")
    kind: TargetKind = "kernel" if place.endswith((".cu", ".cuh")) else "file" if place.endswith(".py") else "module"
    valid = KERNEL_NAME.fullmatch(name) if kind == "kernel" else DOTTED.fullmatch(name)
    if not colon or not valid or (kind == "module" and not DOTTED.fullmatch(place)):
        example = f"name a function of it: {plain(place, 60)}::step" if kind == "file" else f"for example {EXAMPLES}"
        raise UsageError(f"{plain(text, 80)} names no kernel and no function", example)
    if kind != "module" and not Path(place).is_file():
        raise UsageError(f"there is no file {plain(place)}", "give the path from the current folder")
    return Target(kind, place, name)


def check_function(wanted: Target) -> None:
    """Raise UsageError for a function that a Python file certainly lacks, and for a file that is not Python."""
    if wanted.kind != "file":
        return
    try:
        tree = ast.parse(Path(wanted.place).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{plain(wanted.place)} cannot be read as Python: {plain(error, 80)}", "correct it") from None
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.partition(".")[0])
    first = wanted.name.partition(".")[0]
    if first not in names and not names & {"*", "__getattr__"}:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        listed = f"it has {', '.join(functions[:MOST_LISTED]) or 'no function'}"
        listed = "put the body of the loop into a function of that name" if first == "STEP" else listed
        near = nearest(first, names) or nearest(first.lower(), names)
        raise UsageError(f"there is no {plain(first, 60)} in {plain(wanted.place)}", near or listed)


OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: lambda a, b: int(a) << int(b),
    ast.Pow: operator.pow,
}
MOST_EXPONENT = 62
LONGEST_FORMULA = 200


def number(text: str, names: Mapping[str, float] | None = None) -> float:
    """The value of a formula such as "1<<20", "12*n" or "12MiB", in which ``names`` stand for their values.

    Raises UsageError for anything else.
    """
    if text.rstrip().endswith("B"):
        return typed_size(text)
    try:
        if len(text) > LONGEST_FORMULA:
            raise ValueError
        return _value(ast.parse(text.strip(), mode="eval").body, names or {})
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        known = f", of which {', '.join(names)} are known" if names else ""
        cause = f"{plain(text, 60)} is not a number"
        raise UsageError(cause, f"give a number, a size or a formula: 1<<20, 12MiB, n//256{known}") from None


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second = _value(left, names), _value(right, names)
            if isinstance(op, ast.LShift | ast.Pow) and not 0 <= second <= MOST_EXPONENT:
                raise ValueError
            return OPERATORS[type(op)](first, second)
    raise ValueError


def whole(text: str, names: Mapping[str, float] | None = None, *, least: int = 1) -> int:
    """The value of a formula as an integer of at least ``least``. Raises UsageError."""
    value = number(text, names)
    if value != int(value) or value < least:
        raise UsageError(f"{plain(text, 60)} is {value:g}", f"a whole number from {least} on is needed here")
    return int(value)


def dimensions(text: str, names: Mapping[str, float] | None = None) -> tuple[int, int, int]:
    """A grid or block: "1024", or "32,8,1". Raises UsageError."""
    given = [whole(part, names) for part in text.split(",")]
    if len(given) > 3:
        raise UsageError(f"{plain(text, 60)} has {len(given)} dimensions", "give one to three: 1024 or 32,8,1")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


# Kernel arguments. The format is that of the struct module; None for types that it lacks.
FORMATS: Mapping[str, str | None] = {
    "f16": "e", "bf16": None, "f32": "f", "f64": "d", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i",
    "u32": "I", "i64": "q", "u64": "Q",
}  # fmt: skip
TYPES = ", ".join(FORMATS)
ARRAY = re.compile(r"(\w+)\[(.+)\]")
TYPED_SCALAR = re.compile(r"(\w+)\((.+)\)")
SCALAR = re.compile(r"(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?)(f|u|ll|ull)?")
SUFFIXES = {"f": "f32", "u": "u32", "ll": "i64", "ull": "u64"}
ARGUMENT_EXAMPLES = "f32[1<<20] for an array, 2.0f, 7 or i64(7) for a number"


class Argument(NamedTuple):
    """One argument of a kernel: an array of ``elements`` of a type, or (0 of them) the number ``value``."""

    type: str
    elements: int
    value: float = 0.0

    @property
    def size_bytes(self) -> int:
        return int(self.type.lstrip("biuf")) // 8

    def word(self) -> int:
        """The bits of a number, as a 64-bit argument has them."""
        if self.type == "bf16":
            return int.from_bytes(struct.pack("<f", self.value)[2:], "little")
        packed = struct.pack(f"<{FORMATS[self.type]}", self.value if self.type[0] == "f" else int(self.value))
        return int.from_bytes(packed, "little")


def argument(text: str, names: Mapping[str, float] | None = None) -> Argument:
    """Parse one kernel argument, such as "f32[1<<20]" or "2.0f". Raises UsageError."""
    names = names or {}
    if (array := ARRAY.fullmatch(text)) is not None:
        return Argument(_type(array[1], text), whole(array[2], names))
    if (typed := TYPED_SCALAR.fullmatch(text)) is not None:
        return _checked(Argument(_type(typed[1], text), 0, number(typed[2], names)), text)
    if (scalar := SCALAR.fullmatch(text)) is not None:
        usual = "f64" if set(".e") & set(scalar[1]) else "i32"
        return _checked(Argument(SUFFIXES.get(scalar[2], usual), 0, float(scalar[1])), text)
    if text in names:
        return _checked(Argument("i32", 0, names[text]), text)
    raise UsageError(f"{plain(text, 60)} is not an argument of a kernel", ARGUMENT_EXAMPLES)


def _type(name: str, text: str) -> str:
    if name not in FORMATS:
        raise UsageError(f"{plain(text, 60)}: there is no type {plain(name, 20)}", f"one of: {TYPES}")
    return name


def _checked(given: Argument, text: str) -> Argument:
    try:
        given.word()
    except (struct.error, OverflowError):
        raise UsageError(f"{plain(text, 60)} does not fit {given.type}", ARGUMENT_EXAMPLES) from None
    return given


# What a kernel's source says of its parameters: enough to notice a wrong argument before anything is compiled.
GLOBAL = re.compile(
    r"__global__\s+(?:\w+\s*\([^()]*\)\s+)*void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()]{0,9999})\)"
)
COMMENTS = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
QUALIFIERS = re.compile(r"\b(?:const|__restrict__|__restrict|restrict|volatile|__grid_constant__)\b")
C_TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16",
    "int": "i32", "unsigned": "i32", "unsigned int": "i32", "int32_t": "i32", "uint32_t": "i32", "long long": "i64",
    "unsigned long long": "i64", "long": "i64", "unsigned long": "i64", "int64_t": "i64", "uint64_t": "i64",
    "size_t": "i64", "short": "i16", "unsigned short": "i16", "int16_t": "i16", "uint16_t": "i16", "char": "i8",
    "signed char": "i8", "unsigned char": "i8", "int8_t": "i8", "uint8_t": "i8", "bool": "i8",
}  # fmt: skip


def source_of(place: str) -> str:
    """The text of a CUDA C++ file. Raises UsageError if it cannot be read, is no text, or has over 16 MiB."""
    try:
        with open_regular(Path(place)) as file:
            data = file.read(MOST_SOURCE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{plain(place)} cannot be read: {error.strerror}", "give another file") from None
    if len(data) > MOST_SOURCE_BYTES:
        raise UsageError(f"{plain(place)} has over {MOST_SOURCE_BYTES >> 20} MiB", "give a file with fewer kernels")
    if b"\0" in data:  # the compiler would read no further
        raise UsageError(f"{plain(place)} is no text: it holds a zero byte", "save it as UTF-8")
    return data.decode("utf-8-sig", errors="replace")  # the compiler loses its place in bytes that are not UTF-8


def check_kernel(wanted: Target, arguments: list[str], names: Mapping[str, float]) -> None:
    """Raise UsageError for a kernel that its file does not have, and for arguments that its source contradicts.

    What cannot be told from the source, such as templates and macros, is left to the compiler.
    """
    source = COMMENTS.sub(" ", source_of(wanted.place))
    kernels = {match[1]: match[2] for match in GLOBAL.finditer(source)}
    name = wanted.name.partition("<")[0].rpartition(":")[2]
    if not re.search(rf"\b{name}\b", source):
        known = (
            nearest(name, kernels) or f"it has: {', '.join(list(kernels)[:MOST_LISTED]) or 'no __global__ function'}"
        )
        raise UsageError(f"there is no kernel {plain(name, 60)} in {plain(wanted.place)}", known)
    given = [argument(text, names) for text in arguments]
    if name not in kernels or "<" in wanted.name:
        return
    parameters = [part for part in re.split(r",(?![^<]*>)", kernels[name]) if part.strip() not in ("", "void")]
    if len(parameters) != len(given):
        cause = f"{name} takes {len(parameters)} arguments, {len(given)} are given"
        listed = ", ".join(" ".join(part.split()) for part in parameters)
        raise UsageError(cause, f"one --arg for each of: {plain(listed)}")
    for place, (parameter, one) in enumerate(zip(parameters, given, strict=True), 1):
        _check_argument(name, place, " ".join(parameter.split()), one, arguments[place - 1])


def _check_argument(kernel: str, place: int, parameter: str, given: Argument, text: str) -> None:
    """Compare what is given with a parameter as the source declares it: "const float *x"."""
    pointer = "*" in parameter or "[" in parameter
    declared = QUALIFIERS.sub(" ", re.split(r"[*\[]", parameter)[0])
    words = declared.split() if pointer else declared.split()[:-1] or declared.split()
    wanted, cause = C_TYPES.get(" ".join(words)), ""
    if pointer != bool(given.elements):
        cause = "an array" if pointer else "a number"
    elif wanted is not None and wanted.replace("u", "i") != given.type.replace("u", "i"):
        cause = f"{'an array' if pointer else 'a number'} of type {wanted}"
    if cause:
        cause = f"argument {place} of {kernel} is {plain(parameter, 60)}; {plain(text, 40)} is not {cause}"
        raise UsageError(cause, ARGUMENT_EXAMPLES)

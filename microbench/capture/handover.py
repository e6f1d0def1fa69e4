"""The change that makes a function of the user's a CUDA graph, or its parts: a helper file, and a diff of the file."""

from __future__ import annotations

import ast
import difflib
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HELPER = "cuda_graph.py"
IMPORT = "from cuda_graph import graphed"
MOST_PARTS, LEAST_OPERATIONS = 3, 4
STAYS = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete, ast.Import, ast.ImportFrom,
         ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Return)  # fmt: skip


class Change(NamedTuple):
    """The user's file as it would be, and the difference as a unified diff; and the helper's text."""

    file: Path
    text: str
    diff: str
    helper: str
    parts: tuple[str, ...] = ()  # the names of new functions, each a graph


def change(file: Path, name: str, also: Sequence[str] = ()) -> Change | None:
    """The change for a function or a method of a file; None if it is not defined there by ``def``.

    ``also`` are expressions of values by which the host decides, besides those that the helper finds.
    """
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next((one for one in body if getattr(one, "name", None) == part), None)
        body = getattr(found, "body", [])
    if not isinstance(found, ast.FunctionDef):
        return None
    lines = source.splitlines(keepends=True)
    first = min([found.lineno, *(one.lineno for one in found.decorator_list)]) - 1
    indent = lines[found.lineno - 1][: found.col_offset]
    lines.insert(first, f"{indent}{_decorator(also)}")
    return _changed(file, source, tree, lines)


def change_parts(
    file: Path, name: str, stays: Collection[int], operations: Mapping[int, int], also: Sequence[str] = ()
) -> Change | None:
    """The change for a function of a file of which some lines stay as they are: the statements between them become
    functions, each a graph. At most three, those with the most ``operations`` by line; None if there are none.
    """
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    found = next((one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name), None)
    if found is None or any(isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(found)):
        return None
    runs = [(sum(operations.get(line, 0) for one in run for line in _lines(one)), run) for run in _runs(found, stays)]
    chosen = sorted((one for one in runs if one[0] >= LEAST_OPERATIONS), key=lambda one: -one[0])[:MOST_PARTS]
    ordered = sorted((run for _, run in chosen), key=lambda run: run[0].lineno)
    lines = source.splitlines(keepends=True)
    new: list[str] = []
    names, indent = [], " " * found.body[0].col_offset
    for number, run in reversed(list(enumerate(ordered, 1))):
        first, last, part = run[0].lineno - 1, run[-1].end_lineno or 0, f"_{name}_part{number}"
        takes, gives = _passed(found, run)
        call = f"{part}({', '.join(takes)})"
        before = "return " if isinstance(run[-1], ast.Return) else f"{', '.join(gives)} = " if gives else ""
        returned = [f"{indent}return {', '.join(gives)}\n"] if gives and before != "return " else []
        new = [_decorator(also), f"def {call}:\n", *lines[first:last], *returned, "\n", "\n", *new]
        lines[first:last] = [f"{indent}{before}{call}\n"]
        names.append(part)
    if not names:
        return None
    first = min([found.lineno, *(one.lineno for one in found.decorator_list)]) - 1
    lines[first:first] = new
    return _changed(file, source, tree, lines)._replace(parts=tuple(reversed(names)))


def _lines(one: ast.stmt) -> range:
    return range(one.lineno, (one.end_lineno or one.lineno) + 1)


def _runs(function: ast.FunctionDef, stays: Collection[int]) -> Iterable[list[ast.stmt]]:
    """Statements that follow each other and may be moved to another function; a return only as the last."""
    run: list[ast.stmt] = []
    lines = Counter(line for one in function.body for line in _lines(one))
    fixed = {*stays, *(line for line, statements in lines.items() if statements > 1)}
    for one in function.body:
        text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        within = any(isinstance(each, STAYS) for each in ast.walk(one) if each is not one)
        ends = isinstance(one, ast.Return)
        if within or text or (isinstance(one, STAYS) and not ends) or not fixed.isdisjoint(_lines(one)):
            if run:
                yield run
            run = []
        else:
            run.append(one)
    if run:
        yield run


def _passed(function: ast.FunctionDef, run: list[ast.stmt]) -> tuple[list[str], list[str]]:
    """The names of the function's own that a run of its statements reads, and those that it makes for later ones."""
    place = function.body.index(run[0])
    arguments = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)]
    before = dict.fromkeys([*arguments, *_named(function.body[:place], ast.Store)])
    made: set[str] = set()
    takes: dict[str, None] = {}
    for one in run:
        takes |= dict.fromkeys(name for name in _named([one], ast.Load) if name in before and name not in made)
        if isinstance(one, ast.Assign | ast.AnnAssign):
            made |= set(_named([one], ast.Store))
    later = set(_named(function.body[place + len(run) :], ast.Load))
    return [name for name in before if name in takes], [name for name in _named(run, ast.Store) if name in later]


def _named(statements: Iterable[ast.AST], context: type[ast.Load] | type[ast.Store]) -> list[str]:
    """The function's names that statements read or bind; ``x += 1`` does both."""
    found: dict[str, None] = {}
    for one in statements:
        inner = _named(ast.iter_child_nodes(one), context)
        if isinstance(one, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            own = set(_named((each.target for each in one.generators), ast.Store))
        else:
            own = (
                {each.arg for each in ast.walk(one.args) if isinstance(each, ast.arg)}
                if isinstance(one, ast.Lambda)
                else set()
            )
        found |= dict.fromkeys(name for name in inner if name not in own)
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            found[one.target.id] = None
        elif isinstance(one, ast.Name) and isinstance(one.ctx, context):
            found[one.id] = None
    return list(found)


def _decorator(also: Sequence[str]) -> str:
    return f"@graphed(also=lambda: ({', '.join(also)},))\n" if also else "@graphed\n"


def _changed(file: Path, source: str, tree: ast.Module, lines: list[str]) -> Change:
    """The change to these lines, with the import that they need."""
    lines.insert(_import_line(tree), f"{IMPORT}\n")
    names = f"a/{file.name}", f"b/{file.name}"
    diff = "".join(difflib.unified_diff(source.splitlines(keepends=True), lines, *names))
    return Change(file, "".join(lines), diff, helper())


def helper() -> str:
    """The file that does it, which needs the library of the function and no other."""
    return (Path(__file__).parent / "graphed.py").read_text(encoding="utf-8")


def _import_line(tree: ast.Module) -> int:
    """After which line an import belongs: the last import of the file's first block of imports, else its docstring."""
    last = 0
    for one in tree.body:
        if isinstance(one, ast.Import | ast.ImportFrom):
            last = one.end_lineno or last
        elif not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            break
        elif not last:
            last = one.end_lineno or 0
    return last


def why_not_applied(file: Path) -> str:
    """Why a file is not changed: it must be in git without other changes, so that nothing is lost; "" if it is."""
    command = ["git", "-C", str(file.parent), "status", "--porcelain", "--", file.name]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=30)
        tracked = subprocess.run(
            ["git", "-C", str(file.parent), "ls-files", "--error-unmatch", "--", file.name],
            capture_output=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "git does not answer"
    if status.returncode or tracked.returncode:
        return f"{file.name} is not in a git repository"
    return f"{file.name} has changes that are not committed" if status.stdout.strip() else ""

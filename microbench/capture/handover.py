"""The change that makes a function of the user's a CUDA graph: a helper file, and a diff of the user's file."""

from __future__ import annotations

import ast
import difflib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HELPER = "cuda_graph.py"
IMPORT = "from cuda_graph import graphed"


class Change(NamedTuple):
    """The user's file as it would be, and the difference as a unified diff; and the helper's text."""

    file: Path
    text: str
    diff: str
    helper: str


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
    options = f"(also=lambda: ({', '.join(also)},))" if also else ""
    lines.insert(first, f"{indent}@graphed{options}\n")
    lines.insert(_import_line(tree), f"{IMPORT}\n")
    text = "".join(lines)
    names = f"a/{file.name}", f"b/{file.name}"
    diff = "".join(difflib.unified_diff(source.splitlines(keepends=True), lines, *names))
    return Change(file, text, diff, helper())


def helper() -> str:
    """The file that does it, which needs PyTorch alone."""
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

"""Runs the cells of docs/library.ipynb as a notebook would, and writes their outputs: python tests/notebook.py"""

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "library.ipynb"
# A cell with this tag has other figures each time: it measures on the simulated GPU.
VARIES = "varies"

Cell = dict[str, Any]


def whole() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


def code_cells(notebook: dict[str, Any] | None = None) -> list[Cell]:
    return [cell for cell in (notebook or whole())["cells"] if cell["cell_type"] == "code"]


def varies(cell: Cell) -> bool:
    """True if the cell has other figures each time."""
    return VARIES in cell["metadata"].get("tags", ())


def executed() -> list[list[Cell]]:
    """The outputs of every cell of code, run one after the other in a folder and with runs of their own."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with _in_own_folder():
        return [_outputs("".join(cell["source"]), names) for cell in code_cells()]


@contextlib.contextmanager
def _in_own_folder() -> Iterator[None]:
    before = os.environ.get("MICROBENCH_DATA")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["MICROBENCH_DATA"] = str(Path(folder, "data"))
        try:
            yield
        finally:
            del os.environ["MICROBENCH_DATA"]
            if before is not None:
                os.environ["MICROBENCH_DATA"] = before


def _outputs(source: str, names: dict[str, Any]) -> list[Cell]:
    """What a notebook shows below a cell: what it prints, and the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[Cell] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True), **data}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def write() -> None:
    notebook = whole()
    several = code_cells(notebook)
    for number, (cell, outputs) in enumerate(zip(several, executed(), strict=True), 1):
        cell["execution_count"] = number
        cell["outputs"] = [
            {**one, **({"execution_count": number} if "execution_count" in one else {})} for one in outputs
        ]
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write())

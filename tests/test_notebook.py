"""The notebook of the library: its cells run, and show what is stored in it."""

import re
from typing import Any

import notebook
import pytest

KINDS = {"text/html", "text/plain"}


def shown(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if key != "execution_count"} for one in outputs]


@pytest.fixture(scope="module")
def executed() -> list[list[dict[str, Any]]]:
    return notebook.executed()


def test_every_cell_shows_what_is_stored(executed: list[list[dict[str, Any]]]) -> None:
    pairs = [(cell, outputs) for cell, outputs in zip(notebook.code_cells(), executed, strict=True)]
    fixed = [(cell, outputs) for cell, outputs in pairs if not notebook.varies(cell)]
    assert len(fixed) > 5
    for cell, outputs in fixed:
        changed = f"{''.join(cell['source'])}\nshows something else now: python tests/notebook.py"
        assert shown(cell["outputs"]) == shown(outputs), changed


def test_what_is_measured_is_simulated_and_marked(executed: list[list[dict[str, Any]]]) -> None:
    measured = [
        (cell, outputs) for cell, outputs in zip(notebook.code_cells(), executed, strict=True) if notebook.varies(cell)
    ]
    assert len(measured) >= 2
    for cell, now in measured:
        assert "mb.run(" in "".join(cell["source"])
        for outputs in (cell["outputs"], now):
            *_, result = outputs
            assert result["data"].keys() == KINDS
            assert all("SIMULATED" in "".join(text) for text in result["data"].values())
    others = "".join("".join(cell["source"]) for cell in notebook.code_cells() if not notebook.varies(cell))
    assert "mb.run(" not in others


def test_the_notebook_is_one_that_jupyter_opens() -> None:
    whole = notebook.whole()
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in whole["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    numbers = [cell["execution_count"] for cell in notebook.code_cells()]
    assert numbers == list(range(1, len(numbers) + 1))

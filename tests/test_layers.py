"""The structure of the package: which room imports which, who may import which package, what never appears in code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).resolve().parent.parent
# Which rooms a room may import besides itself. No arrow points up and there is no circle.
ROOMS: dict[str, str] = {
    "core": "",
    "analysis": "core",
    "host": "core",
    "gpu": "host core",
    "measure": "gpu analysis core",
    "benchmarks": "measure gpu core",
    "compare": "analysis core",
    "predict": "compare analysis core",
    "explain": "predict host analysis core",
    "runs": "explain analysis core",
    "run": "runs measure explain gpu host analysis core",
    "report": "run runs explain predict compare analysis core",
    "cli": "report run runs explain predict compare gpu analysis core",
}
# The simulated GPU shares no arithmetic with the model that is fitted to it.
NEVER: tuple[tuple[str, str], ...] = (("gpu.fake", "predict"),)

# Where a package may be imported. The longest name counts: numba.cuda is not numba.
PACKAGES: dict[str, tuple[str, ...]] = {
    "cuda": ("gpu", "_kernels"),
    "cupy": ("gpu", "_kernels"),
    "cupyx": ("gpu", "_kernels"),
    "jax": ("gpu.layers",),
    "jaxlib": ("gpu.layers",),
    "jinja2": ("report.page",),
    "markupsafe": ("report.page",),
    "llvmlite": ("gpu", "_kernels", "host.loops"),
    "numba": ("gpu", "_kernels", "host.loops", "host.graph_loops"),
    "numba.cuda": ("gpu", "_kernels"),
    "nvmath": ("gpu", "_kernels"),
    "pynvml": ("gpu.machine.nvml",),
    "pypdfium2": ("report.figures",),
    "reportlab": ("report.figures",),
    "rich": ("report.terminal", "cli"),
    "torch": ("gpu.layers",),
    "triton": ("gpu.layers",),
    "typer": ("cli",),
    "warp": ("gpu.layers",),
}

PRINTING = ("cli", "report")
BOUNDARY = "run.worker"  # the one place that survives any exception


def within(module: str, places: tuple[str, ...]) -> bool:
    """True if the module is one of the places or lies inside one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def room_of(module: str) -> str | None:
    """The room that a module named without ``microbench.`` lies in; None outside of all."""
    room = module.partition(".")[0]
    return room if room in ROOMS else None


def imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported: at the top, in functions, for type checking, by a literal name."""
    package = f"microbench.{module}" if is_package else f"microbench.{module}".rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            source = ".".join([*parents, *filter(None, [node.module])]) if node.level else str(node.module)
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def import_faults(tree: ast.Module, module: str, is_package: bool = False) -> Iterator[str]:
    """Imports that ROOMS, NEVER or PACKAGES forbid."""
    own = room_of(module)
    for line, name in imported(tree, module, is_package):
        inner = name.removeprefix("microbench.")
        if name.startswith("microbench."):
            other = room_of(inner)
            if own is not None and other not in (None, own, *ROOMS[own].split()):
                yield f"{module}:{line}: room {own} may not import {inner}"
            yield from (
                f"{module}:{line}: {who} never imports {what}"
                for who, what in NEVER
                if within(module, (who,)) and within(inner, (what,))
            )
        rules = [package for package in PACKAGES if within(name, (package,))]
        if rules and not within(module, PACKAGES[max(rules, key=len)]):
            yield f"{module}:{line}: {name} may be imported only in {', '.join(PACKAGES[max(rules, key=len)])}"


def broad(handler: ast.ExceptHandler) -> bool:
    """True if it catches everything."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in caught)


def source_faults(tree: ast.Module, module: str) -> Iterator[str]:
    """What house rules forbid inside one file."""
    if not (ast.get_docstring(tree) or "").strip():
        yield f"{module}:1: the first line says what the file is for"
    boundaries = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and broad(node):
            boundaries += 1
            if module != BOUNDARY or boundaries > 1:
                yield f"{module}:{node.lineno}: catches every exception; only {BOUNDARY} does, once"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and not within(module, PRINTING):
            yield f"{module}:{node.lineno}: print outside {' and '.join(PRINTING)}"
        elif isinstance(node, ast.Global):
            yield f"{module}:{node.lineno}: module state"


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Each import circle once, as ``a > b > a``."""
    found: list[str] = []
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append(" > ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                walk(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        walk(module, ())
    return found


def modules() -> dict[str, Path]:
    """Every Python file of the package by its name without ``microbench.``."""
    package = ROOT / "microbench"
    # Python 3.11 and 3.12 differ in whether rglob follows the link, so the kernels are named apart.
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] != "_kernels"]
    files += (package / "_kernels").glob("*.py")
    names = (".".join(path.relative_to(package).with_suffix("").parts) for path in files)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, files, strict=True)}


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def is_package(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def test_the_package_is_found() -> None:
    assert {"cli.app", "gpu.protocol.gpu", "host.loops", "_kernels"} <= set(MODULES)


def test_every_module_is_in_a_room() -> None:
    outside = {"microbench", "__init__", "__main__", "_kernels", "_kernels.numba_kernels", "_kernels.numba_stream"}
    assert [name for name in MODULES if room_of(name) is None and name not in outside] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_imports_only_what_it_may(module: str) -> None:
    assert list(import_faults(TREES[module], module, is_package(module))) == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_keeps_the_house_rules(module: str) -> None:
    assert list(source_faults(TREES[module], module)) == []


def test_no_import_circles() -> None:
    graph: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        names = [name.removeprefix("microbench.") for _, name in imported(tree, module, is_package(module))]
        # `from microbench.x import y`: y is a module or a name inside x.
        graph[module] = {name if name in MODULES else name.rpartition(".")[0] for name in names} & set(MODULES) - {
            module
        }
    assert circles(graph) == []


def faults(source: str, module: str) -> list[str]:
    tree = ast.parse(source)
    return [*import_faults(tree, module), *source_faults(tree, module)]


@pytest.mark.parametrize(
    ("module", "body"),
    [
        ("analysis.stats", "from microbench.measure.timer import Meter"),
        ("analysis.stats", "from microbench import measure"),
        ("analysis.stats", "def later():\n    import microbench.cli"),
        ("analysis.stats", "if TYPE_CHECKING:\n    from microbench.gpu.protocol.gpu import Gpu"),
        ("analysis.stats", "importlib.import_module('microbench.run.session')"),
        ("host.loops", "from ..run.session import run"),
        ("report.tables", "from microbench.gpu.protocol.gpu import Gpu"),
        ("report.tables", "import rich.table"),
        ("gpu.fake.device", "from microbench.predict import model"),
        ("host.loops", "from numba import cuda"),
        ("host.facts", "import numba"),
        ("gpu.cuda.device", "import torch"),
        ("gpu.cuda.device", "import pynvml"),
        ("runs.store", "__import__('cupy')"),
        ("analysis.stats", "print(1)"),
        ("run.session", "try:\n    pass\nexcept Exception:\n    pass"),
        ("run.session", "try:\n    pass\nexcept (OSError, BaseException):\n    pass"),
        ("run.session", "try:\n    pass\nexcept:\n    pass"),
        ("run.worker", "try:\n    pass\nexcept Exception:\n    pass\n" * 2),
        ("analysis.stats", "def f():\n    global state\n    state = 1"),
    ],
)
def test_a_planted_fault_is_found(module: str, body: str) -> None:
    assert faults(f'"""What it is for."""\n{body}', module) != []


def test_a_missing_docstring_is_found() -> None:
    assert faults("x = 1", "analysis.stats") == ["analysis.stats:1: the first line says what the file is for"]


def test_a_module_outside_the_rooms_is_found() -> None:
    assert room_of("helpers") is None


@pytest.mark.parametrize(
    ("module", "body"),
    [
        ("report.terminal.terminal", "from rich.table import Table\nfrom microbench.report.document import Report"),
        ("host.loops", "from numba import njit\nfrom microbench.core.model import Run"),
        ("gpu.layers.torch", "import torch\nfrom cuda.bindings import driver\nfrom numba import cuda"),
        ("gpu.machine.nvml", "import pynvml"),
        ("cli.app", "print(1)\nfrom microbench.run.session import run"),
        ("run.worker", "try:\n    pass\nexcept Exception:\n    pass"),
    ],
)
def test_what_is_allowed_passes(module: str, body: str) -> None:
    assert faults(f'"""What it is for."""\n{body}', module) == []


def test_circles_are_found_once() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b > c > b"]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

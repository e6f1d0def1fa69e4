"""The structure of the package: layers, who may import which package, sizes, and what never appears in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).resolve().parent.parent
LONGEST_FILE = 300
LONGEST_FUNCTION = 40

# A module imports its own layer or lower ones, never up, never in a circle. A folder counts with all it holds.
LAYERS: dict[int, tuple[str, ...]] = {
    5: (
        "__main__",
        "cli",
        "cli_compare",
        "cli_look",
        "cli_model",
        "cli_page",
        "cli_runs",
        "cli_share",
        "ending",
        "options",
        "options_compare",
        "options_look",
        "options_page",
        "options_share",
    ),
    4: ("doctor", "probing", "process", "runner", "supervisor", "worker"),
    3: ("bench", "benchmarks", "budget", "measure", "plan", "request", "selection"),
    2: (
        "alternating",
        "batches",
        "candidates",
        "compare",
        "compare_decision",
        "compare_environment",
        "compare_figures",
        "compare_levels",
        "compare_pairs",
        "compare_spread",
        "energy",
        "explain",
        "export",
        "floors",
        "gated",
        "gemms",
        "history",
        "index",
        "instructions",
        "lasting",
        "prune",
        "report",
        "runfile",
        "sampling",
        "recorded",
        "redaction",
        "remarks",
        "skim",
        "store",
        "streams",
        "timing",
        "transfers",
        "trend",
        "traffic",
        "working_sets",
        "workloads",
    ),
    1: (
        "_kernels",
        "carried",
        "costmodel",
        "fits",
        "fitted",
        "gpu",
        "host",
        "limits",
        "rates",
        "quantiles",
        "redacted_text",
        "run_schema",
        "schema",
        "stats",
        "submission",
        "throttling",
    ),
    0: ("__init__", "errors", "events", "messages", "model", "ops", "text", "units", "workload"),
}

# What a layer would allow and the design does not: (module, what it never imports).
NEVER: tuple[tuple[str, str], ...] = (
    ("report", "gpu"),  # a report is drawn from a run file, on any machine
    ("explain", "gpu"),
    ("gpu.fake", "submission"),
    ("gpu.fake", "costmodel"),  # a fit to the fake must give back the fake's own constants
)

# Where a package may be imported. The longest name counts: numba.cuda is not numba.
PACKAGES: dict[str, tuple[str, ...]] = {
    "altair": ("report.figures",),
    "cuda": ("gpu", "_kernels"),
    "cupy": ("gpu", "_kernels"),
    "cupyx": ("gpu", "_kernels"),
    "jax": ("gpu.layers",),
    "jaxlib": ("gpu.layers",),
    "jinja2": ("report.page",),
    "markupsafe": ("report.page",),
    "llvmlite": ("gpu", "_kernels", "host.loops"),
    "numba": ("gpu", "_kernels", "host.loops", "host.callbacks"),
    "numba.cuda": ("gpu", "_kernels"),
    "nvmath": ("gpu", "_kernels"),
    "pynvml": ("gpu.nvml",),
    "rich": ("report.terminal", "report.lines", "report.progress", "cli"),
    "torch": ("gpu.layers",),
    "triton": ("gpu.layers",),
    "typer": (
        "cli",
        "cli_compare",
        "cli_page",
        "cli_share",
        "ending",
        "options",
        "options_compare",
        "options_look",
        "options_page",
        "options_share",
    ),
    "vl_convert": ("report.figures", "report.page"),
    "warp": ("gpu.layers",),
}

PRINTING = ("cli", "report")
BOUNDARY = "worker"  # the one place that survives any exception


def within(module: str, places: tuple[str, ...]) -> bool:
    """True if the module is one of the places or lies inside one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def layer_of(module: str) -> int | None:
    """The layer of a module named without ``microbench.``; None if the table lacks it."""
    return next((layer for layer, places in LAYERS.items() if within(module, places)), None)


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
    """Imports that the layers, NEVER or PACKAGES forbid."""
    own = layer_of(module)
    for line, name in imported(tree, module, is_package):
        inner = name.removeprefix("microbench.")
        if name.startswith("microbench."):
            other = layer_of(inner)
            if own is not None and other is not None and other > own:
                yield f"{module}:{line}: layer {own} imports {inner} of layer {other}"
            yield from (
                f"{module}:{line}: {who} never imports {what}"
                for who, what in NEVER
                if within(module, (who,)) and within(inner, (what,))
            )
        rules = [package for package in PACKAGES if within(name, (package,))]
        if rules and not within(module, PACKAGES[max(rules, key=len)]):
            yield f"{module}:{line}: {name} may be imported only in {', '.join(PACKAGES[max(rules, key=len)])}"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function after its docstring. A command's signature does not count: it is the list of its options."""
    described = ast.get_docstring(function) is not None
    head = function.body[0].end_lineno if described else function.body[0].lineno - 1
    return (function.end_lineno or 0) - (head or 0)


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
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > LONGEST_FUNCTION:
            yield f"{module}:{node.lineno}: {node.name} has {body_lines(node)} lines, more than {LONGEST_FUNCTION}"


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
    assert {"cli", "gpu.api", "host.loops", "_kernels"} <= set(MODULES)


def test_every_module_is_in_the_layer_table() -> None:
    assert [name for name in MODULES if layer_of(name) is None] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_imports_only_what_it_may(module: str) -> None:
    assert list(import_faults(TREES[module], module, is_package(module))) == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_keeps_the_house_rules(module: str) -> None:
    assert list(source_faults(TREES[module], module)) == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_file_is_short(module: str) -> None:
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE


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
        ("stats", "from microbench.timing import Meter"),
        ("stats", "from microbench import timing"),
        ("stats", "def later():\n    import microbench.cli"),
        ("stats", "if TYPE_CHECKING:\n    from microbench.bench import Axis"),
        ("stats", "importlib.import_module('microbench.runner')"),
        ("host.loops", "from ..runner import run"),
        ("report.view", "from microbench.gpu.api import Gpu"),
        ("report.view", "import rich.table"),
        ("gpu.fake.device", "from microbench import costmodel"),
        ("host.loops", "from numba import cuda"),
        ("host.facts", "import numba"),
        ("gpu.cuda", "import torch"),
        ("gpu.cuda", "import pynvml"),
        ("store", "__import__('cupy')"),
        ("stats", "print(1)"),
        ("runner", "try:\n    pass\nexcept Exception:\n    pass"),
        ("runner", "try:\n    pass\nexcept (OSError, BaseException):\n    pass"),
        ("runner", "try:\n    pass\nexcept:\n    pass"),
        ("worker", "try:\n    pass\nexcept Exception:\n    pass\n" * 2),
        ("stats", "def f():\n    global state\n    state = 1"),
        ("stats", "def f():\n" + "    x = 1\n" * (LONGEST_FUNCTION + 1)),
    ],
)
def test_a_planted_fault_is_found(module: str, body: str) -> None:
    assert len(faults(f'"""What it is for."""\n{body}', module)) == 1


def test_a_missing_docstring_is_found() -> None:
    assert faults("x = 1", "stats") == ["stats:1: the first line says what the file is for"]


def test_a_module_outside_the_table_is_found() -> None:
    assert layer_of("helpers") is None


@pytest.mark.parametrize(
    ("module", "body"),
    [
        ("report.terminal", "from rich.table import Table\nfrom microbench.report.view import Report"),
        ("host.loops", "from numba import njit\nfrom microbench.gpu.api import IntArray"),
        ("gpu.layers.torch", "import torch\nfrom cuda.bindings import driver\nfrom numba import cuda"),
        ("gpu.nvml", "import pynvml"),
        ("cli", "print(1)\nfrom microbench.runner import run"),
        ("worker", "try:\n    pass\nexcept Exception:\n    pass"),
        ("stats", 'def f():\n    """' + "long\n    " * LONGEST_FUNCTION + '"""\n    return 1'),
    ],
)
def test_what_is_allowed_passes(module: str, body: str) -> None:
    assert faults(f'"""What it is for."""\n{body}', module) == []


def test_circles_are_found_once() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b > c > b"]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

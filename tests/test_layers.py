"""The structure of the package: which room imports which, who may import which package, and the house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "microbench"
# The rooms that a room may import besides itself. Each names only rooms above it in this table, so there is no circle.
ROOMS: dict[str, str] = {
    "core": "",
    "analysis": "core",
    "host": "core",
    "recorder": "core",
    "gpu": "host core",
    "meter": "gpu analysis core",
    "experiments": "meter gpu recorder host core",
    "benchmarks": "meter experiments gpu core",
    "capture": "experiments core",
    "comparison": "analysis core",
    "model": "analysis core",
    "explain": "model host analysis core",
    "archive": "explain analysis core",
    "traces": "recorder core",
    "diagnosis": "traces model analysis core",
    "session": "archive meter explain gpu host analysis core",
    "report": "capture diagnosis session archive explain model comparison analysis core",
    "fleet": "report session archive explain analysis core",
    "library": "report capture diagnosis traces session archive explain model comparison gpu recorder analysis core",
    "service": "library fleet diagnosis traces recorder core",
    "cli": (
        "service library fleet report diagnosis traces session archive explain model experiments gpu recorder analysis"
        " core"
    ),
}
MOST_ROOMS, MOST_ARROWS = 21, 92
# The most lines that a room may have. Who adds more deletes as many, or raises the number and says why.
LINES = {
    "core": 1601,  # async functions and generators are run; a step that is no function yet
    "analysis": 1455,  # busy rounds of the host are told by its controls, and by calls of Python layers
    "host": 1782,  # says that it needs Numba
    "recorder": 1808,  # who waits for the lock; opens no file while a program runs; Python joins CUDA; signals once
    "gpu": 8562,  # CuTe DSL and TileLang
    "meter": 951,
    "experiments": 10258,  # compilers have bounded memory; green contexts; device launches and priorities in graphs
    "benchmarks": 4901,  # rates of functions; green contexts; device launches and priorities in graphs
    "capture": 4659,  # graphs of CuPy, Numba and cuda.core, too: their calls that are in the way, memory, proof
    "comparison": 1962,  # sides measured in turn have a sequential rule
    "model": 4002,  # calls of quiet rounds; speed-ups have intervals; larger calls; many small copies
    "explain": 6403,  # functions have ceilings as kernels do; constants for libraries; many small copies
    "archive": 1859,
    "traces": 3639,  # bytes of collectives; calls inside others
    "diagnosis": 9401,  # rare steps with other work; made code; what copies bring; what changed; pauses; late ranks
    "session": 2123,  # two sides are measured in turn, with Pythons and variables of their own
    "report": 8180,  # counts and what changed, as a screen, Markdown and metrics; kernels and blockers as JSON
    "fleet": 3530,  # TLS is refused in words; what workers return is checked; JSON; windows of long watches
    "library": 2350,  # blocks end at any Ctrl-C; counts of a call; callbacks; the sides of ab; constants
    "service": 776,  # watching for hours: budget, metrics, alerts, who may ask
    "cli": 2662,  # tests have baselines of their own; five more commands answer in JSON; ab; graph; counts; constants
}
OUTSIDE = {"", "__main__", "_kernels", "_kernels.numba_kernels", "_kernels.numba_stream"}

# Where a package may be imported. The longest name counts: numba.cuda is not numba.
PACKAGES: dict[str, tuple[str, ...]] = {
    "asyncssh": ("fleet.clusters",),
    "cuda": ("gpu", "_kernels", "experiments.link.collectives", "capture"),
    "cupy": ("gpu", "_kernels", "capture"),
    "cupyx": ("gpu", "_kernels"),
    "cutlass": ("gpu.layers",),
    "dask": ("fleet",),
    "dask_jobqueue": ("fleet.clusters",),
    "distributed": ("fleet",),
    "duckdb": ("fleet.store",),
    "jax": ("gpu.layers",),
    "jaxlib": ("gpu.layers",),
    "jinja2": ("report.page",),
    "markupsafe": ("report.page",),
    "llvmlite": ("gpu", "_kernels", "host.loops"),
    "numba": ("gpu", "_kernels", "host.loops", "host.graph_loops"),
    "numba.cuda": ("gpu", "_kernels"),
    "nvmath": ("experiments.compute",),
    "pyarrow": ("fleet.store", "library.results"),
    "pynvml": ("gpu.machine.nvml",),
    "prometheus_client": ("service.metrics",),
    "rich": ("report.terminal", "cli"),
    "tilelang": ("gpu.layers",),
    "torch": ("gpu.layers", "capture"),
    "triton": ("gpu.layers",),
    "tvm_ffi": ("gpu.layers",),
    "typer": ("cli",),
    "warp": ("gpu.layers",),
}
PRINTING = ("cli", "report")
# The only files that survive any exception: of a benchmark, of a user's function whose capture may fail, of the
# recorder inside of a program that is watched, and of one recording of many.
BOUNDARIES = (
    "session.worker", "experiments.own.culprit", "recorder.inject.sitecustomize", "capture.making", "capture.proof",
    "service.service",
)  # fmt: skip


def within(module: str, places: tuple[str, ...]) -> bool:
    """True if the module is one of the places or lies inside one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def room_of(module: str) -> str | None:
    """The room of a module named without ``microbench.``; None outside of all rooms."""
    room = module.partition(".")[0]
    return room if room in ROOMS else None


Imports = list[tuple[int, str]]


@cache
def modules() -> dict[str, tuple[ast.Module, Imports]]:
    """Every module by its name without ``microbench.``: its syntax tree and its imports."""
    # Python 3.11 and 3.12 differ in whether rglob follows the link, so the kernels are listed separately.
    paths = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "_kernels"]
    modules = {}
    for path in (*paths, *(PACKAGE / "_kernels").glob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name, tree = ".".join(parts[:-1] if is_package else parts), ast.parse(path.read_text(encoding="utf-8"))
        modules[name] = tree, list(imported(tree, name, is_package))
    return modules


def imported(tree: ast.Module, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
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


def import_faults(module: str, imports: Imports) -> Iterator[str]:
    """Imports that ROOMS or PACKAGES forbid."""
    own = room_of(module)
    for line, name in imports:
        inner = name.removeprefix("microbench.")
        other = room_of(inner) if name.startswith("microbench.") else None
        if own is not None and other not in (None, own, *ROOMS[own].split()):
            yield (
                f"{module}:{line}: {own} may not import {inner}: move what both need down to "
                f"{' or '.join(ROOMS[own].split()) or own}, or have the caller pass it in"
            )
        rules = [package for package in PACKAGES if within(name, (package,))]
        places = PACKAGES[max(rules, key=len)] if rules else ()
        if rules and not within(module, places):
            yield f"{module}:{line}: {name} may be imported only in {' or '.join(places)}: move the code there"


def source_faults(tree: ast.Module, module: str) -> Iterator[str]:
    """What house rules forbid inside one file."""
    if not (ast.get_docstring(tree) or "").strip():
        yield f"{module}:1: the file has no docstring: begin it with a sentence that says what it gives its reader"
    boundaries = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in caught):
                boundaries += 1
                if module not in BOUNDARIES or boundaries > 1:
                    yield f"{module}:{node.lineno}: catches every exception: name the ones that you expect"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" and not within(module, PRINTING):
            yield f"{module}:{node.lineno}: prints: return the text and let {' or '.join(PRINTING)} print it"
        elif isinstance(node, ast.Global):
            yield f"{module}:{node.lineno}: changes module state: keep it in an object or pass it as an argument"


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


def test_every_module_is_in_a_room() -> None:
    assert {"cli.app", "gpu.protocol.gpu", "host.loops", "_kernels"} <= set(modules())
    outside = [module for module in modules() if room_of(module) is None and module not in OUTSIDE]
    assert outside == [], "move these files into a room, or add a line for theirs to ROOMS"


def test_modules_import_only_what_they_may() -> None:
    faults = [fault for module, (_, imports) in modules().items() for fault in import_faults(module, imports)]
    assert faults == [], "\n".join(faults)


def test_modules_keep_the_house_rules() -> None:
    faults = [fault for module, (tree, _) in modules().items() for fault in source_faults(tree, module)]
    assert faults == [], "\n".join(faults)


def test_modules_import_each_other_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, (_, imports) in modules().items():
        own = [name for _, name in imports if name.startswith("microbench.")]
        names = [name.removeprefix("microbench.") for name in own]
        # `from microbench.x import y`: y is a module or a name inside x.
        used = {name if name in modules() else name.rpartition(".")[0] for name in names}
        graph[module] = used & set(modules()) - {module}
    assert circles(graph) == [], "move what these files share into one of them, or into a file that both import"


def test_rooms_and_arrows_between_them_stay_few() -> None:
    above: set[str] = set()
    for room, others in ROOMS.items():
        assert set(others.split()) <= above, f"{room} may import only rooms above it in ROOMS: move its line down"
        above.add(room)
    arrows = {
        (room_of(module), room_of(name.removeprefix("microbench.")))
        for module, (_, imports) in modules().items()
        for _, name in imports
        if name.startswith("microbench.")
    }
    between = {(own, other) for own, other in arrows if own and other and own != other}
    unused = {(room, other) for room, others in ROOMS.items() for other in others.split()} - between
    assert not unused, f"no file needs these arrows any more, remove them from ROOMS: {sorted(unused)}"
    assert len(ROOMS) <= MOST_ROOMS, "join rooms that are one concern"
    assert len(between) <= MOST_ARROWS, f"remove an import between rooms: {sorted(between)}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_to_its_lines(room: str) -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / room).rglob("*.py"))
    assert lines <= LINES[room], f"{room} has {lines} lines: delete as many as you add, or raise LINES and say why"


def test_rooms_say_in_one_line_what_they_are_for() -> None:
    for path in sorted(PACKAGE.rglob("__init__.py")):
        if path.parent not in (PACKAGE, PACKAGE / "_kernels"):
            (statement, *more) = ast.parse(path.read_text(encoding="utf-8")).body
            one_line = isinstance(statement, ast.Expr) and statement.lineno == statement.end_lineno
            where = path.relative_to(PACKAGE)
            assert one_line, f"{where} must begin with one docstring line that says what the room is for"
            assert not more, f"{where} must hold nothing but its docstring: move the code to a file of the room"


@pytest.mark.parametrize(("module", "body"), [
    ("analysis.stats", "from microbench.meter.timer import Meter"),
    ("analysis.stats", "from microbench import meter"),
    ("analysis.stats", "def later():\n    import microbench.cli"),
    ("analysis.stats", "if TYPE_CHECKING:\n    from microbench.gpu.protocol.gpu import Gpu"),
    ("analysis.stats", "importlib.import_module('microbench.session.session')"),
    ("host.loops", "from ..session.session import execute"),
    ("report.tables", "from microbench.gpu.protocol.gpu import Gpu"),
    ("report.tables", "import rich.table"),
    ("gpu.fake.device", "from microbench.model import model"),
    ("host.loops", "from numba import cuda"),
    ("host.facts", "import numba"),
    ("gpu.cuda.device", "import torch"),
    ("gpu.cuda.device", "import pynvml"),
    ("archive.store", "__import__('cupy')"),
    ("analysis.stats", "print(1)"),
    ("session.session", "try:\n    pass\nexcept Exception:\n    pass"),
    ("session.session", "try:\n    pass\nexcept (OSError, BaseException):\n    pass"),
    ("session.session", "try:\n    pass\nexcept:\n    pass"),
    ("session.worker", "try:\n    pass\nexcept Exception:\n    pass\n" * 2),
    ("analysis.stats", "def f():\n    global state\n    state = 1"),
    ("analysis.stats", None),
])  # fmt: skip
def test_a_planted_fault_is_found(module: str, body: str | None) -> None:
    tree = ast.parse("x = 1" if body is None else f'"""What it is for."""\n{body}')
    assert [*import_faults(module, [*imported(tree, module)]), *source_faults(tree, module)] != []


@pytest.mark.parametrize(("module", "body"), [
    ("report.terminal.terminal", "from rich.table import Table\nfrom microbench.report.document import Report"),
    ("host.loops", "from numba import njit\nfrom microbench.core.model import Run"),
    ("gpu.layers.torch", "import torch\nfrom cuda.bindings import driver\nfrom numba import cuda"),
    ("gpu.machine.nvml", "import pynvml"),
    ("cli.app", "print(1)\nfrom microbench.session.session import run"),
    ("session.worker", "try:\n    pass\nexcept Exception:\n    pass"),
])  # fmt: skip
def test_what_is_allowed_passes(module: str, body: str) -> None:
    tree = ast.parse(f'"""What it is for."""\n{body}')
    assert [*import_faults(module, [*imported(tree, module)]), *source_faults(tree, module)] == []


def test_a_circle_is_reported_once() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b > c > b"]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

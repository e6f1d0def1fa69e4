"""The public names: quick to import, the same in every order of imports, callable, picklable, typed and complete."""

import copy
import importlib
import inspect
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import api_page
import pytest
from test_packaging import HEAVY_FOR_PACKAGE

import microbench

FUNCTIONS = {
    "compare": "pairs", "diagnose": "words", "measure": "sampling", "predict": "workload", "run": "session",
    "watch": "state",
}  # fmt: skip
# Statements that each may be the first one of a program.
STATEMENTS = (
    "import microbench",
    "import microbench as mb",
    "import microbench.compare.pairs",
    "import microbench.compare.pairs as pairs",
    "from microbench.compare import pairs",
    "from microbench import compare",
    "import microbench.run.session",
    "from microbench.run.session import execute",
    "from microbench import run, predict, diagnose",
    "import microbench.library.surface",
    "from microbench import *",
    "import microbench.run, microbench.predict.workload, microbench.diagnose.words",
    "import microbench.watch.program as program; program.watch",
    "from microbench.watch import cells, recorder",
    "from microbench import watch",
    "from microbench.measure.sampling import stored",
    "from microbench import measure",
    "import microbench.traces.reading, microbench.watch",
)
# Runs the statements in many orders, each in a package that was never imported, and checks what the names are then.
PROGRAM = """
import sys, types, pickle
statements, functions = {statements!r}, {functions!r}
turned = [statements[at:] + statements[:at] for at in range(len(statements))]
for several in [*turned, *(one[::-1] for one in turned)]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "microbench"]:
        del sys.modules[name]
    names = {{}}
    for one in several:
        exec(one, names)
    import microbench
    for function, inside in functions.items():
        place = getattr(microbench, function)
        assert place is sys.modules["microbench." + function], (several, function)
        assert callable(place) and isinstance(place, types.ModuleType), (several, function)
        assert names.get(function, place) is place, (several, function)
        exec(f"import microbench.{{function}}.{{inside}} as found", names)
        assert names["found"] is getattr(place, inside), (several, function)
        assert pickle.loads(pickle.dumps(place)) is place
    assert type(microbench.watch("unused.rows", stacks=True)) is microbench.Recording, several
    try:
        microbench.compare("nowhere", "nowhere")
    except microbench.RunUnreadableError:
        pass
    else:
        raise AssertionError(several)
print("done")
"""


def python(*arguments: str) -> str:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_names_are_the_same_in_every_order_of_imports(data: Path) -> None:
    assert python("-c", PROGRAM.format(statements=STATEMENTS, functions=FUNCTIONS)).split() == ["done"]


def test_the_import_loads_nothing_heavy_and_takes_little_time() -> None:
    code = "import sys; ready = set(sys.modules); import microbench; print(*set(sys.modules) - ready)"
    loaded = set(python("-c", code).split())
    assert {name.partition(".")[0] for name in loaded} & HEAVY_FOR_PACKAGE == set()
    # Every module takes time, so their number stands for it.
    assert len(loaded) < 30, sorted(loaded)


def test_every_public_name_is_there_and_described() -> None:
    names = {}
    exec("from microbench import *", names)
    assert names.keys() - {"__builtins__"} == set(microbench.__all__)
    assert dir(microbench) == sorted(microbench.__all__) == microbench.__all__
    for name in set(microbench.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(microbench, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = microbench.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_package_is_called_like_its_function(name: str) -> None:
    package, function = getattr(microbench, name), getattr(importlib.import_module("microbench.library.surface"), name)
    assert isinstance(package, types.ModuleType)
    assert inspect.signature(package) == inspect.signature(function)
    assert inspect.getdoc(package) == inspect.getdoc(function)
    assert pickle.loads(pickle.dumps(package)) is copy.copy(package) is package
    assert callable(importlib.reload(package))


def test_reloading_keeps_the_functions() -> None:
    assert callable(importlib.reload(microbench).run)


@pytest.mark.slow
def test_a_program_that_uses_the_names_is_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import microbench as mb\n"
        "import microbench.compare.pairs\n"
        "from microbench import compare, run\n"
        "reveal_type(mb.run('launch', quick=True))\n"
        "reveal_type(mb.load('nvidia-h200').rows('launch')[0].median)\n"
        "reveal_type(mb.measure(len, axes={'n': [1, 0.5]}).simulated)\n"
        "reveal_type(compare('a', 'b').fails())\n"
        "reveal_type(mb.predict(kernels=3).graph_s)\n"
        "with mb.watch() as recording: pass\n"
        "reveal_type(recording.diagnosis())\n"
        "run('launch', fast=True)\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)],
        capture_output=True, text=True, check=False, cwd=Path(microbench.__file__).parents[1],
    )  # fmt: skip
    said = result.stdout
    revealed = re.findall(r'Revealed type is "(?:builtins\.)?(.+)"', said)
    results, answer = "microbench.library.results.RecordedRun", "microbench.library.verdicts.DiagnosedTraces"
    assert revealed == [results, "float", "bool", "bool", "float | None", answer], said
    assert said.count("error:") == 1, said
    assert 'Unexpected keyword argument "fast"' in said


def test_the_page_of_the_library_is_up_to_date() -> None:
    named = [name for names in api_page.SECTIONS.values() for name in names]
    assert sorted([*named, "__version__"]) == sorted(microbench.__all__), "give each public name a place in the page"
    outdated = "a public name or its docstring changed: python tests/api_page.py"
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), outdated

"""The public names: quick to import, the same in every order of imports, callable, picklable, typed and complete."""

import dataclasses
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import site_pages

import microbench
from microbench.library.options import OwnOptions, RunOptions
from microbench.model.workload import StepOptions

FUNCTIONS = ("compare", "constants", "diagnose", "measure", "predict", "run", "watch")


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
def test_no_room_has_the_name_of_a_public_function(name: str) -> None:
    assert not (Path(microbench.__file__).parent / name).exists()
    function = getattr(microbench, name)
    assert function is getattr(importlib.import_module("microbench.library.surface"), name)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(("name", "options"), [("run", RunOptions), ("measure", OwnOptions), ("predict", StepOptions)])
def test_a_function_takes_the_options_of_its_command_with_their_defaults(name: str, options: type) -> None:
    taken = inspect.signature(getattr(microbench, name)).parameters
    for field in dataclasses.fields(options):
        parameter = taken[field.name]
        default = None if field.default is dataclasses.MISSING else field.default  # an empty mapping
        assert parameter.kind is inspect.Parameter.VAR_POSITIONAL or parameter.default == default, field.name


@pytest.mark.slow
def test_a_program_that_uses_the_names_is_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import microbench as mb\n"
        "import microbench.comparison.pairs\n"
        "from microbench import compare, run\n"
        "reveal_type(mb.run('launch', quick=True))\n"
        "reveal_type(mb.load('nvidia-h200').rows('launch')[0].median)\n"
        "reveal_type(mb.measure(len, axes={'n': [1, 0.5]}).simulated)\n"
        "reveal_type(compare('a', 'b').fails())\n"
        "reveal_type(mb.predict(kernels=3).graph_s)\n"
        "reveal_type(mb.constants()['launch.latency'].value)\n"
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
    assert revealed == [results, "float", "bool", "bool", "float | None", "float", answer], said
    assert said.count("error:") == 1, said
    assert 'Unexpected keyword argument "fast"' in said


def test_the_page_of_the_library_has_every_public_name_and_member() -> None:
    named = [name for names in site_pages.SECTIONS.values() for name in names]
    assert sorted([*named, "__version__"]) == sorted(microbench.__all__), "give each public name a place in the page"
    page = site_pages.library_page()  # stops at a name or member without a docstring
    for name in named:
        assert f"\n### {name}\n" in page

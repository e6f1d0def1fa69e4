"""What is shipped: the wheel works on its own, imports stay light, and every requirement is pinned."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

import microbench
from microbench.cli.app import parser

ROOT = Path(__file__).resolve().parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]

HEAVY = {
    "cuda", "cupy", "cutlass", "jax", "llvmlite", "numba", "numpy", "pynvml", "tilelang", "torch", "triton", "warp",
}  # fmt: skip
# With rich and the structs that messages and files are made of, all that a command may load to answer --help.
HEAVY_FOR_PACKAGE = HEAVY | {"msgspec", "rich", "typer"}


def plain(requirement: str) -> str:
    """The name alone, as package indexes compare it."""
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def shipped() -> set[str]:
    """Every file of the source package, as it must lie in the wheel."""
    files = [path for path in (ROOT / "microbench").rglob("*") if "_kernels" not in path.parts]
    files += (ROOT / "microbench" / "_kernels").glob("*")
    paths = (path.relative_to(ROOT) for path in files if path.is_file() and "__pycache__" not in path.parts)
    return {"cuda_microbench.py", *map(str, paths)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    assert {name for name in archive.namelist() if not name.startswith("cuda_microbench-")} == shipped()
    assert {"microbench/py.typed", "microbench/_kernels/launch.cu"} <= shipped()
    folder = f"cuda_microbench-{microbench.__version__}.dist-info"
    assert b"Apache License" in archive.read(f"{folder}/licenses/LICENSE")
    # The folder of kernels is a link in the source; the wheel must hold the files themselves.
    assert archive.read("microbench/_kernels/launch.cu") == (ROOT / "kernels" / "launch.cu").read_bytes()


def commands(group: Any, above: str) -> Iterator[str]:
    """The name of each command that does something."""
    for word, command in group.commands.items():
        if getattr(command, "invoke_without_command", True):
            yield f"{above}{word}"
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{word} ")


def test_the_wheel_brings_a_manual_page_of_every_command(wheel: Path) -> None:
    name = f"cuda_microbench-{microbench.__version__}.data/data/share/man/man1/microbench.1"
    page = zipfile.ZipFile(wheel).read(name)
    shown = re.findall(r'^\.SS "microbench ((?:[a-z]+ )+)', page.decode(), re.MULTILINE)
    assert [name.strip() for name in shown] == list(commands(typer.main.get_command(parser()), ""))
    if groff := shutil.which("groff"):
        drawn = subprocess.run(
            [groff, "-man", "-k", "-ww", "-Tutf8", "-P-cbou"], input=page, capture_output=True, check=True
        )
        assert drawn.stderr == b""
        assert "--setup TARGET" in drawn.stdout.decode()


def test_an_installed_wheel_works_without_the_source(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(pip, check=True, capture_output=True)
    # PYTHONPATH comes before the editable install, and PYTHONSAFEPATH keeps the current folder out.
    variables = {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1", "MICROBENCH_DATA": str(tmp_path)}

    def words(*command: str | Path) -> str:
        result = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, env={**os.environ, **variables}
        )
        assert result.returncode == 0, (command, result.stderr)
        return result.stdout

    assert words("-c", "import microbench; print(microbench.__file__)").startswith(str(target))
    assert "Usage: microbench" in words(target / "bin" / "microbench", "--help")
    assert "H200" in words("-m", "microbench", "show", "nvidia-h200")
    run = words(
        "-m", "microbench", "run", "launch_kind", "--device", "fake", "--quick", "--out", str(tmp_path / "run.json")
    )
    assert "SIMULATED" in run
    assert '"status":"ok"' in (tmp_path / "run.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("other", ["", "from microbench.core.bench import MicroBench"])
def test_another_package_called_microbench_is_one_line(tmp_path: Path, other: str) -> None:
    """It has files of the same names, whatever they can import."""
    folder = tmp_path / "microbench"
    (folder / "core").mkdir(parents=True)
    (folder / "__init__.py").write_text(other)
    (folder / "core" / "bench.py").write_text("MicroBench = 1")
    (folder / "__main__.py").write_text("main = print")
    paths = [str(tmp_path), str(ROOT)]
    code = f"import sys; sys.path[:0] = {paths}; import cuda_microbench; cuda_microbench.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"error: `import microbench` gives '{folder}/__init__.py', not the package of cuda-microbench",
        "next:  pip uninstall microbench, then install this one again from its checkout or wheel",
    ]


def test_no_message_tells_to_install_a_name_that_no_index_has() -> None:
    texts = [*(ROOT / "microbench").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    told = re.compile(r"pip install (-\S+ )*['\"]?(cuda-)?microbench")
    assert [str(path) for path in texts if told.search(path.read_text(encoding="utf-8"))] == []


def test_installed_version_and_command_are_the_package_s() -> None:
    assert version("cuda-microbench") == microbench.__version__
    assert DECLARED["project"]["scripts"] == {"microbench": "cuda_microbench:main"}


@pytest.mark.parametrize(("used", "heavy"), [
    ("import microbench", HEAVY_FOR_PACKAGE), ("import microbench.cli.app", HEAVY | {"rich"}),
    ("from microbench.cli.app import parser; parser()(['show', 'nvidia-h200'], standalone_mode=False)",
     {"numba", "cuda", "cupy", "torch"}),
    ("from microbench.traces import scanner", {"numba", "cuda", "cupy", "torch"}),
    ("from microbench.report.figures.catalogue import KINDS", {"numpy"}),
    ("from microbench.gpu.layers.base import layers; layers()",
     {"cuda", "cupy", "cutlass", "numba.cuda", "tilelang", "torch", "triton", "warp", "jax"}),
])  # fmt: skip
def test_what_is_used_is_all_that_is_imported(used: str, heavy: set[str]) -> None:
    code = f"import sys; ready = {{*sys.modules}}; {used}; print(*{{*sys.modules}} - ready, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = result.stderr.split()
    assert ({name.partition(".")[0] for name in loaded} | {*loaded}) & heavy == set()
    # Every module takes time, so their number stands for it.
    assert used != "import microbench" or len(loaded) < 30, sorted(loaded)


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in PINS if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9.]*(\.post[0-9]+)?", line)] == []
    assert len({plain(line) for line in PINS}) == len(PINS)


def test_every_direct_requirement_is_pinned() -> None:
    project = DECLARED["project"]
    asked = {*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)}
    # One pin cannot serve CUDA 12 and 13: the extras hold cuda-bindings to one major version each.
    assert {plain(name) for name in asked} - {plain(line) for line in PINS} == {"cuda-bindings"}


def test_core_needs_no_gpu_package() -> None:
    core = {plain(name) for name in DECLARED["project"]["dependencies"]}
    assert core & (HEAVY - {"numpy"}) == set()
    assert not [name for name in DECLARED["project"]["dependencies"] if "cuda" in name or "nvidia" in name]

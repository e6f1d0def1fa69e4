"""Tests of the C libraries as a release has them: made by zig for both processors, and the recorder's run on both."""

import array
import ctypes
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from c_library import TWIN
from test_traces_chrome import decoded, document, dumps, sample, scanned, told
from test_traces_nsys import names
from watched import NotPython, Place, only

from microbench.traces.trace import Table, Trace

ROOT = Path(__file__).resolve().parents[1]
MACHINES = {"x86_64": 62, "aarch64": 183}  # their numbers in an ELF header
SYSROOT = Path(os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def zig() -> str:
    """The command of zig."""
    if found := os.environ.get("ZIG") or shutil.which("zig"):
        return found
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no zig here, which ZIG may name")
    return f"{sys.executable} -m ziglang"


@pytest.fixture(scope="module")
def release(zig: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all libraries."""
    folder = tmp_path_factory.mktemp("libraries")
    environment = {**os.environ, "ZIG": zig, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "libraries", folder], check=True, env=environment)
    return folder


@pytest.fixture(scope="module")
def made(release: Path) -> dict[str, Path]:
    """The recorder's libraries by their processor."""
    return {machine: next(release.glob(f"recorder-{machine}-*.so")) for machine in MACHINES}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_scanner_is_for_its_processor_and_this_one_reads_a_trace(
    release: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (library,) = release.glob(f"scanner-{machine}-*.so")
    content = library.read_bytes()
    assert int.from_bytes(content[18:20], "little") == MACHINES[machine]
    assert {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([\d.]+)", content)} < {
        (2, 2, 5),
        (2, 17),
    }
    assert len(content) < 30_000
    if os.uname().machine == machine:
        monkeypatch.setattr("microbench.traces.scanner.library", lambda source: library)
        data = dumps(document(sample()))
        assert told(scanned(data)) == told(decoded(data))


def test_what_looks_at_places_is_for_this_processor(release: Path) -> None:
    (library,) = release.glob(f"looking-{os.uname().machine}-*.so")
    looking = ctypes.PyDLL(str(library)).looking
    looking.restype, looking.argtypes = ctypes.py_object, [ctypes.py_object]
    held = [{"by": (value := object())}, "by", value]
    same = looking((array.array("q", [1, 0, 0, 0, *map(id, held)]).tobytes(), held))
    assert same()
    held[0].clear()
    assert not same()


@pytest.mark.parametrize("machine", MACHINES)
def test_a_library_is_for_its_processor_and_old_systems(made: dict[str, Path], machine: str) -> None:
    content = made[machine].read_bytes()
    assert content[:6] == b"\x7fELF\x02\x01"
    assert int.from_bytes(content[18:20], "little") == MACHINES[machine]
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([\d.]+)", content)}
    assert (2, 2) < max(versions) <= (2, 17)
    loaded = {b"libcuda.so.1", b"libcupti.so.12", b"libgcc_s.so.1"}  # by name, while it runs
    assert set(re.findall(rb"\blib\w+\.so\.\d+", content)) - loaded == {
        b"libc.so.6", b"libpthread.so.0", b"libdl.so.2",
    }  # fmt: skip
    assert len(content) < 60_000


def test_the_library_of_this_processor_records_programs(
    made: dict[str, Path], place: Place, other: NotPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.uname().machine not in made:
        pytest.skip("the release has no library for this processor")
    monkeypatch.setattr(place, "library", made[os.uname().machine])
    for name in ("python", "c"):
        (tmp_path / name).mkdir()
    only(place.recorded("import torch\ntorch.steps(30)", tmp_path / "python"), 30)
    only(other.recorded(tmp_path / "c", "init", "steps", 30), 30)


def test_the_library_of_arm_writes_the_same_rows(
    made: dict[str, Path], zig: str, other: NotPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = other.place
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None or not (SYSROOT / "lib" / "ld-linux-aarch64.so.1").exists():
        pytest.skip(f"no qemu-aarch64 with a C library in {SYSROOT} here (Debian: qemu-user, libc6-arm64-cross)")
    for name in ("x86", "arm", "drivers", "linked"):
        (tmp_path / name).mkdir()
    cupti, program = tmp_path / "linked" / "libcupti.so.12", tmp_path / "not_python"
    build = [*shlex.split(zig), "cc", "-target", "aarch64-linux-gnu.2.28", "-pthread"]
    subprocess.run([*build, "-shared", "-fPIC", "-o", cupti, TWIN / "cupti_stand_in.c", "-ldl"], check=True)
    subprocess.run([*build, "-o", program, TWIN / "not_python.c", "-ldl"], check=True)
    shutil.copy(cupti, tmp_path / "drivers" / "libcuda.so.1")
    here = other.recorded(tmp_path / "x86", "init", "steps", 300)
    monkeypatch.setattr(place, "library", made["aarch64"])
    variables = {
        **other.variables, "STAND_IN": str(cupti), "LD_LIBRARY_PATH": f"{tmp_path}/drivers:{tmp_path}/linked",
    }  # fmt: skip
    command = [emulator, "-L", str(SYSROOT), str(program), "init", "steps", "300"]
    there = place.ran(command, tmp_path / "arm", True, **variables)
    for done in (here, there):
        only(done, 300)
    ours, theirs = (done.traces[0] for done in (here, there))
    assert (ours.gpus, ours.bus_ids, ours.versions) == (theirs.gpus, theirs.bus_ids, theirs.versions)

    def words(trace: Trace, rows: Table) -> list[str]:  # numbered in the order of their addresses
        return [name.removesuffix(" (2)") for name in names(trace, rows)]

    for table in ("work", "calls", "syncs"):
        first, second = (getattr(trace, table) for trace in (ours, theirs))
        for name in set(first.dtype.names) - {"begin_ns", "end_ns", "name"}:
            assert (first[name] == second[name]).all(), name
        assert (first["end_ns"] - first["begin_ns"] == second["end_ns"] - second["begin_ns"]).all()
        if "name" in first.dtype.names:
            assert words(ours, first) == words(theirs, second)

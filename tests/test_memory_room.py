"""How much host memory may be taken: by recorded trees of cgroups, bare metal, and machines that grow."""

from __future__ import annotations

import ctypes
import mmap
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_trees import unpack, write

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.cuda.links import buffers
from microbench.gpu.cuda.links.buffers import HostPages, cpus_of, require_node, require_taken
from microbench.host import memory
from microbench.host.files import Machine
from microbench.host.memory import NO_LIMIT_BYTES, fill, host_room, require_room

GIB, MIB = 1 << 30, 1 << 20
SLICE = "sys/fs/cgroup/user.slice/user-1000.slice"
MEMINFO = "proc/meminfo"


def meminfo(total_bytes: int, available_bytes: int) -> str:
    return f"MemTotal: {total_bytes >> 10} kB\nMemFree: 1024 kB\nMemAvailable: {available_bytes >> 10} kB"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Bare metal, 128 GiB, 100 GiB of it free; this process is in a cgroup of version 2 with 64 GiB."""
    root = unpack("server", tmp_path)
    write(root, MEMINFO, meminfo(128 * GIB, 100 * GIB))
    return root


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A virtual machine that has 4 GiB now."""
    root = unpack("virtual_machine", tmp_path)
    write(root, MEMINFO, meminfo(4 * GIB, 3 * GIB))
    return root


def test_a_cgroup_leaves_its_limit_less_what_it_uses_and_would_not_give_back(server: Path) -> None:
    write(server, f"{SLICE}/memory.current", str(10 * GIB))
    write(server, f"{SLICE}/memory.stat", f"anon 1\ninactive_file {2 * GIB}\nfile 3")
    room = host_room(Machine(server))
    assert room.bytes == (64 - (10 - 2) - 4) * GIB
    assert f"limit of 64.0 GiB in /{SLICE}/memory.max" in room.source


def test_the_machine_s_own_memory_counts_where_it_is_less(server: Path) -> None:
    write(server, MEMINFO, meminfo(128 * GIB, 20 * GIB))
    room = host_room(Machine(server))
    assert room.bytes == (20 - 8) * GIB
    assert room.source == "MemAvailable of /proc/meminfo less 8.00 GiB"


def test_a_throttling_limit_counts_too(server: Path) -> None:
    write(server, f"{SLICE}/session-3.scope/memory.high", str(GIB))
    room = host_room(Machine(server))
    assert room.bytes == GIB - 64 * MIB
    assert "memory.high" in room.source


def test_a_cgroup_of_version_1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/docker/4711"
    write(tmp_path, "proc/self/cgroup", "4:memory:/docker/4711\n1:cpu:/")
    write(tmp_path, MEMINFO, meminfo(128 * GIB, 100 * GIB))
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(0x7FFFFFFFFFFFF000))
    write(tmp_path, f"{folder}/memory.limit_in_bytes", str(8 * GIB))
    write(tmp_path, f"{folder}/memory.usage_in_bytes", str(4 * GIB))
    write(tmp_path, f"{folder}/memory.stat", f"inactive_file 0\ntotal_inactive_file {GIB}")
    assert host_room(Machine(tmp_path)).bytes == (8 - 3) * GIB - GIB // 2


def test_a_full_cgroup_leaves_none(server: Path) -> None:
    write(server, f"{SLICE}/memory.current", str(63 * GIB))
    with pytest.raises(Skip, match=r"4 KiB of pinned memory asked, none may be taken \(limit of 64\.0 GiB in"):
        require_room(4096, "pinned memory", Machine(server))


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path) -> None:
    room = host_room(Machine(tmp_path))
    assert room.bytes == NO_LIMIT_BYTES
    require_room(1 << 50, "pinned memory", Machine(tmp_path))


def no_fill(*arguments: object) -> int:
    raise AssertionError("memory was taken")


def test_bare_metal_is_never_filled_to_see(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "fill", no_fill)
    write(server, MEMINFO, meminfo(128 * GIB, 10 * GIB))
    require_room(2 * GIB, "pinned memory", Machine(server))
    with pytest.raises(Skip, match=r"3 GiB of pinned memory asked, 2\.00 GiB may be taken \(MemAvailable"):
        require_room(3 * GIB, "pinned memory", Machine(server))


def test_a_cgroup_s_limit_is_never_tried(virtual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "fill", no_fill)
    write(virtual, "sys/fs/cgroup/cgroup.controllers", "memory")
    write(virtual, "sys/fs/cgroup/memory.max", str(4 * GIB))
    with pytest.raises(Skip, match=r"8 GiB of pinned memory asked, 2\.75 GiB may be taken"):
        require_room(8 * GIB, "pinned memory", Machine(virtual))


def test_a_virtual_machine_that_grows_as_it_fills_is_not_refused(
    virtual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grow(size_bytes: int, available: object) -> int:
        write(virtual, MEMINFO, meminfo(64 * GIB, 60 * GIB))
        return size_bytes

    monkeypatch.setattr(memory, "fill", grow)
    require_room(16 * GIB, "pinned memory", Machine(virtual))


def test_a_virtual_machine_that_does_not_grow_is_refused(virtual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "fill", lambda size_bytes, available: 0)
    with pytest.raises(Skip, match=r"16 GiB of pinned memory asked, 2\.75 GiB may be taken"):
        require_room(16 * GIB, "pinned memory", Machine(virtual))


def test_memory_is_filled_step_by_step_as_long_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STEP_BYTES", MIB)
    left = iter([2 * MIB, 0, 5 * MIB, MIB, 0, 0, 0])
    assert fill(10 * MIB, lambda: next(left, 0), longest_wait_s=0.12) == 3 * MIB
    assert fill(2 * MIB + 5, lambda: GIB) == 2 * MIB + 5


def test_filling_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LONGEST_FILL_S", 0.0)
    assert fill(GIB, lambda: GIB) == 0


def test_a_driver_s_refusal_is_a_skip_with_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "error_name", lambda code: f"code {code}")  # the words are the driver's
    require_taken(0, "pinned", 4096)
    with pytest.raises(
        Skip, match=r"1 GiB of write-combined host memory refused by the driver: code 2; .* taken .*ulimit"
    ):
        require_taken(2, "write_combined", GIB)
    with pytest.raises(MeasurementError, match="4 KiB of registered host memory: "):
        require_taken(1, "registered", 4096)


@pytest.fixture
def data_limited() -> Iterator[None]:
    """``ulimit -d`` at what this process has already."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (64 * MIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.usefixtures("data_limited")
def test_the_kernel_s_refusal_is_a_skip() -> None:
    with pytest.raises(Skip, match=r"512 MiB of pageable host memory refused by the kernel: Cannot allocate memory"):
        HostPages(512 * MIB)


def test_touched_pages_exist_until_they_are_closed() -> None:
    pages = HostPages(3 * mmap.PAGESIZE + 5)
    assert [ctypes.c_uint32.from_address(pages.address + mmap.PAGESIZE * page).value for page in range(4)] == [1] * 4
    pages.close()


def test_nodes(server: Path) -> None:
    assert cpus_of(1, server)
    assert cpus_of(None, server) == cpus_of(-1, server) == cpus_of(7, server) == ()
    with pytest.raises(Skip, match="NUMA node 999 has no CPUs here"):
        require_node(999)

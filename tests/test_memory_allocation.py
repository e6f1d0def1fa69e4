"""Room without a GPU: who holds device memory, how much of it and of host memory may be taken, what a refusal says."""

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_case import HostCase
from hypothesis import given
from hypothesis import strategies as st
from nvml_stand_in import NOT_FOUND, NOT_SUPPORTED, UUID, library, refuse
from recorded_trees import unpack, write

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.memory import allocation
from microbench.experiments.memory import allocation as blocks
from microbench.experiments.memory.allocation import Taking
from microbench.experiments.memory.engines import FEWEST_ROWS, WIDEST_ROW_BYTES, row_width_bytes
from microbench.gpu.cuda import buffers, driver
from microbench.gpu.cuda.buffers import HostPages, cpus_of, require_node, require_taken
from microbench.gpu.machine import nvml as nvml_module
from microbench.gpu.machine.nvml import Holder, Holders, NvmlGpu, memory_holders
from microbench.gpu.machine.query import Answer
from microbench.host import memory
from microbench.host.files import Machine
from microbench.host.memory import NO_LIMIT_BYTES, fill, host_room, require_room

MIB, GIB = 1 << 20, 1 << 30
NOBODY = Answer(Holders(None, ()))
SOMEBODY = Answer(Holders(None, (Holder("python", "pid 7", GIB),)))
UNSEEN = Answer(None, "NVML lists no process")


def process(pid: int, used_bytes: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used_bytes)


def nvml(*processes: SimpleNamespace, **more: Any) -> NvmlGpu:
    names = {os.getpid(): "me", 7: "/usr/bin/python", 8: "Xorg"}
    name = lambda pid: names.get(pid) or refuse(NOT_FOUND)()  # noqa: E731
    lists = {"nvmlDeviceGetComputeRunningProcesses": list(processes), "nvmlSystemGetProcessName": name}
    return NvmlGpu(UUID, library(**{**lists, **more}))


def test_holders_are_named_with_their_memory() -> None:
    own = process(os.getpid(), 500 * MIB)
    several = nvml(own, process(7, 3 * GIB), nvmlDeviceGetGraphicsRunningProcesses=[process(8), process(7, 1)])
    for gpu, words in ((several, "python (pid 7) 3.00 GiB, Xorg (graphics, pid 8)"), (nvml(own), "nobody else")):
        fact = nvml_module.holders(gpu)
        assert (fact.name, fact.value, fact.source) == ("memory_holders", words, "NVML")
        assert nvml_module.held_by(gpu) == words
        assert memory_holders(gpu.query).value.own.used_bytes == 500 * MIB


@pytest.mark.parametrize(("gpu", "reason"), [
    (nvml(), "NVML lists no process here, not even this one"),
    (nvml(nvmlDeviceGetComputeRunningProcesses=refuse(4), nvmlDeviceGetComputeRunningProcesses_v2=refuse(4)),
     "error 4"),
])  # fmt: skip
def test_processes_hidden_from_nvml_are_unknown_and_not_nobody(gpu: NvmlGpu, reason: str) -> None:
    fact = nvml_module.holders(gpu)
    assert fact.value is None
    assert reason in str(fact.reason)
    assert nvml_module.held_by(gpu).startswith("others not known (")
    assert reason in nvml_module.held_by(gpu)


def test_in_a_pid_namespace_an_unknown_pid_is_this_process(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532448]")
    machine = Machine(tmp_path)
    alone = memory_holders(nvml(process(90001, 400 * MIB)).query, machine).value
    assert (alone.own.used_bytes, alone.others) == (400 * MIB, ())
    # One of two is this process; which, and so what it holds, cannot be known.
    both = memory_holders(nvml(process(90001, 400 * MIB), process(90002, 9 * GIB)).query, machine).value
    assert both == Holders(None, (Holder("a process not visible from here", "pid 90002", 9 * GIB),))


def test_energy_is_in_joules_and_a_skip_without_a_counter() -> None:
    assert nvml(nvmlDeviceGetTotalEnergyConsumption=1_234_567).energy_j() == pytest.approx(1234.567)
    with pytest.raises(Skip, match="no energy counter: NVML"):
        nvml(nvmlDeviceGetTotalEnergyConsumption=refuse(NOT_SUPPORTED)).energy_j()
    with pytest.raises(Skip, match="MIG instance"):  # others at work on the board are in its counter
        nvml(nvmlDeviceGetTotalEnergyConsumption=1_234_567, nvmlDeviceGetMigMode=[1, 1]).energy_j()


class Driver:
    """Gives blocks out of holes that do not join."""

    def __init__(self, *holes: int) -> None:
        self.holes = list(holes)
        self.given: dict[int, tuple[int, int]] = {}
        self.tries = 0

    def take(self, size_bytes: int) -> int | None:
        self.tries += 1
        index = next((at for at, hole in enumerate(self.holes) if hole >= size_bytes), None)
        if index is None:
            return None
        self.holes[index] -= size_bytes
        self.given[self.tries] = (index, size_bytes)
        return self.tries

    def give_back(self, address: int) -> None:
        index, size_bytes = self.given.pop(address)
        self.holes[index] += size_bytes

    def free_bytes(self) -> int:
        return sum(self.holes)

    def blocks(self) -> list[int]:
        return blocks.all_blocks(self.take, self.give_back, self.free_bytes)


@given(st.lists(st.integers(0, 200 * GIB), min_size=1, max_size=4))
def test_the_largest_blocks_are_found_and_freed(holes: list[int]) -> None:
    room = Driver(*holes)
    wanted = sorted(
        (hole // blocks.STEP_BYTES * blocks.STEP_BYTES for hole in holes if hole >= blocks.STEP_BYTES), reverse=True
    )
    assert room.blocks() == wanted
    assert room.holes == holes
    assert not room.given


def test_the_search_is_short_and_ends_at_most_blocks() -> None:
    room = Driver(139 * GIB - 5 * MIB, 5 * MIB)
    assert room.blocks() == [139 * GIB - 6 * MIB, 4 * MIB]
    assert room.tries < 20
    assert len(Driver(*[blocks.STEP_BYTES] * (2 * blocks.MOST_BLOCKS)).blocks()) == blocks.MOST_BLOCKS


def test_all_blocks_are_freed_after_an_error() -> None:
    room = Driver(4 * GIB, 2 * GIB)

    def take(size_bytes: int) -> int | None:
        if len(room.given) == 1 and size_bytes <= GIB:
            raise MeasurementError("the GPU is gone")
        return room.take(size_bytes)

    room.holes[1] = GIB
    with pytest.raises(MeasurementError):
        blocks.all_blocks(take, room.give_back, room.free_bytes)
    assert room.holes == [4 * GIB, GIB]


@pytest.mark.parametrize(("found", "used_bytes", "shared", "why"), [
    (NOBODY, 100 * GIB, False, None),
    (UNSEEN, blocks.MOST_OWN_BYTES, False, None),
    (SOMEBODY, 0, False, "another process holds memory of this GPU"),
    (UNSEEN, blocks.MOST_OWN_BYTES + 1, False, "2.00 GiB are held, perhaps by another process (NVML lists no process)"),
    (NOBODY, 0, True, "the GPU's memory is the host's"),
])  # fmt: skip
def test_memory_others_may_need_is_not_taken(found: Answer, used_bytes: int, shared: bool, why: str | None) -> None:
    reason = blocks.why_not_all(found, used_bytes, shared_with_host=shared)
    assert reason is None if why is None else str(reason).startswith(why)


def test_capacity_gives_reasons_for_unknown_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_take(size_bytes: int) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(driver, "cuMemGetInfo", lambda: (0, 3 * GIB, 8 * GIB))
    monkeypatch.setattr(driver, "cuMemAlloc", no_take)
    case = HostCase(INTEGRATED=0)
    case._board = SimpleNamespace(nvml=nvml(process(os.getpid(), 500 * MIB), process(7, 4 * GIB)))
    facts = {fact.name: fact for fact in blocks._capacity(case)}
    assert facts.pop("memory_holders").value == "python (pid 7) 4.00 GiB"
    known = {name: fact.value for name, fact in facts.items() if fact.value is not None}
    assert known == {"total_bytes": 8 * GIB, "free_bytes": 3 * GIB, "context_bytes": 500 * MIB}
    assert {fact.unit for fact in facts.values() if fact.value is not None} == {"B"}
    for name in ("largest_block_bytes", "obtainable_bytes"):
        assert "another process" in str(facts[name].reason)


# Pairs of calls, and the rows of a 2D copy.

TAKE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 2)


@pytest.mark.parametrize(("taken", "released"), [(0, 0), (2, 0), (0, 7)])
def test_a_block_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch, taken: int, released: int) -> None:
    calls: list[tuple[int, ...]] = []

    def take(where: int, size_bytes: int, pool: int, stream: int) -> int:
        calls.append((size_bytes, pool, stream))
        ctypes.c_int64.from_address(where).value = 4711
        return taken

    def release(address: int, stream: int) -> int:
        calls.append((address, stream))
        return released

    functions = {"take": TAKE(take), "release": RELEASE(release)}
    monkeypatch.setattr(
        allocation, "entry_point", lambda name: ctypes.cast(functions[name], ctypes.c_void_p).value or 0
    )
    out = np.zeros((2, len(Taking)), dtype=np.int64)

    def refused(code: int) -> None:
        if code == 2:
            raise Skip("out of memory")

    def run() -> None:
        allocation.timed("take", (5, 6), "release", 6, 64, out, refused)

    if taken:
        with pytest.raises(Skip, match="out of memory"):
            run()
        assert calls == [(64, 5, 6)]
    elif released:
        monkeypatch.setattr("microbench.gpu.cuda.context.error_name", lambda code: f"code {code}")
        with pytest.raises(MeasurementError, match="release: code 7"):
            run()
    else:
        run()
        assert calls == [(64, 5, 6), (4711, 6)] * 2
        assert (np.diff(out.ravel()) >= 0).all()
        assert (out > 0).all()


@given(st.integers(1, 1 << 36))
def test_the_row_width_divides_the_size(size_bytes: int) -> None:
    width = row_width_bytes(size_bytes)
    assert size_bytes % width == 0
    assert width <= WIDEST_ROW_BYTES
    assert width == 1 or size_bytes // width >= FEWEST_ROWS
    assert [row_width_bytes(size) for size in (4096, MIB, GIB)] == [256, 64 << 10, 64 << 10]


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
    root = unpack("virtual_machine", tmp_path)
    write(root, MEMINFO, meminfo(4 * GIB, 3 * GIB))
    return root


def test_room_is_what_the_cgroup_or_the_machine_leaves_whichever_is_less(server: Path) -> None:
    write(server, f"{SLICE}/memory.current", str(10 * GIB))
    write(server, f"{SLICE}/memory.stat", f"anon 1\ninactive_file {2 * GIB}\nfile 3")
    room = host_room(Machine(server))
    assert room.bytes == (64 - (10 - 2) - 4) * GIB
    assert f"limit of 64.0 GiB in /{SLICE}/memory.max" in room.source
    write(server, MEMINFO, meminfo(128 * GIB, 20 * GIB))
    room = host_room(Machine(server))
    assert room.bytes == (20 - 8) * GIB
    assert room.source == "MemAvailable of /proc/meminfo less 8.00 GiB"
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
    assert host_room(Machine(tmp_path)).bytes == NO_LIMIT_BYTES
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


def test_a_virtual_machine_is_refused_unless_it_grows(virtual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(size_bytes: int, available: object) -> int:
        write(virtual, MEMINFO, meminfo(64 * GIB, 60 * GIB))
        return size_bytes

    monkeypatch.setattr(memory, "fill", lambda size_bytes, available: 0)
    with pytest.raises(Skip, match=r"16 GiB of pinned memory asked, 2\.75 GiB may be taken"):
        require_room(16 * GIB, "pinned memory", Machine(virtual))
    monkeypatch.setattr(memory, "fill", grow)
    require_room(16 * GIB, "pinned memory", Machine(virtual))


def test_memory_is_filled_step_by_step_as_long_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STEP_BYTES", MIB)
    left = iter([2 * MIB, 0, 5 * MIB, MIB, 0, 0, 0])
    assert fill(10 * MIB, lambda: next(left, 0), longest_wait_s=1.0) == 3 * MIB
    assert fill(2 * MIB + 5, lambda: GIB) == 2 * MIB + 5
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

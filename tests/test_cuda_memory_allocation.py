"""Copies and allocations on a real GPU: exactly the right bytes are written, memory is freed, a full GPU is a skip."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from cuda.bindings import driver
from gpu_checks import proven

from microbench.core.errors import Skip
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import Allocation, AllocationWay, EngineWay

pytestmark = pytest.mark.gpu

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LEFT_BYTES = 2 * GIB
TOO_MUCH_BYTES = 64 << 40
SLACK_BYTES = 4 * MIB  # the driver keeps a page or two for small blocks
# What the driver keeps for itself and gives up when memory is asked for that is not there.
DRIVERS_OWN_BYTES = 256 << 20
# A child of ours by its pid, or as NVML shows it in a container: by a pid of the host's, or not at all.
HELD = r"held by: this case \d.*, .*(pid \d+\).*|others not known \(.+\))"


def free_bytes() -> int:
    return int(driver.cuMemGetInfo()[1])


@pytest.mark.parametrize("size_bytes", [1, 5, 96, 4096, 65_537, 1_000_004, 3 * MIB])
@pytest.mark.parametrize("way", get_args(EngineWay))
def test_engines_write_every_byte_and_no_other(gpu: Gpu, way: EngineWay, size_bytes: int) -> None:
    transfer = gpu.memory.engine(way, size_bytes)
    assert transfer.size_bytes == (1 if way == "memset" else 2) * size_bytes
    assert not transfer.blocks
    proven(gpu, transfer, "byte 0 of", (3, 3))


@pytest.mark.parametrize("size_bytes", [256, 3 * MIB, 64 * MIB])
@pytest.mark.parametrize("way", get_args(AllocationWay))
def test_memory_is_allocated_and_freed(gpu: Gpu, way: AllocationWay, size_bytes: int) -> None:
    gpu.memory.allocating(way, size_bytes, 1)
    before = free_bytes()
    stamps = gpu.memory.allocating(way, size_bytes, 4)
    assert stamps.shape == (4, len(Allocation))
    assert (np.diff(stamps) >= 0).all()
    assert (stamps[:, Allocation.ALLOCATED] > stamps[:, Allocation.BEGIN]).all()
    assert before - free_bytes() <= SLACK_BYTES


def test_later_blocks_of_a_pool_cost_less_than_the_first(gpu: Gpu) -> None:
    stamps = gpu.memory.allocating("pool", GIB, 5)
    taken = stamps[:, Allocation.ALLOCATED] - stamps[:, Allocation.BEGIN]
    assert np.median(taken[1:]) * 3 < taken[0]


@pytest.mark.parametrize("way", ["malloc", "pool", "cupy_pool"])
def test_too_much_device_memory_is_a_skip(gpu: Gpu, way: AllocationWay) -> None:
    before = free_bytes()
    with pytest.raises(
        Skip, match=r"64 TiB of device memory asked, [0-9.]+ GiB are free on the GPU of [0-9.]+ GiB; held"
    ):
        gpu.memory.allocating(way, TOO_MUCH_BYTES, 2)
    assert before - free_bytes() <= SLACK_BYTES


def test_measuring_the_capacity_frees_all_memory(gpu: Gpu) -> None:
    before = free_bytes()
    facts = {fact.name: fact for fact in gpu.memory.capacity()}
    assert before - free_bytes() <= SLACK_BYTES
    assert all(fact.value is not None or fact.reason for fact in facts.values())
    assert facts["free_bytes"].value == before
    largest, most = facts["largest_block_bytes"].value, facts["obtainable_bytes"].value
    if largest is not None:
        assert 0.5 * before < float(largest) <= float(most or 0) <= before + DRIVERS_OWN_BYTES
    peers = gpu.memory.peers()
    assert peers.name == "memory_holders"
    assert peers.value or peers.reason


def test_the_energy_counter_rises(gpu: Gpu) -> None:
    try:
        before = gpu.energy_j()
    except Skip:
        pytest.skip("this GPU counts no energy")
    gpu.pause(0.3)
    assert 0 < gpu.energy_j() - before < 1000


@pytest.fixture
def full(gpu: Gpu) -> Iterator[None]:
    """Another process holds all of the GPU's memory but LEFT_BYTES."""
    command = [sys.executable, str(Path(__file__).with_name("holds_memory.py")), gpu.info.uuid, str(LEFT_BYTES)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:  # closes its standard input at the end, and waits for it
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield


@pytest.mark.usefixtures("full")
def test_on_a_full_gpu_a_skip_names_the_holder(gpu: Gpu) -> None:
    asked = r"8 GiB of device memory asked, [0-9.]+ [KMG]iB are free on the GPU of [0-9.]+ GiB; "
    for take in (
        lambda: gpu.memory.engine("copy", 8 * GIB),
        lambda: gpu.memory.allocating("malloc", 8 * GIB, 1),
        lambda: gpu.memory.allocating("pool", 8 * GIB, 1),
    ):
        with pytest.raises(Skip, match=asked + HELD):
            take()
    transfer = gpu.memory.engine("copy", 64 * MIB)
    transfer.fresh()
    transfer.submit(1)
    gpu.synchronize()
    transfer.check()
    facts = {fact.name: fact for fact in gpu.memory.capacity()}
    assert facts["obtainable_bytes"].value is None
    assert "could make it fail" in str(facts["obtainable_bytes"].reason)


@pytest.mark.usefixtures("full")
def test_on_a_full_gpu_a_run_measures_the_sizes_that_fit(gpu: Gpu) -> None:
    command = [sys.executable, "-m", "microbench", "run", "memory_stream", "memory_copy", "--quick", "--json"]
    command += ["--device", gpu.info.uuid, "--set", f"size_bytes={64 * MIB},{8 * GIB}", "--set", "way=copy"]
    command += ["--set", "kernel=copy", "--set", "dtype=fp64", "--set", "implementation=cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout, f"exit code {done.returncode} and no output; standard error:\n{done.stderr}"
    outcomes = json.loads(done.stdout)["run"]["outcomes"]
    by_size = {(one["case"]["benchmark"], one["case"]["params"]["size_bytes"]): one for one in outcomes}
    for name in ("memory_stream", "memory_copy"):
        assert by_size[name, 64 * MIB]["status"] == "ok"
        skipped = by_size[name, 8 * GIB]
        assert skipped["status"] == "skipped"
        assert "8 GiB of device memory asked" in skipped["reason"]
        assert "held by: this case" in skipped["reason"]

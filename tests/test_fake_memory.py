"""Memory of the simulated GPU: work that is left out fails, what cannot be had is a skip, and the clocks agree."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from fake_session import run_case

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.core.model import Case, Fact, Measurement, Outcome
from microbench.gpu.fake.costs import FakeCosts, LinkCosts, MemoryCosts
from microbench.gpu.fake.environment import FakeHost
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.fake.memory import Request, answered_ns, hit_share
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import Allocation, DeviceMemory, Operations
from microbench.measure.floors import measure_floors
from microbench.run import worker
from microbench.run.messages import Job, Message, Order
from microbench.run.plan import select
from microbench.run.worker import Device

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MEMORY = [benchmark for benchmark in discover().values() if benchmark.suite == "memory"]
# They time calls of the host or state facts: there is no result to be wrong.
UNCHECKED = {"memory_allocate", "memory_capacity"}


def exact(costs: FakeCosts | None = None) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def with_memory(**memory: object) -> FakeCosts:
    """Costs that differ in the memory's."""
    return FakeCosts(memory=MemoryCosts(**memory))  # type: ignore[arg-type]


# -- work that is left out -------------------------------------------------------------------------------------------


def checked_cases() -> list[Case]:
    """Cases of the suite whose result is compared: the ends of each benchmark's grid, and idling is none."""
    found: list[Case] = []
    for benchmark in MEMORY:
        cases = [case for case in benchmark.cases("default") if case.params.get("load") != "idle"]
        found += [] if benchmark.name in UNCHECKED else [cases[0], cases[len(cases) // 2], cases[-1]]
    return list({case.id: case for case in found}.values())


@pytest.mark.parametrize("case", checked_cases(), ids=lambda case: case.id)
@pytest.mark.parametrize("arrives", ["lost", "damaged"])
def test_work_is_checked_and_fails_where_it_is_left_out(case: Case, arrives: str) -> None:
    found = [one for one in run_case(discover()[case.benchmark], case) if isinstance(one, Measurement)]
    assert found
    assert all(one.verified for one in found)
    broken = FakeCosts(links=LinkCosts(arrives=arrives))  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match="SIMULATED: "):
        run_case(discover()[case.benchmark], case, broken)


MADE: dict[str, Callable[[DeviceMemory], Transfer | Operations]] = {
    "stream": lambda memory: memory.stream("triad", "fp64", "cuda", MIB + 24, "grid_16B_x4_t256"),
    "library": lambda memory: memory.stream("dot", "fp32", "cupy", MIB, "cupy"),
    "occupied": lambda memory: memory.occupied(1, 128, 4, MIB),
    "strided": lambda memory: memory.strided("write", 12, MIB),
    "gather": lambda memory: memory.scattered("gather", MIB),
    "update": lambda memory: memory.scattered("update", 64),
    "atomics": lambda memory: memory.atomics("shared", "fp32", "same"),
    "copy": lambda memory: memory.engine("copy", 100),
    "memset": lambda memory: memory.engine("memset", 3),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_call_that_was_never_made_fails_its_check(made: Callable[[DeviceMemory], Transfer | Operations]) -> None:
    one = made(exact().memory)
    for _ in range(2):
        one.fresh()
        with pytest.raises(MeasurementError, match="is not the one that was sent"):
            one.check()
        one.submit(1)
        assert one.check().startswith("SIMULATED")


def test_what_is_counted_is_what_is_moved() -> None:
    memory = exact().memory
    assert memory.stream("triad", "fp64", "cuda", 8 * 1001 + 7, "grid_16B_x4_t256").size_bytes == 3 * 8 * 1001
    assert memory.stream("read", "int8", "numba", 1003, "numba").size_bytes == 1003
    assert memory.occupied(1, 32, 1, 1000).size_bytes == 1000
    assert memory.strided("read", 12, 1200).size_bytes == 400
    assert memory.scattered("gather", KIB).operations == 128
    assert [memory.engine(way, 96).size_bytes for way in ("copy", "copy_2d", "memset")] == [192, 192, 96]


def test_what_a_case_made_is_of_no_use_after_it() -> None:
    gpu = exact()
    with gpu.case():
        memory = gpu.memory
        assert memory is gpu.memory, "a case has one"
        chase, level = memory.chase("global", MIB), memory.level("shared", KIB)
        copy = memory.engine("copy", MIB)
    uses: tuple[Callable[[], object], ...] = (
        lambda: chase.walk(8),
        lambda: level.take(level.tile_bytes),
        lambda: copy.submit(1),
        memory.capacity,
    )
    for use in uses:
        with pytest.raises(MeasurementError, match="a case that has ended"):
            use()


# -- what cannot be had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda memory: memory.level("shared", 256 * KIB), "256 KiB of shared memory asked, an SM has 227 KiB"),
        (lambda memory: memory.chase("shared", 256 * KIB), "256 KiB of shared memory asked"),
        (lambda memory: memory.chase("global", 64), "64 B hold no line of 128 B"),
        (lambda memory: memory.chase("shared", KIB).lines_cycles(1), "no part of the L2"),
        (lambda memory: memory.occupied(3, 1024, 1, MIB), "does not hold 3 blocks of 1024 threads"),
        (lambda memory: memory.occupied(64, 32, 1, MIB), "does not hold 64 blocks of 32 threads"),
        (lambda memory: memory.occupied(1, 32, 3, MIB), "1, 2, 4 or 8 loads under way, not 3"),
        (lambda memory: memory.scattered("gather", 24 * MIB), "not a power of two"),
        (lambda memory: memory.strided("read", 128, 64), "hold no word"),
        (lambda memory: memory.stream("read", "fp64", "cuda", 7, "grid_16B_x4_t256"), "hold no element of fp64"),
        (lambda memory: memory.stream("read", "fp64", "cuda", 64, "round"), "has no shape round of cuda"),
    ],
)
def test_what_cannot_be_had_is_a_skip_that_says_why(asked: Callable[[DeviceMemory], object], reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        asked(exact().memory)


def test_a_library_that_is_not_there_is_a_skip() -> None:
    with pytest.raises(Skip, match="has no cupy"):
        exact(with_memory(libraries={})).memory.shapes("read", "fp64", "cupy")


CROWDED = with_memory(total_bytes=16 * GIB, context_bytes=512 * MIB, held_by_others_bytes=14 * GIB)
TOO_LARGE: dict[str, Callable[[DeviceMemory], object]] = {
    "stream": lambda memory: memory.stream("read", "fp64", "cuda", GIB, "grid_16B_x4_t256"),
    "level": lambda memory: memory.level("global", 2 * GIB),
    "chase": lambda memory: memory.chase("global", 2 * GIB),
    "occupied": lambda memory: memory.occupied(1, 32, 1, 2 * GIB),
    "strided": lambda memory: memory.strided("read", 4, 2 * GIB),
    "scattered": lambda memory: memory.scattered("gather", 2 * GIB),
    "engine": lambda memory: memory.engine("copy", GIB),
    "allocating": lambda memory: memory.allocating("malloc", 2 * GIB, 1),
}


@pytest.mark.parametrize("asked", TOO_LARGE.values(), ids=TOO_LARGE)
def test_out_of_memory_names_the_bytes_and_who_holds_them(asked: Callable[[DeviceMemory], object]) -> None:
    with pytest.raises(Skip, match=r"[23] GiB of device memory asked, 1536 MiB free; somebody \(pid 4242\) 14 GiB"):
        asked(exact(CROWDED).memory)


def test_a_case_holds_what_it_took_until_it_ends() -> None:
    gpu = exact(CROWDED)
    for _ in range(2):
        with gpu.case():
            for _ in range(2):  # kernels of one case work on the same arrays
                gpu.memory.stream("read", "fp64", "cuda", 256 * MIB, "grid_16B_x4_t256")
            with pytest.raises(Skip, match="1 GiB of device memory asked, 768 MiB free"):
                gpu.memory.level("global", GIB)


def outcomes_of(gpu: Gpu, cases: list[Case]) -> list[Outcome]:
    """The cases one after the other on one device, as a worker measures them."""
    job = Job("gpu", "fake", "microbench.benchmarks", "microbench.gpu.open", 0)
    job = msgspec.structs.replace(job, floors=measure_floors(FakeHost(spread=0), gpu))
    device, sent = Device(gpu, gpu.clock, gpu), list[Message]()
    orders = [Order(case, session=0, round=0, device="GPU-SIMULATED", seconds=0.01) for case in cases]
    return [worker.run_case(job, device, discover()[order.case.benchmark], order, sent.append) for order in orders]


def _held_bytes(case: Case) -> int:
    """What a case of memory_stream or memory_copy takes: three arrays, or what its call works on."""
    blocks = {"copy": 2, "copy_2d": 4, "memset": 1}
    return int(case.params["size_bytes"]) * blocks.get(str(case.params.get("way")), 3)


def test_out_of_memory_ends_a_case_and_the_run_goes_on_at_sizes_that_fit() -> None:
    cases = discover()["memory_stream"].cases("quick", {"size_bytes": (64 * MIB, GIB, 4 * GIB)})
    found = outcomes_of(exact(CROWDED), cases + discover()["memory_copy"].cases("default"))
    fits = {one.case.id: _held_bytes(one.case) <= 1536 * MIB for one in found}
    assert {True, False} == set(fits.values())
    for one in found:
        assert one.status == ("ok" if fits[one.case.id] else "skipped"), one.case.id
        assert fits[one.case.id] or "somebody (pid 4242)" in (one.reason or "")


def test_a_failed_case_is_an_outcome_with_its_reason() -> None:
    gpu = exact(FakeCosts(links=LinkCosts(arrives="lost")))
    outcomes = outcomes_of(gpu, discover()["memory_levels"].cases("quick")[:1])
    assert [(one.status, one.measurements) for one in outcomes] == [("failed", ())]
    assert "is not that of the set" in (outcomes[0].reason or "")


def test_nobody_takes_everything_while_another_process_works() -> None:
    found = {fact.name: fact for fact in exact(CROWDED).memory.capacity()}
    assert found["largest_block_bytes"].value is None
    assert found["obtainable_bytes"].value is None
    assert "another process" in (found["obtainable_bytes"].reason or "")
    assert found["free_bytes"].value == 1536 * MIB
    assert exact(CROWDED).memory.peers().value == "somebody (pid 4242) 14 GiB"


def test_a_full_gpu_has_no_block() -> None:
    facts = exact(with_memory(total_bytes=512 * MIB)).memory.capacity()
    assert {fact.name: fact.value for fact in facts if isinstance(fact, Fact)}["largest_block_bytes"] == 0


# -- how the simulation plays ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under_way", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("requests", [1, 2, 9, 50, 333])
def test_requests_wait_for_answers_and_for_their_turn(requests: int, under_way: int) -> None:
    one, ends = Request(latency_ns=100.0, service_ns=7.0), [0.0]
    for number in range(requests):
        asked = ends[number - under_way + 1] if number >= under_way else 0.0
        ends.append(max(ends[-1] if number else 0.0, asked + one.latency_ns) + one.service_ns)
    assert answered_ns(one, requests, under_way) == pytest.approx(ends[-1])


def test_a_cache_answers_less_and_less_of_a_growing_set() -> None:
    shares = [hit_share(size, 100.0) for size in (10, 100, 110, 150, 200, 400, 1600)]
    assert shares[:2] == [1.0, 1.0]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 1e-6
    for size, share in ((110, shares[2]), (200, shares[4])):
        assert share == pytest.approx(np.exp(-size * (1 - share) / 100), abs=1e-6)


def test_energy_moves_in_steps_and_counts_what_has_ended() -> None:
    gpu, memory = exact(), MemoryCosts()
    before_j = gpu.energy_j()
    gpu.pause(0.01)
    assert gpu.energy_j() == before_j, "no step has passed"
    copy = gpu.memory.engine("copy", 16 * GIB)
    copy.submit(10)
    gpu.synchronize()
    gpu.pause(2 * memory.energy_step_s)
    work_j = 10 * copy.size_bytes * memory.joules_per_byte
    passed_s = round((gpu.energy_j() - before_j - work_j) / memory.idle_power_w, 6)
    assert passed_s / memory.energy_step_s == pytest.approx(round(passed_s / memory.energy_step_s))
    assert passed_s > 0


def test_energy_of_much_work_is_not_forgotten() -> None:
    gpu, memory = exact(), MemoryCosts()
    first_j, copy, times = gpu.energy_j(), gpu.memory.engine("copy", GIB), 1000
    began_ns = gpu.clock.now_ns()
    for _ in range(times):
        copy.submit(1)
    gpu.synchronize()
    gpu.pause(2 * memory.energy_step_s)
    idle_j = memory.idle_power_w * (gpu.clock.now_ns() - began_ns) * 1e-9
    work_j = times * copy.size_bytes * memory.joules_per_byte
    assert gpu.energy_j() - first_j == pytest.approx(idle_j + work_j, abs=memory.idle_power_w * memory.energy_step_s)


def test_stamps_of_allocations_follow_each_other() -> None:
    rows = exact().memory.allocating("pool", 64 * MIB, 3)
    assert rows.shape == (3, len(Allocation))
    assert (np.diff(rows.ravel()) > 0).all()
    taken = rows[:, Allocation.ALLOCATED] - rows[:, Allocation.BEGIN]
    assert taken[0] > 50 * taken[1] == 50 * taken[2]


def test_a_walk_by_both_clocks_is_the_same() -> None:
    gpu = exact()
    walk = gpu.memory.chase("global", 64 * MIB).walk(4000)
    assert walk.seconds == pytest.approx(walk.cycles / FakeCosts().sm_clock_hz, rel=1e-3)


# -- what a preset leaves out ----------------------------------------------------------------------------------------


def test_a_suite_goes_without_what_its_preset_leaves_out() -> None:
    chosen = {one.benchmark.name for one in select(discover(), ["memory"], "quick", {"size_bytes": [MIB]})}
    assert "memory_stream" in chosen
    assert "memory_atomic" not in chosen
    with pytest.raises(UsageError, match="memory_atomic has no case in the quick preset"):
        select(discover(), ["memory_atomic"], "quick", {})

"""Faults on the simulated GPU: lost or damaged work fails its check, what a machine lacks is a Skip, a case ends."""

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from fake_session import EQUAL, exact, run_case

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Case, Measurement, Outcome, Param
from microbench.core.ops import Launch
from microbench.experiments.compute.alu import chain
from microbench.experiments.compute.instructions import clock_bracket
from microbench.experiments.compute.products import Gemm, free_bytes, needed_bytes, problem
from microbench.experiments.compute.tensor import tensor
from microbench.experiments.graph.allocation import allocating_step
from microbench.experiments.graph.chains import Shape, shaped_work
from microbench.experiments.graph.nodes import decided_loop, node_chain
from microbench.experiments.link.chase import host_chase
from microbench.experiments.link.concurrent import concurrent_copies, duplex_copies
from microbench.experiments.link.copies import engine_copy, kernel_copy
from microbench.experiments.link.managed import managed_memory
from microbench.experiments.link.peers import peer_chase, peer_copies
from microbench.experiments.link.pipeline import chunked_copy
from microbench.experiments.memory.access import atomics, occupied, scattered, strided
from microbench.experiments.memory.allocation import allocating, capacity, pinning
from microbench.experiments.memory.chase import chase, loaded_chase
from microbench.experiments.memory.engines import engine
from microbench.experiments.memory.levels import read_set, written_set
from microbench.experiments.memory.shared import bank_reads
from microbench.experiments.memory.streams import shapes, stream
from microbench.gpu.fake.costs import FakeCosts, LinkCosts, MemoryCosts
from microbench.gpu.fake.gpu import FakeHost, fake_environment
from microbench.gpu.protocol.gpu import Gpu, Operations, Transfer
from microbench.meter.floors import measure_floors
from microbench.session import worker
from microbench.session.messages import Job, Message, Order
from microbench.session.worker import Device

MIB, GIB = 1 << 20, 1 << 30
WAY = "algo66_tile18_stages35_cluster5"
TWO = FakeCosts(gpus=2)
# A GPU on which another process holds all but 1.5 GiB.
CROWDED = FakeCosts(memory=MemoryCosts(total_bytes=16 * GIB, held_by_others_bytes=14 * GIB))


def with_links(**links: object) -> FakeCosts:
    return FakeCosts(gpus=2, links=LinkCosts(**links))  # type: ignore[arg-type]


# They time calls of the host or state facts, so no result can be wrong; the default GPU lacks two types.
UNCHECKED = {"link_state", "link_pinning", "memory_allocate", "memory_capacity"}
UNCHECKED_PARAMS = ({"what": "flag"}, {"what": "memset"}, {"load": "idle"}, {"dtype": "nvfp4"}, {"dtype": "mxfp8"})
# Clocks, and times of what has no result.
UNCHECKED_METRICS = {"compute": {"sm_clock", "latency", "turn"}}


def checked_cases() -> list[Case]:
    """Every default case of the link suite that moves data, three of each benchmark of memory and compute."""
    environment = fake_environment(TWO)
    chosen: dict[str, Case] = {}
    for benchmark in discover().values():
        if benchmark.suite not in ("link", "memory", "compute") or benchmark.name in UNCHECKED:
            continue
        cases = [
            case
            for case in benchmark.cases("default")
            if benchmark.here(environment, case.params) is None
            and not any(params.items() <= case.params.items() for params in UNCHECKED_PARAMS)
            and case.params.get("library", "cublaslt") == "cublaslt"
        ]
        if benchmark.suite != "link":
            cases = [cases[0], cases[len(cases) // 2], cases[-1]]
        chosen |= {case.id: case for case in cases if case.params.get("size_bytes") != 256 * MIB}
    return list(chosen.values())


@pytest.mark.parametrize("case", checked_cases(), ids=lambda case: case.id)
def test_results_are_verified_and_lost_or_damaged_ones_fail(case: Case) -> None:
    benchmark = discover()[case.benchmark]
    measured = [one for one in run_case(benchmark, case, TWO, 0, EQUAL) if isinstance(one, Measurement)]
    assert measured
    unverified = {one.metric for one in measured if not one.verified} - UNCHECKED_METRICS.get(benchmark.suite, set())
    assert not unverified, f"{case.id} yields verified=None for {unverified}: pass verified=…"
    for arrives in ("lost", "damaged"):
        with pytest.raises(MeasurementError, match="SIMULATED: "):
            run_case(benchmark, case, with_links(arrives=arrives), 0, EQUAL)


MADE: dict[str, Callable[[Gpu], Transfer | Operations | Gemm]] = {
    "copy": lambda gpu: engine_copy(gpu, "d2h", "pinned", MIB),
    "pageable copy": lambda gpu: engine_copy(gpu, "h2d", "pageable", 7),
    "kernel copy": lambda gpu: kernel_copy(gpu, "read", 4, 0, MIB),
    "stream": lambda gpu: stream(gpu, "triad", "fp64", MIB + 24, "grid_16B_x4_t256"),
    "library": lambda gpu: stream(gpu, "dot", "fp32", MIB, "cupy"),
    "occupied": lambda gpu: occupied(gpu, 1, 128, 4, MIB),
    "strided": lambda gpu: strided(gpu, "write", 12, MIB),
    "random": lambda gpu: scattered(gpu, "update", 64),
    "atomics": lambda gpu: atomics(gpu, "shared", "fp32", "same"),
    "memset": lambda gpu: engine(gpu, "memset", 3),
    "product": lambda gpu: problem(gpu, "bf16", 256, 256, 256).gemm("cublaslt", WAY),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_call_that_was_never_made_fails_its_check(made: Callable[[Gpu], Transfer | Operations | Gemm]) -> None:
    call = made(exact(TWO))
    for _ in range(2):
        call.fresh()
        with pytest.raises(MeasurementError, match="is not"):
            call.check()
        call.submit(1)
        assert call.check().startswith("SIMULATED")


def test_what_is_counted_is_what_is_moved() -> None:
    gpu = exact(TWO)
    assert stream(gpu, "triad", "fp64", 8 * 1001 + 7, "grid_16B_x4_t256").size_bytes == 3 * 8 * 1001
    assert strided(gpu, "read", 12, 1200).size_bytes == 400
    assert scattered(gpu, "gather", 1024).operations == 128
    assert [engine(gpu, way, 96).size_bytes for way in ("copy", "copy_2d", "memset")] == [192, 192, 96]
    product = problem(gpu, "int8", 17, 64, 1000)
    assert product.operations == 2 * 17 * 64 * 1000
    assert product.size_bytes == 17 * 1000 + 64 * 1000 + 4 * 17 * 64


def outcomes_of(gpu: Gpu, cases: list[Case]) -> list[Outcome]:
    job = Job("gpu", "fake", "microbench.benchmarks", "microbench.gpu.open", 0)
    job = msgspec.structs.replace(job, floors=measure_floors(FakeHost(spread=0), gpu))
    device, sent = Device(gpu, gpu.clock, gpu), list[Message]()
    orders = [Order(case, session=0, round=0, device="GPU-SIMULATED", seconds=0.01) for case in cases]
    return [worker.run_case(job, device, discover()[order.case.benchmark], order, sent.append) for order in orders]


@pytest.mark.parametrize(
    ("name", "reason"), [("link_copy", "not the one that was sent"), ("memory_levels", "is not that of the set")]
)
def test_a_failed_case_is_an_outcome_with_its_reason(name: str, reason: str) -> None:
    (outcome,) = outcomes_of(exact(with_links(arrives="lost")), discover()[name].cases("quick")[:1])
    assert (outcome.status, outcome.measurements) == ("failed", ())
    assert reason in (outcome.reason or "")


def test_memory_over_the_limit_is_a_skip_and_the_run_goes_on() -> None:
    sizes: tuple[Param, ...] = (MIB, 512 * MIB)
    cases = discover()["link_copy"].cases("full", {"size_bytes": sizes})
    cases = cases + discover()["link_bidirectional"].cases("quick")
    for outcome in outcomes_of(exact(with_links(host_memory_limit_bytes=256 * MIB)), cases):
        large = outcome.case.params["size_bytes"] == 512 * MIB
        assert outcome.status == ("skipped" if large else "ok"), outcome.case.id
        assert not large or "memory asked, 256 MiB may be taken (SIMULATED limit)" in (outcome.reason or "")


def test_device_memory_that_others_hold_is_a_skip_and_the_run_goes_on_at_sizes_that_fit() -> None:
    cases = discover()["memory_stream"].cases("quick", {"size_bytes": (64 * MIB, GIB, 4 * GIB)})
    outcomes = outcomes_of(exact(CROWDED), cases)
    assert {outcome.status for outcome in outcomes} == {"ok", "skipped"}
    for outcome in outcomes:
        fits = int(outcome.case.params["size_bytes"]) * 3 <= 1536 * MIB
        assert outcome.status == ("ok" if fits else "skipped"), outcome.case.id
        assert fits or "somebody (pid 4242) 14 GiB" in (outcome.reason or "")


def test_nobody_takes_everything_while_another_process_works() -> None:
    facts = {fact.name: fact for fact in capacity(exact(CROWDED))}
    assert facts["largest_block_bytes"].value is None
    assert "another process" in (facts["obtainable_bytes"].reason or "")
    assert facts["free_bytes"].value == 1536 * MIB
    full = FakeCosts(memory=MemoryCosts(total_bytes=512 * MIB))
    assert {fact.name: fact.value for fact in capacity(exact(full))}["largest_block_bytes"] == 0


SMALL_HOST = with_links(host_memory_limit_bytes=MIB, numa_nodes=2)
DENIED = FakeCosts(gpus=3, links=LinkCosts(peer_denied=((0, 2),)))
NO_MANAGED = with_links(managed_memory=False)
DEVICE_MEMORY = r"[23] GiB of device memory asked, 1536 MiB free; somebody \(pid 4242\) 14 GiB"


def driver(version: int) -> FakeCosts:
    return FakeCosts(cuda_driver_version=version)


def capability(major: int, minor: int) -> FakeCosts:
    return FakeCosts(compute_capability=(major, minor))


Use = Callable[[Gpu], object]
LACKING: list[tuple[FakeCosts, Use, str]] = [
    (SMALL_HOST, lambda gpu: kernel_copy(gpu, "read", 4, 0, 2 * MIB), "2 MiB of pinned memory asked, 1 MiB"),
    (SMALL_HOST, lambda gpu: duplex_copies(gpu, MIB), "2 MiB of pinned memory"),
    (SMALL_HOST, lambda gpu: host_chase(gpu, 2 * MIB, "random"), "2 MiB of pinned memory"),
    (SMALL_HOST, lambda gpu: pinning(gpu, "register", 2 * MIB, 1), "2 MiB of pinned memory"),
    (SMALL_HOST, lambda gpu: pinning(gpu, "touch", 2 * MIB, 1), "2 MiB of pageable memory"),
    (SMALL_HOST, lambda gpu: chunked_copy(gpu, 2 * MIB, 2, 2, 0), "2 MiB of pinned memory"),
    (SMALL_HOST, lambda gpu: managed_memory(gpu, "fault_to_device", 2 * MIB), "2 MiB of managed memory"),
    (SMALL_HOST, lambda gpu: concurrent_copies(gpu, "h2d", [0, 1], MIB), "2 MiB of pinned memory"),
    (SMALL_HOST, lambda gpu: engine_copy(gpu, "h2d", "pinned", 8, 2), "this machine has 2 NUMA nodes"),
    (TWO, lambda gpu: kernel_copy(gpu, "read", 2, 0, 8), "4, 8 or 16 bytes at a time, not 2"),
    (TWO, lambda gpu: host_chase(gpu, 64, "random"), "64 B hold no line of 128 B"),
    (TWO, lambda gpu: managed_memory(gpu, "fault_to_device", 30 * GIB), "30 GiB is over a quarter of the 96 GiB"),
    (TWO, lambda gpu: peer_copies(gpu, 0, 2, "sm_read", True, 8), "needs a GPU 2: 2 here"),
    (TWO, lambda gpu: concurrent_copies(gpu, "h2d", [0, 5], 8), "needs a GPU 5: 2 here"),
    (TWO, lambda gpu: peer_chase(gpu, 2, 0, MIB), "needs a GPU 2: 2 here"),
    (DENIED, lambda gpu: peer_copies(gpu, 0, 2, "engine_read", True, MIB), "GPU 0 has no peer access to GPU 2"),
    (DENIED, lambda gpu: peer_chase(gpu, 0, 2, MIB), "no peer access"),
    (NO_MANAGED, lambda gpu: managed_memory(gpu, "fault_to_host", MIB), "no concurrent managed access"),
    (TWO, lambda gpu: read_set(gpu, "shared", 256 << 10), "a block has 227 KiB of shared memory here, not 256 KiB"),
    (TWO, lambda gpu: chase(gpu, "shared", 256 << 10), "a block has 227 KiB of shared memory"),
    (TWO, lambda gpu: chase(gpu, "global", 64), "64 B hold no two lines of 128 B"),
    (TWO, lambda gpu: chase(gpu, "shared", 1024).lines_cycles(1), "not in the L2"),
    (TWO, lambda gpu: written_set(gpu, "write", 64 << 10), "64 KiB have no 4096 B for each SM"),
    (TWO, lambda gpu: bank_reads(gpu, 6), "words of 4 B cannot lie 6 B apart"),
    (TWO, lambda gpu: occupied(gpu, 3, 1024, 1, MIB), "does not hold 3 blocks of 1024 threads"),
    (TWO, lambda gpu: occupied(gpu, 1, 32, 3, MIB), "1, 2, 4, 8 loads in flight, none with 3"),
    (TWO, lambda gpu: scattered(gpu, "gather", 24 * MIB), "not a power of two"),
    (TWO, lambda gpu: strided(gpu, "read", 6, 64), "words of 4 B cannot lie 6 B apart"),
    (TWO, lambda gpu: stream(gpu, "read", "fp64", 7, "grid_16B_x4_t256"), "hold no element of fp64"),
    (TWO, lambda gpu: stream(gpu, "read", "fp64", 64, "round"), "has no shape round"),
    (FakeCosts(memory=MemoryCosts(libraries={})), lambda gpu: shapes(gpu, "read", "cupy"), "has no cupy"),
    (FakeCosts(memory=MemoryCosts(total_bytes=GIB)), lambda gpu: loaded_chase(gpu, "dram"),
     "1 GiB of device memory asked, 512 MiB free"),
    (CROWDED, lambda gpu: stream(gpu, "read", "fp64", GIB, "grid_16B_x4_t256"), DEVICE_MEMORY),
    (CROWDED, lambda gpu: read_set(gpu, "global", 2 * GIB), DEVICE_MEMORY),
    (CROWDED, lambda gpu: chase(gpu, "global", 2 * GIB), DEVICE_MEMORY),
    (CROWDED, lambda gpu: occupied(gpu, 1, 32, 1, 2 * GIB), DEVICE_MEMORY),
    (CROWDED, lambda gpu: strided(gpu, "read", 4, 2 * GIB), DEVICE_MEMORY),
    (CROWDED, lambda gpu: scattered(gpu, "gather", 2 * GIB), DEVICE_MEMORY),
    (CROWDED, lambda gpu: engine(gpu, "copy", GIB), DEVICE_MEMORY),
    (CROWDED, lambda gpu: allocating(gpu, "malloc", 2 * GIB, 1), DEVICE_MEMORY),
    (capability(12, 0), lambda gpu: tensor(gpu, "wgmma", "bf16"), "12.0 has no wgmma of bf16"),
    (TWO, lambda gpu: tensor(gpu, "wgmma", "fp64"), "no wgmma of fp64"),
    (capability(8, 0), lambda gpu: tensor(gpu, "mma", "fp8_e5m2"), "needs compute capability 8.9"),
    (TWO, lambda gpu: problem(gpu, "mxfp8", 256, 256, 256), "needs compute capability 10.0"),
    (capability(7, 0), lambda gpu: chain(gpu, "fma_bf16x2"), "needs compute capability 8.0"),
    (TWO, lambda gpu: problem(gpu, "fp16", 8, 8, 8).gemm("cublaslt", "round"), "has no kernel round"),
    (driver(12020), lambda gpu: node_chain(gpu, "if_taken", 1), "conditional nodes need a driver of CUDA 12.4"),
    (driver(12030), lambda gpu: decided_loop(gpu, "while"), "of CUDA 12.4; this one has 12.3"),
    (driver(12020), lambda gpu: node_chain(gpu, "pdl", 1), "programmatic edges need a driver of CUDA 12.3"),
    (driver(11080), lambda gpu: decided_loop(gpu, "tail_launch"), "from the device need a driver of CUDA 12.0"),
    (capability(8, 0), lambda gpu: node_chain(gpu, "pdl_trigger", 1), "capability 9.0; this GPU has 8.0"),
]  # fmt: skip


@pytest.mark.parametrize(("costs", "use", "reason"), LACKING, ids=[reason for _, _, reason in LACKING])
def test_what_a_machine_lacks_is_a_skip_that_says_why(costs: FakeCosts, use: Use, reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        use(exact(costs))


def test_without_peer_access_the_way_back_and_the_way_through_the_host_are_open() -> None:
    gpu = exact(DENIED)
    assert peer_copies(gpu, 2, 0, "engine_read", True, MIB).take_s(1)
    assert peer_copies(gpu, 0, 2, "engine_read", False, MIB).take_s(1)


USES: dict[str, Callable[[Gpu], Callable[[], object]]] = {
    "launch": lambda gpu: partial(gpu.bind(Launch()), 1),
    "replay": lambda gpu: partial(gpu.bind(gpu.graph([Launch()])), 1),
    "gate": lambda gpu: gpu.gate().shut,
    "events": lambda gpu: gpu.events().start,
    "peer": lambda gpu: partial(peer_copies(gpu, 0, 1, "sm_read", True, MIB).take_s, 1),
    "duplex": lambda gpu: partial(duplex_copies(gpu, MIB).ends_s, 1, 1),
    "host chase": lambda gpu: partial(host_chase(gpu, MIB, "random").walks_ns, 1),
    "pageable copy": lambda gpu: partial(engine_copy(gpu, "h2d", "pageable", MIB).submit, 1),
    "pipeline": lambda gpu: partial(chunked_copy(gpu, MIB, 2, 2, 0).submit, 1),
    "managed": lambda gpu: managed_memory(gpu, "fault_to_host", MIB).take_ns,
    "chase": lambda gpu: partial(chase(gpu, "global", MIB).walk, 8),
    "loaded": lambda gpu: partial(loaded_chase(gpu, "l2").take, 8, 0.0),
    "writes": lambda gpu: partial(written_set(gpu, "update", MIB).take, 4096),
    "banks": lambda gpu: partial(bank_reads(gpu, 8).alone, 8),
    "level": lambda gpu: partial(read_set(gpu, "shared", 1024).take, 4096),
    "product": lambda gpu: partial(problem(gpu, "bf16", 256, 256, 256).gemm("cublaslt", WAY).submit, 1),
    "tensor": lambda gpu: partial(tensor(gpu, "wgmma", "bf16").take, 1),
    "instructions": lambda gpu: partial(chain(gpu, "fma_fp32").take, 1),
    "bracket": lambda gpu: clock_bracket(gpu).begin,
    "chain of nodes": lambda gpu: node_chain(gpu, "kernel", 3).instantiate_ns,
    "loop": lambda gpu: partial(decided_loop(gpu, "while"), 1),
    "branches": lambda gpu: shaped_work(gpu, Shape(2, 2, True, 0)).check,
    "step": lambda gpu: allocating_step(gpu, "stream_kept", MIB, 1).check,
}


@pytest.mark.parametrize("made", USES.values(), ids=USES)
def test_what_a_case_made_cannot_be_used_after_it(made: Callable[[Gpu], Callable[[], object]]) -> None:
    gpu = exact(TWO)
    with gpu.case():
        use = made(gpu)
    with pytest.raises(MeasurementError, match="case that has ended"):
        use()


def test_a_case_holds_its_memory_until_it_ends() -> None:
    gpu = exact(CROWDED)
    for _ in range(2):
        with gpu.case():
            for _ in range(2):  # kernels of one case work on the same arrays
                stream(gpu, "read", "fp64", 256 * MIB, "grid_16B_x4_t256")
            with pytest.raises(Skip, match="1 GiB of device memory asked, 768 MiB free"):
                read_set(gpu, "global", GIB)
        with gpu.case():
            before = free_bytes(gpu)
            problem(gpu, "bf16", 4096, 4096, 4096)
            assert before - free_bytes(gpu) == needed_bytes(gpu, "bf16", 4096, 4096, 4096)

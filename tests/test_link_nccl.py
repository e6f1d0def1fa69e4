"""NCCL's rates: the calls to its library through a stand-in, the benchmark, its table and its finding."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from against import nccl_figures
from cuda.pathfinder import DynamicLibNotFoundError
from fake_session import exactly, medians
from link_evidence import WHOLE, findings
from make_link_run import make_link_run, rate
from make_run import measurement, outcome, with_suite
from msgspec.structs import replace
from read_findings import evidence
from sections import some, study

from microbench.archive import schema
from microbench.archive.redaction import redacted
from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Measurement, Run
from microbench.experiments.link import collectives
from microbench.experiments.link.collectives import Collective, CollectiveName, bus_factor, nccl_collective
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.gpu import fake_environment, open_fake
from microbench.report.suites import link

SIZE, INT, POINTER = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
INVALID_USAGE = 5
NO_WAIT = ctypes.CFUNCTYPE(INT, POINTER)(lambda stream: 0)  # cuStreamSynchronize
# The arguments of each function in nccl.h.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGroupStart": (), "ncclGroupEnd": (), "ncclAllReduce": (POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER),
    "ncclAllGather": (POINTER, POINTER, SIZE, INT, POINTER, POINTER),
    "ncclSend": (POINTER, SIZE, INT, INT, POINTER, POINTER), "ncclRecv": (POINTER, SIZE, INT, INT, POINTER, POINTER),
}  # fmt: skip


def floats(address: int, count: int) -> npt.NDArray[np.float32]:
    return np.frombuffer((ctypes.c_float * count).from_address(address), dtype=np.float32)


class StandIn:
    """A collectives.Library. Rank r has the communicator 100 + r and the stream 200 + r; ``damages`` spoils results."""

    def __init__(self, *, damages: bool = False) -> None:
        self.damages = damages
        self.calls: list[str] = []
        self._depth, self._ranks = 0, 0
        self._pending: list[tuple[Any, ...]] = []
        self._functions = {
            name: ctypes.CFUNCTYPE(INT, *arguments)(self._receiver(name)) for name, arguments in SIGNATURES.items()
        }

    def _receiver(self, name: str) -> Callable[..., int]:
        def receive(*arguments: int) -> int:
            self.calls.append(name)
            if name == "ncclGroupStart":
                self._depth += 1
                return 0
            if name == "ncclGroupEnd":
                self._depth -= 1
            else:
                communicator, stream = arguments[-2:]
                if stream - 200 != communicator - 100:
                    return INVALID_USAGE
                self._pending.append((name, communicator - 100, *arguments[:-2]))
            return 0 if self._depth else self._run()

        return receive

    def _run(self) -> int:
        """Runs a group. All ranks must take part; only float32 and sums are accepted."""
        pending, self._pending = self._pending, []
        sent: dict[tuple[int, int], npt.NDArray[np.float32]] = {}
        for name, rank, *arguments in pending:
            if arguments[{"ncclSend": 2, "ncclRecv": 2}.get(name, 3)] != collectives.FLOAT32:
                return INVALID_USAGE
            if name == "ncclSend":
                address, count, _, peer = arguments
                sent[rank, peer] = floats(address, count).copy()
        whole = [one for one in pending if one[0] in ("ncclAllReduce", "ncclAllGather")]
        if whole and sorted(one[1] for one in whole) != list(range(self._ranks)):
            return INVALID_USAGE
        parts = [floats(one[2], one[4]).copy() for one in sorted(whole, key=lambda one: one[1])]
        for name, rank, *arguments in pending:
            if name == "ncclRecv":
                address, count, _, peer = arguments
                floats(address, count)[:] = sent[peer, rank]
            elif name == "ncclAllReduce":
                if arguments[4] != collectives.SUM:
                    return INVALID_USAGE
                floats(arguments[1], arguments[2])[:] = sum(parts)
            elif name == "ncclAllGather":
                floats(arguments[1], arguments[2] * self._ranks)[:] = np.concatenate(parts)
            if self.damages and name == "ncclRecv":
                floats(arguments[0], arguments[1])[-1] += 1
            elif self.damages and name != "ncclSend":
                floats(arguments[1], arguments[2])[-1] += 1
        return 0

    def address(self, name: str) -> int:
        return ctypes.cast(self._functions[name], POINTER).value or 0

    def check(self, code: int, what: str) -> None:
        if code != 0:
            raise MeasurementError(f"{what}: code {code}")

    def version(self) -> str:
        return "2.0.0"

    def communicators(self, case: Any, devices: Sequence[int]) -> Sequence[int]:
        self._ranks = len(devices)
        self.devices = list(devices)
        return [100 + rank for rank in range(len(devices))]


def machine(monkeypatch: pytest.MonkeyPatch, library: StandIn, gpus: int, own: int) -> Any:
    """A case on GPU ``own`` of several whose memory is the host's."""
    kept: list[Any] = []

    def device_memory(size_bytes: int) -> int:
        kept.append(np.zeros(size_bytes, dtype=np.uint8))
        return int(kept[-1].ctypes.data)

    def upload(address: int, values: npt.NDArray[np.float32]) -> None:
        floats(address, values.size)[:] = values

    memory = SimpleNamespace(
        device_memory=device_memory,
        upload=upload,
        read=lambda address, count, dtype: floats(address, count).copy(),
        synchronize=lambda: None,
    )
    order = [own, *(index for index in range(gpus) if index != own)]

    def board(case: Any, index: int) -> Any:
        return SimpleNamespace(case=memory, stream=200 + order.index(index), current=nullcontext)

    monkeypatch.setattr(collectives, "board", board)
    monkeypatch.setattr(collectives, "Library", lambda: library)
    monkeypatch.setattr(collectives, "gpus", lambda case: range(gpus))
    monkeypatch.setattr(collectives, "entry_point", lambda name: ctypes.cast(NO_WAIT, POINTER).value)
    monkeypatch.setattr(
        collectives.driver,
        "cuMemsetD8",
        lambda address, value, size_bytes: (ctypes.memset(address, value, size_bytes) * 0,),
    )
    context = SimpleNamespace(device=own, make_current=lambda: None)
    return SimpleNamespace(context=context, own=kept.append)


MIB = 1 << 20
SIZES = (128, 64 << 10, 16 * MIB, 256 * MIB)
OTHER = LinkCosts(collective_submit_ns=1000, collective_fixed_ns=20_000, peer_sm_bytes_per_s=100e9)


def figures(
    costs: FakeCosts, operation: str, size_bytes: int, binding: str = "loop", gpus: str = "all"
) -> dict[str, float]:
    return medians("link_nccl", costs, operation=operation, size_bytes=size_bytes, binding=binding, gpus=gpus)


@pytest.mark.parametrize("links", [LinkCosts(), OTHER], ids=["default", "other"])
@pytest.mark.parametrize("count", [2, 8])
def test_the_bus_carries_what_the_simulated_links_carry(links: LinkCosts, count: int) -> None:
    costs, size_bytes = FakeCosts(gpus=count, links=links), 1024 * MIB
    shares = {"all_reduce": 2 * (count - 1) / count, "all_gather": (count - 1) / count, "send_recv": 1.0}
    for operation, share in shares.items():
        found = figures(costs, operation, size_bytes)
        assert found["bus_bandwidth"] == pytest.approx(links.peer_sm_bytes_per_s, rel=0.02), operation
        assert found["bus_bandwidth"] == pytest.approx(share * found["algorithm_bandwidth"], rel=1e-6)
        assert found["algorithm_bandwidth"] == pytest.approx(size_bytes / found["call"], rel=1e-6)


def test_a_small_message_costs_the_host_or_the_fixed_part() -> None:
    links = LinkCosts()
    found = figures(FakeCosts(gpus=2), "all_reduce", 128)
    assert set(found) == {"call", "round_trip"}
    assert found["call"] == pytest.approx(links.collective_fixed_ns * 1e-9, rel=0.1)
    assert found["round_trip"] > found["call"]
    by_python = figures(FakeCosts(gpus=2), "all_reduce", 128, "nccl4py")
    assert by_python["call"] == pytest.approx(
        2 * (links.collective_submit_ns + links.collective_python_ns) * 1e-9, rel=0.1
    )


def test_a_ring_of_one_has_no_bus_bandwidth() -> None:
    for operation in ("all_reduce", "all_gather", "send_recv"):
        found = figures(FakeCosts(), operation, 256 * MIB)
        assert set(found) == {"call", "algorithm_bandwidth"}
        assert found["algorithm_bandwidth"] == pytest.approx(LinkCosts().collective_copy_bytes_per_s, rel=0.02)
    assert set(figures(FakeCosts(gpus=4), "all_reduce", MIB, gpus="1")) == {"call", "algorithm_bandwidth"}


@pytest.mark.parametrize(("name", "ranks", "expected"), [
    ("all_reduce", 1, 0.0), ("all_reduce", 2, 1.0), ("all_reduce", 8, 1.75), ("all_gather", 1, 0.0),
    ("all_gather", 2, 0.5), ("all_gather", 8, 0.875), ("send_recv", 1, 0.0), ("send_recv", 8, 1.0),
])  # fmt: skip
def test_factors_are_those_of_nccl_tests(name: CollectiveName, ranks: int, expected: float) -> None:
    assert bus_factor(name, ranks) == expected


def test_sizes_are_counted_as_nccl_tests_counts_them() -> None:
    gpu = open_fake(FakeCosts(gpus=3), spread=0)
    assert nccl_collective(gpu, "all_reduce", "loop", None, 128).size_bytes == 128
    assert nccl_collective(gpu, "all_gather", "loop", None, 128).size_bytes == 3 * 32  # of each GPU whole 16 bytes
    with pytest.raises(Skip, match="too few for all_gather on 3 GPUs"):
        nccl_collective(gpu, "all_gather", "loop", None, 32)
    with pytest.raises(Skip, match="needs a GPU 3"):
        nccl_collective(gpu, "all_reduce", "loop", 4, 128)


@pytest.mark.parametrize(("count", "kept"), [(1, {"all"}), (2, {"all", "1"}), (8, {"all", "1", "2", "4"})])
def test_rings_that_the_machine_has_are_measured_once(count: int, kept: set[str]) -> None:
    benchmark = discover()["link_nccl"]
    here = fake_environment(FakeCosts(gpus=count))
    assert {case.params["gpus"] for case in benchmark.cases("full") if not benchmark.here(here, case.params)} == kept


@cache
def bounds(gpus: int) -> dict[str, str | None]:
    """What link_nccl holds the bus bandwidth of each operation against, on simulated GPUs."""
    found: dict[str, str | None] = {}
    for operation in get_args(CollectiveName):
        params: dict[str, int | str] = {"operation": operation, "binding": "loop", "gpus": "all", "size_bytes": MIB}
        rows = exactly("link_nccl", FakeCosts(gpus=gpus), params)
        (found[operation],) = (one.bound for one in rows if isinstance(one, Measurement) and "bus" in one.metric)
    return found


def with_nccl(ranks: int, nvlinks: bool = True, all_reduce: float = 360e9, sizes: tuple[int, ...] = SIZES) -> Run:
    """A run of that many GPUs in which a call takes 10 µs and the bus carries 360 GB/s, algorithms 300 GB/s."""
    run = make_link_run(gpus=ranks) if ranks > 1 else WHOLE
    outcomes = []
    for operation, binding, size_bytes in product(get_args(CollectiveName), ("loop", "nccl4py"), sizes):
        bus = all_reduce if operation == "all_reduce" else 360e9
        made = [measurement("call", 10e-6)]
        if size_bytes > 128:
            made.append(rate("algorithm_bandwidth", 300e9, size_bytes))
        if size_bytes > 128 and ranks > 1:
            made.append(rate("bus_bandwidth", bus, size_bytes, bounds(ranks)[operation] if nvlinks else None))
        one = outcome("link_nccl", made, operation=operation, binding=binding, gpus="all", size_bytes=size_bytes)
        outcomes.append(replace(one, facts=(Fact("nccl_ranks", ranks, "made up"),)))
    here = run.sessions[-1].environment
    link = replace(here.gpus[0].link, nvlinks=18 if nvlinks else 0, nvlink_bytes_per_s=25e9)
    machine = replace(here, gpus=tuple(replace(gpu, link=link) for gpu in here.gpus))
    return with_suite(run, ["link_nccl"], "default", outcomes, machine)


def test_all_reduce_may_exceed_nvlink_and_others_may_not() -> None:
    """With NVLink SHARP eight H200 reach 475 GB/s bus bandwidth over links of 450 (nccl-tests issues 272 and 212)."""
    assert bounds(8) == {"all_reduce": None, "all_gather": "nvlink", "send_recv": "nvlink"}
    assert "link.over_limit" not in findings(with_nccl(8, all_reduce=480e9))
    fast = FakeCosts(gpus=8, links=LinkCosts(peer_sm_bytes_per_s=480e9))
    assert figures(fast, "all_reduce", 1024 * MIB)["bus_bandwidth"] > 450e9


def test_the_figure_draws_bandwidth_of_the_compiled_loop() -> None:
    curve = some(link.collectives(evidence(with_nccl(8, all_reduce=480e9))))
    assert [line.name for line in curve.lines] == ["all-reduce", "all-gather", "send/recv", "NVLink 450 GB/s"]
    assert [line.kind for line in curve.lines] == ["measured"] * 3 + ["limit"]
    assert [x for x, _ in curve.lines[0].points] == list(SIZES[1:])
    highest = [max(y for _, y in line.points) for line in curve.lines]
    assert highest == pytest.approx([480e9, 360e9, 360e9, 450e9], rel=0.01)
    assert "holds for all-gather and send/recv" in curve.about
    alone = some(link.collectives(evidence(with_nccl(1))))
    assert [line.kind for line in alone.lines] == ["measured"] * 3
    assert "a ring of one GPU" in alone.about
    assert link.collectives(evidence(with_nccl(8, sizes=SIZES[:2]))) is None
    assert link.collectives(evidence(WHOLE)) is None
    assert study(with_nccl(8), "link_nccl").curve is None


PRINTED = """# nThread 1 nGpus 1 minBytes 128 maxBytes 128 step: 1048576(bytes) warmup iters: 20 iters: 20 agg iters: 1
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
         128            32     float     sum      -1     3.10    0.04    0.00       0     0.20    0.64    0.00       0
         128            32     float     sum      -1     3.30    0.06    0.00       0     0.20    0.64    0.00       0
         128            32     float     sum      -1     3.20    0.05    0.00       0     0.20    0.64    0.00       0
# Out of bounds values : 0 OK
"""


def test_what_nccl_tests_prints_is_read() -> None:
    found = nccl_figures(PRINTED, "all_reduce", 128)
    assert found["all_reduce 128 call"] == pytest.approx(3.2e-6)
    assert found["all_reduce 128 algorithm_bandwidth"] == pytest.approx(0.05e9)
    with pytest.raises(ValueError, match="no line of 256 bytes"):
        nccl_figures(PRINTED, "all_reduce", 256)
    with pytest.raises(ValueError, match="wrong data"):
        nccl_figures(PRINTED.replace("0.00       0     0.20", "0.00       3     0.20"), "all_reduce", 128)


@pytest.mark.parametrize("operation", get_args(CollectiveName))
@pytest.mark.parametrize(("gpus", "own", "ranks"), [(1, 0, None), (2, 1, None), (4, 2, None), (4, 3, 2)])
def test_every_rank_gets_its_values_through_the_c_interface(
    monkeypatch: pytest.MonkeyPatch, operation: CollectiveName, gpus: int, own: int, ranks: int | None
) -> None:
    library = StandIn()
    collective = Collective(machine(monkeypatch, library, gpus, own), operation, "loop", ranks, 1000)
    assert library.devices[0] == own
    assert len(set(library.devices)) == collective.ranks == (ranks or gpus)
    collective.fresh()
    with pytest.raises(MeasurementError, match=f"element 0 of .* on rank 0 of {collective.ranks}"):
        collective.check()
    assert collective.take_ns(1) > 0
    collective.check()
    made = list(library.calls)
    assert made.count("ncclGroupStart") == made.count("ncclGroupEnd")
    assert ("ncclGroupStart" in made) == (operation == "send_recv" or collective.ranks > 1)
    collective.take_ns(3)
    assert library.calls == 4 * made
    library.damages = True
    collective.take_ns(1)
    with pytest.raises(MeasurementError, match="is wrong"):
        collective.check()


def test_settings_that_name_machines_are_in_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COMM_ID": "node17:4444", "HOSTID": "node17", "ALGO": "RING"}.items():
        monkeypatch.setenv(f"NCCL_{name}", value)
    made = Collective(machine(monkeypatch, StandIn(), 2, 0), "all_reduce", "loop", None, 1000)
    run = with_nccl(2)
    run = replace(run, outcomes=tuple(replace(one, facts=tuple(made.facts())) for one in run.outcomes))
    shared = schema.encode(redacted(run, ((), ())))
    assert b"NCCL_ALGO=RING" in shared
    assert b"node17" not in shared


def test_a_refusal_of_nccl_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "FLOAT32", 6)
    made = Collective(machine(monkeypatch, StandIn(), 2, 0), "all_reduce", "loop", None, 1000)
    monkeypatch.setattr(collectives, "FLOAT32", 7)
    with pytest.raises(MeasurementError, match="all_reduce: code 5"):
        made.take_ns(1)


@pytest.mark.parametrize(("gpus", "asked", "reason"), [
    (1, "1", "this machine has 1 GPU: use gpus=all"),
    (8, "8", "this machine has 8 GPUs: use gpus=all"),
    (1, "2", "needs 2 GPUs, 1 here"),
])  # fmt: skip
def test_a_ring_that_this_machine_has_not_or_has_by_another_name(gpus: int, asked: str, reason: str) -> None:
    assert discover()["link_nccl"].here(fake_environment(FakeCosts(gpus=gpus)), {"gpus": asked}) == reason


def test_without_the_library_the_case_is_skipped_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise DynamicLibNotFoundError(name)

    monkeypatch.setattr("cuda.pathfinder.load_nvidia_dynamic_lib", absent)
    with pytest.raises(Skip, match="needs NCCL: pip install nvidia-nccl-cu13"):
        collectives.Library()

"""Links of the simulated GPU: what did not arrive fails, what cannot be had is a skip, and several GPUs are there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import pytest
from fake_session import run_case

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Case, Measurement, Outcome, Param
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.environment import GPUS_VARIABLE, FakeHost, fake_environment
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.fake.links import Flow, Piece, play, shares
from microbench.gpu.fake.machine import Machine
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import ManagedWay, PeerWay, Transfer
from microbench.measure.floors import measure_floors
from microbench.run import worker
from microbench.run.messages import Job, Message, Order
from microbench.run.plan import make_plan, select
from microbench.run.worker import Device

MIB = 1 << 20
TWO = FakeCosts(gpus=2)
PEER_WAYS: tuple[PeerWay, ...] = (
    "engine_read", "engine_write", "sm_read", "sm_write", "engine_both_read", "engine_both_write",
)  # fmt: skip


def exact(costs: FakeCosts = TWO) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def with_links(gpus: int = 2, **links: object) -> FakeCosts:
    """Costs that differ in a link's."""
    return FakeCosts(gpus=gpus, links=LinkCosts(**links))  # type: ignore[arg-type]


# -- what did not arrive -----------------------------------------------------------------------------------------


def moving_cases() -> list[Case]:
    """Every default case that moves data, of this suite."""
    environment = fake_environment(TWO)
    return [
        case
        for name in (
            "link_copy", "link_bidirectional", "link_zero_copy", "link_numa", "link_chunks", "link_managed",
            "link_peer", "link_concurrent", "link_latency",
        )
        for case in discover()[name].cases("default")
        if discover()[name].here(environment, case.params) is None
        and case.params.get("what", "host_read") in ("host_read", "copy_h2d", "copy_d2h")
        and case.params.get("size_bytes", 1) != 256 * MIB
    ]  # fmt: skip


@pytest.mark.parametrize("case", moving_cases(), ids=lambda case: case.id)
def test_movements_are_checked_and_fail_where_one_is_left_out(case: Case) -> None:
    found = [one for one in run_case(discover()[case.benchmark], case, TWO) if isinstance(one, Measurement)]
    assert found
    assert all(one.verified and one.needs_verification for one in found)
    with pytest.raises(MeasurementError, match=r"SIMULATED: .* (sent|should be)$"):
        run_case(discover()[case.benchmark], case, with_links(arrives="lost"))


@pytest.mark.parametrize("name", ["link_copy", "link_zero_copy", "link_bidirectional", "link_chunks", "link_managed"])
def test_one_wrong_byte_is_enough(name: str) -> None:
    with pytest.raises(MeasurementError, match=r"byte \d+ of \d+ is not the one that was sent"):
        run_case(discover()[name], discover()[name].cases("quick")[0], with_links(arrives="damaged"))


@pytest.mark.parametrize("size_bytes", [1, 7, MIB])
@pytest.mark.parametrize(
    "made",
    [
        lambda gpu, size: gpu.links.copy("d2h", "pinned", size),
        lambda gpu, size: gpu.links.copy("h2d", "pageable", size),
        lambda gpu, size: gpu.links.kernel_copy("read", 4, 0, size),
    ],
)
def test_a_transfer_that_was_never_made_fails_its_check(made: Callable[[Gpu, int], Transfer], size_bytes: int) -> None:
    gpu = exact()
    transfer = made(gpu, size_bytes)
    assert transfer.size_bytes == size_bytes
    for _ in range(2):
        transfer.fresh()
        with pytest.raises(MeasurementError, match=f"byte 0 of {size_bytes} is not"):
            transfer.check()
        transfer.submit(1)
        assert transfer.check().startswith("SIMULATED")


def test_a_kernel_that_does_not_wait_for_its_piece_fails_the_check() -> None:
    machine = Machine(TWO, seed=0, spread=0, wait="auto")
    early, late = Piece(machine, MIB, 0, 1000), Piece(machine, MIB, 0, 1000)
    assert early.kernel is not None
    early.kernel = msgspec.structs.replace(early.kernel, stream=1)
    for piece in (early, late):
        piece.ends.fresh()
        piece.submit()
        machine.synchronize()
    late.check()
    with pytest.raises(MeasurementError, match="a kernel began before its piece was there"):
        early.check()


def test_a_failed_case_is_an_outcome_with_its_reason() -> None:
    gpu = exact(with_links(arrives="lost"))
    outcomes = outcomes_of(gpu, discover()["link_copy"].cases("quick")[:1])
    assert [(one.status, one.measurements) for one in outcomes] == [("failed", ())]
    assert "not the one that was sent" in (outcomes[0].reason or "")


# -- what cannot be had ------------------------------------------------------------------------------------------


def outcomes_of(gpu: Gpu, cases: list[Case]) -> list[Outcome]:
    """The cases one after the other on one device, as a worker measures them."""
    job = Job("gpu", "fake", "microbench.benchmarks", "microbench.gpu.open", 0)
    job = msgspec.structs.replace(job, floors=measure_floors(FakeHost(spread=0), gpu))
    device, sent = Device(gpu, gpu.clock, gpu), list[Message]()
    orders = [Order(case, session=0, round=0, device="GPU-SIMULATED", seconds=0.01) for case in cases]
    return [worker.run_case(job, device, discover()[order.case.benchmark], order, sent.append) for order in orders]


def test_memory_over_the_limit_is_a_skip_and_the_run_goes_on() -> None:
    sizes: tuple[Param, ...] = (MIB, 512 * MIB)
    link_copy = discover()["link_copy"]
    cases = link_copy.cases("full", {"size_bytes": sizes}) + discover()["link_bidirectional"].cases("quick")
    found = outcomes_of(exact(with_links(host_memory_limit_bytes=256 * MIB)), cases)
    small = [one.status for one in found if one.case.params["size_bytes"] != 512 * MIB]
    assert set(small) == {"ok"}
    large = {(one.status, one.reason) for one in found if one.case.params["size_bytes"] == 512 * MIB}
    assert large == {
        ("skipped", f"512 MiB of {memory} memory asked, 256 MiB may be taken (SIMULATED limit)")
        for memory in link_copy.axes["memory"].full
    }


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda links: links.kernel_copy("read", 4, 0, 2 * MIB), "2 MiB of pinned memory asked, 1 MiB"),
        (lambda links: links.duplex(MIB), "2 MiB of pinned memory"),
        (lambda links: links.chase(2 * MIB, 128, "random"), "2 MiB of pinned memory"),
        (lambda links: links.pinning("register", 2 * MIB, 1), "2 MiB of pinned memory"),
        (lambda links: links.pinning("touch", 2 * MIB, 1), "2 MiB of pageable memory"),
        (lambda links: links.pipeline(2 * MIB, 2, 2, 0), "2 MiB of pinned memory"),
        (lambda links: links.managed("fault_to_device", 2 * MIB), "2 MiB of managed memory"),
        (lambda links: links.concurrent("h2d", [0, 1], MIB), "2 MiB of pinned memory"),
        (lambda links: links.copy("h2d", "pinned", 8, 2), "this machine has 2 NUMA nodes"),
        (lambda links: links.kernel_copy("read", 2, 0, 8), "4, 8 or 16 bytes at a time, not 2"),
        (lambda links: links.chase(64, 128, "random"), "64 B hold no line of 128 B"),
        (lambda links: links.managed("fault_to_device", 30 << 30), "30 GiB is over a quarter of the 96 GiB"),
        (lambda links: links.peer(0, 2, "sm_read", True, 8), "needs a GPU 2: 2 here"),
        (lambda links: links.concurrent("h2d", [0, 5], 8), "needs a GPU 5: 2 here"),
        (lambda links: links.peer_chase(2, 0, MIB, 128), "needs a GPU 2: 2 here"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_a_skip_that_says_why(asked: Callable[[object], object], reason: str) -> None:
    gpu = exact(with_links(host_memory_limit_bytes=MIB, numa_nodes=2))
    with pytest.raises(Skip, match=reason):
        asked(gpu.links)


@pytest.mark.parametrize("way", discover()["link_managed"].axes["way"].full)
def test_a_gpu_without_managed_memory(way: ManagedWay) -> None:
    with pytest.raises(Skip, match="no concurrent managed access"):
        exact(with_links(managed_memory=False)).links.managed(way, MIB)


@pytest.mark.parametrize("way", PEER_WAYS)
def test_a_pair_without_peer_access(way: PeerWay) -> None:
    links = exact(with_links(gpus=3, peer_denied=((0, 2),))).links
    with pytest.raises(Skip, match="GPU 0 has no peer access to GPU 2: the simulated driver refuses it"):
        links.peer(0, 2, way, True, MIB)
    assert links.peer(2, 0, way, True, MIB).take_s(1)
    assert links.peer(0, 2, "engine_read", False, MIB).take_s(1), "the way through the host is open"
    with pytest.raises(Skip, match="no peer access"):
        links.peer_chase(0, 2, MIB, 128)


def test_what_a_case_made_is_of_no_use_after_it() -> None:
    gpu = exact()
    with gpu.case():
        links = gpu.links
        uses: tuple[Callable[[], object], ...] = (
            partial(links.peer(0, 1, "sm_read", True, MIB).take_s, 1),
            partial(links.duplex(MIB).ends_s, 1, 1),
            partial(links.chase(MIB, 128, "random").walks_ns, 1),
            partial(links.copy("h2d", "pageable", MIB).submit, 1),
            partial(links.kernel_copy("read", 4, 0, MIB).submit, 1),
            partial(links.pipeline(MIB, 2, 2, 0).submit, 1),
            links.managed("fault_to_host", MIB).take_ns,
            links.state,
        )
    for use in uses:
        with pytest.raises(MeasurementError, match="a case that has ended"):
            use()


def test_a_batch_too_long_for_its_gate_is_void() -> None:
    gpu = exact(FakeCosts(copy_h2d_submit_ns=300e6))
    assert gpu.links.duplex(MIB).ends_s(1, 2) is None
    duplex = exact().links.duplex(MIB)
    ends = duplex.ends_s(3, 6)
    assert ends is not None
    assert [one.shape for one in ends] == [(3,), (6,)]


# -- several GPUs ------------------------------------------------------------------------------------------------


def test_the_environment_says_how_many_gpus_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPUS_VARIABLE, raising=False)
    assert [gpu.index for gpu in fake_environment().gpus] == list(open_fake().links.gpus()) == [0]
    monkeypatch.setenv(GPUS_VARIABLE, "2")
    first, second = fake_environment().gpus
    assert list(open_fake().links.gpus()) == [first.index, second.index] == [0, 1]
    assert first.uuid != second.uuid
    assert first.pci_bus_id != second.pci_bus_id
    assert second.simulated
    for wrong in ("0", "17", "two", "-1", ""):
        monkeypatch.setenv(GPUS_VARIABLE, wrong)
        with pytest.raises(MeasurementError, match="is no number of GPUs from 1 to 16"):
            open_fake()


@pytest.mark.parametrize("name", ["link_peer", "link_concurrent"])
def test_pairs_are_planned_where_two_gpus_are_simulated(name: str) -> None:
    benchmark = discover()[name]
    selected = select({name: benchmark}, (), "quick", {})
    alone = make_plan(selected, fake_environment(FakeCosts()), device="fake")
    assert not alone.cases
    assert [(one.case.id, one.status, one.reason) for one in alone.skipped] == [
        (name, "skipped", "needs 2 GPUs, 1 here")
    ]
    plan = make_plan(selected, fake_environment(TWO), device="fake")
    assert not plan.skipped
    indices = {index for one in plan.cases for index in (one.case.params.get("first"), one.case.params.get("second"))}
    if name == "link_peer":
        assert indices == {0, 1}
    outcomes = outcomes_of(exact(), [one.case for one in plan.cases])
    assert {one.status for one in outcomes} == {"ok"}


def test_a_longer_way_between_nodes_is_there_only_with_two_of_them() -> None:
    selected = select({"link_numa": discover()["link_numa"]}, (), "quick", {})
    for nodes in (1, 2):
        plan = make_plan(selected, fake_environment(with_links(numa_nodes=nodes)), device="cuda:0")
        assert {one.case.params["node"] for one in plan.cases} == set(range(nodes))


# -- facts and counters --------------------------------------------------------------------------------------------


def test_every_fact_is_known_or_says_why_not() -> None:
    facts = exact().links.state()
    names = [fact.name for fact in facts]
    assert len(set(names)) == len(names)
    assert all(fact.source == "SIMULATED" for fact in facts)
    assert all((fact.value is None) == (fact.reason is not None) for fact in facts)
    assert any(fact.value is None for fact in facts)
    by_name = {fact.name: fact for fact in facts}
    assert by_name["topology_gpu1"].value == "NV18"
    assert by_name["nvlink_bytes_per_s"].unit == "B/s"
    assert "topology_gpu1" not in {fact.name for fact in exact(FakeCosts()).links.state()}


def test_the_way_leads_over_two_switches_to_a_root_port() -> None:
    facts = {fact.name: fact.value for fact in exact().links.state()}
    hops = [facts[f"hop{index}_kind"] for index in range(int(facts["hops"]))]  # type: ignore[arg-type]
    assert f"hop{len(hops)}_kind" not in facts
    assert (hops[0], hops[-1]) == ("endpoint", "root port")
    assert hops.count("switch upstream port") == hops.count("switch downstream port") == facts["switches"] == 2
    assert facts["hop0_bus_id"] == fake_environment(TWO).gpus[0].pci_bus_id


def moved_bytes(gpu: Gpu, act: Callable[[], object]) -> tuple[float, float]:
    """Bytes received and sent meanwhile, less the reading's own and what flows when idle."""
    costs = FakeCosts()
    before, began_ns = gpu.pcie_bytes(), gpu.clock.now_ns()
    act()
    after, elapsed_s = gpu.pcie_bytes(), (gpu.clock.now_ns() - began_ns) * 1e-9
    own, idle = costs.counter_read_traffic, costs.idle_traffic_per_s
    return (
        after.received - before.received - own.received - idle.received * elapsed_s,
        after.sent - before.sent - own.sent - idle.sent * elapsed_s,
    )


@pytest.mark.parametrize(
    ("act", "received", "sent"),
    [
        (lambda links: links.copy("h2d", "pinned", 64 * MIB).submit(1), 276 / 256, 24 / 256),
        (lambda links: links.copy("d2h", "registered", 64 * MIB).submit(1), 0, 280 / 256),
        (lambda links: links.copy("h2d", "pageable", 64 * MIB).submit(1), 276 / 256, 24 / 256),
        (lambda links: links.kernel_copy("read", 16, 0, 64 * MIB).submit(1), 148 / 128, 24 / 128),
        (lambda links: links.kernel_copy("write", 8, 0, 64 * MIB).submit(1), 0, 152 / 128),
        (lambda links: links.kernel_copy("read", 4, 4, 64 * MIB).submit(1), 168 / 128, 48 / 128),
        (lambda links: links.duplex(64 * MIB).ends_s(1, 2), 276 / 256, 2 * 280 / 256 + 24 / 256),
        (lambda links: links.managed("fault_to_device", 64 * MIB).take_ns(), 276 / 256, 24 / 256),
        (lambda links: links.pipeline(64 * MIB, 4, 2, 0).submit(1), 276 / 256, 24 / 256),
        (lambda links: links.peer(0, 1, "engine_write", True, 64 * MIB).take_s(1), 0, 0),
        (lambda links: links.peer(0, 1, "engine_write", False, 64 * MIB).take_s(1), 0, 280 / 256),
        (lambda links: links.peer(0, 1, "engine_read", False, 64 * MIB).take_s(1), 276 / 256, 24 / 256),
        (lambda links: links.concurrent("h2d", [1], 64 * MIB).take_s(1), 0, 0),
    ],
)  # fmt: skip
def test_what_crosses_the_link_is_counted_with_its_headers(
    act: Callable[[object], object], received: float, sent: float
) -> None:
    gpu = exact()
    found = moved_bytes(gpu, lambda: act(gpu.links))
    assert np.array(found) / (64 * MIB) == pytest.approx((received, sent), abs=1e-3)


# -- wires ---------------------------------------------------------------------------------------------------------


def flow(loads: dict[str, float], size_bytes: float = 100.0, before_ns: tuple[float, ...] = (0.0,)) -> Flow:
    return Flow(size_bytes, loads, np.array(before_ns))


def test_flows_share_a_wire_and_take_what_others_leave() -> None:
    one, two, three = flow({"a": 1.0}), flow({"a": 1.0, "b": 1.0}), flow({"b": 2.0})
    rates = shares([one, two, three], {"a": 100.0, "b": 60.0})
    assert [rates[id(each)] for each in (one, two, three)] == pytest.approx([80.0, 20.0, 20.0])
    assert shares([], {"a": 1.0}) == {}


def test_rates_change_when_a_flow_begins_and_ends() -> None:
    # 1 byte a ns. The second begins after 20 ns, so that the first has 20 bytes by then, and both 40 more at 100 ns.
    ends = play([flow({"a": 1.0}, 60.0), flow({"a": 1.0}, 100.0, (20.0, 10.0))], {"a": 1e9})
    assert ends[0] == pytest.approx([100.0])
    assert ends[1] == pytest.approx([160.0, 270.0])

"""Links of a real GPU: data arrive, a missing move is noticed, times are physically possible."""

from typing import get_args

import numpy as np
import pytest
from gpu_checks import proven

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.link.chase import Order, host_chase
from microbench.experiments.link.collectives import CollectiveName, bus_factor, nccl_collective
from microbench.experiments.link.concurrent import concurrent_copies, duplex_copies, visible_gpus
from microbench.experiments.link.copies import Access, engine_copy, kernel_copy
from microbench.experiments.link.peers import PeerWay, peer_chase, peer_copies
from microbench.experiments.link.state import link_state
from microbench.gpu.protocol.gpu import Direction, Gpu, HostMemory

pytestmark = pytest.mark.gpu

SIZES = (1, 5, 4096, 1_000_003)


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("memory", get_args(HostMemory))
@pytest.mark.parametrize("direction", get_args(Direction))
def test_copies_arrive(gpu: Gpu, direction: Direction, memory: HostMemory, size_bytes: int) -> None:
    transfer = engine_copy(gpu, direction, memory, size_bytes)
    assert transfer.blocks == (memory == "pageable")
    proven(gpu, transfer, "byte 0 of")


@pytest.mark.parametrize(("width_bytes", "offset_bytes"), [(4, 0), (4, 4), (8, 0), (16, 0), (16, 32)])
@pytest.mark.parametrize("size_bytes", [16, 4099, 9_000_001])
@pytest.mark.parametrize("access", get_args(Access))
def test_kernels_move_all_bytes(gpu: Gpu, access: Access, size_bytes: int, width_bytes: int, offset_bytes: int) -> None:
    proven(gpu, kernel_copy(gpu, access, width_bytes, offset_bytes, size_bytes), "byte 0 of")


def test_copies_run_both_ways_at_the_same_time(gpu: Gpu) -> None:
    duplex = duplex_copies(gpu, 1 << 20)
    duplex.fresh()
    with pytest.raises(MeasurementError):
        duplex.check()
    ends = duplex.ends_s(3, 6)
    assert ends is not None
    assert [len(side) for side in ends] == [3, 6]
    assert all((np.diff(side) > 0).all() and side[0] > 0 for side in ends)
    duplex.check()


@pytest.mark.parametrize("order", get_args(Order))
def test_walks_end_at_their_line(gpu: Gpu, order: Order) -> None:
    chase = host_chase(gpu, 64 << 10, order)
    for _ in range(2):
        walks = chase.walks_ns(10)
        assert walks.shape == (chase.blocks,)
        assert (walks > 10 * 300).all()  # a read across PCIe takes longer than that
    each = chase.each_ns(50)
    assert each.shape == (50,)
    assert 300 < np.median(each) < 20_000


def test_the_link_state_is_read_under_load(gpu: Gpu) -> None:
    facts = {fact.name: fact for fact in link_state(gpu)}
    assert facts["read_under_load"].value is True
    assert facts["generation_now"].value == gpu.info.link.generation_max
    assert all(fact.value is not None or fact.reason for fact in facts.values())


def needs_two(gpu: Gpu) -> None:
    if len(visible_gpus(gpu)) < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.parametrize("way", get_args(PeerWay))
@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_peers_exchange_data(gpu: Gpu, first: int, second: int, way: PeerWay) -> None:
    needs_two(gpu)
    peer = peer_copies(gpu, first, second, way, True, 1_000_003)
    peer.fresh()
    with pytest.raises(MeasurementError):
        peer.check()
    assert (peer.take_s(3) or 0) > 0
    peer.check()


@pytest.mark.parametrize("way", ["engine_read", "engine_write"])
def test_peers_without_access_copy_through_the_host(gpu: Gpu, way: PeerWay) -> None:
    needs_two(gpu)
    peer = peer_copies(gpu, 0, 1, way, False, 1 << 20)
    peer.fresh()
    assert (peer.take_s(2) or 0) > 0
    peer.check()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_walks_through_the_other_gpu(gpu: Gpu, first: int, second: int) -> None:
    needs_two(gpu)
    chase = peer_chase(gpu, first, second, 64 << 10)
    assert (chase.walks_ns(10) > 0).all()
    assert 200 < np.median(chase.each_ns(50)) < 20_000


@pytest.mark.parametrize("direction", get_args(Direction))
def test_gpus_copy_at_the_same_time(gpu: Gpu, direction: Direction) -> None:
    indices = list(visible_gpus(gpu))
    together = concurrent_copies(gpu, direction, indices, 1 << 20)
    together.fresh()
    with pytest.raises(MeasurementError):
        together.check()
    taken = together.take_s(3)
    assert taken is not None
    assert (taken > 0).all()
    assert len(taken) == len(indices)
    together.check()


@pytest.mark.parametrize("size_bytes", [128, 1_000_064, 16 << 20])
@pytest.mark.parametrize("name", get_args(CollectiveName))
@pytest.mark.parametrize("ranks", [1, 2, None])
def test_nccl_gives_every_gpu_its_values(gpu: Gpu, ranks: int | None, name: CollectiveName, size_bytes: int) -> None:
    if ranks == 2:
        needs_two(gpu)
    collective = nccl_collective(gpu, name, "loop", ranks, size_bytes)
    assert collective.ranks == (ranks or len(visible_gpus(gpu)))
    assert 0 <= size_bytes - collective.size_bytes < 16 * collective.ranks
    for _ in range(2):  # the first call also sets up the connections between the GPUs
        collective.fresh()
        with pytest.raises(MeasurementError, match="element 0 of"):
            collective.check()
        assert 0 < collective.take_ns(2) < 10e9
        collective.check()
    facts = {fact.name: fact.value for fact in collective.facts()}
    assert facts["nccl_ranks"] == collective.ranks
    assert str(facts["nccl_version"]).startswith("2.")


def test_nccl4py_makes_the_same_calls(gpu: Gpu) -> None:
    pytest.importorskip("nccl.core")
    for name in get_args(CollectiveName):
        collective = nccl_collective(gpu, name, "nccl4py", None, 4096)
        collective.fresh()
        collective.take_ns(3)
        collective.check()


def test_the_time_of_a_large_message_is_possible(gpu: Gpu) -> None:
    """A GPU cannot copy faster than it reads and writes its memory, nor can links carry more than their line rate.

    All-reduce is not compared with NVLink, because the switches add with NVLink SHARP.
    """
    size_bytes = 256 << 20
    for name in get_args(CollectiveName):
        collective = nccl_collective(gpu, name, "loop", None, size_bytes)
        collective.take_ns(5)
        taken_s = min(collective.take_ns(20) for _ in range(3)) * 1e-9 / 20
        link = gpu.info.link
        if collective.ranks == 1:
            assert 2 * collective.size_bytes / taken_s < 10e12
        elif name != "all_reduce" and link.nvlinks and link.nvlink_bytes_per_s:
            on_bus_bytes = bus_factor(name, collective.ranks) * collective.size_bytes
            assert on_bus_bytes / taken_s < link.nvlinks * link.nvlink_bytes_per_s


def test_an_absent_gpu_is_a_skip(gpu: Gpu) -> None:
    with pytest.raises(Skip, match="needs a GPU 99"):
        peer_copies(gpu, 0, 99, "engine_read", True, 1024)
    with pytest.raises(Skip, match="needs 99 GPUs"):
        nccl_collective(gpu, "all_reduce", "loop", 99, 1024)

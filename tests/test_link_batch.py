"""link_batch: the simulated costs come back, and a piece that does not arrive is noticed, also on a real GPU."""

from typing import get_args

import pytest
from fake_session import exact, medians
from make_link_run import measured_batches

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.link.pipeline import BatchWay, batched_copy
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.protocol.gpu import Gpu

OTHER = FakeCosts(copy_h2d_submit_ns=900, link_bytes_per_s=30e9)


@pytest.mark.parametrize("costs", [FakeCosts(), OTHER], ids=["default", "other"])
def test_small_pieces_cost_the_host_and_large_ones_the_link(costs: FakeCosts) -> None:
    def each_ns(way: BatchWay, piece_bytes: int) -> float:
        rate = medians("link_batch", costs, way=way, piece_bytes=piece_bytes, pieces_copied=256)
        return 1e9 * piece_bytes / rate["bandwidth"]

    on_gpu_ns = costs.copy_fixed_ns + costs.gap_stream_ns
    assert each_ns("loop", 1024) == pytest.approx(max(costs.copy_h2d_submit_ns, on_gpu_ns), rel=0.1)
    links, payload_ns = costs.links, costs.on_the_link_bytes("h2d", 65536) / costs.link_bytes_per_s * 1e9
    assert each_ns("batched", 65536) == pytest.approx(links.batched_piece_ns + payload_ns, rel=0.05)
    slowly_ns = 16384 / links.batched_small_bytes_per_s * 1e9
    assert each_ns("batched", 16384) == pytest.approx(links.batched_piece_ns + slowly_ns, rel=0.05)
    gathered_ns = 65536 * 148 / 128 / costs.link_bytes_per_s * 1e9
    assert each_ns("gather", 65536) == pytest.approx(gathered_ns, rel=0.05)


@pytest.mark.parametrize("machine", ["H100", "H200"])
def test_the_simulated_figures_have_the_shape_of_measured_ones(machine: str) -> None:
    """No further off than by a factor of 1.7, where 256 pieces are copied."""
    for (way, piece_bytes, pieces), measured in measured_batches(machine).items():
        if pieces == 256:
            simulated = medians("link_batch", way=way, piece_bytes=piece_bytes, pieces_copied=pieces)["bandwidth"]
            assert 1 / 1.7 < simulated / measured < 1.7, (way, piece_bytes)


@pytest.mark.parametrize("way", get_args(BatchWay))
def test_a_piece_that_is_lost_is_noticed(way: BatchWay) -> None:
    transfer = batched_copy(exact(FakeCosts(links=LinkCosts(arrives="lost"))), way, 4096, 8)
    transfer.fresh()
    transfer.submit(1)
    with pytest.raises(MeasurementError, match="not the one that was sent"):
        transfer.check()
    with pytest.raises(Skip, match="pieces of 100 B"):
        batched_copy(exact(), way, 100, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("way", get_args(BatchWay))
@pytest.mark.parametrize(("piece_bytes", "count"), [(16, 1), (4096, 100), (28 << 10, 37)])
def test_on_a_gpu_every_piece_arrives(gpu: Gpu, way: BatchWay, piece_bytes: int, count: int) -> None:
    transfer = batched_copy(gpu, way, piece_bytes, count)
    transfer.fresh()
    with pytest.raises(MeasurementError):
        transfer.check()
    transfer.submit(1)
    gpu.synchronize()
    assert "compared" in transfer.check()

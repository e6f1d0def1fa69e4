"""step_time on the simulated GPU: a step is its pieces, each launched and waited for, with copies in their place."""

import numpy as np
import pytest
from fake_session import medians

from microbench.core.ops import Launch
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.meter.alternating import InOrder

COSTS = FakeCosts()
CLOCK_S = 3e-9


def rest_ns() -> float:
    return COSTS.launch_to_start_ns + COSTS.completion_ns["auto"] + COSTS.timer_call_ns


def piece_ns(layer: str, kernels: int, duration_ns: int) -> float:
    """Calls, kernels and one synchronise, by the law."""
    costs, runs_ns = COSTS.layers[layer], COSTS.kernel_ns(duration_ns)
    call_ns = costs.call_ns + costs.argument_ns
    return call_ns + (kernels - 1) * max(call_ns, runs_ns + COSTS.gap_stream_ns) + runs_ns + rest_ns()


@pytest.mark.parametrize("layer", ["loop", "cupy_raw"])
@pytest.mark.parametrize(("kernels", "waits"), [(60, 1), (60, 6), (30, 30)])
@pytest.mark.parametrize("duration_ns", [1500, 8000])
def test_a_step_is_as_many_pieces_as_waits(layer: str, kernels: int, waits: int, duration_ns: int) -> None:
    found = medians(
        "step_time", COSTS, layer=layer, kernels=kernels, waits=waits, duration_ns=duration_ns, copy_bytes=0
    )
    piece = kernels // waits
    assert found["stream"] == pytest.approx(waits * piece_ns(layer, piece, duration_ns) * 1e-9, abs=waits * CLOCK_S)
    call_ns = COSTS.graph_submit_ns + piece * COSTS.graph_node_submit_ns + COSTS.layers[layer].replay_ns
    runs_ns = piece * COSTS.kernel_ns(duration_ns) + (piece - 1) * COSTS.gap_graph_ns
    assert found["graph"] == pytest.approx(waits * (call_ns + runs_ns + rest_ns()) * 1e-9, abs=waits * CLOCK_S)


def test_copies_stand_before_and_behind_the_kernels() -> None:
    plain, copied = (
        medians("step_time", COSTS, layer="loop", kernels=60, waits=1, duration_ns=8000, copy_bytes=size_bytes)
        for size_bytes in (0, 1 << 20)
    )
    assert "graph" not in copied, "steps with copies are not replayed"
    moved_s = sum(COSTS.on_the_link_bytes(way, 1 << 20) / COSTS.link_bytes_per_s for way in ("h2d", "d2h"))
    added_s = copied["stream"] - plain["stream"]
    assert moved_s < added_s < moved_s + 10e-6


def test_parts_are_submitted_in_their_order_and_waited_for() -> None:
    gpu = open_fake(COSTS, spread=0)
    with gpu.case():
        first, second = gpu.bind(Launch(duration_ns=5000)), gpu.bind(Launch(duration_ns=20_000))
        out_ns = np.zeros(3, dtype=np.int64)
        InOrder(gpu, ((first, 2), (second, 3))).round_trips(out_ns)
    by_law_ns = COSTS.submit_ns + 2 * 5000 + 3 * 20_000 + 4 * COSTS.gap_stream_ns + rest_ns()
    assert out_ns == pytest.approx([by_law_ns] * 3, abs=2)

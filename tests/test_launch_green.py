"""launch_green: the simulated waits come back; on a real GPU no block leaves its SMs, and only they are free."""

from typing import get_args

import pytest
from fake_session import facts, medians

from microbench.core.errors import Skip
from microbench.experiments.launch.green import BLOCK_NS, PARTS, WAVES, GreenStream, short_kernel
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.protocol.gpu import Gpu

OTHER = FakeCosts(sm_count=80, submit_ns=2100, launch_to_start_ns=1900)


@pytest.mark.parametrize("costs", [FakeCosts(), OTHER], ids=["default", "other"])
@pytest.mark.parametrize("kind", get_args(GreenStream))
def test_each_stream_gives_back_the_simulated_waits(kind: GreenStream, costs: FakeCosts) -> None:
    found = medians("launch_green", costs, stream=kind)
    waits_ns = {"plain": WAVES * BLOCK_NS, "priority": BLOCK_NS, "green_shared": WAVES * BLOCK_NS}.get(kind, 0)
    assert found["submit"] == pytest.approx(costs.submit_ns * 1e-9, rel=0.01)
    assert found["beside"] - found["latency"] == pytest.approx(waits_ns * 1e-9, abs=1e-9)
    assert facts("launch_green", costs, stream=kind)["sms"].value == costs.sm_count // PARTS.get(kind, 1)


def test_a_driver_without_green_contexts_is_named() -> None:
    old = FakeCosts(cuda_driver_version=12040)
    assert medians("launch_green", old, stream="priority")
    with pytest.raises(Skip, match="streams of green contexts"):
        medians("launch_green", old, stream="green_half")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", get_args(GreenStream))
def test_on_a_gpu_no_block_leaves_its_sms_and_only_they_are_free(gpu: Gpu, kind: GreenStream) -> None:
    kernel = short_kernel(gpu, kind)
    assert "counted itself" in kernel.check()
    assert gpu.info.sm_count is not None
    assert kernel.sms == gpu.info.sm_count if kind not in PARTS else 0 < kernel.sms < gpu.info.sm_count
    waits_ns = sorted(kernel.beside_ns() for _ in range(21))[10]
    if kind == "plain":
        assert 0.8 * WAVES * BLOCK_NS < waits_ns < 1.5 * WAVES * BLOCK_NS
    elif kind == "priority":
        assert 0.5 * BLOCK_NS < waits_ns < 2 * BLOCK_NS
    elif kind != "green_shared":
        assert waits_ns < 0.5 * BLOCK_NS
    assert "counted itself" in kernel.check(), "the long kernel can be launched again"

"""The fit recovers the constants of the simulated machine, which does not use the model."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from make_fake_run import make_fake_run

from microbench.analysis.evidence import evidence_by_device
from microbench.core.model import Param
from microbench.gpu.fake.costs import FakeCosts, GraphCosts, LayerCosts, Line, MemoryCosts, Rates
from microbench.meter.sampling import SamplingLimits
from microbench.model.constants import Fit, making_of
from microbench.model.fit import call_constant, fit
from microbench.model.forecast import check

# What the issue promises.
WITHIN = 0.02
MIB = 1 << 20
Cases = list[tuple[str, dict[str, Param]]]

LAUNCHES: Cases = [("launch_cost", {}), *(("launch_duration", {"duration_ns": ns}) for ns in (0, 1000, 5000))]
CALLS: Cases = [
    ("launch_layers", {"family": "same_kernel", "layer": layer, "arguments": arguments})
    for layer in ("loop", "cuda_core")
    for arguments in (0, 4)
]
LIVES: Cases = [("graph_lifecycle", {"nodes": nodes}) for nodes in (10, 100, 1000)]
STEPS: Cases = [
    ("graph_gain", {"submitter": layer, "kernels": kernels, "duration_ns": duration_ns})
    for layer in ("loop", "cuda_core")
    for kernels in (10, 100)
    for duration_ns in (0, 1000, 5000)
]
LINKS: Cases = [
    *(
        ("link_copy", {"direction": direction, "memory": "pinned", "size_bytes": size_bytes})
        for direction in ("h2d", "d2h")
        for size_bytes in (1, MIB, 64 * MIB)
    ),
    *(
        ("link_latency", {"what": what, "footprint_bytes": 0, "order": "sequential"})
        for what in ("copy_h2d", "copy_d2h")
    ),
]
FORK: Cases = [("graph_shape", {"shape": "fork_join", "branches": 64, "duration_ns": 0})]


def fitted(costs: FakeCosts, cases: Cases, **more: Any) -> Fit:
    return fit(evidence_by_device(make_fake_run(costs, cases, **more))[0])


def nearly(value_ns: float, within: float = WITHIN) -> Any:
    """That many ns, in seconds; the clock shows whole ones."""
    return pytest.approx(value_ns * 1e-9, rel=within, abs=2e-9)


def near(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


# Of a draw only what differs from FakeCosts: a machine is long to print, and longer to shrink.
drawn = settings(deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
# A fine timer, as what a kernel records of itself is known no better than that; a reading of the host's clock, which
# stands in every time, is short against what is sought.
FINE = {"timer_call_ns": 10.0, "globaltimer_step_ns": 1}
# What the model takes a profiler's duration to be longer, in runs without launch_gap.
PROFILED_S = 0.5e-6
LAUNCHING = {
    "submit_ns": near(1500, 8000), "launch_to_start_ns": near(1500, 6000), "flag_to_host_ns": near(300, 1500),
    "host_read_ns": near(500, 2500), "gap_stream_ns": near(600, 3000), "gap_graph_ns": near(250, 2000),
    "empty_kernel_ns": near(50, 500), "graph_submit_ns": near(700, 4000), "graph_node_submit_ns": near(0.5, 10),
}  # fmt: skip
LAYERS = st.builds(LayerCosts, near(2000, 25_000), near(20, 3000), near(300, 4000))


def machine(changes: dict[str, Any], completion_ns: float, layer: LayerCosts, argument_ns: float = 0.0) -> FakeCosts:
    """The compiled loop's call is the launch's own."""
    loop = LayerCosts(changes["submit_ns"], argument_ns, replay_ns=0)
    layers, completion = {"loop": loop, "cuda_core": layer}, {"auto": completion_ns, "spin": completion_ns}
    return FakeCosts(**FINE, **changes, completion_ns=completion, layers=layers)


def check_launches(result: Fit, costs: FakeCosts, within: float = WITHIN, spread: float = 0.0) -> None:
    """``spread`` is the noise of a call. The time of a node is small against that of the replays it is derived from."""
    values = result.values
    node_ns, most_nodes = costs.graph_node_submit_ns, 1000
    off_ns = within * node_ns + 2 * spread * (costs.graph_submit_ns / most_nodes + node_ns)
    for layer, cost in costs.layers.items():
        for arguments in (0, 1, 4):
            expected_ns = cost.call_ns + arguments * cost.argument_ns
            assert values[f"call.{layer}.{arguments}"] == nearly(expected_ns, within), (layer, arguments)
        assert values[f"replay.{layer}"] == nearly(costs.graph_submit_ns + cost.replay_ns, within), layer
    assert values["replay_node"] == pytest.approx(node_ns * 1e-9, abs=off_ns * 1e-9)
    assert values["way"] == nearly(costs.launch_to_start_ns, within)
    assert values["replay_way"] == nearly(costs.launch_to_start_ns, within)
    assert values["complete"] + PROFILED_S == nearly(costs.completion_ns["auto"] + costs.timer_call_ns, within)
    assert values["gap_stream"] + PROFILED_S == nearly(costs.gap_stream_ns, within)
    assert values["gap_graph"] + PROFILED_S == nearly(costs.gap_graph_ns, within)


@pytest.mark.slow
@settings(drawn, max_examples=100)
@given(st.fixed_dictionaries(LAUNCHING), near(1500, 8000), LAYERS, near(0, 300))
def test_launches_and_replays_are_given_back(
    changes: dict[str, Any], completion_ns: float, layer: LayerCosts, argument_ns: float
) -> None:
    costs = machine(changes, completion_ns, layer, argument_ns)
    result = fitted(costs, LAUNCHES + CALLS + LIVES + STEPS)
    check_launches(result, costs)
    assert max(misfit.median for misfit in result.misfit.values()) < 0.006


@pytest.mark.slow
@settings(drawn, max_examples=20)
@given(st.fixed_dictionaries(LAUNCHING), near(1500, 8000), LAYERS)
def test_noise_is_borne(changes: dict[str, Any], completion_ns: float, layer: LayerCosts) -> None:
    costs = machine(changes, completion_ns, layer)
    cases = LAUNCHES + CALLS + LIVES + STEPS
    spread = 0.003
    result = fitted(costs, cases, spread=spread, limits=SamplingLimits(seconds=0.001, minimum=10))
    check_launches(result, costs, within=0.03, spread=spread)


@pytest.mark.slow
@settings(drawn, max_examples=40)
@given(st.fixed_dictionaries(LAUNCHING), near(1500, 8000), st.builds(LayerCosts, near(6000, 25_000), near(20, 3000)))
def test_calls_that_steps_show_are_given_back(changes: dict[str, Any], completion_ns: float, layer: LayerCosts) -> None:
    """Calls longer than a kernel of 1 us and its gap, and nothing that timed calls from Python."""
    costs = machine(changes, completion_ns, layer)
    result = fitted(costs, LAUNCHES + LIVES + STEPS)
    for arguments in (0, 1):
        constant = result.constants[f"call.cuda_core.{arguments}"]
        assert constant.value == nearly(layer.call_ns + arguments * layer.argument_ns)
        assert not constant.assumed
    between = call_constant(result.constants, "cuda_core", 3)
    assert between.value == nearly(layer.call_ns + 3 * layer.argument_ns, 0.1)
    assert "3 arguments" in between.assumed


LINES = st.builds(Line, near(1000, 20_000), near(100, 5000))


@drawn
@given(LINES, LINES, LINES)
def test_what_making_a_graph_takes_is_given_back(capture: Line, instantiate: Line, upload: Line) -> None:
    costs = FakeCosts(**FINE, graphs=GraphCosts(capture=capture, instantiate=instantiate, upload=upload))
    measured = fitted(costs, LIVES).made
    made = (capture, instantiate, upload)
    readings_ns = 3 * costs.timer_call_ns
    for nodes in (1, 30, 100):
        found = making_of([nodes, nodes], measured)
        expected_ns = sum(act.constant + nodes * act.slope for act in made) + readings_ns
        assert found is not None
        assert found.value == nearly(2 * expected_ns)


@pytest.mark.slow
@settings(drawn, max_examples=60)
@given(
    st.fixed_dictionaries(
        {
            "copy_h2d_submit_ns": near(500, 4000), "copy_d2h_submit_ns": near(500, 4000),
            "copy_fixed_ns": near(500, 4000), "link_bytes_per_s": near(5e9, 250e9),
            "launch_to_start_ns": near(3000, 6000), "gap_stream_ns": near(600, 2500),
        }
    )
)  # fmt: skip
def test_copies_are_given_back(changes: dict[str, float]) -> None:
    """A copy queued behind another waits for the gap; that is in the latency, and the way is shorter by it."""
    costs = FakeCosts(**FINE, **changes)
    values = fitted(costs, LAUNCHES[:2] + LINKS).values
    for direction, header_bytes in (("h2d", 20), ("d2h", 24)):
        assert values[f"{direction}_call"] == nearly(getattr(costs, f"copy_{direction}_submit_ns"))
        assert values[f"{direction}_latency"] == nearly(costs.copy_fixed_ns + costs.gap_stream_ns)
        together = values[f"{direction}_latency"] + values[f"{direction}_way"]
        assert together - PROFILED_S == nearly(costs.copy_fixed_ns + costs.launch_to_start_ns)
        payload_rate = costs.link_bytes_per_s * 256 / (256 + header_bytes)
        assert values[f"{direction}_rate"] == pytest.approx(payload_rate, rel=WITHIN)


@drawn
@given(st.integers(100, 4000), near(50, 1500), near(0.3e12, 8e12))
def test_queue_synchronise_and_memory_are_given_back(slots: int, idle_ns: float, rate: float) -> None:
    memory = MemoryCosts(dram_bytes_per_s=Rates(rate, rate, rate))
    costs = FakeCosts(**FINE, queue_slots=slots, idle_stream_ns=idle_ns, memory=memory)
    stream: dict[str, Param] = {"kernel": "read", "dtype": "fp64", "implementation": "cuda", "size_bytes": 1 << 30}
    cases: Cases = [("launch_queue", {"argument_bytes": 0}), ("launch_sync", {"wait": "spin", "duration_ns": 0})]
    values = fitted(costs, [*cases, ("memory_stream", stream)]).values
    assert values["queue"] == costs.queue_depth(costs.launch_record_bytes)
    assert values["sync"] == nearly(idle_ns)
    assert values["memory"] == pytest.approx(rate, rel=WITHIN)


@settings(drawn, max_examples=2)
@given(near(100, 1000), near(250, 2000), near(700, 4000))
def test_the_front_end_is_given_back(front_end_ns: float, gap_graph_ns: float, graph_submit_ns: float) -> None:
    costs = FakeCosts(**FINE, front_end_ns=front_end_ns, gap_graph_ns=gap_graph_ns, graph_submit_ns=graph_submit_ns)
    result = fitted(costs, LAUNCHES + LIVES + STEPS[:6] + FORK)
    assert result.values["front_end"] == nearly(front_end_ns)


@st.composite
def unseen(draw: st.DrawFn) -> dict[str, Param]:
    """A step of step_time, of a length, a count and waits that none of STEPS has."""
    waits = draw(st.integers(1, 8))
    kernels = waits * draw(st.integers(2, 40))
    layer = draw(st.sampled_from(("loop", "cuda_core")))
    copied = draw(st.sampled_from((0, 200_000, 3 * MIB))) if layer == "loop" and waits == 1 else 0
    length_ns = draw(st.integers(600, 20_000))
    return {"layer": layer, "kernels": kernels, "duration_ns": length_ns, "waits": waits, "copy_bytes": copied}


@pytest.mark.slow
@settings(drawn, max_examples=15)
@given(st.fixed_dictionaries(LAUNCHING), near(1500, 8000), LAYERS, st.lists(unseen(), min_size=4, max_size=4))
def test_steps_that_the_fit_never_saw_are_foreseen(
    changes: dict[str, Any], completion_ns: float, layer: LayerCosts, several: list[dict[str, Param]]
) -> None:
    """Copies included: a single one is a call, a way and a latency as long as the gap is no longer than the way."""
    shorter_ns = min(changes["gap_stream_ns"], changes["launch_to_start_ns"])
    costs = machine({**changes, "gap_stream_ns": shorter_ns}, completion_ns, layer)
    idle: Cases = [("launch_queue", {"argument_bytes": 0}), ("launch_sync", {"wait": "spin", "duration_ns": 0})]
    cases = LAUNCHES + CALLS + LIVES + STEPS + LINKS + idle + [("step_time", params) for params in several]
    evidence = evidence_by_device(make_fake_run(costs, cases))[0]
    checked = check(evidence, fit(evidence))
    assert checked.points
    for point in checked.points:
        assert abs(point.error) < WITHIN, (point.row.case_id, point.way)
        assert point.covered

"""The rules of the graph suite: severity and figures on made runs, silence without cause, and their facts."""

import pytest
from make_graph_run import graph_outcomes, make_graph_run
from make_run import figures, measurement, scaled, with_metrics, without
from msgspec.structs import replace
from read_findings import by_rule, check, evidence

from microbench.analysis.evidence import Finding
from microbench.analysis.graph_steps import kernel_counts, usual_kernels
from microbench.core.model import Run
from microbench.explain import graph_facts as graphs
from microbench.model.graph_pairs import Pair, pairs

WHOLE = make_graph_run()
MAKE = ("capture", "instantiate", "upload")


def finding_of(rule: str, run: Run = WHOLE) -> Finding:
    return by_rule(run, "graph")[rule]


def launches(run: Run, seconds: float, *kinds: str) -> Run:
    """The run with ``seconds`` as the launch call of chains of these kinds."""
    other = measurement("launch", seconds)
    for kind in kinds:
        run = with_metrics(run, "graph_nodes", lambda old: other if old.metric == "launch" else old, kind=kind)
    return run


EQUAL = with_metrics(WHOLE, "graph_gain", lambda old: measurement(old.metric, 5e-6, spread=0.01))
OLD = with_metrics(WHOLE, "graph_lifecycle", lambda old: None if old.metric == "uploaded_launch" else old)
NO_LOOP = without(WHOLE, "graph_gain", submitter="loop")
NO_NUMBA = without(WHOLE, "graph_library", submitter="numba_configured")
FEW_BYTES = ("memset", "copy_h2d", "copy_d2h", "copy_d2d")
SINGLY = (*FEW_BYTES, "host", "event_record", "event_wait")
AT_ONCE = without(WHOLE, "graph_nodes", kind="kernel_prologue")
SLOW_ROOTS = scaled(WHOLE, "graph_shape", ("graph_submit",), 50, shape="independent")
LONG_UPLOADED = scaled(WHOLE, "graph_lifecycle", ("uploaded_launch",), 60)
CHEAP_REBUILD = scaled(WHOLE, "graph_update", ("change", *graphs.AROUND, "next_replay"), 0.01, way="rebuild")
NO_RELEASE = without(WHOLE, "graph_memory", way="stream_released")
CASES: list[tuple[str, Run, str, list[str]]] = [
    ("graph.break_even", WHOLE, "note", ["10.5 µs", "260 µs"]),
    ("graph.break_even", scaled(WHOLE, "graph_lifecycle", MAKE, 10), "note", ["10.5 µs", "2.59 ms"]),
    ("graph.break_even", EQUAL, "note", ["260 µs"]),
    ("graph.crossover", WHOLE, "note", ["1.05×", "17.1 µs", "19.6 µs"]),
    ("graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 2), "note", ["1.05×", "201 µs"]),
    ("graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 0.1), "note", ["1.05×", "1.11 µs"]),
    ("graph.crossover", NO_LOOP, "note", ["1.05×", "17.3 µs", "19.6 µs"]),
    ("graph.phases", WHOLE, "note", ["132 µs", "50.7 %", "2.47 µs"]),
    ("graph.phases", scaled(WHOLE, "graph_lifecycle", ("upload",), 5), "note", ["415 µs", "70.2 %", "5.69 µs"]),
    ("graph.replay", WHOLE, "note", ["1.20 µs", "498 ns", "1.40 ns"]),
    ("graph.library", WHOLE, "note", ["1.21 ms", "317 µs", "1.75×"]),
    ("graph.library", scaled(WHOLE, "graph_library", ("make",), 20), "advice", ["23.3 ms", "317 µs", "1.75×"]),
    (
        "graph.library",
        without(WHOLE, "graph_library", submitter="numba_configured"),
        "note",
        ["920 µs", "317 µs", "2.9×"],
    ),
    ("graph.library", without(WHOLE, "graph_lifecycle"), "note", ["1.21 ms", "2.35 µs"]),
    ("graph.command_buffers", WHOLE, "advice", ["3.1×", "3.7×"]),
    ("graph.command_buffers", scaled(WHOLE, "graph_jax", ("graph",), 2, output="donated"), "note", ["3.1×", "1.85×"]),
    ("graph.command_buffers", scaled(WHOLE, "graph_jax", ("graph",), 5), "advice", ["1.61×", "0.74×"]),
    ("graph.command_buffers", without(WHOLE, "graph_jax", output="new"), "note", ["3.7×"]),
    ("graph.command_buffers", scaled(WHOLE, "graph_jax", ("stream",), 1 / 3.14), "advice", ["1.19×"]),
    ("graph.upload", WHOLE, "advice", ["86.3 µs", "1.56 µs", "83.7 µs"]),
    ("graph.upload", OLD, "advice", ["86.3 µs", "1.34 µs", "83.7 µs"]),
    ("graph.upload", LONG_UPLOADED, "note", ["86.3 µs", "92.6 µs", "83.7 µs"]),
    ("graph.memory_taken", WHOLE, "note", ["1.10 kB", "2.30 kB", "11.0 MB"]),
    ("graph.update", WHOLE, "advice", ["26.9 µs", "304 µs", "11×"]),
    ("graph.update", CHEAP_REBUILD, "note", ["2.24 µs"]),
    ("graph.nodes", WHOLE, "note", ["99.9 ns", "4.09 µs", "2.7×"]),
    ("graph.one_by_one", WHOLE, "advice", ["130 µs", "1.50 µs"]),
    ("graph.one_by_one", launches(WHOLE, 1.5e-6, *SINGLY[1:]), "advice", ["4 B", "96.4 µs", "1.50 µs"]),
    ("graph.pdl", WHOLE, "advice", ["1 µs", "4.6×", "3.4×"]),
    ("graph.pdl", AT_ONCE, "advice", ["3.1×", "1.62×"]),
    ("graph.pdl", scaled(WHOLE, "graph_nodes", ("stream", "node"), 0.1, kind="kernel_prologue"), "note", ["1 µs"]),
    ("graph.iteration", WHOLE, "note", ["4.49 µs", "3.41 µs"]),
    ("graph.refused", WHOLE, "note", []),
    ("graph.shape", WHOLE, "note", ["29.6 µs", "7.7×", "5.49 µs"]),
    ("graph.shape", scaled(WHOLE, "graph_shape", ("graph",), 0.01, shape="chain"), "note", ["5.49 µs"]),
    ("graph.shape", SLOW_ROOTS, "advice", ["29.6 µs", "7.7×", "5.49 µs"]),
    ("graph.memory", WHOLE, "advice", ["2.05 µs", "2.89 µs", "309 µs"]),
    ("graph.memory", NO_RELEASE, "note", ["2.05 µs", "2.89 µs"]),
    ("graph.model", WHOLE, "good", ["0.16 %", "0.28 %"]),
    ("graph.rounds", WHOLE, "note", ["10 %"]),
]


@pytest.mark.parametrize(("rule", "run", "severity", "named"), CASES)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, named: list[str]) -> None:
    check(finding_of(rule, run), severity)
    assert figures(finding_of(rule, run)) == named


@pytest.mark.parametrize(
    ("rule", "run", "words"),
    [
        ("graph.break_even", without(WHOLE, "graph_gain", kernels=100), ("graph of 10 ",)),
        ("graph.crossover", WHOLE, ("!directly", "is 1.05× as fast or more up to kernels of", "gains as much up to")),
        ("graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 2), ("at every measured length",)),
        ("graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 0.1), ("never 1.05× as fast",)),
        ("graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 0.01), ("No other layer",)),
        (
            "graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 2, submitter="loop", kernels=100),
            ("only with shorter kernels",),
        ),
        ("graph.crossover", scaled(WHOLE, "graph_gain", ("stream",), 0.9, kernels=1), ("Launch single kernels",)),
        ("graph.phases", WHOLE, ("!node by node",)),
        ("graph.phases", scaled(WHOLE, "graph_lifecycle", ("capture",), 10), ("Build the graph node by node",)),
        ("graph.one_by_one", WHOLE, ("7 kinds of node", "few bytes")),
        ("graph.one_by_one", launches(WHOLE, 1.5e-6, *SINGLY[1:]), (graphs.TITLES["memset"], "few bytes")),
        (
            "graph.one_by_one", launches(WHOLE, 1.5e-6, *FEW_BYTES),
            (graphs.TITLES["host"], graphs.TITLES["event_record"], graphs.TITLES["event_wait"], "!few bytes"),
        ),
        ("graph.iteration", WHOLE, ("only to leave the host free",)),
        ("graph.iteration", without(WHOLE, "graph_nodes", kind="host_poll"), ("Decide on the device, which",)),
        ("graph.iteration", scaled(WHOLE, "graph_nodes", ("iteration",), 1.32, kind="host_poll"), ("Either will do",)),
        (
            "graph.refused", WHOLE,
            (graphs.TITLES["if_taken"], graphs.TITLES["if_skipped"], "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
        ),
        ("graph.refused", without(WHOLE, "graph_nodes", kind="if_taken"), (f"!{graphs.TITLES['if_taken']}",)),
        (
            "graph.memory", scaled(WHOLE, "graph_memory", ("step",), 9 / 11, way="graph_nodes"),
            ("adds at most 30.5 ns as graph nodes, 2.89 µs", "309 µs"),
        ),
    ],
)  # fmt: skip
def test_a_rule_says_what_to_do_only_where_it_helps(rule: str, run: Run, words: tuple[str, ...]) -> None:
    finding = finding_of(rule, run)
    check(finding, finding.severity, *words)


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        ("graph.break_even", without(WHOLE, "graph_lifecycle")),
        ("graph.crossover", without(WHOLE, "graph_gain")),
        ("graph.one_by_one", launches(WHOLE, 1.5e-6, *SINGLY)),
        ("graph.one_by_one", without(WHOLE, "graph_nodes", kind="kernel_empty")),
        ("graph.pdl", without(without(WHOLE, "graph_nodes", kind="kernel"), "graph_nodes", kind="kernel_prologue")),
        ("graph.model", without(WHOLE, "step_time")),
        ("graph.rounds", make_graph_run(rounds=3)),
    ],
)
def test_a_rule_without_its_measurements_is_silent(rule: str, run: Run) -> None:
    assert rule not in by_rule(run, "graph")


def test_crossovers_lie_between_the_durations_around_them() -> None:
    measured = pairs(evidence(WHOLE), "loop", 100)
    for speedup in graphs.SPEEDUPS:
        at_s = graphs.crossing(measured, speedup)
        assert all(pair.speedup >= speedup for pair in measured if pair.duration_s < at_s)
        assert all(pair.speedup < speedup for pair in measured if pair.duration_s > at_s)


def test_a_crossover_is_linear_in_the_logarithm() -> None:
    def pair(duration_s: float, speedup: float) -> Pair:
        stand_in = pairs(evidence(WHOLE), "loop", 100)[0]
        interval = replace(stand_in.graph.interval, median=1.0)
        graph = replace(stand_in.graph, interval=interval)
        stream = replace(graph, interval=replace(interval, median=speedup))
        return Pair(duration_s, stream, graph)

    measured = [pair(1e-6, 1.2), pair(100e-6, 1.0)]
    assert graphs.crossing(measured, 1.1) == pytest.approx(10e-6)
    assert graphs.crossing(measured, 1.5) == 0.0
    assert graphs.crossing([pair(1e-6, 1.2), pair(2e-6, 1.2)], 1.1) is None
    # The last fall counts, not one that noise undid.
    assert graphs.crossing([pair(1e-6, 1.2), pair(2e-6, 1.0), pair(4e-6, 1.2), pair(8e-6, 1.0)], 1.1) > 4e-6


def test_each_submitter_has_its_curve_at_the_usual_count() -> None:
    assert kernel_counts(evidence(WHOLE), "cuda_core") == [10, 100]
    assert {kernels for kernels, _ in graphs.curves(evidence(WHOLE)).values()} == {100}
    assert next(iter(graphs.curves(evidence(WHOLE)))) == "loop"


@pytest.mark.parametrize(
    ("counts", "wanted", "usual"), [([1, 30, 1000], 100, 30), ([8, 64], 10, 8), ([10], 100, 10), ([], 100, None)]
)
def test_the_usual_count_is_the_nearest_by_ratio(counts: list[int], wanted: int, usual: int | None) -> None:
    assert usual_kernels(counts, wanted) == usual


def test_break_even_is_the_time_to_make_a_graph_over_the_saving_per_replay() -> None:
    assert [chain.replays for chain in graphs.break_evens(evidence(WHOLE))] == [18, 2, 1, 1]
    assert [chain.replays for chain in graphs.break_evens(evidence(WHOLE), 10e-6)] == [18, 5, 4, 3]
    for chain in graphs.break_evens(evidence(WHOLE)):
        saved_s = (chain.pair.stream.value - chain.pair.graph.value) * chain.kernels
        assert (chain.replays - 1) * saved_s < chain.making_s <= chain.replays * saved_s
    slow = graphs.break_evens(evidence(scaled(WHOLE, "graph_lifecycle", MAKE, 10)))
    assert [chain.replays for chain in slow if chain.kernels == 100] == [10]
    assert {chain.replays for chain in graphs.break_evens(evidence(EQUAL))} == {None}


def test_break_even_needs_the_same_count_in_both_benchmarks() -> None:
    run = without(WHOLE, "graph_gain", kernels=100)
    assert 100 not in {chain.kernels for chain in graphs.break_evens(evidence(run))}


def test_gpu_time_is_fitted_for_the_whole_replay() -> None:
    fit = graphs.life_line(evidence(WHOLE), "node")
    assert (fit.constant, fit.slope) == (pytest.approx(1.3e-6, rel=0.02), pytest.approx(0.5e-6, rel=0.02))


def test_a_change_costs_its_record_its_disposal_and_what_the_next_replay_takes_more() -> None:
    updated, single = (graphs.cost(evidence(WHOLE), way, 100, 100) for way in ("exec_update", "set_params"))
    assert updated.seconds == pytest.approx(21.5e-6 + 44.4e-6 + 16e-6 + 4e-6, rel=0.02)
    assert {row.metric.name for row in updated.rows} >= {"record", "dispose"}
    assert single.seconds == pytest.approx(23e-6 + 4e-6, rel=0.02)
    assert graphs.cost(evidence(WHOLE), "exec_update", 100, 7) is None


def test_from_how_many_nodes_the_whole_update_is_cheaper() -> None:
    few, all_of = graphs.Cost("set_params", 1, 1.0, ()), graphs.Cost("set_params", 101, 11.0, ())
    for whole_s, count in ((6.0, pytest.approx(51)), (20.0, None), (0.5, 1)):
        assert graphs.equal_at([few, all_of], graphs.Cost("exec_update", 101, whole_s, ())) == count
    # Each of the three cases has its advice.
    cheap = scaled(WHOLE, "graph_update", ("change", "record", "dispose"), 0.2, way="exec_update")
    cheaper = scaled(WHOLE, "graph_update", ("change", *graphs.AROUND, "next_replay"), 0.01, way="exec_update")
    assert len({finding_of("graph.update", run).advice for run in (WHOLE, cheap, cheaper)}) == 3


def test_every_kind_of_node_has_a_title() -> None:
    kinds = {one.case.params["kind"] for one in graph_outcomes() if one.case.benchmark == "graph_nodes"}
    assert kinds == set(graphs.TITLES)


def test_branches_help_up_to_where_the_gpu_is_full() -> None:
    measured = graphs.branches(evidence(WHOLE), "fork_join", 5000)
    assert [point.number for point in measured] == [1, 2, 4, 8, 16, 32, 64]
    assert graphs.enough(measured).number == 16
    assert graphs.enough(measured[:3]).number == 4

"""What is measured, in which order and process, and that the error for a wrong name suggests the nearest right one."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from microbench.core.bench import Axis, Benchmark, Measured, Package, discover
from microbench.core.errors import ExitCode, UsageError
from microbench.core.model import Case, Environment, GpuInfo, Metric, Param
from microbench.session.plan import PlannedCase, Selected, make_plan, parse_overrides, select

ONE = GpuInfo(name="tiny", uuid="GPU-one")
OTHER = GpuInfo(name="tiny", uuid="GPU-other")
HERE = Environment(gpus=(ONE, OTHER))
NO_GPU = Environment(no_gpu_reason="no driver")


def nothing(*_: object) -> Iterator[Measured]:
    yield from ()


def benchmark(name: str, suite: str = "launch", **more: object) -> Benchmark:
    metrics = (Metric("seconds", "time", "s", ""),)
    return Benchmark(name=name, suite=suite, title="", about="", metrics=metrics, measure=nothing, **more)  # type: ignore[arg-type]


SIZE = Axis("how much", (64,), (64, 128), (64, 128, 256), minimum=1, maximum=4096)
MODE = Axis.same("in which way", ("spin", "yield", "blocking"))
CATALOGUE = {
    one.name: one
    for one in (
        benchmark("host_clock", "host", gpus=0),
        benchmark("cold", axes={"mode": MODE}, cold=True, minimum_rounds=3),
        benchmark("kind", axes={"size_bytes": SIZE, "mode": MODE}),
        benchmark("sync", axes={"size_bytes": SIZE, "mode": MODE}, own_process=lambda params: f"sync {params['mode']}"),
        benchmark("zero"),
    )
}


def selected(
    *names: str, preset: str = "", overrides: Mapping[str, tuple[Param, ...]] | None = None
) -> tuple[Selected, ...]:
    """Named benchmarks with their quick grids, all with their default grids."""
    return select(CATALOGUE, names, preset or ("quick" if names else "default"), overrides or {})


def ids(cases: tuple[PlannedCase, ...]) -> list[str]:
    return [one.case.id for one in cases]


def test_everything_is_selected_unless_named() -> None:
    assert [one.benchmark.name for one in selected()] == list(CATALOGUE)
    assert [one.benchmark.name for one in selected("zero", "host")] == ["host_clock", "zero"]
    assert [one.named for one in selected("zero", "host")] == [False, True]


@pytest.mark.parametrize(("action", "cause", "next_step"), [
    (lambda: selected("lanch"), "suite or benchmark called lanch", "did you mean launch?"),
    (lambda: selected("kinds"), "suite or benchmark called kinds", "did you mean kind?"),
    (lambda: selected("\x1b[31m"), r"called \x1b[31m", "host, launch, host_clock"),
    (lambda: selected(preset="quik"), "preset called quik", "did you mean quick?"),
    (lambda: selected(overrides={"sise": (1,)}), "axis of the selected benchmarks called sise", "mode, size_bytes"),
    (lambda: selected("zero", overrides={"mode": ("spin",)}), "axis of the selected benchmarks", "list"),
    (lambda: selected("kind", overrides={"mode": ("spinn",)}), "value of mode in kind called spinn", "spin?"),
    (lambda: selected("kind", overrides={"mode": ("zzz",)}), "called zzz", "one of: spin, yield, blocking"),
    (lambda: selected("kind", overrides={"size_bytes": ("large",)}), "large is not a value", "whole numbers"),
    (lambda: selected("kind", overrides={"size_bytes": ("1.5x",)}), "1.5x is not a value", "whole numbers"),
    (lambda: selected("kind", overrides={"size_bytes": ("0",)}), "out of range in kind", "takes 1 to 4096"),
    (lambda: selected("kind", overrides={"size_bytes": (4097,)}), "out of range in kind", "takes 1 to 4096"),
    (lambda: selected("kind", overrides={"size_bytes": ("9" * 5000,)}), "is not a value", "whole numbers"),
    (lambda: parse_overrides(["mode"]), "mode is not axis=value", "for example"),
    (lambda: parse_overrides(["=1"]), "=1 is not axis=value", "for example"),
    (lambda: parse_overrides(["mode=spin,,yield"]), "is not axis=value", "for example"),
])  # fmt: skip
def test_a_wrong_name_gets_the_nearest_right_one(action: Callable[[], object], cause: str, next_step: str) -> None:
    with pytest.raises(UsageError) as caught:
        action()
    assert cause in caught.value.cause
    assert next_step in caught.value.next_step
    assert caught.value.exit_code == ExitCode.USAGE
    assert len(caught.value.cause.splitlines()) == 1


def test_an_axis_of_numbers_takes_any_in_its_range_and_one_of_names_only_its_own() -> None:
    overrides = parse_overrides(["size_bytes=1,4096, 77", "mode=yield", "size_bytes=1"])
    assert overrides == {"size_bytes": ("1", "4096", "77", "1"), "mode": ("yield",)}
    kind = selected("kind", overrides=overrides)[0]
    assert [case.params for case in kind.cases] == [{"mode": "yield", "size_bytes": size} for size in (1, 4096, 77)]


def test_an_override_applies_where_the_axis_is() -> None:
    by_name = {one.benchmark.name: len(one.cases) for one in selected(overrides={"mode": ("spin",)})}
    assert by_name == {"host_clock": 1, "cold": 1, "kind": 2, "sync": 2, "zero": 1}


def test_values_that_combine_to_nothing_are_an_error() -> None:
    picky = benchmark("picky", axes={"size_bytes": SIZE}, combines=lambda params: params["size_bytes"] == 64)
    with pytest.raises(UsageError, match="picky has no case with size_bytes=128"):
        select({"picky": picky}, (), "default", {"size_bytes": ("128",)})


def drawn(rounds: int, seed: str | None, suite: str = "compute") -> list[list[int]]:
    """The sizes in the order of measuring, round by round."""
    one = benchmark("one", suite, axes={"size_bytes": Axis.same("", tuple(range(10)))})
    plan = make_plan(select({"one": one}, (), "default", {}), HERE, rounds=rounds, order_seed=seed)
    sizes = [int(planned.case.params["size_bytes"]) for planned in plan.cases]
    return [sizes[start : start + 10] for start in range(0, len(sizes), 10)]


def test_compute_cases_have_an_order_of_their_own_in_each_round() -> None:
    rounds = drawn(4, "run session 0")
    assert all(sorted(sizes) == list(range(10)) for sizes in rounds)
    assert len({tuple(sizes) for sizes in rounds}) == 4
    assert drawn(4, "run session 0") == rounds, "the seed gives the order again"
    assert drawn(4, "run session 1") != rounds
    assert drawn(1, "run session 0")[0] == rounds[0], "more rounds do not change the first"
    assert drawn(2, None) == drawn(2, "run session 0", "memory") == [list(range(10))] * 2


def test_shared_processes_come_first_and_the_most_processes_last() -> None:
    plan = make_plan(selected(), HERE)
    order = list(dict.fromkeys(one.benchmark.name for one in plan.cases))
    assert order == ["host_clock", "kind", "zero", "sync", "cold"]


def test_one_process_for_each_value_that_needs_its_own() -> None:
    plan = make_plan(selected("sync", preset="default"), HERE)
    processes = [one.process for one in plan.cases]
    assert len(set(processes)) == 3
    assert sum(a != b for a, b in itertools.pairwise(processes)) == 2
    assert [one.case.params["mode"] for one in plan.cases] == ["spin"] * 2 + ["yield"] * 2 + ["blocking"] * 2


def test_variables_set_processes_apart() -> None:
    def variables(case: Case) -> dict[str, str]:
        return {"MODE": str(case.params["mode"])}

    one = benchmark("one", axes={"mode": MODE}, process_environment=variables)
    plan = make_plan(select({"one": one}, (), "default", {}), HERE)
    assert [case.process.variables for case in plan.cases] == [
        (("MODE", "spin"),), (("MODE", "yield"),), (("MODE", "blocking"),),
    ]  # fmt: skip


def test_the_seam_follows_from_what_a_benchmark_needs() -> None:
    plan = make_plan(selected(), HERE)
    seams = {one.benchmark.name: (one.process.seam, one.process.device, one.device) for one in plan.cases}
    assert seams == {
        "host_clock": ("host", None, None), "kind": ("gpu", ONE.uuid, ONE.uuid), "zero": ("gpu", ONE.uuid, ONE.uuid),
        "sync": ("gpu", ONE.uuid, ONE.uuid), "cold": ("cold", ONE.uuid, ONE.uuid),
    }  # fmt: skip


def test_the_simulated_machine_is_opened_as_such_and_named_by_its_uuid() -> None:
    fake = Environment(gpus=(GpuInfo(name="x", uuid="GPU-simulated", simulated=True),))
    plan = make_plan(selected(), fake, device="fake")
    assert {one.process.device for one in plan.cases} == {"fake"}
    assert {one.device for one in plan.cases} == {None, "GPU-simulated"}


def test_rounds_are_outermost_each_in_fresh_processes() -> None:
    plan = make_plan(selected("kind", "zero"), HERE, rounds=2)
    assert [one.round for one in plan.cases] == [0] * 4 + [1] * 4
    assert len({one.process for one in plan.cases}) == 2


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, [[0, 1, 2]]), (2, [[0, 2], [1]]), (3, [[0], [1], [2]]), (4, [[0], [1], [2], [3]])]
)
def test_a_benchmark_gets_the_rounds_it_needs_spread_over_the_turns(rounds: int, expected: list[list[int]]) -> None:
    plan = make_plan(selected("cold", "zero", overrides={"mode": ("spin",)}), HERE, rounds=rounds)
    turns: dict[int, list[int]] = {}
    for one in plan.cases:
        if one.benchmark.name == "cold":
            turns.setdefault(one.round % rounds, []).append(one.round)
    assert list(turns.values()) == expected
    assert sum(one.benchmark.name == "zero" for one in plan.cases) == rounds
    assert len({one.process for one in plan.cases if one.process.seam == "cold"}) == max(rounds, 3)


def test_the_first_gpu_is_measured_unless_told_otherwise() -> None:
    assert {one.device for one in make_plan(selected("zero"), HERE).cases} == {ONE.uuid}
    assert [one.device for one in make_plan(selected("zero"), HERE, device="all").cases] == [ONE.uuid, OTHER.uuid]
    assert len(make_plan(selected("host"), HERE, device="all").cases) == 1


def test_without_a_gpu_what_needs_one_is_skipped_once_or_case_by_case_if_named() -> None:
    plan = make_plan(selected(), NO_GPU, session=2)
    assert ids(plan.cases) == ["host_clock"]
    assert [one.case.id for one in plan.skipped] == ["cold", "kind", "sync", "zero"]
    assert {(one.status, one.reason, one.session) for one in plan.skipped} == {("skipped", "no driver", 2)}
    named = make_plan(selected("sync"), NO_GPU).skipped
    assert [one.case.params["mode"] for one in named] == ["spin", "yield", "blocking"]


def test_more_gpus_than_there_are_is_a_skip_and_several_are_measured_once() -> None:
    peers = {"peers": benchmark("peers", gpus=2), "ring": benchmark("ring", gpus="all")}
    alone = make_plan(select(peers, (), "default", {}), Environment(gpus=(ONE,)), device="all")
    assert [(one.case.id, one.reason) for one in alone.skipped] == [("peers", "needs 2 GPUs, 1 here")]
    assert ids(alone.cases) == ["ring"]
    assert ids(make_plan(select(peers, (), "default", {}), HERE, device="all").cases) == ["peers", "ring"]


def test_what_is_measured_already_is_left_out() -> None:
    done = {
        (ONE.uuid, "zero", 0), (None, "host_clock", 0), (None, "zero", 1),
    }  # fmt: skip
    plan = make_plan(selected("zero", "host"), HERE, rounds=2, measured=done)
    assert [(one.case.id, one.round) for one in plan.cases] == [("host_clock", 1), ("zero", 1)]


def nodes(*values: Param, **more: object) -> dict[str, Benchmark]:
    """A benchmark of which node 0 and 1 are here."""

    def here(environment: Environment, params: Mapping[str, Param]) -> str | None:
        return None if int(params["node"]) < 2 else f"node {params['node']} is not here"

    axes = {"node": Axis.same("which node", values)}
    return {"nodes": benchmark("nodes", axes=axes, here=here, **more)}  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [(), ("nodes",)])
def test_cases_that_mean_nothing_here_are_left_out_without_a_word(named: tuple[str, ...]) -> None:
    plan = make_plan(select(nodes(0, 1, 2, 3), named, "default", {}), HERE)
    assert ids(plan.cases) == ["nodes[node=0]", "nodes[node=1]"]
    assert not plan.skipped


def test_a_benchmark_of_which_nothing_is_left_is_skipped_once_with_its_first_reason() -> None:
    plan = make_plan(select(nodes(3, 4), (), "default", {}), HERE, session=1)
    assert not plan.cases
    assert [(one.case.id, one.status, one.reason, one.session) for one in plan.skipped] == [
        ("nodes", "skipped", "node 3 is not here", 1)
    ]


def test_too_few_gpus_is_said_before_what_else_is_not_here() -> None:
    plan = make_plan(select(nodes(3, gpus=2), (), "default", {}), Environment(gpus=(ONE,)))
    assert [(one.case.id, one.reason) for one in plan.skipped] == [("nodes", "needs 2 GPUs, 1 here")]
    without = make_plan(select(nodes(3), (), "default", {}), NO_GPU)
    assert [(one.case.id, one.reason) for one in without.skipped] == [("nodes", "no driver")]


def test_the_cases_that_can_run_are_those_of_the_measured_machine() -> None:
    def by_count(environment: Environment, params: Mapping[str, Param]) -> str | None:
        return None if int(params["gpu"]) < len(environment.gpus) else "no such GPU"

    pair = {"pair": benchmark("pair", axes={"gpu": Axis.same("which", (0, 1, 2))}, here=by_count)}
    for gpus in ((ONE,), (ONE, OTHER)):
        plan = make_plan(select(pair, (), "default", {}), Environment(gpus=gpus))
        assert ids(plan.cases) == [f"pair[gpu={index}]" for index in range(len(gpus))]


PARTS = {
    one.name: one
    for one in (
        benchmark("first", axes={"mode": MODE}, late=lambda params: params["mode"] != "spin"),
        benchmark("second"),
        benchmark("third", suite="graph", axes={"size_bytes": SIZE}, core=True),
    )
}


def test_each_round_begins_with_the_core_and_ends_with_late_cases_over_all_suites() -> None:
    plan = make_plan(select(PARTS, (), "default", {}), HERE, rounds=2)
    others = ["first[mode=spin]", "second", "third[size_bytes=128]"]
    late = ["first[mode=yield]", "first[mode=blocking]"]
    assert ids(plan.cases) == ["third[size_bytes=64]", *others, *late] * 2
    assert [one.core for one in plan.cases] == ([True] + [False] * 5) * 2
    assert [one.round for one in plan.cases] == [0] * 6 + [1] * 6


def test_without_a_time_limit_each_process_is_started_once_a_round() -> None:
    apart = benchmark("apart", suite="graph", axes={"size_bytes": SIZE}, core=True, own_process=lambda params: "apart")
    chosen = select({**PARTS, "apart": apart}, (), "default", {})
    for limited, processes in ((True, 5), (False, 2)):
        plan = make_plan(chosen, HERE, rounds=3, limited=limited)
        starts = [process for process, _ in itertools.groupby(one.process for one in plan.cases)]
        assert len(starts) == 3 * processes
        assert [process.round for process in starts] == sorted(process.round for process in starts)


def test_a_named_benchmark_without_a_case_in_the_preset_does_not_keep_others_from_running() -> None:
    full = benchmark("full", axes={"mode": Axis("which", (), (), MODE.full)})
    catalogue = {**PARTS, "full": full}
    plan = make_plan(select(catalogue, ("second", "full"), "quick", {}), HERE)
    assert ids(plan.cases) == ["second"]
    assert [(one.case.id, one.reason) for one in plan.skipped] == [
        ("full", "it has no case in the quick preset: leave out --quick")
    ]
    assert [one.benchmark.name for one in select(catalogue, ("launch",), "quick", {})] == ["first", "second"]
    with pytest.raises(UsageError, match="full has no case in the quick preset"):
        select(catalogue, ("full",), "quick", {})


def test_a_quick_run_without_names_is_the_core() -> None:
    assert [one.benchmark.name for one in select(PARTS, (), "quick", {})] == ["third"]
    assert [one.benchmark.name for one in select(PARTS, ("launch",), "quick", {})] == ["first", "second"]


def test_benchmarks_share_a_process_that_both_name() -> None:
    shared = {
        name: benchmark(name, axes={"mode": MODE}, own_process=lambda params: f"library {params['mode']}")
        for name in ("one", "two")
    }
    plan = make_plan(select(shared, (), "default", {}), HERE)
    assert ids(plan.cases) == [f"{name}[mode={mode}]" for mode in ("spin", "yield", "blocking") for name in shared]
    assert len({one.process for one in plan.cases}) == 3


def test_a_missing_package_is_a_skip_with_its_pip_line_but_not_on_the_simulated_gpu() -> None:
    absent = Package("no_such_package.part", "pip install no-such-package")
    catalogue = {"one": benchmark("one", needs=lambda params: absent)}
    plan = make_plan(select(catalogue, (), "default", {}), HERE)
    assert [one.reason for one in plan.skipped] == ["needs no_such_package.part: pip install no-such-package"]
    fake = Environment(gpus=(GpuInfo(name="x", uuid="GPU-simulated", simulated=True),))
    assert ids(make_plan(select(catalogue, (), "default", {}), fake, device="fake").cases) == ["one"]


@pytest.mark.parametrize(
    ("text", "sizes"), [("size=1KiB", [1024]), ("size_bytes=0.5KiB,64", [512, 64]), ("size=77", [77])]
)
def test_values_may_have_a_unit_and_axes_a_short_name(text: str, sizes: list[int]) -> None:
    (kind,) = selected("kind", overrides={**parse_overrides([text]), "mode": ("spin",)})
    assert [case.params["size_bytes"] for case in kind.cases] == sizes


@pytest.mark.parametrize(("file", "text", "cause"), [
    ("launch/nothing.py", "x = 1", "nothing.py declares no BENCHMARK"),
    ("launch/lazy.py", "BENCHMARK = Benchmark('', ())", "lazy.py declares no function measure"),
    ("espresso/cup.py", "BENCHMARK, measure = Benchmark('', ()), print", "cup.py is in no suite"),
])  # fmt: skip
def test_a_file_without_benchmark_or_suite_is_refused(
    file: str, text: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / Path(file).stem / file  # a package of its own for each case
    path.parent.mkdir(parents=True)
    for folder in (path.parent, path.parent.parent):
        (folder / "__init__.py").touch()
    path.write_text(f"from microbench.core.bench import Benchmark\n{text}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=cause):
        discover(path.stem)

"""What is measured, in which order and process, and that the error for a wrong name suggests the nearest right one."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import snapshots

from microbench.core.bench import Axis, Benchmark, Measured, Package, discover
from microbench.core.errors import ExitCode, UsageError
from microbench.core.model import Environment, GpuInfo, Metric, Param
from microbench.library.options import overrides_of
from microbench.session.plan import Plan, Selected, make_plan, select

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
    (lambda: overrides_of(["mode"]), "mode is not axis=value", "for example"),
    (lambda: overrides_of(["=1"]), "=1 is not axis=value", "for example"),
    (lambda: overrides_of(["mode=spin,,yield"]), "is not axis=value", "for example"),
])  # fmt: skip
def test_a_wrong_name_gets_the_nearest_right_one(action: Callable[[], object], cause: str, next_step: str) -> None:
    with pytest.raises(UsageError) as caught:
        action()
    assert cause in caught.value.cause
    assert next_step in caught.value.next_step
    assert caught.value.exit_code == ExitCode.USAGE
    assert len(caught.value.cause.splitlines()) == 1


def test_an_axis_of_numbers_takes_any_in_its_range_and_one_of_names_only_its_own() -> None:
    overrides = overrides_of(["size_bytes=1,4096, 77", "mode=yield", "size_bytes=1"])
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


def nodes(*values: Param, **more: object) -> dict[str, Benchmark]:
    """A benchmark of which node 0 and 1 are here."""

    def here(environment: Environment, params: Mapping[str, Param]) -> str | None:
        return None if int(params["node"]) < 2 else f"node {params['node']} is not here"

    axes = {"node": Axis.same("which node", values)}
    return {"nodes": benchmark("nodes", axes=axes, here=here, **more)}  # type: ignore[arg-type]


PARTS = {
    one.name: one
    for one in (
        benchmark("first", axes={"mode": MODE}, late=lambda params: params["mode"] != "spin"),
        benchmark("second"),
        benchmark("third", suite="graph", axes={"size_bytes": SIZE}, core=True),
    )
}


def test_without_a_time_limit_each_process_is_started_once_a_round() -> None:
    apart = benchmark("apart", suite="graph", axes={"size_bytes": SIZE}, core=True, own_process=lambda params: "apart")
    chosen = select({**PARTS, "apart": apart}, (), "default", {})
    for limited, processes in ((True, 5), (False, 2)):
        plan = make_plan(chosen, HERE, rounds=3, limited=limited)
        starts = [process for process, _ in itertools.groupby(one.process for one in plan.cases)]
        assert len(starts) == 3 * processes
        assert [process.round for process in starts] == sorted(process.round for process in starts)


def test_a_benchmark_without_a_case_in_the_preset_is_selected_only_by_its_own_name() -> None:
    full = benchmark("full", axes={"mode": Axis("which", (), (), MODE.full)})
    catalogue = {**PARTS, "full": full}
    assert [one.benchmark.name for one in select(catalogue, ("launch",), "quick", {})] == ["first", "second"]
    with pytest.raises(UsageError, match="full has no case in the quick preset"):
        select(catalogue, ("full",), "quick", {})


def test_a_quick_run_without_names_is_the_core() -> None:
    assert [one.benchmark.name for one in select(PARTS, (), "quick", {})] == ["third"]
    assert [one.benchmark.name for one in select(PARTS, ("launch",), "quick", {})] == ["first", "second"]


def alone(one: Benchmark) -> tuple[Selected, ...]:
    return select({one.name: one}, (), "default", {})


ALONE, FAKE = Environment(gpus=(ONE,)), Environment(gpus=(GpuInfo(name="x", uuid="GPU-simulated", simulated=True),))
PEERS = select({"peers": benchmark("peers", gpus=2), "ring": benchmark("ring", gpus="all")}, (), "default", {})
PAIR = alone(
    benchmark(
        "pair", axes={"gpu": Axis.same("which", (0, 1, 2))},
        here=lambda environment, params: None if params["gpu"] < len(environment.gpus) else "no such GPU",
    )
)  # fmt: skip
VARIABLES = benchmark("one", axes={"mode": MODE}, process_environment=lambda case: {"MODE": str(case.params["mode"])})
SHARED = {
    name: benchmark(name, axes={"mode": MODE}, own_process=lambda params: f"library {params['mode']}")
    for name in ("one", "two")
}
FULL = {**PARTS, "full": benchmark("full", axes={"mode": Axis("which", (), (), MODE.full)})}
ABSENT = alone(benchmark("one", needs=lambda params: Package("no_such_package.part", "pip install no-such-package")))
DONE = {(ONE.uuid, "zero", 0), (None, "host_clock", 0), (None, "zero", 1)}
PLANS: dict[str, Plan] = {
    "shared processes come first, the most processes last": make_plan(selected(), HERE),
    "one process for each value that needs its own": make_plan(selected("sync", preset="default"), HERE),
    "variables set processes apart": make_plan(alone(VARIABLES), HERE),
    "the simulated machine is opened as such and named by its UUID": make_plan(selected(), FAKE, device="fake"),
    "rounds are outermost, each in fresh processes": make_plan(selected("kind", "zero"), HERE, rounds=2),
    "the first GPU is measured": make_plan(selected("zero"), HERE),
    "unless told otherwise": make_plan(selected("zero", "host"), HERE, device="all"),
    "without a GPU what needs one is skipped once": make_plan(selected(), NO_GPU, session=2),
    "or case by case if it is named": make_plan(selected("sync"), NO_GPU),
    "more GPUs than there are is a skip": make_plan(PEERS, ALONE, device="all"),
    "several are measured once": make_plan(PEERS, HERE, device="all"),
    "what is measured already is left out": make_plan(selected("zero", "host"), HERE, rounds=2, measured=DONE),
    "cases that mean nothing here are left out without a word": make_plan(
        select(nodes(0, 1, 2, 3), (), "default", {}), HERE
    ),
    "also where they are named": make_plan(select(nodes(0, 1, 2, 3), ("nodes",), "default", {}), HERE),
    "a benchmark of which nothing is left is skipped once": make_plan(
        select(nodes(3, 4), (), "default", {}), HERE, session=1
    ),
    "too few GPUs is said before what else is not here": make_plan(select(nodes(3, gpus=2), (), "default", {}), ALONE),
    "as is that there is none": make_plan(select(nodes(3), (), "default", {}), NO_GPU),
    "the cases that can run are those of the measured machine": make_plan(PAIR, ALONE),
    "which may have two GPUs": make_plan(PAIR, HERE),
    "each round begins with the core and ends with late cases": make_plan(
        select(PARTS, (), "default", {}), HERE, rounds=2
    ),
    "no case in the preset does not keep others from running": make_plan(
        select(FULL, ("second", "full"), "quick", {}), HERE
    ),
    "benchmarks share a process that both name": make_plan(select(SHARED, (), "default", {}), HERE),
    "a missing package is a skip with its pip line": make_plan(ABSENT, HERE),
    "but not on the simulated GPU": make_plan(ABSENT, FAKE, device="fake"),
}


def told(plan: Plan) -> Iterator[str]:
    """The cases by their processes, and what is skipped."""
    for process, cases in itertools.groupby(plan.cases, key=lambda one: one.process):
        yield f"{process.seam} {process.device} round {process.round} {dict(process.variables)} {process.own}"
        for one in cases:
            yield f"    {one.case.id} on {one.device} round {one.round} of turn {one.turn}{' core' * one.core}"
    for outcome in plan.skipped:
        yield f"{outcome.status} {outcome.case.id} in session {outcome.session}: {outcome.reason}"


def test_what_is_measured_in_which_order_and_process() -> None:
    snapshots.same("plans", "\n\n".join("\n".join((f"== {name}", *told(plan))) for name, plan in PLANS.items()))


@pytest.mark.parametrize(
    ("text", "sizes"), [("size=1KiB", [1024]), ("size_bytes=0.5KiB,64", [512, 64]), ("size=77", [77])]
)
def test_values_may_have_a_unit_and_axes_a_short_name(text: str, sizes: list[int]) -> None:
    (kind,) = selected("kind", overrides={**overrides_of([text]), "mode": ("spin",)})
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

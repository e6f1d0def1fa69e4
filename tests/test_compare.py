"""Two runs compared: which figures are matched, which verdict each gets, and why."""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from compare_runs import GPU, HIGHEST_HZ, Figure, changed, grown, made, quiet, usual

from microbench.comparison.compare import Change, Comparison, Verdict, compare
from microbench.comparison.decision import Figures, Shifts, chance_of_levels, decide, discoveries, levels
from microbench.comparison.words import Side, findings, notices, summary
from microbench.core.model import AxisInfo, Fact, GpuInfo, Run

Multiplied = Callable[[Figure], float]
BASE, NEW = Side("base.json"), Side("new.json")
ALL = len(usual())
LAYER_3 = "launch_layers[layer=layer_3]"


def verdicts(comparison: Comparison) -> dict[str, int]:
    """How many figures have each verdict. One in twenty intervals excludes "no change" by chance, and the verdict is
    then "within 10 %" instead of "same". Both count as one verdict here; a test of their own tells them apart."""
    words = ("same" if change.verdict == "within 10 %" else change.verdict for change in comparison.changes)
    return dict(Counter(words))


def of(comparison: Comparison, benchmark: str) -> list[Change]:
    return [change for change in comparison.changes if change.new.benchmark == benchmark]


def judged(comparison: Comparison, benchmark: str) -> set[tuple[str, str | None]]:
    """Verdicts of a benchmark's figures, with the reasons; those of ``verdicts``."""
    return {
        ("same" if change.verdict == "within 10 %" else change.verdict, change.reason)
        for change in of(comparison, benchmark)
    }


def rules(comparison: Comparison, base: Side = BASE) -> dict[str, str]:
    return {found.rule: f"{found.title}. {found.text} {found.advice}" for found in findings(comparison, base, NEW)}


def with_fields(name: str, is_: object, /, **fields: Any) -> list[Figure]:
    """The usual figures; those whose field has that value with other fields."""
    return [replace(figure, **fields) if getattr(figure, name) == is_ else figure for figure in usual()]


def test_two_runs_of_one_machine_are_the_same() -> None:
    calm = compare(made(1), made(2))
    assert verdicts(calm) == {"same": ALL}
    top = summary(calm)
    assert (top.rule, top.title, top.severity) == ("compare.changes", "NO CHANGE SHOWN", "good")
    assert top.text == "0 figures slower, 51 same, 1 within 10 %."
    assert list(rules(calm)) == ["compare.hidden"]
    assert not list(notices(calm))
    figures = quiet(usual(), 0.0005)
    too_small = compare(made(1, figures=figures), made(2, changed(1.01, suite="memory"), figures=figures))
    assert verdicts(too_small) == {"same": ALL}


@pytest.mark.parametrize(("of_it", "factor", "verdict"), [
    ({"benchmark": "memory_stream"}, 0.95, "slower"), ({"benchmark": "memory_stream"}, 1.05, "faster"),
    ({"case_id": LAYER_3}, 1.5, "slower"), ({"case_id": LAYER_3}, 0.6, "faster"),
    ({"benchmark": "launch_queue"}, 1.1, "more"), ({"benchmark": "launch_queue"}, 0.9, "fewer"),
])  # fmt: skip
def test_a_change_has_the_verdict_of_its_kind(of_it: dict[str, object], factor: float, verdict: Verdict) -> None:
    comparison = compare(made(1), made(2, changed(factor, **of_it)))
    moved = [figure for figure in usual() if all(getattr(figure, name) == value for name, value in of_it.items())]
    assert {change.new.case_id for change in comparison.of(verdict)} == {figure.case_id for figure in moved}
    assert verdicts(comparison) == {"same": ALL - len(moved), verdict: len(moved)}
    for change in comparison.of(verdict):
        assert change.ratio.median == pytest.approx(factor, rel=0.01)
        assert 0.001 < change.ratio.half_width < 0.02


def test_changes_are_listed_by_size_and_grouped_by_benchmark() -> None:
    factors = {"copy": 0.5, "read": 0.9, "write": 0.8}
    comparison = compare(
        made(1), made(2, *(changed(by, case_id=f"memory_stream[kernel={name}]") for name, by in factors.items()))
    )
    assert [change.new.params["kernel"] for change in comparison.of("slower")] == ["copy", "write", "read"]
    assert (summary(comparison).title, summary(comparison).severity) == ("SLOWER", "problem")
    assert summary(comparison).text.startswith("3 figures slower, 48 same")
    together = rules(compare(made(1), made(2, changed(0.9, benchmark="memory_stream"))))["compare.together"]
    assert re.match(r"4 of 4 rates of memory_stream are slower: 0\.(89|90)\d×", together)


def test_a_noisy_figure_is_unclear_and_says_what_to_run() -> None:
    loud = with_fields("benchmark", "memory_stream", deviation=0.2)
    comparison = compare(made(1, figures=loud), made(2, figures=loud))
    assert judged(comparison, "memory_stream") == {("unclear", "noise")}
    for name in ("base.json", "new.json"):
        command = f"`microbench run memory_stream --quick --rounds 10 --into {name}`"
        assert command in rules(comparison)["compare.unclear_noise"]


@pytest.mark.parametrize("some", [1018.0, 1.0, 0.25])
def test_a_count_of_0_can_grow(some: float) -> None:
    none, few = (with_fields("kind", "count", value=value, deviation=0.0) for value in (0.0, some))
    assert judged(compare(made(1, figures=none), made(2, figures=few)), "launch_queue") == {("more", None)}
    assert verdicts(compare(made(1, figures=none), made(2, figures=none))) == {"same": ALL}


def test_a_time_of_0_has_no_ratio() -> None:
    comparison = compare(made(1), made(2, figures=with_fields("benchmark", "launch_layers", value=0.0)))
    assert judged(comparison, "launch_layers") == {("unclear", "no ratio")}
    assert {change.ratio for change in of(comparison, "launch_layers")} == {None}


def test_an_unverified_figure_gets_no_verdict() -> None:
    new = made(2, changed(0.5, suite="memory"))
    unchecked = tuple(
        msgspec.structs.replace(
            outcome, measurements=(msgspec.structs.replace(outcome.measurements[0], needs_verification=True),)
        )
        if outcome.case.benchmark == "memory_stream"
        else outcome
        for outcome in new.outcomes
    )
    comparison = compare(made(1), msgspec.structs.replace(new, outcomes=unchecked))
    assert judged(comparison, "memory_stream") == {("unclear", "grade")}


def test_fewer_than_five_rounds_are_unclear_with_the_command_to_run() -> None:
    comparison = compare(made(1), made(2, changed(0.5, suite="memory"), rounds=4))
    assert {(change.verdict, change.reason) for change in comparison.changes} == {("unclear", "rounds")}
    assert all(change.ratio is not None for change in comparison.changes)
    text = rules(comparison)["compare.unclear_rounds"]
    assert "`microbench run launch link memory compute --quick --rounds 5 --into new.json`" in text
    assert "base.json" not in text


def test_the_command_measures_what_was_measured() -> None:
    few = made(2, rounds=1, figures=[figure for figure in usual() if figure.benchmark == "link_copy"])
    settings = msgspec.structs.replace(
        few.sessions[0].settings, preset="full", overrides={"size_bytes": (1024, 2048)}, device="cuda:1"
    )
    for axes, option in (((AxisInfo("size_bytes", "", (1024, 2048)),), "--set size_bytes=1024,2048 "), ((), "")):
        run = msgspec.structs.replace(
            few,
            sessions=(msgspec.structs.replace(few.sessions[0], settings=settings),),
            benchmarks=tuple(msgspec.structs.replace(info, axes=axes) for info in few.benchmarks),
        )
        wanted = f"`microbench run link_copy --full {option}--device cuda:1 --rounds 5 --into new.json`"
        assert wanted in rules(compare(made(1), run))["compare.unclear_rounds"]


def test_rounds_are_added_only_where_their_run_was_made() -> None:
    """Rounds on today's driver would not be rounds of a run made on another; a bundled run never grows."""
    text = rules(compare(made(1), made(2, rounds=1, driver="580.2")))["compare.unclear_rounds"]
    assert "on the driver and board of each" in text
    assert "on the driver" not in rules(compare(made(1), made(2, rounds=1)))["compare.unclear_rounds"]
    bundled = rules(compare(made(1, rounds=3), made(2)), Side("nvidia-h200", grows=False))
    assert not any("--into" in words for words in bundled.values())


def test_rounds_taken_in_turn_are_added_up() -> None:
    base, new = (
        grown(*(made(10 * side + turn, change, rounds=1) for turn in range(5)))
        for side, change in enumerate((changed(1.0), changed(0.9, suite="memory")))
    )
    assert verdicts(compare(base, new)) == {"same": ALL - 4, "slower": 4}
    other_driver = grown(made(1, rounds=4, driver="560.1"), made(2, rounds=4))
    assert {change.reason for change in compare(other_driver, made(3)).changes} == {"rounds"}
    enough_in_the_newest = grown(made(1, changed(0.5, suite="memory")), made(2))
    assert verdicts(compare(enough_in_the_newest, made(3))) == {"same": ALL}


def in_turn(change: Multiplied, drift: float = 1.005) -> tuple[Run, Run]:
    """Five rounds of either run, A B B A A B B A A B, of a host that slows by ``drift`` each time."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    for moment, side in enumerate((0, 1, 1, 0, 0, 1, 1, 0, 0, 1)):
        run = made(10 + moment, changed(drift**moment, clock="host"), *([change] if side else []), rounds=1)
        session = msgspec.structs.replace(run.sessions[0], started_at=f"2026-01-01T00:00:{moment:02}+00:00")
        runs[side].append(msgspec.structs.replace(run, sessions=(session,)))
    return grown(*runs[0]), grown(*runs[1])


def test_no_drift_is_subtracted_from_rounds_taken_in_turn() -> None:
    """Their own scatter includes the drift, so a host that is 12 % slower only in NEW is a change."""
    comparison = compare(*in_turn(changed(1.12, clock="host")))
    assert verdicts(comparison) == {"same": ALL - 24, "slower": 24}
    (suite,) = comparison.suites
    assert suite.changed
    assert suite.ratio.median == pytest.approx(1.12, rel=0.02)
    assert not compare(*in_turn(changed(1.0))).has_changed("slower", "faster")


def test_simulated_figures_are_not_compared_with_real_ones() -> None:
    comparison = compare(made(1, simulated=True), made(2))
    assert {(change.verdict, change.reason) for change in comparison.changes} == {("incomparable", "simulated")}
    notice = next(notices(comparison))
    assert notice.title == "SIMULATED AGAINST REAL"
    assert "BASE is simulated and NEW is real: 52 figures" in notice.text
    assert verdicts(compare(made(1, simulated=True), made(2, simulated=True))) == {"same": ALL}


def test_another_method_or_unit_is_incomparable_and_named() -> None:
    comparison = compare(made(1), made(2, versions={"link_copy": 2}))
    assert judged(comparison, "link_copy") == {("incomparable", "method")}
    assert "link_copy: 16 figures" in next(notices(comparison)).text
    assert "34 same, 2 within 10 %, 16 incomparable" in summary(comparison).text
    other_unit = compare(made(1), made(2, figures=with_fields("suite", "memory", unit="OP/s", bound=None)))
    assert judged(other_unit, "memory_stream") == {("incomparable", "method")}


def test_a_case_that_failed_in_new_is_named_before_any_figure() -> None:
    new, name = made(2), "memory_stream[kernel=copy]"
    outcomes = tuple(
        msgspec.structs.replace(outcome, status="crashed", measurements=()) if outcome.case.id == name else outcome
        for outcome in new.outcomes
    )
    failed = msgspec.structs.replace(new, outcomes=outcomes)
    (notice,) = notices(compare(made(1), failed))
    assert notice.title == "FAILED IN NEW"
    assert notice.text.startswith(f"1 case that BASE measured: {name}.")
    assert not list(notices(compare(failed, made(1))))


def test_copies_of_one_run_are_recognised() -> None:
    run = made(1)
    assert [notice.title for notice in notices(compare(run, grown(run, made(2, rounds=1))))] == ["ONE RUN TWICE"]


def test_figures_that_only_one_run_has_are_listed_apart() -> None:
    less, memory = ([one for one in usual() if (one.suite == "memory") == wanted] for wanted in (False, True))
    comparison = compare(made(1), made(2, figures=less))
    assert {row.benchmark for row in comparison.only_base} == {"memory_stream"}
    assert not comparison.only_new
    assert verdicts(comparison) == {"same": len(less)}
    empty = msgspec.structs.replace(made(1), outcomes=())
    for nothing in (compare(made(1, figures=less), made(2, figures=memory)), compare(empty, empty)):
        assert not nothing.changes
        assert summary(nothing).text == "The two runs have no figure in common."
        assert summary(nothing).severity == "note"


def test_differences_of_the_machines_are_listed_except_those_of_the_moment() -> None:
    before = (Fact("cpu_model", "one"), Fact("load_average_1min", 0.1), Fact("governor", None, reason="hidden"))
    after = (Fact("cpu_model", "other"), Fact("load_average_1min", 3.0), Fact("governor", "powersave"))
    gpu = msgspec.structs.replace(GPU, ecc=True, power_limit_w=600.0)
    new = made(2, facts=after, gpu=msgspec.structs.replace(gpu, ecc=False), driver="580.2")
    comparison = compare(made(1, facts=before, gpu=gpu), new)
    assert [(found.name, found.base.value, found.new.value) for found in comparison.differences] == [
        ("driver", "570.1", "580.2"), ("GPU ecc", True, False), ("cpu_model", "one", "other"),
    ]  # fmt: skip
    (notice,) = notices(comparison)
    assert notice.title == "ANOTHER DRIVER"
    assert "580.2 in NEW, 570.1 in BASE" in notice.text
    assert verdicts(comparison) == {"same": ALL}


def board(number: int, **fields: object) -> GpuInfo:
    return msgspec.structs.replace(GPU, **{"uuid": f"GPU-{number}", "index": number, **fields})


def test_another_board_of_the_same_model_is_compared_and_named() -> None:
    comparison = compare(made(1), made(2, changed(0.9, suite="memory"), gpu=board(1)))
    assert verdicts(comparison) == {"same": ALL - 4, "slower": 4}
    assert [notice.title for notice in notices(comparison)] == ["ANOTHER BOARD"]


def both(seed: int, first: GpuInfo, second: GpuInfo) -> Run:
    """A run of two GPUs; the second one's memory is 20 % slower."""
    runs = made(seed, gpu=first), made(seed + 1, changed(0.8, suite="memory"), gpu=second)
    environment = msgspec.structs.replace(runs[0].sessions[0].environment, gpus=(first, second))
    session = msgspec.structs.replace(runs[0].sessions[0], environment=environment)
    return msgspec.structs.replace(runs[0], sessions=(session,), outcomes=runs[0].outcomes + runs[1].outcomes)


def test_gpus_are_matched_by_uuid_before_their_index() -> None:
    base = both(1, board(0), board(1))
    swapped = compare(base, both(3, board(1, index=0), board(0, index=1)))
    assert Counter(change.verdict for change in of(swapped, "memory_stream")) == {"faster": 4, "slower": 4}
    assert not compare(base, both(3, board(10), board(11))).changes
    assert verdicts(compare(base, both(3, board(10, index=0), board(11, index=1)))) == {"same": 2 * ALL}


def test_another_model_is_compared_by_shares_of_its_ceilings() -> None:
    other = board(1, name="SIMULATED OTHER", memory_clock_max_hz=GPU.memory_clock_max_hz / 2)
    half, less = changed(0.5, suite="memory"), changed(0.9, suite="memory")
    same, farther, nearer = (compare(made(1), made(2, *of_it, gpu=other)) for of_it in ((half,), (half, less), ()))
    assert {(change.verdict, change.shares) for change in of(same, "memory_stream")} == {("same", True)}
    assert judged(same, "launch_layers") == {("incomparable", "model")}
    assert judged(farther, "memory_stream") == {("farther", None)}
    assert judged(nearer, "memory_stream") == {("nearer", None)}
    text = "24 figures are compared as a share of each GPU's own ceiling; 28 figures without a ceiling"
    assert text in next(notices(same)).text


WARM = (1.83e9, 1.80e9, 1.82e9, 1.79e9, 1.81e9)


def test_a_warmer_card_is_no_regression() -> None:
    comparison = compare(made(1), made(2, clocks_hz=WARM))
    assert verdicts(comparison) == {"same": ALL}
    for change in of(comparison, "tensor_ceiling"):
        assert change.by == "clock"
        assert change.ratio.high < 0.93
        assert change.judged.low < 1 < change.judged.high
    assert rules(comparison)["compare.clock"].startswith("4 figures moved only because the SM clock did, by 9.")


def test_a_change_at_one_clock_is_seen_whatever_the_clock_did() -> None:
    comparison = compare(made(1, clocks_hz=WARM), made(2, changed(0.92, suite="compute")))
    assert judged(comparison, "tensor_ceiling") == {("slower", None)}
    for change in comparison.of("slower"):
        assert change.ratio.low < 1.02
        assert change.judged.median == pytest.approx(0.92, rel=0.01)


def test_a_change_of_the_measured_clock_is_no_change_of_a_figure() -> None:
    clocks = [
        Figure("tensor_ceiling", "compute", "sm_clock", HIGHEST_HZ, "count", "Hz", {"dtype": name}, clock="counter")
        for name in ("bf16", "fp16", "fp8_e4m3", "tf32")
    ]
    figures = [*usual(), *clocks]
    slower = changed(0.9, metric="sm_clock")
    comparison = compare(made(1, figures=figures), made(2, slower, figures=figures, clocks_hz=(0.9 * HIGHEST_HZ,) * 5))
    assert not comparison.of("fewer", "more", "slower", "faster")
    assert rules(comparison)["compare.clock"].startswith("8 figures moved only because the SM clock did")


def test_without_its_clock_a_figure_is_judged_as_measured() -> None:
    bare = msgspec.structs.replace(GPU, sm_clock_max_hz=None)
    comparison = compare(made(1, gpu=bare), made(2, gpu=bare, clocks_hz=WARM))
    assert judged(comparison, "tensor_ceiling") == {("slower", None)}
    assert "clock" not in {change.by for change in of(comparison, "tensor_ceiling")}


@pytest.mark.parametrize(
    ("on_clock", "change", "clocks_hz", "verdict"),
    [(True, (), WARM, "same"), (False, (), WARM, "same"),
     (False, (changed(0.8, suite="compute"),), (HIGHEST_HZ,) * 5, "slower")],
)  # fmt: skip
def test_without_a_known_limit_a_change_must_show_with_and_without_the_clock(
    on_clock: bool, change: tuple[Multiplied, ...], clocks_hz: tuple[float, ...], verdict: str
) -> None:
    figures = with_fields("suite", "compute", bound=None, on_clock=on_clock)
    comparison = compare(made(1, figures=figures), made(2, *change, figures=figures, clocks_hz=clocks_hz))
    assert judged(comparison, "tensor_ceiling") == {(verdict, None)}


def test_cycles_are_seconds_at_a_clock() -> None:
    """Off-chip memory takes fewer cycles at a lower clock; a cache takes as many cycles and more nanoseconds."""
    far, near = (
        [
            Figure("memory_latency", "memory", "cycles", least + index, unit="cycle", params={"size_bytes": 1 << index})
            for index in range(12)
        ]
        for least in (900.0, 30.0)
    )
    fewer = changed(1.81e9 / HIGHEST_HZ, metric="cycles")
    assert verdicts(compare(made(1, figures=far), made(2, fewer, figures=far, clocks_hz=(1.81e9,)))) == {"same": 12}
    near += [replace(one, metric="latency", unit="s", value=one.value / HIGHEST_HZ, on_clock=True) for one in near]
    assert verdicts(compare(made(1, figures=near), made(2, figures=near, clocks_hz=WARM))) == {"same": 24}
    slower = made(2, changed(1.2, suite="memory"), figures=near)
    assert verdicts(compare(made(1, figures=near), slower)) == {"slower": 24}


def test_a_drift_of_the_whole_host_is_one_finding_and_no_change() -> None:
    comparison = compare(made(1), made(2, changed(1.06, clock="host")))
    assert not comparison.has_changed("slower")
    assert [(suite.suite, suite.rows, suite.changed) for suite in comparison.suites] == [("launch", 24, False)]
    assert comparison.suites[0].ratio.median == pytest.approx(1.06, rel=0.01)
    text = rules(comparison)["compare.host"]
    assert text.startswith("Host times moved together, and no controls say why: launch +6.")
    assert "`microbench run launch --quick --rounds 1 --into base.json`" in text


def test_a_row_that_moved_beyond_the_host_is_still_seen() -> None:
    comparison = compare(made(1), made(2, changed(1.06, clock="host"), changed(1.5, case_id=LAYER_3)))
    (slower,) = comparison.of("slower")
    assert (slower.new.params["layer"], slower.by) == ("layer_3", "drift")
    assert slower.judged.median == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize(("host", "own"), [(1.08, 1.0), (1.08, 1.03), (0.92, 1.017)])
def test_a_row_that_hardly_moved_while_the_host_did_is_unchanged(host: float, own: float) -> None:
    comparison = compare(made(1), made(2, changed(host, clock="host"), changed(own / host, case_id=LAYER_3)))
    assert not comparison.of("faster", "slower")


def test_beyond_any_drift_every_row_of_the_host_is_slower() -> None:
    comparison = compare(made(1), made(2, changed(1.5, clock="host")))
    assert verdicts(comparison) == {"same": 28, "slower": 24}
    assert comparison.suites[0].changed
    assert "No host was seen to drift that far" in rules(comparison)["compare.suite"]


@pytest.mark.parametrize(("factor", "deviation", "same_within", "verdict"), [
    (1.0, 0.001, 0.03, "same"), (0.99, 0.001, 0.03, "within 10 %"), (0.99, 0.001, 0.001, "within 10 %"),
    (1.0, 0.025, 0.03, "within 10 %"), (1.0, 0.025, 0.1, "same"),
])  # fmt: skip
def test_same_is_an_interval_near_none(factor: float, deviation: float, same_within: float, verdict: Verdict) -> None:
    """A change of 1 % that the rounds show is not the same, and neither is what may have changed by 5 %."""
    figures = [replace(one, deviation=deviation if one.suite == "memory" else 0.001) for one in usual()]
    new = made(2, changed(factor, suite="memory"), figures=figures)
    comparison = compare(made(1, figures=figures), new, same_within)
    counted = Counter(change.verdict for change in of(comparison, "memory_stream"))
    assert counted[verdict] >= 3


def test_a_figure_that_moved_alone_asks_for_alternating_sessions() -> None:
    alone = changed(1.2, case_id=LAYER_3)
    comparison = compare(made(1), made(2, alone))
    (change,) = comparison.unconfirmed
    assert (change.new.case_id, change.verdict, change.reason) == (LAYER_3, "unclear", "unconfirmed")
    assert change.costs_more
    assert not comparison.has_changed("slower", "faster")
    assert summary(comparison).title == "TO CONFIRM"
    assert "1 unclear (1 moved, not confirmed)" in summary(comparison).text
    advice = rules(comparison)["compare.unclear_unconfirmed"]
    assert "`microbench run launch_layers --quick --rounds 1 --into base.json`" in advice
    assert "`microbench run launch_layers --quick --rounds 1 --into new.json`" in advice
    (confirmed,) = compare(*in_turn(alone, drift=1.0)).of("slower")
    assert confirmed.new.case_id == LAYER_3


def test_a_rate_that_the_host_times_moves_the_other_way() -> None:
    times = usual()[:24]
    rates = [
        replace(figure, metric="rate", kind="rate", unit="OP/s", value=1 / figure.value, params={"threads": index})
        for index, figure in enumerate(times)
    ]
    figures = [*times, *rates]
    slower = [changed(1.06, kind="time"), changed(1 / 1.06, kind="rate")]
    comparison = compare(made(1, figures=figures), made(2, *slower, figures=figures))
    assert comparison.suites[0].ratio.median == pytest.approx(1.06, rel=0.01)
    assert not comparison.has_changed("slower", "faster")


def test_a_much_slower_host_comes_first_with_all_its_suites() -> None:
    figures = [*usual(), *(replace(figure, suite="link", benchmark="link_latency") for figure in usual()[:24])]
    comparison = compare(made(1, figures=figures), made(2, changed(1.4, clock="host"), figures=figures))
    first, second, *_ = findings(comparison, BASE, NEW)
    assert {(found.rule, found.severity) for found in (first, second)} == {("compare.suite", "problem")}
    for suite, title in zip(("launch", "link"), sorted((first.title, second.title)), strict=True):
        assert re.match(rf"Slower: {suite} \+(40|39)[.]\d %", title)


def part_of_the_host(count: int, factor: float) -> Multiplied:
    return lambda figure: factor if figure.params.get("layer") in {f"layer_{index}" for index in range(count)} else 1.0


def test_a_part_of_the_host_is_not_called_all_of_it() -> None:
    comparison = compare(made(1), made(2, part_of_the_host(13, 1.1)))
    assert (comparison.suites[0].went, comparison.suites[0].changed) == (13, False)
    assert {change.reason for change in comparison.of("unclear")} == {"host"}
    assert len(compare(made(1), made(2, part_of_the_host(12, 1.4))).of("slower")) == 12
    less = compare(made(1), made(2, part_of_the_host(12, 1.2)))
    assert {change.reason for change in less.of("unclear")} == {"host"}
    assert "--rounds 10" not in rules(less).get("compare.unclear_noise", "")


def test_few_host_figures_are_allowed_the_drift_that_they_cannot_show() -> None:
    few = ("layer_1", "layer_2")
    figures = [figure for figure in quiet(usual(), 0.001) if figure.params.get("layer", "layer_1") in few]
    little, much = (
        compare(made(1, figures=figures), made(2, changed(factor, clock="host"), figures=figures))
        for factor in (1.06, 1.5)
    )
    assert judged(little, "launch_layers") == {("unclear", "host")}
    assert "Alternate, 5 times each: `microbench run launch_layers" in rules(little)["compare.unclear_host"]
    assert judged(much, "launch_layers") == {("slower", None)}


# The usual figures and a family of twelve that hardly scatter.
WITH_FAMILY = quiet(usual(), 0.001) + [
    Figure("memory_random", "memory", "accesses", 1e11, "rate", "OP/s", {"size_bytes": 1 << index}, deviation=0.001)
    for index in range(20, 32)
]


def on_levels(seed: int, rounds: dict[int, set[int]]) -> Run:
    """A run in which figures of that family, by the logarithm of their size, are 8 % higher in these rounds."""
    sizes = {1 << power: turns for power, turns in rounds.items()}

    def factor(figure: Figure, turn: int) -> float:
        high = figure.benchmark == "memory_random" and turn in sizes.get(int(figure.params["size_bytes"]), ())
        return 1.08 if high else 1.0

    return made(seed, figures=WITH_FAMILY, by_round=factor)


def of_size(comparison: Comparison, power: int) -> Change:
    return next(one for one in of(comparison, "memory_random") if one.new.params["size_bytes"] == 1 << power)


def test_a_figure_that_was_on_both_levels_in_one_run_is_not_changed() -> None:
    base = on_levels(1, {})
    assert of_size(compare(base, on_levels(2, {20: {0, 1, 2, 4}})), 20).verdict == "unclear"
    clean = compare(base, on_levels(2, {power: {0, 1, 2, 3, 4} for power in range(20, 25)}))
    assert verdicts(clean) == {"same": len(WITH_FAMILY) - 5, "faster": 5}


def test_a_figure_that_chance_may_have_sorted_is_unclear_if_its_family_jumps() -> None:
    jumping = {power: {power % 5, (power + 2) % 5} for power in range(21, 30)}
    comparison = compare(on_levels(1, jumping), on_levels(2, {**jumping, 20: {0, 1, 2, 3, 4}}))
    assert not comparison.of("faster", "slower")
    assert (of_size(comparison, 20).verdict, of_size(comparison, 20).reason) == ("unclear", "levels")
    assert "jump between two levels" in rules(comparison)["compare.unclear_levels"]
    assert "--rounds 10 --into new.json" in rules(comparison)["compare.unclear_levels"]


def test_rows_that_jump_speak_against_their_family() -> None:
    """One jumping row in some hundred separates the runs by chance: among many, one separation proves nothing."""
    low, high = [0.0, 0.001, -0.001, 0.0005, 0.0], [0.05, 0.051, 0.049, 0.0505, 0.05]
    mixed = ([*low[:3], *high[:2]], [*high[:3], *low[:2]])
    rows = [(low, high), *[mixed] * 9, *[(low, low[::-1])] * 10]
    split = levels(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
    assert split.jumps.tolist() == [False, *[True] * 9, *[False] * 10]
    suite, family = np.zeros(20, dtype=int), np.array([0] * 10 + [1] * 10)
    chance = chance_of_levels(split, np.full(20, 0.05), suite, family)
    assert chance[0] == pytest.approx(2 * 0.5**10, rel=0.3)
    assert chance[15] < chance[0] / 5
    assert chance_of_levels(split, np.full(20, 0.5), suite, family).max() == 0
    assert math.isfinite(chance.sum())


def test_rows_with_little_expected_scatter_get_more_weight() -> None:
    """The same p-value in a row that is expected to be quiet and in a loud one: the first is a discovery. With equal
    attention two small ones support each other, as Benjamini and Hochberg have it, and one alone is too few."""
    p = np.full(40, 0.5)
    p[[0, 1]] = 0.0002
    nothing = np.zeros(40)
    expected = np.full(40, 0.02**2)
    expected[0] = 0.002**2
    shifts = Shifts(nothing, nothing, nothing, nothing, p, nothing, nothing > 0, np.ones(40), expected, {}, None)
    suite = np.zeros(40, dtype=int)
    assert np.flatnonzero(discoveries(p, shifts, suite)).tolist() == [0]
    assert np.flatnonzero(discoveries(p, shifts._replace(expected=None), suite)).tolist() == [0, 1]
    alone = np.where(np.arange(40) == 0, p, 0.5)
    assert not discoveries(alone, shifts._replace(expected=None), suite).any()
    assert not discoveries(p, shifts._replace(reach=nothing), suite).any()


def arrays(rounds: list[float], shift: float, rows: int, within: float) -> Figures:
    """The same rounds, shifted in NEW, in every row of one family that the device timed; rounds alternated."""
    before, after = np.tile(rounds, (rows, 1)), np.tile([value + shift for value in rounds], (rows, 1))
    same, never = np.zeros(rows, dtype=int), np.zeros(rows, dtype=bool)
    spread = np.full(rows, within)
    return Figures(before, after, before, after, never, spread, same, same, same, never, never, never, ~never)


def test_many_rows_that_move_together_do_not_prove_each_other() -> None:
    """Each by itself has p = 0.003: for Benjamini-Hochberg enough where all move, but they may have one cause."""
    spread = [-0.12, -0.06, 0.0, 0.06, 0.12]
    little = arrays(spread, 0.21, 60, 0.001)
    decision = decide(little)
    assert np.all((decision.judged.noise > 0.001) & (decision.judged.noise < 0.01))
    assert discoveries(decision.judged.noise, decision.judged, little.suite).all()
    assert not decision.changed.any()
    assert decide(arrays(spread, 0.6, 60, 0.001)).changed.all()


def test_rounds_that_agree_better_than_their_own_intervals_are_no_proof() -> None:
    agreeing = [0.0, 0.0001, 0.0, -0.0001, 0.0]
    assert decide(arrays(agreeing, 0.03, 4, 0.001)).changed.all()
    assert not decide(arrays(agreeing, 0.03, 4, 0.05)).changed.any()


def test_figures_of_another_suite_confirm_nothing() -> None:
    """A suite of 24 figures moved by 22 %. Three figures of another suite and of three benchmarks moved as far."""
    spread = [-0.001, -0.0005, 0.0, 0.0005, 0.001]
    moved = arrays(spread, 0.2, 27, 0.001)
    number = np.arange(27)
    few = number >= 24
    decision = decide(
        replace(moved, suite=few.astype(int), family=np.where(few, number, 0), host=~moved.host, in_turn=number < 0)
    )
    assert [(group.changed, group.seen) for group in decision.judged.together.values()] == [(True, True), (True, False)]
    assert decision.changed.tolist() == [True] * 24 + [False] * 3
    assert decision.unconfirmed.tolist() == [False] * 24 + [True] * 3

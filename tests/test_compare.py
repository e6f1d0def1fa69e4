"""Two runs compared: what is matched, what cannot be compared, which verdict each figure gets, and why."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from compare_runs import GPU, HIGHEST_HZ, Figure, changed, grown, made, quiet, usual

from microbench.compare.compare import Change, Comparison, Verdict, compare
from microbench.compare.decision import Figures, Shifts, chance_of_levels, decide, discoveries, levels
from microbench.compare.words import Side, findings, notices, summary
from microbench.core.model import AxisInfo, Fact, GpuInfo, Run

Multiplied = Callable[[Figure], float]
BASE, NEW = Side("base.json"), Side("new.json")


def verdicts(comparison: Comparison) -> dict[str, int]:
    return dict(Counter(one.verdict for one in comparison.changes))


def of(comparison: Comparison, benchmark: str) -> list[Change]:
    return [one for one in comparison.changes if one.new.benchmark == benchmark]


def rules(comparison: Comparison) -> dict[str, str]:
    return {one.rule: f"{one.title}. {one.text}" for one in findings(comparison, BASE, NEW)}


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_two_runs_of_one_machine_are_the_same() -> None:
    found = compare(made(1), made(2))
    assert verdicts(found) == {"same": len(usual())}
    assert summary(found).title == "52 same"
    assert (summary(found).rule, summary(found).severity) == ("compare.changes", "good")
    assert list(rules(found)) == ["compare.hidden"]
    assert not notices(found)


@pytest.mark.parametrize(
    ("of_it", "factor", "verdict"),
    [
        ({"benchmark": "memory_stream"}, 0.95, "slower"),
        ({"benchmark": "memory_stream"}, 1.05, "faster"),
        ({"benchmark": "launch_layers", "case_id": "launch_layers[layer=layer_3]"}, 1.2, "slower"),
        ({"benchmark": "launch_layers", "case_id": "launch_layers[layer=layer_3]"}, 0.8, "faster"),
        ({"benchmark": "launch_queue"}, 1.1, "more"),
        ({"benchmark": "launch_queue"}, 0.9, "fewer"),
    ],
)
def test_a_change_has_the_verdict_of_its_kind(of_it: dict[str, object], factor: float, verdict: Verdict) -> None:
    found = compare(made(1), made(2, changed(factor, **of_it)))
    moved = [one for one in usual() if all(getattr(one, name) == value for name, value in of_it.items())]
    assert {one.new.case_id for one in found.of(verdict)} == {one.case_id for one in moved}
    assert verdicts(found) == {"same": len(usual()) - len(moved), verdict: len(moved)}
    for one in found.of(verdict):
        assert one.ratio is not None
        assert one.ratio.median == pytest.approx(factor, rel=0.01)
        assert 0.001 < one.ratio.half_width < 0.02


def test_a_change_that_nobody_should_act_on_is_the_same() -> None:
    figures = quiet(usual(), 0.0005)
    found = compare(made(1, figures=figures), made(2, changed(1.01, suite="memory"), figures=figures))
    assert verdicts(found) == {"same": len(usual())}


def test_what_changed_is_listed_by_size() -> None:
    doubled = changed(0.5, case_id="memory_stream[kernel=copy]")
    found = compare(made(1), made(2, doubled, changed(0.9, case_id="memory_stream[kernel=read]")))
    assert [one.new.params["kernel"] for one in found.of("slower")] == ["copy", "read"]
    assert summary(found).title == "2 slower, 50 same"
    assert summary(found).severity == "problem"


def test_figures_of_a_benchmark_that_move_together_are_told_as_one() -> None:
    found = compare(made(1), made(2, changed(0.9, benchmark="memory_stream")))
    assert re.match(r"4 of 4 rates of memory_stream are slower: 0\.(89|90)\d×", rules(found)["compare.together"])


def test_a_noisy_figure_is_unclear_and_says_what_to_run() -> None:
    loud = [replace(one, deviation=0.2) if one.benchmark == "memory_stream" else one for one in usual()]
    found = compare(made(1, figures=loud), made(2, figures=loud))
    assert {(one.verdict, one.reason) for one in of(found, "memory_stream")} == {("unclear", "noise")}
    said = rules(found)["compare.unclear_noise"]
    assert "`microbench run memory_stream --quick --rounds 10 --into base.json`" in said
    assert "`microbench run memory_stream --quick --rounds 10 --into new.json`" in said


def test_a_count_of_nothing_can_become_something() -> None:
    nothing = [replace(one, value=0.0) if one.kind == "count" else one for one in usual()]
    found = compare(made(1, figures=nothing), made(2))
    assert {one.verdict for one in of(found, "launch_queue")} == {"more"}
    assert verdicts(compare(made(1, figures=nothing), made(2, figures=nothing))) == {"same": len(usual())}


def test_a_count_from_nothing_to_one_or_to_a_fraction_is_more() -> None:
    for some in (1.0, 0.25):
        counts = [
            [replace(one, value=value, deviation=0.0) if one.kind == "count" else one for one in usual()]
            for value in (0.0, some)
        ]
        found = compare(made(1, figures=counts[0]), made(2, figures=counts[1]))
        assert {one.verdict for one in of(found, "launch_queue")} == {"more"}


def test_a_time_of_nothing_has_no_ratio() -> None:
    nothing = [replace(one, value=0.0) if one.benchmark == "launch_layers" else one for one in usual()]
    found = compare(made(1), made(2, figures=nothing))
    assert {(one.verdict, one.reason, one.ratio) for one in of(found, "launch_layers")} == {
        ("unclear", "no ratio", None)
    }


def test_a_figure_whose_check_is_missing_gets_no_verdict() -> None:
    new = made(2, changed(0.5, suite="memory"))
    unchecked = [
        msgspec.structs.replace(
            one, measurements=(msgspec.structs.replace(one.measurements[0], needs_verification=True),)
        )
        if one.case.benchmark == "memory_stream"
        else one
        for one in new.outcomes
    ]
    found = compare(made(1), msgspec.structs.replace(new, outcomes=tuple(unchecked)))
    assert {(one.verdict, one.reason) for one in of(found, "memory_stream")} == {("unclear", "grade")}


# -- rounds ------------------------------------------------------------------------------------------------------------


def test_fewer_than_five_rounds_are_unclear_with_the_command_to_run() -> None:
    found = compare(made(1), made(2, changed(0.5, suite="memory"), rounds=4))
    assert {(one.verdict, one.reason) for one in found.changes} == {("unclear", "rounds")}
    assert all(one.ratio is not None for one in found.changes)
    said = rules(found)["compare.unclear_rounds"]
    assert "`microbench run launch link memory compute --quick --rounds 5 --into new.json`" in said
    assert "base.json" not in said


def test_the_command_measures_what_was_measured() -> None:
    few = made(2, rounds=1, figures=[one for one in usual() if one.benchmark == "link_copy"])
    session = few.sessions[0]
    settings = msgspec.structs.replace(
        session.settings, preset="full", overrides={"size_bytes": (1024, 2048)}, device="cuda:1"
    )
    axes = (AxisInfo("size_bytes", "invented", (1024, 2048)),)
    few = msgspec.structs.replace(
        few,
        sessions=(msgspec.structs.replace(session, settings=settings),),
        benchmarks=tuple(msgspec.structs.replace(one, axes=axes) for one in few.benchmarks),
    )
    said = rules(compare(made(1), few))["compare.unclear_rounds"]
    wanted = "microbench run link_copy --full --set size_bytes=1024,2048 --device cuda:1 --rounds 5 --into new.json"
    assert f"`{wanted}`" in said
    without = tuple(msgspec.structs.replace(one, axes=()) for one in few.benchmarks)
    said = rules(compare(made(1), msgspec.structs.replace(few, benchmarks=without)))["compare.unclear_rounds"]
    assert "`microbench run link_copy --full --device cuda:1 --rounds 5 --into new.json`" in said


def test_rounds_are_to_be_added_where_their_run_was_made() -> None:
    """On the driver of today they would stand for a run that was made on another."""
    few = made(2, rounds=1, driver="580.2")
    assert "on the driver and board of each" in rules(compare(made(1), few))["compare.unclear_rounds"]
    assert "on the driver" not in rules(compare(made(1), made(2, rounds=1)))["compare.unclear_rounds"]


def test_a_bundled_run_is_never_to_be_added_to() -> None:
    found = compare(made(1, rounds=3), made(2))
    told = findings(found, Side("nvidia-h200", grows=False), NEW)
    assert not any("--into" in one.text for one in told)


def test_rounds_taken_in_turn_are_added_up() -> None:
    base, new = (
        grown(*(made(10 * side + turn, change, rounds=1) for turn in range(5)))
        for side, change in enumerate((changed(1.0), changed(0.9, suite="memory")))
    )
    found = compare(base, new)
    assert verdicts(found) == {"same": len(usual()) - 4, "slower": 4}


def in_turn(change: Multiplied) -> tuple[Run, Run]:
    """Five rounds of either run, A B B A A B B A A B, of a host that is slower in each than in the last."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    for moment, side in enumerate((0, 1, 1, 0, 0, 1, 1, 0, 0, 1)):
        slower = changed(1.005**moment, clock="host")
        run = made(10 + moment, slower, *([change] if side else []), rounds=1)
        session = msgspec.structs.replace(run.sessions[0], started_at=f"2026-01-01T00:00:{moment:02}+00:00")
        runs[side].append(msgspec.structs.replace(run, sessions=(session,)))
    return grown(*runs[0]), grown(*runs[1])


def test_of_rounds_taken_in_turn_no_drift_is_taken_off() -> None:
    """As their own scatter shows it: all of the host 12 % slower in NEW alone is a change then, and drift is none."""
    found = compare(*in_turn(changed(1.12, clock="host")))
    assert verdicts(found) == {"same": len(usual()) - 24, "slower": 24}
    assert not found.drifts
    assert not compare(*in_turn(changed(1.0))).of("slower", "faster")


def test_rounds_under_another_driver_are_not_added() -> None:
    base = grown(made(1, rounds=4, driver="560.1"), made(2, rounds=4))
    assert {one.reason for one in compare(base, made(3)).changes} == {"rounds"}


def test_a_session_with_rounds_enough_stands_for_the_run() -> None:
    found = compare(grown(made(1, changed(0.5, suite="memory")), made(2)), made(3))
    assert verdicts(found) == {"same": len(usual())}


# -- what cannot be compared -------------------------------------------------------------------------------------------


def test_simulated_figures_are_not_compared_with_real_ones() -> None:
    found = compare(made(1, simulated=True), made(2))
    assert {(one.verdict, one.reason) for one in found.changes} == {("incomparable", "simulated")}
    assert notices(found)[0].title == "SIMULATED AGAINST REAL"
    assert "BASE is simulated and NEW is real: 52 figures" in notices(found)[0].text
    assert verdicts(compare(made(1, simulated=True), made(2, simulated=True))) == {"same": len(usual())}


def test_another_method_is_incomparable_and_named() -> None:
    found = compare(made(1), made(2, versions={"link_copy": 2}))
    assert {(one.verdict, one.reason) for one in of(found, "link_copy")} == {("incomparable", "method")}
    assert "link_copy: 16 figures" in notices(found)[0].text
    assert summary(found).title == "36 same, 16 incomparable"


def test_another_unit_is_incomparable() -> None:
    other = [replace(one, unit="OP/s", bound=None) if one.suite == "memory" else one for one in usual()]
    found = compare(made(1), made(2, figures=other))
    assert {(one.verdict, one.reason) for one in of(found, "memory_stream")} == {("incomparable", "method")}


def test_what_failed_in_new_is_told_before_any_figure() -> None:
    new = made(2)
    name = "memory_stream[kernel=copy]"
    failed = tuple(
        msgspec.structs.replace(one, status="crashed", measurements=()) if one.case.id == name else one
        for one in new.outcomes
    )
    found = compare(made(1), msgspec.structs.replace(new, outcomes=failed))
    assert [one.title for one in notices(found)] == ["FAILED IN NEW"]
    assert notices(found)[0].text.startswith(f"1 case that BASE measured: {name}.")
    assert not notices(compare(msgspec.structs.replace(new, outcomes=failed), made(1)))


def test_copies_of_one_run_are_told() -> None:
    run = made(1)
    assert [one.title for one in notices(compare(run, grown(run, made(2, rounds=1))))] == ["ONE RUN TWICE"]


def test_figures_that_one_run_lacks_are_told_apart() -> None:
    less = [one for one in usual() if one.suite != "memory"]
    found = compare(made(1), made(2, figures=less))
    assert {row.benchmark for row in found.only_base} == {"memory_stream"}
    assert not found.only_new
    assert verdicts(found) == {"same": len(less)}
    nothing = compare(made(1, figures=less), made(2, figures=[one for one in usual() if one.suite == "memory"]))
    assert not nothing.changes
    assert summary(nothing).title == "The two runs have no figure in common"
    assert summary(nothing).severity == "note"


def test_another_driver_is_named_and_compared() -> None:
    found = compare(made(1), made(2, changed(0.9, suite="memory"), driver="580.2"))
    assert verdicts(found) == {"same": len(usual()) - 4, "slower": 4}
    assert [one.title for one in notices(found)] == ["ANOTHER DRIVER"]
    assert "580.2 in NEW, 570.1 in BASE" in notices(found)[0].text


def test_what_differs_between_the_machines_is_listed_but_for_the_moment() -> None:
    before = (Fact("cpu_model", "one"), Fact("load_average_1min", 0.1), Fact("governor", None, reason="hidden"))
    after = (Fact("cpu_model", "other"), Fact("load_average_1min", 3.0), Fact("governor", "powersave"))
    gpu = msgspec.structs.replace(GPU, ecc=True, power_limit_w=600.0)
    found = compare(made(1, facts=before, gpu=gpu), made(2, facts=after, gpu=msgspec.structs.replace(gpu, ecc=False)))
    assert [(one.name, one.base.value, one.new.value) for one in found.differences] == [
        ("GPU ecc", True, False),
        ("cpu_model", "one", "other"),
    ]


# -- GPUs --------------------------------------------------------------------------------------------------------------


def board(number: int, **fields: object) -> GpuInfo:
    return msgspec.structs.replace(GPU, uuid=f"GPU-{number}", index=number, **fields)  # type: ignore[arg-type]


def test_another_board_of_the_same_model_is_compared_and_named() -> None:
    found = compare(made(1), made(2, changed(0.9, suite="memory"), gpu=board(1)))
    assert verdicts(found) == {"same": len(usual()) - 4, "slower": 4}
    assert [one.title for one in notices(found)] == ["ANOTHER BOARD"]


def both(seed: int, first: GpuInfo, second: GpuInfo, factor: float) -> Run:
    """A run of two GPUs; the second one's memory gives ``factor`` times as much."""
    runs = made(seed, gpu=first), made(seed + 1, changed(factor, suite="memory"), gpu=second)
    environment = msgspec.structs.replace(runs[0].sessions[0].environment, gpus=(first, second))
    session = msgspec.structs.replace(runs[0].sessions[0], environment=environment)
    return msgspec.structs.replace(runs[0], sessions=(session,), outcomes=runs[0].outcomes + runs[1].outcomes)


def test_gpus_are_matched_by_uuid_before_their_index() -> None:
    base = both(1, board(0), board(1), 0.8)
    swapped = both(3, msgspec.structs.replace(board(1), index=0), msgspec.structs.replace(board(0), index=1), 0.8)
    found = compare(base, swapped)
    assert Counter(one.verdict for one in of(found, "memory_stream")) == {"faster": 4, "slower": 4}
    elsewhere = compare(base, both(3, board(10), board(11), 0.8))
    assert not elsewhere.changes
    numbered = [msgspec.structs.replace(board(10 + index), index=index) for index in range(2)]
    assert verdicts(compare(base, both(3, *numbered, 0.8))) == {"same": 2 * len(usual())}


def test_another_model_is_compared_by_shares_of_its_ceilings() -> None:
    other = board(1, name="SIMULATED OTHER", memory_clock_max_hz=1.6005e9)
    half = changed(0.5, suite="memory")
    found = compare(made(1), made(2, half, gpu=other))
    assert {(one.verdict, one.shares) for one in of(found, "memory_stream")} == {("same", True)}
    assert {(one.verdict, one.reason) for one in of(found, "launch_layers")} == {("incomparable", "model")}
    farther = compare(made(1), made(2, half, changed(0.9, suite="memory"), gpu=other))
    assert {one.verdict for one in of(farther, "memory_stream")} == {"farther"}
    nearer = compare(made(1), made(2, gpu=other))
    assert {one.verdict for one in of(nearer, "memory_stream")} == {"nearer"}
    assert "of 24 figures the share of each GPU's own ceiling is compared; 28 figures without a ceiling" in (
        notices(found)[0].text
    )


# -- the SM clock ------------------------------------------------------------------------------------------------------

WARM = (1.83e9, 1.80e9, 1.82e9, 1.79e9, 1.81e9)


def test_a_warmer_card_is_no_regression() -> None:
    found = compare(made(1), made(2, clocks_hz=WARM))
    assert verdicts(found) == {"same": len(usual())}
    for one in of(found, "tensor_ceiling"):
        assert one.by == "clock"
        assert one.ratio is not None
        assert one.judged is not None
        assert one.ratio.high < 0.93
        assert one.judged.low < 1 < one.judged.high
    assert rules(found)["compare.clock"].startswith("4 figures moved with the SM clock alone, by 9.")


def test_a_change_at_one_clock_is_seen_whatever_the_clock_did() -> None:
    found = compare(made(1, clocks_hz=WARM), made(2, changed(0.92, suite="compute")))
    assert {one.verdict for one in of(found, "tensor_ceiling")} == {"slower"}
    for one in found.of("slower"):
        assert one.ratio is not None
        assert one.judged is not None
        assert one.ratio.low < 1.02
        assert one.judged.median == pytest.approx(0.92, rel=0.01)


def test_the_clock_itself_is_no_change_of_a_figure() -> None:
    """The figure of each case that tells its SM clock: at one clock it is one."""
    clocks = [
        Figure("tensor_ceiling", "compute", "sm_clock", HIGHEST_HZ, "count", "Hz", {"dtype": name}, clock="counter")
        for name in ("bf16", "fp16", "fp8_e4m3", "tf32")
    ]
    figures = [*usual(), *clocks]
    found = compare(
        made(1, figures=figures), made(2, changed(0.9, metric="sm_clock"), figures=figures, clocks_hz=(1.782e9,) * 5)
    )
    assert not found.of("fewer", "more", "slower", "faster")
    assert rules(found)["compare.clock"].startswith("8 figures moved with the SM clock alone")


def test_without_its_clock_a_figure_is_judged_as_measured() -> None:
    bare = msgspec.structs.replace(GPU, sm_clock_max_hz=None)
    found = compare(made(1, gpu=bare), made(2, gpu=bare, clocks_hz=WARM))
    assert {(one.verdict, one.by) for one in of(found, "tensor_ceiling")} == {("slower", "value")}


def test_where_the_limit_is_not_known_both_must_agree() -> None:
    unknown = [replace(one, bound=None) if one.suite == "compute" else one for one in usual()]
    found = compare(made(1, figures=unknown), made(2, figures=unknown, clocks_hz=WARM))
    assert {one.verdict for one in of(found, "tensor_ceiling")} == {"same"}
    # Not on the clock at all, and the clock moved: at one clock it looks changed, as measured it is not.
    free = [replace(one, on_clock=False) for one in unknown]
    assert {one.verdict for one in of(compare(made(1, figures=free), made(2, figures=free, clocks_hz=WARM)),
                                      "tensor_ceiling")} == {"same"}  # fmt: skip
    slower = compare(made(1, figures=free), made(2, changed(0.8, suite="compute"), figures=free))
    assert {one.verdict for one in of(slower, "tensor_ceiling")} == {"slower"}


def test_what_takes_its_nanoseconds_at_any_clock_takes_other_cycles() -> None:
    """Of memory a clock further off: more cycles at a higher clock, and no change."""
    cycles = [
        Figure(
            "memory_latency", "memory", "cycles", 900.0 + index, unit="cycle", params={"footprint_bytes": 1 << index}
        )
        for index in range(12)
    ]
    fewer = changed(1.81e9 / HIGHEST_HZ, metric="cycles")
    found = compare(made(1, figures=cycles), made(2, fewer, figures=cycles, clocks_hz=(1.81e9,)))
    assert verdicts(found) == {"same": 12}


def test_cycles_are_seconds_at_a_clock() -> None:
    """A latency in cycles that follows no clock, and one in nanoseconds that does, are the same at another clock."""
    latencies = [
        Figure("memory_latency", "memory", "cycles", 30.0 + index, unit="cycle", params={"footprint_bytes": 1 << index})
        for index in range(12)
    ]
    latencies += [
        replace(one, metric="latency", unit="s", value=one.value / HIGHEST_HZ, on_clock=True) for one in latencies
    ]
    found = compare(made(1, figures=latencies), made(2, figures=latencies, clocks_hz=WARM))
    assert verdicts(found) == {"same": 24}
    both_slower = compare(made(1, figures=latencies), made(2, changed(1.2, suite="memory"), figures=latencies))
    assert verdicts(both_slower) == {"slower": 24}


# -- the host ----------------------------------------------------------------------------------------------------------


def test_what_the_whole_host_did_is_told_once_and_counted_nowhere() -> None:
    found = compare(made(1), made(2, changed(1.06, clock="host")))
    assert verdicts(found) == {"same": 28, "unclear": 24} or not found.of("slower")
    assert [(one.suite, one.rows, one.counted) for one in found.drifts] == [("launch", 24, False)]
    assert found.drifts[0].ratio == pytest.approx(1.06, rel=0.01)
    said = rules(found)["compare.host"]
    assert "The host was slower throughout: 24 of its figures of launch by 6." in said


def test_a_row_that_moved_beyond_the_host_is_still_seen() -> None:
    alone = changed(1.3, case_id="launch_layers[layer=layer_3]")
    found = compare(made(1), made(2, changed(1.06, clock="host"), alone))
    assert [one.new.params["layer"] for one in found.of("slower")] == ["layer_3"]
    slower = found.of("slower")[0]
    assert slower.by == "host"
    assert slower.judged is not None
    assert slower.judged.median == pytest.approx(1.3, rel=0.02)


def test_a_row_that_stood_still_while_the_host_slowed_is_not_faster() -> None:
    still = changed(1 / 1.08, case_id="launch_layers[layer=layer_3]")
    found = compare(made(1), made(2, changed(1.08, clock="host"), still))
    assert not found.of("faster", "slower")
    against = changed(1.03 / 1.08, case_id="launch_layers[layer=layer_3]")
    assert not compare(made(1), made(2, changed(1.08, clock="host"), against)).of("faster", "slower")
    slightly = changed(1.017 / 0.92, case_id="launch_layers[layer=layer_3]")
    assert not compare(made(1), made(2, changed(0.92, clock="host"), slightly)).of("faster", "slower")


def test_beyond_any_drift_every_row_of_the_host_is_slower() -> None:
    found = compare(made(1), made(2, changed(1.5, clock="host")))
    assert verdicts(found) == {"same": 28, "slower": 24}
    assert found.drifts[0].counted
    assert "each figure is judged as measured" in rules(found)["compare.host"]


def test_a_rate_that_the_host_times_moves_the_other_way() -> None:
    rates = [
        replace(one, metric="rate", kind="rate", unit="1/s", value=1 / one.value, params={"threads": index})
        for index, one in enumerate(usual()[:24])
    ]
    figures = [*usual()[:24], *(replace(one, unit="OP/s") for one in rates)]
    slower = [changed(1.06, kind="time"), changed(1 / 1.06, kind="rate")]
    found = compare(made(1, figures=figures), made(2, *slower, figures=figures))
    assert found.drifts[0].ratio == pytest.approx(1.06, rel=0.01)
    assert not found.of("slower", "faster")


def test_a_host_that_is_far_slower_is_said_first_and_of_all_its_suites_at_once() -> None:
    figures = [*usual(), *(replace(one, suite="link", benchmark="link_latency") for one in usual()[:24])]
    found = compare(made(1, figures=figures), made(2, changed(1.4, clock="host"), figures=figures))
    first = findings(found, BASE, NEW)[0]
    assert first.rule == "compare.host"
    assert first.severity == "problem"
    by = r"(40|39)[.]\d %"
    assert re.match(
        rf"The host was slower throughout: 24 of its figures of \w+ by {by}, 24 of \w+ by {by}", first.title
    )


def part_of_the_host(count: int, factor: float) -> Multiplied:
    return lambda one: factor if one.params.get("layer") in {f"layer_{index}" for index in range(count)} else 1.0


def test_what_some_of_the_host_did_is_not_told_as_if_all_of_it_had() -> None:
    found = compare(made(1), made(2, part_of_the_host(13, 1.1)))
    said = rules(found)["compare.host"]
    assert said.startswith("Of the host's figures many were slower: 13 of 24 of launch (the median of all is 9.")
    assert "throughout" not in said
    assert {one.reason for one in found.of("unclear")} == {"host"}


def test_half_of_the_host_that_is_far_slower_is_no_noise() -> None:
    found = compare(made(1), made(2, part_of_the_host(12, 1.4)))
    assert len(found.of("slower")) == 12
    some = compare(made(1), made(2, part_of_the_host(12, 1.2)))
    assert {one.reason for one in some.of("unclear")} == {"host"}
    assert "--rounds 10" not in rules(some).get("compare.unclear_noise", "")


def test_few_figures_of_the_host_are_allowed_the_drift_that_they_cannot_show() -> None:
    few = ("layer_1", "layer_2")
    figures = [one for one in quiet(usual(), 0.001) if one.params.get("layer", "layer_1") in few]
    base = made(1, figures=figures)
    little = compare(base, made(2, changed(1.06, clock="host"), figures=figures))
    assert not little.of("slower")
    assert {one.reason for one in of(little, "launch_layers")} == {"host"}
    assert "measure the two in turn" in rules(little)["compare.unclear_host"]
    much = compare(base, made(2, changed(1.4, clock="host"), figures=figures))
    assert {one.verdict for one in of(much, "launch_layers")} == {"slower"}


# -- levels ------------------------------------------------------------------------------------------------------------


def random_accesses() -> list[Figure]:
    """A family of twelve figures that hardly scatter, beside the usual ones."""
    return quiet(usual(), 0.001) + [
        Figure("memory_random", "memory", "accesses", 1e11, "rate", "OP/s", {"size_bytes": 1 << index}, deviation=0.001)
        for index in range(20, 32)
    ]


def on_high_level(rounds: dict[int, set[int]]) -> Callable[[Figure, int], float]:
    """Puts figures of that family, by the logarithm of their size, 8 % higher in these rounds."""
    sizes = {1 << power: turns for power, turns in rounds.items()}

    def factor(one: Figure, turn: int) -> float:
        high = one.benchmark == "memory_random" and turn in sizes.get(int(one.params["size_bytes"]), ())
        return 1.08 if high else 1.0

    return factor


def of_size(comparison: Comparison, power: int) -> Change:
    return next(one for one in of(comparison, "memory_random") if one.new.params["size_bytes"] == 1 << power)


def test_a_figure_that_was_on_both_levels_in_one_run_is_not_changed() -> None:
    figures = random_accesses()
    base = made(1, figures=figures)
    mixed = compare(base, made(2, figures=figures, by_round=on_high_level({20: {0, 1, 2, 4}})))
    assert of_size(mixed, 20).verdict == "unclear"
    clean = compare(base, made(2, figures=figures, by_round=on_high_level({20: {0, 1, 2, 3, 4}})))
    assert verdicts(clean) == {"same": len(figures) - 1, "faster": 1}


def test_where_a_family_jumps_one_that_chance_sorted_is_unclear() -> None:
    figures = random_accesses()
    jumping = {power: {power % 5, (power + 2) % 5} for power in range(21, 30)}
    base = made(1, figures=figures, by_round=on_high_level(jumping))
    found = compare(base, made(2, figures=figures, by_round=on_high_level({**jumping, 20: {0, 1, 2, 3, 4}})))
    assert not found.of("faster", "slower")
    assert (of_size(found, 20).verdict, of_size(found, 20).reason) == ("unclear", "levels")
    assert "jump between two levels" in rules(found)["compare.unclear_levels"]
    assert "--rounds 10 --into new.json" in rules(found)["compare.unclear_levels"]


def test_rows_that_jump_speak_against_their_family() -> None:
    """Chance sorts a row that jumps once in some hundred: among many such rows a sorted one proves nothing."""
    low, high = [0.0, 0.001, -0.001, 0.0005, 0.0], [0.05, 0.051, 0.049, 0.0505, 0.05]
    sorted_by_run = (low, high)
    mixed = ([*low[:3], *high[:2]], [*high[:3], *low[:2]])
    rows = [sorted_by_run, *[mixed] * 9, *[(low, low[::-1])] * 10]
    base, new = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = levels(base, new)
    assert found.jumps.tolist() == [False, *[True] * 9, *[False] * 10]
    family = np.array([0] * 10 + [1] * 10)
    chance = chance_of_levels(found, np.full(20, 0.05), np.zeros(20, dtype=int), family)
    assert chance[0] == pytest.approx(2 * 0.5**10, rel=0.3)
    assert chance[15] < chance[0] / 5
    assert chance_of_levels(found, np.full(20, 0.5), np.zeros(20, dtype=int), family).max() == 0
    assert math.isfinite(chance.sum())


def test_attention_goes_where_little_scatter_is_expected() -> None:
    """The same p-value in a row that is expected to be quiet and in a loud one: the first is a discovery. With equal
    attention two small ones support each other, as Benjamini and Hochberg have it, and one alone is too few."""
    rows = 40
    p = np.full(rows, 0.5)
    p[[0, 1]] = 0.0002
    nothing = np.zeros(rows)
    expected = np.full(rows, 0.02**2)
    expected[0] = 0.002**2
    judged = Shifts(nothing, nothing, nothing, nothing, p, nothing, nothing > 0, np.ones(rows), expected, {})
    suite = np.zeros(rows, dtype=int)
    assert np.flatnonzero(discoveries(p, judged, suite)).tolist() == [0]
    assert np.flatnonzero(discoveries(p, judged._replace(expected=None), suite)).tolist() == [0, 1]
    alone = np.where(np.arange(rows) == 0, p, 0.5)
    assert not discoveries(alone, judged._replace(expected=None), suite).any()
    assert not discoveries(p, judged._replace(reach=nothing), suite).any()


def arrays(base: list[float], new: list[float], rows: int, within: float) -> Figures:
    """The same rounds in every row of one family that the device timed."""
    before, after = np.tile(base, (rows, 1)), np.tile(new, (rows, 1))
    same = np.zeros(rows, dtype=int)
    never = np.zeros(rows, dtype=bool)
    return Figures(before, after, before, after, never, np.full(rows, within), same, same, never)


SPREAD = [-0.12, -0.06, 0.0, 0.06, 0.12]


def test_many_that_move_together_are_no_excuse_for_one_that_might_be_chance() -> None:
    """Each by itself has p = 0.003: for Benjamini-Hochberg enough where all move, but they may have one cause."""
    found = arrays(SPREAD, [one + 0.21 for one in SPREAD], 60, 0.001)
    decision = decide(found)
    assert np.all((decision.judged.noise > 0.001) & (decision.judged.noise < 0.01))
    assert discoveries(decision.judged.noise, decision.judged, found.suite).all()
    assert not decision.changed.any()
    assert decide(arrays(SPREAD, [one + 0.6 for one in SPREAD], 60, 0.001)).changed.all()


def test_rounds_that_agree_better_than_their_own_intervals_are_no_proof() -> None:
    agreeing = [0.0, 0.0001, 0.0, -0.0001, 0.0]
    moved = [one + 0.03 for one in agreeing]
    assert decide(arrays(agreeing, moved, 4, 0.001)).changed.all()
    assert not decide(arrays(agreeing, moved, 4, 0.05)).changed.any()


def test_nothing_to_compare_is_no_error() -> None:
    empty = msgspec.structs.replace(made(1), outcomes=())
    assert not compare(empty, empty).changes
    assert not compare(empty, made(2)).changes

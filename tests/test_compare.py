"""Two runs compared: which figures are matched, which verdict each gets, and why."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import snapshots
from compare_runs import GPU, HIGHEST_HZ, Figure, changed, grown, made, quiet, usual
from read_findings import drawn

from microbench.comparison.compare import Change, Comparison, compare
from microbench.comparison.decision import Figures, Shifts, chance_of_levels, decide, discoveries, levels
from microbench.comparison.words import Side, findings, notices, summary
from microbench.core.model import AxisInfo, Fact, GpuInfo, Outcome, Run

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


def replaced(run: Run, wanted: Callable[[Outcome], bool], **fields: object) -> Run:
    """The run with other fields of some outcomes."""
    outcomes = (msgspec.structs.replace(one, **fields) if wanted(one) else one for one in run.outcomes)
    return msgspec.structs.replace(run, outcomes=tuple(outcomes))


def unverified(run: Run) -> Run:
    """The run whose rates of memory needed a check and have none."""
    outcomes = []
    for one in run.outcomes:
        (measured,) = one.measurements
        measured = msgspec.structs.replace(measured, needs_verification=one.case.benchmark == "memory_stream")
        outcomes.append(msgspec.structs.replace(one, measurements=(measured,)))
    return msgspec.structs.replace(run, outcomes=tuple(outcomes))


def of_two_links(**axes: tuple[int, ...]) -> Run:
    """A round of copies alone, as it was asked for."""
    few = made(2, rounds=1, figures=[figure for figure in usual() if figure.benchmark == "link_copy"])
    (session,) = few.sessions
    asked = {"preset": "full", "overrides": {"size_bytes": (1024, 2048)}, "device": "cuda:1"}
    settings = msgspec.structs.replace(session.settings, **asked)
    infos = tuple(
        msgspec.structs.replace(info, axes=tuple(AxisInfo(name, "", values) for name, values in axes.items()))
        for info in few.benchmarks
    )
    return msgspec.structs.replace(
        few, sessions=(msgspec.structs.replace(session, settings=settings),), benchmarks=infos
    )


def in_turn(change: Multiplied, drift: float = 1.005) -> tuple[Run, Run]:
    """Five rounds of either run, A B B A A B B A A B, of a host that slows by ``drift`` each time."""
    runs: tuple[list[Run], list[Run]] = ([], [])
    for moment, side in enumerate((0, 1, 1, 0, 0, 1, 1, 0, 0, 1)):
        run = made(10 + moment, changed(drift**moment, clock="host"), *([change] if side else []), rounds=1)
        session = msgspec.structs.replace(run.sessions[0], started_at=f"2026-01-01T00:00:{moment:02}+00:00")
        runs[side].append(msgspec.structs.replace(run, sessions=(session,)))
    return grown(*runs[0]), grown(*runs[1])


def board(number: int, **fields: object) -> GpuInfo:
    return msgspec.structs.replace(GPU, **{"uuid": f"GPU-{number}", "index": number, **fields})


def both(seed: int, first: GpuInfo, second: GpuInfo) -> Run:
    """A run of two GPUs; the second one's memory is 20 % slower."""
    runs = made(seed, gpu=first), made(seed + 1, changed(0.8, suite="memory"), gpu=second)
    environment = msgspec.structs.replace(runs[0].sessions[0].environment, gpus=(first, second))
    session = msgspec.structs.replace(runs[0].sessions[0], environment=environment)
    return msgspec.structs.replace(runs[0], sessions=(session,), outcomes=runs[0].outcomes + runs[1].outcomes)


def latencies(least: float) -> list[Figure]:
    return [
        Figure("memory_latency", "memory", "cycles", least + index, unit="cycle", params={"size_bytes": 1 << index})
        for index in range(12)
    ]


def part_of_the_host(count: int, factor: float) -> Multiplied:
    return lambda figure: factor if figure.params.get("layer") in {f"layer_{index}" for index in range(count)} else 1.0


WARM = (1.83e9, 1.80e9, 1.82e9, 1.79e9, 1.81e9)
HOST, MEMORY, COMPUTE = {"clock": "host"}, {"suite": "memory"}, {"suite": "compute"}
CLOCKS = [
    Figure("tensor_ceiling", "compute", "sm_clock", HIGHEST_HZ, "count", "Hz", {"dtype": name}, clock="counter")
    for name in ("bf16", "fp16", "fp8_e4m3", "tf32")
]
NEAR = latencies(30.0)
NEAR += [replace(one, metric="latency", unit="s", value=one.value / HIGHEST_HZ, on_clock=True) for one in NEAR]
TIMES = usual()[:24]
RATES = [
    replace(one, metric="rate", kind="rate", unit="OP/s", value=1 / one.value, params={"threads": index})
    for index, one in enumerate(TIMES)
]
TWO_SUITES = [*usual(), *(replace(one, suite="link", benchmark="link_latency") for one in TIMES)]
FEW_OF_THE_HOST = [
    figure for figure in quiet(usual(), 0.001) if figure.params.get("layer", "layer_1") in ("layer_1", "layer_2")
]
LESS, ALONE = ([one for one in usual() if (one.suite == "memory") == wanted] for wanted in (False, True))
BEFORE = (Fact("cpu_model", "one"), Fact("load_average_1min", 0.1), Fact("governor", None, reason="hidden"))
AFTER = (Fact("cpu_model", "other"), Fact("load_average_1min", 3.0), Fact("governor", "powersave"))
BARE, OTHER_ECC = msgspec.structs.replace(GPU, sm_clock_max_hz=None), {"ecc": True, "power_limit_w": 600.0}
OTHER = board(1, name="SIMULATED OTHER", memory_clock_max_hz=GPU.memory_clock_max_hz / 2)


def pair(*changes: Multiplied, figures: list[Figure] | None = None, **new: Any) -> tuple[Run, Run]:
    """A run and another of the same figures with these changes."""
    return made(1, figures=figures), made(2, *changes, figures=figures, **new)


def with_counts(value: float) -> list[Figure]:
    return with_fields("kind", "count", value=value, deviation=0.0)


def turns(side: int, change: Multiplied) -> Run:
    return grown(*(made(10 * side + turn, change, rounds=1) for turn in range(5)))


def within(factor: float, deviation: float) -> tuple[Run, Run]:
    figures = [replace(one, deviation=deviation if one.suite == "memory" else 0.001) for one in usual()]
    return pair(changed(factor, **MEMORY), figures=figures)


FAILED = replaced(made(2), lambda one: one.case.id == "memory_stream[kernel=copy]", status="crashed", measurements=())
LOUD = with_fields("benchmark", "memory_stream", deviation=0.2)


def pairs() -> dict[str, tuple[Run, Run]]:
    return {
        "two runs of one machine": pair(),
        "too small a change": pair(changed(1.01, **MEMORY), figures=quiet(usual(), 0.0005)),
        **{f"{of_it} {factor}": pair(changed(factor, **of_it)) for of_it, factor in (
            ({"benchmark": "memory_stream"}, 0.95), ({"benchmark": "memory_stream"}, 1.05),
            ({"case_id": LAYER_3}, 1.5), ({"case_id": LAYER_3}, 0.6), ({"case_id": LAYER_3}, 1.2),
            ({"benchmark": "launch_queue"}, 1.1), ({"benchmark": "launch_queue"}, 0.9),
        )},
        "changes by size": pair(*(
            changed(by, case_id=f"memory_stream[kernel={name}]")
            for name, by in (("copy", 0.5), ("read", 0.9), ("write", 0.8))
        )),
        "noisy figures": pair(figures=LOUD),
        **{f"a count of 0 grows to {some}": (made(1, figures=with_counts(0.0)), made(2, figures=with_counts(some)))
           for some in (0.0, 1018.0, 1.0, 0.25)},
        "a time of 0 has no ratio": (made(1), made(2, figures=with_fields("benchmark", "launch_layers", value=0.0))),
        "unverified": (made(1), unverified(made(2, changed(0.5, **MEMORY)))),
        "four rounds": pair(changed(0.5, **MEMORY), rounds=4),
        "a command with a size": (made(1), of_two_links(size_bytes=(1024, 2048))),
        "a command without": (made(1), of_two_links()),
        "a round on another driver": pair(rounds=1, driver="580.2"), "on the same driver": pair(rounds=1),
        "rounds taken in turn are added up": (turns(0, changed(1.0)), turns(1, changed(0.9, **MEMORY))),
        "four rounds of another driver": (grown(made(1, rounds=4, driver="560.1"), made(2, rounds=4)), made(3)),
        "enough in the newest": (grown(made(1, changed(0.5, **MEMORY)), made(2)), made(3)),
        # Their own scatter includes the drift, so a host that is 12 % slower only in NEW is a change.
        "no drift is subtracted in turn": in_turn(changed(1.12, **HOST)), "nothing in turn": in_turn(changed(1.0)),
        "alone, in turn": in_turn(changed(1.2, case_id=LAYER_3), drift=1.0),
        "simulated and real": (made(1, simulated=True), made(2)),
        "simulated both": (made(1, simulated=True), made(2, simulated=True)),
        "another method": pair(versions={"link_copy": 2}),
        "another unit": (made(1), made(2, figures=with_fields("suite", "memory", unit="OP/s", bound=None))),
        "a case failed in NEW": (made(1), FAILED), "a case failed in BASE": (FAILED, made(1)),
        "copies of one run": (made(1), grown(made(1), made(2, rounds=1))),
        "figures of BASE alone": (made(1), made(2, figures=LESS)),
        "nothing in common": (made(1, figures=LESS), made(2, figures=ALONE)),
        "no figure": (msgspec.structs.replace(made(1), outcomes=()),) * 2,
        "another driver and host": (
            made(1, facts=BEFORE, gpu=msgspec.structs.replace(GPU, **OTHER_ECC)),
            made(2, facts=AFTER, gpu=msgspec.structs.replace(GPU, **OTHER_ECC | {"ecc": False}), driver="580.2"),
        ),
        "another board": pair(changed(0.9, **MEMORY), gpu=board(1)),
        "GPUs that changed places": (both(1, board(0), board(1)), both(3, board(1, index=0), board(0, index=1))),
        "other GPUs at other places": (both(1, board(0), board(1)), both(3, board(10), board(11))),
        "other GPUs at their places": (both(1, board(0), board(1)), both(3, board(10, index=0), board(11, index=1))),
        "another model, as near its ceiling": pair(changed(0.5, **MEMORY), gpu=OTHER),
        "farther": pair(changed(0.5, **MEMORY), changed(0.9, **MEMORY), gpu=OTHER), "nearer": pair(gpu=OTHER),
        "a warmer card": pair(clocks_hz=WARM),
        "a change at one clock": (made(1, clocks_hz=WARM), made(2, changed(0.92, **COMPUTE))),
        "the measured clock": pair(
            changed(0.9, metric="sm_clock"), figures=[*usual(), *CLOCKS], clocks_hz=(0.9 * HIGHEST_HZ,) * 5
        ),
        "without its clock": (made(1, gpu=BARE), made(2, gpu=BARE, clocks_hz=WARM)),
        **{f"no known limit, on the clock: {on_clock}": pair(
            clocks_hz=WARM, figures=with_fields("suite", "compute", bound=None, on_clock=on_clock)
        ) for on_clock in (True, False)},
        "no known limit, slower with and without the clock": pair(
            changed(0.8, **COMPUTE), figures=with_fields("suite", "compute", bound=None, on_clock=False)
        ),
        # Off-chip memory takes fewer cycles at a lower clock; a cache takes as many cycles and more nanoseconds.
        "cycles of DRAM": pair(
            changed(1.81e9 / HIGHEST_HZ, metric="cycles"), figures=latencies(900.0), clocks_hz=(1.81e9,)
        ),
        "cycles of a cache": pair(figures=NEAR, clocks_hz=WARM),
        "a slower cache": pair(changed(1.2, **MEMORY), figures=NEAR),
        "a drift of the whole host": pair(changed(1.06, **HOST)), "beyond any drift": pair(changed(1.5, **HOST)),
        "a row that moved beyond the host": pair(changed(1.06, **HOST), changed(1.5, case_id=LAYER_3)),
        **{f"a row moved by {own} while the host did by {host}": pair(
            changed(host, **HOST), changed(own / host, case_id=LAYER_3)
        ) for host, own in ((1.08, 1.0), (1.08, 1.03), (0.92, 1.017))},
        "a rate that the host times moves the other way": pair(
            changed(1.06, kind="time"), changed(1 / 1.06, kind="rate"), figures=[*TIMES, *RATES]
        ),
        "two suites of a much slower host": pair(changed(1.4, **HOST), figures=TWO_SUITES),
        **{f"{count} times of the host by {factor}": pair(part_of_the_host(count, factor))
           for count, factor in ((13, 1.1), (12, 1.4), (12, 1.2))},
        **{f"two host times by {factor}": pair(changed(factor, **HOST), figures=FEW_OF_THE_HOST)
           for factor in (1.06, 1.5)},
    }  # fmt: skip


def told(found: Comparison, base: Side = BASE) -> Iterator[str]:
    yield drawn(summary(found))
    kinds = Counter(
        f"{one.new.benchmark} {one.new.metric.name}: {one.verdict} {one.reason or ''} by {one.by}"
        + " as a share" * one.shares
        for one in found.changes
    )
    yield from (f"{count} of {kind}" for kind, count in kinds.items())
    for one in [one for one in found.changes if one.verdict not in ("same", "within 10 %") and one.ratio][:3]:
        own, judged = (f"{each.median:.3f} ±{each.half_width:.3f}" for each in (one.ratio, one.judged))
        yield f"{one.new.case_id} of {one.new.device}: {own}, judged {judged}, costs more: {one.costs_more}"
    for side, rows in (("BASE", found.only_base), ("NEW", found.only_new)):
        yield from (
            f"{count} of {name} in {side} alone" for name, count in Counter(row.benchmark for row in rows).items()
        )
    yield from (f"{one.name}: {one.base.value} and {one.new.value}" for one in found.differences)
    for one in found.suites:
        yield f"{one.suite}: {one.went} of {one.rows} went, {one.ratio.median:.3f}, changed: {one.changed}"
    yield from (f"{one.title}: {one.text}" for one in notices(found))
    yield from map(drawn, findings(found, base, NEW))


def test_what_is_said_of_two_runs() -> None:
    """One in twenty intervals excludes "no change" by chance: the verdict is then "within 10 %" and not "same"."""
    every = {name: told(compare(*runs)) for name, runs in pairs().items()}
    every["a bundled run never grows"] = told(compare(made(1, rounds=3), made(2)), Side("nvidia-h200", grows=False))
    # A change of 1 % that the rounds show is not the same, and neither is what may have changed by 5 %.
    every |= {
        f"{factor} ±{deviation}, the same within {limit}": told(compare(*within(factor, deviation), limit))
        for factor, deviation, limit in (
            (1.0, 0.001, 0.03), (0.99, 0.001, 0.03), (0.99, 0.001, 0.001), (1.0, 0.025, 0.03), (1.0, 0.025, 0.1),
        )
    }  # fmt: skip
    snapshots.same("comparisons", snapshots.in_turn(every))


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

"""How much fresh processes differ: widened intervals of single rounds of the bundled runs contain the other rounds."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import worker_run
from make_run import make_run
from msgspec.structs import replace

from microbench.analysis import quantiles, stats
from microbench.archive import export, processes, schema, store
from microbench.core.model import HOST, Deviation, Run
from microbench.report import tables
from microbench.report.document import GRADES
from microbench.report.markdown import to_markdown
from microbench.report.sheets import view

Rows = list[tuple[Run, stats.Row]]


@pytest.fixture(scope="module")
def recorded() -> list[Run]:
    return [store.read(path) for path in store.bundled().values()]


def of_rounds(run: Run, keep: Callable[[int], bool]) -> Run:
    """The run with some of its rounds only."""
    return replace(run, outcomes=tuple(outcome for outcome in run.outcomes if keep(outcome.round)))


def held(recorded: list[Run], known: Callable[[int], processes.Deviations]) -> Iterator[tuple[str, bool]]:
    """For each round of each row of five: its metric, and whether its interval holds the median of the other rounds.

    ``known`` are the deviations for a round.
    """
    for run in recorded:
        whole = {(row.session, row.device, row.case_id, row.metric.name): row for row in stats.rows(run)}
        for number in range(5):
            alone = replace(of_rounds(run, lambda each, number=number: each == number), deviations=known(number))
            for row in stats.rows(alone):
                others = whole[row.session, row.device, row.case_id, row.metric.name].summaries
                if len(others) != 5:
                    continue
                target = median(other.interval.median for place, other in enumerate(others) if place != number)
                yield f"{row.benchmark}.{row.metric.name}", row.interval.low <= target <= row.interval.high


def test_the_shipped_deviations_are_those_of_the_bundled_runs(recorded: list[Run]) -> None:
    assert processes.SHIPPED.read_bytes() == processes.encoded(processes.measured(recorded)), (
        "run scripts/process_deviations"
    )


@pytest.mark.slow
def test_a_round_alone_does_not_hold_the_other_rounds_and_widened_it_does(recorded: list[Run]) -> None:
    """The deviations come from the other four rounds, so the round itself and its process are left out."""
    alone = [inside for _, inside in held(recorded, lambda number: {})]
    assert len(alone) > 4000
    assert np.mean(alone) < 0.6, "one process's interval says nothing about another one"
    left_out = [
        processes.measured(of_rounds(run, lambda each, number=number: each != number) for run in recorded)
        for number in range(5)
    ]
    widened = list(held(recorded, lambda number: left_out[number]))
    assert 0.90 <= np.mean([inside for _, inside in widened]) <= 0.97
    by_metric = defaultdict(list)
    for name, inside in widened:
        by_metric[name].append(inside)
    shares = [float(np.mean(several)) for several in by_metric.values()]
    assert min(shares) >= 0.6
    assert np.mean([share >= 0.85 for share in shares]) >= 0.85


def single(gpu: str = "", **deviations: Deviation) -> tuple[Run, stats.Row]:
    """A run of one round with these deviations of launch_cost, and its row of submit."""
    run = make_run()
    name = gpu or run.sessions[0].environment.gpus[0].name
    run = replace(run, deviations={name: {f"launch_cost.{metric}": each for metric, each in deviations.items()}})
    return run, next(row for row in stats.rows(run) if row.metric.name == "submit")


def test_a_known_deviation_widens_a_single_round_in_quadrature() -> None:
    _, plain = single()
    assert plain.within_process
    _, wide = single(submit=Deviation(2, 5, 0.1))
    assert not wide.within_process
    assert wide.value == plain.value
    assert wide.trust == plain.trust, "the grade is about the samples of this process"
    apart = 2.776 * 0.1 * plain.value  # Student's t for 4 degrees of freedom
    below = plain.value - plain.interval.low
    assert plain.value - wide.interval.low == pytest.approx(float(np.hypot(below, apart)), rel=1e-3)
    above = plain.interval.high - plain.value
    assert wide.interval.high - plain.value == pytest.approx(float(np.hypot(above, apart)), rel=1e-3)


def test_a_widened_interval_stays_above_zero_if_the_samples_do() -> None:
    wild = Deviation(1, 3, 0.8)
    assert stats.rounds_interval([stats.Interval(2.0, 1.9, 2.1)], wild).low == 0
    below = stats.rounds_interval([stats.Interval(2.0, -0.5, 4.5)], wild)
    assert below.low < -4, "a difference of two times may be negative"


def test_a_deviation_of_another_version_metric_or_gpu_is_not_known() -> None:
    known = Deviation(2, 5, 0.1)
    for _, row in (single(submit=replace(known, version=1)), single(start=known), single("Another GPU", submit=known)):
        assert row.within_process


def test_several_rounds_need_no_deviation() -> None:
    run = replace(make_run(rounds=3), deviations=single(submit=Deviation(2, 5, 0.5))[0].deviations)
    row = next(row for row in stats.rows(run) if row.metric.name == "submit")
    assert row.deviation is None
    assert not row.within_process
    assert row.interval.half_width < 0.5


def as_real(run: Run, gpu: str, rounds: int) -> Run:
    """The run as if a GPU of that name had been measured in that many rounds."""
    session = run.sessions[0]
    gpus = tuple(replace(each, name=gpu, simulated=False) for each in session.environment.gpus)
    settings = replace(session.settings, rounds=rounds)
    return replace(
        run, sessions=(replace(session, environment=replace(session.environment, gpus=gpus), settings=settings,
                               simulated=False),)
    )  # fmt: skip


def test_the_users_own_rounds_replace_the_shipped_deviations_of_their_gpu(tmp_path: Path) -> None:
    key = "launch_layers.submit"
    one, other = (as_real(make_run(), gpu, 1) for gpu in ("NVIDIA A", "NVIDIA B"))
    shipped = processes.attached(one, tmp_path).deviations
    assert shipped["NVIDIA A"][key].rounds == 5, "a model without rounds of its own has those of the reference"
    assert "host_timer.call" in shipped[HOST]
    processes.learn(as_real(make_run(rounds=2), "NVIDIA A", 2), tmp_path)
    assert not list(tmp_path.iterdir()), "two rounds are too few"
    processes.learn(as_real(make_run(rounds=6), "NVIDIA A", 6), tmp_path)
    assert processes.attached(one, tmp_path).deviations["NVIDIA A"][key].rounds == 6
    assert processes.attached(other, tmp_path).deviations["NVIDIA B"] == shipped["NVIDIA A"]
    (tmp_path / processes.LEARNED).write_text('{"NVIDIA A": {"launch_layers.submit": {"version": 1}}}')
    assert processes.attached(one, tmp_path).deviations == shipped, "a damaged file counts as none"


@pytest.mark.slow
def test_a_run_of_three_rounds_teaches_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    first = worker_run.run("calm")
    assert all(row.within_process for row in stats.rows(first.run)), "the package knows nothing about this benchmark"
    assert not (tmp_path / processes.LEARNED).exists()
    worker_run.run("calm", rounds=3)
    again = store.read(first.path)
    found = stats.rows(again)
    assert found
    assert not any(row.within_process for row in found), "older runs are mended too"
    assert stats.rows(worker_run.run("calm").run)[0].deviation == found[0].deviation
    assert found[0].deviation.rounds == 3


def test_figures_say_whether_they_hold_within_one_process_only() -> None:
    run, plain = single()
    _, wide = single(submit=Deviation(2, 5, 0.1))
    assert tables.spread_of(plain).endswith(" %*")
    assert tables.figure(plain).note.endswith("*")
    assert tables.spread_of(wide) == "±28 %"
    (line,) = [each for each in to_markdown(view.build(run)).splitlines() if each.startswith("± is half")]
    assert "within this process only" in line
    written = next(csv.DictReader(io.StringIO(export.to_csv(run))))
    assert written["interval"] == "within this process"
    several = list(csv.DictReader(io.StringIO(export.to_csv(make_run(rounds=2)))))
    assert {(row["round"] == "all", row["interval"]) for row in several if row["metric"]} == {
        (True, "over processes"), (False, "within this process"),
    }  # fmt: skip
    known, _ = single(submit=Deviation(2, 5, 0.1))
    (cells,) = [
        row for row in csv.DictReader(io.StringIO(export.to_csv(known)))
        if (row["benchmark"], row["metric"]) == ("launch_cost", "submit")
    ]  # fmt: skip
    assert cells["interval"] == "over processes"
    assert (float(cells["ci_low"]), float(cells["ci_high"])) == (wide.interval.low, wide.interval.high)


def test_the_words_of_the_grades_name_the_widths_that_they_allow() -> None:
    reference = (Path(__file__).parent.parent / "docs" / "reference.md").read_text(encoding="utf-8")
    by_grade = {
        grade: line
        for line in reference.splitlines()
        for grade in GRADES
        if line.startswith("| ") and f" {grade} |" in line
    }
    widths = {"stable": ("±10 %",), "steady": ("±3 %",), "noisy": ("±3 %", "±10 %", "5 %"), "throttled": ("3 %",)}
    for grade, named in widths.items():
        for width in named:
            assert width in GRADES[grade], grade
            assert width in by_grade[grade], grade
    assert (stats.STABLE_HALF_WIDTH, stats.STEADY_HALF_WIDTH, quantiles.LEAST_DISTANCE) == (0.10, 0.03, 0.05)


def test_a_simulated_run_has_no_deviations_and_teaches_none(tmp_path: Path) -> None:
    run = make_run(rounds=3)
    simulated = replace(run, sessions=tuple(replace(session, simulated=True) for session in run.sessions))
    assert processes.attached(simulated, tmp_path).deviations == {}
    processes.learn(simulated, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_file_of_deviations_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    processes.learn(as_real(make_run(rounds=3), "NVIDIA A", 3), tmp_path)
    assert store.listing() == []
    assert store.bundled().keys() == {"nvidia-h200", "nvidia-h200-x2"}


def test_deviations_are_not_written_into_a_run() -> None:
    run, _ = single(submit=Deviation(2, 5, 0.1))
    assert b"deviations" not in schema.encode(run)
    claimed = schema.encode(run).replace(b'"outcomes":', b'"deviations":{"host":{}},"outcomes":', 1)
    assert schema.decode(claimed).deviations == {}
    assert "deviations" not in schema.run_schema()["$defs"]["Run"]["properties"]

"""The command compare: what it prints, which runs it means, and which exit code it ends with."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import command_line
import msgspec
import pytest
from compare_runs import GPU, Figure, changed, made, usual
from make_run import make_run
from recorded_runs import save, write
from snapshots import same
from typer.testing import Result

from microbench.archive import schema, store
from microbench.comparison.compare import Comparison, compare
from microbench.comparison.words import Side
from microbench.core.errors import ExitCode
from microbench.core.model import Fact, Outcome, Run
from microbench.core.units import ratio_range
from microbench.report.document import Table
from microbench.report.sheets import comparison as drawing

SLOWER = changed(0.6, case_id="memory_stream[kernel=copy]")
FASTER = changed(1.6, case_id="memory_stream[kernel=read]")
ALONE = changed(0.9, case_id="memory_stream[kernel=copy]")
BETTER_ALONE = changed(1.1, case_id="memory_stream[kernel=copy]")
MORE = changed(1.2, case_id="launch_queue[streams=2]")


@pytest.fixture(autouse=True)
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str, **environment: str) -> Result:
    return command_line.call("compare", *arguments, **environment)


def both(base: Run, new: Run) -> tuple[str, str]:
    return str(write(Path("base.json"), base)), str(write(Path("new.json"), new))


def eventful() -> tuple[Run, Run]:
    """Two runs between which about everything happened that can."""
    loud = Figure("memory_random", "memory", "accesses", 1e11, "rate", "OP/s", {"size_bytes": 1 << 30}, deviation=0.2)
    sustained = Figure("gemm_data", "compute", "power", 600.0, "count", "W", {"data": "zeros"}, clock="counter")
    read = {"direction": "read"}
    zero_copy = Figure("link_zero_copy", "link", "bandwidth", 4e10, "rate", "B/s", read, bound="pcie_h2d")
    before = [*usual(), loud, sustained, zero_copy]
    after = [*usual(), loud, sustained]
    base = made(1, figures=before, facts=(Fact("cpu_model", "SIMULATED CPU"),))
    new = made(
        2, SLOWER, FASTER, MORE, changed(1.06, clock="host"), changed(0.8, benchmark="tensor_ceiling"),
        changed(1.5, case_id="launch_layers[layer=layer_7]"),
        figures=after, clocks_hz=(1.85e9, 1.84e9, 1.86e9, 1.85e9, 1.83e9), versions={"gemm_data": 2}, driver="580.2",
        facts=(Fact("cpu_model", "SIMULATED CPU, another"),),
    )  # fmt: skip
    return base, new


@pytest.mark.parametrize(("change", "fail_on", "code"), [
    (changed(1.0), "any", ExitCode.MEASURED), (SLOWER, None, ExitCode.MEASURED), (SLOWER, "slower", ExitCode.CHANGED),
    (SLOWER, "faster", ExitCode.MEASURED), (FASTER, "slower", ExitCode.MEASURED), (FASTER, "faster", ExitCode.CHANGED),
    (ALONE, "slower", ExitCode.MEASURED), (ALONE, "suspected", ExitCode.CHANGED),
    (BETTER_ALONE, "suspected", ExitCode.MEASURED), (SLOWER, "suspected", ExitCode.CHANGED),
    (MORE, "slower", ExitCode.MEASURED), (MORE, "any", ExitCode.CHANGED),
])  # fmt: skip
def test_the_exit_code_says_what_changed(change: object, fail_on: str | None, code: ExitCode) -> None:
    runs = both(made(1), made(2, change))
    result = call(*runs, *(["--fail-on", fail_on] if fail_on else []))
    assert result.exit_code == code


@pytest.mark.parametrize(("fail_on", "code"), [("slower", ExitCode.CHANGED), ("any", ExitCode.CHANGED), ("faster", 0)])
def test_a_case_that_fails_in_new_counts_as_slower(fail_on: str, code: int) -> None:
    base, new = made(1), made(2)
    (broken, *_) = {one.case.id for one in new.outcomes}
    outcomes = tuple(
        msgspec.structs.replace(one, status="failed", reason="SIMULATED: broken", measurements=())
        if one.case.id == broken
        else one
        for one in new.outcomes
    )
    runs = both(base, msgspec.structs.replace(new, outcomes=outcomes))
    assert call(*runs, "--fail-on", fail_on).exit_code == code


def test_comparing_nothing_is_a_usage_error_with_fail_on() -> None:
    runs = both(made(1), msgspec.structs.replace(made(2), outcomes=()))
    assert call(*runs).exit_code == ExitCode.UNREADABLE_RUN
    assert call(*runs, "--fail-on", "slower").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("limit", ["slower", "suspected", "faster", "any"])
def test_comparing_only_incomparable_figures_is_a_usage_error_with_fail_on(limit: str) -> None:
    runs = both(made(1, simulated=True), made(2, SLOWER))
    assert call(*runs).exit_code == ExitCode.MEASURED
    result = call(*runs, "--fail-on", limit)
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.splitlines()[0] == "error: no figure of the two runs can be compared"


def test_farther_from_the_ceiling_counts_as_slower() -> None:
    other = msgspec.structs.replace(GPU, name="SIMULATED OTHER", uuid="GPU-other")
    runs = both(made(1), made(2, changed(0.8, suite="memory"), gpu=other))
    result = call(*runs, "--fail-on", "slower")
    assert result.exit_code == ExitCode.CHANGED
    assert "4 farther" in result.stdout
    assert result.stdout.index("4 farther") < result.stdout.index("ANOTHER GPU MODEL")


def test_unclear_is_no_failure_and_says_what_to_run() -> None:
    runs = both(made(1), made(2, SLOWER, rounds=2))
    result = call(*runs, "--fail-on", "any", COLUMNS="200")
    assert result.exit_code == ExitCode.MEASURED
    assert "0 same, 52 unclear" in result.stdout
    assert "--rounds 5 --into new.json`" in " ".join(result.stdout.split())


def test_one_name_is_compared_with_the_last_run(folder: Path) -> None:
    write(Path("base.json"), made(1))
    last = made(2, SLOWER)
    save(folder / "data", last)
    result = call("base.json")
    assert "SLOWER: 1 figure slower, 50 same" in result.stdout
    assert f"run {last.run_id}" in result.stdout


def test_simulated_against_real_stands_before_any_figure() -> None:
    other = msgspec.structs.replace(GPU, name="SIMULATED OTHER", uuid="GPU-other")
    result = call(*both(made(1, simulated=True), made(2, SLOWER, gpu=other, driver="580.2")))
    assert result.stdout.index("SIMULATED AGAINST REAL") < result.stdout.index("BASE and NEW")
    assert result.stdout.splitlines()[1].startswith("│ INCOMPARABLE: 0 figures slower")
    assert "ANOTHER" not in result.stdout
    assert "0 same, 52 incomparable" in result.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_looks_as_it_did(width: int) -> None:
    text = call(*both(*eventful()), COLUMNS=str(width)).stdout
    assert all(len(line) <= width for line in text.splitlines())
    same(f"compare-{width}", text)


def test_a_calm_comparison_is_short() -> None:
    text = call(*both(made(1), made(2)), COLUMNS="80").stdout
    assert len(text.splitlines()) < 32
    same("compare-calm-80", text)


def test_all_of_it_can_be_listed() -> None:
    runs = both(*eventful())
    few, everything = call(*runs, COLUMNS="120").stdout, call(*runs, "--all", COLUMNS="120").stdout
    assert "launch_layers submit: layer_5 " not in few
    assert "launch_layers submit: layer_5 " in everything
    assert "--all" in few
    assert "--all" not in everything


def test_names_from_a_file_are_text() -> None:
    hostile = "\x1b[31m[red]</script>‮"
    gpu = msgspec.structs.replace(GPU, name=hostile)
    figures = [replace(one, params={**one.params, "note": "[bold]x"}) for one in usual()]
    new = made(2, changed(0.5, suite="memory"), gpu=gpu, figures=figures, driver=hostile)
    text = call(*both(made(1, figures=figures, gpu=GPU), new)).stdout
    assert "\x1b" not in text
    assert "‮" not in text
    assert "[red]</script>" in text
    assert "[bold]x" in call(str(write(Path("a.json"), made(3, figures=figures))), "new.json", "--all").stdout


def many(benchmarks: int, figures: int) -> list[Figure]:
    return [
        Figure(f"memory_{name}", "memory", "bandwidth", 4e12, "rate", "B/s", {"size_bytes": 1024 * index}, bound="dram")
        for name in range(benchmarks)
        for index in range(1, figures + 1)
    ]


@pytest.mark.parametrize(("benchmarks", "figures", "rows", "single"), [(1, 60, 1, 0), (20, 3, 0, 40)])
def test_many_changes_are_listed_until_it_is_enough(benchmarks: int, figures: int, rows: int, single: int) -> None:
    """Many changed figures of a benchmark share one row; single ones are listed up to a limit."""
    of_memory = many(benchmarks, figures)
    found = compare(made(1, figures=of_memory), made(2, changed(0.8, suite="memory"), figures=of_memory))
    few, everything = tables_of(found, everything=False), tables_of(found, everything=True)
    assert {name: len(table.rows) for name, table in few.items() if table.rows} == {
        name: count for name, count in (("Benchmarks", rows), ("Changes", single)) if count
    }
    assert len(everything["Changes"].rows) == 60


def tables_of(found: Comparison, *, everything: bool = False) -> dict[str, Table]:
    sheet = drawing.sheet(found, Side("base"), Side("new"), everything=everything)
    tables = [one for one in sheet.sections[0].pictures if isinstance(one, Table)]
    return {one.title.split()[0].rstrip(","): one for one in tables if one.title.startswith(("Benchmarks", "Changes"))}


def test_the_legend_says_which_interval_stands_beside_a_ratio() -> None:
    """Beside an adjusted ratio it is that of the rounds alone, elsewhere the one that decided."""
    alone = "the interval of the measured one is that of its rounds alone"
    shifted = compare(made(1), made(2, changed(1.06, clock="host"), changed(1.5, case_id=LAYER_3)))
    (change,) = shifted.of("slower")
    table = tables_of(shifted)["Changes"]
    assert table.rows[0][4].text == ratio_range(change.ratio.low, change.ratio.high)
    assert any(alone in note for note in table.notes)
    scattered = {f"layer_{index}": 1 + 0.01 * (index % 3 - 1) for index in range(24)}
    plain = compare(
        made(1), made(2, lambda one: scattered.get(one.params.get("layer"), 1.0), changed(1.5, case_id=LAYER_3))
    )
    (change,) = plain.of("slower")
    table = tables_of(plain)["Changes"]
    assert change.judged.half_width > 2 * change.ratio.half_width
    assert table.rows[0][4].text == ratio_range(change.judged.low, change.judged.high)
    assert not any(alone in note for note in table.notes)


LAYER_3 = "launch_layers[layer=layer_3]"
LAUNCH = "launch"
HOST = ("host", "launch", "link", "graph", "memory")
# Recorded on a quiet host (2.36 us a launch), so that its rounds can show a change of 10 %.
QUIET = str(Path(__file__).parent / "data" / "quiet-h200.json.xz")


def quiet_times(factor: float, *names: str, clock: str = "host") -> str:
    """The name of a file of the quiet run in which what this clock timed in these parts is ``factor`` times as long."""
    Path("changed.json").write_bytes(slowed_quiet(factor, *names, clock=clock))
    return "changed.json"


@cache
def slowed_quiet(factor: float, *names: str, clock: str) -> bytes:
    run = store.read(store.find(QUIET))
    suite = {info.name: info.suite for info in run.benchmarks}

    def slowed(outcome: Outcome) -> Outcome:
        if not {outcome.case.benchmark, suite[outcome.case.benchmark]} & set(names):
            return outcome
        measured = (
            msgspec.structs.replace(
                one, samples=msgspec.Raw(msgspec.json.encode([value * factor for value in one.values]))
            )
            if one.clock == clock
            else one
            for one in outcome.measurements
        )
        return msgspec.structs.replace(outcome, measurements=tuple(measured))

    outcomes = tuple(map(slowed, run.outcomes))
    return schema.encode(msgspec.structs.replace(run, run_id="20990101T000000Z-0000000", outcomes=outcomes))


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "fail_on", "verdict"), [
    (1.1, "slower", "SLOWER: launch +10.0 % (9.4 to 10.6 %), controls unchanged within 1.4 %."),
    (0.9, "faster", "FASTER: launch −10.0 % (−10.5 to −9.5 %), controls unchanged within 1.4 %."),
])  # fmt: skip
@pytest.mark.parametrize("width", [80, 120])
def test_a_driver_that_costs_every_launch_as_much_is_the_first_thing_said(
    factor: float, fail_on: str, verdict: str, width: int
) -> None:
    result = call(QUIET, quiet_times(factor, LAUNCH), "--fail-on", fail_on, COLUMNS=str(width))
    assert result.exit_code == ExitCode.CHANGED
    assert verdict in words_of(result.stdout.splitlines()[:10])
    findings = result.stdout.partition("What this means")[2].splitlines()
    assert words_of(findings).count("usually have one cause") == 1
    assert re.search(r"Of the others, \d are too scattered to tell[.]", words_of(findings))
    assert verdict.partition(": ")[2].rstrip(".") in findings[1]
    if width == 80:  # no exit code depends on the width
        other = "faster" if fail_on == "slower" else "slower"
        assert call(QUIET, "changed.json", "--fail-on", other).exit_code == ExitCode.MEASURED


def test_a_benchmark_that_slows_down_in_a_suite_that_does_not_is_slower() -> None:
    """A third of the suite's host times, so that their suite does not move."""
    result = call(QUIET, quiet_times(1.1, "launch_layers"), "--fail-on", "slower", COLUMNS="120")
    assert result.exit_code == ExitCode.CHANGED
    assert "of 40 times of launch_layers are slower: 1.100× in the median" in result.stdout
    assert "SLOWER: launch_layers 31 of 40, 1.100× in time." in result.stdout.splitlines()[1]
    assert "Of the others, 9 are too scattered to tell." in result.stdout


def test_a_benchmark_that_slows_down_is_the_first_thing_said_and_one_row() -> None:
    lines = call(QUIET, quiet_times(1.3, "memory_stream", clock="device"), COLUMNS="120").stdout.splitlines()
    assert "SLOWER: memory_stream 42 of 42, 0.769× in rate. 42 figures slower" in lines[1]
    assert sum(line.startswith(" slower") for line in lines) == 1
    assert len(lines) < 46


def test_a_gpu_that_moved_as_far_as_runs_of_one_gpu_may_is_a_finding_and_no_change() -> None:
    result = call(QUIET, quiet_times(1.025, "memory", clock="device"), "--fail-on", "slower", COLUMNS="120")
    assert result.exit_code == ExitCode.MEASURED
    shown = words_of(result.stdout.splitlines())
    moved = "memory +2.5 % (0.5 to 4.5 %) in GPU time"
    assert f"GPU times moved together, no more than runs of one GPU may differ: {moved}" in shown, "compare.gpu"
    verdict = f"NO CHANGE SHOWN: {moved}, no more than runs of one GPU may differ. 0 figures slower"
    assert verdict in words_of(result.stdout.splitlines()[:4])
    assert shown.count("`microbench run memory --rounds 1 --into my-base.json`") == 1
    assert "(the first time with `--out my-base.json` instead of `--into`)" in shown
    assert "The alternating sessions of memory above settle this too." in shown


def test_a_slower_host_is_no_slower_driver() -> None:
    result = call(QUIET, quiet_times(1.1, *HOST), "--fail-on", "any", COLUMNS="80")
    assert result.exit_code == ExitCode.MEASURED
    verdict = "HOST MOVED: The host itself was slower (controls +8.5 to +11.5 %), so its times show no verdict."
    assert verdict in words_of(result.stdout.splitlines()[:10])
    assert "The host itself was slower (controls +" in words_of(result.stdout.splitlines())


def words_of(lines: Sequence[str]) -> str:
    """Lines without frames, as one line of text."""
    return " ".join(" ".join(lines).replace("│", " ").split())


def test_same_within_sets_what_the_same_means() -> None:
    runs = both(made(1), made(2))
    assert "51 same, 1 within 10 %" in call(*runs, "--same-within", "3%").stdout
    assert "0 same, 52 within 10 %" in call(*runs, "--same-within", "0.01%").stdout


RUNS = ("nvidia-h200", QUIET, "nvidia-h200-x2", "made.json")


@pytest.mark.parametrize(("base", "new"), list(itertools.permutations(RUNS, 2)))
def test_whatever_two_runs_are_they_can_be_compared(base: str, new: str) -> None:
    write(Path("made.json"), make_run())
    result = call(base, new, "--all", "--fail-on", "slower", COLUMNS="80")
    assert result.exit_code in (ExitCode.MEASURED, ExitCode.CHANGED, ExitCode.USAGE)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_a_comparison_can_be_drawn_into_a_file(tmp_path: Path) -> None:
    runs = both(*eventful())
    assert call(*runs, "--svg", str(tmp_path / "compare.svg")).exit_code == ExitCode.MEASURED
    assert "<svg" in (tmp_path / "compare.svg").read_text()
    assert call(*runs, "--svg", str(tmp_path / "compare.svg")).exit_code == ExitCode.USAGE


def test_a_figure_that_is_not_confirmed_is_not_said_to_have_moved_alone() -> None:
    """Round trips of launch_layers are confirmed; six of its submits move as far, but are too few of their metric."""
    text = words_of(call(QUIET, quiet_times(1.06, "launch_layers"), COLUMNS="120").stdout.splitlines())
    assert "17 figures slower" in text
    assert "(6 moved, not confirmed)" in text
    assert "Moved, but not confirmed: alternate sessions to confirm" in text
    assert "moved alone" not in text.lower()


def test_runs_without_a_common_figure_end_with_a_code_of_their_own() -> None:
    done = call("nvidia-h200", "nvidia-h200-x2")
    assert (done.exit_code, "NOTHING TO COMPARE" in done.output) == (ExitCode.UNREADABLE_RUN, True)

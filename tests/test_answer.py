"""The answer on one screen: its lines, their words for missing figures, and the findings that come first."""

import re
from pathlib import Path

import msgspec
import pytest
from changed_run import without
from make_run import make_run, skipped
from msgspec.structs import replace
from read_findings import evidence

from microbench.analysis.evidence import Finding
from microbench.archive import store
from microbench.core.model import Run
from microbench.core.units import quantity
from microbench.explain import answer
from microbench.explain.answer import answers, most_important
from microbench.explain.rules import findings
from microbench.report.sheets.view import screen, with_one_noise

WHOLE = make_run()


def line(run: Run, name: str) -> str:
    (found,) = (each for each in answers(evidence(run)) if each.name == name)
    return " · ".join(part.text for part in found.parts)


@pytest.mark.parametrize(("run", "name", "words"), [
    ("busy", "launch", "3.21 µs a launch · 8.66 µs launch and wait · launch-bound below 2.33 µs kernels"),
    ("busy", "graph", "100 kernels of 2.63 µs: 1.29× · from cuda.core 1.41×"),
    ("busy", "graph", "capture takes 210 µs; pays off after 3 replays"),
    ("quiet", "link", "healthy · 55.3 GB/s to the GPU (94.7 %) · 55.2 GB/s from it (95.9 %)"),
    ("quiet", "link", "both ways 103 GB/s · pageable 18.6 GB/s · latency 1.09 µs"),
    ("quiet", "memory", "read 4.62 TB/s (95.9 %) · triad 4.42 TB/s (91.7 %) · copy 4.27 TB/s (88.7 %)"),
    ("quiet", "memory", "CuPy loses up to 63.7 % (write)"),
    ("compute", "compute", "bf16 689 TFLOP/s (69.7 %, power limit 700 W) · fp8 1278 TFLOP/s"),
])  # fmt: skip
def test_a_line_has_the_figures_of_a_recorded_run(run: str, name: str, words: str) -> None:
    assert words in line(store.read(Path(__file__).parent / "data" / f"{run}-h200.json.xz"), name)


def test_the_cheapest_layer_has_one_figure_on_the_screen_and_in_the_finding() -> None:
    """Once the screen showed calls with four arguments, the finding calls with none, so they named different layers."""
    run = store.read(store.find("nvidia-h200"))
    (title,) = (each.title for each in findings(run) if each.rule == "launch.layers")
    cheapest, figure = re.fullmatch(r"4 arguments: (\S+) ([\d.]+ µs) · .*", line(run, "from Python")).groups()
    assert title == f"From Python, {cheapest} launches cheapest: {figure} a call with 4 arguments"


def test_the_link_has_the_same_figures_on_the_screen_and_in_the_findings() -> None:
    """Once the screen gave the fastest pageable rate of any size, and the finding that of the largest size."""
    run = store.read(store.find("nvidia-h200"))
    figures, titles = line(run, "link"), {each.rule: each.title for each in findings(run)}
    both = re.search(r"both ways ([\d.]+ GB/s)", figures)
    assert f"carry {both[1]}," in titles["link.both"]
    compared = evidence(run).row("link_copy", "bandwidth_host", direction="h2d", memory="pageable", size_bytes=64 << 20)
    assert f"pageable {quantity(compared.value, 'B/s')}" in figures


def test_a_line_without_its_benchmark_is_left_out() -> None:
    known = {each.name for each in answers(evidence(WHOLE))}
    assert {"launch", "from Python"} <= known
    assert "launch" not in {each.name for each in answers(evidence(without(WHOLE, "launch_cost")))}
    assert "from Python" not in {each.name for each in answers(evidence(without(WHOLE, "launch_layers")))}


def test_python_layers_without_a_figure_are_named_by_their_reason() -> None:
    run = make_run(extra=[skipped("warp"), skipped("triton", "time budget")])
    words = line(without(run, "launch_layers", layer="triton"), "from Python")
    assert "not installed: Warp" in words
    assert "not measured: Triton" not in words, "it was left out of the run altogether"
    late = msgspec.structs.replace(run, outcomes=tuple(
        one for one in run.outcomes if one.case.params.get("layer") != "triton" or one.status == "skipped"
    ))  # fmt: skip
    assert "not measured: Triton" in line(late, "from Python")
    (title,) = (each.title for each in findings(late) if each.rule == "launch.layers")
    assert title.startswith("Of "), "a finding over layers says how many were measured"


def test_the_host_has_a_line_of_its_own_without_a_gpu() -> None:
    found = answer.host(evidence(make_run(gpu=False)))
    assert {"a clock reading", "a Python call"} <= {
        part.text.rpartition(" ")[0].rpartition(" ")[0] for part in found.parts
    }
    shown = screen(make_run(gpu=False))
    assert [block.name for block in shown.blocks] == ["no GPU"]
    assert "microbench show host · microbench show nvidia-h200" in shown.footer
    nothing = screen(replace(make_run(gpu=False), outcomes=()))
    assert "microbench doctor · microbench show nvidia-h200" in nothing.footer, "show host has nothing to show"


def of(severity: str, rule: str) -> Finding:
    return Finding(rule, severity, rule, "", "")  # type: ignore[arg-type]


def test_problems_come_first_then_advice_in_the_order_that_helps_most() -> None:
    given = [
        of("note", "link.rounds"), of("advice", "launch.wait"), of("advice", "graph.pdl"), of("warning", "launch.tail"),
        of("good", "link.verdict"), of("advice", "launch.starving"), of("problem", "memory.verdict"),
    ]  # fmt: skip
    assert [each.rule for each in most_important(given)] == ["memory.verdict", "launch.tail", "launch.starving"]
    assert [each.rule for each in most_important(given, 9)][3:] == ["launch.wait", "graph.pdl"]


def test_noise_of_several_suites_is_one_line_behind_other_warnings() -> None:
    noisy = [
        msgspec.structs.replace(of("warning", f"{suite}.noise"), rests_on=tuple(map(str, range(count))))
        for suite, count in (("launch", 12), ("graph", 30))
    ]
    other = of("warning", "launch.tail")
    *first, joined = with_one_noise([noisy[0], other, noisy[1]])
    assert first == [other]
    assert joined.title == "Figures are noisy or throttled: 12 of launch and 30 of graph"
    assert with_one_noise([noisy[0], other]) == [noisy[0], other]


def test_a_line_has_the_grade_of_most_figures_and_others_have_their_own() -> None:
    block = screen(store.read(Path(__file__).parent / "data" / "busy-h200.json.xz")).blocks[0]
    python = next(each for each in block.lines if each.name == "from Python")
    assert python.trust == "noisy"
    launch = next(each for each in block.lines if each.name == "launch")
    assert launch.trust == "stable"
    assert [cell.trust for cell in launch.parts if cell.trust] == ["noisy"]


def test_what_the_time_left_out_is_said_with_the_command_that_measures_it() -> None:
    late = [skipped(layer, "time budget") for layer in ("one", "two", "three")]
    shown = screen(make_run(extra=late))
    assert "3 cases of launch_layers" in shown.left_out
    assert f"microbench run --resume {shown.run.split()[1]}" in shown.left_out
    assert "microbench run --resume here.json" in screen(make_run(extra=late), name="here.json").left_out


def test_a_case_that_another_round_measured_is_not_left_out() -> None:
    assert screen(make_run(extra=[skipped("loop", "time budget")])).left_out == ""
    again = make_run(rounds=2, extra=[skipped("loop", "time budget"), skipped("one", "time budget")])
    assert "1 case of launch_layers" in screen(again).left_out
    assert screen(again).run.endswith(" cases, 2 rounds")


def test_a_reference_is_not_resumed() -> None:
    left_out = screen(make_run(extra=[skipped("one", "time budget")]), reference=True).left_out
    assert left_out == "Not measured for lack of time: 1 case of launch_layers."


def test_benchmarks_that_were_named_have_their_tables_on_the_screen() -> None:
    assert screen(WHOLE).tables == ()
    session = WHOLE.sessions[-1]
    settings = msgspec.structs.replace(session.settings, select=("launch_kind", "launch"))
    named = msgspec.structs.replace(WHOLE, sessions=(msgspec.structs.replace(session, settings=settings),))
    assert [table.title.partition(":")[0] for table in screen(named).tables] == ["launch_kind"]

"""A predicted step in words, tables and bars, and what becomes of it when something is changed."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_fit import CALL_S, GAP_S, GRAPH_GAP_S, TORCH_S, VALUES, make_fit
from make_graph_run import make_graph_run
from rich.cells import cell_len

from microbench.analysis.limits import pcie_rate
from microbench.core.errors import UsageError
from microbench.core.model import GpuInfo, LinkInfo
from microbench.core.units import as_time, rate_of
from microbench.predict import words
from microbench.predict.constants import Fit
from microbench.predict.forecast import Forecast, forecast
from microbench.predict.step_file import Options, described, examples, read
from microbench.predict.whatif import Change, Changes, changed, in_words, pairs
from microbench.predict.workload import Copies, HostWork, Kernels, Wait, Workload
from microbench.report.curves import LEAST
from microbench.report.document import Portion, Report, Stack, Stacks
from microbench.report.sheets import prediction
from microbench.report.sheets.prediction import Side
from microbench.report.terminal import charts, terminal

RUN = make_graph_run()
GPU = GpuInfo("Made", "GPU-made", link=LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256))


def step(count: int = 100, duration: str = "1us", layer: str = "loop", **more: int | str) -> Workload:
    return described(None, Options(kernels=count, duration=duration, layer=layer, **more))  # type: ignore[arg-type]


def predicted(workload: Workload, fit: Fit | None = None) -> Forecast:
    return forecast(workload, fit or make_fit())


def drawn(sheet: Report, width: int = 120, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    terminal.draw(sheet, terminal.open_console(stream, width=width), brief=True)
    stream.flush()
    stream.seek(0)
    return stream.read()


def told(workload: Workload, width: int = 120, fit: Fit | None = None, **side: object) -> str:
    return drawn(prediction.sheet(Side(predicted(workload, fit), RUN, GPU, **side)), width)  # type: ignore[arg-type]


# -- the words ----------------------------------------------------------------------------------------------------


def test_a_host_bound_step_says_that_the_host_sets_the_pace() -> None:
    text = told(step(100, "0"))
    assert "In the stream the host sets the pace" in text
    assert f"calls keep the host for {100 * CALL_S * 1e6:.0f} µs" in text
    assert "host" in text.split("stream")[2]


def test_a_kernel_bound_step_says_so_and_how_long_the_gpu_is_idle() -> None:
    found = predicted(step(100, "9us"))
    share = found.stream.idle_share
    assert share == pytest.approx((99 * GAP_S + 7.2e-6) / (100 * 9e-6 + 99 * GAP_S + 7.2e-6), rel=0.02)
    text = told(step(100, "9us"))
    assert "In the stream the kernels set the pace" in text
    assert f"the GPU has no kernel for {share * 100:.1f} % of the time" in text


def test_the_first_line_is_what_a_graph_gives() -> None:
    first = words.gain(predicted(step(1000, "1us")))
    assert first.severity == "good"
    assert first.title.endswith(f"{(1000 * 2e-6 + 6.2e-6) / (1000 * 1.5e-6 + 5.5e-6):.2f}×")
    assert words.gain(predicted(step(1000, "1ms"))).title.startswith("A graph changes little")
    slow = make_fit(replay__loop=1e-3)
    assert words.gain(predicted(step(2, "1us"), slow)).title.startswith("As a graph the step takes longer")
    assert "no number of steps" in words.paying(predicted(step(2, "1us"), slow))


def test_a_graph_that_pays_later_than_planned_is_told() -> None:
    found = predicted(step(1000, "1us", replays=2))
    saved_s = 1000 * (2e-6 - 1e-6 - GRAPH_GAP_S)
    assert found.break_even == pytest.approx((10e-6 + 1000 * 2e-6) / saved_s, abs=1.1)
    assert "more than the 2 planned" in words.paying(found)
    assert "more than" not in words.paying(predicted(step(1000, "1us")))


def test_a_step_is_described_by_what_is_in_it() -> None:
    assert words.described(step(1100, "6us", "torch")) == "1100 kernels of 6.00 µs from PyTorch eager, 1 wait"
    copies = step(8, "0", copy_in="1MiB", copy_out="4KiB", syncs_per_step=0, streams=2)
    assert words.described(copies) == (
        "8 empty kernels from the compiled loop on 2 streams, 1 MiB in, 4 KiB out, no wait"
    )
    assert words.described(read("decode-7b")).startswith("one token")


def test_what_stands_in_for_a_measurement_is_named_once_for_all_it_stands_for() -> None:
    text = " ".join(told(step(10, "1us", "torch", arguments=1)).split())
    assert "1 of 13 constants stand in for a measurement" in text
    assert "replay.torch_eager: the replay call of torch_eager is that of the compiled loop" in text
    assert "stand in for" not in told(step())


def test_beyond_what_was_measured_is_told() -> None:
    assert "extrapolation" not in told(step(1250))
    text = told(step(1251))
    assert "this is an extrapolation" in text
    assert "1251 kernels" in text


def test_the_reference_is_marked_as_another_machine() -> None:
    text = " ".join(told(step(), reference=True).split())
    assert "Constants of the bundled reference, not of this machine" in text
    assert "SIMULATED" in text  # the run of this test is made by hand


def test_the_rows_that_it_rests_on_are_counted_and_their_benchmarks_named() -> None:
    text = " ".join(told(step()).split())
    assert "fitted to 13 of its rows, of bench_way, bench_empty, bench_complete" in text
    found = predicted(step())
    assert words.benchmarks(found.fit.rests_on(words.used(found)))[0] == "bench_way"


def test_without_measured_steps_the_misfit_is_assumed() -> None:
    text = " ".join(told(step(), fit=make_fit(steps=0)).split())
    assert "no steps to hold the model against" in text
    assert "Of the run's own steps 95 % lie within 2.0 % (stream, 40 steps)" in " ".join(told(step()).split())


def test_nothing_to_change_is_told_too() -> None:
    assert "Nothing about its submission is worth changing" in told(step(1, "1ms"))
    assert "What to change first" not in told(step(1, "1ms"))


def test_what_to_change_first_saves_most() -> None:
    found = predicted(step(100, "1us", "torch", arguments=1, syncs_per_step=4))
    assert found.advice[0].name == "graph"
    text = told(step(100, "1us", "torch", arguments=1, syncs_per_step=4))
    assert text.index("1.  replay it as a graph") < text.index("2.  ") < text.index("3.  ")


def test_a_rate_is_in_the_workload_s_own_unit() -> None:
    workload = msgspec.structs.replace(step(100, "9us"), unit="image", per_step=64.0)
    found = predicted(workload)
    assert rate_of(64.0 / found.stream.step_s, "images") in told(workload)


def test_a_step_without_graph_has_one_line() -> None:
    pageable = Workload((HostWork(1e-6), Wait(), Copies("h2d", 4096, memory="pageable")))
    found = predicted(pageable)
    assert found.graph is None
    assert len(prediction.ways_table(found).rows) == 1
    assert "nothing of it can be a graph" in words.gain(found).title
    assert "Nothing of this step can be captured." in told(pageable)


# -- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", sorted(examples()))
def test_the_page_holds_every_example(name: str, width: int) -> None:
    known = make_fit(call__torch_eager__0=TORCH_S, call__cupy_raw__4=5e-6)
    text = told(read(name), width, known)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_the_page_can_be_ascii_and_keeps_hostile_text_in_its_place() -> None:
    hostile = msgspec.structs.replace(
        step(), title="\x1b[31m[red]x[/red]\u202e", unit="\x07bell", about="[b]\n\x1b]0;x"
    )
    text = drawn(prediction.sheet(Side(predicted(hostile), RUN, GPU)), 80, "ascii")
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "[red]x[/red]" in text


def test_json_has_the_figures_in_si_units() -> None:
    found = predicted(step(100, "9us", "torch", arguments=1))
    read_back = json.loads(prediction.encoded(Side(found, RUN, GPU, True)))
    assert read_back["stream"]["step_s"] == found.stream.step_s
    assert read_back["stream"]["low_s"] < read_back["stream"]["step_s"] < read_back["stream"]["high_s"]
    assert sum(read_back["stream"]["spent_s"].values()) == pytest.approx(found.stream.step_s, rel=1e-6)
    assert read_back["graph"]["limit"] == "kernel"
    assert read_back["break_even_steps"] == found.break_even
    assert read_back["constants"]["call.torch_eager.1"]["value"] == TORCH_S
    assert (read_back["reference"], read_back["simulated"]) == (True, True)
    assert [one["name"] for one in read_back["advice"]] == [one.name for one in found.advice]


def test_bars_are_to_scale_and_name_their_portions() -> None:
    long = Stack("long", (Portion("host", 6.0, "6 s", "first"), Portion("kernel", 2.0, "2 s", "second")), "8 s")
    short = Stack("short", (Portion("kernel", 2.0, "2 s", "second"), Portion("sync", 0.0, "0 s", "quiet")), "2 s")
    lines = ["".join(text for text, _ in line) for line in charts.stacks(Stacks("", "", (long, short)), 52, fine=True)]
    assert lines[0].count("█") == 3 * lines[0].count("▓")
    assert lines[0].count("▓") == lines[3].count("▓")
    assert lines[0].endswith("  8 s")
    assert "█ host 6 s  ▓ kernel 2 s" in lines[1]
    assert "▓ kernel 2 s  ─ sync 0 s" in lines[4]


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.sampled_from(["first", "second", "quiet"])), max_size=6),
    st.integers(30, 130),
)
def test_bars_keep_to_the_page(portions: list[tuple[float, str]], width: int) -> None:
    made = tuple(Portion("name", value, "1.00 ms, 5 %", tone) for value, tone in portions)  # type: ignore[arg-type]
    drawing = charts.stacks(Stacks("", "", (Stack("stream", made, "1.00 ms"),)), width, fine=True)
    bar = "".join(text for text, _ in drawing[0])
    assert len(bar) <= width
    total = sum(value for value, _ in portions)
    assert total <= LEAST or abs(sum(bar.count(sign) for sign in "█▓─") - (width - 17)) <= 1


# -- what if ------------------------------------------------------------------------------------------------------


def changes(workload: Workload, **what: object) -> tuple[Change, ...]:
    return changed(workload, make_fit(), GPU, Changes(**what)).changes  # type: ignore[arg-type]


def after(workload: Workload, **what: object) -> Forecast:
    then = changed(workload, make_fit(), GPU, Changes(**what))  # type: ignore[arg-type]
    return forecast(then.workload, then.fit)


def test_a_shorter_call_shortens_a_host_bound_step_by_as_much() -> None:
    before = predicted(step(1000, "0", "torch", arguments=1))
    then = after(step(1000, "0", "torch", arguments=1), submit_s=2e-6)
    assert before.stream.step_s - then.stream.step_s == pytest.approx(1000 * (TORCH_S - 2e-6), rel=1e-3)
    assert then.graph is not None
    assert before.graph is not None
    assert then.graph.step_s == before.graph.step_s


def test_gaps_matter_each_in_its_way() -> None:
    before = predicted(step(1000, "9us"))
    assert before.graph is not None
    then = after(step(1000, "9us"), gap_s=0.0)
    assert before.stream.step_s - then.stream.step_s == pytest.approx(999 * GAP_S, rel=1e-3)
    then = after(step(1000, "9us"), graph_gap_s=0.0)
    assert then.graph is not None
    assert before.graph.step_s - then.graph.step_s == pytest.approx(999 * GRAPH_GAP_S, rel=1e-3)


def test_another_layer_launches_all_of_it() -> None:
    parts = (Kernels(10, (0.0,), arguments=1), Kernels(10, (0.0,), arguments=1, layer="cupy_raw"), Wait())
    workload = Workload(parts, layer="torch_eager")
    then = changed(workload, make_fit(), GPU, Changes(layer="loop"))
    assert then.workload.layers == ("loop",)
    assert then.changes[0][1:3] == ("PyTorch eager and CuPy RawKernel", "the compiled loop")
    with pytest.raises(UsageError, match="no launches through triton") as caught:
        changed(workload, make_fit(), GPU, Changes(layer="triton"))
    assert "launch_layers" in caught.value.next_step


def test_memory_bounds_kernels_with_bytes_and_no_others() -> None:
    workload = Workload((Kernels(100, bytes=40e6), Wait()))
    then = after(workload, memory_rate=1e12)
    assert then.stream.step_s == pytest.approx(100 * (40e-6 + GAP_S) + 6e-6, rel=0.01)
    assert [one.matters for one in changes(workload, memory_rate=1e12)] == [True]
    assert [one.matters for one in changes(step(), memory_rate=1e12)] == [False]


def test_the_kernels_work_scales_with_its_bytes() -> None:
    workload = Workload((Kernels(100, (50e-6,), bytes=40e6), Kernels(100, bytes=40e6), Wait()))
    half = after(workload, kernel_time=0.5)
    assert half.stream.step_s == pytest.approx(100 * (25e-6 + 5e-6 + 2 * GAP_S) + 6e-6, rel=0.01)


def test_the_program_s_own_time_scales_between_launches_and_by_itself() -> None:
    workload = Workload((HostWork(100e-6), Kernels(100, (0.0,), host_s=10e-6), Wait()))
    none = after(workload, host_time=0.0)
    assert none.stream.step_s == pytest.approx(100 * CALL_S + 6e-6, rel=0.05)
    assert [one.matters for one in changes(step(), host_time=0.5)] == [False]


def test_another_link_scales_copies_by_the_ceilings() -> None:
    workload = Workload((Copies("h2d", 1 << 26), Kernels(1), Copies("d2h", 1 << 26, memory="pageable"), Wait()))
    then = changed(workload, make_fit(), GPU, Changes(pcie_generation=3, lanes=8)).fit.constants
    for name, direction in (("h2d_rate", "h2d"), ("d2h_rate", "d2h")):
        own, other = pcie_rate(5, 16, direction, 256), pcie_rate(3, 8, direction, 256)
        assert own is not None
        assert other is not None
        assert then[name].value == pytest.approx(VALUES[name] * other / own)
    assert then["d2h_pageable_rate"].value == then["d2h_rate"].value  # slower than what the host managed
    faster = changed(workload, make_fit(), GPU, Changes(pcie_generation=6)).fit.constants
    assert faster["h2d_rate"].value > VALUES["h2d_rate"]
    assert faster["d2h_pageable_rate"].value == VALUES["d2h_pageable_rate"]


@pytest.mark.parametrize("gpu", [None, GpuInfo("x", "x"), msgspec.structs.replace(GPU, integrated=True)])
def test_a_link_that_is_not_known_cannot_be_scaled(gpu: GpuInfo | None) -> None:
    with pytest.raises(UsageError, match="does not say which PCIe link"):
        changed(step(), make_fit(), gpu, Changes(pcie_generation=4))


def test_no_change_is_none() -> None:
    assert not Changes()
    assert Changes(submit_s=0.0)
    nothing = changed(step(), make_fit(), GPU, Changes())
    assert nothing.changes == ()
    assert nothing.workload == step()


def test_the_sheet_shows_before_and_after() -> None:
    sheet = prediction.changed_sheet(
        Side(predicted(step(1000, "0", "torch", arguments=1)), RUN, GPU), Changes(submit_s=2e-6)
    )
    for width in (40, 80, 120):
        text = drawn(sheet, width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "In the stream the step takes 2.01 ms instead of 8.01 ms, as a graph still" in text
    assert "4.0× as fast" in text
    assert "the same" in text
    assert "8.00 µs" in text
    unused = prediction.changed_sheet(Side(predicted(step()), RUN, GPU), Changes(memory_rate=1e12))
    assert "It changes nothing" in drawn(unused)
    assert "Nothing in this step uses what was changed: the GPU's memory" in drawn(unused)


def test_a_change_too_small_to_count_is_told_with_both_times() -> None:
    """A time that reads differently is never said to stay as it is."""
    sheet = prediction.changed_sheet(Side(predicted(step(1000, "9us")), RUN, GPU), Changes(gap_s=0.9 * GAP_S))
    text = drawn(sheet)
    pair = pairs(predicted(step(1000, "9us")), changed_forecast(Changes(gap_s=0.9 * GAP_S)))[0]
    before, after = as_time(pair.before.step_s), as_time(pair.after.step_s)
    assert before != after
    assert f"It changes little: {after} instead of {before} in the stream" in text
    assert in_words(pair) == "about the same"


def changed_forecast(changes: Changes) -> Forecast:
    then = changed(step(1000, "9us"), make_fit(), GPU, changes)
    return forecast(then.workload, then.fit)


def test_a_wider_link_is_nothing_to_pageable_copies_and_says_why_once() -> None:
    parts = (Copies("h2d", 1 << 20, memory="pageable"), Kernels(3, (1e-6,)))
    text = drawn(prediction.changed_sheet(Side(predicted(Workload(parts)), RUN, GPU), Changes(pcie_generation=6)))
    assert text.count("Nothing in this step uses what was changed") == 1
    assert "pageable ones go at the host's pace" in " ".join(text.split())


def test_two_machines_stand_side_by_side() -> None:
    slower = Side(predicted(step(900, "0"), make_fit(call__loop__0=4e-6)), RUN, GPU, True)
    sheet = prediction.against_sheet(Side(predicted(step(900, "0")), RUN, GPU), slower)
    text = drawn(sheet)
    assert "2.0× as long" in text
    assert "stream first" in text
    assert any(banner.word == "REFERENCE" for banner in sheet.banners)
    assert [name for name, _ in sheet.facts if name.startswith("against ")]
    found = pairs(predicted(step(900, "0")), slower.forecast)
    assert [in_words(pair) for pair in found] == ["2.0× as long", "the same"]

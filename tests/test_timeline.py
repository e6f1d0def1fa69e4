"""The time line: a predicted step drawn to scale with its queue and links, told in words, asked for by the command."""

import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path

import command_line
import pytest
import snapshots
from changed_run import simulated
from hypothesis import given
from hypothesis import strategies as st
from make_fit import make_fit
from make_run import make_run
from read_findings import drawn as told_of
from recorded_runs import real, write
from sections import drawn, lines_of, some
from typer.testing import Result

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.archive import store
from microbench.core.errors import UsageError
from microbench.core.model import Run
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import to_ascii, typed_time
from microbench.model import words
from microbench.model.fit import fit_for
from microbench.model.forecast import Forecast, forecast
from microbench.model.words import nearest
from microbench.model.workload import Copies, HostWork, Kernels, Part, Wait, Workload
from microbench.report.document import Lane, Report, Span, TimeLine
from microbench.report.sheets.prediction import Side, timeline_sheet
from microbench.report.suites import timeline
from microbench.report.terminal import plots

WHOLE = simulated("launch", "graph")
# Round figures, so that what is drawn can be worked out by hand. CALL + WAY is when the first kernel begins.
CALL, WAY, GAP, GRAPH_GAP, COMPLETE = 3e-6, 2e-6, 1e-6, 0.5e-6, 2e-6
COPY, RATE = 2e-6, 50e9
CONSTANTS = {
    "call__loop__0": CALL, "way": WAY, "complete": COMPLETE, "gap_stream": GAP, "gap_graph": GRAPH_GAP,
    "replay__loop": 2e-6, "replay_way": 3.2e-6, "make_node": 1e-6, "front_end": 0.25e-6, "h2d_latency": COPY,
    "d2h_latency": COPY, "h2d_rate": RATE, "d2h_rate": RATE, "h2d_pageable_latency": 5e-6, "h2d_pageable_rate": 10e9,
}  # fmt: skip


def step(*parts: Part, streams: int = 1, **changed: float) -> Forecast:
    return forecast(Workload(parts, streams=streams), make_fit(**CONSTANTS | changed))


def kernels(count: int, duration_s: float, **changed: float) -> Forecast:
    return step(Kernels(count, (duration_s,)), Wait(), **changed)


def pictures(one: Forecast) -> list[TimeLine]:
    return timeline.pictures(one, timeline.in_words(one.workload))


def lane(picture: TimeLine, name: str, way: str = "stream") -> Lane:
    begins = [index for index, one in enumerate(picture.lanes) if one.name.endswith("host")]
    own = picture.lanes[: begins[1]] if way == "stream" and len(begins) > 1 else picture.lanes[begins[-1] :]
    return next(one for one in own if name in one.name)


def sheet(workload: Workload, run: Run = WHOLE) -> Report:
    rows, fit = fit_for(run, workload)
    return timeline_sheet(Side(forecast(workload, fit), rows))


def told(workload: Workload, run: Run = WHOLE, width: int = 100) -> str:
    return drawn(sheet(workload, run), width, brief=True)


def time_line(one: TimeLine, width: int) -> list[str]:
    return lines_of(plots.time_line(one, width, inverse=False))


def plain(count: int, duration_s: float, layer: str = LOOP_LAYER) -> Workload:
    return Workload((Kernels(count, (duration_s,)), Wait()), layer=layer)


nanoseconds = st.integers(0, 20_000).map(lambda count: count * 1e-9)
parts = st.one_of(
    st.builds(Kernels, st.integers(1, 12), st.tuples(nanoseconds)),
    st.builds(Copies, st.sampled_from(("h2d", "d2h")), st.integers(1, 1 << 22), st.integers(1, 3),
              st.sampled_from(("pinned", "pageable"))),
    st.just(Wait()),
    st.builds(HostWork, nanoseconds),
)  # fmt: skip


@given(st.lists(parts, min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 30))
def test_drawn_lanes_are_in_order_and_inside(of: list[Part], streams: int, queue: int) -> None:
    for picture in pictures(step(*of, streams=streams, queue=queue)):
        for one in picture.lanes:
            solid = [span for span in one.spans if span.kind == "solid"]
            most_s = picture.end_s * (1 + 1e-9)
            assert all(-1e-15 <= span.begin_s <= span.end_s <= most_s for span in one.spans)
            assert all(later.begin_s >= earlier.end_s - 1e-12 for earlier, later in itertools.pairwise(solid))
            assert all(0 < span.level <= 1 for span in one.spans)
        for width in (47, 67, 107):
            assert set(map(len, time_line(picture, width))) == {width}


def test_a_saving_too_small_to_draw_leaves_the_end_of_the_length_alone() -> None:
    spans = (Span(0.0, 0.999, "1 s", "plain", "distance"), Span(0.999, 1.0, "−1 ms", "good", "distance"))
    (line,) = time_line(TimeLine("", "", 1.0, (), (Lane("", spans),)), 40)[1:]
    assert line.rstrip().endswith("┤")


def test_the_queue_is_as_deep_as_launches_wait_before_the_gpu() -> None:
    """A call every 3 us, a kernel every 10: launch n comes to the GPU at 3n + 2 and begins at 10n - 5."""
    (picture,) = pictures(kernels(10, 9e-6))
    queue = lane(picture, "queue")
    depths = [sum(3 * n + 2 <= at < 10 * n - 5 for n in range(1, 11)) for at in range(100)]
    most = max(depths)
    assert queue.name.strip() == f"queue 0–{most}"
    for at in (4, 9, 12, 18, 24, 31, 33, 40, 80, 94):
        depth = depths[at]
        here = [span.level for span in queue.spans if span.begin_s <= at * 1e-6 + 1e-9 < span.end_s]
        assert sum(here) * most == pytest.approx(depth), at
    # A host that is too slow leaves nothing waiting; the graph's kernels all wait from the begin on.
    (slow,) = pictures(kernels(10, 1e-6))
    assert (lane(slow, "queue").name.strip(), lane(slow, "queue").spans) == ("queue", ())
    graph = lane(slow, "queue", "graph")
    assert graph.name.strip() == "queue 0–9"
    assert [round(span.level * 9) for span in graph.spans] == list(range(9, 0, -1))


def lanes(picture: TimeLine) -> Iterator[str]:
    """What a picture shows, with times in us."""
    yield f"{picture.title} · {picture.about} · {picture.end_s * 1e6:.4g} · {[tick.text for tick in picture.ticks]}"
    for one in picture.lanes:
        spans = (
            f"{span.kind} {span.begin_s * 1e6:.4g}–{span.end_s * 1e6:.4g} {span.text}".rstrip()
            + f" {span.level:.3g}" * (span.kind == "level")
            for span in one.spans
        )
        yield textwrap.fill(f"{one.name.strip()}: " + "; ".join(spans), 118, subsequent_indent="    ")


MIXED = step(Copies("h2d", 1 << 20), Kernels(4, (1e-6,)), HostWork(5e-6), Kernels(2, (9e-6,)), Wait())
STEPS: dict[str, Forecast] = {
    "a short step is one picture": kernels(8, 3e-6),
    "a full queue holds the host up": kernels(12, 20e-6, queue=4),
    "also in a long step": kernels(40, 20e-6, queue=4),
    "a long step has a picture of its beginning": kernels(100, 1e-6),
    "each wait parts the stretches": step(*(Kernels(20, (6e-6,)), Wait()) * 3),
    "too many to tell apart are one stretch": step(*(Kernels(2, (6e-6,)), Wait()) * 50),
    "copies have lanes of their own": step(Copies("h2d", 1 << 20), Kernels(2, (5e-6,)), Copies("d2h", 1 << 20), Wait()),
    "a pageable copy is the host's, and what is no graph is drawn once": step(
        Copies("h2d", 1 << 20, memory="pageable"), HostWork(10e-6)
    ),
    "kernels side by side have a line each": step(Kernels(6, (30e-6,)), Wait(), streams=3),
    "or one that counts them": step(Kernels(8, (90e-6,)), Wait(), streams=8),
    "in a long step they are counted": step(Kernels(60, (30e-6,)), Wait(), streams=3),
    "durations may exceed the period": kernels(8, 3e-6, gap_graph=-0.2e-6),
    "a beginning without kernels is left out": step(Copies("h2d", 50_000_000), Kernels(40, (3e-6,)), Wait()),
    "a beginning shows nothing that a copy engine does later": step(Kernels(40, (3e-6,)), Copies("d2h", 4096), Wait()),
    "steps that flow into one another say how long one takes then": step(Kernels(8, (9e-6,))),
    "a host that is too slow": kernels(8, 0.5e-6),
    "a gap in the middle": MIXED,
}


def test_what_a_step_looks_like() -> None:
    """Its pictures, and the findings beside them."""
    rows = evidence_by_device(WHOLE)[0]
    every = {
        name: (*(line for one in pictures(found) for line in lanes(one)), *map(told_of, words.to_scale(rows, found)))
        for name, found in STEPS.items()
    }
    snapshots.same("timelines", snapshots.in_turn(every))


def test_blocks_begin_and_end_at_halves_and_stay_apart() -> None:
    spans = tuple(Span(begin, begin + 1.0, "", "second") for begin in (0.0, 1.0, 2.25))
    one = TimeLine("", "", 4.0, (), (Lane("x", spans),))
    assert time_line(one, 3 + 9)[1][3:] == "█▌██▐█▌  "


def test_labels_stand_on_blocks_where_there_is_colour() -> None:
    one = TimeLine("", "", 1.0, (), (Lane("x", (Span(0.0, 1.0, "7", "second"),)),))
    (_, line) = plots.time_line(one, 3 + 11, inverse=True)
    assert (" 7 ", "on_second") in line


def test_levels_are_as_high_as_their_mean_and_never_out_of_sight() -> None:
    """Ten characters of a second each: full, half, a full one for half of it, a moment, nothing."""
    levels = ((0.0, 1.0, 1.0), (1.0, 2.0, 0.5), (2.0, 2.5, 1.0), (3.2, 3.21, 0.2))
    spans = tuple(Span(begin, end, "", "first", "level", level) for begin, end, level in levels)
    one = TimeLine("", "", 10.0, (), (Lane("x", spans),))
    assert time_line(one, 3 + 11)[1][3:9] == "█▄▄▁  "
    assert to_ascii("█▄▄▁  ") == "#==.  "


def test_a_page_without_blocks_is_ascii() -> None:
    lines = drawn(sheet(plain(100, 9e-6)), 80, "ascii", brief=True).splitlines()
    assert max(map(len, lines)) <= 80
    queue = [line for line in lines if line.lstrip().startswith("queue")]
    assert len(queue) == 4
    assert any("%##" in line and ".:" in line for line in queue)


def finding_of(rule: str, forecast: Forecast, run: Run = WHOLE) -> Finding:
    return next(each for each in words.to_scale(evidence_by_device(run)[0], forecast) if each.rule == rule)


def test_the_gain_rests_on_the_nearest_measured_step() -> None:
    near, none = (finding_of("timeline.gain", kernels(8, 3e-6), run) for run in (WHOLE, make_run()))
    assert len(set(near.rests_on) - set(none.rests_on)) == 2
    assert finding_of("timeline.gain", MIXED).text == none.text


def test_only_kernels_alike_in_one_stream_have_a_pace() -> None:
    assert words.alike(plain(8, 3e-6)) == Kernels(8, (3e-6,))
    other = Kernels(8, (3e-6, 4e-6))
    for parts in ((other, Wait()), (Kernels(8, (3e-6,)), Wait(), Wait()), (Wait(),), (Kernels(8, bytes=1e6),)):
        assert words.alike(Workload(parts)) is None
    assert words.alike(Workload((Kernels(8, (3e-6,)),), streams=2)) is None


def test_the_nearest_measured_step_is_found() -> None:
    near = some(nearest(evidence_by_device(WHOLE)[0], 8, 3.2e-6))
    assert (near.stream.params["kernels"], near.duration_ns) == (10, 3000)
    assert nearest(evidence_by_device(WHOLE)[0], 8, 3e-6, "triton") is None


def test_a_long_description_ends_behind_a_comma() -> None:
    parts = (Copies("h2d", 1 << 20), Copies("h2d", 4096), Kernels(60, (6e-6,)), Copies("d2h", 1 << 16), Wait())
    drawn_sheet = sheet(Workload(parts, layer="torch_eager", streams=3), store.read(store.bundled()["nvidia-h200"]))
    title = drawn_sheet.sections[0].title
    assert title.endswith(", …")
    assert len(title) < 90


def test_typed_times() -> None:
    typed = {"3us": 3e-6, "3µs": 3e-6, "3μs": 3e-6, "500ns": 5e-7, "0.2ms": 2e-4, "0": 0.0, "1 s": 1.0, "0us": 0.0}
    typed |= {"90s": 90.0, "30min": 1800.0, "6h": 21600.0, "1.5 d": 129600.0}
    assert {text: typed_time(text, 1e6) for text in typed} == pytest.approx(typed)


@pytest.mark.parametrize(
    "text", ["3", "us", "-3us", "3 min", "1e3us", "", "nan", "inf", "11s", "3us4", "٣us", "9" * 99]
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        typed_time(text)


def call(*arguments: str) -> Result:
    return command_line.call("timeline", *arguments)


@pytest.fixture
def saved(data: Path) -> Path:
    return write(data / "20250102T030405Z-aaaaaaaa.json", real(WHOLE))


def test_the_last_run_that_has_the_figures_is_drawn(saved: Path) -> None:
    write(saved.with_name("20250103T030405Z-bbbbbbbb.json"), real(make_run()))
    write(saved.with_name("20250104T030405Z-cccccccc.json"), WHOLE)  # simulated: of no GPU at all
    (saved.parent / "20250105T030405Z-dddddddd.json").write_bytes(b"{")
    result = call("--duration", "3us")
    assert result.exit_code == 0
    assert "8 kernels of 3.00 µs from the compiled loop" in result.stdout
    assert not any(words in result.stdout for words in ("from a simulated GPU", "REFERENCE"))
    assert call("--duration", "3us", "--run", str(saved)).stdout == result.stdout


def test_a_workload_is_drawn_from_its_file(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('title = "two runs"\n[[part]]\nkernels = 20\nduration = "6us"\n[[part]]\nsync = true\n')
    result = call(str(path), "--layer", "cupy")
    assert result.exit_code == 0, result.stderr
    assert "timeline: two runs" in result.stdout


def test_without_a_run_the_reference_is_drawn(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "reference.json", real(WHOLE))
    monkeypatch.setattr(store, "bundled", lambda: {"nvidia-h200": path})
    result = call("--duration", "0", "--kernels", "3", "--layer", "cuda_core")
    assert result.exit_code == 0
    assert all(words in result.stdout for words in ("REFERENCE", "3 empty kernels from cuda.core"))

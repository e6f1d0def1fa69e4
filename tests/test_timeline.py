"""The time line: computed from the run's own costs, drawn to scale, told in words, asked for by the command."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_graph_run import make_graph_run
from make_run import make_run
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from microbench import schema, store
from microbench.cli import MOST_KERNELS, app
from microbench.errors import ExitCode, RunUnreadableError, UsageError
from microbench.explain.evidence import evidence_by_device
from microbench.explain.graph_step import StepCosts, missing, nearest, step_costs
from microbench.model import Run
from microbench.report import lanes, terminal, timeline
from microbench.report.document import Lane, Span, TimeLine
from microbench.units import typed_time

WHOLE = make_graph_run()


def costs(kernels: int = 8, layer: str = "loop", run: Run = WHOLE) -> StepCosts:
    found = step_costs(evidence_by_device(run)[0], kernels, layer)
    assert found is not None
    return found


def without(*benchmarks: str) -> Run:
    kept = tuple(one for one in WHOLE.outcomes if one.case.benchmark not in benchmarks)
    return msgspec.structs.replace(WHOLE, outcomes=kept)


def words(run: Run = WHOLE, duration_s: float = 3e-6, kernels: int = 8, layer: str = "loop", width: int = 100) -> str:
    stream = io.StringIO()
    sheet = timeline.sheet(run, duration_s, kernels, layer)
    terminal.draw(sheet, terminal.open_console(stream, width=width), brief=True)
    return stream.getvalue()


# -- costs --------------------------------------------------------------------------------------------------------


def test_one_empty_kernel_takes_a_round_trip() -> None:
    one = costs(1)
    stream, graph = one.schedules(0.0)
    assert stream.end_s - one.own_s(0.0) == pytest.approx(8.4e-6, rel=0.02)
    assert one.stream.way_s == pytest.approx(1.8e-6, rel=0.05)
    assert graph.end_s < stream.end_s


def test_a_replay_of_one_kernel_takes_what_was_measured() -> None:
    _, graph = costs(1).schedules(1e-6)
    assert graph.end_s == pytest.approx(8.5e-6, rel=0.02)


def test_a_layer_changes_the_call_only() -> None:
    loop, numba = costs(), costs(layer="numba_configured")
    assert numba.stream.call_s == pytest.approx(11.8e-6, rel=0.02)
    assert numba.graph == loop.graph
    assert "the replay's call is that of the compiled loop" in numba.assumed


def test_what_is_missing_is_named() -> None:
    assert missing(evidence_by_device(WHOLE)[0]) == []
    assert missing(evidence_by_device(make_run())[0]) == ["graph_lifecycle"]
    assert missing(evidence_by_device(make_run(gpu=False))[0]) == ["launch_cost", "graph_lifecycle"]
    assert "a replay's way to the GPU is a launch's" in costs(run=without("graph_gain")).assumed


def test_the_nearest_measured_step_is_found() -> None:
    near = nearest(evidence_by_device(WHOLE)[0], 8, 3.2e-6)
    assert near is not None
    assert (near.kernels, near.pair.duration_s) == (10, pytest.approx(3e-6))
    assert nearest(evidence_by_device(WHOLE)[0], 8, 3e-6, "triton") is None


@given(st.integers(1, 40), st.floats(0, 1e-3))
def test_drawn_lanes_are_in_order_and_inside(kernels: int, duration_s: float) -> None:
    for picture in timeline.pictures(costs(kernels), duration_s):
        for lane in picture.lanes:
            solid = [span for span in lane.spans if span.kind == "solid"]
            assert all(0 <= span.begin_s <= span.end_s <= picture.end_s * (1 + 1e-9) for span in lane.spans)
            assert all(later.begin_s >= earlier.end_s - 1e-12 for earlier, later in itertools.pairwise(solid))
        for width in (47, 67, 107):
            drawn = lanes.time_line(picture, width, fine=True, inverse=False)
            assert {len("".join(piece for piece, _ in line)) for line in drawn} == {width}


# -- the drawing --------------------------------------------------------------------------------------------------


def test_each_kernel_has_its_number_in_both_lanes_and_gaps_show() -> None:
    lines = words().splitlines()
    host, gpu = (next(line for line in lines if line.startswith(name)) for name in ("stream host", "       GPU"))
    assert re.findall(r"\d", host) == re.findall(r"\d", gpu) == list("12345678")
    assert len(re.findall("[█▌▐]─", gpu)) == 8
    assert "synchronise" in host


def test_a_long_step_shows_its_beginning_and_the_whole() -> None:
    text = words(kernels=100, duration_s=1e-6)
    assert "of a step of 100 kernels of 1.00 µs" in text
    assert "100 calls" in text
    stream, graph = (float(share) for share in re.findall(r"100 kernels, (\S+) % busy", text))
    assert stream == pytest.approx(100 / 3.31, rel=0.02)  # 1 µs of what a call takes
    assert graph == pytest.approx(100 / 1.53, rel=0.02)  # 1 µs of kernel and gap


def test_blocks_begin_and_end_at_halves_and_stay_apart() -> None:
    spans = tuple(Span(begin, begin + 1.0, "", "second") for begin in (0.0, 1.0, 2.25))
    one = TimeLine("", "", 4.0, (), (Lane("x", spans),))
    (_, line) = lanes.time_line(one, 3 + 9, fine=True, inverse=False)
    assert "".join(piece for piece, _ in line)[3:] == "█▌██▐█▌  "
    (_, plain) = lanes.time_line(one, 3 + 9, fine=False, inverse=False)
    assert "".join(piece for piece, _ in plain)[3:] == "█ █ ██   "


def test_labels_stand_on_blocks_where_there_is_colour() -> None:
    one = TimeLine("", "", 1.0, (), (Lane("x", (Span(0.0, 1.0, "7", "second"),)),))
    (_, line) = lanes.time_line(one, 3 + 11, fine=True, inverse=True)
    assert (" 7 ", "on_second") in line


@pytest.mark.parametrize(("duration_s", "kernels"), [(0.0, 8), (3e-6, 1), (3e-6, 12), (1e-6, 1000), (0.2, 5)])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_leaves_the_page(duration_s: float, kernels: int, width: int) -> None:
    text = words(duration_s=duration_s, kernels=kernels, width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_words_say_what_limits_and_that_it_is_no_recording() -> None:
    text = " ".join(words(width=120).split())
    assert "As a graph the step takes 35.2 µs instead of 41.9 µs: 1.19×" in text
    assert "The GPU idles for 42.8 % of the step in the stream, for 31.8 % in the graph" in text
    assert "the host keeps up: a call takes 3.31 µs, the GPU 4.36 µs" in text
    assert "Measured, the nearest step (10 kernels of 3.00 µs from the compiled loop): 50.7 µs in the stream" in text
    assert "drawn from measured costs, not a recording" in text
    assert "SIMULATED" in text
    short = " ".join(words(duration_s=0.0, width=120).split())
    assert "the host is too slow: a call takes 3.31 µs" in short
    alone = " ".join(words(kernels=1, width=120).split())
    assert "One kernel waits for nothing but its own call" in alone
    unmeasured = " ".join(words(without("graph_gain"), width=120).split())
    assert "No measured step to hold it against" in unmeasured


def test_errors_name_the_cause_and_the_command() -> None:
    with pytest.raises(RunUnreadableError) as raised:
        timeline.sheet(make_run(), 3e-6, 8)
    assert "has no figures of graph_lifecycle" in raised.value.cause
    assert raised.value.next_step == "microbench run graph_lifecycle --into simulated-run measures them"
    with pytest.raises(UsageError) as wrong:
        timeline.sheet(WHOLE, 3e-6, 8, "cuda_cor")
    assert wrong.value.next_step == "did you mean cuda_core?"


# -- times as people type them ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3us", 3e-6),
        ("3µs", 3e-6),
        ("3μs", 3e-6),
        ("500ns", 5e-7),
        ("0.2ms", 2e-4),
        ("0", 0.0),
        ("1 s", 1.0),
        ("0us", 0),
    ],
)
def test_typed_times(text: str, seconds: float) -> None:
    assert typed_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["3", "us", "-3us", "3 min", "1e3us", "", "nan", "inf", "11s", "3us4", "٣us", "9" * 99]
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        typed_time(text)


# -- the command --------------------------------------------------------------------------------------------------


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["timeline", *arguments], catch_exceptions=False)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def saved(data: Path) -> Path:
    path = data / "20250102T030405Z-aaaaaaaa.json"
    path.write_bytes(schema.encode(WHOLE))
    return path


def test_the_last_run_that_has_the_figures_is_drawn(saved: Path) -> None:
    (saved.parent / "20250103T030405Z-bbbbbbbb.json").write_bytes(schema.encode(make_run()))
    (saved.parent / "20250104T030405Z-cccccccc.json").write_bytes(b"{")
    result = call("--duration", "3us")
    assert result.exit_code == 0
    assert "8 kernels of 3.00 µs from the compiled loop" in result.stdout
    assert "SIMULATED" in result.stdout
    assert call("--duration", "3us", "--run", str(saved)).stdout == result.stdout


def test_without_a_run_the_reference_is_drawn_and_marked(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reference.json"
    real = tuple(msgspec.structs.replace(session, simulated=False) for session in WHOLE.sessions)
    path.write_bytes(schema.encode(msgspec.structs.replace(WHOLE, sessions=real)))
    monkeypatch.setattr(store, "bundled", lambda: {"nvidia-h200": path})
    result = call("--duration", "0", "--kernels", "3", "--layer", "cuda_core")
    assert result.exit_code == 0
    assert "REFERENCE" in result.stdout
    assert "3 empty kernels from cuda.core" in result.stdout


def test_it_draws_into_a_new_file_only(saved: Path, tmp_path: Path) -> None:
    picture = tmp_path / "step.svg"
    assert call("--duration", "3us", "--svg", str(picture)).exit_code == 0
    assert "<svg" in picture.read_text()
    again = call("--duration", "3us", "--svg", str(picture))
    assert again.exit_code == ExitCode.USAGE
    assert "cannot be written" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("--duration", "3"), ExitCode.USAGE, "3 is no time"),
        (("--duration", "\x1b[2J"), ExitCode.USAGE, "is no time"),
        (("--duration", "3us", "--kernels", "0"), ExitCode.USAGE, "0 kernels"),
        (("--duration", "3us", "--kernels", str(MOST_KERNELS + 1)), ExitCode.USAGE, "cannot be drawn"),
        (("--duration", "3us", "--layer", "lop"), ExitCode.USAGE, "through lop"),
        (("--duration", "3us", "--run", "nowhere"), ExitCode.UNREADABLE_RUN, "there is no run nowhere"),
    ],
)
def test_wrong_use_is_two_lines(arguments: tuple[str, ...], code: ExitCode, cause: str, saved: Path) -> None:
    result = call(*arguments)
    assert result.exit_code == code
    assert cause in result.stderr
    assert "\x1b" not in result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error", "next"]


def test_a_run_without_the_figures_says_what_to_measure(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(schema.encode(make_run()))
    result = call("--duration", "3us", "--run", str(path))
    assert result.exit_code == ExitCode.UNREADABLE_RUN
    assert "has no figures of graph_lifecycle" in result.stderr
    assert "microbench run graph_lifecycle" in result.stderr

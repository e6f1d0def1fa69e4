"""The command diagnose: its page, its drawings, the step that it saves, and the window that it is given."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import snapshots
from browser import launched, opened
from command_line import call
from make_fake_run import for_a_fit
from make_run import measurement, outcome, with_suite
from make_trace import Recorder, in_turns, kineto, steps_of, with_pinned_copies
from pages import CODE, Parsed
from recorded_runs import save

from microbench.archive.store import bundled
from microbench.core.errors import ExitCode
from microbench.diagnosis.health import Check
from microbench.diagnosis.idle import CAUSES
from microbench.diagnosis.words import other_work
from microbench.library.runs import REFERENCE_RUN
from microbench.report.sheets.recorded_step import TONES

HOSTILE = (*CODE, "\x00\x1b[31m\r\nred\x7f", "\u202eevil\u2028", "x" * 100_000, "]]>&amp;<b>")
WIDE = {"width": 1280, "height": 900}


@pytest.fixture(autouse=True)
def wide(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def saved(folder: Path, made: Recorder, name: str = "trace.json") -> str:
    path = folder / name
    path.write_bytes(kineto(made.trace()))
    return str(path)


def program() -> Recorder:
    """Steps of two threads and two streams, with copies and a wait."""
    made = Recorder()
    for step in range(12):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.thread = 0
            for kernel in range(12):
                with made.range("aten::linear"), made.range("aten::addmm"):
                    made.runs(18_000 + 700 * kernel)
                    made.launch(f"void at::native::gemm_{kernel % 3}<float, 4>(float*)", 6000)
            made.thread = 1
            for kernel in range(4):
                with made.range("backward"):
                    made.runs(9000)
                    made.launch(f"gradient_{kernel}", 4000, stream=20)
            made.thread = 0
            made.submit(made.call("cudaMemcpyAsync", 4000), "Memcpy HtoD", 3000, kind="copy", size=4096,
                        memories=("pinned", "device"))  # fmt: skip
            made.wait()
    return made


def hostile(text: str) -> Recorder:
    """Steps whose kernels, calls, operators and annotations have this name."""
    made = Recorder()
    for step in range(8):
        with made.range(f"{text}#{step}", "annotation"), made.range(text, "python"):
            for _ in range(3):
                with made.range(text):
                    made.runs(20_000)
                    made.submit(made.call(f"cudaLaunchKernel{text}", 3000), text, 2000)
    return made


def drawing(html: str, what: str = "step") -> dict[str, Any]:
    """What the page's script draws: the "step" or the "idle" time."""
    found = re.search(rf'<script type="text/plain" id="packed-trace-0-{what}">([^<]*)</script>', html)
    drawn: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return drawn


def test_the_json_counts_kernels_and_all_work_of_a_step(tmp_path: Path) -> None:
    found = json.loads(call("diagnose", saved(tmp_path, program()), "--json").output)
    assert (found["step"]["kernels"], found["step"]["work"]) == (16, 17)
    assert found["trace"]["work"] == 12 * 17


# The page


def test_the_words_of_a_screen(tmp_path: Path) -> None:
    shown = call("diagnose", saved(tmp_path, program()), COLUMNS="100").output
    snapshots.same("commands/diagnose", shown.partition("\nmore: ")[0])


@pytest.mark.parametrize(("kinds", "count", "named"), [
    (("copy",), 1, "copy"), (("copy",), 3, "copies"), (("memset",), 2, "memsets"), (("graph",), 1, "replay"),
    (("copy", "memset"), 2, "copies and memsets"),
    (("copy", "memset"), 1, "copy or memset"), (("copy", "graph"), 2, "copies, memsets and replays"),
])  # fmt: skip
def test_what_a_step_has_besides_kernels_is_named(kinds: tuple[str, ...], count: int, named: str) -> None:
    made = Recorder()
    made.launch("kernel", 1000)
    for kind in kinds:
        made.submit(made.call("cudaMemcpyAsync", 4000), "other", 3000, kind=kind)
    assert other_work(made.trace(), count) == named


def test_the_page_has_the_answer_the_tables_and_the_step(tmp_path: Path) -> None:
    trace, page = saved(tmp_path, program()), tmp_path / "page.html"
    result = call("diagnose", trace, "-o", str(page))
    assert result.exit_code == ExitCode.MEASURED
    assert "Launch-bound" in result.output
    parsed = Parsed(page.read_text(encoding="utf-8"))
    for words in ("trace.json", "Launch-bound", "Where the time goes", "What to change", "A typical step", "constants",
                  "as a graph", "What the host did while the GPU was idle"):  # fmt: skip
        assert words in parsed.text
    assert "src" not in {name for tag in parsed.tags("script") for name in tag}


def test_the_idle_lane_of_the_page_adds_up_in_the_colours_of_the_table(tmp_path: Path) -> None:
    trace, page = saved(tmp_path, program()), tmp_path / "page.html"
    call("diagnose", trace, "-o", str(page))
    html = page.read_text(encoding="utf-8")
    drawn = drawing(html)
    found = json.loads(call("diagnose", trace, "--json").output)
    lanes = {lane["name"]: lane["spans"] for lane in drawn["lanes"] if lane["name"]}
    assert list(lanes) == [
        "host code 1", "CUDA calls 1", "host code 2", "CUDA calls 2", "stream 7", "stream 20", "GPU idle",
    ]  # fmt: skip
    idle = lanes["GPU idle"]
    assert all(span[0] + span[1] <= later[0] + 1e-9 for span, later in itertools.pairwise(idle))
    for cause in CAUSES:
        seconds = sum(span[1] for span in idle if drawn["names"][span[2]].partition(":")[0] == cause)
        assert seconds == pytest.approx(found["idle"][cause], abs=2e-8), cause
        assert {drawn["tones"][span[3]] for span in idle if drawn["names"][span[2]].partition(":")[0] == cause} <= {
            TONES[cause]
        }
        if seconds:
            assert re.search(rf'class="tone-{TONES[cause]}[^"]*"[^>]*>{cause}<', html), "the cell of the table"
            assert re.search(rf'<li class="tone-{TONES[cause]}">.*?>{cause}</span>', html), "the legend"


def test_each_cause_has_a_colour_of_its_own() -> None:
    assert set(TONES) == {*CAUSES, "work"}
    assert len(set(TONES.values())) == len(TONES)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_of_a_trace_breaks_out_of_the_page(tmp_path: Path, text: str) -> None:
    trace, page = saved(tmp_path, hostile(text)), tmp_path / "page.html"
    assert call("diagnose", trace, "-o", str(page)).exit_code == ExitCode.MEASURED
    html = page.read_text(encoding="utf-8")
    parsed = Parsed(html)
    assert len(parsed.tags("script")) == 3, "the packed flame graph and step, and the page's own script"
    assert not parsed.tags("img")
    assert not parsed.tags("b")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", parsed.text + "".join(drawing(html)["names"]))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", "".join(drawing(html, "idle")["names"]))
    assert len(html) < 400_000
    for options in (("--timeline",), ("--all",), ("--save", str(tmp_path / "step.toml"))):
        result = call("diagnose", trace, *options)
        assert result.exit_code == ExitCode.MEASURED
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", result.output)


def test_existing_files_stay_without_force(tmp_path: Path) -> None:
    trace = saved(tmp_path, program())
    for option, name in (("-o", "page.html"), ("--save", "step.toml"), ("--svg", "screen.svg")):
        path = tmp_path / name
        path.write_text("mine")
        refused = call("diagnose", trace, option, str(path))
        assert refused.exit_code == ExitCode.USAGE
        assert "exists" in refused.output
        assert path.read_text() == "mine"
        assert call("diagnose", trace, option, str(path), "--force").exit_code == ExitCode.MEASURED
        assert path.read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(("option", "name", "next_step"), [
    ("-o", "x.pdf", "name the file x.html; a browser prints it to PDF"), ("-o", "x.json", "name the file x.html"),
    ("--save", "x.html", "name the file x.toml"),
])  # fmt: skip
def test_files_of_another_kind_are_refused(tmp_path: Path, option: str, name: str, next_step: str) -> None:
    refused = call("diagnose", saved(tmp_path, program()), option, str(tmp_path / name))
    assert refused.exit_code == ExitCode.USAGE
    assert f"not as {name}" in refused.output
    assert next_step in refused.output
    assert not (tmp_path / name).exists()


def test_a_page_may_hold_several_traces_and_one_that_cannot_carry_idle_time(tmp_path: Path) -> None:
    lost = kineto(program().trace(work=program().trace().work[::2]))
    (tmp_path / "lost.json").write_bytes(lost)
    page = tmp_path / "page.html"
    result = call("diagnose", saved(tmp_path, program()), str(tmp_path / "lost.json"), "-o", str(page))
    assert result.exit_code == ExitCode.MEASURED
    html = page.read_text(encoding="utf-8")
    assert html.count('class="picture step step"') == 2
    assert html.count('class="picture step flame"') == 1
    assert "not given" in html


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.mark.slow
def test_the_step_can_be_zoomed_and_tells_what_is_under_the_pointer(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    call("diagnose", saved(tmp_path, program()), "-o", str(page))
    with opened(browser, page, viewport=WIDE) as found:
        tab = found.tab
        figure = tab.locator("figure").filter(has_text="Whole step")
        lane = figure.locator(".lane").filter(has_text="stream 7").locator("rect")
        assert lane.count() == 13, "kernels and the copy"
        before = lane.first.bounding_box()["width"]
        for _ in range(3):
            figure.get_by_role("button", name="Zoom in").click()
        assert 0 < lane.count() < 13
        assert lane.first.bounding_box()["width"] > 4 * before
        lane.first.hover()
        told = figure.locator(".told").inner_text()
        assert re.match(r"void at::native::gemm_\d<float, 4>\(float\*\): 6 µs, from [\d.]+ µs on", told)
        left = figure.locator(".axis span").first.inner_text()
        figure.locator(".lanes").focus()
        tab.keyboard.press("ArrowRight")
        assert figure.locator(".axis span").first.inner_text() != left
        tab.keyboard.press("0")
        assert lane.count() == 13
        flame = tab.locator("figure.flame")
        narrow = flame.locator(".lane rect").last
        narrow.hover()
        assert re.search(r": [\d.]+ µs, [\d.]+ %$", flame.locator(".told").inner_text())
        before = narrow.bounding_box()["width"]
        narrow.dblclick()
        assert flame.locator(".lane rect").last.bounding_box()["width"] > 4 * before
        assert (found.complaints, len(found.requests)) == ([], 1)
        tab.set_viewport_size({"width": 390, "height": 740})
        assert tab.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.slow
def test_hostile_names_do_nothing_in_a_browser(browser: Any, tmp_path: Path) -> None:
    for text in HOSTILE:
        page = tmp_path / "page.html"
        call("diagnose", saved(tmp_path, hostile(text)), "-o", str(page), "--force")
        with opened(browser, page, viewport=WIDE) as found:
            for place in range(2):
                for _ in range(4):
                    found.tab.get_by_role("button", name="Zoom in").nth(place).click()
                found.tab.locator("figure").nth(place).locator(".lane rect").first.hover()
            assert found.tab.evaluate("window.broken") is None
            assert (found.complaints, len(found.requests)) == ([], 1)


@pytest.mark.slow
def test_without_scripts_the_step_is_a_still_picture(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    call("diagnose", saved(tmp_path, program()), "-o", str(page))
    with browser.new_context(offline=True, java_script_enabled=False, viewport=WIDE) as context:
        tab = context.new_page()
        tab.goto(page.as_uri())
        assert all(one.is_visible() for one in tab.locator(".still .wide svg").all())
        assert tab.locator(".still .wide svg").count() == 2
        assert tab.get_by_text("GPU idle").first.is_visible()


# The drawing in the terminal


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_typical_step_is_drawn_to_scale(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = call("diagnose", saved(tmp_path, steps_of(kernels=4, duration_ns=30_000, between_ns=30_000)), "--timeline")
    assert result.exit_code == ExitCode.MEASURED
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= int(columns)
    stream, idle = (next(line for line in lines if line.startswith(name))[12:] for name in ("stream 7", "GPU idle"))
    # 30 of every 33 µs a kernel runs: the GPU idles for the 3 µs of the call.
    assert stream.count("█") > 6 * (idle.count("█") + idle.count("▒"))
    assert "Where the time goes" in result.output


def test_a_long_step_shows_how_much_of_each_cell_is_covered(tmp_path: Path) -> None:
    made = steps_of(kernels=200, duration_ns=12_000, between_ns=20_000)
    result = call("diagnose", saved(tmp_path, made), "--timeline")
    assert "height: the share of the time" in result.output
    stream, calls = (
        next(one for one in result.output.splitlines() if one.startswith(name)) for name in ("stream 7", "CUDA")
    )
    # A kernel runs for 12 of every 23 µs, a call for 3.
    assert set(stream[12:].strip()) <= set("▃▄▅▆")
    assert set(calls[12:].strip()) <= set("▁▂")


def test_a_trace_without_steps_is_drawn_whole(tmp_path: Path) -> None:
    made = Recorder()
    for kernel in range(7):
        made.runs(1000 * kernel**2)
        made.launch(f"kernel_{kernel}", 3000)
    result = call("diagnose", saved(tmp_path, made), "--timeline")
    assert result.exit_code == ExitCode.MEASURED
    assert "The trace" in result.output


def test_pictures_need_a_single_trace(tmp_path: Path) -> None:
    two = [saved(tmp_path, program(), name) for name in ("one.json", "two.json")]
    for option in (("--timeline",), ("--save", str(tmp_path / "step.toml"))):
        assert call("diagnose", *two, *option).exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("width", "title"), [("60", "bound"), ("80", "GPU idle"), ("120", "a launch")])
def test_each_trace_has_a_line(tmp_path: Path, width: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow terminal has fewer columns; names and verdicts are never broken."""
    monkeypatch.setenv("COLUMNS", width)
    names = [f"{name}.{kind}.json" for name in ("decode_item", "pageable_images") for kind in ("cpu", "cuda")]
    for name in names:
        saved(tmp_path, steps_of(count=12, kernels=50, between_ns=20_000), name)
    lines = call("diagnose", str(tmp_path), "--run", "nvidia-h200").output.splitlines()
    assert max(map(len, lines)) <= int(width)
    rows = [line.split() for line in lines if "launch-bound" in line]
    assert [row[0] for row in rows] == [name.removesuffix(".json") for name in names]
    head = next(line for line in lines if "bound" in line)
    assert title in head


def test_the_drawing_goes_into_an_svg_file(tmp_path: Path) -> None:
    picture = tmp_path / "step.svg"
    assert (
        call("diagnose", saved(tmp_path, program()), "--timeline", "--svg", str(picture)).exit_code == ExitCode.MEASURED
    )
    assert picture.read_text(encoding="utf-8").startswith("<svg")


# The recorder's costs


def test_a_run_with_launch_watched_gives_the_recorders_costs(tmp_path: Path) -> None:
    trace = saved(tmp_path, steps_of(count=12, kernels=50, between_ns=20_000, marked=True))
    call_s, operator_s, run = 1.5e-6, 0.5e-6, for_a_fit()
    costs = [measurement("call", call_s, calls=1000), measurement("operator", operator_s, calls=1000)]
    of_torch = outcome("launch_watched", costs, records="torch")
    for costs_s, whose, made in (
        (50 * (call_s + operator_s), "measured", with_suite(run, ["launch_watched"], "default", [of_torch])),
        (50 * 6.5e-6, "assumed", run),
    ):
        path = str(save(tmp_path, made))
        found = json.loads(call("diagnose", trace, "--json", "--run", path).output)
        step = found["step"]
        assert step["watched_s"] - step["unwatched_s"] == pytest.approx(costs_s, rel=0.01)
        assert [bool(cost["assumed"]) for cost in step["costs"].values()] == [whose == "assumed"] * 2
        shown = " ".join(call("diagnose", trace, "--run", path).output.split())
        assert ("because the recorder's costs are assumed" in shown) == (whose == "assumed")


def test_the_bundled_reference_is_another_machine(tmp_path: Path) -> None:
    """The same costs in a run of one's own give a narrower interval."""
    trace = saved(tmp_path, steps_of(count=12, kernels=50, between_ns=20_000))
    (reference,) = (path for name, path in bundled().items() if name == REFERENCE_RUN)
    own = shutil.copy(reference, tmp_path / f"own{''.join(reference.suffixes)}")
    answers = [json.loads(call("diagnose", trace, "--json", "--run", str(run)).output) for run in (REFERENCE_RUN, own)]
    assert [one["reference"] for one in answers] == [True, False]
    borrowed, copied = (one["graph"] for one in answers)
    assert borrowed["step_s"] == copied["step_s"]
    assert borrowed["low_s"] < copied["low_s"] < copied["high_s"] < borrowed["high_s"]
    assert "costs of another machine, bundled" in call("diagnose", trace, "--run", REFERENCE_RUN).output
    assert "another machine" not in call("diagnose", trace, "--run", str(own)).output


# The step as a workload file


@pytest.mark.parametrize("given", [(), ("--step", "350us")], ids=["estimated", "given"])
@pytest.mark.parametrize("kind", ["flowing", "waiting", "copying"])
def test_the_saved_step_is_as_long_as_the_diagnosis_says(tmp_path: Path, given: tuple[str, ...], kind: str) -> None:
    made = with_pinned_copies()
    if kind != "copying":
        made = steps_of(count=12, kernels=20, between_ns=20_000, duration_ns=2000, waits=kind == "waiting")
    trace, step = saved(tmp_path, made), tmp_path / "step.toml"
    found = json.loads(call("diagnose", trace, *given, "--json", "--save", str(step), "--run", "nvidia-h200").output)
    predicted = json.loads(call("predict", str(step), "--json", "--run", "nvidia-h200").output)
    assert predicted["stream"]["step_s"] == pytest.approx(found["step"]["unwatched_s"], rel=0.02)
    assert predicted["graph"]["step_s"] == pytest.approx(found["graph"]["step_s"], rel=0.02)
    assert predicted["making_s"] == pytest.approx(found["graph"]["making_s"], rel=0.02)
    assert predicted["break_even_steps"] == found["graph"]["break_even"]
    assert call("whatif", str(step), "--host-time", "0x", "--run", "nvidia-h200").exit_code == ExitCode.MEASURED
    assert call("timeline", str(step), "--run", "nvidia-h200").exit_code == ExitCode.MEASURED


def test_a_saved_step_of_several_streams_keeps_their_events(tmp_path: Path) -> None:
    trace, step = saved(tmp_path, in_turns(between_ns=30_000, duration_ns=5000, through=13)), tmp_path / "step.toml"
    found = json.loads(call("diagnose", trace, "--json", "--save", str(step), "--run", "nvidia-h200").output)
    predicted = json.loads(call("predict", str(step), "--json", "--run", "nvidia-h200").output)
    assert predicted["graph"]["step_s"] == pytest.approx(found["graph"]["step_s"], rel=0.02)
    assert predicted["graph"]["step_s"] > 16 * 5e-6
    assert "wait_event" in step.read_text(encoding="utf-8")
    assert call("timeline", str(step), "--run", "nvidia-h200").exit_code == ExitCode.MEASURED


def test_steps_of_several_shapes_are_saved_together(tmp_path: Path) -> None:
    made = Recorder()
    for step in range(24):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(5, 19_000, 2000, blocks=1 + step % 4)
    step_file = tmp_path / "step.toml"
    found = json.loads(
        call("diagnose", saved(tmp_path, made), "--json", "--save", str(step_file), "--run", "nvidia-h200").output
    )
    predicted = json.loads(call("predict", str(step_file), "--json", "--run", "nvidia-h200").output)
    assert predicted["stream"]["step_s"] / 4 == pytest.approx(found["step"]["unwatched_s"], rel=0.02)
    assert "per_step = 4.0" in step_file.read_text(encoding="utf-8")


def test_a_step_that_cannot_be_played_is_not_saved(tmp_path: Path) -> None:
    step = tmp_path / "step.toml"
    made = Recorder()
    for _ in range(10):
        made.runs(30_000)
        launched_by = made.call("cudaGraphLaunch", 5000)
        for node in range(5):
            made.submit(launched_by, f"kernel_{node}", 3000, node=node)
        made.wait()
    refused = call("diagnose", saved(tmp_path, made), "--save", str(step))
    assert refused.exit_code == ExitCode.USAGE
    assert "cannot be saved" in refused.output
    assert not step.exists()


# A window of the trace


def two_phases() -> Recorder:
    """About 3 ms of short host times, then about 12 ms of long ones, from 0 on."""
    made = steps_of(count=13, kernels=10, between_ns=20_000, duration_ns=2000)
    for _ in range(12):
        for kernel in range(10):
            with made.range("slow"):
                made.runs(100_000)
                made.launch(f"slow_kernel_{kernel}", 2000)
    return made


def test_only_the_window_is_diagnosed(tmp_path: Path) -> None:
    trace = saved(tmp_path, two_phases())
    first = json.loads(call("diagnose", trace, "--to", "2.99ms", "--json").output)
    second = json.loads(call("diagnose", trace, "--from", "2.99ms", "--json").output)
    both = json.loads(call("diagnose", trace, "--from", "0", "--to", "1000s", "--json").output)
    assert first["step"]["watched_s"] == pytest.approx(230e-6, rel=0.01)
    assert second["step"]["watched_s"] == pytest.approx(1030e-6, rel=0.01)
    assert first["trace"]["work"] + second["trace"]["work"] == both["trace"]["work"] == 250
    for part in (first, second):
        assert [check["name"] for check in part["health"]] == ["steps found by repetition"]


def test_a_window_in_the_middle_keeps_each_kernel_with_its_call(tmp_path: Path) -> None:
    trace = saved(tmp_path, steps_of(count=30, kernels=10))
    middle = json.loads(call("diagnose", trace, "--from", "2ms", "--to", "5ms", "--json").output)
    assert middle["trace"]["work"] == middle["trace"]["calls"]
    assert middle["trace"]["work"] == pytest.approx(3e-3 / 23e-6, abs=1)
    assert [check["name"] for check in middle["health"]] == ["steps found by repetition"]


@pytest.mark.parametrize(
    "window", [("--from", "30s"), ("--from", "2ms", "--to", "1ms"), ("--from", "soon"), ("--to", "3")]
)
def test_a_window_without_work_or_that_is_no_time_is_refused(tmp_path: Path, window: tuple[str, ...]) -> None:
    result = call("diagnose", saved(tmp_path, steps_of()), *window)
    assert result.exit_code == ExitCode.USAGE
    assert len(result.output.strip().splitlines()) == 2


@pytest.mark.parametrize(("step", "cause"), [
    (":step", "--step :step names no function"), ("train.py:", "--step train.py: names no function"),
    ("4x", "--step: 4x is not a time"),
])  # fmt: skip
def test_a_step_is_a_time_or_a_place(tmp_path: Path, step: str, cause: str) -> None:
    found = call("diagnose", saved(tmp_path, program()), "--step", step)
    assert found.exit_code == ExitCode.USAGE
    assert cause in found.output


def test_a_function_that_the_trace_does_not_show_is_told_and_the_diagnosis_goes_on(tmp_path: Path) -> None:
    found = call("diagnose", saved(tmp_path, program()), "--step", "train.py:step")
    assert found.exit_code == ExitCode.MEASURED
    assert "Launch-bound" in found.output
    assert "The trace does not tell when train.py:step is called" in found.output


def test_a_step_may_be_an_annotation_by_its_name(tmp_path: Path) -> None:
    made = Recorder()
    for step in range(2):
        with made.range(f"warm_up {step}", "annotation"):
            made.launches(30)
    with made.range("measurement", "annotation"):
        made.launches(8)
        made.wait()
    trace = saved(tmp_path, made)
    found = call("diagnose", trace, "--step", "measurement")
    assert "the only measurement, of 8 kernels" in found.output
    few = Recorder()
    with few.range("phase: eval", "annotation"):
        few.launches(4)
    few.launches(20)
    assert (
        "the only phase: eval, of 4 kernels" in call("diagnose", saved(tmp_path, few), "--step", "phase: eval").output
    )
    trace = saved(tmp_path, made)
    missed = call("diagnose", trace, "--step", "nothing").output
    assert "No step is an annotation called nothing" in missed
    assert "warm_up and measurement" in missed.replace("\n   ", "")


def test_all_adds_tables_to_a_timeline_and_files_are_named(tmp_path: Path) -> None:
    trace, files = saved(tmp_path, program()), [tmp_path / name for name in ("a.html", "b.toml", "c.json")]
    plain, everything = (call("diagnose", trace, "--timeline", *more).output for more in ((), ("--all",)))
    for title in ("Where the time goes", "What to change", "What a graph cannot hold"):
        assert title in everything
        assert (title in plain) == (title == "Where the time goes")
    options = [each for pair in zip(("-o", "--save", "--speedscope"), map(str, files), strict=True) for each in pair]
    written = [line for line in call("diagnose", trace, *options).output.splitlines() if line.startswith("written: ")]
    assert "".join(written).replace("\n", "") == "".join(f"written: {file}" for file in files)


def test_a_missing_file_is_named_as_it_was_typed(tmp_path: Path) -> None:
    missing = tmp_path / "runs" / "trace.json"
    assert f"error: {missing} cannot be read: No such file" in call("diagnose", str(missing), COLUMNS="300").output


def test_one_of_a_kind_has_no_plural(tmp_path: Path) -> None:
    made = Recorder()
    made.launch("kernel", 20_000_000)
    shown = call("diagnose", saved(tmp_path, made)).output
    assert "1 kernel or copy, 1 call" in shown
    assert "most is kernel, 1 time in" in shown
    assert "1 times" not in shown
    assert Check("launches without work", 1, 0.5, "").words == "1 launch without work"
    assert Check("pieces of work in all", 1, 0.0, "").words == "1 piece of work in all"
    assert Check("steps that differ", 2, 0.0, "").words == "2 steps that differ"

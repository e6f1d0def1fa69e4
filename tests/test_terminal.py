"""Ink: widths, marks, colour or none, ASCII, and text with control characters or markup."""

import io
import re
from xml.etree import ElementTree

import msgspec
import pytest
from make_run import failed, make_run, measurement, outcome, skipped
from pages import hostile_run
from sections import drawn, widest

from microbench.archive.export import to_csv, to_json
from microbench.report.sheets import view
from microbench.report.terminal import terminal
from microbench.report.terminal.layout import packed
from microbench.report.terminal.progress import LiveProgress, PlainProgress
from microbench.session.messages import CaseDone, CaseStarted, CaseTick, PlanMade, RunEnded

HOSTILE = (
    "[bold]x[/bold] [/] [link=http://x]y[/link]", "\x1b[31m\x1b]0;title\x07\x1b[2J", "</script><text>&amp;",
    "\u202eevil\u200f\u2066", "a\nb\r\nc\td", "漢字" * 40, "x" * 100_000,
)  # fmt: skip
WORDS = "NVIDIA H200 · 132 SMs · 150 GB · PCIe 5 x16"


@pytest.mark.parametrize(("width", "lines"), [
    (len(WORDS), [WORDS]), (len(WORDS) - 1, ["NVIDIA H200 · 132 SMs · 150 GB ·", "PCIe 5 x16"]),
    (23, ["NVIDIA H200 · 132 SMs ·", "150 GB · PCIe 5 x16"]),
    (22, ["NVIDIA H200 ·", "132 SMs · 150 GB ·", "PCIe 5 x16"]),
    (5, ["NVIDIA H200 ·", "132 SMs ·", "150 GB ·", "PCIe 5 x16"]),
])  # fmt: skip
def test_facts_break_between_things(width: int, lines: list[str]) -> None:
    assert packed(WORDS, width) == lines
    assert " ".join(lines) == WORDS


@pytest.mark.parametrize("width", range(60, 121, 4))
def test_a_number_and_its_unit_stay_together(width: int) -> None:
    text = drawn(make_run(rounds=3), width, brief=True)
    findings = text[text.index("What this means") :]
    assert re.search(r"\d ([num]s|µs)\b", findings)
    assert not re.search(r"\d\n +([num]s|µs|%|[kMGT]?B/s)\b", findings)
    assert "\ue000" not in text


def test_a_fact_of_one_long_thing_keeps_to_its_panel() -> None:
    text = drawn(make_run(gpu_name="SIMULATED " + "GPU of many words " * 12), 60)
    assert "PCIe 5 x16" in text
    assert widest(text) <= 60


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("width", [80, 120])
def test_hostile_text_is_shown_as_text_within_the_page(hostile: str, width: int) -> None:
    text = drawn(hostile_run(hostile), width)
    assert hostile != HOSTILE[0] or hostile.partition(" [link")[0] in text
    assert widest(text) <= width
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
    assert len(text) < 400_000


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_leaves_exports_and_pictures_whole(hostile: str) -> None:
    run = hostile_run(hostile)
    assert "\x1b" not in to_csv(run)
    assert msgspec.json.decode(to_json(run))["run"]["run_id"] == hostile
    for picture in terminal.pictures(view.build(run)):
        ElementTree.fromstring(picture)


def test_every_table_and_picture_of_a_simulated_run_says_so() -> None:
    report = view.build(make_run(extra=[failed()]))
    titles = [study.tables[0].title for section in report.sections for study in section.studies]
    titles += [picture.title for section in report.sections for picture in section.pictures]
    titles += ["Not measured", "What distorts this run", "What this means (launch)", "What this means (host)"]
    lines = drawn(make_run(extra=[failed()]), 120).splitlines()
    for title in titles:
        assert any(line.startswith(title) and line.rstrip().endswith("SIMULATED") for line in lines), title


def test_ascii_output_is_ascii_and_keeps_the_figures() -> None:
    text = drawn(make_run(), 100, "ascii")
    assert text.isascii()
    assert all(words in text for words in ("3.24 us +-0.2 %", "#####", "compiled loop"))


def test_a_page_of_no_width_is_drawn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    stream = io.StringIO()
    terminal.draw(view.build(make_run()), terminal.open_console(stream))
    assert "Submission ladder" in stream.getvalue()


def test_svg_loads_no_font() -> None:
    picture = "".join(terminal.pictures(view.build(make_run())))
    assert "http://www.w3.org/2000/svg" in picture
    assert not any(words in picture for words in ("@font-face", "url(http"))


METRICS = {info.name: info.metrics for info in make_run().benchmarks}


def play(listener: PlainProgress | LiveProgress) -> None:
    """Three cases, one of them skipped before anything starts."""
    listener(PlanMade(2, 0, 20.0, ("host",), 4.0))
    listener(CaseDone(skipped(reason="no \x1b[2J [bold]GPU[/bold]")))
    done = outcome("host_call", [measurement("call", 2e-9)], how="compiled")
    listener(CaseStarted(done.case.id, 0, 2, "host", 0))
    listener(CaseTick(done.case.id, "call", "s", 10, 2e-9))
    listener(CaseDone(done))
    listener(CaseStarted("launch_queue", 1, 2, "launch", 0))
    listener(CaseDone(failed("it broke")))


def test_plain_progress_says_when_there_is_nothing_to_measure_and_why_a_run_ended() -> None:
    stream = io.StringIO()
    with PlainProgress(terminal.open_console(stream, width=40), METRICS) as listener:
        listener(PlanMade(0, 0, 20.0, (), 0.0))
        listener(RunEnded("run.json", "interrupted"))  # type: ignore[arg-type]
    assert stream.getvalue() == "no case to measure\ninterrupted: what was measured is kept in run.json\n"


def test_live_progress_leaves_only_failures_behind() -> None:
    stream = io.StringIO()
    console = terminal.open_console(stream, width=100)
    with LiveProgress(console, METRICS) as listener:
        play(listener)
    assert "it broke" in stream.getvalue()
    assert "skipped" not in stream.getvalue()


def test_time_left_follows_the_forecast_then_the_pace_and_never_passes_the_budget() -> None:
    now = [100.0]
    listener = LiveProgress(terminal.open_console(io.StringIO()), METRICS, clock=lambda: now[0])
    assert listener.seconds_left() is None
    listener(PlanMade(4, 0, 20.0, ("host",), 12.0))
    assert listener.seconds_left() == pytest.approx(12.0)
    listener(CaseStarted("a", 0, 4, "host", 0))
    for _ in range(2):
        listener(CaseDone(outcome("host_timer")))
    now[0] += 4.0
    assert listener.seconds_left() == pytest.approx(0.5 * 4.0 + 0.5 * 8.0)
    now[0] += 15.0
    assert listener.seconds_left() == pytest.approx(1.0)
    now[0] += 15.0
    assert listener.seconds_left() == 0.0


def test_the_rule_of_a_finding_shows_when_it_is_asked_for() -> None:
    report = view.build(make_run())
    rule = "[launch.starving:"
    plain, with_rules = ("".join(terminal.pictures(report, why=why)) for why in (False, True))
    assert rule not in plain.replace("&#160;", " ")
    assert rule in with_rules.replace("&#160;", " ")

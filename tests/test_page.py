"""The page: its parts in order, hostile text that stays text, the run that it contains, and its size."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
from command_line import call
from make_run import failed, make_run, measurement, outcome, skipped
from msgspec.structs import replace
from pages import HOSTILE, Parsed, carried, figure, hostile_run, page_of
from recorded_runs import write
from sections import some

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.analysis.stats import rows
from microbench.archive import remarks, schema, store
from microbench.core.errors import ExitCode
from microbench.core.model import Run, Settings
from microbench.report.document import Phrase, Portion, Prose, Section, Stack, Stacks, TimeLine
from microbench.report.page.details import BINS, Detail, details
from microbench.report.page.machine import commands
from microbench.report.page.page import SAMPLE_STEPS, Subject, build, thinned
from microbench.report.page.templates import sort_key
from microbench.report.sheets import view

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run(rounds=3, extra=[skipped(), failed()])


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return page_of(run).html


@pytest.fixture(scope="module")
def parsed(html: str) -> Parsed:
    return Parsed(html)


def test_findings_come_first_then_figures_then_tables_then_the_machine(run: Run) -> None:
    parsed = Parsed(page_of(run, figures=[figure()]).html)
    places = [str(one["id"]) for one in parsed.tags("section") if "id" in one]
    assert (places[:2], places[-2:]) == (["findings", "figures"], ["environment", "data"])
    assert [place.partition("-")[0] for place in places[2:4]] == ["host", "launch"]


def test_every_word_of_the_report_is_on_it(run: Run, parsed: Parsed) -> None:
    report = view.build(run)
    text = " ".join(parsed.text.split())
    words = [one.title for one in report.environment]
    for section in report.sections:
        words += [section.title, *(picture.title for picture in section.pictures)]
        words += [word for one in section.findings for word in (one.title, one.text, one.threshold)]
        tables = [table for study in section.studies for table in study.tables]
        words += [cell.text for table in tables for row in table.rows for cell in row]
        words += [note for table in tables for note in table.notes]
    words += [text for pair in report.facts for text in pair]
    words += [cell.text for row in some(report.problems).rows for cell in row]
    assert [word for word in words if " ".join(word.split()) not in text] == []


def test_simulated_figures_are_marked_at_every_table_and_picture(parsed: Parsed, run: Run) -> None:
    report = view.build(run)
    drawn = sum(len(section.pictures) for section in report.sections)
    titled = sum(bool(table.title) for section in report.sections for one in section.studies for table in one.tables)
    assert parsed.texts.count("SIMULATED") > drawn + titled


def test_a_figure_says_in_words_what_it_shows(run: Run) -> None:
    parsed = Parsed(page_of(run, figures=[figure(("one", "two"))]).html)
    (drawing,) = (one for one in parsed.tags("div") if one.get("aria-label") == "one: one comes first")
    assert (drawing["class"], drawing["role"]) == ("drawing", "img")
    assert "about it" in parsed.text
    assert [text.strip() for text in parsed.texts].count("two") >= 3, "in both drawings and in the table"


def test_several_runs_have_their_own_places_names_and_files() -> None:
    one, other = make_run(gpu_name="First"), make_run(gpu_name="Second", rounds=2)
    other = replace(other, run_id="other-run")
    made = page_of(one, other)
    parsed = Parsed(made.html)
    assert [str(button["data-name"]) for button in parsed.tags("button") if "data-run" in button] == [
        "simulated-run.json", "other-run.json",
    ]  # fmt: skip
    assert schema.decode(carried(made.html, "run-1")) == thinned(other, made.carried.samples)
    told = msgspec.json.decode(carried(made.html, "details"))
    assert len(told) == len(rows(one)) + len(rows(other))
    assert {"run-0-environment", "run-1-environment"} <= {str(one.get("id")) for one in parsed.tags("section")}


def test_pictures_that_a_figure_draws_are_not_drawn_again(run: Run) -> None:
    pictures = [picture for section in view.build(run).sections for picture in section.pictures]
    anatomy = next(picture for picture in pictures if isinstance(picture, TimeLine))
    parsed = Parsed(page_of(run, figures=[figure()._replace(pictures=(anatomy,))]).html)
    assert [picture.title for picture in pictures if picture.title not in parsed.text] == [anatomy.title]


def test_pictures_of_every_kind_can_be_drawn(run: Run) -> None:
    stacks = Stacks(
        "Stacked", "bars", (Stack("A stack", (Portion("work", 2.0, "2 s"), Portion("rest", 1.0, "")), "3"),)
    )
    prose = Prose("Told", "", ((Phrase("A figure of "), Phrase("3 µs", "strong", True)),))
    report = view.build(run)
    section = Section("launch", "launch", (stacks, prose), (), ())
    told = replace(report, sections=(section,))
    text = Parsed(build([Subject("x", run, evidence_by_device(run), told)], []).html).text
    assert all(words in text for words in ("A stack", "A figure of"))


def test_elements_are_closed_in_turn_and_named_once(parsed: Parsed) -> None:
    assert parsed.faults == []
    ids = [str(attributes["id"]) for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    names = {str(one["aria-labelledby"]) for _, one in parsed.elements if "aria-labelledby" in one}
    places = {str(one["href"])[1:] for one in parsed.tags("a") if str(one["href"]).startswith("#")}
    assert names | places <= set(ids)


def test_the_page_has_landmarks_and_every_table_a_name_and_headings(html: str, parsed: Parsed) -> None:
    assert {"main", "nav", "footer", "h1"} <= {tag for tag, _ in parsed.elements}
    assert parsed.tags("html")[0]["lang"] == "en"
    tables = re.findall(r"<table.*?</table>", html, re.DOTALL)
    assert len(tables) > 10
    for table in tables:
        assert "aria-labelledby" in table or "<caption" in table
        assert '<th scope="col"' in table


@cache
def hostile_page(text: str) -> str:
    return page_of(hostile_run(text), figures=[figure((text, "b"))]).html


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_text(hostile: str) -> None:
    html, harmless = hostile_page(hostile), hostile_page("harmless")
    parsed, expected = Parsed(html), Parsed(harmless)
    assert (parsed.faults, [tag for tag, _ in parsed.elements]) == ([], [tag for tag, _ in expected.elements])
    names = {name for _, attributes in parsed.elements for name in attributes}
    assert names == {name for _, attributes in expected.elements for name in attributes}
    assert hostile != HOSTILE[0] or parsed.texts.count(hostile) > 5, "markup is shown letter by letter"
    details = carried(html, "details").decode()
    assert not UNSEEN.search(html.replace("\n", "") + details)
    assert len(html) < len(harmless) + 600_000
    assert len(details) < 900_000


def test_only_the_pages_own_scripts_may_run_and_nothing_is_fetched(run: Run) -> None:
    parsed = Parsed(page_of(run, figures=[figure()]).html)
    policy = next(str(one["content"]) for one in parsed.tags("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert re.search(r"script-src[^;]*unsafe-inline", policy) is None
    (script,) = (text for attributes, text in parsed.scripts if "type" not in attributes)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert [tag for tag, _ in parsed.elements if tag in ("link", "img", "iframe", "base", "form", "object")] == []
    assert [attributes for _, attributes in parsed.elements if "src" in attributes or ("style" in attributes and
            "url(" in str(attributes["style"]))] == []  # fmt: skip
    assert [one["href"] for one in parsed.tags("a") if not str(one["href"]).startswith("#")] == []


def test_a_small_run_is_carried_whole(run: Run, html: str) -> None:
    assert schema.decode(carried(html, "run-0")) == run
    assert "Every sample that was kept" in html


@pytest.mark.slow
def test_as_many_samples_stay_as_fit() -> None:
    many = [outcome("launch_cold", [measurement("seconds", 0.1 + n, n=512)], what=f"n{n}") for n in range(60)]
    run = make_run(extra=many)
    whole = page_of(run)
    assert (whole.carried.samples, whole.carried.thinned) == (512, False)
    made = whole
    for samples in SAMPLE_STEPS[1:]:
        made = page_of(run, most_bytes=len(made.html.encode()) - 1)
        assert made.carried.samples == samples
        assert f"at most {samples} of its samples" in made.html
        found = schema.decode(carried(made.html, "run-0"))
        assert max(len(one.values) for outcome in found.outcomes for one in outcome.measurements) == samples
        assert [one.n for outcome in found.outcomes for one in outcome.measurements] == [
            one.n for outcome in run.outcomes for one in outcome.measurements
        ]
    assert page_of(run, most_bytes=len(made.html.encode())).html == made.html
    assert page_of(run, most_bytes=1).carried.samples == SAMPLE_STEPS[-1]


def test_samples_that_stay_are_evenly_spaced_and_keep_their_digits() -> None:
    one = measurement("seconds", 1.0, n=2)
    samples = [f"{index}.000000000000000{index % 10}" for index in range(100)]
    raw = replace(one, samples=msgspec.Raw(f"[ {', '.join(samples)} ]".encode()), n=5000)
    run = make_run(gpu=False, extra=[outcome("launch_cold", [raw], what="x")])
    kept = thinned(run, 32).outcomes[-1].measurements[0]
    found = [text.strip() for text in bytes(kept.samples).decode().strip("[]").split(",")]
    assert found == [samples[index * 100 // 32] for index in range(32)]
    assert kept.n == 5000
    assert thinned(run, 100) == run


def test_details_tell_every_row_and_their_columns_count_every_sample(run: Run) -> None:
    found = rows(run)
    told: list[Detail] = []
    place = details(evidence_by_device(run, found), told)
    assert len(told) == len(found)
    row = next(one for one in found if one.benchmark == "launch_cost" and one.metric.name == "submit")
    one = told[some(place(row.device)("launch_cost submit"))]
    assert (one["value"], dict(one["words"])["3 rounds"].count("·")) == ("3.21 µs", 2)
    samples, calls = one["pictures"]
    assert (len(samples["counts"]), sum(samples["counts"])) == (BINS, sum(summary.n for summary in row.summaries))
    assert calls["title"].startswith(f"{row.summaries[0].n and sum(calls['counts'])} single calls")
    assert place("GPU-of-another")("host_call[how=python] call") is not None
    assert place(row.device)("no such row") is None


def test_figures_lead_to_the_details_of_their_row(run: Run, html: str) -> None:
    told = msgspec.json.decode(carried(html, "details"))
    found = re.findall(r'<button data-detail="(\d+)">([^<]*)<', html)
    assert len(found) > 100
    cells = [(int(number), text.strip()) for number, text in found if "[" not in text and text.strip()[0].isdigit()]
    assert [text for number, text in cells if not text.startswith(told[number]["value"])] == []


@pytest.mark.parametrize(("text", "key"), [
    ("2.36 µs", 2.36e-6), ("980 ns", 980e-9), ("1.08 s", 1.08), ("55.4 GB/s", 55.4e9), ("430 k/s", 430e3),
    ("64 KiB", 65536), ("1.04 MiB", 1.04 * 2**20), ("0 B", 0), ("1.14×", 1.14), ("94.7 %", 94.7), ("1021", 1021),
    ("+208 ns", 208e-9), ("−1.5 µs", -1.5e-6), ("±0", 0), ("850 fJ/FLOP", 850e-15), ("1.98 GHz", 1.98e9),
    ("4.69 TB/s, over limit", 4.69e12), ("297 cycles", 297), ("689 TFLOP/s", 689e12), ("16.2 G/s", 16.2e9), ("", None),
    ("–", None), ("bf16", None), ("to the GPU", None), ("2026-11-21 11:03", None), ("580.159.04", None),
    ("0000:1a:00.0", None), ("11:03", None), ("5.0 x16", 5.0),
])  # fmt: skip
def test_cells_are_sorted_by_their_numbers(text: str, key: float | None) -> None:
    assert sort_key(text) == (key if key is None else pytest.approx(key))


def test_commands_say_what_was_asked_for(run: Run) -> None:
    session = run.sessions[0]
    asked = Settings("quick", ("launch", "a b"), {"duration_ns": (1000, 2000)}, "cuda:1", 5, 90.0)
    first, second = (replace(session, settings=one, tool_version="1.2") for one in (Settings(), asked))
    commit = f", commit {session.commit[:12]}" if session.commit else ""
    assert commands(replace(run, sessions=(first,))) == (
        f"pip install .  # in a checkout of microbench 1.2{commit}", "microbench run",
    )  # fmt: skip
    assert commands(replace(run, sessions=(first, second, second)))[1:] == (
        "microbench run --out again.json",
        "microbench run launch 'a b' --quick --set duration_ns=1000,2000 --device cuda:1 --rounds 5 --time-limit 90"
        " --into again.json",
    )


@pytest.fixture
def saved(data: Path) -> Path:
    return write(data / "20250102T030405Z-aaaaaaaa.json", make_run())


def test_report_writes_one_new_file(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = call("report", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, f"{out}: {out.stat().st_size / 1e6:.2f} MB, including the data\n")
    assert schema.decode(carried(out.read_text(encoding="utf-8"), "run-0")) == store.read(saved)
    again = call("report", "-o", str(out))
    assert again.exit_code == ExitCode.USAGE
    assert [line.partition(":")[0] for line in again.stderr.splitlines()] == ["error", "next"]


def test_report_tells_the_same_run_once_and_calls_it_by_its_label(saved: Path, tmp_path: Path) -> None:
    other = saved.with_name("20250102T030405Z-bbbbbbbb.json")
    other.write_bytes(saved.read_bytes())
    remarks.change(other, label="after the update")
    out = tmp_path / "page.html"
    call("report", saved.stem, str(saved), other.stem, "-o", str(out))
    parsed = Parsed(out.read_text(encoding="utf-8"))
    assert len(parsed.tags("h1")) == 2
    assert "after the update" in parsed.text


def test_report_without_names_of_machine_and_user(tmp_path: Path, saved: Path) -> None:
    run = store.read(saved)
    uuid = str(run.sessions[0].environment.gpus[0].uuid)
    remarks.change(saved, label="of Jane")
    out = tmp_path / "page.html"
    assert call("report", "--redact", "-o", str(out)).exit_code == 0
    html = out.read_text(encoding="utf-8")
    inside = html + "".join(carried(html, name).decode() for name in ("run-0", "details"))
    assert uuid not in inside
    assert "of Jane" not in inside
    assert "GPU-1" in inside


def test_findings_name_what_they_rest_on_and_how_many_more() -> None:
    run = make_run()
    report = view.build(run)
    names = tuple(f"launch_layers[arguments=0,family=same_kernel,layer={layer}] submit" for layer in ("loop", "triton"))
    finding = Finding(
        "a.rule", "warning", "A title", "A text", "a threshold", (*names, *(f"fact{n}" for n in range(9)))
    )
    section = Section("launch", "launch", (), (), (finding,), finding, report.sections[-1].device)
    html = build([Subject("x", run, evidence_by_device(run), replace(report, sections=(section,)))], []).html
    parsed = Parsed(html)
    assert "and 5 more" in " ".join(parsed.text.split())
    assert parsed.texts.count("A title") == 1
    assert all(re.search(rf'<button data-detail="\d+">{re.escape(name)}</button>', html) for name in names)

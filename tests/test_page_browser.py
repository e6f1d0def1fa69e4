"""The page in a real browser: drawing, sorting, filtering, details, colours, and downloading its run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PATIENCE_MS, Opened, launched, next_frame, opened, reached_ms
from make_run import failed, make_run, skipped
from pages import CODE, hostile_run, page_of

from microbench.analysis.evidence import evidence_by_device
from microbench.archive import schema, store
from microbench.core.model import Run
from microbench.report.figures.figure import Origin, figures

pytestmark = pytest.mark.slow  # a browser draws each page

WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}
# As in the module that packs them; the promise is here so that it cannot change unseen.
MOST_BYTES = 3_000_000
COLOUR, FILL = (f"element => getComputedStyle(element).{name}" for name in ("backgroundColor", "fill"))


def written(folder: Path, *runs: Run) -> Path:
    origins = [Origin(one) for run in runs for one in evidence_by_device(run)]
    path = folder / "page.html"
    path.write_text(page_of(*runs, figures=list(figures(origins).values())).html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page"), make_run(rounds=3, extra=[skipped(), failed()]))


@pytest.fixture(scope="module")
def shared(browser: Any, path: Path) -> Iterator[Opened]:
    with opened(browser, path, viewport=WIDE) as page:
        yield page


@pytest.fixture
def tab(shared: Opened) -> Iterator[Any]:
    """The page of a made run, as new; no test makes it complain or ask for anything."""
    shared.tab.set_viewport_size(WIDE)
    shared.tab.emulate_media(media="screen", color_scheme="light")
    shared.tab.reload()
    reached_ms(shared.tab, "usable")
    unfold(shared.tab)
    yield shared.tab
    assert shared.complaints == []
    assert [address for address in shared.requests if not address.startswith(("file:", "blob:"))] == []


def unfold(tab: Any) -> None:
    """All text, and the parts of every suite."""
    tab.get_by_role("button", name="Unfold all").click()
    tab.get_by_role("button", name="Unfold these parts").evaluate_all("all => all.forEach(one => one.click())")


def layers(tab: Any) -> Any:
    """The table of what Python adds to a launch: it is long enough to be folded."""
    return tab.locator(".table", has=tab.get_by_role("heading", name="launch_layers")).first


def column(table: Any, heading: str) -> list[str]:
    """The words of a column, in the rows that can be seen."""
    number = [one.inner_text() for one in table.get_by_role("columnheader").all()].index(heading)
    return [row.locator("th, td").nth(number).inner_text() for row in table.locator("tbody tr:visible").all()]


@pytest.mark.parametrize(("width", "seen", "hidden"), [(1280, "wide", "narrow"), (390, "narrow", "wide")])
def test_the_drawing_that_fits_the_screen_is_seen(tab: Any, width: int, seen: str, hidden: str) -> None:
    tab.set_viewport_size({"width": width, "height": 740})
    drawings = tab.locator(".chart .drawing")
    assert drawings.count() >= 1
    assert all(one.is_visible() for one in drawings.locator(f".{seen} svg").all())
    assert not any(one.is_visible() for one in drawings.locator(f".{hidden} svg").all())
    heights = "all => all.map(one => one.getBBox().height * one.getScreenCTM().a)"
    assert min(drawings.locator(f".{seen} text").evaluate_all(heights)) >= 11, "words can be read"


def test_a_heading_sorts_and_says_so(tab: Any) -> None:
    table = layers(tab)
    table.get_by_role("button", name="Show all").click()
    before = column(table, "submit")
    heading = table.get_by_role("columnheader", name="submit")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    ascending = column(table, "submit")
    assert [float(one.split()[0]) for one in ascending] == sorted(float(one.split()[0]) for one in before)
    assert tab.get_by_role("status").inner_text() == "sorted by submit, ascending"
    heading.get_by_role("button").press("Enter")
    assert (heading.get_attribute("aria-sort"), column(table, "submit")) == ("descending", ascending[::-1])
    heading.get_by_role("button").press("Enter")
    assert (heading.get_attribute("aria-sort"), column(table, "submit")) == ("none", before)


def test_words_filter_rows_in_folded_tables_as_well(tab: Any) -> None:
    table = layers(tab)
    assert len(column(table, "layer")) < table.locator("tbody tr").count()
    table.get_by_role("searchbox").fill("JAX")
    assert column(table, "layer") == ["jax_jit"]
    table.get_by_role("searchbox").fill("same loop")
    assert set(column(table, "layer")) == {"loop"}
    table.get_by_role("searchbox").fill("no such row")
    assert column(table, "layer") == []
    assert table.get_by_text("No row has these words.").is_visible()
    assert tab.get_by_role("status").inner_text().startswith("0 of ")


def test_a_figure_opens_its_details(tab: Any) -> None:
    button = layers(tab).locator("button[data-detail]").first
    button.click()
    dialog = tab.get_by_role("dialog", name="launch_layers: submit")
    dialog.wait_for()
    assert "launch_layers[arguments=0,family=same_kernel,layer=loop]" in dialog.inner_text()
    assert dialog.get_by_role("img", name="120 samples of 3 rounds").locator("path.columns").count() == 1
    tab.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert button.evaluate("element => element === document.activeElement")


def test_a_finding_leads_to_what_it_rests_on(tab: Any) -> None:
    nameless = "all => all.filter(one => !one.textContent.trim() && !one.ariaLabel).length"
    assert tab.locator("button").evaluate_all(nameless) == 0
    finding = tab.locator("details.finding", has_text="are launch-bound").first
    finding.locator("summary").press("Enter")
    finding.get_by_role("button", name="launch_cost submit").click()
    tab.get_by_role("dialog", name="launch_cost: submit").wait_for()


def test_a_table_is_one_tab_stop_and_arrow_keys_move_in_it(tab: Any) -> None:
    table = layers(tab)
    buttons = table.locator("button[data-detail]")
    assert [one.get_attribute("tabindex") for one in buttons.all()].count("0") == 1
    buttons.first.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    assert buttons.nth(3).evaluate("element => element === document.activeElement")
    assert buttons.nth(3).get_attribute("tabindex") == "0"


def test_a_table_can_be_reached_however_it_is_sorted_or_filtered(tab: Any) -> None:
    table = layers(tab)
    stop = table.locator("button[data-detail][tabindex='0']")
    assert table.locator(".fold").is_visible()
    table.get_by_role("searchbox").fill("JAX")
    assert not table.locator(".fold").is_visible()
    next_frame(tab)
    assert stop.count() == 1
    assert stop.is_visible()
    table.get_by_role("searchbox").fill("")
    heading = table.get_by_role("columnheader").last.get_by_role("button")
    for _ in range(2):
        heading.click()
        next_frame(tab)
        assert stop.is_visible()


def test_details_stay_open_until_they_are_closed_or_left(tab: Any) -> None:
    layers(tab).locator("button[data-detail]").first.click()
    dialog = tab.get_by_role("dialog", name="launch_layers: submit")
    dialog.wait_for()
    box = dialog.bounding_box()
    tab.mouse.click(box["x"] + 5, box["y"] + 60)  # on its edge, beside the words
    assert dialog.is_visible()
    tab.mouse.click(box["x"] - 5, box["y"] + 60)
    dialog.wait_for(state="hidden")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_follow_the_system_until_the_reader_says_otherwise(tab: Any, system: str) -> None:
    tab.emulate_media(color_scheme=system)
    other = "dark" if system == "light" else "light"
    ground, text = tab.locator(".chart").first, tab.locator(".chart .wide svg text").first
    before, letters = ground.evaluate(COLOUR), text.evaluate(FILL)
    tab.get_by_role("button", name=f"Use {other} colours").click()
    assert before != ground.evaluate(COLOUR)
    assert letters != text.evaluate(FILL)
    assert (before == "rgb(255, 255, 255)") == (system == "light")
    tab.get_by_role("button", name=f"Use {system} colours").click()
    assert ground.evaluate(COLOUR) == before


def test_the_run_can_be_taken_away_and_shown_again(tab: Any, tmp_path: Path) -> None:
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Download simulated-run.json").click()
    assert waiting.value.suggested_filename == "simulated-run.json"
    taken = tmp_path / "taken.json"
    waiting.value.save_as(taken)
    assert store.read(taken) == make_run(rounds=3, extra=[skipped(), failed()])


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_width_makes_the_page_itself_scroll_sideways(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 740})
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    widths = "[...document.querySelectorAll('.table, .chart')].map(e => e.offsetWidth)"
    assert max(tab.evaluate(widths)) <= width


def test_on_a_phone_no_figure_of_a_table_is_beyond_its_edge(tab: Any) -> None:
    tab.set_viewport_size(PHONE)
    next_frame(tab)
    cells = "all => all.filter(one => one.checkVisibility()).map(one => one.getBoundingClientRect().right)"
    rights = tab.locator("td").evaluate_all(cells)
    assert rights
    assert max(rights) <= PHONE["width"]
    cell = layers(tab).locator("tbody tr").first.locator("[data-of=submit]")
    before = cell.evaluate("element => getComputedStyle(element, '::before').content")
    assert before == '"submit "', "each cell names its column"
    tab.set_viewport_size(WIDE)
    next_frame(tab)
    assert layers(tab).get_by_role("columnheader", name="submit").is_visible()


def test_a_printed_page_is_unfolded_on_a_light_background(tab: Any) -> None:
    tab.emulate_media(color_scheme="dark")
    assert tab.pdf(format="A4").startswith(b"%PDF")
    tab.emulate_media(media="print", color_scheme="dark")
    table = layers(tab)
    assert len(column(table, "layer")) == table.locator("tbody tr").count()
    assert tab.locator(".chart").first.evaluate(COLOUR) == "rgb(255, 255, 255)"
    assert not tab.locator(".top").is_visible()


def test_without_scripts_all_words_and_tables_are_there(browser: Any, path: Path) -> None:
    with browser.new_context(offline=True, java_script_enabled=False, viewport=WIDE) as context:
        tab = context.new_page()
        tab.goto(path.as_uri(), timeout=PATIENCE_MS)
        tab.locator("#findings > details > summary").click()
        assert tab.get_by_text("are launch-bound").first.is_visible()
        tab.locator("section[aria-labelledby^=launch] > details > summary").click()
        tab.locator("summary", has_text="launch_layers").first.click()
        table = layers(tab)
        assert len(column(table, "layer")) == table.locator("tbody tr").count()


def test_hostile_text_does_nothing(browser: Any, tmp_path: Path) -> None:
    with opened(browser, written(tmp_path, *map(hostile_run, CODE)), viewport=WIDE) as found:
        assert found.tab.get_by_role("heading", level=1).count() == len(CODE)
        unfold(found.tab)
        for suite in found.tab.locator(".part .suite", has_text="launch_cold").all():
            suite.locator("button[data-detail]").last.click()
            found.tab.get_by_role("dialog").get_by_role("button", name="Close").click()
        assert found.tab.evaluate("window.broken") is None
        assert (found.complaints, len(found.requests)) == ([], 1)


def test_the_reference_fits_and_is_soon_usable(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The time is recorded with the result but not judged, because the machine may be busy."""
    run = store.read(store.bundled()["nvidia-h200"])
    path = written(tmp_path, run)
    assert path.stat().st_size <= MOST_BYTES
    with opened(browser, path, viewport=WIDE, color_scheme="light") as found:
        request.node.user_properties.append(("usable_ms", round(reached_ms(found.tab, "usable"))))
        assert found.tab.locator(".chart .wide svg").count() >= 4
        assert found.tab.locator("table:visible").count() == 0, "tables are folded"
        height = "document.documentElement.scrollHeight"
        assert found.tab.evaluate(height) <= 12 * WIDE["height"]
        found.tab.set_viewport_size(PHONE)
        assert found.tab.evaluate(height) <= 12 * PHONE["height"]
        found.tab.set_viewport_size(WIDE)
        pictures = "[...document.querySelectorAll('.drawing .wide svg')].map(one => one.outerHTML)"
        drawn = found.tab.evaluate(pictures)
        assert len(drawn) == len(set(drawn)), "a picture is drawn twice"
        box = found.tab.locator(".answers").last.bounding_box()
        assert box["y"] + box["height"] <= WIDE["height"], "the numbers are on the first screen"
        found.tab.get_by_role("button", name="Unfold all").click()
        assert found.tab.locator("table:visible").count() == 0, "tables are unfolded suite by suite"
        assert found.tab.evaluate(height) <= 12 * WIDE["height"], "all text and pictures"
        found.tab.get_by_role("button", name="Fold all").click()
        found.tab.goto(f"{path.as_uri()}#findings")
        assert found.tab.locator("#findings .card").first.is_visible()
        assert (found.complaints, len(found.requests)) == ([], 1)
        with found.tab.expect_download() as waiting:
            found.tab.get_by_role("button", name="Download").click()
        waiting.value.save_as(tmp_path / "taken.json")
    taken = schema.decode((tmp_path / "taken.json").read_bytes())
    assert [one.case for one in taken.outcomes] == [one.case for one in run.outcomes]

"""README and docs: their links work in a checkout and on the site, whose pages fit a phone; and they are short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import PATIENCE_MS, launched

from microbench.core.bench import discover

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "lab" / "README.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_link_of_a_checkout_leads_to_a_file() -> None:
    links = [
        (page, link)
        for page in PAGES
        for text in [
            re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        ]  # code has no links
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    ]
    assert len(links) > 50
    assert [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_the_site_begins_with_the_readme_and_has_the_docstrings(site: Path) -> None:
    """mkdocs has built it strictly: with all pages in its menu, and no broken link or anchor."""
    assert "Why does the GPU wait for my program" in (site / "index.html").read_text(encoding="utf-8")
    assert 'id="diagnosedtraces"' in (site / "api" / "index.html").read_text(encoding="utf-8")
    table = (site / "benchmarks" / "index.html").read_text(encoding="utf-8")
    assert [name for name in discover() if f"<code>{name}</code></td>" not in table] == []


@pytest.mark.slow
def test_the_pages_fit_a_phone_and_ask_for_nothing_elsewhere(site: Path) -> None:
    with launched() as browser, browser.new_context(offline=True, viewport={"width": 390, "height": 800}) as context:
        context.set_default_timeout(PATIENCE_MS)
        tab = context.new_page()
        requests: list[str] = []
        tab.on("request", lambda request: requests.append(request.url))
        wide = []
        for page in site.rglob("index.html"):
            tab.goto(page.as_uri())
            if tab.evaluate("document.documentElement.scrollWidth") > 390:
                wide.append(str(page.relative_to(site)))
    assert wide == []
    assert [address for address in requests if not address.startswith("file:")] == []


def test_all_docs_together_are_short() -> None:
    counted = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "lab"]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in counted) <= 18_000

"""The installed Chromium for tests of the page, without a network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The page draws SVG only. Without these, SwiftShader (WebGL in software) has crashed as the browser started.
WITHOUT_GPU = ("--disable-gpu", "--disable-software-rasterizer")
# Nearly as long as pytest gives a test: the machine may be busy.
PATIENCE_MS = 100_000


def executable() -> str:
    """The path of the browser. Without a browser the tests are skipped; in CI they fail."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        no_browser = f"there is no browser here, neither of {', '.join(NAMES)}"
        if os.environ.get("CI"):
            pytest.fail(no_browser)
        pytest.skip(no_browser)
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser; for root without a sandbox."""
    from playwright.sync_api import Error, sync_playwright

    arguments = [*WITHOUT_GPU, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    options = {"executable_path": executable(), "args": arguments, "timeout": PATIENCE_MS}
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(**options)
        except Error:  # a browser that crashed at its start says nothing about the page: try once more
            browser = playwright.chromium.launch(**options)
        with browser:
            yield browser


class Opened(NamedTuple):
    """A page in a tab, what it complained about, and what it asked for."""

    tab: Any
    complaints: list[str]
    requests: list[str]


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Opened]:
    """The file at ``path`` in a tab of its own, ready to use. ``options`` are Playwright's of a context."""
    with browser.new_context(offline=True, reduced_motion="reduce", **options) as context:
        context.set_default_timeout(PATIENCE_MS)
        tab = context.new_page()
        found = Opened(tab, [], [])
        tab.on("console", lambda one: one.type in ("error", "warning") and found.complaints.append(one.text))
        tab.on("pageerror", lambda error: found.complaints.append(str(error)))
        tab.on("request", lambda request: found.requests.append(request.url))
        tab.goto(path.as_uri())
        reached_ms(tab, "usable")
        yield found


def reached_ms(tab: Any, mark: str) -> float:
    """Wait until the page has set that performance mark; returns when, counted from its opening."""
    began = "name => performance.getEntriesByName(name)[0]?.startTime"
    return float(tab.wait_for_function(began, arg=mark).json_value())


def next_frame(tab: Any) -> None:
    """Wait until the page has drawn its latest changes and run the observers of them."""
    tab.evaluate("new Promise(requestAnimationFrame)")

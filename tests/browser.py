"""A real browser for tests of the page: a Chromium of this machine, driven without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str:
    """Where the browser is. Without one tests are skipped, but fail where all of them are to run (CI is set)."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        no_browser = f"there is no browser here, neither of {', '.join(NAMES)}"
        if os.environ.get("CI"):
            pytest.fail(no_browser)
        pytest.skip(no_browser)
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser; whoever is root has no sandbox."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        yield browser
        browser.close()


class Opened(NamedTuple):
    """A page in a tab, what it complained about, and what it asked for."""

    tab: Any
    complaints: list[str]
    requests: list[str]


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Opened]:
    """The file at ``path`` in a tab of its own, all figures drawn. ``options`` are Playwright's of a context."""
    context = browser.new_context(offline=True, reduced_motion="reduce", **options)
    tab = context.new_page()
    found = Opened(tab, [], [])
    tab.on("console", lambda message: message.type in ("error", "warning") and found.complaints.append(message.text))
    tab.on("pageerror", lambda error: found.complaints.append(str(error)))
    tab.on("request", lambda request: found.requests.append(request.url))
    tab.goto(path.as_uri())
    for drawing in tab.locator("[data-figure]").all():
        drawing.locator("svg").first.wait_for(state="attached", timeout=30_000)
    yield found
    context.close()

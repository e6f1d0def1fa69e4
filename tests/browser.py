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
# Figures are SVG. What would draw WebGL in software (SwiftShader) runs its own compiled code in a process that has
# crashed as the browser started.
WITHOUT_GPU = ("--disable-gpu", "--disable-software-rasterizer")
# A busy machine is waited for, nearly as long as pytest gives a test.
PATIENCE_MS = 100_000


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
    from playwright.sync_api import Error, sync_playwright

    arguments = [*WITHOUT_GPU, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    options = {"executable_path": executable(), "args": arguments, "timeout": PATIENCE_MS}
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(**options)
        except Error:  # one that died as it began is no fault of the page: another one, before anything is tested
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
    """When, from its opening on, the page set that mark of its own; waits until it has."""
    began = "name => performance.getEntriesByName(name)[0]?.startTime"
    return float(tab.wait_for_function(began, arg=mark).json_value())


def next_frame(tab: Any) -> None:
    """Wait until the page has drawn what has just been done to it, and has answered to that."""
    tab.evaluate("new Promise(requestAnimationFrame)")

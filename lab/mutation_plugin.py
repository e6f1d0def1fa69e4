"""The part of mutation.py that runs inside of pytest: which lines a test executes, which tests run, which fail."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Recorder:
    """Records which lines of the given files each test executes."""

    def __init__(self, data: str, files: list[str]) -> None:
        from coverage import Coverage

        self.data = data
        self.coverage = Coverage(data_file=None, include=[str(Path.cwd() / file) for file in files])
        self.coverage.set_option("run:disable_warnings", ["no-data-collected", "already-imported"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        failed, start = item.session.testsfailed, time.perf_counter()
        result = yield
        entry = {"test": item.nodeid, "seconds": round(time.perf_counter() - start, 3)}
        data = self.coverage.get_data()
        data.set_query_context(item.nodeid)
        lines = {os.path.relpath(file): sorted(data.lines(file) or ()) for file in data.measured_files()}
        entry |= {"passed": item.session.testsfailed == failed, "lines": lines}
        with open(self.data, "a") as file:
            file.write(json.dumps(entry) + "\n")
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Record lines if this process of tests is one that records."""
    if data := os.environ.get("MUTATION_RECORD"):
        config.pluginmanager.register(Recorder(data, os.environ["MUTATION_FILES"].split(",")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs only the given tests, in the given order."""
    if wanted := os.environ.get("MUTATION_TESTS"):
        order = {name: number for number, name in enumerate(json.loads(Path(wanted).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down which tests fail."""
    if report.failed and (failures := os.environ.get("MUTATION_FAILURES")):
        with open(failures, "a") as file:
            file.write(report.nodeid + "\n")

"""A pytest plugin that checks what a function submits, whether it can be captured, and what a graph gains.

    def test_step(microbench):
        microbench(step, at_most_launches=3, graph=True)
        microbench.counts(step)  # against a file next to the test, which pytest --update-counts writes

Counts and ratios of one process hold on any machine; absolute times do not, so none are asserted.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from microbench.core.errors import MeasurementError, MicrobenchError, Skip

if TYPE_CHECKING:
    from microbench.diagnosis.counts import Counts
    from microbench.gpu.protocol.gpu import Gpu

# Steps and replays are timed in turn, this many of each.
TURNS = 50
MOST_NAME = 150  # bytes of the name of a baseline


def pytest_addoption(parser: pytest.Parser) -> None:
    """The device on which the functions run."""
    parser.getgroup("microbench").addoption(
        "--microbench-device", default=None, help="the GPU of the fixture microbench: cuda:N, a UUID or fake"
    )
    parser.getgroup("microbench").addoption(
        "--update-counts", action="store_true", help="write what microbench.counts() counts as the new baseline"
    )


@pytest.fixture(scope="session")
def microbench_gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """The GPU on which the fixture ``microbench`` runs functions; without one the test is skipped."""
    from microbench.gpu.open import FAKE, open_gpu, probe_environment

    device = request.config.getoption("--microbench-device")
    try:
        environment = probe_environment(device)
        if not environment.gpus:
            pytest.skip(f"microbench: {environment.no_gpu_reason or 'no GPU'}")
        first = environment.gpus[0]
        gpu = open_gpu(FAKE if first.simulated else first.uuid)
    except (MicrobenchError, MeasurementError, Skip) as error:
        pytest.skip(f"microbench: {error}")
    yield gpu
    gpu.close()


@contextmanager
def _failing(otherwise: str = "") -> Iterator[None]:
    """Fail the test for an error, and say what to do next."""
    __tracebackhide__ = True
    try:
        yield
    except MicrobenchError as error:
        pytest.fail(f"{error}; {error.next_step}{otherwise}")
    except MeasurementError as error:
        pytest.fail(str(error))


class Asserted:
    """Runs a function under test and asserts its launches, its graph, its gain and its counts."""

    def __init__(self, gpu: Gpu, request: pytest.FixtureRequest) -> None:
        self._gpu, self._request, self._counted = gpu, request, 0

    def counts(self, function: Callable[..., object], *arguments: object, **named: object) -> Counts:
        """Assert that ``function(*arguments, **named)`` submits no more, and waits no more often, than its baseline.

        That is a file in the folder ``counts`` next to the test, which --update-counts writes. Fails with what is more
        and where; warns if something is less. Gives the counts.
        """
        __tracebackhide__ = True
        from microbench.core.calls import run_whole
        from microbench.core.files import replace
        from microbench.diagnosis.changed import Side, change_words, compare
        from microbench.diagnosis.counts import count_nodes, read_counts, written
        from microbench.experiments.own.callables import OwnCall
        from microbench.experiments.own.step import own_step
        from microbench.library.recordings import counted_call

        call = run_whole(partial(function, *arguments, **named), function)
        with _failing():
            if self._gpu.simulated:
                with self._gpu.case():
                    step: Any = own_step(self._gpu, lambda: OwnCall(call, (*arguments, *named.values()), ""))
                    nodes, waits = step.submitted()
                    found = count_nodes(((node.kind, node.name, 1) for node in nodes), waits)
            else:
                found = counted_call(call)
        self._counted += 1
        update = self._request.config.getoption("--update-counts")
        path = self._baseline()
        before = None
        if path.is_file():
            with suppress(MicrobenchError) if update else _failing(", or by pytest --update-counts"):
                before = read_counts(path.read_bytes(), path.name)
        if update:
            path.parent.mkdir(exist_ok=True)
            os.close(replace(path, written(found, before)))  # at once, because several processes may test
        elif before is None:
            pytest.fail(f"there is no baseline {path}: write it by pytest --update-counts")
        else:
            differences = compare(Side("baseline", before), Side("now", found)).differences
            words = [
                f"  {change_words(one)}{': ' * bool(one.places)}{', '.join(one.places)}"
                for one in differences
                if one.more > 0
            ]
            if any(one.more > 0 and not one.named for one in differences):
                pytest.fail("\n".join(("more than the baseline counts:", *words)))
            if differences:
                warnings.warn(f"counts are not those of {path.name}; pytest --update-counts keeps them", stacklevel=2)
        return found

    def _baseline(self) -> Path:
        """The baseline file. Each test has its own, and so has each call in a test."""
        node = self._request.node
        within = node.nodeid.partition("::")[2].replace("::", ".") or node.name
        name = re.sub(r"[^\w.-]+", "_", f"{node.path.stem}.{within}")
        if len(name.encode()) > MOST_NAME or re.sub(r"[\w.-]|\[(?=[^[]+\]$)|\]$", "", within):
            digest = hashlib.sha256(within.encode(errors="surrogatepass")).hexdigest()[:8]
            name = f"{name.encode()[:MOST_NAME].decode(errors='ignore')}-{digest}"
        return Path(node.path.parent, "counts", name + f"-{self._counted}" * (self._counted > 1) + ".json")

    def __call__(
        self,
        function: Callable[..., object],
        *arguments: object,
        at_most_launches: int | None = None,
        graph: bool | None = None,
        at_least_gain: float | None = None,
        **named: object,
    ) -> None:
        """Assert what is given of ``function(*arguments, **named)``.

        ``at_most_launches`` counts the kernels, copies and memsets of a call by capturing it; where that is impossible,
        its kernels as CUPTI records them. ``graph`` says whether it
        can be captured into a CUDA graph that computes the same. ``at_least_gain`` is how many times as fast as a call
        a replay must be. Fails with the line that prevents the capture, the launches, or the gain.
        """
        __tracebackhide__ = True
        from microbench.core.calls import run_whole
        from microbench.experiments.own.callables import OwnCall
        from microbench.experiments.own.step import NotCapturedError, own_step

        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        call = run_whole(partial(function, *arguments, **named), function)
        with self._gpu.case():
            with _failing():
                step = own_step(self._gpu, lambda: OwnCall(call, (*arguments, *named.values()), file))
            try:
                captured = step.capture(follow=True)
            except NotCapturedError as error:
                if not graph and at_least_gain is None:
                    # Its kernels as profilers record them.
                    if at_most_launches is not None and (count := len(step.profiled_ns())) > at_most_launches:
                        pytest.fail(f"{count} kernels, more than {at_most_launches}")
                    return
                blocker = error.blocker
                pytest.fail(f"no graph can hold it: {blocker.line or blocker.error}\n{blocker.error}")
            if graph is False:
                pytest.fail("a graph can hold it, which graph=False denies")
            if at_most_launches is not None and len(captured.nodes) > at_most_launches:
                names = "\n".join(f"  {node.name or node.kind}" for node in captured.nodes)
                pytest.fail(f"{len(captured.nodes)} launches, more than {at_most_launches}:\n{names}")
            if graph:
                with _failing():
                    step.compare(captured)
            if at_least_gain is not None:
                import numpy as np

                steps_ns, replays_ns = (np.zeros(TURNS, dtype=np.int64) for _ in range(2))
                for turn in range(TURNS):
                    step.submit.round_trips(steps_ns[turn : turn + 1])
                    captured.replay.round_trips(replays_ns[turn : turn + 1])
                gain = float(np.median(steps_ns) / np.median(replays_ns))
                if gain < at_least_gain:
                    pytest.fail(f"a replay is {gain:.2f} times as fast as a call, not {at_least_gain:g} times")


@pytest.fixture
def microbench(microbench_gpu: Any, request: pytest.FixtureRequest) -> Asserted:
    """Asserts launches, graphs and gains of a function: ``microbench(step, at_most_launches=3, graph=True)``; and its
    counts against a baseline: ``microbench.counts(step)``."""
    return Asserted(microbench_gpu, request)

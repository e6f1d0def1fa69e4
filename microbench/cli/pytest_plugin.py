"""A pytest plugin that checks how many launches a function makes, whether it can be captured, and what a graph gains.

    def test_step(microbench):
        microbench(step, at_most_launches=3, graph=True)

Counts and ratios of one process hold on any machine; absolute times do not, so none are asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from microbench.core.errors import MeasurementError, MicrobenchError, Skip

if TYPE_CHECKING:
    from microbench.gpu.protocol.gpu import Gpu

# Steps and replays are timed in turn, this many of each.
TURNS = 50


def pytest_addoption(parser: pytest.Parser) -> None:
    """The device on which the functions run."""
    parser.getgroup("microbench").addoption(
        "--microbench-device", default=None, help="the GPU of the fixture microbench: cuda:N, a UUID or fake"
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


class Asserted:
    """Runs a function under test and asserts its launches, its graph and its gain."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

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
        from microbench.experiments.own.loading import OwnCall
        from microbench.experiments.own.step import NotCapturedError, own_step

        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        call = partial(function, *arguments, **named)
        with self._gpu.case():
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
            try:
                if graph:
                    step.compare(captured)
            except MeasurementError as error:
                pytest.fail(str(error))
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
def microbench(microbench_gpu: Any) -> Asserted:
    """Asserts launches, graphs and gains of a function: ``microbench(step, at_most_launches=3, graph=True)``."""
    return Asserted(microbench_gpu)

"""How transfers are timed and checked: checks compare what the timed calls moved, and cold calls set no sample
length."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from fake_session import QUICK

from microbench.benchmarks.link.link_concurrent import alone_and_together
from microbench.benchmarks.link.link_latency import small_copy
from microbench.benchmarks.link.link_peer import between_gpus
from microbench.core.model import Fact, Measurement
from microbench.core.ops import IntArray
from microbench.experiments.link.copies import engine_copy
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.fake.machine import FakeGate
from microbench.gpu.protocol.gpu import FloatArray, Submit, Transfer
from microbench.meter.timer import Meter
from microbench.meter.transfers import moved

MIB = 1 << 20
COLD_S, WARM_S = 50e-3, 0.2e-3


class Watched:
    """A transfer that writes down what is done with it."""

    def __init__(self, inner: Transfer, log: list[str]) -> None:
        self._inner = inner
        self._log = log
        self.submit: Submit = WatchedSubmit(inner.submit, log)
        self.size_bytes = inner.size_bytes
        self.blocks = inner.blocks

    def fresh(self) -> None:
        self._log.append("fresh")
        self._inner.fresh()

    def check(self) -> str:
        self._log.append("check")
        return self._inner.check()


class WatchedSubmit:
    """Its submit: calls queued, and calls waited for."""

    def __init__(self, inner: Submit, log: list[str]) -> None:
        self._inner = inner
        self._log = log
        self.queue_slots = inner.queue_slots

    def __call__(self, count: int) -> None:
        self._log.append("queued")
        self._inner(count)

    def burst_ns(self, count: int) -> int:
        return self._inner.burst_ns(count)

    def stamps(self, out_ns: IntArray) -> None:
        self._inner.stamps(out_ns)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        self._log.append("waited")
        self._inner.round_trips(out_ns, calls)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    shut = FakeGate.shut

    def logged(gate: FakeGate, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        found.append("shut")
        shut(gate, streams, timeout_s)

    monkeypatch.setattr(FakeGate, "shut", logged)
    return found


def test_nothing_but_what_is_timed_comes_between_poison_and_check(log: list[str]) -> None:
    gpu = open_fake(spread=0)
    meter = Meter(gpu.clock, gpu, limits=QUICK)
    pinned = Watched(engine_copy(gpu, "h2d", "pinned", MIB), log)
    assert [one.metric for one in moved(meter, pinned, device="device", host="host")] == ["device", "host"]
    assert re.fullmatch("waited queued fresh( shut queued)+ check fresh( waited)+ check", " ".join(log))


def test_small_copies_are_checked_as_well(log: list[str]) -> None:
    gpu = open_fake(spread=0)
    transfer = Watched(engine_copy(gpu, "d2h", "pinned", 4), log)
    (found,) = small_copy(Meter(gpu.clock, gpu, limits=QUICK), transfer)
    assert found.needs_verification
    assert re.fullmatch("waited fresh( waited)+ check", " ".join(log))


class ColdAtFirst:
    """Movements of which the first takes far longer: a Peer, or Concurrent copies of one GPU."""

    def __init__(self) -> None:
        self._takes = 0

    def take_s(self, count: int) -> float:
        self._takes += 1
        return COLD_S if self._takes == 1 else count * WARM_S

    def fresh(self) -> None: ...

    def check(self) -> str:
        return "compared"


class ColdTogether(ColdAtFirst):
    def take_s(self, count: int) -> FloatArray:  # type: ignore[override]
        return np.array([super().take_s(count)])


def test_a_cold_first_movement_does_not_set_how_many_make_a_sample() -> None:
    gpu = open_fake(FakeCosts(gpus=2), spread=0)
    meter = Meter(gpu.clock, gpu, limits=QUICK)
    (found,) = between_gpus(meter, ColdAtFirst(), MIB, None)  # type: ignore[arg-type]
    *both, busy = alone_and_together(meter, ColdTogether(), ColdTogether(), MIB, "pcie_h2d")  # type: ignore[arg-type]
    assert [one.calls_per_sample for one in (found, *both) if isinstance(one, Measurement)] == [10, 10, 10]
    assert isinstance(busy, Fact)
    assert busy.name == "others_busy_throughout"


class EndsFirst(ColdAtFirst):
    """The GPU beside the measured one is done before it."""

    def take_s(self, count: int) -> FloatArray:  # type: ignore[override]
        return np.array([count * WARM_S, count * WARM_S / 2])


@pytest.mark.parametrize(("together", "throughout"), [(ColdTogether, True), (EndsFirst, False)])
def test_a_rate_that_was_partly_of_one_alone_says_so(together: type[ColdAtFirst], throughout: bool) -> None:
    gpu = open_fake(FakeCosts(gpus=2), spread=0)
    meter = Meter(gpu.clock, gpu, limits=QUICK)
    *_, busy = alone_and_together(meter, ColdTogether(), together(), MIB, "pcie_h2d")  # type: ignore[arg-type]
    assert isinstance(busy, Fact)
    assert busy.value is throughout

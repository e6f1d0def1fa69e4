"""The search over shapes and the energy of a load, on stand-ins: the fastest wins, joules are those of the counter."""

import itertools

import pytest
from fake_session import QUICK

from microbench.analysis.stats import summarize
from microbench.benchmarks.memory import memory_occupancy
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Measurement, Metric
from microbench.experiments.memory.levels import answering_level
from microbench.experiments.memory.streams import fastest, shapes, stream
from microbench.gpu.fake.gpu import open_fake
from microbench.meter.counters import WINDOW_S, power
from microbench.meter.timer import Meter
from microbench.meter.transfers import moved

MIB = 1 << 20


def test_the_fastest_shape_is_measured_and_named() -> None:
    gpu = open_fake(spread=0.0)
    meter = Meter(gpu.clock, gpu, limits=QUICK)
    with gpu.case():
        best, fact = fastest(gpu, meter, "triad", "fp64", "cuda", 256 * MIB)
        found = _rate(*moved(meter, best, device="bandwidth"))
        rates = {
            shape: _rate(*moved(meter, stream(gpu, "triad", "fp64", 256 * MIB, shape), device="bandwidth"))
            for shape in shapes(gpu, "triad", "cuda")
        }
    assert fact.value == max(rates, key=lambda shape: rates[shape])
    assert len(set(rates.values())) > 1
    assert found == pytest.approx(max(rates.values()), rel=1e-3)


def _rate(found: Measurement) -> float:
    assert found.verified
    return summarize(Metric("bandwidth", "rate", "B/s", ""), found).interval.median


def test_the_answering_level_follows_from_the_touched_bytes() -> None:
    gpu = open_fake()
    l2_bytes = gpu.info.l2_bytes or 0
    assert answering_level(gpu, l2_bytes // 2) == "l2"
    assert answering_level(gpu, l2_bytes) is None
    assert answering_level(gpu, 4 * l2_bytes) == "dram"


class Counting:
    """A GPU of 300 W under load and 100 W idle whose energy counter moves every 100 ms; a call takes a millisecond."""

    queue_slots = None

    def __init__(self, *, counts: bool = True) -> None:
        self.clock = self
        self._counts = counts
        self._at_s = 0.0
        self._energy_j = 0.0

    def now_ns(self) -> int:
        self._at_s += 1e-6
        return round(self._at_s * 1e9)

    def __call__(self, count: int) -> None:
        self._pass(count * 1e-3, 300.0)

    def pause(self, seconds: float) -> None:
        self._pass(seconds, 100.0)

    def _pass(self, seconds: float, power_w: float) -> None:
        for begin_s in itertools.repeat(1e-3, round(seconds / 1e-3)):
            self._at_s += begin_s
            self._energy_j += power_w * begin_s
            if self._counts and round(self._at_s, 3) * 10 % 1 < 0.01:
                self._shown_j = self._energy_j

    _shown_j = 0.0

    def energy_j(self) -> float:
        return self._shown_j

    def synchronize(self) -> None:
        """Nothing is left running."""

    def synchronize_stream(self, stream: int = 0) -> None:
        """Nothing is left running."""


def taken(gpu: Counting, *, idle: bool) -> dict[str, float]:
    meter = Meter(gpu, gpu)  # type: ignore[arg-type]
    found = power(meter, None if idle else gpu, 1e-3, 1000)  # type: ignore[arg-type]
    return {one.metric: one.values[0] for one in found}


def test_power_is_that_of_the_window_and_energy_that_of_a_byte() -> None:
    loaded = taken(Counting(), idle=False)
    assert loaded["power"] == pytest.approx(300, rel=0.02)
    assert loaded["energy"] == pytest.approx(300 / (1000 / 1e-3), rel=0.02)
    assert taken(Counting(), idle=True) == {"power": pytest.approx(100, rel=0.02)}


def test_a_window_is_long_enough_for_the_counter() -> None:
    gpu = Counting()
    taken(gpu, idle=False)
    assert gpu.now_ns() * 1e-9 > WINDOW_S


def test_a_counter_that_stands_still_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="did not move"):
        taken(Counting(counts=False), idle=False)


def test_more_under_way_than_there_is_to_read_is_a_skip() -> None:
    gpu = open_fake()
    meter = Meter(gpu.clock, gpu, limits=QUICK)
    with gpu.case(), pytest.raises(Skip, match=r"ask for 16\.5\d* MiB at once, but the buffer has 16 MiB"):
        list(memory_occupancy.measure(gpu, meter, 1, 1024, 8, 16 * MIB))

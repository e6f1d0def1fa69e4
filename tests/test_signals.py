"""Signals between kernels: recovery of the simulated costs, the finding, and real calls to drivers in C."""

import ctypes
import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from c_library import address, build
from make_fake_run import make_fake_run
from read_findings import check, evidence

from microbench.analysis.evidence import Finding
from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.experiments.launch.stream_signals import SignalStamps, SignalWay
from microbench.explain.rules import of_suite
from microbench.gpu.fake.costs import FakeCosts, SignalCosts
from microbench.host import graph_loops, loops
from microbench.host.affinity import find_cores
from microbench.host.native import c_address
from microbench.report.suites.launch import between

COSTS = FakeCosts()
OTHER = FakeCosts(
    gap_stream_ns=2300,
    signals=SignalCosts(2000, 1900, 2600, 21_000, 8000, 900, 2100, 800, 2400),
)
CLOCK = c_address("clock_gettime")


def signals_of(costs: FakeCosts, *ways: str, launches: bool = True) -> list[Finding]:
    cases = [("launch_signals", {"way": way}) for way in ways] + ([("launch_cost", {})] if launches else [])
    return [one for one in of_suite(evidence(make_fake_run(costs, cases)), "launch") if one.rule == "launch.signals"]


def test_a_host_function_is_advised_against_where_another_way_is_quicker() -> None:
    (told,) = signals_of(COSTS, "event", "host_function", "write_wait")
    check(
        told, "advice", "A host function between two kernels costs 40.8 µs", "wait for the host 4.96 µs",
        "stream costs 1.44 µs",
    )  # fmt: skip
    assert told.advice.startswith("Where latency counts, use cuStreamWriteValue")
    (told,) = signals_of(COSTS, "host_function")  # 6.1 µs there and 2.6 µs back in launch_cost
    check(told, "advice", "!write", "!event", "synchronise and launch again")
    (told,) = signals_of(OTHER, "host_function")
    check(told, "advice", "Where latency counts, synchronise and launch again: ")
    quick = msgspec.structs.replace(COSTS, signals=SignalCosts(host_function_to_ns=2000, host_function_from_ns=2000))
    (told,) = signals_of(quick, "host_function", "write_wait")
    check(told, "note", "costs 5.41 µs")
    (told,) = signals_of(COSTS, "host_function", launches=False)
    check(told, "note")
    assert signals_of(COSTS, "event", "write_wait") == []


def test_the_table_names_each_way_and_leaves_out_what_it_does_not_have() -> None:
    run = make_fake_run(COSTS, [("launch_signals", {"way": way}) for way in ("same_stream", "wait_32", "write_wait")])
    table = between(evidence(run))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["nothing: the same stream", "1.41 µs", "–", "–"],
        ["a wait for 32 bits of the host", "–", "–", "2.98 µs"],
        ["a write and a wait for the answer", "4.96 µs", "1.94 µs", "2.98 µs"],
    ]
    assert between(evidence(make_fake_run(COSTS, [("launch_cost", {})]))) is None


# The compiled loop, with a driver that only remembers its calls.


class Rounds:
    """Rounds of a launch and a copy call, with the words that a stream would write and wait for."""

    def __init__(self, driver: ctypes.CDLL, count: int) -> None:
        self.words = np.zeros(64, dtype=np.uint32)
        self.written, self.answered = (int(self.words[place:].ctypes.data) for place in (0, 32))
        self.out: IntArray = np.zeros((count, 3), dtype=np.int64)
        self.rows: IntArray = np.zeros((count, 2, loops.WIDE_ARGUMENTS), dtype=np.int64)
        self.rows[:, 0, 9] = 5000 + np.arange(count)
        self.rows[:, 1, 2] = 1 + np.arange(count)
        self.addresses = np.array([address(driver, f"driver_{name}") for name in ("launch", "copy")], dtype=np.int64)
        self._synchronize = address(driver, "driver_synchronize")

    def run(self, *, watched: bool, answered: bool, held_ns: int = 0, timeout_ns: int = 10**10) -> int:
        flags = (self.written if watched else 0, self.answered if answered else 0)
        return int(
            loops.signal_rounds(
                self.addresses, self.rows, *flags, held_ns, self._synchronize, 77, CLOCK, timeout_ns, self.out
            )
        )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build("driver", tmp_path_factory.mktemp("driver"))
    library.driver_seen.restype = ctypes.c_int64
    return library


@pytest.fixture
def driver(library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    library.driver_reset(-1)
    yield library
    library.driver_reset(-1)


def test_each_round_makes_its_own_calls_and_is_answered(driver: ctypes.CDLL) -> None:
    rounds = Rounds(driver, 5)
    assert rounds.run(watched=False, answered=True, held_ns=100_000) == 0
    assert driver.driver_calls() == 10
    assert [driver.driver_seen(place) for place in (2, 9, 12)] == [5, 5004, 77], "value, parameters, stream waited for"
    assert rounds.words[32] == 5
    assert (rounds.out[:, 1] == 0).all()
    assert (np.diff(rounds.out[:, 2]) >= 100_000).all()
    rounds = Rounds(driver, 3)
    assert rounds.run(watched=False, answered=False) == 0
    assert not rounds.words.any()


def test_a_word_that_never_comes_is_answered_all_the_same(driver: ctypes.CDLL) -> None:
    """A stream that waits for the answer goes on then, and the rounds end."""
    rounds = Rounds(driver, 4)
    assert rounds.run(watched=True, answered=True, timeout_ns=1_000_000) == -1
    assert rounds.words[32] == 1
    assert driver.driver_seen(12) == 77, "synchronised after the answer"
    driver.driver_reset(1)
    rounds = Rounds(driver, 4)
    assert rounds.run(watched=True, answered=True) == 719, "a failed call is not waited for"
    assert rounds.words[32] == 1


def test_a_host_function_stamps_its_begin_and_end(tmp_path: Path) -> None:
    words: IntArray = np.array([CLOCK, 0, 0], dtype=np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(graph_loops.stamp_on_host.address)(words.ctypes.data)
    assert words[0] == CLOCK
    assert 0 < words[1] <= words[2]


# The experiment of the real GPU, with a driver whose streams are threads.


class StandInCase:
    """What the experiment takes from a Case, in the memory of this process. A cycle is a nanosecond."""

    def __init__(self, *, wide: bool = True) -> None:
        self.context = SimpleNamespace(attribute=lambda name: int(wide))
        self.board = SimpleNamespace(cores=find_cores())
        self._memory: dict[int, np.ndarray] = {}

    def stream(self, index: int) -> int:
        return index + 1

    def event(self, *, timed: bool) -> int:
        return 1

    def cycles(self, duration_ns: int) -> int:
        return duration_ns

    def function(self, name: str, kernel: str) -> int:
        assert (name, kernel) == ("launch", "record")
        return 1

    def pinned(self, count: int) -> np.ndarray:
        return np.zeros(count // 2, dtype=np.uint64).view(np.uint32)

    def device_memory(self, size_bytes: int) -> int:
        words = np.zeros(size_bytes // 8, dtype=np.int64)
        self._memory[int(words.ctypes.data)] = words
        return int(words.ctypes.data)

    def clear(self, address: int, size_bytes: int) -> None:
        self._memory[address][: size_bytes // 8] = 0

    def read(self, address: int, count: int, dtype: Any) -> np.ndarray:
        return self._memory[address][:count].copy()

    def once(self, make: Callable[..., Any], *arguments: object) -> Any:
        return make(self, *arguments)


def real_gpu() -> ModuleType:
    return importlib.import_module("microbench.experiments.launch.stream_signals")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build("stream_driver", tmp_path_factory.mktemp("streams"), "-pthread")


@pytest.fixture
def case() -> StandInCase:
    return StandInCase()


@pytest.fixture
def streams(played: ctypes.CDLL, case: StandInCase, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The driver. Its threads end before the memory of the case is released."""
    module = real_gpu()
    from microbench.experiments.launch import exchanges
    from microbench.gpu.cuda import submit

    def tie(case: StandInCase) -> exchanges.ClockTie:
        now_ns = time.monotonic_ns()
        return exchanges.ClockTie(now_ns, now_ns, 100)

    for where in (module, submit):
        monkeypatch.setattr(where, "entry_point", lambda name: address(played, name))
    monkeypatch.setattr(module, "clock_tie", tie)
    monkeypatch.setattr(module, "globaltimer_step_ns", lambda case: 32)
    monkeypatch.setattr(module, "WATCH_TIMEOUT_NS", 2_000_000_000)
    played.streams_start()
    yield played
    played.streams_stop()


def pairs(case: StandInCase, way: SignalWay, count: int = 4) -> SignalStamps:
    experiment = real_gpu().StreamSignals(case, way, count)
    stamps: SignalStamps = experiment.stamps()
    return stamps


@pytest.mark.parametrize("way", get_args(SignalWay))
def test_real_calls_make_each_second_kernel_wait(streams: ctypes.CDLL, case: StandInCase, way: SignalWay) -> None:
    """``stamps`` checks every pair; those that a busy machine delays are left out."""
    stamps, round_trip_ns, step_ns = pairs(case, way)
    assert (round_trip_ns, step_ns) == (100, 32)
    assert stamps.shape[1] == 5
    queued, ended, begun, seen, answered = stamps.T
    assert (queued < ended).all()
    assert (ended <= begun).all()
    to_host = way == "host_function" or way.startswith("write")
    from_host = way in ("host_function", "write_wait", "wait_32", "wait_64")
    assert set(seen > 0) <= {to_host}
    assert set(answered > 0) <= {from_host}
    assert (np.diff(stamps[:, [1, 4, 2]]) >= 0).all() or not from_host


NOBODY_HELD = r"began before the signal that it waits for|did not run"


@pytest.mark.parametrize(("fault", "limit", "value", "words", "ways"), [
    # The host answers late, so that the streams' threads have run before also on a busy machine; behind an event it
    # does not answer, and one pair of many is enough.
    ("ignore", "SIGNAL_HELD_NS", 20_000_000, NOBODY_HELD, ("event", "wait_32", "wait_64")),
    ("lose", "WATCH_TIMEOUT_NS", 2_000_000, "did not see the word", ("write_64", "write_wait")),
    ("block", "RELEASE_S", 0.05, "a launch blocked behind a wait", ("wait_32", "write_wait")),
])  # fmt: skip
def test_a_signal_that_fails_ends_the_case_and_not_the_machine(
    fault: str, limit: str, value: float, words: str, ways: tuple[SignalWay, ...],
    streams: ctypes.CDLL, case: StandInCase, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(real_gpu(), limit, value)
    getattr(streams, f"streams_{fault}")(1)
    for way in ways:
        with pytest.raises(MeasurementError, match=words):
            pairs(case, way, count=200 if way == "event" else 8)


def test_operations_that_gpu_or_driver_lack_are_skipped(streams: ctypes.CDLL, case: StandInCase) -> None:
    with pytest.raises(Skip, match="64 bits"):
        pairs(StandInCase(wide=False), "write_64")
    streams.streams_refuse(801)
    with pytest.raises(Skip, match="NOT_SUPPORTED"):
        pairs(case, "write_wait")
    streams.streams_refuse(12345)
    with pytest.raises(MeasurementError, match=r"two kernels and a signal.*12345"):
        pairs(case, "wait_32")

"""The compiled host loops against a driver in C that remembers what it was called with."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from c_library import address, build

from microbench.core.ops import IntArray
from microbench.experiments.launch import exchanges
from microbench.host import loops
from microbench.host.affinity import find_cores, on_cores
from microbench.host.native import NativeHost, c_address

CLOCK = c_address("clock_gettime")
LAUNCH = [0x7FFF_0000_1234, 65536, 1, 1, 1024, 1, 1, 0xFFFF_FFFF, 0x1_0000_0001, 0x7FFF_0000_5678, 0]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build("driver", tmp_path_factory.mktemp("driver"))
    library.driver_seen.restype = ctypes.c_int64
    return library


@pytest.fixture(autouse=True)
def fresh(driver: ctypes.CDLL) -> None:
    driver.driver_reset(-1)


def wide(*changes: tuple[int, int]) -> IntArray:
    arguments: IntArray = np.array(LAUNCH, dtype=np.int64)
    for index, value in changes:
        arguments[index] = value
    return arguments


def test_a_launch_passes_its_eleven_arguments_with_their_widths(driver: ctypes.CDLL) -> None:
    assert loops.submit(address(driver, "driver_launch"), wide(), 0, 3) == 0
    assert driver.driver_calls() == 3
    assert [driver.driver_seen(index) for index in range(11)] == LAUNCH
    loops.submit(address(driver, "driver_launch"), wide(), 24, 5)
    assert driver.driver_seen(9) == LAUNCH[9] + 4 * 24, "parameters move on by the stride with each call"


def test_four_arguments_go_through_the_narrow_form(driver: ctypes.CDLL) -> None:
    arguments = np.array([0x7000_0000_0000, 0x7FFF_0000_0008, 1 << 40, 77], dtype=np.int64)
    code, elapsed_ns = loops.submit_timed(address(driver, "driver_copy"), arguments, 0, 2, CLOCK)
    assert (code, driver.driver_calls()) == (0, 2)
    assert [driver.driver_seen(index) for index in range(4)] == arguments.tolist()
    assert elapsed_ns >= 0


def test_one_failing_call_among_many_is_reported(driver: ctypes.CDLL) -> None:
    launch, wait = address(driver, "driver_launch"), address(driver, "driver_synchronize")
    out: IntArray = np.zeros(11, dtype=np.int64)
    calls: tuple[Callable[[], int], ...] = (
        lambda: loops.submit(launch, wide(), 0, 10),
        lambda: loops.submit_timed(launch, wide(), 0, 10, CLOCK)[0],
        lambda: loops.submit_stamped(launch, wide(), 0, CLOCK, out),
        lambda: loops.round_trips(launch, wide(), 1, wait, 5, CLOCK, out),
        lambda: loops.submit_round_robin(
            launch, wide(), np.array([1, 2]), 10, address(driver, "driver_synchronize"), CLOCK
        )[0],
    )
    for submit in calls:
        driver.driver_reset(6)
        assert submit() == 719
    assert [loops.first_code(*pair) for pair in ((0, 0), (0, 7), (5, 0), (5, 7))] == [0, 7, 5, 5]


def test_stamps_round_trips_and_streams_in_turn(driver: ctypes.CDLL) -> None:
    launch, wait = address(driver, "driver_launch"), address(driver, "driver_synchronize")
    out: IntArray = np.zeros(101, dtype=np.int64)
    assert loops.submit_stamped(launch, wide(), 0, CLOCK, out) == 0
    assert driver.driver_calls() == 100
    assert (np.diff(out) >= 0).all()
    assert out[0] > 0
    for calls in (1, 3):
        driver.driver_reset(-1)
        loops.round_trips(launch, wide(), calls, wait, 99, CLOCK, out[:7])
        assert driver.driver_calls() == 7 * calls
        assert driver.driver_seen(12) == 99
        assert (out[:7] > 0).all()
    driver.driver_reset(-1)
    loops.submit_round_robin(launch, wide(), np.array([11, 22, 33]), 5, wait, CLOCK)
    assert (driver.driver_calls(), driver.driver_seen(8)) == (5, 22)


def test_each_launch_is_waited_for_on_its_stream_or_on_an_event(driver: ctypes.CDLL) -> None:
    launch, record, wait = (address(driver, f"driver_{name}") for name in ("launch", "copy", "synchronize"))
    out: IntArray = np.zeros((5, 3), dtype=np.int64)
    assert loops.launch_and_wait(launch, wide(), 24, 0, 0, wait, 99, CLOCK, out) == 0
    assert (driver.driver_calls(), driver.driver_seen(12)) == (5, 99)
    assert driver.driver_seen(9) == LAUNCH[9] + 4 * 24
    assert (np.diff(out.ravel()) >= 0).all()
    driver.driver_reset(-1)
    assert loops.launch_and_wait(launch, wide(), 24, record, 7, wait, 99, CLOCK, out) == 0
    assert [driver.driver_seen(place) for place in (0, 1, 12)] == [7, 99, 7], "recorded in the stream, then waited for"
    driver.driver_reset(3)
    assert loops.launch_and_wait(launch, wide(), 0, 0, 0, wait, 99, CLOCK, out) == 719


def test_the_gpus_timer_is_put_on_the_host_clock_without_loss() -> None:
    gpu_ns = 1_780_000_000_000_000_000  # a float holds such a number to 256 ns
    before = exchanges.ClockTie(5_000, gpu_ns, 1_700)
    after = exchanges.ClockTie(5_000 + 10_000_050, gpu_ns + 10**7, 1_650)
    stamps: IntArray = np.array([[0, 32], [5_000_000, 10**7]], dtype=np.int64) + gpu_ns
    assert exchanges.on_host_clock(stamps, before, after).tolist() == [[5_000, 5_032], [5_005_025, 10_005_050]]


def watched(driver: ctypes.CDLL, launch: str, count: int, params: Callable[[int], int]) -> tuple[int, int, IntArray]:
    """Launch and synchronise while another thread watches the flag: both results, and the stamps."""
    words = np.zeros(64, dtype=np.uint32)
    flag, seen = int(words.ctypes.data), int(words[32:].ctypes.data)
    out: IntArray = np.zeros((count, 4), dtype=np.int64)
    watcher = on_cores(lambda: loops.watch_flag(flag, seen, CLOCK, 10**10, out), find_cores().allowed)
    synchronize, arguments = address(driver, "driver_synchronize"), wide((9, params(flag)))
    code = loops.launch_and_synchronize(address(driver, launch), arguments, 16, synchronize, 3, seen, CLOCK, out)
    return code, watcher.result(), out


def test_a_watcher_in_another_thread_sees_every_flag(driver: ctypes.CDLL) -> None:
    count, keep = 200, []

    def rows(flag: int) -> int:
        keep.append(np.array([[flag, index + 1] for index in range(count)], dtype=np.uint64))
        keep.append(keep[0].ctypes.data + 8 * np.arange(2 * count, dtype=np.uint64))
        return int(keep[1].ctypes.data)

    code, seen, out = watched(driver, "driver_mark", count, rows)
    assert (code, seen) == (0, count)
    assert (out > 0).all()
    assert (np.diff(out[:, [0, 1, 3]]) >= 0).all()
    assert (out[:, 2] >= out[:, 0]).all()


def test_watchers_and_questions_give_up(driver: ctypes.CDLL) -> None:
    driver.driver_reset(0)
    assert watched(driver, "driver_launch", 5, lambda flag: LAUNCH[9])[:2] == (719, 0), "the launch failed"
    words = np.zeros(64, dtype=np.uint32)
    flag, seen = int(words.ctypes.data), int(words[32:].ctypes.data)
    assert loops.watch_flag(flag, seen, CLOCK, 1_000_000, np.zeros((5, 4), dtype=np.int64)) == 0
    assert loops.ask(flag, seen, CLOCK, 1_000_000, np.zeros((3, 2), dtype=np.int64)) == 0


def test_a_cached_loop_is_right_in_another_process_with_other_addresses(tmp_path: Path) -> None:
    script = (
        "import numpy as np\n"
        "from microbench.host import loops\n"
        "from microbench.host.native import c_address\n"
        "a = np.zeros(4, dtype=np.int64)\n"
        "a[0] = -7\n"
        "print(loops.submit(c_address('abs'), a, 0, 1), sum(loops.submit.stats.cache_hits.values()))\n"
    )
    variables = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin"}
    runs = [
        subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout.split() == ["7", "0"]
    assert runs[1].stdout.split() == ["7", "1"]


def test_host_calls_hand_offs_and_copies_take_time() -> None:
    host = NativeHost()
    for how in ("spin", "event", "pipe"):
        assert (host.wakeup_stamps(how, 20) > 0).all()
    assert host.copy_s(2, 1 << 16) > 0
    for how in ("compiled", "compiled_from_python", "ctypes", "python"):
        assert host.call_s(how, 100) > 0
    host.copy_s(1, 4096)
    source, destination = host.buffers(0, 4096)
    assert (destination == source).all()
    assert source.any()


def test_threads_start_together_and_warm_up_first(driver: ctypes.CDLL) -> None:
    words = np.zeros(64, dtype=np.uint32)
    ready, start = int(words.ctypes.data), int(words[32:].ctypes.data)
    out: IntArray = np.zeros((2, 2), dtype=np.int64)
    launch = address(driver, "driver_launch")
    threads = [
        on_cores(lambda one=one: loops.submit_together(launch, wide(), 1, 10, CLOCK, ready, start, one), {0, 1})  # type: ignore[misc]
        for one in out
    ]
    assert loops.start_when_ready(ready, start, 2, CLOCK)
    assert [thread.result() for thread in threads] == [0, 0]
    assert (out[:, 1] >= out[:, 0]).all()
    assert driver.driver_calls() == 22

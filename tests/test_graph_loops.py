"""The compiled loops over graphs against a driver in C that remembers which calls they make, and with which handles."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from c_library import address, build

from microbench.core.ops import IntArray
from microbench.host import graph_loops as loops
from microbench.host.native import c_address

CLOCK = c_address("clock_gettime")
STREAM = 7
STALE = 66
FUNCTIONS = (
    "begin_capture", "end_capture", "create", "add_kernel", "instantiate", "upload", "replay", "synchronize",
    "destroy_executable", "destroy", "update", "set_params",
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build("graph_driver", tmp_path_factory.mktemp("driver"))
    library.graph_order.restype = ctypes.c_char_p
    library.graph_last.restype = ctypes.c_int64
    return library


@pytest.fixture
def driver(library: ctypes.CDLL) -> ctypes.CDLL:
    library.graph_reset(-1)
    return library


def entries(driver: ctypes.CDLL) -> IntArray:
    return np.array([address(driver, name) for name in FUNCTIONS], dtype=np.int64)


def launch_row(driver: ctypes.CDLL, parameters: int = 1000) -> IntArray:
    return np.array([1, 1, 1, 1, 32, 1, 1, 0, STREAM, parameters, 0, address(driver, "launch")], dtype=np.int64)


def order(driver: ctypes.CDLL) -> str:
    return str(driver.graph_order().decode())


def live(driver: ctypes.CDLL, nodes: int, *, captured: bool) -> tuple[int, IntArray]:
    handles: IntArray = np.zeros(nodes, dtype=np.int64)
    scratch: IntArray = np.array([STALE, STALE], dtype=np.int64)  # handles of a life before
    addresses: IntArray = np.array([scratch.ctypes.data, handles.ctypes.data], dtype=np.int64)
    out: IntArray = np.zeros(8, dtype=np.int64)
    driver.graph_forbid(STALE)
    code = loops.live(
        entries(driver), launch_row(driver), 5000, handles, addresses, scratch, captured, STREAM, CLOCK, out
    )
    return code, out


def test_a_captured_life_is_uploaded_and_a_built_one_chains_its_nodes(driver: ctypes.CDLL) -> None:
    code, out = live(driver, 3, captured=True)
    assert code == 0
    assert order(driver) == "BKKKEIUSLSXD"
    assert (np.diff(out) >= 0).all()
    assert out[3] > out[2]
    assert driver.graph_last(0) == 100, "the graph that the capture gave is destroyed"
    driver.graph_reset(-1)
    code, out = live(driver, 3, captured=False)
    assert code == 0
    assert order(driver) == "CAAAILSXD"
    assert out[2] == out[3] == out[4]


def test_each_node_depends_on_the_one_before(driver: ctypes.CDLL) -> None:
    nodes: IntArray = np.zeros(4, dtype=np.int64)
    graph: IntArray = np.zeros(2, dtype=np.int64)
    code = loops.build(entries(driver), 5000, 72, 4, nodes, int(nodes.ctypes.data), int(graph.ctypes.data), graph)
    assert code == 0
    assert graph[0] == 100
    assert nodes.tolist() == [101, 102, 103, 104]
    assert [driver.graph_last(index) for index in range(4)] == [100, 103, 1, 5000 + 3 * 72]


@pytest.mark.parametrize(("captured", "fails", "calls"), [
    (True, 0, "BKKKED"), (True, 2, "BKKKED"), (True, 5, "BKKKEID"), (True, 6, "BKKKEIUSXD"), (True, 8, "BKKKEIUSLSXD"),
    (False, 2, "CAAAD"), (False, 4, "CAAAID"), (False, 5, "CAAAILSXD"), (False, 7, "CAAAILSXD"),
])  # fmt: skip
def test_a_failed_life_destroys_what_was_made(driver: ctypes.CDLL, captured: bool, fails: int, calls: str) -> None:
    driver.graph_reset(fails)
    assert live(driver, 3, captured=captured)[0] == 900
    assert order(driver) == calls
    assert not driver.graph_forbidden(), "a handle of an earlier life was used"


def test_each_changed_node_gets_its_own_parameters_and_two_replays_follow(driver: ctypes.CDLL) -> None:
    nodes: IntArray = np.array([11, 12, 13], dtype=np.int64)
    out: IntArray = np.zeros(9, dtype=np.int64)
    assert loops.change_nodes(entries(driver), 55, nodes, 5000, 72, 2, STREAM, CLOCK, out) == 0
    assert order(driver) == "NNLSLS"
    assert (np.diff(out) >= 0).all()
    assert out[0] == out[1]
    driver.graph_reset(1)
    assert loops.change_nodes(entries(driver), 55, nodes, 5000, 72, 2, STREAM, CLOCK, out) == 900


@pytest.mark.parametrize(("rebuild", "calls"), [(False, "BKKEPLSLSD"), (True, "BKKEILSLSXD")])
def test_changes_of_the_whole_graph(driver: ctypes.CDLL, rebuild: bool, calls: str) -> None:
    scratch: IntArray = np.array([0, 55], dtype=np.int64)
    result: IntArray = np.zeros(3, dtype=np.int64)
    out: IntArray = np.zeros(9, dtype=np.int64)

    def change() -> int:
        return int(
            loops.change_whole(
                entries(driver), launch_row(driver), 24, 2, scratch, int(scratch.ctypes.data),
                int(result.ctypes.data), rebuild, STREAM, CLOCK, out,
            )
        )  # fmt: skip

    assert change() == 0
    assert order(driver) == calls
    assert (np.diff(out) >= 0).all()
    assert scratch[1] == (101 if rebuild else 55)
    executable = scratch[1]
    driver.graph_reset(4)  # the update, or the instantiation, is refused: nothing is replayed, the old one stays
    assert change() == 900
    assert order(driver) == ("BKKEID" if rebuild else "BKKEPD")
    assert scratch[1] == executable
    driver.graph_reset(1)  # a launch cannot be captured
    assert change() == 900
    assert order(driver) == "BKKED"


def test_rows_are_called_in_turn_and_can_take_a_value_that_an_earlier_call_wrote(driver: ctypes.CDLL) -> None:
    scratch: IntArray = np.zeros(1, dtype=np.int64)
    addresses: IntArray = np.array([address(driver, name) for name in ("allocate", "release")], dtype=np.int64)
    rows: IntArray = np.zeros((2, 11), dtype=np.int64)
    rows[0, :3] = scratch.ctypes.data, 4096, STREAM
    rows[1, :2] = 0, STREAM
    takes: IntArray = np.array([-1, 0], dtype=np.int64)
    assert loops.submit_rows(addresses, rows, takes, scratch, 5) == 0
    assert order(driver) == "MFMFM"
    driver.graph_reset(-1)
    assert loops.submit_rows(addresses, rows, takes, scratch, 4) == 0
    assert driver.graph_last(0) == scratch[0] == 101, "the second pair frees what it allocated"
    out: IntArray = np.zeros(4, dtype=np.int64)
    driver.graph_reset(-1)
    wait = address(driver, "synchronize")
    assert loops.rows_round_trips(addresses, rows, takes, scratch, 2, wait, 9, CLOCK, out) == 0
    assert driver.graph_last(0) == 9
    assert order(driver) == "MFS" * 4
    assert (out > 0).all()
    driver.graph_reset(-1)
    assert loops.submit_rows_stamped(addresses, rows, takes, scratch, 2, CLOCK, out) == 0
    assert order(driver) == "MF" * 3
    assert (np.diff(out) > 0).all()


@pytest.mark.parametrize("waits", [True, False])
def test_iterations_end_when_the_flag_is_set(driver: ctypes.CDLL, waits: bool) -> None:
    flag: IntArray = np.zeros(1, dtype=np.int64)
    slot: IntArray = np.array([flag.ctypes.data], dtype=np.int64)
    parameters: IntArray = np.array([slot.ctypes.data], dtype=np.int64)
    row = launch_row(driver, int(parameters.ctypes.data))[:11]
    wait = address(driver, "synchronize") if waits else 0
    code, took_ns = loops.iterate(address(driver, "count_up"), row, wait, STREAM, int(flag.ctypes.data), 6, CLOCK)
    assert (code, flag[0]) == (0, 6)
    assert took_ns > 0
    assert order(driver) == ("KS" if waits else "K") * 6


def test_a_host_function_appends(tmp_path: Path) -> None:
    words = np.array([41, 0, 0], dtype=np.int32)
    call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(loops.append_on_host.address)
    call(words.ctypes.data)
    call(words.ctypes.data + 4)
    assert words.tolist() == [41, 42, 43]


def test_a_timed_call_returns_its_code(driver: ctypes.CDLL) -> None:
    driver.graph_reset(0)
    code, took_ns = loops.timed_call(address(driver, "update"), 1, 2, 3, CLOCK)
    assert (code, [driver.graph_last(index) for index in range(3)]) == (900, [1, 2, 3])
    assert took_ns > 0

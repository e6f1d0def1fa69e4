"""Compiled loops over host pages: pages are touched and unmapped, stamps are in order, calls are paired."""

import ctypes
import mmap

import numpy as np
import pytest

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.experiments.link.pipeline import UNIT_BYTES, cut
from microbench.host.loops import map_and_touch, read_pages, take_and_release, touch_pages
from microbench.host.native import c_address

CLOCK = c_address("clock_gettime")
MMAP, MUNMAP = c_address("mmap"), c_address("munmap")
PAGE = mmap.PAGESIZE


def stamps() -> IntArray:
    return np.zeros(4, dtype=np.int64)


def minor_faults() -> int:
    with open("/proc/self/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[7])


@pytest.mark.parametrize("pages", [1, 100])
def test_pages_are_mapped_touched_and_unmapped(pages: int) -> None:
    out = stamps()
    map_and_touch(MMAP, MUNMAP, PAGE, PAGE, CLOCK, out)  # loads the loop
    before = minor_faults()
    assert map_and_touch(MMAP, MUNMAP, pages * PAGE, PAGE, CLOCK, out)
    assert minor_faults() - before >= 1
    assert (np.diff(out) >= 0).all()
    assert out[1] > out[0]
    assert out[3] > out[2]


def test_a_refused_mapping_is_noticed() -> None:
    out = stamps()
    assert not map_and_touch(MMAP, MUNMAP, 1 << 60, PAGE, CLOCK, out)
    assert out[0] > 0
    assert out[1] == 0


def test_every_page_is_written_and_no_other_word() -> None:
    words = np.zeros(5 * PAGE // 4 // 2, dtype=np.uint32)
    touch_pages(int(words.ctypes.data), words.nbytes, PAGE)
    assert list(np.flatnonzero(words)) == [0, PAGE // 4, 2 * PAGE // 4]


def test_the_first_word_of_every_page_is_read() -> None:
    words = np.arange(5 * PAGE // 4 // 2, dtype=np.uint32)
    words[PAGE // 4] = 0xFFFFFFFF  # read as -1
    out: IntArray = np.zeros(2, dtype=np.int64)
    read_pages(int(words.ctypes.data), words.nbytes, PAGE, CLOCK, out)
    assert out[0] > 0
    assert out[1] == -1 + 2 * PAGE // 4


CALLED = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)
RELEASED = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 2)


@pytest.mark.parametrize(("taken", "released"), [(0, 0), (0, 7), (2, 7)])
def test_the_handle_that_a_call_wrote_is_released(taken: int, released: int) -> None:
    calls: list[tuple[int, ...]] = []
    held: IntArray = np.zeros(1, dtype=np.int64)

    def take(a: int, b: int, c: int, d: int) -> int:
        calls.append((a, b, c, d))
        held[0] = 4711
        return taken

    def release(what: int, last: int) -> int:
        calls.append((what, last))
        return released

    functions = (CALLED(take), RELEASED(release))
    first, second = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    out = stamps()
    # The loops let go of the interpreter's lock; ctypes takes it again for each call.
    assert take_and_release(first, 1, 2, 3, 4, second, 5, held, CLOCK, out) == (taken, 0 if taken else released)
    assert calls == [(1, 2, 3, 4)] + ([] if taken else [(4711, 5)])
    assert (np.diff(out[: 2 if taken else 4]) >= 0).all()
    assert (out[2:] > 0).all() == (taken == 0)


@pytest.mark.parametrize(("size_bytes", "chunks"), [(16, 1), (65_536, 1024), (1_000_003, 7), (65_537, 128)])
def test_pieces_are_even_and_aligned(size_bytes: int, chunks: int) -> None:
    begins = cut(size_bytes, chunks)
    sizes = np.diff([*begins, size_bytes])
    assert begins[0] == 0
    assert len(begins) == chunks
    assert all(begin % UNIT_BYTES == 0 for begin in begins)
    assert sizes.min() > 0
    assert sizes.max() - sizes.min() < 2 * UNIT_BYTES


@pytest.mark.parametrize(("size_bytes", "chunks"), [(15, 1), (64, 5), (64, 0)])
def test_impossible_pieces_are_refused(size_bytes: int, chunks: int) -> None:
    with pytest.raises(MeasurementError, match="cannot be cut"):
        cut(size_bytes, chunks)

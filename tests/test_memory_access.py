"""Access patterns without a GPU: the kernel's order of random accesses, the words of a stride, exact additions."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from microbench.gpu.cuda.context import kernel_source
from microbench.gpu.cuda.memory import access
from microbench.gpu.protocol.memory import Space, Spread

MIB, GIB = 1 << 20, 1 << 30
PLACE = re.compile(r"^__device__ __forceinline__ (u64 place\(.*?^\})$", re.MULTILINE | re.DOTALL)
FILL = """
void fill(u64 *out, u64 first, u64 count, u32 bits) {
    for (u64 i = 0; i < count; i++) out[i] = place(first + i, bits);
}
"""


@pytest.fixture(scope="module")
def fill(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' function ``place``, compiled as C."""
    match = PLACE.search(kernel_source("memory_access"))
    assert match is not None
    folder: Path = tmp_path_factory.mktemp("place")
    source = folder / "place.c"
    source.write_text(f"typedef unsigned long long u64;\ntypedef unsigned int u32;\nstatic {match[1]}\n{FILL}")
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", folder / "place.so", source], check=True)
    return ctypes.CDLL(str(folder / "place.so"))


def places(library: ctypes.CDLL, first: int, count: int, bits: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    out = np.empty(count, dtype=np.uint64)
    begin, length = ctypes.c_uint64(first), ctypes.c_uint64(count)
    library.fill(ctypes.c_void_p(out.ctypes.data), begin, length, ctypes.c_uint32(bits))
    return out


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8, 13, 17, 21])
def test_every_place_is_named_once(fill: ctypes.CDLL, bits: int) -> None:
    assert np.array_equal(np.sort(places(fill, 0, 1 << bits, bits)), np.arange(1 << bits, dtype=np.uint64))


@pytest.mark.parametrize("bits", [17, 21, 27, 32, 33])
def test_neighbouring_threads_access_distant_words(fill: ctypes.CDLL, bits: int) -> None:
    whole = places(fill, 0, 1 << 16, bits)
    assert len(np.unique(whole)) == 1 << 16
    # Beyond 2**32 words neighbours are in different parts of the set, and far apart within them.
    part = (whole % np.uint64(1 << min(bits, 32))).astype(np.float64) / 2.0 ** min(bits, 32)
    # Random neighbours are a third of the set apart on average, and each eighth of the set gets an eighth of them.
    assert abs(np.abs(np.diff(part)).mean() - 1 / 3) < 0.01
    assert np.abs(np.histogram(part, 8, (0, 1))[0] / (1 << 16) - 1 / 8).max() < 0.01


def test_large_sets_are_accessed_in_all_parts_at_once(fill: ctypes.CDLL) -> None:
    assert {int(place) >> 32 for place in places(fill, 0, 4, 34)} == {0, 1, 2, 3}
    assert len(np.unique(places(fill, 1 << 33, 1 << 16, 34))) == 1 << 16


@pytest.mark.parametrize("size_bytes", [4, 127, 4099, 3_000_018, GIB])
@pytest.mark.parametrize("stride_bytes", [4, 12, 32, 128, 192, 260, 1024, 4096, MIB])
def test_walks_stay_in_their_buffer_and_touch_no_word_twice(stride_bytes: int, size_bytes: int) -> None:
    walk = access.walk_of(stride_bytes, size_bytes, 200 * MIB)
    last_offset = (walk.passes - 1) * access.LINE_BYTES
    assert walk.words >= 1
    assert last_offset == 0 or last_offset + access.LINE_BYTES <= stride_bytes
    end = (walk.words - 1) * stride_bytes + last_offset + access.WORD_BYTES
    assert end <= size_bytes < end + stride_bytes


@pytest.mark.parametrize(("stride_bytes", "passes"), [(4, 1), (128, 1), (256, 2), (1024, 7), (4096, 25)])
def test_wide_strides_touch_more_than_a_cache_holds(stride_bytes: int, passes: int) -> None:
    walk = access.walk_of(stride_bytes, GIB, 200 * MIB)
    assert walk.passes == passes
    assert walk.passes * walk.words * max(min(stride_bytes, access.SECTOR_BYTES), access.WORD_BYTES) > 199 * MIB


@pytest.mark.parametrize(("space", "spread"), access.ADDITIONS)
def test_additions_to_a_word_stay_exact_in_a_float(space: Space, spread: Spread) -> None:
    threads = access.BLOCK_THREADS if space == "shared" else 1_600_000
    each_word = {"same": threads, "warp": 32, "thread": 1}[spread]
    assert (~access.WORD_BITS[spread] & 0xFFFFFFFF) >= each_word - 1
    each_thread = access.LANE_NUMBERS if each_word == 1 else (access.LANE_NUMBERS + 1) / 2
    assert each_word * each_thread * access.ADDITIONS[space, spread] + 2 * access.FIRST_VALUES < 1 << 24

"""Memory kernels without a GPU: order of random accesses, strides, exact additions, and streams of CuPy and Numba."""

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from c_library import compiled
from host_case import DEVICE, STREAM, HostCase, at, cupy_on_host, passes_on_numbas_simulator

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.memory import access
from microbench.experiments.memory.access import Spread
from microbench.experiments.memory.levels import Space
from microbench.experiments.memory.stream_libraries import (
    NUMPY_TYPES,
    ROLES,
    SCALAR,
    DataType,
    StreamKernel,
    cupy_stream,
    python_stream,
)
from microbench.gpu.cuda.context import kernel_source

MIB, GIB = 1 << 20, 1 << 30
PLACE = re.compile(r"^__device__ __forceinline__ (u64 place\(.*?^\})$", re.MULTILINE | re.DOTALL)
FILL = """
void fill(u64 *out, u64 first, u64 count, u32 bits) {
    for (u64 i = 0; i < count; i++) out[i] = place(first + i, bits);
}
"""


@pytest.fixture(scope="module")
def fill(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    match = PLACE.search(kernel_source("memory_access"))
    assert match is not None
    folder: Path = tmp_path_factory.mktemp("place")
    source = folder / "place.c"
    source.write_text(f"typedef unsigned long long u64;\ntypedef unsigned int u32;\nstatic {match[1]}\n{FILL}")
    return compiled(source, folder, "-O2")


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


COUNT, POISON = 1003, 101
RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "read": lambda first, second: first.sum(),
    "write": lambda first, second: SCALAR,
    "copy": lambda first, second: first,
    "scale": lambda first, second: SCALAR * first,
    "add": lambda first, second: first + second,
    "triad": lambda first, second: first + SCALAR * second,
    "dot": lambda first, second: (first * second).sum(),
}


class HostArrays:
    """Stands in for Arrays: three arrays in host memory, compared by NumPy."""

    def __init__(self, dtype: DataType) -> None:
        self.dtype, self.count = dtype, COUNT
        self._arrays = {name: np.zeros(COUNT, NUMPY_TYPES[dtype]) for name in "abc"}
        self._random = np.random.default_rng(1)
        self.size_bytes = self._arrays["a"].nbytes

    def address(self, name: str) -> int:
        return int(self._arrays[name].ctypes.data)

    def fresh(self, kernel: StreamKernel) -> None:
        for name in filter(None, ROLES[kernel][:2]):
            self._arrays[name][:] = self._random.integers(0, 16, COUNT)
        if ROLES[kernel].out:
            self._arrays[str(ROLES[kernel].out)][:] = POISON

    def check(self, kernel: StreamKernel, total: float | None = None, relative: float = 0.0) -> str:
        first, second = (self._arrays[name].astype(np.int64) if name else None for name in ROLES[kernel][:2])
        wanted, out = RESULTS[kernel](first, second), ROLES[kernel].out
        if out is None:
            right = total is not None and abs(total - wanted) <= relative * wanted
        else:
            right = bool((self._arrays[out] == wanted).all())
        if not right:
            raise MeasurementError(f"{kernel} is wrong")
        return "compared"


def exercised(transfer: Any, size_bytes: int) -> None:
    assert (transfer.blocks, transfer.size_bytes) == (False, size_bytes)
    for _ in range(2):
        transfer.fresh()
        with pytest.raises(MeasurementError):
            transfer.check()
        transfer.submit(2)
        assert transfer.check() == "compared"


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    monkeypatch.setitem(sys.modules, "cupy", cupy_on_host(done))
    return done


@pytest.mark.parametrize("dtype", get_args(DataType))
@pytest.mark.parametrize("kernel", get_args(StreamKernel))
def test_cupy_computes_each_kernel_of_stream(acts: list[str], kernel: StreamKernel, dtype: DataType) -> None:
    arrays, case = HostArrays(dtype), HostCase()
    if kernel == "dot" and dtype in ("fp16", "int8"):
        with pytest.raises(Skip, match=r"cupy\.dot of"):
            cupy_stream(case, arrays, kernel)
        return
    transfer = cupy_stream(case, arrays, kernel)
    exercised(transfer, sum(name is not None for name in ROLES[kernel][:3]) * arrays.size_bytes)
    assert acts == [f"device {DEVICE}", f"stream {STREAM}"]
    assert case.waits == 1
    case.end()
    assert acts[2:] == ["stream restored", "pool emptied"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError("8 GiB asked"), "memory for dot: 8 GiB asked"), (ImportError("libcublas.so"), "lacks a library")],
)
def test_a_missing_library_or_too_little_memory_is_a_skip(
    acts: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fails(first: Any, second: Any) -> Any:
        raise error

    monkeypatch.setattr(sys.modules["cupy"], "dot", fails)
    with pytest.raises(Skip, match=reason):
        cupy_stream(HostCase(), HostArrays("fp64"), "dot")


@pytest.mark.parametrize(("dtype", "off", "right"), [("fp64", 1, False), ("fp32", 0.01, True), ("fp32", 10, False)])
def test_sums_may_be_off_by_no_more_than_rounding(dtype: DataType, off: float, right: bool) -> None:
    arrays = HostArrays(dtype)
    arrays.fresh("read")
    wanted = int(at(arrays.address("a"), COUNT, NUMPY_TYPES[dtype]).astype(np.int64).sum())
    result = SimpleNamespace(poison=lambda: None, total=lambda: wanted + off)
    transfer = python_stream(HostCase(), arrays, "read", lambda: None, result)
    if right:
        assert transfer.check() == "compared"
    else:
        with pytest.raises(MeasurementError):
            transfer.check()


# Numba's kernels on its simulator.

SIMULATED = """
import numpy as np
from microbench._kernels import numba_stream as kernels

random, count = np.random.default_rng(1), 1003
for name, dtype in {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "int8": np.uint8}.items():
    first, second = (random.integers(0, 16, count).astype(dtype) for _ in range(2))
    s = dtype(3)
    for kernel, values, wanted in (
        ("write", (s,), np.full(count, s)),
        ("copy", (first,), first),
        ("scale", (first, s), s * first),
        ("add", (first, second), first + second),
        ("triad", (first, second, s), first + s * second),
    ):
        out = np.full(count, 101, dtype)
        getattr(kernels, kernel)[2, 32](out, *values)
        assert np.array_equal(out, wanted), (name, kernel)
    total = np.full(1, 99, np.uint64 if name == "int8" else np.float64)
    exact = [values.astype(np.int64) for values in (first, second)]
    for kernel, values, wanted in (("read", (first,), exact[0].sum()), ("dot", (first, second), exact[0] @ exact[1])):
        kernels.clear[1, 1](total)
        assert total[0] == 0
        getattr(kernels.SUMS[name], kernel)[2, kernels.BLOCK_THREADS](total, *values)
        assert total[0] == wanted, (name, kernel, total)
"""


@pytest.mark.slow
def test_numbas_kernels_are_right_on_its_simulator() -> None:
    passes_on_numbas_simulator(SIMULATED)

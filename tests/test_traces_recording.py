"""Tests of the reader of our own recordings, written here by hand, and of what cut, damaged or hostile files get."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snapshots
from command_line import call
from make_recording import BEGIN_NS, LAUNCH, SYNCHRONIZE, recording, row, sampled, steps
from test_traces_nsys import names, sound

from microbench.core.errors import ExitCode, UsageError
from microbench.diagnosis.unwatched import CALLED_S
from microbench.recorder import cells
from microbench.traces import reading
from microbench.traces import recording as reader
from microbench.traces.trace import RANGE_KINDS, Trace

UNKNOWN = 0xFFFFFFFF
ADD = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"


def read(folder: Path, content: bytes, name: str = "x.rows") -> Trace:
    path = folder / name
    path.write_bytes(content)
    trace = reading.read(path)
    sound(trace)
    return trace


def work(kind: int, correlation: int, begin_us: float, **fields: int) -> bytes:
    return row(kind, begin_us, 2, correlation=correlation, stream=7, **fields)


def launch(correlation: int, begin_us: float, detail: int = LAUNCH) -> bytes:
    return row(cells.RUNTIME, begin_us, 3, correlation=correlation, detail=detail, place=9)


def test_work_has_its_call_its_name_and_its_numbers(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        recording(
            cells.text(cells.NAME, 500, ADD),
            work(cells.KERNEL, 1, 5, size=24, flags=256, name=500, node=1 << 32, graph=3),
            work(cells.KERNEL, 1, 8, size=1, flags=32, name=600), launch(1, 0),
            work(cells.MEMCPY, 2, 15, detail=1, flags=1 | 3 << 8, size=4096),
            work(cells.PEER_MEMCPY, 2, 18, detail=10, flags=3 | 3 << 8, size=8192, place=1),
            work(cells.MEMSET, 2, 20, flags=3, size=64), launch(2, 10, detail=5),
        ),
    )  # fmt: skip
    snapshots.same_trace("recording-work", trace)


@pytest.mark.parametrize(("mangled", "readable"), [
    (ADD, "at::native::vectorized_elementwise_kernel"), ("_Z9my_kernelPfi", "my_kernel"), ("k", "k"),
    ("triton_poi_fused_add_0", "triton_poi_fused_add_0"), ("_Z", "_Z"), ("_ZN3abc", "abc"), ("_ZN", "_ZN"),
    ("_ZN7cutlass6KernelI4GemmEEvNT_6ParamsE", "cutlass::Kernel"), ("_ZN12_GLOBAL__N_13addEv", "(anonymous)::add"),
    ("_Z9999x", "x"),
])  # fmt: skip
def test_the_readable_part_of_a_mangled_name(mangled: str, readable: str) -> None:
    assert reader.unmangled(mangled) == readable


def test_kernels_of_one_readable_name_are_numbered(tmp_path: Path) -> None:
    texts = [cells.text(cells.NAME, key, name) for key, name in ((8, ADD), (16, FILL), (24, ADD), (32, "add"))]
    kernels = [work(cells.KERNEL, 1, place, name=8 * place) for place in (1, 2, 3, 4)]
    trace = read(tmp_path, recording(*texts, *kernels))
    short = "at::native::vectorized_elementwise_kernel"
    assert names(trace, trace.work) == [short, f"{short} (2)", short, "add"]


def test_a_call_of_the_driver_within_one_of_the_runtime_counts_once(tmp_path: Path) -> None:
    inner = row(cells.DRIVER, 1, 1, detail=4, correlation=2, place=9)
    trace = read(tmp_path, recording(inner, launch(1, 0), work(cells.KERNEL, 2, 5), **{"driver.4": "cuLaunchKernel"}))
    assert names(trace, trace.calls) == ["cudaLaunchKernel"]
    assert trace.work["call"].tolist() == [0]


def test_waits_name_the_stream_and_the_event_that_they_wait_for(tmp_path: Path) -> None:
    wait = {"correlation": 5, "stream": 9, "size": 40, "detail": 2}
    trace = read(
        tmp_path,
        recording(
            *(launch(correlation, 10 * correlation) for correlation in (1, 3, 5, 6, 7, 8)),
            row(cells.CUDA_EVENT, correlation=1, stream=6, size=40),
            row(cells.CUDA_EVENT, correlation=6, stream=8, size=40),
            row(cells.CUDA_EVENT, correlation=3, stream=7, size=40),
            row(cells.CUDA_EVENT, correlation=4, stream=5, size=39),
            row(cells.SYNC, 50, 1, **wait),
            row(cells.SYNC, 70, 1, correlation=7, stream=7, size=UNKNOWN, detail=3),
            row(cells.SYNC, 80, 1, correlation=8, stream=UNKNOWN, size=41, detail=1),
        ),
    )
    snapshots.same_trace("recording-waits", trace)


def test_the_recorders_own_work_and_the_drivers(tmp_path: Path) -> None:
    loading, request = (row(cells.OVERHEAD, at, 1, flags=kind << 16, place=9) for at, kind in ((1, 5), (3, 7)))
    snapshots.same_trace("recording-overhead", read(tmp_path, recording(request, loading)))


def test_facts(tmp_path: Path) -> None:
    more = {
        "gpu.0": "NVIDIA H200", "gpu.1": "NVIDIA \x1b[31mH100", "gpu.²": "none", "bus.0": "0000:43:00.0", "rank": 3,
        "dropped": 5,
    }  # fmt: skip
    trace = read(tmp_path, recording(launch(1, 0), cupti=130000, unix_ns=BEGIN_NS, cupti_ns=BEGIN_NS + 90, **more))
    assert trace.source == "x.rows"
    snapshots.same_trace("recording-facts", trace)
    assert read(tmp_path, recording(**{"version.torch": "2.11.0"})).versions["torch"] == "2.11.0"


def test_the_time_of_another_clock_is_found_from_the_two_stamps(tmp_path: Path) -> None:
    event = row(cells.RUNTIME, begin_ns=5_000_000, end_ns=5_003_000, correlation=1, detail=LAUNCH)
    trace = read(tmp_path, recording(event, unix_ns=BEGIN_NS, cupti_ns=4_000_000))
    assert trace.epoch_ns == BEGIN_NS + 1_000_000


def test_a_long_text_and_one_that_lacks_a_part(tmp_path: Path) -> None:
    long, whole = "k" * 20_000, cells.text(cells.NAME, 16, "x" * 100)
    lacking = whole[:64] + whole[128:]
    kernels = [work(cells.KERNEL, 1, place, name=8 * place) for place in (1, 2)]
    trace = read(tmp_path, recording(cells.text(cells.NAME, 8, long), lacking, *kernels))
    assert names(trace, trace.work) == [long[: cells.LONGEST_TEXT], "(unnamed)"]


LINES = b"".join(cells.text(cells.LINE, key, f"train.py:{key} step") for key in (1, 2, 3))
CALLS = launch(1, 0), launch(2, 100_000)  # between them 100 ms


def ranges(trace: Trace) -> list[tuple[str, float, float]]:
    """The ranges by name, with begin and end in ms."""
    return [
        (name, int(one["begin_ns"]) / 1e6, int(one["end_ns"]) / 1e6)
        for name, one in zip(names(trace, trace.ranges), trace.ranges, strict=True)
    ]


def test_samples_that_follow_each_other_become_ranges(tmp_path: Path) -> None:
    rows = (
        sampled(9, 1, 10, 16, 4), sampled(9, 2, 18, 18), sampled(9, 3, 28, 30, 2, late=1), sampled(9, 1, 41, 41),
        sampled(9, 4, 43, 43), sampled(9, 2, 45, 47, 2), sampled(8, 3, 20, 60, 21),
    )  # fmt: skip
    trace = read(tmp_path, recording(LINES, *CALLS, *rows))
    snapshots.same_trace("recording-samples", trace)  # the other thread submits nothing


def test_where_a_thread_works_that_submits_nothing_is_kept(tmp_path: Path) -> None:
    waits = cells.text(cells.FRAME, 4, "3 self.full.acquire at train.py:3 put")
    known = frames(*(f"0 {cells.OWN}train.py:{place}" for place in ("1 main", "2 load", "3 put"))) + waits
    rows = (sampled(9, 1, 10, 30, 11), sampled(8, 2, 12, 18, 4), sampled(8, 4, 20, 30, 6))
    trace = read(tmp_path, recording(known, *CALLS, *rows))
    ((begin_ns, end_ns, name),) = trace.samples.beside
    assert (begin_ns / 1e6, end_ns / 1e6, trace.names[name]) == (11, 19, "train.py:2 load")


def test_ranges_of_samples_end_with_the_calls(tmp_path: Path) -> None:
    rows = (sampled(9, 1, -70, -60, 6), sampled(9, 2, -9, 200, 100))
    assert ranges(read(tmp_path, recording(LINES, *CALLS, *rows))) == [("train.py:2 step", 0, 100.003)]


def test_where_a_thread_that_submits_has_no_line_the_main_threads_is_named(tmp_path: Path) -> None:
    rows = (sampled(5, 1, 10, 30, 11), sampled(9, 2, 16, 20, 3), sampled(8, 3, 10, 90, 41))
    trace = read(tmp_path, recording(LINES, *CALLS, *rows, main_thread=5))
    assert ranges(trace) == [
        ("main thread at train.py:1 step", 9, 15), ("train.py:2 step", 15, 21),
        ("main thread at train.py:1 step", 21, 31),
    ]  # fmt: skip
    assert trace.samples.taken == 14


def test_of_many_threads_those_with_most_calls_have_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_SAMPLED", 1)
    other = row(cells.RUNTIME, 50_000, 3, correlation=3, detail=LAUNCH, place=8)
    trace = read(tmp_path, recording(LINES, *CALLS, other, sampled(8, 1, 10, 20, 6), sampled(9, 2, 12, 20, 5)))
    assert ranges(trace) == [("train.py:2 step", 11, 21)]


def frames(*texts: str) -> bytes:
    return b"".join(cells.text(cells.FRAME, key, text) for key, text in enumerate(texts, start=1))


@pytest.mark.parametrize(("every_ms", "until_ms", "mains"), [(2, 100, 0), (9, 100, 0), (2, 40, 60), (9, 36, 72)])
def test_a_thread_of_python_that_has_ended_is_where_the_main_thread_is(
    tmp_path: Path, every_ms: int, until_ms: int, mains: int
) -> None:
    stacks = frames(
        "0 threading.py:1030 Thread._bootstrap", "1 own work.py:3 load", "1 own work.py:8 step", "0 own main.py:5 serve"
    )
    main = sampled(5, 4, 0, 100, 100 // every_ms + 1)
    own = [sampled(9, 2 + at % 2, at, at) for at in range(0, until_ms, every_ms)]
    trace = read(tmp_path, recording(stacks, *CALLS, main, *own, sampled(9, 2**64 - 1, 98, 99), main_thread=5))
    took_ms = sum(end - begin for name, begin, end in ranges(trace) if name == "main.py:5 serve")
    assert took_ms == pytest.approx(mains, abs=1.1 * every_ms)


STACK = frames(
    "0 own train.py:9 <module>", "1 own train.py:3 step", "2 torch/nn/modules/module.py:1747 Module.__call__",
    "3 own net.py:7 Net.forward", "4 torch/nn/functional.py:5 linear", "0 library/loop.py:8 run",
    "3 torch/nn/modules/linear.py:130 Linear.forward",
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "line", "functions"),
    [
        (1, "train.py:9 <module>", []),
        (2, "train.py:3 step", []),
        (3, "train.py:3 step", ["torch/nn/modules/module.py Module.__call__"]),
        (4, "net.py:7 Net.forward", []),
        (5, "net.py:7 Net.forward", ["torch/nn/functional.py linear"]),
        (6, "library/loop.py:8 run", ["library/loop.py run"]),
        (
            7,
            "train.py:3 step",
            ["torch/nn/modules/module.py Module.__call__", "torch/nn/modules/linear.py Linear.forward"],
        ),
    ],
)
def test_a_stack_names_the_programs_own_line_and_the_functions_within(
    key: int, line: str, functions: list[str], tmp_path: Path
) -> None:
    trace = read(tmp_path, recording(STACK, *CALLS, sampled(9, key, 10, 20, 6)))
    found = [(RANGE_KINDS[one["kind"]], trace.names[one["name"]]) for one in trace.ranges]
    assert found == [("line", line), *(("function", function) for function in functions)]


def test_samples_that_overlap_or_are_impossible_are_left_out(tmp_path: Path) -> None:
    far = (1 << 63) - 1
    rows = (
        sampled(9, 1, 10, 20, 6), sampled(9, 2, 15, 40, 6), sampled(9, 3, 22, 22, 0),
        cells.samples(9, 1, -far, far, far, 0), cells.samples(9, 1, 9, 8, 1, 0),
    )  # fmt: skip
    trace = read(tmp_path, recording(LINES, *CALLS, *rows))
    assert ranges(trace) == [("train.py:1 step", 9, 21)]
    assert trace.unread == {"samples with an impossible time": 2}


def test_the_diagnosis_names_lines_of_gaps_and_of_waits(tmp_path: Path) -> None:
    """Each step launches, spends 10 ms in line 2, and waits 5 ms in line 3, of which one sample says line 1."""
    rows = [cells.text(cells.NAME, 4096, "k"), cells.text(cells.LINE, 5, "train.py:5 conv2"), LINES]
    for step in range(20):
        at, number = 20_000 * step, 10 * step
        rows += [launch(number + 1, at), work(cells.KERNEL, number + 1, at + 5, name=4096)]
        wait = {"detail": SYNCHRONIZE, "correlation": number + 2, "place": 9}
        rows.append(row(cells.RUNTIME, at + 12_000, 5000, **wait))
        rows.append(sampled(9, 5, at / 1000 + 2, at / 1000 + 10, 5))
        rows.append(sampled(9, 1 if step == 7 else 3, at / 1000 + 13, at / 1000 + 17, 3))
    path = tmp_path / "x.rows"
    path.write_bytes(recording(*rows))
    result = call("diagnose", str(path), "--all")
    assert result.exit_code == ExitCode.MEASURED
    shown = " ".join(result.output.split())
    assert "train.py:5 conv2 " in shown, "the number of a function stays"
    assert "cudaStreamSynchronize waits for the GPU train.py:3 step 1.00" in shown
    assert "samples of lines of Python 160 one every 2" in shown
    assert "cudaStreamSynchronize waits for the GPU train.py:1" not in shown


def test_of_a_long_recording_the_middle_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = recording(steps(200))
    whole = read(tmp_path, content)
    monkeypatch.setattr(reader, "MOST_ROWS", 1000)
    monkeypatch.setattr(reader, "AT_ONCE", 96)
    for name, data in (("x.rows", content), ("x.rows.gz", gzip.compress(content))):
        part = read(tmp_path, data, name)
        assert len(part.work) + len(part.calls) + len(part.syncs) == 1000
        assert part.unread == {"rows outside of the middle that was read": len(content) // 64 - 1 - 1000}
        assert names(part, part.work[:1]) == ["my_kernel"], "texts are read everywhere"
        middle_ns = (whole.epoch_ns or 0) + int(whole.work["end_ns"][-1]) // 2
        assert (part.epoch_ns or 0) < middle_ns < (part.epoch_ns or 0) + int(part.work["end_ns"][-1])


def test_impossible_times_and_unknown_cells_are_counted(tmp_path: Path) -> None:
    far = (1 << 63) - 1
    trace = read(
        tmp_path,
        recording(
            launch(1, 0), work(cells.KERNEL, 1, 5), row(99),
            row(cells.KERNEL, begin_ns=-far, end_ns=far), row(cells.KERNEL, begin_ns=9, end_ns=8),
            row(cells.RUNTIME, begin_ns=far, end_ns=far), row(cells.KERNEL, begin_ns=0, end_ns=0),
        ),
    )  # fmt: skip
    assert (len(trace.work), len(trace.calls)) == (1, 1)
    assert trace.unread == {
        "cells of an unknown kind": 1, "records with an impossible time": 3, "records at time 0": 1,
    }  # fmt: skip


def test_a_file_with_samples_that_was_cut_anywhere_is_read(tmp_path: Path) -> None:
    content = recording(*CALLS, LINES, *(sampled(9, 1 + place % 3, 2 * place, 2 * place) for place in range(40)))
    counts = []
    for end in range(len(recording(*CALLS)), len(content) + 1, 32):
        trace = read(tmp_path, content[:end])
        counts.append(trace.samples.taken if trace.samples is not None else 0)
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 40


def test_a_file_that_was_cut_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    content = recording(steps(20))
    first = len(recording()) + 128
    for end in (*range(first, first + 300), *range(first + 300, len(content), 997)):
        trace = read(tmp_path, content[:end])
        rows = (end - len(recording())) // 64 - 1  # behind the name of the kernel
        assert len(trace.work) + len(trace.calls) + len(trace.syncs) == rows


@pytest.mark.parametrize(("content", "words"), [
    (b"", "it is empty"), (cells.MAGIC, "no recording"), (cells.header()[:40], "no recording"),
    (cells.HEADER.pack(cells.MAGIC, 2, 64), "format 2 of a newer microbench"),
    (cells.HEADER.pack(cells.MAGIC, 1, 128), "of a newer microbench"),
    (cells.HEADER.pack(cells.MAGIC, 0, 64), "no recording"),
])  # fmt: skip
def test_what_is_no_recording_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        read(tmp_path, content)


def test_diagnose_reads_a_recording_and_a_folder_of_them(tmp_path: Path, data: Path) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in range(3):
        (tmp_path / "ranks" / f"train.py-{rank}.rows").write_bytes(recording(steps(30), rank=rank))
    result = call("diagnose", str(tmp_path / "ranks" / "train.py-0.rows"))
    assert result.exit_code == ExitCode.MEASURED
    told = ("microbench recording", "28 steps, each of 8 kernels", "Launch-bound", "record the program for longer")
    for words in told:
        assert words in result.output
    result = call("diagnose", str(tmp_path / "ranks"))
    assert result.exit_code == ExitCode.MEASURED
    assert "rank 2" in result.output
    (tmp_path / "none.rows").write_bytes(recording())
    result = call("diagnose", str(tmp_path / "none.rows"))
    assert result.exit_code == ExitCode.USAGE
    assert "none.rows has no work of a GPU" in result.output
    (tmp_path / "none.rows").rename(tmp_path / "ranks" / "none.rows")
    result = call("diagnose", str(tmp_path / "ranks"))
    assert result.exit_code == ExitCode.MEASURED
    assert "left out: none.rows has no work of a GPU" in result.stderr
    assert "rank 2" in result.stdout


def waits(begin_us: float, end_us: float, every_us: float) -> bytes:
    """Waits of the host outside of windows, and of a stream alone."""
    ends = np.arange(begin_us, end_us, every_us).tolist()
    return b"".join(row(cells.SYNC, end - 4, 4, detail=3, stream=7) + row(cells.SYNC, end, 1, detail=2) for end in ends)


def windows(*each_us: tuple[float, float | None]) -> dict[str, str]:
    """The facts that say which parts were recorded whole, and when records of kernels ended; the last part may have no
    end."""
    stamps = [(BEGIN_NS + round(begin * 1e3), end and BEGIN_NS + round(end * 1e3)) for begin, end in each_us]
    found = {f"window.{number}": f"{begin}-{end or ''}" for number, (begin, end) in enumerate(stamps)}
    return found | {f"quiet.{number}": str(end + 1000) for number, (_, end) in enumerate(stamps) if end}


def test_a_recording_of_windows_has_waits_alone_between_them(tmp_path: Path) -> None:
    parts = steps(30), waits(2200, 9900, 50), steps(20, begin_us=10_000)
    trace = read(tmp_path, recording(*parts, **windows((0, 2100), (10_000, None))))
    assert len(trace.syncs) == 50
    assert len(trace.other_waits_ns) == 154
    (first, second) = trace.windows
    assert (first[1] - first[0], second[0] - first[0]) == (2_100_000, 10_000_000)
    assert second[1] > trace.work["end_ns"].max()


def diagnosed(folder: Path, content: bytes) -> dict[str, Any]:
    (folder / "x.rows").write_bytes(content)
    result = call("diagnose", str(folder / "x.rows"), "--json")
    assert result.exit_code == ExitCode.MEASURED, result.output
    return dict(json.loads(result.output)["step"])


def taken_of(step_s: float) -> tuple[float, float]:
    """The least and the most that CUPTI takes of nine calls in a step, in which the GPU works for 16.8 µs."""
    idle_s = step_s - 16.8e-6
    return 0.5 * 9 * CALLED_S * idle_s / step_s, 1.5 * 9 * CALLED_S


def test_the_step_between_two_windows_is_the_step_that_nobody_records(tmp_path: Path, data: Path) -> None:
    parts = steps(30), waits(2200, 9900, 50), steps(40, begin_us=10_000), waits(12_900, 16_000, 52)
    step = diagnosed(tmp_path, recording(*parts, **windows((0, 2100), (10_000, 12_800))))
    assert step["measured"]
    assert not step["given"]
    assert step["count"] == 38, "the second window has most work"
    assert step["watched_s"] == pytest.approx(69.3e-6)
    mean_s = 50.54e-6  # of 30 stretches of 50 and 11 of 52 µs
    least_s, most_s = taken_of(mean_s)
    assert step["unwatched_s"] == pytest.approx(mean_s - (least_s + most_s) / 2, rel=1e-3)
    assert (step["low_s"], step["high_s"]) == pytest.approx((50e-6 - most_s, 52e-6 - least_s), rel=1e-3)
    shown = " ".join(call("diagnose", str(tmp_path / "x.rows")).output.split())
    assert "unprofiled step time 39.8 µs, from pauses of the recording (32.5 to 48.1 µs)" in shown


def test_a_pause_of_ten_steps_shows_the_step(tmp_path: Path, data: Path) -> None:
    step = diagnosed(tmp_path, recording(steps(30), waits(2200, 2700, 50), **windows((0, 2100))))
    assert step["measured"]
    assert step["unwatched_s"] == pytest.approx(50e-6 - sum(taken_of(50e-6)) / 2, rel=1e-3)


@pytest.mark.parametrize("others", [
    b"", waits(2200, 2300, 50), waits(2200, 9900, 3), waits(2200, 9900, 800),
], ids=["no waits", "too few", "too short", "too long"])  # fmt: skip
def test_what_runs_between_windows_may_be_something_else(others: bytes, tmp_path: Path, data: Path) -> None:
    step = diagnosed(tmp_path, recording(steps(30), others, **windows((0, 2100))))
    assert not step["measured"]
    assert step["costs"]


READ_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import microbench.diagnosis.diagnosis
from microbench.traces.reading import read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = read(Path(sys.argv[1]))
print(len(trace.work) + len(trace.calls) + len(trace.syncs))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_ten_million_rows_are_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.rows"
    rows = np.frombuffer(steps(100_000 // 18), reader.ROW).copy()
    timed = rows["kind"] != cells.NAME
    with path.open("wb") as file:
        file.write(recording())
        for _ in range(100):
            file.write(rows.tobytes())
            for column, more in (("begin_ns", 10**9), ("end_ns", 10**9), ("correlation", 100_000)):
                rows[column][timed] += more
    assert path.stat().st_size > 9_900_000 * 64
    result = subprocess.run(
        [sys.executable, "-c", READ_IN_LITTLE_MEMORY, path], capture_output=True, text=True, check=True
    )
    count, mebibytes = map(int, result.stdout.split())
    assert 3_200_000 < count <= reader.MOST_ROWS, "1.5 million calls, as much work, and waits"
    assert mebibytes < 900


def test_times_without_a_processor_are_the_main_threads(tmp_path: Path) -> None:
    lacked = cells.absent(BEGIN_NS + 12_000_000, BEGIN_NS + 14_000_000)
    rows = (sampled(9, 1, 10, 16, 4), sampled(8, 1, 10, 16, 4), lacked)
    of_main = ranges(read(tmp_path, recording(LINES, *CALLS, *rows, main_thread=9)))
    assert ("waiting for a processor", 12, 14) in of_main
    assert len(ranges(read(tmp_path, recording(LINES, *CALLS, *rows, main_thread=8)))) < len(of_main)

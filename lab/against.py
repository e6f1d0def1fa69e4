"""Compares our figures with those of another program on the same GPU, measured in turn: medians of both, and ours over
theirs.

Run by hand on a machine with a GPU: ``python lab/against.py WHAT FOLDER [TIMES]``. WHAT is one of
- nvbandwidth, peers (copies between GPU 0 and GPU 1): NVBANDWIDTH names a built nvbandwidth. Sizes are nvbandwidth's:
  512 MiB, and 2 MiB read line by line (128 bytes) in the order of addresses for latency.
- nccl_tests: NCCL_TESTS names a folder with built all_reduce_perf, all_gather_perf and sendrecv_perf. All GPUs, the
  default sizes of link_nccl; theirs is the median of 25 cycles of 20 calls, out of place, as it prints them. Each size
  has a process of its own, because a process with several moves on through the buffer of the largest.
- babelstream: BABELSTREAM names a built cuda-stream. Its arrays (2**25 doubles), its order (copy, scale, add, triad,
  dot, again and again) and its clock: the host's, around one call and its synchronise, of which the best counts.
- chase: CHASE names the program of lab/chase.cu, a plain pointer chase.
- torch: cuBLASLt's fastest candidate against PyTorch's matmul (its scaled mm for 8-bit floats) on the same tensors.
  Each pair is two gated batches at a settled clock; both results are compared in float64.
Every pair of figures and what the programs print stay in FOLDER.
"""

import csv
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from microbench.analysis.stats import rows
from microbench.archive.store import read
from microbench.core.bench import discover
from microbench.core.errors import Skip
from microbench.experiments.compute.instructions import clock_bracket
from microbench.experiments.compute.products import Gemm, problem
from microbench.experiments.compute.rates import bracketed, fastest, most_queued, warm
from microbench.experiments.memory.chase import chase
from microbench.experiments.memory.stream_libraries import StreamKernel
from microbench.experiments.memory.streams import shapes, stream
from microbench.gpu.cuda.device import open_gpu
from microbench.gpu.open import probe_environment
from microbench.gpu.protocol.gpu import Gpu, Transfer
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.timer import Meter

KIB, MIB = 1 << 10, 1 << 20
Figures = dict[str, float]


class Unit(NamedTuple):
    """How a figure is printed: divided by ``scale``, with a name."""

    scale: float
    name: str


GB_PER_S, NANOSECONDS, CYCLES = Unit(1e9, "GB/s"), Unit(1e-9, "ns"), Unit(1.0, "cycles")
MICROSECONDS = Unit(1e-6, "µs")


def compare(
    out: Path,
    times: int,
    ours: Callable[[int], Figures],
    theirs: Callable[[int], Figures],
    unit_of: Callable[[str], Unit],
) -> None:
    """Print a line for each figure that both have. The program that runs first changes each turn. Pairs go to
    ``out``."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for turn in range(times):
        if turn % 2:
            mine, other = ours(turn), theirs(turn)
        else:
            other, mine = theirs(turn), ours(turn)
        for name in mine:
            if name in other:
                pairs.setdefault(name, []).append((mine[name], other[name]))
    out.write_text(json.dumps(pairs), encoding="utf-8")
    for name, values in pairs.items():
        scale, unit = unit_of(name)
        mine_median, other_median = (statistics.median(side) / scale for side in zip(*values, strict=True))
        ratio = statistics.median(a / b for a, b in values)
        ratios = sorted(a / b for a, b in values)
        print(
            f"{name:52} ours {mine_median:9.3f} theirs {other_median:9.3f} {unit:7} ratio {ratio:.4f}"
            f" ({ratios[0]:.4f} to {ratios[-1]:.4f}, {len(ratios)} pairs)",
            flush=True,
        )


def printed(out: Path, *command: str) -> str:
    """What a program prints, also kept in a file."""
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    out.write_text(text, encoding="utf-8")
    return text


SIZE_BYTES = 512 << 20
# One test prints several matrices, whose names begin with the test's name.
SECOND_MATRIX = re.compile("_(read|write)[12]$")


class Place(NamedTuple):
    """Where nvbandwidth has a figure (a test, a row and a column), and where our run has it (a case and a metric)."""

    test: str
    cell: tuple[int, int]
    case: str
    metric: str = "bandwidth"

    @property
    def unit(self) -> Unit:
        return NANOSECONDS if self.metric == "latency" else GB_PER_S


def case_id(name: str, **params: object) -> str:
    return f"{name}[{','.join(f'{key}={params[key]}' for key in sorted(params))}]"


def host_places() -> list[Place]:
    places = []
    for direction, words, access in (("h2d", "host_to_device", "read"), ("d2h", "device_to_host", "write")):
        own = case_id("link_copy", direction=direction, memory="pinned", size_bytes=SIZE_BYTES)
        both = case_id("link_bidirectional", direction=direction, size_bytes=SIZE_BYTES)
        kernel = case_id("link_zero_copy", access=access, offset_bytes=0, size_bytes=SIZE_BYTES, width_bytes=16)
        places += [
            Place(f"{words}_memcpy_ce", (0, 0), own),
            Place(f"{words}_bidirectional_memcpy_ce", (0, 0), both),
            Place(f"{words}_memcpy_sm", (0, 0), kernel),
        ]
    latency = case_id("link_latency", footprint_bytes=2 << 20, order="sequential", what="host_read")
    return [*places, Place("host_device_latency_sm", (0, 0), latency, "latency")]


def peer_places() -> list[Place]:
    tests = {
        "engine_read": "device_to_device_memcpy_read_ce",
        "engine_write": "device_to_device_memcpy_write_ce",
        "sm_read": "device_to_device_memcpy_read_sm",
        "sm_write": "device_to_device_memcpy_write_sm",
        "engine_both_read": "device_to_device_bidirectional_memcpy_read_ce_read1",
        "engine_both_write": "device_to_device_bidirectional_memcpy_write_ce_write1",
        "latency": "device_to_device_latency_sm",
    }
    places = []
    for way, test in tests.items():
        size = 0 if way == "latency" else SIZE_BYTES
        case = case_id("link_peer", first=0, second=1, way=way, access="on", size_bytes=size)
        places.append(Place(test, (0, 1), case, "latency" if way == "latency" else "bandwidth"))
    return places


HOST_RUN = (
    "link_copy", "link_bidirectional", "link_zero_copy", "link_latency", "--set", f"size_bytes={SIZE_BYTES}",
    "--set", "memory=pinned", "--set", "width_bytes=16", "--set", "offset_bytes=0", "--set", "what=host_read",
    "--set", "footprint_bytes=2097152", "--set", "order=sequential",
)  # fmt: skip
PEER_RUN = (
    "link_peer",
    "--set",
    f"size_bytes={SIZE_BYTES},0",
    "--set",
    "first=0",
    "--set",
    "second=1",
    "--set",
    "access=on",
)


def matrices(text: str) -> dict[str, list[list[float | None]]]:
    """Each matrix by the name in the line that sums it up; N/A is None. A row begins with its index."""
    named: dict[str, list[list[float | None]]] = {}
    rows_so_far: list[list[float | None]] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["SUM"]:
            named[words[1]] = rows_so_far
            rows_so_far = []
        elif words[:1] == [str(len(rows_so_far))] and len(words) > 1 and ("." in line or "N/A" in line):
            rows_so_far.append([None if cell == "N/A" else float(cell) for cell in words[1:]])
    return named


def nvbandwidth(folder: Path, times: int, places: Sequence[Place], run: Sequence[str]) -> None:
    units = {place.test: place.unit for place in places}
    tests = dict.fromkeys(SECOND_MATRIX.sub("", place.test) for place in places)

    def theirs(turn: int) -> Figures:
        named = matrices(printed(folder / f"nvbandwidth{turn}.txt", os.environ["NVBANDWIDTH"], "-t", *tests))
        cells = {place.test: named[place.test][place.cell[0]][place.cell[1]] for place in places}
        return {test: value * units[test].scale for test, value in cells.items() if value is not None}

    def ours(turn: int) -> Figures:
        out = folder / f"ours{turn}.json"
        command = [sys.executable, "-m", "microbench", "run", *run, "--full", "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        values = {(row.case_id, row.metric.name): row.value for row in rows(read(out))}
        return {place.test: values[place.case, place.metric] for place in places}

    compare(folder / "against_nvbandwidth.json", times, ours, theirs, units.__getitem__)


NCCL_PROGRAMS = {"all_reduce": "all_reduce_perf", "all_gather": "all_gather_perf", "send_recv": "sendrecv_perf"}
NCCL_BINDINGS = ("loop", "nccl4py")  # the second is left out where nccl4py is not installed
NCCL_CALLS = ("-n", "20", "-w", "20", "-N", "25")
# Columns of a line of nccl-tests: size, count, type, redop, root; then out of place time in us, GB/s, GB/s, wrong.
NCCL_SIZE, NCCL_TIME, NCCL_WRONG = 0, 5, 8
NCCL_RATES = {"algorithm_bandwidth": 6, "bus_bandwidth": 7}


def nccl_figures(text: str, name: str, size_bytes: int) -> Figures:
    """Medians over the lines of that size. Raises ValueError where a line is missing or nccl-tests found wrong data."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [words for words in lines if words[NCCL_SIZE] == str(size_bytes)]
    if not found or any(float(words[NCCL_WRONG]) for words in found):
        raise ValueError(f"{name}: no line of {size_bytes} bytes, or wrong data")

    def median(column: int) -> float:
        return statistics.median(float(words[column]) for words in found)

    figures = {f"{name} {size_bytes} call": median(NCCL_TIME) * 1e-6}
    return figures | {f"{name} {size_bytes} {metric}": median(at) * 1e9 for metric, at in NCCL_RATES.items()}


def nccl_tests(folder: Path, times: int) -> None:
    gpus, sizes = len(probe_environment(None).gpus), discover()["link_nccl"].axes["size_bytes"].default

    def theirs(turn: int) -> Figures:
        figures: Figures = {}
        for name, program in NCCL_PROGRAMS.items():
            for size_bytes in map(int, sizes):
                out = folder / f"nccl_tests{turn}_{name}_{size_bytes}.txt"
                size = str(size_bytes)
                path = str(Path(os.environ["NCCL_TESTS"]) / program)
                text = printed(out, path, "-b", size, "-e", size, "-g", str(gpus), *NCCL_CALLS)
                for binding in NCCL_BINDINGS:
                    figures |= nccl_figures(text, f"{binding} {name}", size_bytes)
        return figures

    def ours(turn: int) -> Figures:
        out = folder / f"ours_nccl{turn}.json"
        command = [sys.executable, "-m", "microbench", "run", "link_nccl", "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return {
            f"{row.params['binding']} {row.params['operation']} {row.params['size_bytes']} {row.metric.name}": row.value
            for row in rows(read(out))
        }

    def unit_of(name: str) -> Unit:
        return MICROSECONDS if name.endswith("call") else GB_PER_S

    compare(folder / "against_nccl_tests.json", times, ours, theirs, unit_of)


STREAM_BYTES = 8 << 25
ITERATIONS, TRIALS = 100, 20
STREAM_ORDER: Mapping[StreamKernel, str] = {
    "copy": "Copy", "scale": "Mul", "add": "Add", "triad": "Triad", "dot": "Dot",
}  # fmt: skip
# Sets that one level holds completely. Between two levels the result would depend on the order of the walk.
CHASES = (
    ("shared", 16 * KIB), ("global", 16 * KIB), ("global", 128 * KIB), ("global", 4 * MIB), ("global", 16 * MIB),
    ("global", 256 * MIB), ("global", 1024 * MIB),
)  # fmt: skip
READS = 20_000


def rates(kernels: Mapping[StreamKernel, Transfer], iterations: int) -> dict[StreamKernel, float]:
    """Bytes a second of each kernel's best call, all of them in turn again and again; the first turn does not count."""
    out_ns = np.zeros(1, dtype=np.int64)
    times_s: dict[StreamKernel, list[float]] = {kernel: [] for kernel in kernels}
    for _ in range(iterations):
        for kernel, transfer in kernels.items():
            transfer.submit.round_trips(out_ns)
            times_s[kernel].append(float(out_ns[0]) * 1e-9)
    return {kernel: kernels[kernel].size_bytes / min(taken[1:]) for kernel, taken in times_s.items()}


def babelstream(gpu: Gpu, folder: Path, times: int) -> None:
    def theirs(turn: int) -> Figures:
        lines = printed(folder / f"stream{turn}.csv", os.environ["BABELSTREAM"], "--csv").splitlines()
        table = csv.DictReader(lines[next(i for i, line in enumerate(lines) if line.startswith("function,")) :])
        return {row["function"]: float(row["max_MB_per_sec"]) * 1e6 for row in table}

    with gpu.case():
        best: dict[StreamKernel, tuple[float, Transfer]] = {}
        for shape in shapes(gpu, "triad", "cuda"):
            shaped = {kernel: stream(gpu, kernel, "fp64", STREAM_BYTES, shape) for kernel in STREAM_ORDER}
            for kernel, rate in rates(shaped, TRIALS).items():
                best[kernel] = max(
                    best.get(kernel, (0.0, shaped[kernel])), (rate, shaped[kernel]), key=lambda pair: pair[0]
                )
        kernels = {kernel: transfer for kernel, (_, transfer) in best.items()}
        for transfer in kernels.values():
            transfer.fresh()
            transfer.submit(1)
            gpu.synchronize()
            transfer.check()

        def ours(turn: int) -> Figures:
            return {STREAM_ORDER[kernel]: rate for kernel, rate in rates(kernels, ITERATIONS).items()}

        compare(folder / "against_babelstream.json", times, ours, theirs, lambda name: GB_PER_S)


def chases(gpu: Gpu, folder: Path, times: int) -> None:
    def ours(turn: int) -> Figures:
        cycles = {}
        for space, footprint_bytes in CHASES:
            with gpu.case():
                ring = chase(gpu, "shared" if space == "shared" else "global", footprint_bytes)
                ring.walk(min(ring.lines, 1 << 18))
                walks = [ring.walk(READS).cycles for _ in range(3)]
                cycles[f"{space} {footprint_bytes // KIB} KiB"] = statistics.median(walks) / READS
        return cycles

    def theirs(turn: int) -> Figures:
        cycles = {}
        for space, footprint_bytes in CHASES:
            out = folder / f"chase{turn}_{space}_{footprint_bytes}.txt"
            shared = ["shared"] if space == "shared" else []
            text = printed(out, os.environ["CHASE"], str(footprint_bytes), "128", str(READS), "3", "1", *shared)
            walks = [json.loads(line)["cycles_per_read"] for line in text.splitlines()]
            cycles[f"{space} {footprint_bytes // KIB} KiB"] = statistics.median(walks)
        return cycles

    compare(folder / "against_chase.json", times, ours, theirs, lambda name: CYCLES)


PRODUCT_SIZE = 8192
DTYPES: tuple[GemmType, ...] = ("bf16", "fp16", "tf32", "fp64", "int8", "fp8_e4m3_fast", "fp8_e4m3", "fp32")
SAMPLE_S, WARM_S = 0.05, 0.5


def products(gpu: Gpu, folder: Path, times: int, dtype: GemmType) -> None:
    meter = Meter(gpu.clock, gpu)
    product = problem(gpu, dtype, PRODUCT_SIZE, PRODUCT_SIZE, PRODUCT_SIZE)
    ours, candidate = fastest(meter, product, "cublaslt")
    theirs = product.gemm("torch", product.ways("torch")[0])
    for gemm in (ours, theirs):
        gemm.fresh()
        gemm.submit(1)
        gpu.synchronize()
        gemm.check()
    ours.fresh()
    count = min(max(round(SAMPLE_S / warm(meter, ours, WARM_S)), 1), most_queued(ours))

    def sample(gemm: Gemm) -> Figures:
        """The rate and the SM clock of a batch whose gate was not late."""
        take = bracketed(meter, gemm, clock_bracket(gpu), count, "seconds")
        warm(meter, gemm, SAMPLE_S)
        while not (taken := take()):
            pass
        return {f"{dtype} {candidate.value}": product.operations * count / taken["seconds"], "clock": taken["sm_clock"]}

    units = {"clock": Unit(1e9, "GHz")}
    out = folder / f"against_torch_{dtype}.json"
    compare(
        out,
        times,
        lambda turn: sample(ours),
        lambda turn: sample(theirs),
        lambda name: units.get(name, Unit(1e12, "T/s")),
    )
    ours.check()


def main(what: str, folder: Path, times: int) -> None:
    """Print a line for each figure."""
    if what in ("nvbandwidth", "peers"):
        places, run = (peer_places(), PEER_RUN) if what == "peers" else (host_places(), HOST_RUN)
        return nvbandwidth(folder, times, places, run)
    if what == "nccl_tests":
        return nccl_tests(folder, times)
    gpu = open_gpu(probe_environment(None).gpus[0].uuid)
    if what == "babelstream":
        babelstream(gpu, folder, times)
    elif what == "chase":
        chases(gpu, folder, times)
    for dtype in DTYPES if what == "torch" else ():
        try:
            with gpu.case():
                products(gpu, folder, times, dtype)
        except Skip as skip:
            print(f"{dtype:14} skipped: {skip}", flush=True)
    gpu.close()
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10)

"""The memory suite's kernels beside BabelStream and a plain pointer chase on the same machine, in turn.

Run by hand on a machine with a GPU: ``python tests/beside_memory.py FOLDER [TIMES]``; BABELSTREAM names a built
cuda-stream, CHASE the program of tests/twin/chase.cu; one that is not named is left out. What they print is kept there.
BabelStream's arrays (2**25 doubles), its order (copy, scale, add, triad, dot, over and over) and its clock: the host's,
around one call and its synchronise, of which the best counts.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from microbench.gpu.cuda.device import open_gpu
from microbench.gpu.cuda.probe import probe
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import StreamKernel

KIB, MIB = 1 << 10, 1 << 20
SIZE_BYTES = 8 << 25
ITERATIONS = 100
TRIALS = 20
STREAM_ORDER: Mapping[StreamKernel, str] = {
    "copy": "Copy", "scale": "Mul", "add": "Add", "triad": "Triad", "dot": "Dot",
}  # fmt: skip
# Sets that one level answers as a whole; between two levels the order of the walk decides.
CHASES = (
    ("shared", 16 * KIB), ("global", 16 * KIB), ("global", 128 * KIB), ("global", 4 * MIB), ("global", 16 * MIB),
    ("global", 256 * MIB), ("global", 1024 * MIB),
)  # fmt: skip
READS = 20_000
Pairs = dict[str, list[tuple[float, float]]]


def call_s(transfer: Transfer) -> float:
    """A call with its synchronise, on the host's clock."""
    out_ns = np.zeros(1, dtype=np.int64)
    transfer.submit.round_trips(out_ns)
    return float(out_ns[0]) * 1e-9


def fastest(gpu: Gpu) -> dict[StreamKernel, Transfer]:
    """Each kernel in the shape whose best call is the shortest, in BabelStream's order."""
    found: dict[StreamKernel, tuple[float, Transfer]] = {}
    for name in gpu.memory.shapes("triad", "fp64", "cuda"):
        made = {kernel: gpu.memory.stream(kernel, "fp64", "cuda", SIZE_BYTES, name) for kernel in STREAM_ORDER}
        for kernel, rate in rates(made, TRIALS).items():
            found[kernel] = max(found.get(kernel, (0.0, made[kernel])), (rate, made[kernel]), key=lambda one: one[0])
    return {kernel: transfer for kernel, (_, transfer) in found.items()}


def rates(kernels: Mapping[StreamKernel, Transfer], iterations: int) -> dict[StreamKernel, float]:
    """Bytes a second of each kernel's best call, all of them in turn again and again; the first turn does not count."""
    times: dict[StreamKernel, list[float]] = {kernel: [] for kernel in kernels}
    for _ in range(iterations):
        for kernel, transfer in kernels.items():
            times[kernel].append(call_s(transfer))
    return {kernel: kernels[kernel].size_bytes / min(taken[1:]) for kernel, taken in times.items()}


def our_streams(kernels: Mapping[StreamKernel, Transfer]) -> dict[str, float]:
    """Bytes a second by BabelStream's names."""
    return {STREAM_ORDER[kernel]: rate for kernel, rate in rates(kernels, ITERATIONS).items()}


def their_streams(program: str, out: Path) -> dict[str, float]:
    """BabelStream's own figures of its best calls."""
    done = subprocess.run([program, "--csv"], check=True, capture_output=True, text=True)
    out.write_text(done.stdout, encoding="utf-8")
    lines = done.stdout.splitlines()
    table = csv.DictReader(lines[next(i for i, line in enumerate(lines) if line.startswith("function,")) :])
    return {row["function"]: float(row["max_MB_per_sec"]) * 1e6 for row in table}


def our_chases(gpu: Gpu) -> dict[str, float]:
    """Cycles of a dependent read from each set."""
    found = {}
    for space, footprint_bytes in CHASES:
        with gpu.case():
            chase = gpu.memory.chase("shared" if space == "shared" else "global", footprint_bytes)
            chase.walk(min(chase.lines, 1 << 18))
            walks = [chase.walk(READS) for _ in range(3)]
            found[f"{space} {footprint_bytes // KIB} KiB"] = statistics.median(one.cycles for one in walks) / READS
    return found


def their_chases(program: str, out: Path) -> dict[str, float]:
    """The same from the plain program."""
    found, printed = {}, ""
    for space, footprint_bytes in CHASES:
        command = [program, str(footprint_bytes), "128", str(READS), "3", "1"]
        command += ["shared"] if space == "shared" else []
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        printed += text
        cycles = [json.loads(line)["cycles_per_read"] for line in text.splitlines()]
        found[f"{space} {footprint_bytes // KIB} KiB"] = statistics.median(cycles)
    out.write_text(printed, encoding="utf-8")
    return found


def in_turn(times: int, ours: Callable[[], dict[str, float]], theirs: Callable[[int], dict[str, float]]) -> Pairs:
    """Figures of both by name, first one and then the other first."""
    pairs: Pairs = {}
    for turn in range(times):
        if turn % 2:
            mine, other = ours(), theirs(turn)
        else:
            other, mine = theirs(turn), ours()
        for name, value in mine.items():
            pairs.setdefault(name, []).append((value, other[name]))
    return pairs


def tell(pairs: Pairs, scale: float, unit: str) -> None:
    """Medians of both and of the paired ratios."""
    for name, values in pairs.items():
        mine, other = (statistics.median(side) / scale for side in zip(*values, strict=True))
        ratios = sorted(a / b for a, b in values)
        print(
            f"{name:20} ours {mine:9.3f} theirs {other:9.3f} {unit:7} ratio {statistics.median(ratios):.4f}"
            f" ({ratios[0]:.4f} to {ratios[-1]:.4f}, {len(ratios)} pairs)"
        )


def main(folder: Path, times: int) -> None:
    """Print a line a figure."""
    gpu = open_gpu(probe(None).gpus[0].uuid)
    if program := os.environ.get("BABELSTREAM"):
        with gpu.case():
            kernels = fastest(gpu)
            for transfer in kernels.values():
                transfer.fresh()
                transfer.submit(1)
                gpu.synchronize()
                transfer.check()
            pairs = in_turn(
                times, lambda: our_streams(kernels), lambda turn: their_streams(program, folder / f"stream{turn}.csv")
            )
        tell(pairs, 1e9, "GB/s")
    if chase := os.environ.get("CHASE"):
        pairs = in_turn(times, lambda: our_chases(gpu), lambda turn: their_chases(chase, folder / f"chase{turn}.txt"))
        tell(pairs, 1.0, "cycles")
    gpu.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)

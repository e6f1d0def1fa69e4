"""The link suite beside nvbandwidth on the same machine, in turn: medians of both, and ours over theirs.

Run by hand on a machine with a GPU and a built nvbandwidth: ``python tests/beside_nvbandwidth.py NVBANDWIDTH FOLDER
[TIMES [peers]]``; with ``peers`` the figures between GPU 0 and GPU 1. Runs and nvbandwidth's answers stay in FOLDER.
Sizes are nvbandwidth's own: 512 MiB, and 2 MiB read line by line (128 bytes) in the order of addresses for latency.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from microbench.analysis.stats import rows
from microbench.runs.store import read

SIZE = "size_bytes=536870912"
GIGABYTE, NANOSECOND = 1e9, 1e-9
# One test prints several matrices, whose names go on behind the test's.
SECOND_MATRIX = re.compile("_(read|write)[12]$")


class Figure(NamedTuple):
    """One figure of both: nvbandwidth's test and its place in the matrix, our case and metric, their unit in ours."""

    test: str
    place: tuple[int, int]
    case: str
    metric: str
    scale: float


def _case(name: str, **params: object) -> str:
    return f"{name}[{','.join(f'{key}={params[key]}' for key in sorted(params))}]"


def _host_figures() -> list[Figure]:
    size = 512 << 20
    copies = {"h2d": "host_to_device", "d2h": "device_to_host"}
    found = []
    for direction, words in copies.items():
        access = "read" if direction == "h2d" else "write"
        own = _case("link_copy", direction=direction, memory="pinned", size_bytes=size)
        both = _case("link_bidirectional", direction=direction, size_bytes=size)
        kernel = _case("link_zero_copy", access=access, offset_bytes=0, size_bytes=size, width_bytes=16)
        found += [
            Figure(f"{words}_memcpy_ce", (0, 0), own, "bandwidth", GIGABYTE),
            Figure(f"{words}_bidirectional_memcpy_ce", (0, 0), both, "bandwidth", GIGABYTE),
            Figure(f"{words}_memcpy_sm", (0, 0), kernel, "bandwidth", GIGABYTE),
        ]
    latency = _case("link_latency", footprint_bytes=2 << 20, order="sequential", what="host_read")
    return [*found, Figure("host_device_latency_sm", (0, 0), latency, "latency", NANOSECOND)]


def _peer_figures() -> list[Figure]:
    tests = {
        "engine_read": "device_to_device_memcpy_read_ce",
        "engine_write": "device_to_device_memcpy_write_ce",
        "sm_read": "device_to_device_memcpy_read_sm",
        "sm_write": "device_to_device_memcpy_write_sm",
        "engine_both_read": "device_to_device_bidirectional_memcpy_read_ce_read1",
        "engine_both_write": "device_to_device_bidirectional_memcpy_write_ce_write1",
        "latency": "device_to_device_latency_sm",
    }
    found = []
    for way, test in tests.items():
        size = 0 if way == "latency" else 512 << 20
        case = _case("link_peer", first=0, second=1, way=way, access="on", size_bytes=size)
        metric, scale = ("latency", NANOSECOND) if way == "latency" else ("bandwidth", GIGABYTE)
        found.append(Figure(test, (0, 1), case, metric, scale))
    return found


HOST_RUN = (
    ("link_copy", "link_bidirectional", "link_zero_copy", "link_latency"),
    (SIZE, "memory=pinned", "width_bytes=16", "offset_bytes=0", "what=host_read", "footprint_bytes=2097152",
     "order=sequential"),
)  # fmt: skip
PEER_RUN = (("link_peer",), (f"{SIZE},0", "first=0", "second=1", "access=on"))


def theirs(program: str, figures: Sequence[Figure], out: Path) -> dict[str, list[list[float | None]]]:
    """The matrices that nvbandwidth prints, by test."""
    tests = dict.fromkeys(SECOND_MATRIX.sub("", one.test) for one in figures)
    done = subprocess.run([program, "-t", *tests], check=True, capture_output=True, text=True)
    out.write_text(done.stdout, encoding="utf-8")
    return matrices(done.stdout)


def matrices(printed: str) -> dict[str, list[list[float | None]]]:
    """Each matrix by the name in the line that sums it up; N/A is None. A row begins with its index."""
    found: dict[str, list[list[float | None]]] = {}
    rows_so_far: list[list[float | None]] = []
    for line in printed.splitlines():
        words = line.split()
        if words[:1] == ["SUM"]:
            found[words[1]] = rows_so_far
            rows_so_far = []
        elif words[:1] == [str(len(rows_so_far))] and len(words) > 1 and ("." in line or "N/A" in line):
            rows_so_far.append([None if cell == "N/A" else float(cell) for cell in words[1:]])
    return found


def ours(figures: Sequence[Figure], run: tuple[Sequence[str], Sequence[str]], out: Path) -> dict[str, float]:
    """Our figures in SI units by nvbandwidth's test, from a run of the committed tool."""
    names, settings = run
    sets = [argument for one in settings for argument in ("--set", one)]
    command = [sys.executable, "-m", "microbench", "run", *names, *sets, "--full", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    found = {(row.case_id, row.metric.name): row.value for row in rows(read(out))}
    return {one.test: found[one.case, one.metric] for one in figures}


def main(program: str, folder: Path, times: int = 5, what: str = "host") -> int:
    """Print a line a figure: medians of both over all turns, and the median of the paired ratios."""
    figures, run = (_peer_figures(), PEER_RUN) if what == "peers" else (_host_figures(), HOST_RUN)
    pairs: dict[str, list[tuple[float, float]]] = {one.test: [] for one in figures}
    for turn in range(times):
        their_out, our_out = folder / f"nvbandwidth{turn}.txt", folder / f"beside{turn}.json"
        if turn % 2:
            mine, other = ours(figures, run, our_out), theirs(program, figures, their_out)
        else:
            other, mine = theirs(program, figures, their_out), ours(figures, run, our_out)
        for one in figures:
            row, column = one.place
            their_value = other[one.test][row][column]
            if their_value is not None:
                pairs[one.test].append((mine[one.test], their_value * one.scale))
    for one in figures:
        if pairs[one.test]:
            mine_median, their_median = (statistics.median(side) for side in zip(*pairs[one.test], strict=True))
            ratio = statistics.median(a / b for a, b in pairs[one.test])
            values = " ".join(f"{a / one.scale:.2f}/{b / one.scale:.2f}" for a, b in pairs[one.test])
            print(
                f"{one.test:52} ours {mine_median / one.scale:9.2f} theirs {their_median / one.scale:9.2f}"
                f" ratio {ratio:.4f}  ({values})"
            )
    return 0


if __name__ == "__main__":
    program_path, folder_path, *rest = sys.argv[1:]
    count = int(rest[0]) if rest else 5
    raise SystemExit(main(program_path, Path(folder_path), count, rest[1] if len(rest) > 1 else "host"))

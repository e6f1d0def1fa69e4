"""Makes a large Kineto trace from a small one, and measures how long reading takes and how much memory. By hand only.

    python lab/big_trace.py make SOURCE.json.gz TARGET.json[.gz] --gigabytes 10
    python lab/big_trace.py read TARGET.json[.gz]

The events of the source are repeated, each copy later by the length of the source and with correlations of its own, so
that each kernel still has its call. ``read`` starts a fresh process, as the memory of this one would count.
"""

import argparse
import gzip
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import numpy as np

SHIFTED = re.compile(r'("ts": |"correlation": |"wait_on_cuda_event_record_corr_id": )(-?\d+(?:\.\d+)?)')


def opened(target: Path) -> IO[bytes]:
    return gzip.open(target, "wb", compresslevel=5) if target.suffix == ".gz" else target.open("wb")


def make(source: Path, target: Path, size: int) -> None:
    content = source.read_bytes()
    document = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    text = ",\n".join(json.dumps(event) for event in document.pop("traceEvents")).replace("%", "%%")
    numbers = [(kind, value) for kind, value in SHIFTED.findall(text)]
    is_time = np.array([kind == '"ts": ' for kind, _ in numbers])
    values = np.array([round(float(value) * 1000) if kind == '"ts": ' else int(value) for kind, value in numbers])
    spread = np.where(is_time, np.ptp(values[is_time]) + 1_000_000, np.ptp(values[~is_time]) + 1)
    template = SHIFTED.sub(lambda match: match[1] + ("%d.%03d" if match[1] == '"ts": ' else "%d"), text)
    pieces = np.repeat(np.arange(len(values)), np.where(is_time, 2, 1))
    second = np.concatenate([[False], pieces[1:] == pieces[:-1]])
    first = np.concatenate([second[1:], [False]])
    with opened(target) as output:
        written = output.write(json.dumps(document)[:-1].encode() + b', "traceEvents": [\n')
        copy = 0
        while written < size:
            shifted = (values + copy * spread)[pieces]
            parts = np.where(first, shifted // 1000, np.where(second, shifted % 1000, shifted))
            written += output.write((",\n" if copy else "").encode() + (template % tuple(parts.tolist())).encode())
            copy += 1
        output.write(b"\n]}\n")
    print(f"{target}: {copy} copies, {written / 1e9:.2f} GB unpacked, {target.stat().st_size / 1e9:.2f} GB on disk")


def read(path: Path) -> None:
    from microbench.traces import reading

    begin = time.perf_counter()
    trace = reading.read(path)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rows = {table: len(getattr(trace, table)) for table in ("work", "calls", "ranges", "syncs")}
    alone = int((trace.work["call"] == -1).sum())
    print(f"{path}: {seconds:.1f} s, {time.process_time():.1f} s of CPU, peak {peak:.2f} GB; {rows}")
    print(f"work without its call: {alone}; lost: {dict(trace.lost)}; unread: {dict(trace.unread)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "read", "read-here"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--gigabytes", type=float, default=1)
    options = parser.parse_args()
    if options.action == "make":
        make(*options.paths, size=int(options.gigabytes * 1e9))
    elif options.action == "read":
        subprocess.run([sys.executable, __file__, "read-here", str(options.paths[0])], check=True)
    else:
        read(options.paths[0])

"""Reads a recording, whichever profiler made it: the file's content decides, its name only where needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.recorder.cells import MAGIC
from microbench.traces import chrome, nsys, recording, xplane
from microbench.traces.stream import open_trace
from microbench.traces.trace import MEMORIES, Trace

HEAD_BYTES = 4096
SQLITE = b"SQLite format 3\0"
# The first bytes of JSON, not those of a protobuf message, whose first tag is a line feed.
JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*["}]|\[\s*[\[\]{]|[\[{]\s*\Z)')
XPLANE_PLANE = 0x0A  # the tag of the field "planes", of which a profile of XLA is a list
HOST = [MEMORIES.index(memory) for memory in ("pageable", "pinned")]
REPORT_ENDINGS = (".nsys-rep", ".qdrep")
FORMATS = (
    "a trace of torch.profiler (.json, .json.gz), Nsight Systems (.sqlite, .nsys-rep) or JAX (.xplane.pb), or a "
    "recording of microbench watch (.rows)"
)


def read(path: Path) -> Trace:
    """Read one file. Raises UsageError if it is not a recording, cannot be read, or was made on another maker's GPU.

    Copies within the host's memory, which the driver makes on the CPU, are left out.
    """
    trace = _of_format(path)
    own = np.isin([trace.work["source"], trace.work["target"]], HOST).all(axis=0)
    return msgspec.structs.replace(trace, work=trace.work[~own]) if own.any() else trace


def _of_format(path: Path) -> Trace:
    with open_trace(path) as stream:
        head, compressed, fault = stream.peek(HEAD_BYTES), stream.compressed, stream.fault
    if JSON.match(head):
        return chrome.read(path)
    if compressed and head.startswith(SQLITE):
        raise UsageError(f"{plain(path.name)} is compressed", f"unpack it first: gunzip {plain(path.name)}")
    if head.startswith(SQLITE):
        return nsys.read(path)
    if head.startswith(MAGIC):
        return recording.read(path)
    if head.startswith(b"version https://git-lfs"):
        raise UsageError(f"{plain(path.name)} is a pointer of Git LFS, not the trace", "fetch it first: git lfs pull")
    if path.name.endswith(REPORT_ENDINGS):
        return _exported(path)
    if path.name.endswith((".pb", ".pb.gz")) or head[:1] == bytes([XPLANE_PLANE]):
        return xplane.read(path)
    reason = "its content is of no known form" if head else fault or "it is empty"
    raise UsageError(f"{plain(path.name)} is no trace: {reason}", f"give {FORMATS}")


def _exported(path: Path) -> Trace:
    """Read a report of Nsight Systems, which only its own program can read, through that program."""
    program = shutil.which("nsys")
    line = f"nsys export -t sqlite {plain(path.name)}"
    if program is None:
        cause = f"{plain(path.name)} can be read only by Nsight Systems, and nsys is not found here"
        raise UsageError(cause, f"type: {line}, then give the .sqlite file")
    with tempfile.TemporaryDirectory(prefix="microbench-") as folder:
        target = Path(folder) / "report.sqlite"
        command = [program, "export", "-t", "sqlite", "-o", str(target), str(path.absolute())]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if result.returncode or not target.is_file():
            said = result.stderr.decode("utf-8", "replace").strip().splitlines()
            cause = f"nsys cannot export {plain(path.name)}: {plain(said[-1]) if said else 'it says no reason'}"
            raise UsageError(cause, f"type: {line}, then give the .sqlite file")
        return nsys.read(target)

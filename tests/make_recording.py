"""Writes recordings of `microbench watch` by hand, cell by cell."""

import struct
from collections.abc import Mapping

from microbench.recorder import cells

ROW = struct.Struct("<HHIqqIIIIQQQ")
DEFAULTS = dict.fromkeys((name for name, _ in cells.ROW), 0)
CALLS = {"runtime.211": "cudaLaunchKernel_v7000", "runtime.131": "cudaStreamSynchronize_v3020"}
FACTS: Mapping[str, object] = {"pid": 77, "program": "train.py", "python": "3.12.3", "package": "torch", **CALLS}
LAUNCH, SYNCHRONIZE = 211, 131
BEGIN_NS = 1_771_595_639_000_000_000


def row(kind: int, begin_us: float = 0, length_us: float = 0, **fields: int) -> bytes:
    """A row; its times are in us after BEGIN_NS."""
    begin_ns = BEGIN_NS + round(begin_us * 1000)
    values = {**DEFAULTS, "kind": kind, "begin_ns": begin_ns, "end_ns": begin_ns + round(length_us * 1000), **fields}
    return ROW.pack(*values.values())


def sampled(thread: int, line: int, begin_ms: float, end_ms: float, count: int = 1, late: int = 0) -> bytes:
    """A row of samples; its times are in ms after BEGIN_NS."""
    begin_ns, end_ns = (BEGIN_NS + round(at_ms * 1e6) for at_ms in (begin_ms, end_ms))
    return cells.samples(thread, line, begin_ns, end_ns, count, late)


def facts(values: Mapping[str, object]) -> bytes:
    return b"".join(cells.fact(name, value) for name, value in values.items())


def recording(*parts: bytes, **more_facts: object) -> bytes:
    return cells.header() + facts({**FACTS, **more_facts}) + b"".join(parts)


def steps(count: int, kernels: int = 8, begin_us: float = 0.0) -> bytes:
    """Rows of steps: launches of 2 us with 5 us of host time between them, and a wait at the end of each."""
    made, now_us, correlation = [cells.text(cells.NAME, 4096, "_Z9my_kernelPfi")], begin_us, round(begin_us) * 100
    for _ in range(count):
        for _ in range(kernels):
            now_us += 5
            correlation += 1
            made.append(row(cells.RUNTIME, now_us, 3, detail=LAUNCH, correlation=correlation, place=9))
            work = {"correlation": correlation, "stream": 7, "size": 24, "flags": 256, "name": 4096}
            made.append(row(cells.KERNEL, now_us + 5.2, 2.1, **work))
            now_us += 3
        now_us += 1
        correlation += 1
        made.append(row(cells.RUNTIME, now_us, 4.3, detail=SYNCHRONIZE, correlation=correlation, place=9))
        made.append(row(cells.SYNC, now_us + 0.1, 4, detail=3, correlation=correlation, stream=7, size=0xFFFFFFFF))
        now_us += 4.3
    return b"".join(made)

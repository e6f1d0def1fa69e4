"""Traces of each format with bytes changed, cut, repeated and put in: read soundly or refused, in little memory."""

import gzip
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from make_recording import recording, row, sampled, steps
from nsys_export import small, write
from test_traces_chrome import dumps, layouts, read_both_ways, sample, small_tables  # noqa: F401
from test_traces_nsys import sound
from test_traces_recording import LINES
from test_traces_xplane import space

from microbench.core.errors import MicrobenchError
from microbench.recorder import cells
from microbench.traces import nsys, reading, xplane
from microbench.traces.trace import Trace

CHANGED_FILES = int(os.environ.get("CHANGED_FILES", "5000"))  # how many files the slow test changes
JSON = b'" \\ { } [ ] , : 0 - . e null 1e999 "" [[ {} "ts": "ph":"B" "ph":"E" 999999999999999999999 -1 true {"a":'


class Format(NamedTuple):
    """Whole files, how one is read, the bytes of a block, what is put in, and whether some are packed."""

    contents: Callable[[Path], list[bytes]]
    read: Callable[[Path], Trace | None]
    block: int
    pieces: list[bytes]
    packs: bool = False


def recorded(folder: Path) -> list[bytes]:
    whole = recording(
        LINES, sampled(9, 1, 0, 0.02, 3), steps(5), sampled(9, 2, 0.03, 0.04, 3), sampled(5, 3, 0, 0.1, 9),
        row(cells.CUDA_EVENT, correlation=1, size=4), row(cells.SYNC, 3, 1, detail=2, correlation=2, size=4),
    )  # fmt: skip
    return [whole]


def exported(folder: Path) -> list[bytes]:
    return [write(folder / "small.sqlite", small()).read_bytes()]


def json_files(folder: Path) -> list[bytes]:
    return [*layouts().values(), dumps(sample())]


VARINTS = [b"\xff" * 9 + b"\x01", b"\x80" * 4 + b"\x08", b"\0"]
FORMATS = {
    "chrome": Format(json_files, lambda path: read_both_ways(path.read_bytes()), 30, [*JSON.split(), b"\0", b"\xc3"]),
    "nsys": Format(exported, nsys.read, 4096, [b"\0"]),
    "recording": Format(recorded, reading.read, 64, [b"\0" * 64], packs=True),
    "xplane": Format(lambda folder: [space()], xplane.read, 8, VARINTS, packs=True),
}


def changed(content: bytes, of: Format, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5, 30))):
        at = chance.randrange(len(data))
        start = at // of.block * of.block
        match chance.randrange(8):
            case 0:
                data[at] = chance.choice((chance.randrange(256), *b"0123456789.-e"))
            case 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at // 8 * 8 : at // 8 * 8 + 8] = chance.choice((b"\xff" * 8, b"\0" * 8, chance.randbytes(8)))
            case 3:
                data[at:at] = chance.choice((chance.choice(of.pieces), data[at : at + chance.randrange(200)]))
            case 4:
                other = chance.randrange(len(data)) // of.block * of.block
                data[start : start + of.block] = data[other : other + of.block]
            case 5:
                data[start:start] = data[start : start + of.block] * chance.choice((1, 2, 50))
            case 6:
                data[at % 2000 % len(data)] = chance.randrange(256)  # where headers are
            case 7 if len(data) > 200:
                del data[chance.randrange(100, len(data)) : None if chance.random() < 0.5 else at]
    return bytes(data)


def read_changed(name: str, folder: Path, seeds: range) -> int:
    """How many of the changed files were read."""
    count, of = 0, FORMATS[name]
    contents = of.contents(folder)
    for seed in seeds:
        chance = random.Random(seed)
        data = changed(chance.choice(contents), of, chance)
        (folder / "changed").write_bytes(gzip.compress(data, 1) if of.packs and seed % 16 == 0 else data)
        began = time.monotonic()
        try:
            trace = of.read(folder / "changed")
        except MicrobenchError:
            trace = None
        if trace is not None:
            sound(trace)
            count += 1
        assert time.monotonic() - began < 30
    return count


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "chrome"])
def test_changed_files_are_read_or_refused_in_little_memory(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        count = read_changed(name, tmp_path, range(200))
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 20 < count < 200
    assert most_bytes < 64 << 20


@pytest.mark.usefixtures("small_tables")
def test_changed_json_is_read_alike_by_both_ways(tmp_path: Path) -> None:
    assert read_changed("chrome", tmp_path, range(1000)) > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("part", range(max(1, CHANGED_FILES // 5000)))
@pytest.mark.parametrize("name", FORMATS)
def test_many_changed_files_are_read_or_refused(name: str, part: int, tmp_path: Path) -> None:
    read_changed(name, tmp_path, range(1000 + part * 5_000, 1000 + (part + 1) * 5_000))

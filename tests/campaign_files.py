"""The campaign's hostile files: mutated runs, remarks and steps, read by the functions and commands that read them.

Each file is read, or refused by an error that the command prints in words. Any other exception is a failure, and so is
a file that takes over ten seconds of processor time, thirty in all, or a gigabyte.
"""

import contextlib
import lzma
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from make_small_run import RUN
from msgspec.structs import replace
from typer.testing import CliRunner

from microbench.analysis.stats import rows
from microbench.archive import export, history, processes, remarks, schema, store
from microbench.archive.redaction import redacted
from microbench.cli.app import parser
from microbench.core.bench import SUITES
from microbench.core.errors import MicrobenchError
from microbench.core.model import Outcome, Run
from microbench.explain.topics import catalogue
from microbench.gpu.layers.base import layer_names
from microbench.library.runs import consistent
from microbench.model import step_file
from microbench.report.figures.catalogue import KINDS as FIGURES

LONGEST_S, LONGEST_WAIT_S = 10, 30  # of processor time, and in all: other programs may use this machine
MORE_MEMORY_BYTES = 1 << 30
SENT_EVERY = 500
LONGEST_BYTES = 1 << 20  # of a mutated file; bombs are larger
CASES_OF_A_SUITE, SAMPLES = 24, 4

TOKEN = re.compile(rb'-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"(?:[^"\\]|\\.)*"|true|false|null')
KEY = re.compile(rb'"\w+":|^\w+ *= *', re.MULTILINE)
NUMBERS = (
    b"1e308", b"-1e308", b"1e309", b"1e400", b"1e-320", b"5e-324", b"1e99", b"1e-99", b"1e15", b"-0", b"-0.0", b"0",
    b"-1", b"1", b"2", b"0.1", b"65536", b"2147483648", b"9223372036854775808", b"18446744073709551616", b"NaN", b"nan",
    b"inf", b"Infinity", b"-Infinity", b"1" * 4301, b"-" + b"9" * 400, b"0." + b"0" * 400 + b"1", b"0x" + b"f" * 5000,
    b"1_000",
)  # fmt: skip
WORDS = (
    b'""', b'"' + b"x" * 100_000 + b'"', b'"\\ud800"', b'"\\u0000"', b'"\\u001b[31mred\\u001b[0m"', b'"\xff\xfe"',
    b'"<script>alert(1)</script>"', b'"../../../etc/passwd"', b'"[bold]x[/]"', b'"%s{0}"', b'"ok"', b'"skipped"',
    b'"launch_cost"', b'"GPU-1"', b'"2026-99-99T99:99:99"', b'"9999-12-31T23:59:59+14:00"', '"\u202e\u0085"'.encode(),
)  # fmt: skip
OTHERS = (b"true", b"false", b"null", b"{}", b"[]", b"[[]]", b'{"a":{}}', b"[null]", b"1", b'"1"', b"[1,2]", b'["h2d"]')


def mutated(seed: random.Random, base: bytes) -> bytes:
    """The bytes with one to three things changed in them."""
    data = base
    for _ in range(seed.choice((1, 1, 1, 2, 3))):
        data = seed.choice(MUTATIONS)(seed, data)[:LONGEST_BYTES]
    return data


def _value(seed: random.Random, data: bytes) -> bytes:
    """A value at a random place replaced."""
    return _replaced(seed, data, seed.randrange(len(data) + 1))


def _field(seed: random.Random, data: bytes) -> bytes:
    """A value of a random key replaced: values of rare keys change as often as samples."""
    places: dict[bytes, list[int]] = {}
    for found in KEY.finditer(data):
        places.setdefault(found[0], []).append(found.end())
    return _replaced(seed, data, seed.choice(seed.choice(list(places.values())))) if places else data


def _replaced(seed: random.Random, data: bytes, start: int) -> bytes:
    """The first value from ``start`` on replaced: a number mostly by a number."""
    found = TOKEN.search(data, start)
    if found is None:
        return data
    values = seed.choice((NUMBERS, NUMBERS, NUMBERS, OTHERS) if found[0][:1] in b"-0123456789" else (WORDS, OTHERS))
    return data[: found.start()] + seed.choice(values) + data[found.end() :]


def _flipped(seed: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(seed.randrange(1, 5) if data else 0):
        changed[seed.randrange(len(changed))] ^= 1 << seed.randrange(8)
    return bytes(changed)


def _span(seed: random.Random, data: bytes) -> tuple[int, int]:
    start = seed.randrange(len(data) + 1)
    return start, min(len(data), start + seed.choice((1, 10, 100, 1000)))


def _cut(seed: random.Random, data: bytes) -> bytes:
    start, end = _span(seed, data)
    return data[:start] + (data[end:] if seed.randrange(2) else b"")


def _repeated(seed: random.Random, data: bytes) -> bytes:
    start, end = _span(seed, data)
    return data[:end] + data[start:end] * seed.choice((1, 2, 50)) + data[end:]


def _nested(seed: random.Random, data: bytes) -> bytes:
    start, _ = _span(seed, data)
    return data[:start] + seed.choice((b"[", b'{"a":', b"{", b"(", b".a", b"[[part]]\n", b"\n")) * 5000 + data[start:]


def _spliced(seed: random.Random, data: bytes) -> bytes:
    (start, _), (source, end) = _span(seed, data), _span(seed, data)
    return data[:start] + data[source:end] + data[start:]


MUTATIONS = (_field, _field, _field, _field, _value, _value, _value, _flipped, _cut, _repeated, _nested, _spliced)


def _thinned(outcome: Outcome) -> Outcome:
    measurements = tuple(
        replace(each, samples=msgspec.Raw(msgspec.json.encode(list(each.values[:SAMPLES]))), n=min(each.n, SAMPLES))
        for each in outcome.measurements
    )
    return replace(outcome, session=0, round=0, measurements=measurements)


def _of_suite(run: Run, suite: str) -> Run:
    infos = tuple(info for info in run.benchmarks if info.suite == suite)
    names = {info.name for info in infos}
    cases = {outcome.case.id: outcome for outcome in run.outcomes if outcome.case.benchmark in names}
    chosen = list(cases.values())[:: max(1, len(cases) // CASES_OF_A_SUITE)]
    return replace(run, sessions=run.sessions[:1], benchmarks=infos, outcomes=tuple(map(_thinned, chosen)))


def _growing(run: Run) -> bytes:
    lines = [schema.encode(replace(run, outcomes=())), *map(schema.encode_outcome, run.outcomes)]
    return b"".join(lines)


class Reader:
    """Writes one hostile file after another into a folder of its own and reads it. The bases are whole files."""

    def __init__(self) -> None:
        measured = store.read(store.find("nvidia-h200"))
        self.suites = [schema.encode(_of_suite(measured, suite)) for suite in SUITES]
        self.small = [schema.encode(RUN), schema.encode(_of_suite(measured, "host")), export.to_json(RUN)]
        self.grown = [_growing(RUN), _growing(_of_suite(measured, "host"))]
        self.steps = [path.read_bytes() for path in step_file.examples().values()]
        self.packed = lzma.compress(self.small[0], preset=0)
        self.learned = processes.SHIPPED.read_bytes()[:5000]
        self.remarks = b'{"label":"before","note":"a note on this run"}\n'
        self.layers = layer_names()
        self.topics = [topic.name for topic in catalogue.TOPICS]

    def enter(self, folder: Path) -> None:
        """Work in that folder, which is the data folder too."""
        os.environ["MICROBENCH_DATA"] = str(folder)
        self.folder, self.step, self.out = folder, folder / "step.toml", folder / "out.svg"
        self.run, self.growing = folder / "20260101T000000Z-00000001.json", folder / "20260102T000000Z-00000002.jsonl"

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)

    # Each kind is a method that raises MicrobenchError for a file that is refused.

    def json(self, seed: random.Random) -> None:
        self._run(seed, self.run, mutated(seed, seed.choice(self.small)))

    def jsonl(self, seed: random.Random) -> None:
        self._run(seed, self.growing, mutated(seed, seed.choice(self.grown)))

    def xz(self, seed: random.Random) -> None:
        """The packed bytes are changed, or what is packed is."""
        inner = seed.randrange(2)
        data = lzma.compress(mutated(seed, self.small[0]), preset=0) if inner else mutated(seed, self.packed)
        self._run(seed, self.run, data)

    def _run(self, seed: random.Random, path: Path, data: bytes) -> None:
        """Read a run; now and then compute its rows and an export, and redact it."""
        path.write_bytes(data)
        run = store.read(path)
        if not seed.randrange(20):
            with consistent(run):
                rows(run)
                export.to_csv(run)
                schema.encode(redacted(run))

    def head(self, seed: random.Random) -> None:
        """The history reads the beginning of a file."""
        path = seed.choice((self.run, self.growing))
        path.write_bytes(mutated(seed, seed.choice(self.small + self.grown)))
        found = history.entries([path])
        history.prunable([(each.path, each.run) for each in found], 0, None, NOW)
        if found[0].run is None:
            raise MicrobenchError("it cannot be read", "")

    def toml(self, seed: random.Random) -> None:
        self.step.write_bytes(mutated(seed, seed.choice(self.steps)))
        step_file.read(str(self.step), self.layers)

    def notes(self, seed: random.Random) -> None:
        """Remarks, and what the data folder knows about processes."""
        place = remarks.place(self.run)
        place.write_bytes(mutated(seed, self.remarks))
        (self.folder / processes.LEARNED).write_bytes(mutated(seed, self.learned))
        self.run.write_bytes(self.small[1])
        store.read(self.run)
        if remarks.may_exist(self.run) and remarks.read(self.run) == remarks.Remarks():
            raise MicrobenchError("the remarks cannot be read", "")

    def command(self, seed: random.Random) -> None:
        """Any command that reads runs or steps, in this process."""
        name, arguments = self._asked(seed)
        result = CliRunner().invoke(parser(), [name, *map(str, arguments)], catch_exceptions=False)
        assert "\x1b" not in result.output or name == "export", "an escape sequence got through"
        if result.exit_code:
            raise MicrobenchError(result.stderr, "")

    def program(self, seed: random.Random) -> None:
        """The same as a process of its own."""
        name, arguments = self._asked(seed)
        command = [sys.executable, "-m", "microbench", name, *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        assert "Traceback" not in ended.stderr, ended.stderr[-500:]
        assert ended.returncode in range(6), f"exit code {ended.returncode}"
        if ended.returncode:
            assert ended.stderr.count("\n") < 8, ended.stderr[-500:]
            raise MicrobenchError(ended.stderr, "")

    def _asked(self, seed: random.Random) -> tuple[str, list[object]]:
        """A command and its arguments; the files that it reads are written."""
        base = seed.choice(self.suites)
        for _ in range(4):  # a file that can be read shows more than one that is refused at once
            self.run.write_bytes(mutated(seed, base))
            with contextlib.suppress(MicrobenchError):
                store.read(self.run)
                break
        if seed.randrange(8) == 0:
            remarks.place(self.run).write_bytes(mutated(seed, self.remarks))
        step: list[object] = ["--kernels", "20", "--duration", "6us", "--layer", seed.choice(["torch", "loop", "cupy"])]
        if seed.randrange(3) == 0:
            self.step.write_bytes(mutated(seed, seed.choice(self.steps)))
            step = [self.step]
        other = self.folder / "other.json"
        other.write_bytes(base if seed.randrange(2) else mutated(seed, base))
        run = self.run
        return seed.choice((
            ("show", [run]), ("show", [run, "--all"]), ("show", [run, seed.choice(SUITES)]), ("show", [run, "--why"]),
            ("show", [run, seed.choice(list(FIGURES))]), ("show", [run, "--all", "--svg", self.out, "--force"]),
            ("compare", [run, other]), ("compare", [other, run, "--all", "--why"]),
            ("plot", [run, seed.choice(list(FIGURES)), "-o", self.out, "--force"]),
            ("report", [run, other, "-o", self.folder / "page.html", "--force"]),
            ("report", [run, "--redact", "-o", self.folder / "page.html", "--force"]),
            ("check", [seed.choice(["link", "memory", "compute"]), "--run", run]),
            ("explain", [seed.choice(self.topics), "--run", run]),
            ("predict", [*step, "--run", run]), ("predict", [*step, "--run", run, "--json"]),
            ("whatif", [*step, "--run", run, "--submit", "2us"]), ("whatif", [*step, "--run", run, "--against", other]),
            ("timeline", [*step[:6], "--run", run]),
            ("export", [run, "--format", seed.choice(["csv", "json", "jsonl", "markdown"])]),
            ("export", [run, "--redact"]), ("history", []), ("history", ["prune", "--keep", "0", "--yes"]),
            ("history", ["--label", run, "a label"]), ("trend", ["launch_cost.submit"]),
            ("trend", ["link_copy.bandwidth"]),
        ))  # fmt: skip

    def odd(self, seed: random.Random) -> None:
        """A path that is not a regular file, or a file that unpacks to far more, in the place of a file."""
        target = seed.choice(
            (self.run, self.growing, self.step, remarks.place(self.run), self.folder / processes.LEARNED)
        )
        what = seed.randrange(6)
        if what == 0:
            os.mkfifo(target)
        elif what == 1:
            target.mkdir()
        elif what < 4:
            target.symlink_to(("/dev/zero", "/dev/full", target.name, "/proc/self/mem")[seed.randrange(4)])
        else:
            bomb = seed.choice(BOMBS)
            filled = self.small[0].replace(b'"outcomes":[', b'"outcomes":[' + bomb * (seed.choice((1, 40)) << 16), 1)
            target.write_bytes(lzma.compress(filled, preset=0) if what == 4 else filled)
        if target == self.step:
            step_file.read(str(target), self.layers)
        else:
            if not os.path.lexists(self.run):
                self.run.write_bytes(self.small[0])
            history.entries(store.listing())
            remarks.may_exist(self.run)
            store.read(self.growing if target == self.growing else self.run)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOMBS = (b'{"a":{}},', b"1,", b" ", b"[", b'"x",', b'{"case":{"benchmark":"b"},"session":0,"round":0,"status":"ok"},')


# The relative frequency of each kind of file.
KINDS: dict[str, tuple[Callable[[Reader, random.Random], None], float]] = {
    "json": (Reader.json, 350), "jsonl": (Reader.jsonl, 200),
    "xz": (Reader.xz, 50), "head": (Reader.head, 100), "toml": (Reader.toml, 200), "notes": (Reader.notes, 90),
    "command": (Reader.command, 2), "odd": (Reader.odd, 1), "program": (Reader.program, 0.1),
}  # fmt: skip


def kind_of(seed: int, only: str | None) -> str:
    return only or random.Random(seed).choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]


def _work(reader: Reader, sent: Any, current: Any, only: str | None, seeds: range, until_s: float) -> None:
    """Read the files of these seeds; one that takes too long ends this process."""
    counts = Counter[tuple[str, str]]()
    if only in (None, "workers"):
        import test_fleet  # noqa: F401  (which makes a run, and that takes seconds)
    warnings.simplefilter("error")
    for number, seed in enumerate(seeds):
        if time.monotonic() > until_s and not only:
            break
        if number % SENT_EVERY == 0:
            sent.put((dict(counts), None))
            counts.clear()
        kind = kind_of(seed, only)
        current.value = seed
        status = Path("/proc/self/status").read_text()  # of this process, which keeps the libraries of earlier files
        taken = int(re.search(r"VmSize:\s+(\d+)", status)[1]) << 10  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_AS, (taken + MORE_MEMORY_BYTES, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        signal.alarm(LONGEST_WAIT_S)
        outcome = ""
        try:
            KINDS[kind][0](reader, random.Random(f"{kind} {seed}"))
            outcome = "read"
        except MicrobenchError:
            outcome = "refused"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the campaign looks for
            sent.put(({}, (kind, seed, f"{_place(error)} {error!r}"[:300])))
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if outcome:
            counts[kind, outcome] += 1
        reader.clear()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    sent.put((dict(counts), peak_bytes))


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def read_all(folder: Path, only: str | None, first: int, end: int, until_s: float, tally: Any) -> int:
    """Read the files of the seeds from ``first`` to ``end``, in as many processes as there are cores.

    Returns the most memory that one of them took. A process that dies is a failure of the file that it read, and
    another one reads the rest.
    """
    context = multiprocessing.get_context("fork")
    reader, sent, peak_bytes = Reader(), context.Queue(), 0
    lanes = 1 if only else len(os.sched_getaffinity(0))
    working: dict[int, tuple[Any, Any, range]] = {}

    def start(lane: int, seeds: range) -> None:
        reader.enter(Path(tempfile.mkdtemp(prefix="files-", dir=folder)))
        current = context.Value("q", seeds.start)
        process = context.Process(target=_work, args=(reader, sent, current, only, seeds, until_s))
        process.start()
        working[lane] = process, current, seeds

    def receive(seconds: float) -> bool:
        nonlocal peak_bytes
        with contextlib.suppress(Exception):
            counts, more = sent.get(timeout=seconds)
            for (kind, outcome), count in counts.items():
                tally.add(kind, outcome, count)
            if isinstance(more, int):
                peak_bytes = max(peak_bytes, more)
            elif more is not None:
                tally.fail(*more)
            return True
        return False

    for lane in range(lanes):
        start(lane, range(first + lane, end, lanes))
    while working:
        receive(0.2)
        for lane, (process, current, seeds) in list(working.items()):
            if process.is_alive():
                continue
            del working[lane]
            if process.exitcode != 0:
                seed = current.value
                words = (
                    f"over {LONGEST_S} s" if process.exitcode == -signal.SIGALRM else f"exit code {process.exitcode}"
                )
                tally.fail(kind_of(seed, only), seed, f"the process that read it ended: {words}")
                start(lane, range(seed + seeds.step, end, seeds.step))
    while receive(0.2):
        pass
    return peak_bytes

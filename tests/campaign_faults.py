"""The faults of the campaign. Each is injected into a simulated run in real processes, and states what must hold
afterwards.

After each fault every announced outcome is in a file, --resume measures the rest and nothing twice, no process and no
temporary file remains, no traceback was printed, and the exit code is a documented one.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from microbench.archive import schema, store
from microbench.core.errors import ExitCode, RunUnreadableError
from microbench.core.model import Outcome, Run

HUNG = subprocess.TimeoutExpired
ROOT = Path(__file__).resolve().parent.parent
MEASURED = ("launch_kind", "host_timer", "--quick", "--device", "fake")
STOPPED_S = 10.0  # each stopped worker is waited for so long, whatever the time limit
MOST_HUNG_S = 30.0  # other programs may use this machine
PRECIOUS = b"precious"
ASIDE = ".microbench"  # the ending of temporary files
NOBODY = 54321  # a user id without an account
ANNOUNCED = re.compile(r"^\[\d+/\d+\] (\S+): ", re.MULTILINE)
OK, FAILED, USAGE, ABSENT = ExitCode.MEASURED, ExitCode.SOME_FAILED, ExitCode.USAGE, ExitCode.NO_DEVICE
# Python itself may lie in a folder of root's, so reading stays allowed.
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search", "--bounding-set=-all,+dac_read_search",
)  # fmt: skip
# Python itself would handle Ctrl-C while it starts, so it is ignored until microbench handles it.
START = """
import os, resource, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
{}
os.execv(sys.executable, [sys.executable, '-m', 'microbench', *sys.argv[1:]])
"""


Streams = dict[str, IO[bytes]]


class Started:
    """A microbench process: what it said so far, which outcomes it announced, and how it ended."""

    def __init__(
        self, place: "Place", arguments: Collection[object], prelude: str, user: tuple[str, ...], streams: Streams
    ) -> None:
        place.count += 1
        self.place, self.log = place, place.root / f"log{place.count}"
        streams = {"stdout": self.log.open("ab"), "stderr": self.log.open("ab")} | streams
        self.process = subprocess.Popen(
            [*user, sys.executable, "-c", START.format(prelude), *map(str, arguments)],
            env=place.environment, cwd=place.here, stdin=subprocess.DEVNULL, start_new_session=True, **streams,
        )  # fmt: skip
        self.began_s = time.monotonic()
        for stream in streams.values():
            stream.close()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def announced(self) -> list[str]:
        return ANNOUNCED.findall(self.said())

    def until(self, seed: random.Random) -> None:
        """Wait for a random time, or for a random number of outcomes and a moment more."""
        count, at_s = seed.randrange(-4, 7), seed.uniform(0, self.place.bench.own_s)
        while self.process.poll() is None:
            if len(self.announced()) >= count > 0:
                time.sleep(seed.uniform(0, 0.02))
                return
            if count <= 0 and time.monotonic() - self.began_s > at_s:
                return
            time.sleep(0.005)

    def workers(self) -> list[int]:
        """Its workers, without a child that has not begun its program: to stop that stops the parent, too."""
        found = []
        with suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            found = [int(pid) for pid in children if b"session.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return found

    def kill(self, number: int, pid: int | None = None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid or self.process.pid, number)

    def ended(self, *codes: int, more_s: float = 0.0) -> int:
        """Its exit code, which must be one of these. Raises HUNG if it takes MOST_HUNG_S beyond twice its own time."""
        try:
            code = self.process.wait(2 * self.place.bench.own_s + more_s + MOST_HUNG_S)
        except HUNG:
            for pid in (*self.workers(), self.process.pid):
                self.kill(signal.SIGKILL, pid)
            self.process.wait()
            raise
        # A Ctrl-C while Python shuts down ends the process by the signal, which a shell shows as 130.
        code = ExitCode.INTERRUPTED if code == -signal.SIGINT else code
        said = self.said()
        if "Fatal Python error: init" in said:  # Python itself could not start under such a limit
            return code
        assert "Traceback" not in said, f"a traceback in {self.log}"
        assert code in codes, f"exit code {code}, not one of {[int(each) for each in codes]}"
        return code


@dataclass
class Place:
    """The folders of one fault: of the run, the data, the temporary files, and the working folder."""

    bench: "Bench"
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        for name in ("run", "data", "home", "tmp", "here"):
            (self.root / name).mkdir(parents=True)
            if os.getuid() == 0:
                os.chown(self.root / name, NOBODY, NOBODY)
        self.out, self.tmp, self.here = self.root / "run" / "run.json", self.root / "tmp", self.root / "here"
        self.growing = store.growing_path(self.out)
        self.environment = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "CAMPAIGN": str(self.root), "TMPDIR": str(self.tmp),
            "HOME": str(self.root / "home"), "MICROBENCH_DATA": str(self.root / "data"),
        }  # fmt: skip

    def start(self, *arguments: object, prelude: str = "", user: tuple[str, ...] = (), **streams: IO[bytes]) -> Started:
        """Start `microbench run` with these arguments, by default a new run."""
        return Started(self, ("run", *(arguments or (*MEASURED, "--out", self.out))), prelude, user, streams)

    def found(self) -> list[Run]:
        paths = [path for ending in ("*.json", "*.jsonl") for path in self.root.glob(f"*/{ending}")]
        contents = [path.read_bytes() for path in paths if path.is_file()]
        return [schema.decode(content) for content in contents if content not in (b"", PRECIOUS)]

    def check(self, *runs: Started, killed: bool = False) -> None:
        """Check what must hold after any fault; a ``killed`` process could not remove its temporary files."""
        deadline_s = time.monotonic() + 5
        while orphans := self._processes():
            assert time.monotonic() < deadline_s, f"orphans: {orphans}"
            time.sleep(0.02)
        left = [path.name for folder in ("run", "data", "tmp", "here") for path in (self.root / folder).glob("*")]
        left = [name for name in left if name.startswith(("microbench-", ".")) or name.endswith(ASIDE)]
        assert killed or not left, f"left behind: {left}"
        kept = {outcome.case.id for run in self.found() for outcome in run.outcomes}
        lost = {case for run in runs for case in run.announced()} - kept
        assert not lost, f"lost: {sorted(lost)}"

    def _processes(self) -> list[str]:
        mark, found = f"CAMPAIGN={self.root}\0".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes() + b"\0":
                    found.append(folder.name)
        return found

    def complete(self) -> None:
        """Resume the run, or measure anew if there is none, and check that every case is measured exactly once."""
        before: tuple[Outcome, ...] = ()
        with suppress(RunUnreadableError):
            before = store.read(store.find(self.out)).outcomes
        begun = any(path.exists() and path.stat().st_size for path in (self.out, self.growing))
        assert bool(before) <= begun
        # As if an hour had passed, after which a run removes the temporary files of processes that were killed.
        for path in self.out.parent.glob(f".*{ASIDE}"):
            os.utime(path, times=(0, 0), follow_symlinks=False)
        again = self.start("--resume", self.out) if begun else self.start()
        again.ended(OK)
        # Other programs may use this machine too, now more and now less.
        self.bench.own_s = max(0.9 * self.bench.own_s, time.monotonic() - again.began_s)
        after = [outcome for outcome in store.read(store.find(self.out)).outcomes if outcome.status == "ok"]
        counts = Counter((outcome.case.id, outcome.round) for outcome in after)
        assert set(counts) == self.bench.cases, f"after --resume: {sorted(counts)}"
        assert set(counts.values()) == {1}, f"measured twice: {counts}"
        assert {each.case.id for each in before if each.status == "ok" and each not in after} == set(), "changed"
        self.check(again)


class Bench:
    """What all faults share: the folder, an undisturbed run, and how long it takes here."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.own_s, self.cases = folder, 60.0, set[tuple[str, int]]()
        places = [self.place("undisturbed", number) for number in range(threads)]
        began_s = time.monotonic()
        for run in [place.start() for place in places]:
            run.ended(OK)
        self.own_s = time.monotonic() - began_s
        self.run = store.read(store.find(places[0].out))
        # Limits and permissions do not bind root, so these faults run as a user without an account; None if that is
        # impossible.
        tried = os.getuid() == 0 and subprocess.run([*AS_NOBODY, "true"], capture_output=True, check=False).returncode
        self.user = None if tried else AS_NOBODY if os.getuid() == 0 else ()
        self.cases = {(outcome.case.id, outcome.round) for outcome in self.run.outcomes}

    def place(self, kind: str, seed: int) -> Place:
        return Place(self, self.folder / f"{kind}-{seed}")


# Injects one fault at random times and places. Returns "impossible" if this machine does not allow it. Raises
# AssertionError, or HUNG.
Fault = Callable[[Place, random.Random], str | None]


def signalled(place: Place, seed: random.Random, numbers: tuple[int, ...], codes: tuple[int, ...]) -> None:
    run, killed = place.start(), not set(numbers) <= {signal.SIGINT, signal.SIGSTOP, signal.SIGCONT}
    run.until(seed)
    for number in numbers:
        run.kill(number)
        time.sleep(seed.uniform(0, 0.1))
    run.ended(OK, *codes)
    place.check(run, killed=killed)
    place.complete()


def worker_signalled(place: Place, seed: random.Random, number: int) -> None:
    run = place.start(*MEASURED, "--out", place.out, "--time-limit", "5")
    run.until(seed)
    workers = run.workers()
    for pid in workers:
        run.kill(number, pid)
    stopped = len(workers) if number == signal.SIGSTOP else 0  # while one measures, the next one may import
    run.ended(OK, FAILED, ABSENT, more_s=STOPPED_S * stopped)
    place.check(run)
    place.complete()


def killed_again(place: Place, seed: random.Random) -> None:
    """The run is killed, then its continuation, and so on."""
    for _ in range(seed.randrange(2, 4)):
        begun = any(path.exists() and path.stat().st_size for path in (place.out, place.growing))
        run = place.start("--resume", place.out) if begun else place.start()
        run.until(seed)
        run.kill(signal.SIGKILL)
        run.ended(OK, -signal.SIGKILL)
        place.check(run, killed=True)
    place.complete()


def full_disk(place: Place, seed: random.Random) -> str | None:
    folder = place.out.parent
    size = f"size={seed.randrange(1, 8) * 4}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", folder], capture_output=True).returncode:
        return "impossible"
    try:
        run = place.start()
        run.ended(OK, FAILED, USAGE)
        place.check(run)
        subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
        place.complete()
    finally:
        subprocess.run(["umount", folder], check=True)
    return None


def limited(place: Place, seed: random.Random, limit: str, least: int, most: int, codes: tuple[int, ...]) -> str | None:
    number, user = seed.randrange(least, most), place.bench.user if limit == "NPROC" else ()
    if user is None:
        return "impossible"
    run = place.start(prelude=f"resource.setrlimit(resource.RLIMIT_{limit}, ({number}, {number}))", user=user)
    run.ended(OK, FAILED, *codes)
    place.check(run)
    place.complete()
    return None


def stream_lost(place: Place, seed: random.Random, name: str, how: str) -> None:
    """Standard output or error is closed, full, or its reader goes away."""
    number = {"stdout": 1, "stderr": 2}[name]
    if how == "closed":
        run = place.start(prelude=f"os.close({number})")
    elif how == "full":
        run = place.start(**{name: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")})
    else:
        reading, writing = os.pipe()
        run = place.start(**{name: os.fdopen(writing, "wb")})
        time.sleep(seed.uniform(0, place.bench.own_s))
        os.close(reading)
    run.ended(OK, USAGE) if (name, how) == ("stdout", "full") else run.ended(OK)
    place.check(run)
    assert {(each.case.id, each.round) for each in store.read(store.find(place.out)).outcomes} == place.bench.cases


def folder_deleted(place: Place, seed: random.Random) -> None:
    run = place.start()
    run.until(seed)
    shutil.rmtree(place.out.parent, ignore_errors=True)
    run.ended(OK, FAILED, USAGE)
    place.check(run)
    place.out.parent.mkdir(exist_ok=True)
    place.complete()


def folder_read_only(place: Place, seed: random.Random) -> str | None:
    if place.bench.user is None:
        return "impossible"
    run = place.start(user=place.bench.user)
    run.until(seed)
    os.chmod(place.out.parent, 0o500)
    run.ended(OK, FAILED, USAGE)
    place.check(run, killed=True)  # nothing can be removed from such a folder
    os.chmod(place.out.parent, 0o700)
    return None


def file_taken(place: Place, seed: random.Random) -> None:
    """The growing file is removed, or somebody puts a file, a folder or a link in its place or the finished one's."""
    target, what = seed.choice([place.growing, place.out]), seed.choice(["nothing", "file", "folder", "link", "pipe"])
    precious = place.root / "precious"
    precious.write_bytes(PRECIOUS)
    run, made = place.start(), None
    run.until(seed)
    with suppress(OSError):
        if target == place.growing and run.process.poll() is None:
            target.unlink()
        if what == "file":
            os.link(precious, target)
        elif what == "folder":
            target.mkdir()
        elif what == "link":
            target.symlink_to(precious)
        elif what == "pipe":
            os.mkfifo(target)
        made = os.lstat(target)
    run.ended(OK, FAILED, USAGE)
    assert precious.read_bytes() == PRECIOUS, "a link was followed"
    assert made is None or os.path.samestat(os.lstat(target), made), "what somebody made was replaced"
    place.check(run)


def links_planted(place: Place, seed: random.Random) -> None:
    """Links lie where names can be guessed, in a folder that others may write to."""
    precious = place.root / "precious"
    precious.write_bytes(PRECIOUS)
    names = ["run.remarks", ".run.json", f".run.json{ASIDE}", f".run.jsonl{ASIDE}"]
    names += seed.sample(["run.json", "run.jsonl"], seed.randrange(2))
    for name in names:
        (place.out.parent / name).symlink_to(precious if seed.randrange(3) else "/dev/zero")
    for pid in range(os.getpid(), os.getpid() + 50):
        (place.out.parent / f".run.json.{pid}").symlink_to(precious)
    (place.root / "data" / "processes.learned").symlink_to(precious)
    place.start(*MEASURED, "--out", place.out, "--label", "x").ended(OK, USAGE)
    assert precious.read_bytes() == PRECIOUS, "a link was followed"


def together(place: Place, seed: random.Random) -> None:
    """Two processes add to one run, or begin one, at once."""
    begun = bool(seed.randrange(4))
    if begun:
        place.out.write_bytes(schema.encode(place.bench.run))
    arguments = (*MEASURED, "--into" if begun else "--out", place.out)
    first = place.start(*arguments)
    time.sleep(seed.choice([0.0, seed.uniform(0, place.bench.own_s)]))
    codes = [run.ended(OK, USAGE) for run in (first, place.start(*arguments))]
    place.check()
    run, several = store.read(store.find(place.out)), len(place.bench.cases)
    assert len(run.sessions) == codes.count(OK) + begun, f"sessions lost: {len(run.sessions)}, exit codes {codes}"
    assert len(run.outcomes) == several * len(run.sessions), f"{len(run.outcomes)} outcomes"


def byte_damaged(place: Place, seed: random.Random) -> None:
    """A byte of a growing file changed, or the file was cut."""
    count = seed.randrange(1, 8)
    head = schema.encode(replace(place.bench.run, outcomes=()))
    data = bytearray(head + b"".join(map(schema.encode_outcome, place.bench.run.outcomes[:count])))
    at = seed.randrange(len(head), len(data))
    if seed.randrange(4):
        data[at] = seed.randrange(256)
    else:
        del data[at:]
    place.growing.write_bytes(data)
    kept = store.read(store.find(place.out))
    assert len(kept.outcomes) >= data.count(b"\n") - 3, "one byte costs two outcomes at most"
    place.complete()


def homeless(place: Place, seed: random.Random) -> None:
    """No HOME, and perhaps a user id without an account, a temporary folder that is absent, or no data folder."""
    del place.environment["HOME"]
    user = (place.bench.user or ()) if seed.randrange(2) else ()
    if seed.randrange(2):
        place.environment["TMPDIR"] = "/nonexistent"
    data = seed.choice(["/dev/null", "/nonexistent/x", str(place.root / "data"), str(place.out), "~nobody-here/x"])
    place.environment["MICROBENCH_DATA"] = data
    run = place.start(user=user)
    run.ended(OK)
    place.check(run)
    place.start(*MEASURED, user=user).ended(OK, USAGE)


TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT
INTERRUPTED = (ExitCode.INTERRUPTED,)
FAULTS: dict[str, Fault] = {
    "ctrl_c": partial(signalled, numbers=(INT,), codes=INTERRUPTED),
    "ctrl_c_twice": partial(signalled, numbers=(INT, INT), codes=(*INTERRUPTED, -INT)),
    "terminated": partial(signalled, numbers=(TERM,), codes=(-TERM,)),
    "killed": partial(signalled, numbers=(KILL,), codes=(-KILL,)),
    "hung_up": partial(signalled, numbers=(signal.SIGHUP,), codes=(-signal.SIGHUP,)),
    "suspended": partial(signalled, numbers=(signal.SIGSTOP, signal.SIGCONT), codes=()),
    "killed_again": killed_again,
    "worker_killed": partial(worker_signalled, number=KILL),
    "worker_terminated": partial(worker_signalled, number=TERM),
    "worker_ctrl_c": partial(worker_signalled, number=INT),
    "worker_segfault": partial(worker_signalled, number=signal.SIGSEGV),
    "worker_stopped": partial(worker_signalled, number=signal.SIGSTOP),
    "full_disk": full_disk,
    "file_size": partial(limited, limit="FSIZE", least=0, most=20_000, codes=(USAGE,)),
    # NumPy's OpenBLAS interrupts its own process if it cannot start a thread.
    "memory": partial(limited, limit="AS", least=300 << 20, most=4 << 30, codes=(ABSENT, *INTERRUPTED)),
    "open_files": partial(limited, limit="NOFILE", least=4, most=40, codes=(ABSENT, USAGE)),
    "processes": partial(limited, limit="NPROC", least=1, most=12, codes=(ABSENT, *INTERRUPTED)),
    "stdout_closed": partial(stream_lost, name="stdout", how="closed"),
    "stderr_closed": partial(stream_lost, name="stderr", how="closed"),
    "stdout_full": partial(stream_lost, name="stdout", how="full"),
    "stderr_full": partial(stream_lost, name="stderr", how="full"),
    "stdout_broken": partial(stream_lost, name="stdout", how="broken"),
    "stderr_broken": partial(stream_lost, name="stderr", how="broken"),
    "folder_deleted": folder_deleted,
    "folder_read_only": folder_read_only,
    "file_taken": file_taken,
    "links_planted": links_planted,
    "together": together,
    "byte_damaged": byte_damaged,
    "homeless": homeless,
}

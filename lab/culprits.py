"""Programs with one slow thing between their steps, whose time must go to the right owner. Needs no GPU.

``python lab/culprits.py [OUT.csv] [NAME …]`` records each program with the tests' stand-in for CUPTI. It prints two
times: how long the slow thing took by the program's own clock, and how long the diagnosis says.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from msgspec.structs import replace  # noqa: E402
from watched import Place, Recorded  # noqa: E402

from microbench.diagnosis.idle import Stack, idle, owners  # noqa: E402
from microbench.diagnosis.owners import OWN, PYTHONS, Owner  # noqa: E402
from microbench.recorder.program import How  # noqa: E402

STEPS = 60
LOCK, SOCKET, FILE = "waiting in a lock or a queue", "waiting in a socket or a pipe", "waiting in a file"
PYTHONS_LOCK = "waiting for Python's lock"


class Culprit(NamedTuple):
    """What the program prepares, its slow thing, the owner of that, and a part of the place that has most of it."""

    prepare: str
    slow: str
    owner: str
    place: str


# The slow thing takes some ms and is done between two steps. The program itself measures it by the clock.
PROGRAM = """
import asyncio, contextlib, copy, functools, gc, importlib, io, json, logging, multiprocessing, os, pickle, queue
import random, re, select, socket, subprocess, sys, threading, time, traceback, warnings, torch
{prepare}
def slow():
    {slow}
def run():
    took = computed = 0.0
    for _ in range({steps}):
        torch.catch_up()
        torch.steps(1)
        began, cpu = time.perf_counter(), time.thread_time()
        slow()
        took += time.perf_counter() - began
        computed += time.thread_time() - cpu
    return took, took - computed
print(*run(), file=sys.stderr)
"""
BUSY = "until = time.thread_time() + 0.008\n    while time.thread_time() < until: pass"
PACKAGE = """
import functools, time
def hook(function):
    @functools.wraps(function)
    def called(*arguments):
        until = time.thread_time() + 0.008
        while time.thread_time() < until:
            pass
        return function(*arguments)
    return called
def nothing(): pass
hooked = hook(nothing)
class Wrapped:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return getattr(self.inner, name)
"""


def each_8_ms(does: str) -> str:
    """A second thread that does something every 8 ms."""
    return (
        f"def other():\n    while True:\n        time.sleep(0.008)\n        {does}\n"
        "threading.Thread(target=other, daemon=True).start()"
    )


PIPE = "reader, writer = os.pipe()\n" + each_8_ms("os.read(reader, 65536)")
PAIR = "ours, theirs = socket.socketpair()\n"
CULPRITS = {
    "a loop of its own": Culprit("", BUSY, OWN, " slow"),
    "a sleep": Culprit("", "time.sleep(0.008)", "waiting in a sleep", "time.sleep at program.py:"),
    "a hook of a package": Culprit("import hooks", "hooks.hooked()", "hooks", " slow"),
    "attributes through a package": Culprit(
        "import hooks\nclass Own: x = 1\nwrapped = hooks.Wrapped(Own())",
        "for _ in range(30_000): wrapped.x", "hooks", " slow",
    ),
    "fresh memory": Culprit("", "bytearray(96 << 20)[::4096]", OWN, " slow"),
    "a collection of garbage": Culprit(
        "kept = [[] for _ in range(300_000)]", "gc.collect()", "Python's garbage collection", "garbage"
    ),
    "a lock of another thread": Culprit(
        "lock = threading.Lock()\nlock.acquire()\n" + each_8_ms("lock.locked() and lock.release()"),
        "lock.acquire()", LOCK, "lock.acquire at program.py:",
    ),
    "a lock by with": Culprit(
        "lock, held, free = threading.Lock(), threading.Lock(), threading.Lock()\nheld.acquire()\nfree.acquire()\n"
        "def hold():\n    while True:\n        free.acquire()\n        with lock:\n            held.release()\n"
        "            time.sleep(0.008)\nthreading.Thread(target=hold, daemon=True).start()",
        "free.release()\n    held.acquire()\n    with lock: pass", LOCK, "lock.acquire at program.py:",
    ),
    "Python's lock": Culprit(
        "def work():\n    while True:\n        busy.wait()\n        while busy.is_set(): sum(range(50))\n"
        "busy = threading.Event()\nthreading.Thread(target=work, daemon=True).start()",
        "busy.set()\n    time.sleep(0)\n    time.sleep(0)\n    busy.clear()", PYTHONS_LOCK, "held at program.py:",
    ),
    "a condition": Culprit(
        "ready = threading.Condition()\ndef tell():\n    with ready: ready.notify_all()\n" + each_8_ms("tell()"),
        "with ready: ready.wait()", LOCK, "acquire at ",
    ),
    "a thread that is joined": Culprit(
        "def work(): time.sleep(0.008)",
        "thread = threading.Thread(target=work); thread.start(); thread.join()", LOCK, "",
    ),
    "a loader that starves": Culprit(
        "batches = queue.Queue()\n" + each_8_ms("batches.put(1)"), "batches.get()", LOCK, "acquire at program.py:"
    ),
    "a loader of another process": Culprit(
        "def load(batches):\n    while True:\n        time.sleep(0.008)\n        batches.put(b'1' * 1000)\n"
        "batches = multiprocessing.get_context('fork').Queue(1)\n"
        "multiprocessing.get_context('fork').Process(target=load, args=(batches,), daemon=True).start()",
        "batches.get()", SOCKET, "read at ",
    ),
    "a slow pipe": Culprit(PIPE, "os.write(writer, bytes(65536))", FILE, "os.write at program.py:"),
    "print to a slow pipe": Culprit(
        PIPE + "\nsys.stdout = os.fdopen(writer, 'w')", "print('x' * 65535, flush=True)", FILE, "print at program.py:"
    ),
    "a file that is read": Culprit(
        "path = 'read.bin'\nopen(path, 'wb').write(bytes(24 << 20))\nfile = open(path, 'rb', 0)",
        "file.seek(0)\n    file.read()", FILE, "file.read at program.py:",
    ),
    "a file that is kept safe": Culprit(
        "file = open('kept.bin', 'wb', 0)", "os.write(file.fileno(), bytes(2 << 20))\n    os.fsync(file.fileno())",
        FILE, "os.",
    ),
    "a socket": Culprit(PAIR + each_8_ms("theirs.send(b'1')"), "ours.recv(1)", SOCKET, "ours.recv at program.py:"),
    "a select": Culprit(PAIR, "select.select([ours], [], [], 0.008)", SOCKET, "select.select at program.py:"),
    "an event loop": Culprit(
        "loop = asyncio.new_event_loop()", "loop.run_until_complete(asyncio.sleep(0.008))", SOCKET, "select"
    ),
    "json that is parsed": Culprit(
        "gc.disable()\ntext = json.dumps(list(range(160_000)))", "json.loads(text)", f"{PYTHONS}json", " slow"
    ),
    "json that is written": Culprit(
        "gc.disable()\ntree = list(range(40_000))", "json.dumps(tree, indent=1)", f"{PYTHONS}json", " slow"
    ),
    "a deep copy": Culprit(
        "gc.disable()\ncopies, tree = [], [[one] for one in range(5000)]", "copies.append(copy.deepcopy(tree))",
        f"{PYTHONS}copy", " slow",
    ),
    "a regular expression": Culprit(
        "text = 'ab ' * 60_000", "re.sub(r'[a-z]+', '', text)", f"{PYTHONS}re", " slow"
    ),
    "a log that is formatted": Culprit(
        "gc.disable()\nclass Formats(logging.Handler):\n    def emit(self, record): self.format(record)\n"
        "logging.basicConfig(handlers=[Formats()], level=10)",
        "for number in range(500): logging.info('step %d of %s', number, 'all')", f"{PYTHONS}logging", "logging/",
    ),
    "tracebacks": Culprit(
        "gc.disable()\ndef deep(more):\n    if more: deep(more - 1)\n    else: raise ValueError",
        "for _ in range(20):\n        try: deep(20)\n        except ValueError: traceback.format_exc()",
        f"{PYTHONS}traceback", "",
    ),
    "exceptions": Culprit(
        "def fails():\n    raise ValueError",
        "for _ in range(12_000):\n        try: fails()\n        except ValueError: pass", OWN, "program.py:",
    ),
    "a sort": Culprit(
        "gc.disable()\nvalues = [random.random() for _ in range(40_000)]", "sorted(values)", OWN, " slow"
    ),
    "random numbers": Culprit(
        "values = list(range(1000))", "random.choices(values, k=30_000)", f"{PYTHONS}random", " slow"
    ),
    "a copy of an array": Culprit(
        "import numpy\nvalues = numpy.zeros(6 << 20)", "values.copy()", OWN, " slow"
    ),
    "a pickle": Culprit(
        "gc.disable()\ntree = [[one, str(one)] for one in range(20_000)]", "pickle.dumps(tree)", OWN, " slow"
    ),
    "a walk through a folder": Culprit(
        "os.makedirs('walked', exist_ok=True)\nfor name in range(400): os.makedirs(f'walked/{name}')",
        "list(os.walk('walked'))", f"{PYTHONS}os", " slow",
    ),
    "a process that is started": Culprit(
        "", "subprocess.run(['sleep', '0.008'])", "waiting in a process", "subprocess.py"
    ),
    "an import in the loop": Culprit(
        "gc.disable()",
        "for name in ('inspect', 'dis', 'ast', 'tokenize'): sys.modules.pop(name, None)\n"
        "    importlib.import_module('inspect')", "imports", "",
    ),
    "a busy process on its core": Culprit(
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "others = [subprocess.Popen([sys.executable, '-S', '-c', 'import time\\nuntil = time.time() + 20\\n"
        "while time.time() < until: pass']) for _ in range(3)]\nimport atexit\n"
        "atexit.register(lambda: [one.kill() for one in others])",
        BUSY, "waiting for a processor", "",
    ),
}  # fmt: skip
ABSENT = "waiting for a processor"


class Found(NamedTuple):
    """What the program measured of its slow thing in s, and the owners that the diagnosis found."""

    injected_s: float
    owners: list[Owner]

    def of(self, culprit: Culprit) -> float:
        """The s of the culprit's owner."""
        return sum(one.seconds for one in self.owners if one.name == culprit.owner)


def found_in(done: Recorded, culprit: Culprit) -> Found:
    """Reads the recording of a culprit that has run. The last slow thing lies behind the last step."""
    *_, told = done.errors.splitlines() or [""]
    if done.code or not re.fullmatch(r"[\d.e-]+ [\d.e-]+", told):
        raise SystemExit(f"it failed: {done.errors}")
    took_s, absent_s = map(float, told.split())
    injected_s = absent_s if culprit.owner in (ABSENT, PYTHONS_LOCK) else took_s
    (trace,) = (trace for trace in done.traces if len(trace.work))
    idle_time = idle(trace, int(trace.work["begin_ns"][0]), int(trace.work["end_ns"].max()), 0)
    if culprit.owner != ABSENT:  # while other programs have the processors, a slow thing takes longer by the clock
        stacks = Counter[Stack]()
        for stack, ns in idle_time.stacks_ns.items():
            stacks[tuple(name for name in stack if name != ABSENT)] += ns
        idle_time = replace(idle_time, stacks_ns=stacks)
    return Found(injected_s * (STEPS - 1) / STEPS, owners(idle_time))


def run(place: Place, folder: Path, culprit: Culprit) -> Found:
    """Runs a culprit in a new folder."""
    package = folder / "site-packages"
    package.mkdir()
    (package / "hooks.py").write_text(PACKAGE)
    text = PROGRAM.format(prepare=culprit.prepare, slow=culprit.slow, steps=STEPS)
    path = f"{place.site}:{package}"
    return found_in(place.recorded(text, folder, how=How(stacks=True, whole=True), PYTHONPATH=path), culprit)


def main(out: str = "", *names: str) -> None:
    """Runs all culprits, or those named, and writes a table of them."""
    rows, right = [], 0
    machine = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "place").mkdir()
        place = Place(Path(folder, "place"))
        for name in names or CULPRITS:
            culprit, own = CULPRITS[name], Path(folder, name.replace(" ", "-"))
            own.mkdir()
            found = run(place, own, culprit)
            seconds, first = found.of(culprit), found.owners[0]
            share = seconds / found.injected_s
            right += share >= 0.9 and first.name == culprit.owner
            if share < 0.9 or first.name != culprit.owner:
                print("  ", *(f"{one.name} {one.seconds * 1e3:.1f} ms," for one in found.owners[:5]))
            told = f"{seconds * 1e3:.1f}", f"{found.injected_s * 1e3:.1f}"
            print(f"{name:30} {told[1]:>8} ms {told[0]:>8} ms {share:6.1%}  {first.name}: {first.most}")
            first_words = "first owner" if first.name == culprit.owner else f"first owner: {first.name}"
            own = "the program's own clock"
            rows.append([
                "culprits", name, "host time of its owner", "ms", *told, own, f"{share:.3f}", "", "", f"{STEPS} steps",
                machine[1] if machine else "", commit.stdout.strip(), f"{culprit.owner}; {first_words}",
            ])  # fmt: skip
    print(f"right: {right} of {len(rows)}")
    if out:
        head = "section,what,quantity,unit,microbench,other,other_name,ratio,low,high,n,machine,commit,note"
        with Path(out).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([head.split(","), *rows])


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Programs with one slow thing between their steps, which must be named.

Its owner has 90 % of its time or more on a quiet machine, and 80 % beside other tests.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from test_watch_stacks import STACKS, idle_of, only
from watched import Place

from microbench.diagnosis.owners import LIBRARY, OWN, owners

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorder is for x86-64 alone"),
]

STEPS = 60
# The slow thing takes some ms and is done between two steps; the program itself measures it.
PROGRAM = """
import copy, gc, importlib, json, logging, os, queue, re, subprocess, sys, threading, time, torch
{prepare}
def slow():
    {slow}
took = 0.0
for _ in range({steps}):
    torch.catch_up()
    torch.steps(1)
    began = time.perf_counter()
    slow()
    took += time.perf_counter() - began
print(took)
"""
BUSY = "until = time.perf_counter() + 0.008\n    while time.perf_counter() < until: pass"
PACKAGE = """
import functools, time
def hook(function):
    @functools.wraps(function)
    def called(*arguments):
        until = time.perf_counter() + 0.008
        while time.perf_counter() < until:
            pass
        return function(*arguments)
    return called
def nothing(): pass
hooked = hook(nothing)
"""
# What the program prepares, its slow thing, its owner, and a part of the name of what has most of it.
CULPRITS = {
    "a loop of its own": ("", BUSY, OWN, " slow"),
    "a sleep": ("", "time.sleep(0.008)", "waiting in a sleep", "time.sleep at program.py:"),
    "a hook of a package": ("import hooks", "hooks.hooked()", "hooks", "hook.called"),
    "memory that is new": ("", "bytearray(96 << 20)[::4096]", OWN, " slow"),
    "garbage": ("kept = [[] for _ in range(300_000)]", "gc.collect()", "Python's garbage collection", "garbage"),
    "a lock of another thread": (
        "lock = threading.Lock()\ndef hold():\n    while True:\n        with lock: time.sleep(0.01)\n"
        "        time.sleep(0)\n"
        "threading.Thread(target=hold, daemon=True).start()",
        "lock.acquire(); lock.release()\n    time.sleep(0.001)", "waiting in a lock or a queue", "lock.acquire at ",
    ),
    "a loader that starves": (
        "batches = queue.Queue()\ndef load():\n    while True:\n        time.sleep(0.01)\n        batches.put(1)\n"
        "threading.Thread(target=load, daemon=True).start()",
        "batches.get()", "waiting in a lock or a queue", "acquire at program.py:",
    ),
    "a slow pipe": (
        "reader, writer = os.pipe()\ndef drain():\n    while True:\n        time.sleep(0.008)\n"
        "        os.read(reader, 65536)\nthreading.Thread(target=drain, daemon=True).start()",
        "os.write(writer, bytes(65536))", "waiting in a file", "os.write at program.py:",
    ),
    "a file that is parsed": (
        "gc.disable()\ntext = json.dumps(list(range(160_000)))", "json.loads(text)", LIBRARY, "json/",
    ),
    "a deep copy": (
        "gc.disable()\ncopies, tree = [], [[one] for one in range(5000)]",
        "copies.append(copy.deepcopy(tree))", LIBRARY, "copy.py",
    ),
    "a regular expression": (
        "text = 'ab ' * 60_000", "re.sub(r'[a-z]+', '', text)", LIBRARY, "re/",
    ),
    "a process that is started": ("", "subprocess.run(['true'])", "waiting in a process", "subprocess.py"),
    "an import in the loop": (
        "gc.disable()",
        "for name in ('inspect', 'dis', 'ast', 'tokenize'): sys.modules.pop(name, None)\n"
        "    importlib.import_module('inspect')", LIBRARY, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CULPRITS)
def test_the_owner_of_a_slow_thing_has_its_time(place: Place, tmp_path: Path, name: str) -> None:
    prepare, slow, owner, part = CULPRITS[name]
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "hooks.py").write_text(PACKAGE)
    text = PROGRAM.format(prepare=prepare, slow=slow, steps=STEPS)
    done = place.recorded(text, tmp_path, how=STACKS, PYTHONPATH=f"{place.site}:{package}")
    took_s = float(done.output)
    trace = only(done)
    found = owners(idle_of(trace))
    assert found[0].name == owner, found
    # The first and the last of the steps are not within the time of the trace's first to its last work.
    assert found[0].seconds > 0.8 * took_s * (STEPS - 1) / STEPS, (found, took_s)
    assert part in found[0].most

"""Programs with one slow thing between their steps, whose time must go to the right owner. Needs no GPU.

``python lab/culprits.py [OUT.csv] [NAME …]`` records each program with the tests' stand-in for CUPTI. It prints two
times: how long the slow thing took by the program's own clock, and how long the diagnosis says. With ``card`` as NAME
it runs those that need PyTorch and a GPU.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from msgspec.structs import replace  # noqa: E402

from microbench.diagnosis.host_time import BETWEEN  # noqa: E402
from microbench.diagnosis.idle import Idle, Stack, busiest, idle, owners  # noqa: E402
from microbench.diagnosis.owners import OWN, PYTHONS, Owner, owner_of  # noqa: E402
from microbench.recorder.program import How  # noqa: E402
from microbench.traces.reading import read  # noqa: E402

if TYPE_CHECKING:
    from watched import Place, Recorded

STEPS = 60
LOCK, SOCKET, FILE = "waiting in a lock or a queue", "waiting in a socket or a pipe", "waiting in a file"
PYTHONS_LOCK = "waiting for Python's lock"
QUOTA = "half a core, by a quota"  # as root


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
    "Python's lock, taken while the main thread waits": Culprit(
        "import ctypes\nwait = ctypes.CDLL(None).usleep\nvalues = [random.random() for _ in range(250_000)]\n"
        "def work():\n    while True: sorted(values)\nthreading.Thread(target=work, daemon=True).start()",
        "wait(2000)", PYTHONS_LOCK, "held at program.py:",
    ),
    "a queue whose other end computes": Culprit(
        "asked, given = queue.Queue(), queue.Queue()\ndef work():\n    while True:\n        asked.get()\n"
        "        until = time.thread_time() + 0.008\n        while time.thread_time() < until: pass\n"
        "        given.put(1)\nthreading.Thread(target=work, daemon=True).start()",
        "asked.put(1)\n    given.get()", LOCK, "program.py:",
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
        "loop = asyncio.new_event_loop()", "loop.run_until_complete(asyncio.sleep(0.008))",
        "waiting in asyncio's event loop",
        "select",
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
        "values = list(range(1000))", "random.choices(values, k=120_000)", f"{PYTHONS}random", " slow"
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
        "", "subprocess.run(['sleep', '0.008'])", "waiting in a process", "program.py:6 slow"
    ),
    "an import in the loop": Culprit(
        "gc.disable()\nkept = []",
        "for _ in range(4):\n        for name in ('inspect', 'dis', 'ast', 'tokenize'):\n"
        "            kept.append(sys.modules.pop(name, None))\n"
        "        importlib.import_module('inspect')", "imports", "",
    ),
    "a busy process on its core": Culprit(
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "others = [subprocess.Popen([sys.executable, '-S', '-c', 'import time\\nuntil = time.time() + 20\\n"
        "while time.time() < until: pass']) for _ in range(3)]\nimport atexit\n"
        "atexit.register(lambda: [one.kill() for one in others])",
        BUSY, "waiting for a processor", "",
    ),
    QUOTA: Culprit(
        "import atexit, pathlib\ngroup = pathlib.Path('/sys/fs/cgroup/cpu')\n"
        "old = group.exists()\ngroup = (group if old else group.parent) / f'culprit{os.getpid()}'\ngroup.mkdir()\n"
        "quota = [('cfs_period_us', '10000'), ('cfs_quota_us', '5000')] if old else [('max', '5000 10000')]\n"
        "def leave():\n    (group.parent / 'cgroup.procs').write_text(str(os.getpid()))\n    group.rmdir()\n"
        "atexit.register(leave)\nfor name, value in quota: (group / f'cpu.{name}').write_text(value)\n"
        "(group / 'cgroup.procs').write_text(str(os.getpid()))",
        BUSY, "waiting for a processor", "",
    ),
}  # fmt: skip
ABSENT = "waiting for a processor"

# The same on a GPU, where PyTorch, CuPy, Numba, Triton and JAX are real, under `microbench watch --whole`. A slow thing
# submits work, too, so what counts is the time in which it ran and the GPU did nothing: each nanosecond of it has a
# cause, and the host's code an owner.
ON_CARD = """
import gc, json, logging, sys, time, torch
from torch import nn
from torch.nn import functional as F
cuda = torch.device("cuda")
base = nn.Sequential(*[nn.Linear(64, 64) for _ in range(10)]).to(cuda)
inputs = torch.randn(16, 64, device=cuda)
{prepare}
def slow(number):
    {slow}
spans = []
for number in range({steps} + 10):
    with torch.no_grad(): base(inputs)
    torch.cuda.synchronize()
    began = time.time_ns()
    slow(number)
    spans.append((began, time.time_ns()))
print(json.dumps(spans[10:]), file=sys.stderr)
"""
DEEP = "model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(30)]).to(cuda)\n"
# What the launches and the waits of a slow thing take beside the host's own code.
LAUNCHES = ("launch calls", "launch latency", "device gaps")
COPIES, ALLOCATION = ("copies", "waits", *LAUNCHES, OWN), ("allocation", OWN)
KERNEL_OF_TRITON = """
import os, tempfile, importlib.util
path = os.path.join(tempfile.mkdtemp(), 'kernels.py')
open(path, 'w').write('''
import triton
import triton.language as tl
@triton.jit
def add(a, b, c, n, s1, s2, s3, s4, s5, s6, s7, s8, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)
''')
spec = importlib.util.spec_from_file_location('kernels', path)
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
"""


class OnCard(NamedTuple):
    """As Culprit, with several owners, which are causes where the host is in a call of CUDA."""

    prepare: str
    slow: str
    owners: tuple[str, ...]
    place: str


CARD = {
    "a slow hook in every module": OnCard(
        "import hooks\nmodel = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).to(cuda)\n"
        "def hook(module, given, result): hooks.hooked()\nfor one in model: one.register_forward_hook(hook)",
        "model(inputs)", ("hooks",), "hooks.py",
    ),
    "small tensors made on the GPU": OnCard(
        "", "for _ in range(200): torch.tensor([1.0, 2.0], device=cuda)", COPIES, " slow"
    ),
    ".cpu() in a logger": OnCard(
        DEEP + "logging.basicConfig(filename='log', level=10)",
        "for one in [*model.parameters()] * 3: logging.info('%s', one.detach().cpu().shape)",
        (*COPIES, f"{PYTHONS}logging"), "",
    ),
    "a tensor that is printed": OnCard(
        "file = open('log', 'w')", "for _ in range(3): print(inputs, file=file)", ("printing tensors", *COPIES[:-1]), ""
    ),
    "a check of each parameter": OnCard(
        DEEP, "for one in model.parameters(): assert not torch.isnan(one).any().item()", COPIES, " slow"
    ),
    "shapes that change": OnCard(
        "table = torch.randn(4096, 512, device=cuda, dtype=torch.half)\nlayer = nn.Linear(512, 512).half().to(cuda)",
        "for more in range(20): layer(table[: 100 + (number * 20 + more) * 2])",
        ("torch.nn modules", *LAUNCHES, "module load"), "linear",
    ),
    "an emptied cache": OnCard(
        "", "kept = [torch.empty(20 << 20, device=cuda) for _ in range(10)]; del kept; torch.cuda.empty_cache()",
        ALLOCATION, "",
    ),
    "pinned memory made in the loop": OnCard(
        "values = torch.zeros(4 << 20)", "kept = values.pin_memory(); del kept; torch._C._host_emptyCache()",
        ALLOCATION, "",
    ),
    "an optimizer without foreach": OnCard(
        DEEP + "model(inputs).sum().backward()\noptimizer = torch.optim.Adam(model.parameters(), foreach=False)",
        "optimizer.step()", ("torch.optim", *LAUNCHES), "torch/optim",
    ),
    "a Triton launcher": OnCard(
        KERNEL_OF_TRITON + "a, b, c = (torch.randn(1024, device=cuda) for _ in range(3))",
        "for _ in range(200): kernels.add[(1,)](a, b, c, 1024, 1, 2, 3, 4, 5, 6, 7, 8, BLOCK=1024)",
        ("triton", *LAUNCHES), "triton/",
    ),
    "kernels of Numba with 20 arguments": OnCard(
        "import numba.cuda\n@numba.cuda.jit\ndef kernel(" + ", ".join(f"a{n}" for n in range(20)) + "): a0[0] = a1\n"
        "array = numba.cuda.device_array(4, 'f4')",
        "for _ in range(100): kernel[1, 1](array, " + ", ".join(f"{n}.0" for n in range(1, 20)) + ")",
        ("numba_cuda", *LAUNCHES), "numba",
    ),
    "autocast that keeps nothing": OnCard(
        DEEP,
        "with torch.no_grad(), torch.autocast('cuda', cache_enabled=False):\n"
        "        for _ in range(5): model(inputs)",
        ("torch.nn modules", *LAUNCHES), "torch/nn",
    ),
    "a backward pass": OnCard(
        DEEP + "loss = model(inputs).sum()", "for _ in range(5): loss.backward(retain_graph=True)",
        ("PyTorch's backward thread", *LAUNCHES), "",
    ),
    "a data loader whose workers starve it": OnCard(
        "from torch.utils.data import DataLoader, Dataset\nclass Slow(Dataset):\n"
        "    def __len__(self): return 1000\n    def __getitem__(self, at): time.sleep(0.008); return at\n"
        "batches = iter(DataLoader(Slow(), batch_size=1, num_workers=1))",
        "next(batches)", ("waiting for the data loader",), "",
    ),
    "a data loader that collates": OnCard(
        "from torch.utils.data import DataLoader\nrows = [torch.zeros(4) for _ in range(40000)]\n"
        "def ever():\n    while True: yield from DataLoader(rows, batch_size=20000)\nbatches = ever()",
        "next(batches)", ("the data loader",), "torch/utils/data",
    ),
    "eager operations of JAX": OnCard(
        "import jax.numpy as jnp\nvalues = jnp.zeros(64)", "for _ in range(50): jnp.where(values > 0, values + 1, 0)",
        ("jax", "the framework's other threads", "copies", *LAUNCHES), " slow",
    ),
    "a kernel of CuPy compiled anew": OnCard(
        "import cupy\narray = cupy.zeros(64, 'f')",
        "cupy.RawKernel(f'extern \"C\" __global__ void k{number}(float *a) {{{{ a[0] = {number}; }}}}', f'k{number}')"
        "((1,), (1,), (array,))",
        ("CuPy's compiler", "module load"), "",
    ),
    "validated distributions": OnCard(
        "mean = torch.zeros(64, device=cuda)",
        "for _ in range(20): torch.distributions.Normal(mean, 1.0).log_prob(mean)",
        ("torch", *COPIES[:-1]), "torch/distributions",
    ),
    "images that are resized": OnCard(
        "from PIL import Image\nimport torchvision.transforms as T\nimage = Image.new('RGB', (900, 900))\n"
        "change = T.Compose([T.Resize(224), T.ToTensor()])",
        "change(image)", ("torchvision", "PIL"), "",
    ),
    "clipping that asks for the norm": OnCard(
        DEEP + "model(inputs).sum().backward()",
        "for _ in range(3): float(nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False))",
        ("torch.nn modules", *COPIES[:-1]), "torch/nn/utils",
    ),
}  # fmt: skip


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


def on_card(folder: Path, name: str) -> tuple[float, float, str, str]:
    """The s in which a culprit ran under watch and the GPU idled, those of its owners, the first of all, its place."""
    culprit, package = CARD[name], folder / "site-packages"
    package.mkdir()
    (package / "hooks.py").write_text(PACKAGE)
    (folder / "program.py").write_text(ON_CARD.format(prepare=culprit.prepare, slow=culprit.slow, steps=STEPS))
    command = [sys.executable, "-m", "microbench", "watch", "--whole", "-o", str(folder / "recording")]
    path = os.pathsep.join((str(ROOT), str(package), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [*command, "--", sys.executable, "program.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (folder / "said.txt").write_text(done.stdout + done.stderr)
    spans = next((line for line in done.stderr.splitlines() if line.startswith("[[")), None)
    if done.returncode or spans is None:
        raise SystemExit(f"{name} failed: {done.stderr[-3000:]}")
    trace = max(map(read, (folder / "recording").iterdir()), key=lambda one: len(one.work))
    at_ns, gpu = trace.epoch_ns or 0, busiest(trace)
    within, everywhere = Counter[tuple[str, str]](), Counter[str]()
    for begin_ns, end_ns in json.loads(spans):
        within.update(each_owner(idle(trace, begin_ns - at_ns, end_ns - at_ns, gpu)))
    whole = idle(trace, json.loads(spans)[0][0] - at_ns, int(trace.work["end_ns"].max()), gpu)
    for (owner, _), ns in each_owner(whole).items():
        everywhere[owner] += ns
    right = sum(ns for (owner, _), ns in within.items() if owner in culprit.owners)
    for (owner, most), ns in within.most_common(6):
        print(f"    {ns * 1e-6:9.1f} ms  {owner}: {most}")
    ((first, _),) = everywhere.most_common(1)
    most = next((most for (owner, most), _ in within.most_common() if owner == first), "")
    return within.total() * 1e-9, right * 1e-9, first, most


def each_owner(of: Idle) -> Counter[tuple[str, str]]:
    """The ns of idle time by its owner, which is a cause where the host is in a call of CUDA, and by place."""
    found = Counter[tuple[str, str]]()
    for (cause, *names), ns in of.stacks_ns.items():
        found[owner_of(names) if cause == BETWEEN else (cause, " in ".join(names[:-3:-1]))] += ns
    return found


def main(out: str = "", *names: str) -> None:
    """Runs all culprits of one kind, or those named, and writes a table of them."""
    rows, right = [], 0
    card = [name for name in (CARD if names == ("card",) else names) if name in CARD]
    machine = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    with tempfile.TemporaryDirectory() as folder:
        place = None
        if not card:
            from watched import Place

            Path(folder, "place").mkdir()
            place = Place(Path(folder, "place"))
        for name in card or names or CULPRITS:
            if name == QUOTA and os.geteuid():
                continue
            own = Path(folder, name.replace(" ", "-").replace("/", "-"))
            own.mkdir()
            if place is None:
                injected_s, seconds, first, most = on_card(own, name)
                wanted, at, clock = CARD[name].owners, CARD[name].place, "idle time while it ran"
            else:
                found, at, clock = run(place, own, CULPRITS[name]), "", "the program's own clock"
                injected_s, seconds, wanted = found.injected_s, found.of(CULPRITS[name]), (CULPRITS[name].owner,)
                first, most = found.owners[0].name, found.owners[0].most
                if not 0.9 <= seconds / injected_s <= 1.25 or first not in wanted:
                    print("  ", *(f"{one.name} {one.seconds * 1e3:.1f} ms," for one in found.owners[:5]))
            share = seconds / injected_s
            right += 0.9 <= share <= 1.25 and first in wanted and at in most
            told = f"{seconds * 1e3:.1f}", f"{injected_s * 1e3:.1f}"
            print(f"{name:30} {told[1]:>8} ms {told[0]:>8} ms {share:6.1%}  {first}: {most}", flush=True)
            first_words = "first owner" if first in wanted else f"first owner: {first}"
            rows.append([
                "culprits", name, "host time of its owner", "ms", *told, clock, f"{share:.3f}", "", "",
                f"{STEPS} steps", machine[1] if machine else "", commit.stdout.strip(), f"{wanted[0]}; {first_words}",
            ])  # fmt: skip
    print(f"right: {right} of {len(rows)}")
    if out:
        head = "section,what,quantity,unit,microbench,other,other_name,ratio,low,high,n,machine,commit,note"
        with Path(out).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([head.split(","), *rows])


if __name__ == "__main__":
    main(*sys.argv[1:])

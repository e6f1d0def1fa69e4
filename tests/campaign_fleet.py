"""The campaign's odd workers of a fleet, damaged stores, odd functions, and Ctrl-C in `fleet run`.

Workers: of three nodes one returns something odd. No error is raised, the campaign's file can be read, the others are
ok, and each run that came back is in a file of its own and in the store. Stores: some files are damaged. Every command
ends as documented, names what it leaves out, and shows all else whole. Functions: each is really run, or refused with a
word. Ctrl-C: a few lines, no traceback, and no process remains.
"""

import contextlib
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import campaign_traces
from fake_session import exact
from make_small_run import RUN
from msgspec.structs import replace
from typer.testing import CliRunner

from microbench.archive import schema, store
from microbench.cli.app import parser
from microbench.cli.fleet import progress_line
from microbench.core.errors import ExitCode, MeasurementError
from microbench.experiments.own.callables import bound
from microbench.experiments.own.step import WARM_UPS, NotCapturedError, own_step
from microbench.fleet import campaign as records
from microbench.fleet import engine
from microbench.fleet import store as stores
from microbench.fleet.records import Source

ROOT = Path(__file__).resolve().parent.parent
ODD: tuple[Any, ...] = (
    None, [], {}, "", "\ud800", "x" * 10_000, "a/../b", "\0", "\x1b[31m", 0, -1, 1 << 70, 1e400, -math.inf, math.nan,
    True, b"", b"\xff" * 9, {"a": {}}, [[]], ["GPU", "GPU"], [None], ("ok",), object(), {1}, "waiting", "hung", "ok",
)  # fmt: skip
MOST_LINES = 12


def workers(reader: Any, seed: random.Random) -> None:
    """Three nodes, of which one returns something odd, dies, or has a name like another one's."""
    from test_fleet import OK, Client, campaign_of, described

    engine.LOOK_EVERY_S, engine.RETURN_S = 0.001, 0.01
    names = seed.choice((["a", "b", "c"], ["n.1", "n_1", "n 1"], ["n", "n", "n"]))
    known = [described(name, f"machine-{at}", (f"GPU-{at}",)) for at, name in enumerate(names)]
    odd: Any = OK
    what = seed.randrange(5)
    if what == 0:
        known[0] = changed(seed, known[0])
    elif what < 3:
        odd = changed(seed, OK)
    elif what == 3:
        data = bytearray(OK["run"])
        data[seed.randrange(len(data))] ^= 1 << seed.randrange(8)
        odd = OK | {"run": bytes(data[: seed.randrange(len(data) + 1)] if seed.randrange(2) else data)}

    def answer(address: str, order: dict[str, Any]) -> Any:
        if address != "tcp://h0:1":
            return OK
        if what == 4:
            raise seed.choice((RuntimeError("\ud800"), RecursionError(), NotImplementedError({1})))
        return odd

    answers = {f"tcp://h{at}:1": one for at, one in enumerate(known)}
    folder = records.make_folder(reader.folder, "c")
    made = campaign_of()
    made.campaign = "c"
    engine.Engine(Client(answers, answer), made, folder, wait_s=0.0).run()  # type: ignore[arg-type]
    kept = records.read_folder(folder)
    assert kept.tasks == made.tasks, "what was written is not what is read"
    progress_line(made, [])
    runs = [task.run for task in made.tasks if task.run]
    assert len(set(runs)) == len(runs), "two runs in one file"
    assert {task.gpu for task in made.tasks if task.status == "ok"} >= {"GPU-1", "GPU-2"}, "a good run was lost"
    for task in made.tasks:
        measured = task.run and any(one.status == "ok" for one in store.read(folder / task.run).outcomes)
        assert measured or task.status != "ok", f"{task.name} is ok without a run"
        assert task.reason or task.status == "ok", f"{task.name} says no reason"
    added = stores.add_all(reader.folder, stores.campaign_sources(folder))
    assert added.runs + added.known == len(runs), f"not in the store: {added.failed}"


def changed(seed: random.Random, values: dict[str, Any]) -> Any:
    """The values with one of them odd or absent, or something else instead of them."""
    odd = dict(values)
    if not seed.randrange(4):
        return seed.choice(ODD[1:])
    key = seed.choice(list(odd))
    odd[key] = seed.choice(ODD)
    if not seed.randrange(5):
        del odd[key]
    return odd


@cache
def whole_store(folder: Path) -> dict[str, int]:
    """Make a store of three campaigns there; the rows of each."""
    rows = {}
    for name in ("c1", "c2", "c3"):
        sources = []
        for node in ("n1", "n2"):
            path = folder / f"{name}-{node}.json"
            path.write_bytes(schema.encode(replace(RUN, run_id=path.stem)))
            sources.append(Source(path, name, node, {}))
        rows[name] = stores.add_all(folder / "store", sources).rows
    return rows


def damaged_store(reader: Any, seed: random.Random) -> None:
    """Some files of a store are damaged, missing, or something else."""
    # Threads of Arrow and DuckDB reserve addresses that they do not use. The campaign looks at the memory that is used.
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    original = reader.folder.parent / f"original-{os.getpid()}"
    original.mkdir(exist_ok=True)
    rows = whole_store(original)
    place = reader.folder / "store"
    shutil.copytree(original / "store", place)
    paths = sorted(place.glob("**/*.parquet"))
    hit = seed.sample(paths, seed.choice((1, 1, 1, 2, 3)))
    sure = [path for path in hit if damage(path, seed)]
    lost = {campaign_of_file(path) for path in hit}
    try:
        whole = set(rows) - lost
        for arguments in (
            ("query", "SELECT campaign, count(*) AS n FROM rows GROUP BY 1 ORDER BY 1", "--csv"),
            ("report",), ("trend",), ("import", str(original / "c1-n1.json"), "--campaign", "c1"),
        ):  # fmt: skip
            ended = CliRunner().invoke(parser(), ["fleet", *arguments, "--store", str(place)], catch_exceptions=False)
            said = re.sub(r"\s+", "", ended.output)
            assert ended.exit_code in (ExitCode.MEASURED, ExitCode.USAGE), f"{arguments}: exit code {ended.exit_code}"
            if arguments[0] == "query" and ended.exit_code == ExitCode.MEASURED:
                for name in whole:
                    assert f"{name},{rows[name]}\n" in ended.output, f"rows of {name} were lost"
            if arguments[0] != "import":
                named = any(path.name[:24] in said for path in hit)
                assert not sure or named, f"{arguments} names no damaged file: {ended.output[-250:]}"
    finally:
        shutil.rmtree(place)


def campaign_of_file(path: Path) -> str:
    return next(part for part in path.parts if part.startswith("campaign=")).removeprefix("campaign=")


def damage(path: Path, seed: random.Random) -> bool:
    """Damage a file. True if every command must notice it."""
    data, what = path.read_bytes(), seed.randrange(8)
    if what == 0:
        path.write_bytes(data[: seed.randrange(len(data))])
    elif what == 1:
        path.write_bytes(seed.randbytes(seed.choice((0, 1, 100, len(data)))))
    elif what == 2:
        path.unlink()
    elif what == 3:
        path.unlink()
        path.mkdir()
    elif what == 4:
        path.unlink()
        os.mkfifo(path)
    elif what == 5:
        path.unlink()
        path.symlink_to(path.name)
    elif what == 6:
        path.write_bytes(b"PAR1" + data[-300:])
    else:  # somewhere in it, which may change a value and no more
        changed = bytearray(data)
        for _ in range(seed.randrange(1, 9)):
            changed[seed.randrange(len(changed))] ^= 1 << seed.randrange(8)
        path.write_bytes(changed)
    return what < 7


# Parts of a function: how it is defined, what it does, and what it gives back. ``ran`` counts how often it was run.
BODY = "    {body}\n    return {result}\n"
INNER = "import functools\n{kind}def inner(a):\n" + BODY + "step = functools.partial(inner, 1)\n"
OBJECT = "class Step:\n    {kind}def __call__(self):\n        {body}\n        return {result}\nstep = Step()\n"
WRAPPED = """import functools
def outer(f):
    @functools.wraps(f)
    def inner(*a):
        return f(*a)
    return inner
@outer
async def step():
"""
FORMS = {
    "def": "def step():\n" + BODY,
    "async": "import asyncio\nasync def step():\n    await asyncio.sleep(0)\n" + BODY,
    "generator": "def step():\n    yield 1\n    {body}\n    yield {result}\n",
    "async generator": "async def step():\n    yield 1\n    {body}\n    yield {result}\n",
    "partial": INNER.replace("{kind}", ""),
    "async partial": INNER.replace("{kind}", "async "),
    "object": OBJECT.replace("{kind}", ""),
    "async object": OBJECT.replace("{kind}", "async "),
    "wrapped": WRAPPED + BODY,
    "lambda": "def inner():\n" + BODY + "step = lambda: inner()\n",
    "method": OBJECT.replace("{kind}def __call__(self)", "@classmethod\n    def run(cls)").replace(
        "Step()", "Step.run"
    ),
}
BODIES = (
    "pass", "raise RuntimeError('no')", "raise Odd()", "raise StopIteration", "1 / 0", "[][1]",
    "import time; time.monotonic = time.perf_counter = lambda: 0.0; time.monotonic_ns = lambda: 0",
    "import time; time.sleep = None", "import warnings; warnings.warn('x')", "import gc; gc.collect()",
    "import random; random.seed(1)", "import os; os.environ['X'] = 'y'", "import sys; sys.setrecursionlimit(2000)",
    "import threading; threading.Thread(target=print, args=('',)).start()", "list(range(10**4))",
    "import numpy; numpy.seterr(all='raise')", "assert False, '\\ud800'", "raise Odd from KeyError('\\x1b[31m')",
)  # fmt: skip
RESULTS = (
    "None", "1", "[]", "{'a': 1}", "Odd", "Odd()", "float('nan')", "inner_coroutine()", "(one for one in ())",
    "[[[[[[1]]]]]]",
    "__import__('numpy').zeros(3)", "'x' * 1000", "NotImplemented", "type", "...",
)  # fmt: skip
HEAD = """ran = 0
class Odd(Exception):
    def __str__(self): raise KeyError("odd")
async def inner_coroutine(): pass
"""


def function(reader: Any, seed: random.Random) -> None:
    """A function that is defined, ends and gives back something odd."""
    name = f"odd{seed.randrange(1 << 40)}"
    form, body, result = seed.choice(list(FORMS)), seed.choice(BODIES), seed.choice(RESULTS)
    text = FORMS[form].format(body=f"global ran; ran += 1; {body}", result=result)
    path = reader.folder / f"{name}.py"
    path.write_text(HEAD + text)
    before = {key: getattr(time, key) for key in ("monotonic", "perf_counter", "monotonic_ns", "sleep")}
    paths, variables = list(sys.path), dict(os.environ)
    import numpy as np

    errors = np.geterr()
    try:
        with contextlib.suppress(SyntaxError):
            compile(HEAD + text, str(path), "exec")
            use(f"{path}::step", name, form, body)
    finally:
        for key, value in before.items():
            setattr(time, key, value)
        np.seterr(**errors)
        sys.path[:] = paths
        sys.modules.pop(name, None)
        os.environ.clear()
        os.environ.update(variables)


def use(target: str, name: str, form: str, body: str) -> None:
    """What the benchmark does with a function. It is refused with a word, or was run as often as it was called."""
    gpu = exact()
    try:
        with gpu.case():
            step = own_step(gpu, partial(bound, gpu, target, "", {}))
            step.submit(3)
            with contextlib.suppress(NotCapturedError):
                step.capture(follow=True)
            step.profiled_ns()
    except MeasurementError as error:
        if not str(error):
            raise AssertionError("it is refused without a word") from None
        return
    ran = sys.modules[name].ran  # type: ignore[attr-defined]
    assert ran >= WARM_UPS + 3, f"the function ({form}: {body}) ran {ran} times"


def trace(reader: Any, seed: random.Random, kind: str) -> None:
    campaign_traces.diagnosed(kind, seed.randrange(1 << 40), reader.folder)


Read = Callable[[Any, random.Random], None]
# The relative frequency of each kind beside those of campaign_files.KINDS.
KINDS: dict[str, tuple[Read, float]] = {
    "workers": (workers, 5), "damaged_store": (damaged_store, 1), "function": (function, 10),
    **{kind: (partial(trace, kind=kind), 2) for kind in campaign_traces.KINDS},
}  # fmt: skip


# Python loses a Ctrl-C that comes within a callback of a weak reference, and says so itself.
LOST_BY_PYTHON = re.compile(r"(?ms)Exception ignored in: <function WeakSet.*?^KeyboardInterrupt: *$")


def fleet_ctrl_c(place: Any, seed: random.Random) -> str | None:
    """Ctrl-C, once or several times, reaches `fleet run` and all that it started, at any time."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        return "impossible"
    command = [sys.executable, "-m", "microbench", "fleet", "run", *("launch_kind", "--quick", "--device", "fake"),
               *("--local", "2", "--store", str(place.root / "data" / "fleet"))]  # fmt: skip
    started = subprocess.Popen(
        command, env=place.environment, cwd=place.here, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, text=True, errors="replace",
    )  # fmt: skip
    time.sleep(seed.uniform(0, 12))
    for _ in range(seed.choice((1, 1, 2, 4))):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGINT)
        time.sleep(seed.uniform(0, 0.5))
    said, _ = started.communicate(timeout=120)
    said = LOST_BY_PYTHON.sub("", said)
    assert "Traceback" not in said, said[-500:]
    assert said.count("\n") <= MOST_LINES, f"{said.count(chr(10))} lines: {said[:500]}"
    assert started.returncode in (ExitCode.INTERRUPTED, ExitCode.MEASURED, -signal.SIGINT), started.returncode
    place.check()
    return None


FAULTS = {"fleet_ctrl_c": fleet_ctrl_c}

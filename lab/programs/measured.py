"""What a process measures of one program: its times without a profiler, or its traces."""

from __future__ import annotations

import gzip
import importlib
import json
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from programs import BY_NAME, Made, Step

WARM_UP = 10
BLOCK_S, ROUNDS = 0.05, 9
WATCHED, WATCHED_STEPS = "watch", 100
BEFORE = 2  # steps that a schedule skips and warms up on, and that a trace without a schedule has more


def main(name: str, what: str, parts: Path) -> None:
    """Imports what the program needs, says so by a file, and measures once a line comes: nothing else runs then.

    ``what`` is "times", "traces", or "watched" in a process that microbench watch records. Writes NAME.WHAT.json;
    "error" in it says what failed.
    """
    program, found = BY_NAME[name], {}
    result = parts / f"{name}.{what}.json"
    try:
        make = getattr(importlib.import_module(f"programs.{program.module}"), name)
        if what == "traces" and "xplane" not in program.kinds:
            import torch.profiler  # noqa: F401
        result.with_suffix(".ready").touch()
        if not sys.stdin.readline():
            return
        made: Made = make()
        for _ in range(WARM_UP):
            made.step()
        made.wait()
        if what == "times":
            times(made, found)
        elif what == "watched":
            for _ in range(WATCHED_STEPS):
                made.step()
            made.wait()
            found["traces"] = {WATCHED: {"file": f"{name}.{WATCHED}.rows.gz", "steps": WARM_UP + WATCHED_STEPS}}
        else:
            traces(name, made, parts, found)
    except ModuleNotFoundError as error:
        found["error"] = f"needs {error.name}"
    except Exception as error:  # noqa: BLE001  (whatever a library says, the other programs are measured)
        failed(found, "", error)
    result.write_text(json.dumps(found))


def failed(found: dict[str, Any], what: str, error: Exception) -> None:
    """Notes an error and where it came from."""
    found[f"{what}error"] = " ".join(f"{type(error).__name__}: {error}".split())[:600]
    found[f"{what}traceback"] = "".join(traceback.format_exception(error))[-2000:]


def times(made: Made, found: dict[str, Any]) -> None:
    """Seconds a step of each way, block by block: "eager", "graph", "graph_without_waits" and each remedy.

    A block is many steps with one wait at its end. The ways take turns, so that a drift of the host is in all of them.
    """
    ways: dict[str, Step] = {"eager": made.step, **made.remedies}
    for way, make in (("graph", made.graph), ("graph_without_waits", made.without_waits)):
        try:
            if make is not None:
                ways[way] = make()
        except Exception as error:  # noqa: BLE001  (the eager time is wanted all the same)
            failed(found, f"{way}_", error)
    counts = {}
    for way, step in ways.items():
        counts[way] = even_count(made, step)
    blocks: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, step in ways.items():
            blocks[way].append(block_s(made, step, counts[way]))
    found |= {"blocks_s": blocks, "steps_a_block": counts}
    found["times_s"] = {way: statistics.median(each) for way, each in blocks.items()}


def even_count(made: Made, step: Step) -> int:
    """The steps of a block of BLOCK_S: an even number, as two kinds of steps may take turns."""
    block_s(made, step, 4)
    return 2 * max(round(BLOCK_S / 2 / block_s(made, step, 4)), 2)


def block_s(made: Made, step: Step, count: int) -> float:
    """Seconds a step of ``count`` steps."""
    made.wait()
    began = time.perf_counter()
    for _ in range(count):
        step()
    made.wait()
    return (time.perf_counter() - began) / count


def traces(name: str, made: Made, parts: Path, found: dict[str, Any]) -> None:
    """Writes a trace of each kind. ``found["traces"]`` has its file and number of steps, ``found["eager_s"]`` the true
    time of a step in this process."""
    program, found["traces"] = BY_NAME[name], {}
    # A process may be 1.5 times as slow as the next one, so the step is timed here too, before the first recording.
    count = even_count(made, made.step)
    found["eager_s"] = statistics.median(block_s(made, made.step, count) for _ in range(ROUNDS))
    for kind in program.kinds:
        file = f"{name}.{kind}.{'pb' if kind == 'xplane' else 'json'}.gz"
        record = record_jax if kind == "xplane" else record_torch
        try:
            steps = record(made, kind, program.steps, parts / file)
            found["traces"][kind] = {"file": file, "steps": steps}
        except Exception as error:  # noqa: BLE001  (the other kinds are wanted all the same)
            failed(found, f"{kind}_", error)


def record_torch(made: Made, kind: str, steps: int, path: Path) -> int:
    """By torch.profiler, which also sees what CuPy, Numba and Triton submit.

    Traces with CPU activities are made as PyTorch's tutorial does: by a schedule, and ``step()`` after each step.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.cuda.init()
    if kind == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(steps + BEFORE):
                made.step()
            made.wait()
        recorded.export_chrome_trace(str(path))
        return steps + BEFORE
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=BEFORE, active=steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        with_stack=kind == "stack",
    ) as recorded:
        for _ in range(1 + BEFORE + steps):
            made.step()
            recorded.step()
    made.wait()
    return steps


def record_jax(made: Made, kind: str, steps: int, path: Path) -> int:
    """By jax.profiler, each step annotated as JAX's guide does."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for number in range(steps):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    made.step()
            made.wait()
        (written,) = Path(folder).rglob("*.xplane.pb")
        path.write_bytes(gzip.compress(written.read_bytes(), 6))
    return steps

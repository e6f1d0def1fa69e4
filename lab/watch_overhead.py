"""What recording adds to a step: each way to record in turn with none, in fresh processes, on a real GPU.

By hand: ``python lab/watch_overhead.py FOLDER [ROUNDS [PROGRAM]]``. All processes of a round import first; then they
measure their eager step and their replayed graph one at a time, in TURNS of another order each. A host changes its
speed by 2 within seconds, so each also times a loop of Python, and steps are compared at one speed of that loop.
FOLDER gets overhead.json and overhead.md.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 0.12  # of blocks for each of the two steps, each turn
BLOCK_S = 0.02
TURNS = 6  # the first is not counted: there a recorder still begins, or ends its window
LOOP = 100_000
# "kernels" records kernels alone, "waits" is what watch records between two windows.
# Without "stacks" watch names no Python; the ways to name it beside that are py-spy's and PyTorch's.
WAYS = ("none", "watch", "stacks", "kernels", "waits", "torch_cuda", "torch_cpu", "torch_stacks", "py_spy")
SPY = ("py-spy", "record", "--native", "--format", "raw", "--output", os.devnull, "--duration", "600", "--pid")


def main(folder: Path, rounds: int = 4, program: str = "decode_grouped") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    errors: dict[str, str] = {}
    for number in range(rounds):
        chance = random.Random(number)
        with tempfile.TemporaryDirectory() as name:
            children = {way: started(way, program, Path(name)) for way in WAYS}
            for turn in range(TURNS):
                for way in chance.sample(WAYS, len(WAYS)):
                    answer = asked(children[way], errors, way)
                    if turn:
                        found[way].append(answer)  # an empty one, too: turns of all ways stand beside each other
            for process in children.values():
                process.communicate()
        (folder / "overhead.json").write_text(json.dumps({"program": program, "steps_s": found, "errors": errors}))
        print(f"round {number + 1}", *table(found, errors), sep="\n", flush=True)
    (folder / "overhead.md").write_text("\n".join(table(found, errors)) + "\n")


def asked(process: subprocess.Popen[str], errors: dict[str, str], way: str) -> dict[str, float]:
    """What a process measures in its turn, or nothing."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
        return dict(json.loads(process.stdout.readline()))
    except (OSError, ValueError) as error:
        errors[way] = f"{type(error).__name__}: {error}"
        return {}


def started(way: str, program: str, folder: Path) -> subprocess.Popen[str]:
    """A process that has imported nothing yet, and measures once a line comes."""
    return subprocess.Popen(
        [sys.executable, __file__, "--child", way, program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def table(found: dict[str, list[dict[str, float]]], errors: dict[str, str]) -> Iterator[str]:
    """A table of how much longer a step takes with each way to record: the median ratio and its quartiles."""
    yield "| way | eager step, us | of unwatched | quartiles | graph, us | of unwatched | quartiles |"
    yield "|---|---|---|---|---|---|---|"
    for way, each in found.items():
        cells = []
        for what in ("eager", "graph"):
            pairs = [(a, b) for a, b in zip(each, found["none"], strict=True) if what in a and what in b]
            if len(pairs) < 2:
                cells += ["", "", ""]
                continue
            # A graph is the GPU's work, whatever the speed of the host.
            speed = [b["loop"] / a["loop"] if what == "eager" else 1 for a, b in pairs]
            low, middle, high = statistics.quantiles(
                [a[what] / b[what] * by for (a, b), by in zip(pairs, speed, strict=True)], n=4
            )
            cells.append(f"{statistics.median(a[what] for a, _ in pairs) * 1e6:.0f}")
            cells += [f"{middle:.3f}", f"{low:.3f}-{high:.3f}"]
        yield f"| {way} | {' | '.join(cells)} |"
    for way, error in errors.items():
        yield f"- {way}: {error}"


def child(way: str, program: str, folder: Path) -> None:
    """Measures one way in this process and prints the seconds a step."""
    if way in ("watch", "stacks", "kernels", "waits"):
        begin_recorder(way, folder)
    from programs import BY_NAME

    make = getattr(importlib.import_module(f"programs.{BY_NAME[program].module}"), program)
    import torch.profiler as profiler

    if not sys.stdin.readline():
        return
    made = make()
    for _ in range(20):
        made.step()
    made.wait()
    graph = None
    kinds = {"torch_cuda": ["CUDA"], "torch_cpu": ["CPU", "CUDA"], "torch_stacks": ["CPU", "CUDA"]}.get(way)
    activities = [getattr(profiler.ProfilerActivity, kind) for kind in kinds or ()]
    profile = profiler.profile(activities=activities, with_stack=way == "torch_stacks")
    with profile if kinds else contextlib.nullcontext(), spied() if way == "py_spy" else contextlib.nullcontext():
        with contextlib.suppress(Exception):  # the eager time is wanted all the same
            graph = made.graph()
        while True:
            found = timed(made.step, made.wait)
            if graph:
                found["graph"] = timed(graph, made.wait)["eager"]
            print(json.dumps(found), flush=True)
            if not sys.stdin.readline():
                return


@contextlib.contextmanager
def spied() -> Iterator[None]:
    """While py-spy samples this process."""
    with subprocess.Popen([*SPY, str(os.getpid())], stdout=subprocess.PIPE, text=True) as spy:
        assert spy.stdout is not None
        said = next((line for line in spy.stdout if line.strip()), "")
        if "Sampling process" not in said:
            raise OSError(f"py-spy did not begin: {said}")
        try:
            yield
        finally:
            spy.kill()


def begin_recorder(way: str, folder: Path) -> None:
    """Begin to record this process as watch does, with the kinds of records of this way."""
    from microbench.core.c_library import OPTIONS, library
    from microbench.recorder.program import SOURCE, How

    where = SOURCE.parent
    spec = importlib.util.spec_from_file_location(
        "_watch", where / "__init__.py", submodule_search_locations=[str(where)]
    )
    assert spec is not None
    sys.modules["_watch"] = importlib.util.module_from_spec(spec)
    recorder: Any = importlib.import_module("_watch.recorder")
    made, recordings = library(SOURCE), folder / way
    recordings.mkdir()
    if way == "kernels":
        text, source, made = SOURCE.read_text(encoding="utf-8"), recordings / "kernels.c", recordings / "kernels.so"
        for all_of_them, fewer in (
            ("KERNEL, MEMCPY, MEMSET, PEER_MEMCPY, OVERHEAD}", "KERNEL}"),
            ("if (!strstr(call, PARTS_OF_CALLS[place])) continue;", "continue;"),
        ):
            assert text.count(all_of_them) == 1, f"recorder.c has no {all_of_them}"
            text = text.replace(all_of_them, fewer)
        source.write_text(text)
        subprocess.run(["cc", *OPTIONS, "-o", made, source, "-ldl"], check=True)
    how = How(window_s=0.05, every_s=1e6) if way == "waits" else How(stacks=way == "stacks", whole=True)
    settings = {"folder": str(recordings), "library": str(made), **how._asdict()}
    recorder.begin("torch", settings, print)


def timed(step: Any, wait: Any) -> dict[str, float]:
    """The median of blocks of steps, in s a step, and of the loops of Python between them."""
    blocks: list[float] = []
    loops: list[float] = []
    count, began = 2, time.perf_counter()
    while time.perf_counter() - began < SECONDS or not blocks:
        begin = time.perf_counter()
        for _ in range(LOOP):
            pass
        loops.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        block_s = time.perf_counter() - begin
        if block_s < BLOCK_S / 2:
            count *= 2
        else:
            blocks.append(block_s / count)
    return {"eager": statistics.median(blocks), "loop": statistics.median(loops)}


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        given = sys.argv[2:4]
        rounds, program = *given, *("4", "decode_grouped")[len(given) :]
        main(Path(sys.argv[1]), int(rounds), program)

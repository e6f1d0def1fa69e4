"""What recording adds to a step: each way to record in turn with none, in fresh processes, on a real GPU.

By hand: ``python lab/watch_overhead.py FOLDER [ROUNDS [PROGRAM]]``. All processes of a round import first; then they
measure their eager step and their replayed graph one at a time. FOLDER gets overhead.json and overhead.md.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 0.6  # of blocks for each of the two steps
BLOCK_S = 0.05
# "kernels" records kernels alone, "waits" is what watch records between two windows.
WAYS = ("none", "watch", "stacks", "kernels", "waits", "torch_cuda", "torch_cpu")


def main(folder: Path, rounds: int = 8, program: str = "decode_grouped") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    errors: dict[str, str] = {}
    for number in range(rounds):
        order = random.Random(number).sample(sorted(WAYS), len(WAYS))
        with tempfile.TemporaryDirectory() as name:
            children = {way: started(way, program, Path(name)) for way in order}
            for way, process in children.items():
                try:
                    output, _ = process.communicate("go\n", timeout=60)
                    found[way].append(json.loads(output.splitlines()[-1]))
                except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
                    process.kill()
                    found[way].append({})  # so that the rounds of all ways stand beside each other
                    errors[way] = f"{type(error).__name__}: {error}"
        (folder / "overhead.json").write_text(json.dumps({"program": program, "steps_s": found, "errors": errors}))
        counts = (f"{way} {sum(map(bool, each))}" for way, each in found.items())
        print(f"round {number + 1}: {', '.join(counts)}", flush=True)
    lines = list(table(found, errors))
    (folder / "overhead.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def started(way: str, program: str, folder: Path) -> subprocess.Popen[str]:
    """A process that has imported nothing yet, and measures once a line comes."""
    return subprocess.Popen(
        [sys.executable, __file__, "--child", way, program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def table(found: dict[str, list[dict[str, float]]], errors: dict[str, str]) -> Iterator[str]:
    """Each way against none, round by round: the median ratio and its range."""
    yield "| way | eager step, us | of unwatched | range | graph, us | of unwatched | range |"
    yield "|---|---|---|---|---|---|---|"
    for way, each in found.items():
        cells = []
        for what in ("eager", "graph"):
            pairs = [
                (one[what], none[what])
                for one, none in zip(each, found["none"], strict=True)
                if what in one and what in none
            ]
            if pairs:
                ratios = [one / none for one, none in pairs]
                cells.append(f"{statistics.median(one for one, _ in pairs) * 1e6:.0f}")
                cells.append(f"{statistics.median(ratios):.3f}")
                cells.append(f"{min(ratios):.3f}-{max(ratios):.3f}")
            else:
                cells += ["", "", ""]
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
    kinds = {"torch_cuda": ["CUDA"], "torch_cpu": ["CPU", "CUDA"]}.get(way)
    activities = [getattr(profiler.ProfilerActivity, kind) for kind in kinds or ()]
    if way == "waits":
        timed(made.step, made.wait)  # the window of the recorder ends at a turn of this loop, and is read then
    with profiler.profile(activities=activities) if kinds else contextlib.nullcontext():
        found = {"eager": timed(made.step, made.wait)}
        with contextlib.suppress(Exception):  # the eager time is wanted all the same
            found["graph"] = timed(made.graph(), made.wait)
    print(json.dumps(found), flush=True)


def begin_recorder(way: str, folder: Path) -> None:
    """Begin to record this process as watch does, with the kinds of records of this way."""
    from microbench.recorder.library import OPTIONS, SOURCE, library
    from microbench.recorder.program import How

    where = SOURCE.parent
    spec = importlib.util.spec_from_file_location(
        "_watch", where / "__init__.py", submodule_search_locations=[str(where)]
    )
    assert spec is not None
    sys.modules["_watch"] = importlib.util.module_from_spec(spec)
    recorder: Any = importlib.import_module("_watch.recorder")
    made, recordings = library(), folder / way
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


def timed(step: Any, wait: Any) -> float:
    """The median of blocks of steps, in s a step."""
    blocks: list[float] = []
    count, began = 2, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        begin = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        block_s = time.perf_counter() - begin
        if block_s < BLOCK_S / 2:
            count *= 2
        else:
            blocks.append(block_s / count)
    return statistics.median(blocks)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        given = sys.argv[2:4]
        rounds, program = *given, *("8", "decode_grouped")[len(given) :]
        main(Path(sys.argv[1]), int(rounds), program)

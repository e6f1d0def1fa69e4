"""Functions timed by microbench, nvbench and triton's do_bench in turn on one GPU: medians, and ours over theirs.

By hand, on a machine with a GPU: ``python lab/own_peers.py FOLDER [TURNS]``. All three time one call with other data
in the L2. nvbench holds the stream behind a kernel while it submits, as microbench does; do_bench submits while the GPU
fills the L2. Each turn has a process of each. FOLDER gets peers.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import own_functions
from own_functions import FUNCTIONS, Function

from microbench.core.errors import MeasurementError
from microbench.experiments.own import callables
from microbench.experiments.own.callables import bound, load
from microbench.experiments.own.step import own_step
from microbench.gpu.cuda.device import open_gpu
from microbench.gpu.open import probe_environment
from microbench.meter.timer import Meter, cold

TURNS = 3
OURS, NVBENCH, DO_BENCH = "microbench", "nvbench", "do_bench"
Figures = dict[str, float]


def main(folder: Path, turns: int) -> None:
    """Print each function's figures in us, and ours over each of theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    own_functions.write(folder)
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(turns):
        for who in WHO:
            answer = folder / f"{who}.json"
            answer.unlink(missing_ok=True)
            child = [sys.executable, __file__, "--child", who, str(answer)]
            if subprocess.run(child, check=False, env=os.environ | {"CUPY_ACCELERATORS": "cub"}).returncode:
                print(f"{who} failed", flush=True)
                continue
            for name, seconds in json.loads(answer.read_text()).items():
                taken.setdefault(name, {}).setdefault(who, []).append(seconds)
    (folder / "peers.json").write_text(json.dumps(taken, indent=1))
    for name, figures in taken.items():
        middle = {by: median(each) for by, each in figures.items()}
        ours_s = middle.get(OURS, float("nan"))
        words = [f"{by} {seconds * 1e6:.2f} us" for by, seconds in middle.items()]
        words += [f"ours / {by} {ours_s / seconds:.3f}" for by, seconds in middle.items() if by != OURS]
        print(f"{name:12} {' '.join(words)}")


def by_microbench(_: Path) -> Figures:
    """Medians of one call behind a gate, in s."""
    gpu = open_gpu(probe_environment(None).gpus[0].uuid)
    meter, found = Meter(gpu.clock, gpu), {}
    for function in FUNCTIONS:
        try:
            with gpu.case():
                step = own_step(gpu, partial(bound, gpu, function.target, function.setup_target, {}))
                taken = meter.collect("cold", cold(gpu, step.submit, step.stream), clock="device")
                found[function.name] = median(taken.values)
        except MeasurementError as error:
            print(f"{function.name}: {error}", flush=True)
    gpu.close()
    return found


def by_nvbench(answer: Path) -> Figures:
    """nvbench's medians, in s."""
    from cuda import bench

    for function in FUNCTIONS:
        benchmark = bench.register(for_nvbench(*prepared(function)))
        benchmark.set_name(function.name)
        benchmark.set_timeout(1.0)
    listed = answer.with_name("nvbench_listed.json")
    bench.run_all_benchmarks(["peers", "--devices", "0", "--json", str(listed), "--quiet"])
    found = summaries(json.loads(listed.read_text()))
    return {name: seconds for name, tag, seconds in found if tag == "nv/cold/time/gpu/median"}


def by_do_bench(_: Path) -> Figures:
    """Medians of do_bench, in s; functions with a stream of their own are left out."""
    from triton.testing import do_bench

    made = {function.name: prepared(function) for function in FUNCTIONS}
    return {name: do_bench(call, return_mode="median") * 1e-3 for name, (call, handle) in made.items() if not handle}


def prepared(function: Function) -> tuple[Callable[[], object], int]:
    """The call, and the stream among its arguments, or 0."""
    given = load(function.setup_target)()
    arguments = given if isinstance(given, tuple) else (given,)
    call = partial(load(function.target), *arguments)
    for _ in range(4):
        call()
    return call, callables.stream_of(arguments) or 0


class Given:
    """A stream as nvbench takes it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def for_nvbench(call: Callable[[], object], handle: int) -> Callable[[Any], None]:
    """A benchmark of nvbench that times a call in its stream, or else in nvbench's."""

    def timed(state: Any) -> None:
        if handle:
            state.set_stream(Given(handle))
        restore = callables.use_stream(handle or int(state.get_stream().addressof()), 0)

        def launch(_: object) -> None:
            call()

        state.exec(launch, batched=False)
        restore()

    return timed


def summaries(listed: Any) -> Iterator[tuple[str, str, float]]:
    """Name, tag and value of each number in nvbench's JSON."""
    for benchmark in listed["benchmarks"]:
        for state in benchmark["states"]:
            for summary in state["summaries"] or ():
                for one in summary["data"]:
                    if one["name"] == "value" and one["type"] == "float64":
                        yield benchmark["name"], summary["tag"], float(one["value"])


WHO = {OURS: by_microbench, NVBENCH: by_nvbench, DO_BENCH: by_do_bench}

if __name__ == "__main__":
    if sys.argv[1] == "--child":
        answer = Path(sys.argv[3])
        os.chdir(answer.parent)
        answer.write_text(json.dumps(WHO[sys.argv[2]](answer)))
    else:
        main(Path(sys.argv[1]).resolve(), *map(int, sys.argv[2:3] or [TURNS]))

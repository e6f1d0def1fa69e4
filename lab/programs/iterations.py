"""How long a program's loop runs, how it waits, and when each iteration ended: the truth that a recording must meet."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STYLES = ("each", "fifth", "item", "none")
WARM_UP, LEAST, MOST_STAMPS = 3, 30, 1_000_000
REPLAYS, EAGER, ROUNDS = 200, 50, 3


class Captured(Exception):
    """The loop of the program is not run."""


class Iterations:
    """What a program's own loop asks and tells.

    The first three iterations warm up. run.py takes the lock when all is imported and nothing has used the GPU: once a
    second process opens the GPU, a node of the first one's graphs takes 0.27 us less (lab/measurements/gaps.csv).
    A program sets ``parts`` where its iteration is a loop over equal parts (tokens, micro-batches), and ``group`` where
    so many iterations make one of an outer loop that also does something.
    """

    def __init__(self, style: str, seconds: float, device: str, lock: Path | None = None, graph: str = "") -> None:
        self.style, self.seconds, self.device, self.graph = style, seconds, device, graph
        self.reads = style == "item"
        self.unit, self.parts, self.group = "one step", 1, 1
        self.stamps: list[int] = []
        self.ticks: list[float] = []
        self.found: dict[str, Any] = {}
        self._count, self._stop, self._path, self._lock = 0, float("inf"), lock, None

    def waits(self) -> bool:
        """Whether the program waits for the GPU at the end of this iteration."""
        return self.style == "each" or (self.style == "fifth" and self._count % 5 == 4)

    def end(self) -> None:
        """Called at the end of each iteration."""
        self.stamps.append(time.time_ns())
        self.ticks.append(time.perf_counter())
        self._count += 1
        if self._count == WARM_UP:
            settle()
            self.stamps, self.ticks = [time.time_ns()], [time.perf_counter()]
            self._stop = self.ticks[0] + self.seconds

    def enough(self) -> bool:
        """Whether the loop ends here."""
        if self.device == "cpu":
            return self._count >= WARM_UP
        return self.graph or (self._count >= WARM_UP + LEAST and self.ticks[-1] > self._stop)

    def capture(self, step: Callable[[], object]) -> None:
        """With --graph, --prove or --compile: measures the step and its graph, and raises Captured. Else nothing."""
        if self.graph:
            (torch_graph if self.graph == "graph" else torch_proof)(step, self)
            raise Captured

    def capture_cupy(self, step: Callable[[], object]) -> None:
        """The same for a step of CuPy. The step submits to the current stream and allocates only from the pool."""
        if self.graph:
            cupy_graph(step, self)
            raise Captured

    def take(self) -> None:
        """Waits until no other process with this lock has the GPU open. It is kept until this process ends."""
        if self._path is not None:
            self._lock = self._path.open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def truth(self) -> dict[str, Any]:
        """Seconds of the iterations in the second half, and the stamps. Stamp 0 is the begin of the first iteration."""
        half = self.ticks[len(self.ticks) // 2 :]
        seconds = sorted(after - before for before, after in itertools.pairwise(half))
        figures: dict[str, Any] = {"unit": self.unit, "parts": self.parts, "group": self.group}
        if len(seconds) > 1:
            figures |= {
                "median_s": statistics.median(seconds), "mean_s": statistics.fmean(seconds),
                "p10_s": seconds[len(seconds) // 10], "p90_s": seconds[len(seconds) * 9 // 10],
            }  # fmt: skip
        return figures | {
            "iterations": max(0, len(self.stamps) - 1), "warm_up": WARM_UP, "stamps_ns": self.stamps[-MOST_STAMPS:],
            **self.found,
        }  # fmt: skip


def settle() -> None:
    """Waits for everything that this process has submitted by whatever library."""
    torch, jax, cupy, numba = (sys.modules.get(name) for name in ("torch", "jax", "cupy", "numba.cuda"))
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if jax is not None:
        for array in jax.live_arrays():
            array.block_until_ready()
    if cupy is not None:
        cupy.cuda.Device().synchronize()
    elif numba is not None and torch is None and jax is None:
        numba.synchronize()


def timed(call: Callable[[], object], wait: Callable[[], object], times: int) -> tuple[float, float]:
    """The median seconds of a call that is waited for, and of one of many calls in a row."""
    each, together = [], []
    for _ in range(ROUNDS):
        for _ in range(times):
            began = time.perf_counter()
            call()
            wait()
            each.append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        together.append((time.perf_counter() - began) / times)
    return statistics.median(each), statistics.median(together)


def torch_graph(step: Callable[[], object], it: Iterations) -> None:
    """The times of the eager step and of its graph into ``it.found``, or why there is no graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    eager = timed(step, torch.cuda.synchronize, EAGER)
    it.found |= dict(zip(("eager_seconds", "eager_back_to_back_seconds"), eager, strict=True))
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.graph(graph):
            step()
        graph.instantiate()
        replayed = timed(graph.replay, torch.cuda.synchronize, REPLAYS)
    except Exception as error:  # noqa: BLE001 - whatever the library says is the answer
        first = error.__context__ or error  # the end of a capture that broke fails too
        it.found["graph_reason"] = f"{type(first).__name__}: {first}"[:600]
        return
    it.found |= dict(zip(("graph_seconds", "graph_back_to_back_seconds"), replayed, strict=True))
    with contextlib.suppress(Exception):
        it.found |= nodes_of(graph.raw_cuda_graph())


def torch_proof(step: Callable[[], object], it: Iterations) -> None:
    """What `microbench graph` says of the step, with --compile of torch.compile alone, into ``it.found``."""
    from microbench.capture.graphed import Graphed
    from microbench.capture.making import Report, compiled, examine, gain

    report, sets = Report(), [((), {})]
    for _ in range(WARM_UP):
        step()
    began = time.perf_counter()
    if it.graph == "compile":
        report.times = [compiled(step, sets, mode, lambda stage: None) for mode in ("default", "reduce-overhead")]
    elif examine(step, ((), {}), [], report, lambda stage: None):
        gain(step, lambda: Graphed(step), sets, report, lambda stage: None)
    found = {
        name: getattr(report, name) for name in ("proved", "why", "difference", "exact", "scatter", "state", "varied")
    }
    found |= {
        "blockers": [f"{one.line} {one.within} ({one.call}): {one.advice}" for one in report.blockers],
        "ratio": report.ratio,
    }
    found |= {"times": [(one.name, one.median_s) for one in report.times], "also": report.also, "left": report.left}
    found |= {"compiled": {one.name: (one.ratio, one.why) for one in report.times if one.ratio or one.why}}
    found |= {"rest": report.rest and (report.rest.median_s, report.rest.why), "memory": report.memory_bytes}
    it.found |= {"report": found, "report_seconds": time.perf_counter() - began}
    if report.proved:
        it.found["beyond_replay_s"] = beyond_replay(step)


def beyond_replay(step: Callable[[], object], blocks: int = 15) -> list[float]:
    """The seconds that a call of graphed() takes beyond the replay, by turns with a replay: of each block of 2000."""
    import torch

    from microbench.capture.graphed import Graphed

    called, small = Graphed(step, copies=False), torch.cuda.CUDAGraph()
    for _ in range(8):
        called()
    one = torch.zeros(1, device="cuda")
    with torch.cuda.graph(small):
        one.zero_()
    if called._last is None:
        return []
    called._last._graph = small  # so that the GPU is never behind
    found = []
    for _ in range(blocks):
        spent = [0.0, 0.0]
        for _ in range(10):
            for which, call in enumerate((called, small.replay)):
                began = time.perf_counter()
                for _ in range(200):
                    call()
                spent[which] += (time.perf_counter() - began) / 2000
                torch.cuda.synchronize()
        found.append(spent[0] - spent[1])
    return found


def nodes_of(handle: int) -> dict[str, Any]:
    from cuda.bindings import driver

    graph = driver.CUgraph(handle)
    number = driver.cuGraphGetNodes(graph, 0)[-1]
    nodes = driver.cuGraphGetNodes(graph, number)[1]
    kinds = [driver.cuGraphNodeGetType(node)[1].name.removeprefix("CU_GRAPH_NODE_TYPE_").lower() for node in nodes]
    return {"graph_nodes": number, "graph_kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))}}


def cupy_graph(step: Callable[[], object], it: Iterations) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(WARM_UP):
            step()
        stream.synchronize()
        eager = timed(step, stream.synchronize, EAGER)
        it.found |= dict(zip(("eager_seconds", "eager_back_to_back_seconds"), eager, strict=True))
        try:
            stream.begin_capture()
            step()
            graph = stream.end_capture()
            replayed = timed(lambda: graph.launch(stream), stream.synchronize, REPLAYS)
        except Exception as error:  # noqa: BLE001 - whatever the library says is the answer
            it.found["graph_reason"] = f"{type(error).__name__}: {error}"[:600]
            return
    it.found |= dict(zip(("graph_seconds", "graph_back_to_back_seconds"), replayed, strict=True))
    with contextlib.suppress(Exception):
        it.found |= nodes_of(graph.graph)


it: Iterations  # of this process; run.py sets it before a program at module level asks

"""Records a made-up program into a Trace: calls take the times that are asked for, and the GPU works in order."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from microbench.traces.trace import (
    CALLS,
    MEMORIES,
    NONE,
    RANGE_KINDS,
    RANGES,
    SYNC_KINDS,
    SYNCS,
    TURNS,
    WORK,
    WORK_KINDS,
    Loop,
    Memory,
    Thread,
    Trace,
    empty,
)

WAY_NS, GAP_NS = 2000, 900
EVENT_NS = 1300  # from the end of a stream's work to the begin of another stream's that waits for its event
OFF_NS = 7  # added in files, so that times are not whole microseconds


class Recorder:
    """A host with one clock, ``now_ns``, and a GPU. Times are in ns."""

    def __init__(self) -> None:
        self.now_ns, self.thread = 0, 0
        self.ends_ns: dict[int, int] = {}
        self.work: list[tuple[int, ...]] = []
        self.calls: list[tuple[int, ...]] = []
        self.ranges: list[tuple[int, ...]] = []
        self.syncs: list[tuple[int, ...]] = []
        self.events: dict[int, tuple[int, int]] = {}  # of each call that recorded one, its stream and when it happens
        self.awaited_ns: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.turns: list[tuple[int, int, int, bool]] = []

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def call(self, name: str, ns: int) -> int:
        """A CUDA call; returns its place."""
        self.calls.append((self.now_ns, self.now_ns + ns, self.name(name), self.thread))
        self.now_ns += ns
        return len(self.calls) - 1

    def runs(self, ns: int) -> None:
        self.now_ns += ns

    def launch(self, kernel: str, duration_ns: int, call_ns: int = 3000, stream: int = 7, blocks: int = 16) -> None:
        self.submit(self.call("cudaLaunchKernel", call_ns), kernel, duration_ns, stream, blocks=blocks)

    def launches(
        self, kernels: int = 10, between_ns: int = 10_000, duration_ns: int = 3000, call_ns: int = 3000, **more: int
    ) -> None:
        """Kernels of different names, with host time before each."""
        for kernel in range(kernels):
            self.runs(between_ns)
            self.launch(f"kernel_{kernel}", duration_ns, call_ns, **more)

    def submit(
        self, call: int, name: str, duration_ns: int, stream: int = 7, *, kind: str = "kernel", blocks: int = 0,
        memories: tuple[Memory, Memory] = ("unknown", "unknown"), node: int = NONE, size: int = 0,
    ) -> None:  # fmt: skip
        begin = max(self.calls[call][1] + WAY_NS, self.awaited_ns.pop(stream, 0))
        if stream in self.ends_ns:
            begin = max(begin, self.ends_ns[stream] + GAP_NS)
        self.ends_ns[stream] = begin + duration_ns
        source, target = (MEMORIES.index(memory) for memory in memories)
        kinds = [*WORK_KINDS].index(kind)  # type: ignore[arg-type]
        self.work.append(
            (
                begin, begin + duration_ns, stream, size, blocks, node, call, self.name(name), 128, 0, kinds, source,
                target,
            )
        )  # fmt: skip

    def work_at(
        self, call: int, begin_ns: int, duration_ns: int, size: int, memories: tuple[Memory, Memory], stream: int = 7
    ) -> None:
        """A copy at a given time, which may be within its call."""
        self.submit(call, "Memcpy", duration_ns, stream, kind="copy", memories=memories, size=size)
        _, _, *more = self.work[-1]
        self.work[-1] = (begin_ns, begin_ns + duration_ns, *more)
        self.ends_ns[stream] = begin_ns + duration_ns

    def wait(self, name: str = "cudaStreamSynchronize", ns: int = 1500) -> None:
        """The host waits for the GPU, and ``ns`` longer."""
        until = max(self.now_ns, *self.ends_ns.values()) if self.ends_ns else self.now_ns
        self.call(name, until + ns - self.now_ns)

    def turn(self, loop: int = 0) -> None:
        """A turn of a loop of the program's own ends."""
        self.turns.append((self.now_ns, loop, self.thread, False))

    def record_event(self, stream: int) -> int:
        """Records an event; returns the place of the call."""
        call = self.call("cudaEventRecord", 700)
        self.events[call] = stream, max(self.ends_ns.get(stream, 0), self.awaited_ns.get(stream, 0) - EVENT_NS)
        return call

    def wait_event(self, event: int, stream: int) -> None:
        """The stream waits for an event that that call recorded."""
        begin_ns, call = self.now_ns, self.call("cudaStreamWaitEvent", 700)
        on_stream, happens_ns = self.events[event]
        self.awaited_ns[stream] = max(self.awaited_ns.get(stream, 0), happens_ns + EVENT_NS)
        kind = SYNC_KINDS.index("stream_wait_event")
        self.syncs.append((begin_ns, begin_ns + 700, stream, on_stream, call, event, kind))

    @contextmanager
    def range(self, name: str, kind: str = "operator") -> Iterator[None]:
        begin = self.now_ns
        yield
        kinds = [*RANGE_KINDS].index(kind)  # type: ignore[arg-type]
        self.ranges.append((begin, self.now_ns, self.name(name), self.thread, kinds))

    def steps(self, count: int) -> Iterator[int]:
        """So many steps, each within an annotation of the program."""
        for step in range(count):
            with self.range(f"step#{step}", "annotation"):
                yield step

    def trace(self, **changes: object) -> Trace:
        def table(rows: list[tuple[int, ...]], dtype: np.dtype[np.void]) -> np.ndarray:
            made = np.array(rows, dtype=dtype) if rows else empty(dtype)
            return made[np.argsort(made["begin_ns"], kind="stable")]

        fields: dict[str, object] = {
            "source": "made.json", "format": "PyTorch profiler", "work": table(self.work, WORK),
            "calls": table(self.calls, CALLS), "ranges": table(self.ranges, RANGES), "syncs": table(self.syncs, SYNCS),
            "names": tuple(self.names), "threads": (Thread(1, 1), Thread(1, 2)), "gpus": {0: "NVIDIA H200"},
            "turns": np.array(self.turns, TURNS),
            "loops": tuple(Loop(place, own=True, beneath=False) for place in ("train.py:5", "train.py:9")),
        }  # fmt: skip
        return Trace(**{**fields, **changes})  # type: ignore[arg-type]


def steps_of(
    count: int = 12, kernels: int = 10, duration_ns: int = 2000, between_ns: int = 20_000, call_ns: int = 3000,
    waits: bool = False, marked: bool = False, pause_ns: int = 0,
) -> Recorder:  # fmt: skip
    """Equal steps of kernels with different names, with host time before each."""
    made = Recorder()
    for step in range(count):
        with made.range(f"step#{step}", "annotation") if marked else made.range(f"aten::step{step}", "operator"):
            made.runs(pause_ns)
            for kernel in range(kernels):
                with made.range("aten::op"):
                    made.runs(between_ns)
                    made.launch(f"kernel_{kernel}", duration_ns, call_ns)
            if waits:
                made.wait()
    return made


def in_turns(between_ns: int, duration_ns: int, through: int | None = None) -> Recorder:
    """Steps of four kernels in a stream, four in another that waits for them, and so on: none run side by side.

    The first kernel of a step waits for an event of the step before. The events go ``through`` a stream without work.
    """
    made = Recorder()
    event = None
    for _ in made.steps(12):
        for turn in range(4):
            stream = (7, 20)[turn % 2]
            if event is not None:
                made.wait_event(event, stream)
            for kernel in range(4):
                made.runs(between_ns)
                made.launch(f"kernel_{turn}_{kernel}", duration_ns, stream=stream)
            event = made.record_event(stream)
            if through is not None:
                made.wait_event(event, through)
                event = made.record_event(through)
    return made


def with_pinned_copies() -> Recorder:
    """Steps of ten pinned copies of 64 KiB, each followed by a kernel that takes less than the host needs."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(10):
            made.runs(20_000)
            call = made.call("cudaMemcpyAsync", 6000)
            made.submit(call, "Memcpy HtoD", 3000, kind="copy", memories=("pinned", "device"), size=65_536)
            made.runs(9000)
            made.launch(f"kernel_{kernel}", 2000)
    return made


def kineto(trace: Trace) -> bytes:
    events: list[dict[str, object]] = []

    def add(row: np.void, category: str, process: int, thread: int, **arguments: object) -> None:
        begin, length = int(row["begin_ns"]) + OFF_NS, int(row["end_ns"] - row["begin_ns"])
        name = trace.names[row["name"]]
        times = {"ts": begin / 1000, "dur": length / 1000}
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times, "args": arguments}
        )

    for place, row in enumerate(trace.calls):
        add(row, "cuda_runtime", 1, trace.threads[row["thread"]].number, correlation=place + 1)
    for row in trace.work:
        kind, correlation, stream = WORK_KINDS[row["kind"]], int(row["call"]) + 1, int(row["stream"])
        arguments: dict[str, object] = {"device": 0, "stream": stream, "correlation": correlation}
        if kind == "kernel":
            arguments |= {"grid": [int(row["blocks"]), 1, 1], "block": [int(row["threads"]), 1, 1]}
        else:
            arguments |= {"bytes": int(row["bytes"])}
        add(row, {"kernel": "kernel", "copy": "gpu_memcpy"}.get(kind, "gpu_memset"), 0, stream, **arguments)
    for row in trace.syncs:
        add(
            trace.calls[row["call"]], "cuda_sync", 0, int(row["stream"]), stream=int(row["stream"]),
            wait_on_stream=int(row["on_stream"]), correlation=int(row["call"]) + 1,
            wait_on_cuda_event_record_corr_id=int(row["on_call"]) + 1,
        )  # fmt: skip
        events[-1]["name"] = "Stream Wait Event"
    categories = {"annotation": "user_annotation", "python": "python_function"}
    for row in trace.ranges:
        kind = RANGE_KINDS[row["kind"]]
        add(row, categories.get(kind, "cpu_op"), 1, trace.threads[row["thread"]].number)
    facts = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": trace.gpus[0]}], "baseTimeNanoseconds": 0}
    return json.dumps({**facts, "traceEvents": events, "displayTimeUnit": "ms"}).encode()

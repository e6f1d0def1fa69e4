"""The campaign's odd traces: small programs whose records contradict each other, or are unusual and still true.

Of each trace the whole answer is made. No error but one in words may be raised, and every number is finite. If a large
part of the records contradicts itself, no verdict is given: neither a ✓ nor another one. If the records are unusual
but true, the verdict is that of the usual program.

What counts as a contradiction: work of a stream that overlaps (but for the tail of a kernel that was launched to begin
early, and for the branches of a graph), begins before its call, ends after a wait for all work, has no length or an
impossible time, or lacks its call; launches without work; calls of a thread that overlap.
"""

import math
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from make_fit import make_fit
from make_trace import GAP_NS, Recorder, kineto

from microbench.core.errors import MicrobenchError
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.words import findings
from microbench.report.sheets import diagnosis as sheet
from microbench.traces.collector import NO_ROW, Category, Collector, Facts, Field
from microbench.traces.reading import read
from microbench.traces.trace import NONE, Trace

Records = npt.NDArray[np.int64]  # of shape (records, fields)
FIT = make_fit()
BEGIN, LENGTH, KIND, CALL = Field.BEGIN_NS, Field.DURATION_NS, Field.CATEGORY, Field.CORRELATION
LARGE = 0.3  # of the records at least, where a contradiction forbids every verdict
DRAWN_EACH, READ_EACH = 10, 40  # so many traces: the screen is drawn, and the trace goes through a file
TRUE, WRONG, ODD = "true", "wrong", "odd"  # the verdict stays, none may be given, whatever it is it is finite
Change = Callable[["Program", random.Random], str]


class Program:
    """The records of a program, the names of what they are about, and the threads' processes."""

    def __init__(self, seed: random.Random) -> None:
        made = Recorder()
        self.busy = seed.random() < 0.5
        self.waits = seed.random() < 0.5
        same = seed.random() < 0.3  # steps that repeat take most of the time of a diagnosis
        steps, kernels = seed.randrange(4, 7), seed.randrange(4, 8)
        duration_ns, between_ns = (60_000, 5_000) if self.busy else (2_000, 30_000)
        for step in range(steps):
            for kernel in range(kernels):
                made.runs(between_ns + seed.randrange(500))
                made.launch(f"kernel_{kernel}" if same else f"kernel_{step}_{kernel}", duration_ns + seed.randrange(90))
            if self.waits:
                made.wait("cudaDeviceSynchronize")
        self.names, self.processes = list(made.names), [1, 1]
        calls = [
            self.row(Category.RUNTIME, *call[:2], call[2], CALL=place + 1, THREAD=0)
            for place, call in enumerate(made.calls)
        ]
        work = [
            self.row(Category.KERNEL, *one[:2], one[7], CALL=one[6] + 1, STREAM=7, DEVICE=0, BLOCKS=4, THREADS=128)
            for one in made.work
        ]
        self.rows: Records = np.array([*calls, *work], np.int64)

    @staticmethod
    def row(category: Category, begin_ns: int, end_ns: int, name: int, **fields: int) -> list[int]:
        row = list(NO_ROW)
        row[KIND], row[BEGIN], row[LENGTH], row[Field.NAME] = category, begin_ns, end_ns - begin_ns, name
        for field, value in fields.items():
            row[CALL if field == "CALL" else Field[field]] = value
        return row

    @property
    def work(self) -> npt.NDArray[np.int64]:
        """The places of the work, in the order of its begin."""
        places = np.flatnonzero(self.rows[:, KIND] <= Category.MEMSET)
        return places[np.argsort(self.rows[places, BEGIN], kind="stable")]

    @property
    def launches(self) -> npt.NDArray[np.int64]:
        named = np.array(["Launch" in name for name in (*self.names, "")])
        return np.flatnonzero((self.rows[:, KIND] == Category.RUNTIME) & named[self.rows[:, Field.NAME]])

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)

    def some(self, seed: random.Random, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """A large part of these places, in their order, the first one never."""
        count = seed.randrange(math.ceil(LARGE * len(places)) + 1, len(places))
        return places[sorted(seed.sample(range(1, len(places)), min(count, len(places) - 1)))]

    def trace(self) -> Trace:
        collector = Collector(len(self.rows) + 1)
        for name in self.names:
            collector.name(name)
        for number, process in enumerate(self.processes):
            collector.thread(process, number + 1)
        collector.add(self.rows.copy())
        return collector.finish("odd.json", Facts(gpus={0: "NVIDIA H200"}))


# What contradicts itself.


def at_once(program: Program, seed: random.Random) -> str:
    """Many kernels of a stream begin at the same instant."""
    rows, some = program.rows, program.some(seed, program.work)
    rows[some, BEGIN] = rows[some, BEGIN].max()
    return WRONG


def overlapping(program: Program, seed: random.Random) -> str:
    """Kernels last until the next one of their stream has begun."""
    rows, work = program.rows, program.work
    some = program.some(seed, np.arange(len(work))) - 1
    following = rows[work[some + 1]]
    ends = following[:, BEGIN] + following[:, LENGTH] * seed.uniform(0.2, 0.9)
    rows[work[some], LENGTH] = ends.astype(np.int64) - rows[work[some], BEGIN]
    return WRONG


def nested(program: Program, seed: random.Random) -> str:
    """A kernel ends only after later kernels of its stream, which no stream allows."""
    rows, work = program.rows, program.work
    last = rows[work[seed.randrange(len(work) // 2, len(work))]]
    rows[work[0], LENGTH] = last[BEGIN] + last[LENGTH] - rows[work[0], BEGIN]
    return WRONG


def endless(program: Program, seed: random.Random) -> str:
    """The last kernel ends an hour late: a wait for it had returned long before."""
    program.rows[program.work[-1], LENGTH] = 3600 * 10**9
    return WRONG if program.waits else ODD


def before_the_launch(program: Program, seed: random.Random) -> str:
    rows, some = program.rows, program.some(seed, program.work)
    rows[some, BEGIN] -= np.int64(seed.choice((10**6, 10**8, 10**10)))
    return WRONG


def clock_of_the_gpu_back(program: Program, seed: random.Random) -> str:
    work = program.work
    program.rows[work[len(work) // 2 :], BEGIN] -= seed.choice((10**6, 10**9))
    return WRONG


def clock_of_the_gpu_ahead(program: Program, seed: random.Random) -> str:
    """By more than the program waits."""
    program.rows[program.work, BEGIN] += 10**7
    return WRONG if program.waits else ODD


def no_length(program: Program, seed: random.Random) -> str:
    program.rows[program.some(seed, program.work), LENGTH] = 0
    return WRONG


def negative(program: Program, seed: random.Random) -> str:
    """The end is before the begin. A duration of -1 says that there is none."""
    some = program.some(seed, program.work)
    program.rows[some, LENGTH] = -np.array([seed.choice((1, 2, 500, 10**6, 2**62)) for _ in some])
    return WRONG


def impossible_times(program: Program, seed: random.Random) -> str:
    """As a reader hands on what is no number."""
    program.rows[program.some(seed, program.work), BEGIN] = seed.choice((1, -1)) * 2**62
    return WRONG


def work_lost(program: Program, seed: random.Random) -> str:
    """Launches without kernels, or of graphs."""
    lost = program.some(seed, program.work[:-1])
    if seed.random() < 0.5:
        calls = np.isin(program.rows[:, CALL], program.rows[lost, CALL]) & (program.rows[:, KIND] == Category.RUNTIME)
        program.rows[calls, Field.NAME] = program.name("cudaGraphLaunch")
    program.rows = np.delete(program.rows, lost, axis=0)
    return WRONG


def calls_lost(program: Program, seed: random.Random) -> str:
    some = program.some(seed, program.work)
    program.rows = np.delete(
        program.rows, np.flatnonzero(np.isin(program.rows[:, CALL], program.rows[some, CALL])
                                     & (program.rows[:, KIND] == Category.RUNTIME)), axis=0,
    )  # fmt: skip
    return TRUE if program.busy else WRONG  # a busy GPU is busy whatever submitted its work


def calls_overlap(program: Program, seed: random.Random) -> str:
    """Each call lasts until the next one of its thread is half over."""
    rows, calls = program.rows, program.launches
    following = rows[calls[1:]]
    rows[calls[:-1], LENGTH] = following[:, BEGIN] + following[:, LENGTH] // 2 - rows[calls[:-1], BEGIN]
    return WRONG


# What is unusual and true.


def moved(program: Program, seed: random.Random) -> str:
    program.rows[:, BEGIN] += seed.choice((-(10**12), 10**9 + 1, 17 * 10**17))
    return TRUE


def shuffled(program: Program, seed: random.Random) -> str:
    """The file's records are shuffled, which changes nothing of what they say."""
    program.rows = program.rows[seed.sample(range(len(program.rows)), len(program.rows))]
    return TRUE


def ids_of_another_run(program: Program, seed: random.Random) -> str:
    """Correlation numbers begin anywhere."""
    program.rows[program.rows[:, CALL] != NONE, CALL] += seed.choice((10**6, 2**31, 2**32 - 7))
    return TRUE


def begins_early(program: Program, seed: random.Random) -> str:
    """Kernels that were launched to begin before the end of the one before them."""
    rows, work = program.rows, program.work
    rows[program.launches, Field.NAME] = program.name("cudaLaunchKernelExC")
    free = rows[work[1:], BEGIN] - rows[work[:-1], BEGIN] - rows[work[:-1], LENGTH]
    near = np.flatnonzero(free <= GAP_NS)
    rows[work[near], LENGTH] += free[near] + 300
    return TRUE


def branches(program: Program, seed: random.Random) -> str:
    """The kernels are nodes of one graph each, which may run side by side: each has a second one beside it."""
    rows, work = program.rows, program.work
    rows[program.launches, Field.NAME] = program.name("cudaGraphLaunch")
    rows[work, Field.NODE] = 1
    twins = rows[work].copy()
    twins[:, Field.NODE] = 2
    program.rows = np.concatenate([rows, twins])
    return TRUE


def other_device(program: Program, seed: random.Random) -> str:
    """Another thread does the same, a moment later and shorter, with another GPU's stream of the same number."""
    return _beside(program, process=1, DEVICE=1)


def other_process(program: Program, seed: random.Random) -> str:
    """Another process, whose GPU is another one and whose stream has the same number."""
    return _beside(program, process=2, DEVICE=1)


def same_pid(program: Program, seed: random.Random) -> str:
    """Two processes of one number, of two containers, on one GPU: which of them did what is unknown."""
    _beside(program, process=1)
    return ODD


def _beside(program: Program, process: int, **fields: int) -> str:
    rows = program.rows
    other = rows.copy()
    other[:, BEGIN] += 1000
    work = other[:, KIND] <= Category.MEMSET
    other[work, LENGTH] //= 2
    other[:, CALL] += 10_000
    program.processes[1] = process
    other[~work, Field.THREAD] = 1
    for field, value in fields.items():
        other[work, Field[field]] = value
    program.rows = np.concatenate([rows, other])
    return TRUE


def own_streams(program: Program, seed: random.Random) -> str:
    """Each kernel has a stream of its own."""
    program.rows[program.work, Field.STREAM] = np.arange(len(program.work)) + seed.choice((1, 2**40))
    return TRUE


# Whatever it is.


def clocks_back(program: Program, seed: random.Random) -> str:
    """Both clocks run back in the middle."""
    late = program.rows[:, BEGIN] > np.median(program.rows[:, BEGIN])
    program.rows[late, BEGIN] -= seed.choice((10**5, 10**6, 10**9, 10**12))
    return ODD


def ids_reused(program: Program, seed: random.Random) -> str:
    ids = program.rows[:, CALL] != NONE
    program.rows[ids, CALL] = program.rows[ids, CALL] % seed.choice((1, 2, 3, 10)) + seed.randrange(2)
    return ODD


def any_field(program: Program, seed: random.Random) -> str:
    """A field of some records has any value."""
    field = seed.choice([one for one in Field if one not in (Field.NAME, Field.THREAD, Field.CATEGORY)])
    values = (NONE, 0, 1, -2, 127, 2**15, 2**31, 2**40, 2**61, -(2**61), 2**62)
    for place in seed.sample(range(len(program.rows)), seed.randrange(1, len(program.rows))):
        program.rows[place, field] = seed.choice(values)
    for field in (Field.SOURCE, Field.TARGET):
        program.rows[:, field] %= 5
    return ODD


def any_kind(program: Program, seed: random.Random) -> str:
    for place in seed.sample(range(len(program.rows)), seed.randrange(1, 6)):
        program.rows[place, KIND] = seed.choice(list(Category))
        program.rows[place, Field.THREAD] = seed.randrange(2)
    return ODD


def any_name(program: Program, seed: random.Random) -> str:
    names = ("", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch", "Memcpy",
             "cudaMemcpyAsync", "cudaMalloc", "cudaDeviceSynchronize", "cuModuleLoadData", "ncclDevKernel", "\ud800",
             "cudaStreamWaitEvent", "ProfilerStep#1", "x" * 20_000)  # fmt: skip
    for place in seed.sample(range(len(program.rows)), seed.randrange(1, 9)):
        program.rows[place, Field.NAME] = program.name(seed.choice(names)) if seed.random() < 0.9 else NONE
    return ODD


def repeated(program: Program, seed: random.Random) -> str:
    """Records come twice."""
    some = seed.sample(range(len(program.rows)), seed.randrange(1, len(program.rows)))
    program.rows = np.concatenate([program.rows, program.rows[some]])
    return ODD


def few(program: Program, seed: random.Random) -> str:
    keep = seed.sample(range(len(program.rows)), seed.randrange(6))
    program.rows = program.rows[keep]
    return ODD


def ranges(program: Program, seed: random.Random) -> str:
    """Annotations, operators and samples that cross each other and the calls."""
    last_ns = int(program.rows[:, BEGIN].max())
    kinds = (Category.ANNOTATION, Category.OPERATOR, Category.PYTHON, Category.OVERHEAD, Category.LINE, Category.SYNC)
    made = []
    for number in range(seed.randrange(1, 30)):
        begin_ns = seed.randrange(max(last_ns, 1))  # another change may have made times negative
        end_ns = begin_ns + seed.choice((0, 1, 5000, last_ns))
        name = program.name(seed.choice(("step#1", f"step#{number}", "aten::op", "ProfilerStep#2", "Context Sync")))
        made.append(program.row(seed.choice(kinds), begin_ns, end_ns, name, THREAD=seed.randrange(2), STREAM=7))
    program.rows = np.concatenate([program.rows, np.array(made, np.int64)])
    return ODD


def several(program: Program, seed: random.Random) -> str:
    """Two or three of all."""
    for change in seed.sample([one for one in KINDS.values() if one is not several], seed.randrange(2, 4)):
        if len(program.work) > 3 and len(program.launches) > 2:
            change(program, seed)
    return ODD


KINDS: dict[str, Change] = {
    f"trace_{change.__name__}": change
    for change in (
        at_once, overlapping, nested, endless, before_the_launch, clock_of_the_gpu_back, clock_of_the_gpu_ahead,
        no_length, negative, impossible_times, work_lost, calls_lost, calls_overlap, moved, shuffled,
        ids_of_another_run, begins_early, branches, other_device, other_process, same_pid, own_streams, clocks_back,
        ids_reused, any_field, any_kind, any_name, repeated, few, ranges, several,
    )
}  # fmt: skip


@cache
def usual(busy: bool) -> str:
    """The verdict on a usual program."""
    return "GPU-bound" if busy else "launch-bound"


def diagnosed(kind: str, number: int, folder: Path) -> str:
    """Diagnose the odd trace of that number and check what must hold. Returns "read" or "refused".

    Raises AssertionError, and whatever a mistake raises.
    """
    seed = random.Random(f"{kind} {number}")
    program = Program(seed)
    expected = KINDS[kind](program, seed)
    trace = program.trace()
    if number % READ_EACH == 0 and len(trace.work) and set(trace.work["kind"].tolist()) <= {0, 1, 2}:
        path = folder / "odd.json"
        path.write_bytes(kineto(trace))
        try:
            found = diagnose(read(path), FIT)
        except MicrobenchError:
            pass
        else:
            check(found, expected if expected == WRONG and kind != "trace_calls_lost" else ODD, usual(program.busy))
    try:
        found = diagnose(trace, FIT)
    except MicrobenchError:
        assert expected != TRUE, "it was refused"
        return "refused"
    check(found, expected, usual(program.busy))
    if number % DRAWN_EACH == 0:
        sheet.screen(found, "costs", "microbench diagnose odd.json", everything=True)
        sheet.tables(found)
    return "read"


def check(found: Diagnosis, expected: str, usual: str) -> None:
    answer = sheet.answer(found)
    assert all(math.isfinite(number) for number in numbers(msgspec.to_builtins(answer, enc_hook=str))), "not finite"
    good = [one.title for one in findings(found) if one.severity == "good"]
    if found.idle is not None:
        parts = (found.idle.idle_s, found.idle.busy_s, found.idle.span_s, *found.idle.causes.values())
        assert min(parts) >= -1e-12, "a negative time"
        assert found.idle.idle_s <= found.idle.span_s * (1 + 1e-9), "more idle than time"
    if expected == WRONG:
        assert found.bound is None, f"{found.bound}, though the trace contradicts itself"
        assert not good, f"✓ {good}"
    elif expected == TRUE:
        assert found.bound == usual, f"{found.bound} ({found.why_no_idle}), not {usual}"


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float):
        yield value

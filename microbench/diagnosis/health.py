"""Checks what a trace can carry before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.units import as_time, counted, percent, plain
from microbench.diagnosis.host_time import doing
from microbench.diagnosis.idle import MOST_HELD, held_back
from microbench.diagnosis.steps import STEPS_ALIKE, Steps
from microbench.traces.collector import AT_ZERO, BAD_TIME
from microbench.traces.events import COPY_AGAIN, CUT_TAIL, DAMAGED
from microbench.traces.trace import FAILED, NONE, PERHAPS, WORK_KINDS, Format, Table, Trace, migrates

IntArray = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]
Verdict = Literal["idle time", "short gaps", "prediction"]

# Shares of the work or the calls above which a verdict is not given.
MOST_UNKNOWN = 0.05
WITHOUT = "without a record"
# Lost records that only name what the host does.
NAMING_ONLY = ("NVTX events", "OS events")
# Records that are left out because of what is in them, not of their number.
TIMELESS = (AT_ZERO, BAD_TIME, DAMAGED, "rows without times")
# The launches that may let a kernel begin before the one before it ends: programmatic dependent launch.
EARLY_LAUNCHES = ("LaunchKernelEx",)
WAIT_FOR_ALL = ("DeviceSynchronize", "CtxSynchronize")
# The clocks of host and GPU are aligned no better than this.
UNALIGNED_NS = 10_000
EARLY, MOVED = "kernels and copies before their call", "work that is moved behind its call"
SHORTEST_WAY_NS = 2000
# A clock that is always behind by the same time makes nearly all work early, and no work much earlier than other work.
NEARLY_ALL_EARLY, LONGEST_SPREAD_NS = 0.9, 200_000
# A trace without marked steps, with fewer turns than this, needs so much work for a verdict, in pieces or in time.
FEWEST_TURNS, FEWEST_WORK, LEAST_WORK_S = 3, 10, 10e-3
FEW_PIECES, CALLS_LOST = "pieces of work in all", "pieces of work without a call"
KERNEL, NEVER = WORK_KINDS.index("kernel"), np.iinfo(np.int64).max
HELD = "kernels and copies that may have waited in their queue"


# What to do where records are wrong, and where some are missing.
ANEW = "Record with a newer version of the profiler, or by `microbench watch -- COMMAND`"
FEWER: Mapping[Format, str] = {
    "PyTorch profiler": "Record fewer steps, the CPU too: profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=2, active=5))",
    "Nsight Systems": "Record what lies between cudaProfilerStart() and cudaProfilerStop(): `nsys profile "
    "--trace=cuda,nvtx --capture-range=cudaProfilerApi COMMAND`",
    "XLA profiler": "Trace fewer steps: jax.profiler.start_trace(FOLDER) and stop_trace() around five of them",
    "microbench recording": "Record shorter windows: `microbench watch --window 1s -- COMMAND`",
    "Chrome trace": "Record fewer steps, or by `microbench watch -- COMMAND`",
}


# CUPTI 13.0 gave no kernels any more after the first window of 5 processes of 140, of 20 that shared a GPU at a time.
SILENT = "CUPTI gives no kernels of this process any more. Start the program again, on a GPU that few processes share"
NEARLY_ALL = 0.98


class Check(msgspec.Struct, frozen=True):
    """Something odd in a trace: how many records, their share, what it means, and which verdicts it forbids.

    ``title`` says it in words where a count of records does not. ``advice`` says what to do.
    """

    name: str
    count: int
    share: float
    meaning: str
    forbids: tuple[Verdict, ...] = ()
    title: str = ""
    advice: str = ANEW

    @property
    def words(self) -> str:
        """The count with the name: "1 launch without work"."""
        first, space, rest = self.name.partition(" ")
        one = first.removesuffix("es") if first.endswith("ches") else first.removesuffix("s")
        return f"{self.count} {one if self.count == 1 else first}{space}{rest}"

    @property
    def why(self) -> str:
        """Why a verdict is not given."""
        return self.title[0].lower() + self.title[1:] if self.title else f"{self.words}: {self.meaning}"


def checks(trace: Trace, steps: Steps | None) -> tuple[Check, ...]:
    """What is odd about this trace and the steps that were found in it; empty if nothing is."""
    return tuple(msgspec.structs.replace(one, share=min(one.share, 1.0)) for one in _checks(trace, steps))


def forbidden(found: tuple[Check, ...], verdict: Verdict) -> Check | None:
    """The first check that forbids a verdict; None if it may be given."""
    return next((check for check in found if verdict in check.forbids), None)


def _checks(trace: Trace, steps: Steps | None) -> Iterator[Check]:
    work, calls = trace.work, trace.calls
    yield from _without_call(trace, steps)
    yield from _launches(trace)
    if graphs := int((work["kind"] == WORK_KINDS.index("graph")).sum()):
        yield Check(
            "graphs without their kernels", graphs, graphs / len(work),
            "each replay is one row, without its kernels", ("prediction",),
            advice="Record them: `nsys profile --cuda-graph-trace=node COMMAND`",
        )  # fmt: skip
    works_s = float((work["end_ns"] - work["begin_ns"]).sum()) * 1e-9
    by_chance = steps is None or (steps.found == "repetition" and steps.count < FEWEST_TURNS)
    if by_chance and len(work) < FEWEST_WORK and works_s < LEAST_WORK_S:
        yield Check(
            FEW_PIECES, len(work), 0.0, "too few to say what the GPU waits for",
            ("idle time", "prediction"),
            f"The trace has only {counted(len(work), 'piece')} of work of the GPU",
            "Record several steps of the program, after some that load its code",
        )  # fmt: skip
    if steps is not None and steps.likeness < STEPS_ALIKE:
        yield Check(
            "steps that differ", steps.count, 0.0, f"only {percent(steps.likeness)} of a step recurs in another",
            ("prediction",), f"The {steps.count} steps differ: only {percent(steps.likeness)} of one recurs in another",
            "Record more steps, after the first ones, which often differ",
        )  # fmt: skip
    for kind, count in trace.lost.items():
        cut, name = kind == CUT_TAIL, kind.removesuffix(PERHAPS)
        launches, _, submits = launches_of(trace)
        unsure = name != kind and 0 < NEARLY_ALL * launches.sum() <= (launches & submits).sum()
        if unsure or name in NAMING_ONLY:
            why = "host code may lack names" if name in NAMING_ONLY else "perhaps none: the launches have their work"
            yield Check(f"lost: {name}", count, count / max(len(work), 1), why)
            continue
        yield Check(
            f"lost: {name}", count, count / max(len(work), 1),
            "the file ends inside an event: copy it again, or let the program end its profiler" if cut
            else "the recorder says that it lost records",
            ("idle time", "prediction"),
            *(("The file is cut off inside an event", COPY_AGAIN[0].upper() + COPY_AGAIN[1:]) if cut
              else ("", FEWER[trace.format])),
        )  # fmt: skip
    if trace.resolution_ns >= 1000:
        yield Check(
            "times in whole microseconds", len(work), 1.0, "gaps of a few µs are rounded away; newer PyTorch writes ns",
            ("short gaps", "prediction"), "Times are in whole microseconds, so gaps of a few µs are rounded away",
            advice="Record again with a newer PyTorch, which writes ns",
        )  # fmt: skip
    begins = np.append(calls["begin_ns"], np.iinfo(np.int64).min)[work["call"]]
    early_ns = np.maximum(begins - work["begin_ns"], 0)[work["call"] != NONE]
    if early := int((early_ns > 0).sum()):
        share = early / len(work)
        span_ns = int(work["end_ns"].max() - work["begin_ns"].min())
        yield Check(
            EARLY, early, share, "the clocks of host and GPU are not aligned",
            ("idle time", "prediction") if share > MOST_UNKNOWN and early_ns.sum() > MOST_UNKNOWN * span_ns else (),
        )  # fmt: skip
    # In whole microseconds short work has no length, which makes the GPU idle by less than its work takes.
    rounded = trace.resolution_ns >= 1000
    if empty := int((work["end_ns"] <= work["begin_ns"]).sum()):
        share = empty / len(work)
        yield Check(
            "pieces of work without a length", empty, share,
            "they are shorter than a microsecond" if rounded else "begin and end are equal, or the end is missing",
            ("idle time", "prediction") if share > MOST_UNKNOWN and not rounded else (),
        )  # fmt: skip
    if (held := held_back(trace)) > MOST_HELD:
        yield Check(
            HELD, len(work), held, "what held them back is not in the trace",
            ("prediction",),
            f"In {percent(held)} of the time work waits in its queue while this program runs nothing on the GPU: "
            "probably another program uses it",
            "`nvidia-smi` shows who uses the GPU. Record again while the program has it alone. Under Windows and WSL "
            "the driver may submit in batches",
        )  # fmt: skip
    yield from _overlaps(trace, works_s)
    late, late_ns = _unawaited(trace)
    if late:
        share = max(late / len(work), late_ns * 1e-9 / works_s)
        yield Check(
            "kernels and copies that end after the host waited for them", late, share,
            "the clocks of host and GPU are not aligned, or their ends are wrong",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (),
        )  # fmt: skip
    processes = {trace.threads[thread].process for thread in np.unique(calls["thread"])}
    if len(processes) > 1:
        yield Check("several processes", len(processes), 1.0, "the GPU counts as busy if any of them uses it")
    if steps is not None and steps.found == "repetition":
        yield Check(
            "steps found by repetition", steps.count, 0.0,
            "nothing marks your steps, of which each may be several of these or a part of one; annotate them "
            "(profiler.step(), NVTX), or choose a part of the trace by --from and --to",
        )  # fmt: skip
    if (samples := trace.samples) is not None:
        yield Check(
            "samples of lines of Python", samples.taken, 0.0,
            f"one every {as_time(samples.every_ns * 1e-9)}, so a line's begin and end are known no better than that; "
            f"{samples.late} came late, because a thread held the GIL",
        )  # fmt: skip
    for kind, count in trace.unread.items():
        timeless = any(words in kind for words in TIMELESS)
        share = count / (count + len(work) + len(calls)) if timeless else 0.0
        yield Check(
            f"left out: {kind}", count, share,
            "nobody knows what was then" if timeless else "they are not part of the diagnosis",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (),
        )  # fmt: skip


def realigned(trace: Trace) -> tuple[Trace, tuple[Check, ...]]:
    """Move the GPU's times, if its clock is always behind the host's by about the same time.

    They are moved so far that no work begins before its call, and a check says so. Where work would then end after the
    host had waited for it, the clocks differ in another way: nothing is moved.
    """
    work, called = trace.work.copy(), trace.work["call"] != NONE
    after_ns = (work["begin_ns"] - np.append(trace.calls["begin_ns"], 0)[work["call"]])[called]
    if not len(after_ns) or np.mean(after_ns < 0) <= NEARLY_ALL_EARLY or np.ptp(after_ns) > LONGEST_SPREAD_NS:
        return trace, ()
    if -int(np.minimum(after_ns, 0).sum()) <= MOST_UNKNOWN * int(work["end_ns"].max() - work["begin_ns"].min()):
        return trace, ()  # so little forbids nothing
    by_ns = SHORTEST_WAY_NS - int(after_ns.min())
    for edge in ("begin_ns", "end_ns"):
        work[edge] += by_ns
    moved = msgspec.structs.replace(trace, work=work)
    if _unawaited(moved)[0] > MOST_UNKNOWN * len(work):
        return trace, ()
    said = f"The GPU's clock is {as_time(by_ns * 1e-9)} behind the host's, so its times are moved by that"
    how = "launch latencies are not known, and what the host does is told no better than to some µs"
    return moved, (Check(MOVED, len(work), 1.0, how, ("prediction",), said),)


def launches_of(trace: Trace) -> tuple[Chosen, Chosen, Chosen]:
    """Which calls launch work, which launch into a graph that is being captured, and which have work."""
    work, calls = trace.work, trace.calls
    submits = np.zeros(len(calls), dtype=bool)
    submits[work["call"][work["call"] != NONE]] = True
    # Memsets are no launches: recorders leave out many that a driver makes in another way. A host function is no work.
    named = ("Launch" in name and FAILED not in name and doing(name) == "launch" for name in (*trace.names, ""))
    launches = np.array([*named])[calls["name"]]
    captured = launches & ~submits & _captured(trace, submits)
    return launches & ~captured, captured, submits


def _launches(trace: Trace) -> Iterator[Check]:
    """Launches without work: they were captured into a graph, they failed, or their records are lost."""
    launches, captured, submits = launches_of(trace)
    behind = int(np.flatnonzero(submits).max(initial=-1)) + 1
    if (last := int(launches[behind:].sum())) > MOST_UNKNOWN * launches.sum():
        yield Check(
            f"launches at the end {WITHOUT}", last, last / int(launches.sum()),
            "the recording ended before the GPU had run their kernels, or lost them", (),
            f"The last {last} of {counted(int(launches.sum()), 'launch', 'launches')} have no record: the recording "
            "ended before the GPU, or lost them",
            FEWER[trace.format],
        )  # fmt: skip
    submits[behind:] = True
    if graphed := int(captured.sum()):
        whose = "XLA's command buffer" if any(name.split(".")[0] == "jax" for name in trace.versions) else "a graph"
        yield Check(
            f"launches captured into {whose}", graphed, 0.0, "they are no work yet, and run when the graph is replayed"
        )
    refused = trace.calls["name"][np.array([FAILED in name for name in (*trace.names, "")])[trace.calls["name"]]]
    if failed := len(refused):
        share = failed / (failed + int(launches.sum()))
        yield Check(
            "launches that failed", failed, share, "the GPU did none of their work",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (),
            f"{counted(failed, 'launch', 'launches')} failed: {plain(trace.names[refused[0]])}",
            "Let the program check its errors (cudaGetLastError) before its time is looked at",
        )  # fmt: skip
    if lost := int((launches & ~submits).sum()):
        share = lost / max(int(launches.sum()), 1)
        yield Check(
            "launches without work", lost, share,
            "their kernels are not in the trace, so the GPU may have been busy where it looks idle",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (),
            advice=SILENT if share > NEARLY_ALL and trace.format == "microbench recording" else FEWER[trace.format],
        )  # fmt: skip


def _captured(trace: Trace, submits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which calls a thread makes while it captures a stream into a graph.

    Our recordings lack the calls that begin and end a capture. There it is what comes before the graph is made or
    updated, behind the last call that submitted work or waited, which cannot be captured.
    """
    if trace.format == "microbench recording":
        makes, waits = (
            np.array([any(part in name for part in parts) for name in (*trace.names, "")])[trace.calls["name"]]
            for parts in (("GraphInstantiate", "GraphExecUpdate"), ("Synchronize",))
        )
        places = np.arange(len(makes))
        made = np.minimum.accumulate(np.where(makes, places, len(makes))[::-1])[::-1]
        other = np.minimum.accumulate(np.where(submits | waits, places, len(makes))[::-1])[::-1]
        return made < other
    calls, change = trace.calls, np.zeros(len(trace.calls), np.int64)
    for part, sign in (("StreamBeginCapture", 1), ("StreamEndCapture", -1)):
        change[np.array([part in name for name in (*trace.names, "")])[calls["name"]]] = sign
    captured = np.zeros(len(calls), dtype=bool)
    for thread in np.unique(calls["thread"][change != 0]):
        own = calls["thread"] == thread
        captured[own] = np.cumsum(change[own]) > 0
    return captured


def _without_call(trace: Trace, steps: Steps | None) -> Iterator[Check]:
    """Work of the steps, or of the whole trace, whose call is not recorded.

    The driver moves pages of managed memory by itself. What was queued in a stream when the recording began is no loss,
    and neither are launches that were queued when it ended.
    """
    work = trace.work
    keys = work["device"].astype(np.int64) << 32 | (work["stream"].astype(np.int64) & 0xFFFFFFFF)
    streams, place = np.unique(keys, return_inverse=True)
    begins = np.full(len(streams), np.iinfo(np.int64).max)
    own = work["call"] != NONE
    np.minimum.at(begins, place[own], work["begin_ns"][own])
    first_ns = np.where(begins < np.iinfo(np.int64).max, begins, np.iinfo(np.int64).min)[place]
    lost = ~(own | migrates(trace)) & (work["begin_ns"] > first_ns)
    if steps is not None:
        lost = lost[(work["begin_ns"] >= steps.begins_ns[0]) & (work["begin_ns"] < steps.begins_ns[-1])]
    if missing := int(lost.sum()):
        share = missing / len(lost)
        yield Check(
            CALLS_LOST, missing, share,
            f"the recording {'lost their' if len(trace.calls) else 'has no CUDA'} calls; "
            "what held them back is unknown",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (), advice=FEWER[trace.format],
        )  # fmt: skip


def _overlaps(trace: Trace, works_s: float) -> Iterator[Check]:
    """Work that overlaps in its stream, and calls that overlap in their thread. Both are impossible.

    Only kernels launched early (programmatic dependent launch) may begin before the kernel ahead of them ends. All work
    takes ``works_s``.
    """
    work, calls = trace.work, trace.calls
    rounded_ns = trace.resolution_ns if trace.resolution_ns >= 1000 else 0
    processes = np.array([thread.process for thread in trace.threads] + [NONE])
    of = processes[np.append(calls["thread"], NONE)[work["call"]]]
    streams = np.stack([work["device"], work["stream"], np.zeros(len(work), np.int64)])
    alone = (work["node"] == NONE) & (work["stream"] != NONE)  # branches of a graph run side by side
    if len(np.unique(of[work["call"] != NONE])) > 1:  # each process has a stream of that number
        streams[2] = of
        alone &= work["call"] != NONE
    names = np.array([any(part in name for part in EARLY_LAUNCHES) for name in (*trace.names, "")])
    may_be_early = names[np.append(calls["name"], NONE)[work["call"]]] & (work["kind"] == KERNEL)
    early, wrong, wrong_ns = _overlapping(work[alone], streams[:, alone], may_be_early[alone], rounded_ns)
    if early:
        yield Check(
            "kernels that begin early", early, early / len(work),
            "before the one before them in the stream ends: programmatic dependent launch",
        )  # fmt: skip
    if wrong:
        share = max(wrong / len(work), wrong_ns * 1e-9 / max(works_s, 1e-9))
        yield Check(
            "kernels and copies of one stream that overlap", wrong, share,
            "a stream does one after the other, so their times are wrong",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (),
        )  # fmt: skip
    never = np.zeros(len(calls), dtype=bool)
    _, wrong, _ = _overlapping(calls, calls["thread"][np.newaxis].astype(np.int64), never, rounded_ns)
    if wrong:
        share = wrong / len(calls)
        yield Check(
            "overlapping calls of one thread", wrong, share,
            "a thread makes one after the other, so their times are wrong",
            ("idle time", "prediction") if share > MOST_UNKNOWN else (),
        )  # fmt: skip


def _unawaited(trace: Trace) -> tuple[int, int]:
    """Count the work that ends after the host waited for the whole GPU, and add up by how many ns it is late."""
    work, calls = trace.work, trace.calls
    whole = np.array([any(part in name for part in WAIT_FOR_ALL) for name in (*trace.names, "")])
    waits = calls[whole[calls["name"]]]
    processes = np.array([thread.process for thread in trace.threads] + [NONE])
    own = work[work["call"] != NONE]
    if not len(waits) or len(np.unique(processes[calls["thread"]])) > 1 or len(np.unique(own["device"])) != 1:
        return 0, 0  # of several processes or GPUs nobody knows which one it waited for
    behind = int(own["call"].max()) + 1  # a wait behind launches without a record was for another GPU, or it lost them
    unrecorded = np.flatnonzero(launches_of(trace)[0][behind:])[:1]
    waits = waits[waits["begin_ns"] < np.append(calls["begin_ns"][behind:][unrecorded], NEVER)[0]]
    first = np.searchsorted(waits["begin_ns"], calls["end_ns"][own["call"]])
    ends = np.append(waits["end_ns"], NEVER - UNALIGNED_NS)[first]
    late_ns = own["end_ns"] - ends
    late_ns = late_ns[late_ns > UNALIGNED_NS]
    return len(late_ns), int(late_ns.sum())


def _overlapping(
    rows: Table, lanes: IntArray, may_be_early: npt.NDArray[np.bool_], rounded_ns: int
) -> tuple[int, int, int]:
    """How many rows begin early, how many overlap an earlier one of their lane wrongly, and by how many ns in all.

    ``lanes`` has the keys of a lane by row, in columns. Overlaps up to ``rounded_ns`` are those of rounded times,
    except of rows that begin at once.
    """
    order = np.lexsort((rows["end_ns"], rows["begin_ns"], *lanes))
    begin, end, lanes = rows["begin_ns"][order], rows["end_ns"][order], lanes[:, order]
    starts = np.flatnonzero((np.diff(lanes, axis=1) != 0).any(axis=0)) + 1
    before = np.full(len(rows), np.iinfo(np.int64).min)  # the latest end of the rows before it in its lane
    for first, last in pairwise([0, *starts.tolist(), len(rows)]):
        np.maximum.accumulate(end[first : last - 1], out=before[first + 1 : last])
    previous = np.roll(begin, 1)
    overlap_ns = np.where(before > begin, np.minimum(before, end) - begin, 0)
    overlaps = overlap_ns > 0
    at_once = overlaps & (begin == previous)
    early = overlaps & ~at_once & may_be_early[order] & (end >= before)
    wrong = overlaps & ~early & (at_once | (overlap_ns > rounded_ns))
    return int(early.sum()), int(wrong.sum()), int(overlap_ns[wrong].sum())

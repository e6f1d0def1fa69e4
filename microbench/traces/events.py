"""Turns the events of Chrome's trace JSON, as PyTorch's profiler (Kineto) and JAX write them, into rows of numbers.

Kineto says by a category what an event is. JAX names processes after devices and threads after streams instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from microbench.core.errors import UsageError
from microbench.core.units import counted, plain
from microbench.traces.collector import (
    BAD_TIME,
    MAX_NAME,
    NO_DURATION,
    NO_ROW,
    ROW_LIMITS,
    Category,
    Collector,
    Facts,
    Field,
    product,
)
from microbench.traces.trace import MEMORIES, NONE, Trace

CATEGORIES = {
    "kernel": Category.KERNEL, "gpu_memcpy": Category.COPY, "memcpy": Category.COPY, "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET, "cuda_runtime": Category.RUNTIME, "runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER, "cuda_sync": Category.SYNC, "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR, "python_function": Category.PYTHON, "user_annotation": Category.ANNOTATION,
    "overhead": Category.OVERHEAD, "gpu_kernel": Category.KERNEL, "memcopy": Category.COPY,
}  # fmt: skip
VERSIONS = ("schemaVersion", "cuda_driver_version", "cuda_runtime_version", "cupti_version", "torch_version")
NUMBER = re.compile(rb'\s*"?\s*([-+]?)(\d{1,30})(?:\.(\d{0,60}))?(?:[eE]([-+]?\d{1,3}))?\s*"?\s*')
INTEGER = re.compile(r"\s*[-+]?\d{1,30}\s*")
TENSORFLOW = re.compile(r"[/:][GC]PU:\d+\S* Compute$", re.IGNORECASE)  # processes of its timelines
HIP = re.compile(r"hip[A-Z]|.*HIP_vector_type|.*\.kd$")  # calls, and kernels of an AMD GPU
OLD_GPU = "CUDA functions"  # the process of the GPU's part in traces of torch.autograd.profiler
OF_THE_CPU = re.compile(r"aten::mkldnn_\w+$")  # operators that have other names on a GPU
CUDA_CALL = re.compile(r"cu(da)?[A-Z]")
XLA_STREAM = re.compile(r"Stream #(\d+)")
XLA_DEVICE = re.compile(r"/device:GPU:(\d{1,4})")
XLA_SIZES = {size: re.compile(rf"\b{size}:(\d+),(\d+),(\d+)") for size in ("grid", "block")}
XLA_COPY = {word: re.compile(rf"\b{word}:(\w+)") for word in ("kind_src", "kind_dst", "size")}
CUT_TAIL = "cut tail"
COPY_AGAIN = "copy the file again, or let the program end its profiler"
DAMAGED = "damaged events"
SHORT_ROW = Field.CORRELATION + 1  # rows of calls and of ranges end here
ROWS_AT_ONCE = 1 << 16
MAX_EDGES = 500_000  # begin and end events that are kept
MAX_DEFERRED = 200_000  # events kept until the name of their process is known


class Event(msgspec.Struct, gc=False):
    """One event of the file, of any content. Numbers with decimals stay text: a float has too few digits for a ns."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: msgspec.Raw = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """What an event says besides its time, of any content."""

    correlation: Any = None
    other_correlation: Any = msgspec.field(default=None, name="correlationId")
    device: Any = None
    stream: Any = None
    bytes: Any = None
    elements: Any = msgspec.field(default=None, name="In msg nelems")  # of a collective: what a rank gives, and gets
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    grid: Any = None
    block: Any = None
    node: Any = msgspec.field(default=None, name="graph node id")
    on_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    on_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    name: Any = None
    correlation_id: Any = None
    kernel_details: Any = None
    memcpy_details: Any = None
    memset_details: Any = None
    step_num: Any = None


ITEM_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Half": 2, "BFloat16": 2, "Short": 2,
    "Float": 4, "Int": 4, "Double": 8, "Long": 8,
}  # fmt: skip
FACT_KEYS = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", *VERSIONS)
decode_event = msgspec.json.Decoder(Event).decode
decode_args = msgspec.json.Decoder(Args).decode
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def integer(value: object) -> int:
    """A number as a 64-bit integer, also when it is text; larger ones wrap around. NONE for anything else."""
    if (isinstance(value, str) and INTEGER.fullmatch(value) and value.isascii()) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return NONE
    return (value + 2**63) % 2**64 - 2**63


def nanoseconds(text: bytes) -> int | None:
    """A time in us, written as a number or in quotes, in ns, rounded to the nearest; None if it is neither."""
    whole, _, decimals = text.partition(b".")
    if whole.isdigit() and len(decimals) <= 3 and len(whole) < 19 and (decimals.isdigit() or not decimals):
        return int(whole + decimals.ljust(3, b"0"))  # the usual form, without a regular expression
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, decimals, exponent = match.groups()
    decimals = decimals or b""
    shift = 3 + int(exponent or 0) - len(decimals)
    digits = int(whole + decimals)
    value: int
    if shift >= 0:
        value = digits * 10 ** min(shift, 40)
    else:
        value = (digits + 10**-shift // 2) // 10**-shift
    return -value if sign == b"-" else value


class ChromeReader:
    """Turns events into rows for the collector, and keeps what the file says of itself."""

    def __init__(self, name: str, limits: Mapping[str, int] = ROW_LIMITS) -> None:
        self._name = plain(name)
        self.facts = Facts()
        self.collector = Collector(limits=limits)
        self.found_events = False  # until a list of events is found, however short
        self._rows: list[tuple[int, ...]] = []
        self._processes: dict[object, str] = {}
        self._edges: dict[int, list[tuple[int, int, tuple[int, ...] | None, bool]]] = {}
        self._edge_count = 0
        self._deferred: list[Event] = []
        self._xla = self._hip = False
        self._others = 0

    def take(self, events: Iterable[Event]) -> None:
        """Collect some events."""
        rows = self._rows
        for event in events:
            row = self._row(event)
            if row is not None:
                rows.append(row)
                if len(rows) >= ROWS_AT_ONCE:
                    self._flush()
        self._flush()

    def take_raw(self, events: Iterable[bytes]) -> None:
        """Collect events that the scanner found unusual. Other values are counted."""
        decoded = []
        for text in events:
            try:
                decoded.append(decode_event(text))
            except MALFORMED:
                try:
                    decoded.append(decode_event(text.decode("utf-8", "replace").encode()))
                except MALFORMED:
                    self.collector.unread[DAMAGED] += 1
        self.take(decoded)

    def _flush(self) -> None:
        """Give the collected rows to the collector; most have only their first columns."""
        for length in (SHORT_ROW, len(Field)):
            if rows := [row for row in self._rows if len(row) == length]:
                fields = np.tile(np.array(NO_ROW, np.int64), (len(rows), 1))
                fields[:, :length] = np.array(rows, np.int64)
                self.collector.add(fields)
        self._rows.clear()

    def _row(self, event: Event) -> tuple[int, ...] | None:
        """An event's numbers; None if it has none, or not yet."""
        phase = event.ph
        if phase == "M":
            self._name_track(event)
            return None
        if phase == "E":
            self._edge(event, None, begins=False)
            return None
        if phase not in ("X", "B"):
            return None
        category = CATEGORIES.get(event.cat.lower()) if isinstance(event.cat, str) else None
        row = self._plain(event) if event.cat is None else self._known(event, category)
        if phase == "B":
            self._edge(event, row, begins=True)
            return None
        return row

    def _times(self, event: Event) -> tuple[int, int] | None:
        begin = nanoseconds(bytes(event.ts))
        length = bytes(event.dur)
        duration = nanoseconds(length) if length and length != b"null" else NO_DURATION
        if begin is None or duration is None or not (abs(begin) < 2**62 and NO_DURATION <= duration < 2**62):
            self.collector.add(np.array([_row({Field.BEGIN_NS: 2**62})], np.int64))  # counts it
            return None
        return begin, duration

    def _args(self, event: Event) -> Args:
        text = bytes(event.args)
        if text:
            try:
                return decode_args(text)
            except MALFORMED:
                pass
        return Args()

    def _known(self, event: Event, category: Category | None) -> tuple[int, ...] | None:
        if category is None or (times := self._times(event)) is None:
            return None
        name = self.collector.name(event.name)
        thread = self._thread(event) if category >= Category.RUNTIME else NONE
        if category >= Category.OPERATOR:  # their args are not needed
            return category, *times, name, thread, NONE
        args = self._args(event)
        correlation = integer(args.other_correlation if args.correlation is None else args.correlation)
        if args.other_correlation is not None:
            self.facts.format = "Chrome trace"  # of another recorder
        if category in (Category.RUNTIME, Category.DRIVER):
            return category, *times, name, thread, correlation
        fields = {
            Field.CATEGORY: int(category),
            Field.BEGIN_NS: times[0],
            Field.DURATION_NS: times[1],
            Field.NAME: name,
            Field.THREAD: thread,
            Field.CORRELATION: correlation,
            Field.STREAM: integer(args.stream),
        }
        if category == Category.SYNC:
            fields[Field.ON_STREAM] = integer(args.on_stream)
            fields[Field.ON_CORRELATION] = integer(args.on_correlation)
            return _row(fields)
        # Old recordings say the device and the stream only by the place where the event is drawn.
        fields[Field.STREAM] = integer(event.tid if args.stream is None else args.stream)
        fields[Field.DEVICE] = integer(event.pid if args.device is None else args.device)
        fields[Field.BYTES] = integer(args.bytes)
        if args.elements is not None:
            elements = max(integer(args.elements), integer(args.received))
            fields[Field.BYTES] = max(integer(elements * ITEM_BYTES.get(str(args.dtype), 0)), NONE)
        fields[Field.BLOCKS] = product(args.grid)
        fields[Field.THREADS] = product(args.block)
        fields[Field.NODE] = integer(args.node) or NONE
        return _row(fields)

    def _thread(self, event: Event) -> int:
        process, thread = event.pid, event.tid
        if type(process) is int and type(thread) is int:  # most threads are; a bool is no number here
            known = self.collector.threads.get((process, thread))
            if known is not None:
                return known
        return self.collector.thread(_key(process), _key(thread))

    def _plain(self, event: Event) -> tuple[int, ...] | None:
        """An event without a category: JAX's, whose processes and threads are named after devices and streams."""
        process = self._processes.get(_key(event.pid))
        if process is None:
            if len(self._deferred) < MAX_DEFERRED:
                self._deferred.append(event)
            else:
                self._others += 1
            return None
        device = XLA_DEVICE.search(process)
        track = self.collector.thread_names.get((_key(event.pid), _key(event.tid)), "")
        stream = XLA_STREAM.match(track)
        if not (stream if device else "/host:" in process):
            self._others += 1
            self._hip |= HIP.match(str(event.name)) is not None
            return None
        if (times := self._times(event)) is None:
            return None
        self._xla = True
        args = self._args(event)
        name = event.name if isinstance(event.name, str) else str(event.name)
        fields = {
            Field.BEGIN_NS: times[0],
            Field.DURATION_NS: times[1],
            Field.NAME: self.collector.name(name),
            Field.CORRELATION: integer(args.correlation_id),
        }
        if not (device and stream):
            fields[Field.THREAD] = self._thread(event)
            if CUDA_CALL.match(name):
                fields[Field.CATEGORY] = Category.RUNTIME if name.startswith("cuda") else Category.DRIVER
            elif args.step_num is not None:
                fields[Field.CATEGORY] = Category.ANNOTATION
            else:
                fields[Field.CATEGORY] = Category.PYTHON if name.startswith("$") else Category.OPERATOR
            return _row(fields)
        fields[Field.DEVICE] = int(device[1])
        fields[Field.STREAM] = integer(stream[1])
        if args.memcpy_details is not None or name.lower().startswith("memcpy"):
            found = {word: one.search(str(args.memcpy_details)) for word, one in XLA_COPY.items()}
            fields[Field.CATEGORY] = Category.COPY
            fields[Field.BYTES] = integer(found["size"][1]) if found["size"] else NONE
            for word, column in (("kind_src", Field.SOURCE), ("kind_dst", Field.TARGET)):
                memory = match[1].lower() if (match := found[word]) else ""
                fields[column] = MEMORIES.index(cast(Any, memory)) if memory in MEMORIES else 0
        elif args.memset_details is not None or name.lower().startswith("memset"):
            fields[Field.CATEGORY] = Category.MEMSET
        else:
            fields[Field.CATEGORY] = Category.KERNEL
            for size, column in (("grid", Field.BLOCKS), ("block", Field.THREADS)):
                sizes = XLA_SIZES[size].search(str(args.kernel_details))
                fields[column] = product([integer(one) for one in sizes.groups()]) if sizes else NONE
        return _row(fields)

    def _name_track(self, event: Event) -> None:
        """Keep the name of a process or thread."""
        name = self._args(event).name
        if not isinstance(name, str):
            return
        name, process = plain(name, MAX_NAME).strip(), _key(event.pid)
        if event.name == "process_name" and len(self._processes) < MAX_DEFERRED:
            self._processes[process] = name
        elif event.name == "thread_name" and len(self.collector.thread_names) < MAX_DEFERRED:
            self.collector.thread_names[process, _key(event.tid)] = name

    def _edge(self, event: Event, row: tuple[int, ...] | None, *, begins: bool) -> None:
        """Keep a begin or end event until all of its thread are known."""
        begin = nanoseconds(bytes(event.ts))
        if begin is None or self._edge_count >= MAX_EDGES:
            self.collector.unread["begin and end events"] += 1
            return
        self._edge_count += 1
        thread = self._thread(event)
        self._edges.setdefault(thread, []).append((begin, self._edge_count, row, begins))

    def _join_edges(self) -> None:
        """Make one record of each begin and its end: an end belongs to the last open begin of its thread."""
        for edges in self._edges.values():
            open_rows: list[tuple[int, ...] | None] = []
            for time_ns, _, row, begins in sorted(edges, key=lambda edge: edge[:2]):
                if begins:
                    open_rows.append(row)
                elif open_rows:
                    if (row := open_rows.pop()) is not None:
                        ended = list(row)
                        ended[Field.DURATION_NS] = time_ns - row[Field.BEGIN_NS]
                        self._rows.append(tuple(ended))
                else:
                    self.collector.lost["ends without a begin"] += 1
            if unended := sum(row is not None for row in open_rows):
                self.collector.lost["begins without an end"] += unended
        self._edges.clear()

    def fact(self, key: str, value: object) -> None:
        """Take what the file says beside its events."""
        facts = self.facts
        if key == "baseTimeNanoseconds":
            base = integer(value)
            facts.base_ns = base if 0 < base < 2**62 else None
        elif key == "distributedInfo" and isinstance(value, dict):
            rank = integer(value.get("rank"))
            facts.rank = rank if rank >= 0 else None
        elif key == "deviceProperties" and isinstance(value, list):
            for place, one in enumerate(value[:64]):
                if isinstance(one, dict) and isinstance(one.get("name"), str):
                    number = integer(one.get("id", place))
                    facts.gpus[number if number >= 0 else place] = plain(one["name"])
        elif key in VERSIONS and isinstance(value, str | int | float):
            facts.versions[key] = plain(value)

    def finish(self, fault: str = "") -> Trace:
        """The recording; ``fault`` says why its bytes end too early. Raises UsageError if it cannot be judged."""
        cut = CUT_TAIL in self.collector.lost
        if not self.found_events:
            if cut:
                why = fault or "it is JSON that ends before any list of trace events"
                cause = f"{self._name} is {'damaged' if fault else 'cut off, or is no trace'}: {why}"
                raise UsageError(cause, COPY_AGAIN)
            next_step = (
                "give a trace of torch.profiler (export_chrome_trace), Nsight Systems, JAX or microbench; "
                "`microbench show FILE` shows a run"
            )
            raise UsageError(f"{self._name} is no trace: it is JSON without a list of trace events", next_step)
        deferred, self._deferred = self._deferred, []
        for event in deferred:
            self._processes.setdefault(_key(event.pid), "")
        self.take(deferred)
        self._join_edges()
        self._flush()
        collector = self.collector
        amd = any(name.startswith(("AMD", "Radeon")) for name in self.facts.gpus.values())
        if self._hip or amd or any(map(HIP.match, collector.names)):
            cause = f"{self._name} was recorded on an AMD GPU (HIP), whose constants microbench does not know"
            raise UsageError(cause, "give a recording of an NVIDIA GPU")
        if cut and not collector.work.count:
            raise UsageError(f"{self._name} is cut off: it ends inside an event, before any work of a GPU", COPY_AGAIN)
        timeless = collector.unread[BAD_TIME] + collector.unread[DAMAGED]
        if timeless and not collector.work.count and not collector.calls.count:
            cause = f"{self._name} does not say when a GPU worked: {counted(timeless, 'event')} of it cannot be read"
            raise UsageError(f"{cause}, such as a time that is no number", "record again")
        if not collector.work.count and not collector.calls.count:
            cause = f"{self._name} has no CUDA call and no work of an NVIDIA GPU"
            if on_cpu := next(filter(OF_THE_CPU.match, collector.names), None):
                cause = f"{cause}: {on_cpu} runs on the CPU"
                raise UsageError(cause, 'move model and inputs to the GPU (.to("cuda")), then record CUDA activities')
            if devices := [name for name in self._processes.values() if TENSORFLOW.search(name)]:
                where = "a GPU" if any("gpu:" in name.lower() for name in devices) else "the CPU alone"
                raise UsageError(
                    f"{self._name} is a timeline of TensorFlow 1 on {where}: it has no calls of CUDA, and is not read",
                    "record by tf.profiler.experimental.start(FOLDER), and give its .xplane.pb",
                )
            if any(name.startswith(("/host:", "/device:")) for name in self._processes.values()):
                why = "its program of TensorFlow or JAX ran on the CPU, or the profiler found no libcupti"
                raise UsageError(
                    f"{cause}: {why}", "see that the program uses the GPU (nvidia-smi), and trace it again"
                )
            why = "nothing says what the GPU did"
            if OLD_GPU in self._processes:
                why = "PyTorch's old profiler (torch.autograd) timed whole operators there, and no kernels"
            raise UsageError(
                f"{cause}: {why}",
                "record again with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            )
        if self._xla:
            self.facts.format = "XLA profiler"
        return collector.finish(self._name, self.facts)


def _row(fields: dict[Field, int]) -> tuple[int, ...]:
    row = list(NO_ROW)
    for column, value in fields.items():
        row[column] = value
    return tuple(row)


def _key(value: object) -> int | str:
    """A process or thread as the key of a table: its number, where it has one."""
    number = integer(value)
    return number if number != NONE or value in (NONE, None) else plain(value, MAX_NAME)

"""Samples NVML's and GPM's figures of GPUs while a program runs: during a command, or for a process by its number."""

from __future__ import annotations

import math
import signal
import statistics
import threading
import time
from contextlib import suppress
from itertools import pairwise
from typing import Any

from microbench.core.errors import Skip, UsageError
from microbench.core.readings import Followed, GpuReadings, Share, State
from microbench.core.units import plain
from microbench.gpu.machine import nvml
from microbench.gpu.machine.nvml import LISTS, NvmlGpu
from microbench.gpu.machine.pci import sysfs_bus_id
from microbench.gpu.machine.query import VALUE_MEMBERS, Query, call
from microbench.host.files import Machine

# The interval at which GPM's counters, clocks and power change on an H200. GPM gives zeros if it is read more often.
INTERVAL_S, LEAST_APART_S = 0.1, 0.099
# The longest time that the end of a command waits for NVML.
LONGEST_END_S = 0.5
# Constants of nvml.h.
UTILIZATION_SAMPLES = 1  # NVML_GPU_UTILIZATION_SAMPLES
GPM_VERSION, GPM_SM_UTIL = 1, 2
LATEST_US = 1_000_000  # a sample from later than this is on another clock
FEWEST_TIMES, MOST_TIMES = 3, 200  # times from which the interval between samples is found
ROUNDS_WITHOUT = 20  # rounds without samples of NVML's own
# Exceptions that other releases of the binding raise instead of an NVML error.
BROKEN = (AttributeError, LookupError, OSError, TypeError, ValueError)


class Board:
    """A GPU through NVML, with its readings so far."""

    def __init__(self, number: int, gpu: NvmlGpu, library: Any) -> None:
        self.gpu = gpu
        ask = gpu.query.ask
        bus_id = ask("nvmlDeviceGetPciInfo").member("busId").value or ""
        with suppress(ValueError):
            bus_id = sysfs_bus_id(bus_id)
        name, memory = ask("nvmlDeviceGetName").value, ask("nvmlDeviceGetMemoryInfo").member("total").value
        self.readings = GpuReadings(number, plain(name or "GPU"), bus_id, memory)
        self._gpm = _Gpm(gpu.query, library)
        self._since_us = dict.fromkeys(("busy", "process"), time.time_ns() // 1000)
        self._times_us: list[int] = []  # of NVML's first samples
        self._rounds = 0

    def take(self, pid: int | None = None) -> None:
        """Read NVML's figures now; for a process also its own share and the state of the GPU."""
        readings, ask = self.readings, self.gpu.query.ask
        self._take_busy()
        sms, readings.why_not["sms"] = self._gpm.busy_sms()
        if sms is not None:
            readings.sms.add(Share(time.time_ns(), sms))
        if pid is not None:
            self._take_process(pid)
            used = ask("nvmlDeviceGetMemoryInfo").member("used").value
            readings.states.add(State(self.gpu.telemetry(), used))

    def _take_busy(self) -> None:
        """Read NVML's own samples since the last ones, or its current share if its samples are not on this clock."""
        answer = self.gpu.query.ask("nvmlDeviceGetSamples", UTILIZATION_SAMPLES, self._since_us["busy"])
        kind, samples = answer.value or (-1, ())
        now_us, member = time.time_ns() // 1000, VALUE_MEMBERS.get(kind)
        for sample in samples:
            at_us = int(sample.timeStamp)
            if member is not None and self._since_us["busy"] < at_us < now_us + LATEST_US:
                self._since_us["busy"] = at_us
                self._times_us = [*self._times_us, at_us][:MOST_TIMES]
                self.readings.busy.add(Share(at_us * 1000, getattr(sample.sampleValue, member) / 100))
        if len(self._times_us) >= FEWEST_TIMES:
            between_us = [after - before for before, after in pairwise(self._times_us)]
            self.readings.apart_s = statistics.median(between_us) * 1e-6
        self._rounds += 1
        if not self._times_us and (answer.unsupported or self._rounds > ROUNDS_WITHOUT):
            now = self.gpu.query.ask("nvmlDeviceGetUtilizationRates")
            self.readings.why_not["busy"] = now.why_none if now.value is None else ""
            if now.value is not None:
                self.readings.busy.add(Share(time.time_ns(), now.value.gpu / 100))

    def _take_process(self, pid: int) -> None:
        answer = self.gpu.query.ask("nvmlDeviceGetProcessUtilization", self._since_us["process"])
        for sample in sorted(answer.value or (), key=lambda one: one.timeStamp):
            if sample.pid == pid and sample.timeStamp > self._since_us["process"]:
                self._since_us["process"] = sample.timeStamp
                self.readings.process.add(Share(sample.timeStamp * 1000, sample.smUtil / 100))
        self.readings.why_not["process"] = answer.why_none if answer.value is None else ""


class _Gpm:
    """GPM's share of busy SMs between two of its samples at least INTERVAL_S apart."""

    def __init__(self, query: Query, library: Any) -> None:
        self._query, self._library = query, library
        support = query.ask("nvmlGpmQueryDeviceSupport")
        self._reason = support.reason
        if support.value is not None and not support.value.isSupportedDevice:
            self._reason = "this GPU has no GPM"
        self._older: Any = None
        self._newer: Any = None
        self._metrics: Any = None
        self._at_s = -math.inf  # of the newer sample
        if self._reason is None:
            self._older, self._newer = (query.ask_system("nvmlGpmSampleAlloc").value for _ in range(2))
            self._metrics = library.c_nvmlGpmMetricsGet_t()

    def busy_sms(self) -> tuple[float | None, str]:
        """The share of SMs that were busy since the previous call, or None and the reason ("" if it is too early)."""
        now_s = time.monotonic()
        if self._reason is not None or now_s - self._at_s < LEAST_APART_S:
            return None, self._reason or ""
        taken = self._query.ask("nvmlGpmSampleGet", self._older)
        if taken.reason is not None:
            return None, taken.reason
        self._older, self._newer = self._newer, self._older
        is_first, self._at_s = self._at_s == -math.inf, now_s
        if is_first:
            return None, ""
        metrics = self._metrics
        metrics.version, metrics.numMetrics = GPM_VERSION, 1
        metrics.sample1, metrics.sample2 = self._older, self._newer
        metrics.metrics[0].metricId = GPM_SM_UTIL
        answer = call(self._library, "nvmlGpmMetricsGet", metrics)
        metric = metrics.metrics[0]
        if answer.reason is not None or metric.nvmlReturn != 0 or not math.isfinite(metric.value):
            return None, answer.reason or f"NVML refuses the metric with code {metric.nvmlReturn}"
        return min(max(metric.value / 100, 0.0), 1.0), ""


def boards(library: Any = None) -> list[Board]:
    """All GPUs that NVML lists. Raises Skip with the reason if there is none."""
    library = nvml.load() if library is None else library
    if library is None:
        raise Skip("nvidia-ml-py is not installed")
    started = call(library, "nvmlInit")
    if started.reason is not None:
        raise Skip(f"NVML does not start: {started.reason}")
    found = []
    for number in range(call(library, "nvmlDeviceGetCount").value or 0):
        handle = call(library, "nvmlDeviceGetHandleByIndex", number).value
        uuid = None if handle is None else call(library, "nvmlDeviceGetUUID", handle).value
        if uuid is not None:
            found.append(Board(number, NvmlGpu(uuid, library), library))
    call(library, "nvmlShutdown")
    if not found:
        raise Skip("NVML lists no GPU")
    return found


# During a command


class Sampler:
    """Samples all GPUs in a thread, from ``begin`` to the end of its ``with`` block. Nothing that fails is raised.

    ``readings`` are the results, and ``reason`` says why there are no more. The thread blocks all signals. It makes all
    calls of NVML, so a call that does not return delays the end by at most LONGEST_END_S.
    """

    def __init__(self, library: Any = None) -> None:
        self.readings: list[GpuReadings] = []
        self.reason = ""
        self._library = library
        self._thread: threading.Thread | None = None
        self._begun, self._ended = threading.Event(), threading.Event()

    def __enter__(self) -> Sampler:
        thread = threading.Thread(target=self._run, name="microbench-nvml", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the thread inherits this
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:
            self.reason = f"no thread can be started: {error}"
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def begin(self) -> None:
        """Start to call NVML."""
        self._begun.set()

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        if self._thread is None or not self._begun.is_set():  # the thread is a daemon and needs no end
            return
        with suppress(KeyboardInterrupt):
            self._thread.join(LONGEST_END_S)
        if self._thread.is_alive():
            self.reason = f"NVML did not answer within {LONGEST_END_S} s"

    def _run(self) -> None:
        self._begun.wait()
        try:
            found = boards(self._library)
            self.readings = [board.readings for board in found]
            while True:
                is_last = self._ended.is_set()
                for board in found:
                    board.take()
                if is_last:
                    break
                self._ended.wait(INTERVAL_S)
            for board in found:
                board.gpu.close()
        except Skip as error:
            self.reason = str(error)
        except BROKEN as error:
            self.reason = f"NVML's binding does not work here: {error}"


# Of a process that runs already


def _begun(pid: int, machine: Machine) -> str | None:
    """When a process began, in the kernel's units; None if it has ended or cannot be seen."""
    state, *rest = (machine.read(f"/proc/{pid}/stat").text or "Z").rpartition(")")[2].split()
    return None if state in ("Z", "X") else rest[18]


def _listed(board: Board, pid: int) -> bool:
    """Whether NVML lists a process as computing on the GPU."""
    query = board.gpu.query
    return any(process.pid == pid for _, names in LISTS[:2] for process in query.ask_first(names).value or ())


def _has_open(board: Board, pid: int, machine: Machine) -> bool:
    """Whether the process has the GPU's device file open."""
    minor = board.gpu.query.ask_board("nvmlDeviceGetMinorNumber").value
    folder = f"/proc/{pid}/fd"
    for name in machine.names(folder):
        with suppress(OSError):
            if str(machine.at(f"{folder}/{name}").readlink()) == f"/dev/nvidia{minor}":
                return True
    return False


class Process:
    """A running process and the GPUs on which it computes.

    The constructor raises UsageError if the process does not exist or uses no GPU, and without NVML.
    """

    def __init__(self, pid: int, library: Any = None, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        self._begun = _begun(pid, self._machine) if pid > 0 else None
        if self._begun is None:
            raise UsageError(f"there is no process {pid} here", "give a number that ps shows")
        try:
            every = boards(library)
        except Skip as error:
            raise UsageError(f"nothing can be sampled: {error}", "microbench doctor") from error
        self.pid = pid
        self.name = plain(self._machine.read(f"/proc/{pid}/comm").text or "a process")
        self._boards = [board for board in every if _listed(board, pid)]
        self._listed = bool(self._boards)
        if not self._listed and nvml.contained(self._machine):  # NVML lists the host's process ids
            self._boards = [board for board in every if _has_open(board, pid, self._machine)]
        if not self._boards:
            raise UsageError(f"process {pid} ({self.name}) computes on no GPU", "give a number that nvidia-smi shows")

    @property
    def numbers(self) -> list[int]:
        """NVML's numbers of its GPUs."""
        return [board.readings.number for board in self._boards]

    def follow(self, for_s: float | None) -> Followed:
        """Sample the GPUs of the process until it ends, ``for_s`` is over, or Ctrl-C."""
        begin_s = time.monotonic()
        with suppress(KeyboardInterrupt):
            while _begun(self.pid, self._machine) == self._begun:
                for board in self._boards:
                    board.take(self.pid)
                if for_s is not None and time.monotonic() - begin_s >= for_s:
                    break
                time.sleep(INTERVAL_S)
        readings = tuple(board.readings for board in self._boards)
        return Followed(self.pid, self.name, time.monotonic() - begin_s, readings, self._listed)

"""Records what this process submits to the GPU into a file of its own. Runs inside of the program that is watched.

This file and its imports use only the standard library, because the program's Python may be another one. The recording
ends in a handler of atexit, after a given time, or by ``end``. Programs are recorded from before CUDA is initialised; a
block of microbench.watch() may begin later.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import struct
import sys
import time
from typing import Any

from . import cells, state
from .cupti import NotRecorded, checked, load
from .loops import Loops
from .sampler import THREAD, Sampler, start_thread

# Parts of the names of calls that are recorded: calls that submit, wait, allocate or load code. Others take too little
# time to matter.
PARTS_OF_CALLS = (
    "Launch", "Memcpy", "Memset", "Synchronize", "WaitEvent", "EventRecord", "Malloc", "MemAlloc", "MemFree",
    "cudaFree", "HostAlloc", "HostRegister", "HostUnregister", "MemCreate", "MemMap", "MemRelease", "MemPrefetch",
    "ModuleLoad", "ModuleUnload", "LibraryLoad", "LibraryUnload", "GraphInstantiate", "GraphExecUpdate",
)  # fmt: skip
# The action of a call by a part of its name; the first match counts.
ACTIONS = (
    ("EventSynchronize", cells.WAITS_FOR_EVENT), ("StreamSynchronize", cells.WAITS_FOR_STREAM),
    ("Synchronize", cells.WAITS_FOR_ALL), ("WaitEvent", cells.STREAM_WAITS), ("EventRecord", cells.RECORDS_EVENT),
    ("LaunchKernel", cells.LAUNCHES), ("LaunchCooperativeKernel", cells.LAUNCHES),
)  # fmt: skip
PER_THREAD = ("_ptsz", "_ptds")  # endings of the calls whose default stream is the thread's own
APIS = ((1, "driver"), (2, "runtime"))  # CUPTI's domains of callbacks
PACKAGES = ("torch", "jax", "cupy", "numba", "triton", "tensorflow", "torch_geometric", "transformers", "flax")
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")

FLUSH_MS = 200
FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
FAR_FILE = 900  # file descriptors from here on, which programs seldom use
MOST_RESERVE_BYTES = 1 << 30  # that stay free on the disk, or a twentieth of a smaller disk
MOST_GPUS = 64
READINGS = 3
# Without --window the recording pauses now and then: the first window and the first pause, each twice as long as the
# one before it, and the longest of each. Pauses show the step without the recorder.
FIRST_WINDOW_S, FIRST_PAUSE_S, LONGEST_WINDOW_S, LONGEST_PAUSE_S = 0.5, 0.25, 8.0, 60.0
# At the end of a window kernels that were launched in it may still run. How long they are waited for, at most and while
# none ends, and how often that is looked at.
LONGEST_DRAIN_S, STALLED_S, LOOK_S = 10.0, 0.6, 0.05
ALL = 0xFFFFFFFF  # correlations
WITHIN_S = 0.001  # in which a callback that has begun ends
AGAIN_S = 0.25  # after which turns of fast loops are noted again in a pause
LONGEST_TURN_S = 2.0  # that the end of a turn is waited for
WITH_THREADS = ("jax", "jaxlib", "tensorflow")  # submit work from threads of their own
READ_WRITE, READ_EXECUTE, PRIVATE_ANONYMOUS, DONT_NEED = 3, 5, 0x22, 4  # of mmap, mprotect and madvise
PAGE_BYTES = 4096
SET_SIXTH_ARGUMENT = b"\x49\xb9"  # x86-64: mov r9, the 8 bytes that follow
ELSEWHERE = "record into a folder on another disk by -o"


def begin(package: str, settings: dict[str, Any], tell: Any) -> Recorder:
    """Record from now on, because the program imports this package.

    ``settings`` are those of program.watch: "folder" for the recording or "file" its whole path, "code" the file of the
    compiled callbacks, "for_s" the time after its first work on the GPU at which the recording ends, or None. With
    "window_s" everything is recorded in the first "window_s" of each "every_s" seconds, and only waits and the turns of
    loops in the rest. With neither it pauses now and then, unless "whole" is true. With "stacks" the functions
    that Python is in are sampled too, but not in pauses. ``tell`` is called with a cause and a next step if the
    recording ends early. Raises NotRecorded and OSError.
    """
    recorder = Recorder(tell)
    with contextlib.ExitStack() as failed:
        failed.callback(recorder.abandon)  # also after a Ctrl-C
        recorder.start(package, settings)
        failed.pop_all()
    atexit.register(recorder.stop_at_exit)
    if not settings["whole"]:
        start_thread(recorder.take_turns, settings["window_s"], settings["every_s"])
    if settings["for_s"] is not None:
        start_thread(recorder.stop_after, settings["for_s"])
    return recorder


class Recorder:
    """One recording. CUPTI writes through the compiled callbacks; this object begins and ends it."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._process = os.getpid()
        self._lock = _thread.allocate_lock()
        self._subscriber = ctypes.c_void_p()
        self._enabled: list[int] = []
        self._file, self.path, self._identity = -1, "", (0, 0)
        self._state = 0  # the address of what the callbacks share with this object
        self._windows, self._window_begin_ns, self._open_window = 0, 0, True
        self._quiet = False  # CUPTI is off
        self._given: Any = None  # the compiled function that writes cells
        self._sampler: Sampler | None = None
        self._loops = Loops(self._take, self._ahead_ns)
        self._libc = ctypes.CDLL(None)
        self._cupti, self._version = load()
        self._calls = {domain: self._names_of_calls(domain) for domain, _ in APIS}
        self._called: set[tuple[int, int]] = set()  # calls that are recorded now, by domain and number

    def start(self, package: str, settings: dict[str, Any]) -> None:
        """Begin. Raises NotRecorded and OSError."""
        *callbacks, called, given = self._load(settings["code"])
        # CUPTI serves one subscriber, so another profiler is refused and does not replace the callbacks.
        checked(self._cupti, "cuptiSubscribe", ctypes.byref(self._subscriber), called, None)
        self._given = ctypes.CFUNCTYPE(None, ctypes.c_char_p, *[ctypes.c_size_t] * 4)(given.value or 0)
        self._open(settings["folder"], settings.get("file"))
        self._window_begin_ns = self._now_ns()
        self._write(self._first_cells(package))
        if settings["stacks"]:
            self._sampler = Sampler(self._take, self._ahead_ns, lambda: self._open_window)
            self._write(cells.fact("main_thread", _main_thread()))
        checked(self._cupti, "cuptiActivityRegisterCallbacks", *callbacks)
        self._enable()
        self._cupti.cuptiActivityFlushPeriod(ctypes.c_uint32(FLUSH_MS))
        if self._sampler is not None:
            start_thread(self._sampler.run)
        start_thread(self._loops.run, self._begun, lambda thread: thread == self._word(state.FIRST_THREAD).value)

    def _load(self, code: str) -> list[ctypes.c_void_p]:
        """The addresses of the compiled functions. Their memory is never given back, because CUPTI may call them until
        the process is gone."""
        with open(code, "rb") as file:
            data = file.read()
        size = -(-(len(data) + 256) // PAGE_BYTES) * PAGE_BYTES
        reserve = self._libc.mmap
        reserve.restype = ctypes.c_void_p
        address = reserve(
            None, ctypes.c_size_t(size + state.STATE_BYTES), READ_WRITE, PRIVATE_ANONYMOUS, -1, ctypes.c_long(0)
        )
        if address in (None, ctypes.c_void_p(-1).value):
            raise NotRecorded("no memory is left for the recorder", "free memory")
        self._state = address + size
        for name, place in state.FUNCTIONS.items():
            function = getattr(self._cupti if name in state.CUPTI else self._libc, name)
            self._word(place).value = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._word(state.PROCESS).value = self._process
        for domain, number in self._chosen():
            place = state.ACTIONS + (domain - 1) * state.MOST_CALLS + number
            ctypes.c_uint8.from_address(self._state + place).value = action(self._calls[domain][number])
        prologue = SET_SIXTH_ARGUMENT + struct.pack("<Q", self._state)
        places, begin, place = [], 0, address
        while begin < len(data):
            (length,) = struct.unpack_from("<Q", data, begin)
            part = prologue + data[begin + 8 : begin + 8 + length]
            ctypes.memmove(place, part, len(part))
            places.append(place)
            begin, place = begin + 8 + length, place + -(-len(part) // 16) * 16
        if self._libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), READ_EXECUTE):
            raise NotRecorded("this system lets no program run code that it has loaded as data", "use another profiler")
        return [ctypes.c_void_p(place) for place in places]

    def _word(self, place: int) -> ctypes.c_int64:
        """A word of the state that the callbacks share."""
        return ctypes.c_int64.from_address(self._state + place)

    def _open(self, folder: str, file: str | None) -> None:
        """Create the file, with a descriptor that the program is unlikely to use."""
        program = re.sub(r"[^\w.-]", "_", os.path.basename(_program()))[:80].lstrip("-.") or "python"
        start = os.path.join(folder, f"{program}-{self._process}")
        several = ("", *(f"-{number}" for number in range(2, 1000)))  # a process that execs itself keeps its number
        for self.path in (f"{start}{more}{cells.ENDING}" for more in several) if file is None else (file,):
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(self.path, flags, 0o644)
            except FileExistsError:
                continue
            except OSError as error:
                raise self._unwritable(error) from error
            break
        else:
            raise NotRecorded(f"{self.path} exists", "give the name of a new file")
        with contextlib.suppress(OSError):  # as many files may not be allowed
            low, self._file = self._file, fcntl.fcntl(self._file, fcntl.F_DUPFD_CLOEXEC, FAR_FILE)
            os.close(low)
        found, disk = os.fstat(self._file), os.fstatvfs(self._file)
        self._identity = found.st_dev, found.st_ino
        reserve = min(disk.f_blocks * disk.f_frsize // 20, MOST_RESERVE_BYTES)
        self._word(state.LEAST_FREE_BYTES).value = reserve
        self._word(state.FILE).value = self._file

    def _unwritable(self, error: OSError) -> NotRecorded:
        return NotRecorded(f"{self.path} cannot be written: {error.strerror}", ELSEWHERE)

    def _write(self, data: bytes) -> None:
        """Write cells; only while the callbacks do not."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            raise self._unwritable(error) from error
        self._word(state.WRITTEN_BYTES).value += written

    def _take(self, data: bytes) -> bool:
        """Write cells while the callbacks may write too. Returns whether the recording goes on."""
        for begin in range(0, len(data), state.ROWS_BYTES):
            part = data[begin : begin + state.ROWS_BYTES]
            self._given(part, len(part), 0, 0, 0)
        return not self._word(state.STOPPED).value

    def _ahead_ns(self) -> int:
        """How far CUPTI's clock is ahead of Unix time: the tightest of a few readings."""
        stamp, readings = ctypes.c_uint64(), []
        for _ in range(READINGS):
            before_ns = time.time_ns()
            self._cupti.cuptiGetTimestamp(ctypes.byref(stamp))
            after_ns = time.time_ns()
            readings.append((abs(after_ns - before_ns), stamp.value - (before_ns + after_ns) // 2))
        return min(readings)[1]

    def _first_cells(self, package: str) -> bytes:
        """The header, facts of the process, the two clocks, and the names of calls by their number."""
        facts = {
            "pid": self._process,
            "program": os.path.basename(_program()),
            "python": ".".join(map(str, sys.version_info[:3])),
            "package": package,
            "cupti": self._version,
            "cupti_ns": self._now_ns(),
            "unix_ns": time.time_ns(),
        }
        rank = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), None)
        if rank is not None:
            facts["rank"] = rank
        for domain, api in APIS:
            facts |= {f"{api}.{cbid}": name for cbid, name in self._calls[domain].items()}
        return cells.header() + b"".join(cells.fact(name, value) for name, value in facts.items())

    def _now_ns(self) -> int:
        """The time on CUPTI's clock."""
        stamp = ctypes.c_uint64()
        self._cupti.cuptiGetTimestamp(ctypes.byref(stamp))
        return stamp.value

    def _names_of_calls(self, domain: int) -> dict[int, str]:
        """An API's calls by their number."""
        found, text = {}, ctypes.c_char_p()
        for cbid in range(1, state.MOST_CALLS):
            if self._cupti.cuptiGetCallbackName(domain, cbid, ctypes.byref(text)) == 0 and text.value:
                found[cbid] = text.value.decode("ascii", "replace")
        return found

    def _chosen(self) -> list[tuple[int, int]]:
        """The calls that are recorded, by domain and number."""
        return [
            (domain, number)
            for domain, calls in self._calls.items()
            for number, name in calls.items()
            if any(part in name for part in PARTS_OF_CALLS)
        ]

    def _enable(self) -> None:
        """Begin to record everything; only kernels must be possible."""
        checked(self._cupti, "cuptiActivityEnable", cells.KERNEL)
        self._enabled = [cells.KERNEL]
        self._enabled += [kind for kind in cells.KINDS[1:] if self._cupti.cuptiActivityEnable(kind) == 0]
        self._record_calls(set(self._chosen()))

    def _disable(self, calls: set[tuple[int, int]]) -> None:
        """End the records of CUPTI; of the calls only these are recorded from now on."""
        for kind in self._enabled:
            self._cupti.cuptiActivityDisable(kind)
        self._record_calls(calls)

    def _record_calls(self, wanted: set[tuple[int, int]]) -> None:
        for calls, on in ((self._called - wanted, 0), (wanted - self._called, 1)):
            for domain, number in calls:
                self._cupti.cuptiEnableCallback(ctypes.c_uint32(on), self._subscriber, domain, ctypes.c_uint32(number))
        self._called = wanted

    def abandon(self) -> None:
        """Give CUPTI back after a failed start, and remove the file."""
        if self._sampler is not None:
            self._sampler.finish()
        self._loops.finish()
        if self._state:
            self._word(state.STOPPED).value = 1
        if self._subscriber:
            self._disable(set())
            self._cupti.cuptiUnsubscribe(self._subscriber)
        if self._file >= 0:
            os.close(self._file)
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _begun(self) -> bool:
        """Whether the program has launched a kernel in this window, or the recording has ended."""
        return self._file < 0 or self._word(state.LAUNCHED).value > 0

    def take_turns(self, window_s: float | None, every_s: float | None) -> None:
        """Begin and end one window after the other, until the recording ends. The first one has begun with it. The time
        of a window counts from its first kernel, so that a program that is idle meanwhile is not missed."""
        growing = window_s is None or every_s is None
        window_s = FIRST_WINDOW_S if window_s is None else window_s
        pause_s = FIRST_PAUSE_S if every_s is None else every_s - window_s
        while self._file >= 0:
            while not self._begun():
                time.sleep(LOOK_S)
            time.sleep(window_s)
            if not self._end_window() or not self._at_turn(self._turn_off):
                return
            until_s = time.monotonic() + pause_s
            while (left_s := until_s - time.monotonic()) > 0:
                self._loops.restart()
                time.sleep(min(left_s, AGAIN_S))
            if self._quiet and not self._at_turn(self._turn_on):
                return
            with self._lock:
                if self._file < 0:
                    return
                for word in (state.LAUNCHED, state.FINISHED, state.FIRST_LAUNCH, state.LAST_COUNTED):
                    self._word(word).value = 0
                self._windows, self._window_begin_ns, self._open_window = self._windows + 1, self._now_ns(), True
                self._take(self._window_cell())
                self._loops.restart()
            if growing:
                window_s, pause_s = min(2 * window_s, LONGEST_WINDOW_S), min(2 * pause_s, LONGEST_PAUSE_S)

    def _end_window(self) -> bool:
        """Record only waits from now on, and return as soon as the kernels that were launched by now have ended.

        Returns False if the recording has ended.

        CUPTI goes on and the callbacks do nothing, because it is not safe to end it in any moment (H100, CUPTI 13.0): a
        callback that is switched while a thread is within the call gives this thread wrong correlations for good, and
        to flush records while XLA's kernels run made them fail.
        """
        with self._lock:
            if self._file < 0 or not self._open_window:
                return self._file >= 0
            end, self._open_window = str(self._now_ns()), False
            self._word(state.LAST_COUNTED).value = ALL
            time.sleep(WITHIN_S)
            self._word(state.LAST_COUNTED).value = max(self._word(state.LAST_CALL).value, 1)
        until_s, finished, seen_s = time.monotonic() + LONGEST_DRAIN_S, -1, 0.0
        while (now_s := time.monotonic()) < until_s and self._file >= 0:
            if (found := self._word(state.FINISHED).value) != finished:
                finished, seen_s = found, now_s
            if finished >= self._word(state.LAUNCHED).value or now_s - seen_s > STALLED_S:
                break
            time.sleep(LOOK_S)
        with self._lock:
            if self._file < 0:
                return False
            self._take(self._window_cell(end))
        return True

    def _at_turn(self, switch: Any) -> bool:
        """Let the program's thread call this at the end of a turn of a Python loop, when it is in no call of CUDA; not
        at all where other threads submit its work, or no loop is seen. Returns False if the recording has ended."""
        if not any(name in sys.modules for name in WITH_THREADS) and self._loops.seen:
            self._loops.at_turn = switch
            self._loops.restart()
            until_s = time.monotonic() + LONGEST_TURN_S
            while self._loops.at_turn is not None and self._file >= 0:
                if switch == self._turn_off and time.monotonic() > until_s:
                    self._loops.at_turn = None
                time.sleep(LOOK_S)
        return self._file >= 0

    def _turn_off(self) -> None:
        """End the records of kernels and the callbacks, but for waits."""
        for kind in self._enabled:
            self._cupti.cuptiActivityDisable(kind)
        chosen = self._chosen()
        self._record_calls({one for one in chosen if action(self._calls[one[0]][one[1]]) & 15 in cells.HOST_WAITS})
        self._quiet = True
        self._take(cells.fact(f"quiet.{self._windows}", self._now_ns()))

    def _turn_on(self) -> None:
        for kind in self._enabled:
            self._cupti.cuptiActivityEnable(kind)
        self._record_calls(set(self._chosen()))
        self._quiet = False

    def _window_cell(self, end: str = "") -> bytes:
        """The fact that a window has begun, or when it ended; the later of two facts with one name counts."""
        return cells.fact(f"window.{self._windows}", f"{self._window_begin_ns}-{end}")

    def stop_after(self, seconds: float) -> None:
        """End the recording while the program runs on. A profiler of the program's own may use CUPTI afterwards."""
        while not self._begun():
            time.sleep(LOOK_S)
        time.sleep(seconds)
        self._end_window()
        self._stop(flushed=True)
        self._cupti.cuptiUnsubscribe(self._subscriber)

    def end(self) -> None:
        """End the recording of a block: wait for the work that it submitted, and release CUPTI."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.stop_at_exit)
        self._record_calls(set())  # the wait is not the program's own
        try:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD).cuCtxSynchronize()
            self._stop()
        finally:
            self._cupti.cuptiActivityFlushPeriod(ctypes.c_uint32(0))
            self._cupti.cuptiUnsubscribe(self._subscriber)
            # Callbacks that come late look at the first page alone, and a process may record many blocks.
            unused = ctypes.c_size_t(state.STATE_BYTES // PAGE_BYTES * PAGE_BYTES - PAGE_BYTES)
            self._libc.madvise(ctypes.c_void_p(self._state + PAGE_BYTES), unused, DONT_NEED)

    def stop_at_exit(self) -> None:
        """End the recording with the process that began it. A Ctrl-C meanwhile has nothing left to interrupt."""
        if os.getpid() == self._process:
            with contextlib.suppress(KeyboardInterrupt):
                self._stop()

    def _stop(self, *, flushed: bool = False) -> None:
        """Flush CUPTI's records, unless that is done, and write the facts that are known only at the end."""
        with self._lock:
            if self._file < 0:
                return
            if self._sampler is not None:
                self._sampler.finish()
            self._loops.finish()
            self._word(state.ENDING).value = 1
            self._disable(set())
            if not flushed:
                self._cupti.cuptiActivityFlushAll(ctypes.c_uint32(FORCED))
            self._take(self._last_cells())
            self._word(state.STOPPED).value = 1
            self._given(b"", 0, 0, 0, 0)  # returns when no callback writes any more
            error = self._word(state.ERROR).value
            with contextlib.suppress(OSError):
                found = os.fstat(self._file)
                if (found.st_dev, found.st_ino) == self._identity:  # the program may have closed it
                    os.close(self._file)
            self._file = -1
        if error:
            why = "the program closed its file" if error == errno.EBADF else os.strerror(error)
            self._tell(f"the rest, because {self.path} cannot be written any more: {why}", ELSEWHERE)
        if self._sampler is not None and self._sampler.impossible:
            self._tell("lines of Python, because this Python runs without its lock (GIL)", "run it with PYTHON_GIL=1")

    def _last_cells(self) -> bytes:
        dropped = ctypes.c_size_t()
        self._cupti.cuptiActivityGetNumDroppedRecords(None, ctypes.c_uint32(0), ctypes.byref(dropped))
        facts: dict[str, object] = {"dropped": dropped.value + self._word(state.DROPPED_CALLS).value}
        for name in PACKAGES:
            version = getattr(sys.modules.get(name), "__version__", None)
            if version is not None:
                facts[f"version.{name}"] = version
        for number, (name, bus_id) in enumerate(_gpus()):
            facts |= {f"gpu.{number}": name, f"bus.{number}": bus_id}
        return b"".join(cells.fact(name, value) for name, value in {**facts, "ended": 1}.items())


def action(name: str) -> int:
    """The action for a recorded call of this name (see cells.py)."""
    more = next((more for part, more in ACTIONS if part in name), 0)
    return cells.RECORDED | more | (cells.PER_THREAD if name.endswith(PER_THREAD) else 0)


def _main_thread() -> int:
    """The number of the main thread, as CUPTI writes it."""
    threading = sys.modules.get("threading")  # not imported here: the first import decides which thread is the main one
    thread = threading.main_thread().ident if threading is not None else None
    return (thread or _thread.get_ident()) & THREAD


def _program() -> str:
    return next(iter(getattr(sys, "argv", ())), "")


def _gpus() -> list[tuple[str, str]]:
    """The names of the GPUs and their PCI addresses in CUDA's order, where the program has initialised CUDA."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return []
    count, device, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    bus_id = ctypes.create_string_buffer(32)
    gpus = []
    if cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for number in range(min(count.value, MOST_GPUS)):
            if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetName(text, 128, device):
                break
            known = cuda.cuDeviceGetPCIBusId(bus_id, 32, device) == 0
            gpus.append(
                (text.value.decode("utf-8", "replace"), bus_id.value.decode("ascii", "replace") if known else "")
            )
    return gpus

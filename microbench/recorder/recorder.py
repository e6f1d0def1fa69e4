"""Records what this Python process submits to the GPU: drives the library of recorder.c, and adds what Python knows.

It runs inside of the program that is watched, so this file and its imports use only the standard library: the program's
Python may be another one. The recording ends in a handler of atexit, after a given time, or by ``end``. Programs are
recorded from before CUDA is initialised; a block of microbench.watch() may begin later.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import os
import sys
import time
from typing import Any

from . import cells, cupti
from .cupti import NotRecorded
from .loops import Loops
from .sampler import THREAD, Sampler, start_thread

PACKAGES = ("torch", "jax", "cupy", "numba", "triton", "tensorflow", "torch_geometric", "transformers", "flax")
READINGS = 3
LAST = -1000  # of what multiprocessing calls at the end of a process
AT_EXIT, AFTER_A_TIME, AFTER_A_BLOCK, AFTER_A_FAILURE = range(4)  # why a recording ends


class Shared(ctypes.Structure):
    """What the library and Python tell each other; see recorder.c."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("has_launched", "window_open", "answers")),
        *((name, ctypes.c_uint32) for name in ("asks", "no_python", "ends_it")),
        ("thread", ctypes.c_uint64), ("at_ns", ctypes.c_uint64),
    ]  # fmt: skip


def obey(package: str | None, settings: dict[str, Any], tell: Any) -> None:
    """Record as often as `microbench watch` orders it in the file "orders" of the settings; the others are those of
    ``begin``. Without a package the library has obeyed until now. Raises NotRecorded."""
    library = settings["loaded"] = _library(settings)
    names = (settings["orders"], settings["folder"], _program(), settings["reasons"])
    refused = library.microbench_obey(*map(os.fsencode, names)) if package is not None else None
    if refused is not None:
        raise NotRecorded(*_words(refused))

    def follow() -> None:
        while library.microbench_ordered(True):
            try:
                begin(package, settings, tell).stop_after(0)
            except NotRecorded as error:
                tell(error.cause, error.next_step)

    start_thread(follow)
    Shared.in_dll(library, "microbench_shared").ends_it = 1


def begin(package: str | None, settings: dict[str, Any], tell: Any, held: list[Recorder] | None = None) -> Recorder:
    """Begin to record, because the program imports this package. None: the library records already, and Python joins.

    ``settings`` are those of program.watch: "folder" for the recording or "file" its whole path, "library" the file of
    the compiled recorder.c, "for_s" the time after its first work on the GPU at which the recording ends, or None. With
    "window_s" everything is recorded in the first "window_s" of each "every_s" seconds, and only waits and the turns of
    loops in the rest. With neither it pauses now and then, unless "whole" is true. With "stacks" the functions
    that Python is in are sampled too, but not in pauses. "reasons" is a folder that `microbench watch` removes at its
    end, which ends the recording too; a block has none. ``tell`` is called with a cause and a next step if the
    recording ends early. What is begun is ``held`` before, whenever a Ctrl-C comes. Raises NotRecorded and OSError.
    """
    recorder = Recorder(settings, tell)
    if held is not None:
        held.append(recorder)
    with contextlib.ExitStack() as failed:
        failed.callback(recorder.abandon)  # also after a Ctrl-C
        recorder.start(package, settings)
        atexit.register(recorder.stop_at_exit)
        if "reasons" in settings:
            several = sys.modules.get("multiprocessing.process")
            if several is not None and several.parent_process() is not None:  # a fork of it ends by os._exit
                at_end = sys.modules["multiprocessing.util"].Finalize
                recorder.at_end = at_end(None, recorder.stop_at_exit, exitpriority=LAST)
            if not settings["orders"]:
                start_thread(recorder.stop_after, settings["for_s"] or 0)
                recorder.shared.ends_it = 1
        failed.pop_all()
    return recorder


class Recorder:
    """One recording. The library writes it without Python; this object begins and ends it."""

    def __init__(self, settings: dict[str, Any], tell: Any) -> None:
        self._process = os.getpid()
        self._lock = _thread.allocate_lock()
        self._library = _library(settings)
        self._keeping = ctypes.PyDLL(settings["library"])  # Python's lock
        self._keeping.microbench_now_ns.restype = ctypes.c_uint64
        self._tell = self._leave if "reasons" in settings else tell
        self.at_end: Any = None  # what multiprocessing calls
        self.shared = Shared.in_dll(self._library, "microbench_shared")
        self._going_on = self._joins = False
        self._sampler: Sampler | None = None
        self._loops = Loops(self._take, self._ahead_ns, self.shared)

    @property
    def path(self) -> str:
        """The file of the recording."""
        return os.fsdecode(self._library.microbench_path())

    def start(self, package: str | None, settings: dict[str, Any]) -> None:
        """Begin, or join what the library has begun. Raises NotRecorded."""
        file, window_s, every_s = settings.get("file"), settings["window_s"] or 0, settings["every_s"] or 0
        self._going_on, self._joins = True, package is None and not settings["orders"]
        refused = None if self._joins else self._library.microbench_begin(
            None if package is None else os.fsencode(cupti.path()), os.fsencode(settings["folder"]),
            None if file is None else os.fsencode(file), os.fsencode(_program()), ctypes.c_double(window_s),
            ctypes.c_double(every_s),
            int(settings["whole"]), os.fsencode(settings["reasons"]) if "reasons" in settings else None,
        )  # fmt: skip
        if refused is not None:
            self._going_on = False
            raise NotRecorded(*_words(refused))
        facts: dict[str, object] = {"python": ".".join(map(str, sys.version_info[:3])), **_versions()}
        if package is not None:
            facts["package"] = package
        if settings["stacks"]:
            facts["main_thread"] = main_thread = _main_thread()
            self._library.microbench_asked.argtypes = [ctypes.c_double]
            self._library.microbench_give_samples.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            self._sampler = Sampler(
                self._library, self._keeping, self._ahead_ns, self.shared, main_thread, self._loops.calling
            )
            self._sampler.begin()
        self._take(_cells(facts))
        start_thread(self._loops.run)

    def _take(self, data: bytes) -> bool:
        """Write cells. Returns whether the recording goes on."""
        return bool(self._library.microbench_give(data, ctypes.c_size_t(len(data))))

    def _ahead_ns(self) -> int:
        """How far CUPTI's clock is ahead of Unix time: the tightest of a few readings."""
        readings = []
        for _ in range(READINGS):
            before_ns = time.time_ns()
            stamp_ns = int(self._keeping.microbench_now_ns())
            after_ns = time.time_ns()
            readings.append((abs(after_ns - before_ns), stamp_ns - (before_ns + after_ns) // 2))
        return min(readings)[1]

    def stop_after(self, seconds: float) -> None:
        """End the recording after a time, or with `microbench watch`, while the program runs on. A profiler of the
        program's own may use CUPTI afterwards."""
        self._library.microbench_wait(ctypes.c_double(seconds))
        self._stop(AFTER_A_TIME)
        atexit.unregister(self.stop_at_exit)
        if self.at_end is not None:
            self.at_end.cancel()

    def end(self) -> None:
        """End the recording of a block: wait for the work that it submitted, and release CUPTI."""
        atexit.unregister(self.stop_at_exit)
        self._stop(AFTER_A_BLOCK)

    def stop_at_exit(self) -> None:
        """End the recording with the process that began it. A Ctrl-C meanwhile has nothing left to interrupt."""
        with contextlib.suppress(KeyboardInterrupt):
            self._stop(AT_EXIT)

    def abandon(self) -> None:
        """Give CUPTI back after a failed start, and remove the file; what Python did not join goes on."""
        self._stop(AFTER_A_FAILURE)

    def _stop(self, why: int) -> None:
        """Write what is known only at the end, and let the library end the recording."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._going_on:
                return
            try:
                self._going_on = False
                if self._sampler is not None:
                    self._sampler.finish()
                self._loops.finish()
                self._take(_cells(_versions()))
            finally:  # also after a Ctrl-C
                goes_on = self._joins and why == AFTER_A_FAILURE  # without Python
                early = None if goes_on else self._library.microbench_end(why)
            if early is not None:  # told before another thread that waits here may end the process
                self._tell(*_words(early))
            if self._sampler is not None and self._sampler.impossible:
                self._tell(*self._sampler.impossible)

    def _leave(self, cause: str, next_step: str) -> None:
        """Leave a reason for the end of `microbench watch`, while other threads of the program run on."""
        self._library.microbench_leave_reason(os.fsencode(cause), os.fsencode(next_step))


def _library(settings: dict[str, Any]) -> Any:
    if "loaded" in settings:
        return settings["loaded"]
    library = ctypes.CDLL(settings["library"])
    for name in ("begin", "end", "path", "obey"):
        getattr(library, f"microbench_{name}").restype = ctypes.c_char_p
    return library


def _program() -> str:
    return os.path.basename(next(iter(getattr(sys, "argv", ())), "")) or "python"


def _words(reason: bytes) -> tuple[str, str]:
    """A cause and a next step, as the library says them."""
    cause, _, next_step = os.fsdecode(reason).rpartition("\n")
    return cause, next_step


def _versions() -> dict[str, object]:
    """The versions of the GPU packages that are imported by now."""
    versions = {f"version.{name}": getattr(sys.modules.get(name), "__version__", None) for name in PACKAGES}
    return {name: version for name, version in versions.items() if version is not None}


def _cells(facts: dict[str, object]) -> bytes:
    return b"".join(cells.fact(name, value) for name, value in facts.items())


def _main_thread() -> int:
    """The number of the main thread, as CUPTI writes it."""
    threading = sys.modules.get("threading")  # not imported here: the first import decides which thread is the main one
    thread = threading.main_thread().ident if threading is not None else None
    return (thread or _thread.get_ident()) & THREAD

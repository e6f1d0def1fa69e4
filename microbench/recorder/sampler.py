"""Notes every 2 to 4 ms which functions of Python each thread is in, on a thread of its own.

It needs Python's lock (GIL) for a sample. The main thread is asked for it between two of its instructions. Another one
that computes in Python gives it up after 5 ms, at once before Python 3.13 if the main thread runs, or never if it gives
it up often for moments; such samples are late. A thread that has given the lock up waits for the sample (about 30 us).
A program that gave it up every 4 us took 8 % longer with a sample each millisecond, so there is one each 2 ms at most,
at random times, so that it does not beat with the program's step. Samples pause for at least LEAST_PAUSE times as long
as they take in the mean, so that many threads or deep stacks do not slow the program down.
It also notes when Python collects garbage, and how long the main thread waits for a processor, or for Python's lock:
the kernel tells for which word a thread waits.
A file that is opened has for a moment the lowest free number, which another thread sees or expects for its own. So this
thread opens its files while the program waits for it, moves them to high numbers, and opens none afterwards. The
exception is one file for each thread but the main one that calls CUDA (recorder.c), at its first call.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import dis
import fcntl
import gc
import itertools
import opcode
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from . import cells

THREAD = 0xFFFFFFFF  # CUPTI's number of a thread is the low half of pthread_self(), which is Python's number
LEAST_PAUSE = 30  # times as long as samples take, or as the main thread leaves the lock for them, in the mean
NEWEST = 8  # the newest sample is an eighth of that mean
MOST_LOST_NS = 200_000  # of that; for longer it waits for other threads
WRITE_NS = 1_000_000_000
MOST_WAITING = 1000  # cells
MOST_LINES = 50_000  # frames and files that are remembered
MOST_FRAMES = 200  # of a stack that are looked at
MOST_CALLING = 64  # stacks of calls that wait for being looked at; before Python 3.12 nobody does
MOST_BYTES = 2048  # of instructions before a call in which what it calls is looked for
NEAR_BYTES = 8192  # from the beginning of a function; columns are found from there on, which takes 0.1 ms for 2 KB
LOCALS = "<locals>."
SHORTEST_NS = 100_000  # of a collection of garbage, or a time without a processor, that is noted
# Of the main thread and of this one: ns on a processor, ns ready to run without one.
MAIN_THREADS, OWN = "/proc/self/schedstat", "/proc/thread-self/schedstat"
PREAD = ctypes.PyDLL(None).pread  # os.pread gives up Python's lock, and may not get it back for long
PREAD.argtypes, PREAD.restype = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long], ctypes.c_ssize_t
FIRST_INTERPRETER, MAIN_INTERPRETER = ctypes.pythonapi.PyInterpreterState_Head, ctypes.pythonapi.PyInterpreterState_Main
FIRST_INTERPRETER.restype = MAIN_INTERPRETER.restype = ctypes.c_void_p
CORES = "/sys/fs/cgroup/cpu.max"  # us of all processors in each period of so many us
FAR_FILE = 900  # as recorder.c has it
UNWANTED_S = 0.05
# Functions in C that wait: a frame that calls one does not run Python.
WAITING = frozenset((
    "sleep", "acquire", "recv", "recv_into", "recvfrom", "send", "sendall", "accept", "connect", "poll", "select",
    "read", "readinto", "readline", "readlines", "write", "fsync", "print",
))  # fmt: skip
FILES = frozenset(("read", "readinto", "readline", "readlines", "write"))  # in packages they may compute, too
ENTERING, ATTRIBUTES = ("SETUP_WITH", "BEFORE_WITH"), ("LOAD_ATTR", "LOAD_METHOD")
NAMES = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
FIRST_FLAGS = {"LOAD_GLOBAL": (3, 11), "LOAD_ATTR": (3, 12)}  # from then on the low bit of the argument is a flag
# Python's library, its scripts (such as torchrun) and microbench are not the program's own code.
ROOM = os.path.dirname(os.path.abspath(__file__))
HERE = os.path.join(os.path.dirname(sys._getframe().f_code.co_filename), "")  # sitecustomize gives code another name
OTHERS = tuple(os.path.join(os.path.dirname(path), "") for path in (os.__file__, sys.executable, ROOM) if path)
PACKAGES = "-packages" + os.sep  # site-packages and dist-packages
TYPED = ("<stdin>", "<ipython-input", "<string>")  # code of the program without a file; the last one only behind -c


def start_thread(function: Any, *arguments: Any) -> None:
    """Start a thread that no signal of the program reaches and for which no exit waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(function, arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _allowed_cores() -> float:
    """How many processors this process may use at once."""
    allowed: float = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError), open(CORES, encoding="ascii") as file:
        quota_us, period_us = file.read().split()
        allowed = min(allowed, int(quota_us) / int(period_us))
    return allowed


def no_frames() -> tuple[str, str] | None:
    """Why another thread's frames must not be read now, and what to do."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "lines of Python, because this Python runs without its lock (GIL)", "run it with PYTHON_GIL=1"
    # sys._current_frames() reads those of all interpreters.
    if sys.version_info >= (3, 12) and FIRST_INTERPRETER() != MAIN_INTERPRETER():
        return "lines of Python while there is a subinterpreter, which has a lock of its own", "use a thread instead"
    return None


def _may_wait(code: Any) -> bool:
    """Whether code calls a function of a waiting one's name, or enters a context, which may be a lock."""
    return not WAITING.isdisjoint(code.co_names) or any(
        opcode.opname[one] in ENTERING for one in set(code.co_code[::2])
    )


class Kept:
    """The beginning of a file of /proc, which stays open at a high number because it is read with samples."""

    def __init__(self, path: str) -> None:
        self.file, self._words = -1, ctypes.create_string_buffer(100)
        with contextlib.suppress(OSError, ValueError):
            near = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            try:  # out of the way of the program's own, as the recording is
                far = most * 7 // 8 if 0 <= most <= FAR_FILE else FAR_FILE
                self.file = fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, far)
                self._about = os.fstat(self.file)
            finally:
                os.close(near)

    def words(self) -> list[bytes]:
        """Its words; none where the kernel does not say them, or the program has closed the file."""
        length = PREAD(self.file, self._words, len(self._words), 0)
        return self._words.raw[: max(length, 0)].split()

    def lacked(self) -> tuple[int, int]:
        """The ns that a thread had a processor, and those that it was ready to run without one; 0 if unknown."""
        words = self.words()
        return (int(words[0]), int(words[1])) if len(words) == 3 and b"".join(words).isdigit() else (0, 0)

    def close(self) -> None:
        """Close the file, unless the program has closed it: the number may be that of another one since."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.file), self._about):
                os.close(self.file)


def _instructions(code: Any, at: int) -> Iterator[tuple[str, str, tuple[Any, Any]]]:
    """The instructions up to ``at``: what each does, the name that it loads or "", and its line and column, which is
    None before Python 3.11, or far behind the function's beginning. They are read here because dis takes 1 ms for 1 KB,
    and keeps the lock."""
    first, extended, text = max(at - MOST_BYTES, 0), 0, code.co_code
    within = (*code.co_cellvars, *code.co_freevars)
    if hasattr(code, "co_positions"):
        within = (*code.co_varnames, *(one for one in within if one not in code.co_varnames))
    if hasattr(code, "co_positions") and at < NEAR_BYTES:
        places = [(one[0], one[2]) for one in itertools.islice(code.co_positions(), first // 2, at // 2 + 1)]
    else:
        starts, places = dis.findlinestarts(code), []
        line, (start, following) = 0, next(starts, (at + 2, 0))
        for offset in range(first, at + 2, 2):
            while start <= offset:
                line, (start, following) = following, next(starts, (at + 2, 0))
            places.append((line, None))
    for number, place in enumerate(places):
        does, low = opcode.opname[text[first + 2 * number]], text[first + 2 * number + 1]
        argument = extended << 8 | low
        extended = argument if does == "EXTENDED_ARG" else 0
        names = within if "DEREF" in does else code.co_varnames if "FAST" in does else code.co_names
        which = argument >> (sys.version_info >= FIRST_FLAGS.get(does, (9,)))
        if does not in ("EXTENDED_ARG", "CACHE"):
            yield does, "".join(names[which : which + 1]) if does.startswith("LOAD_") else "", place


def _waits_in(code: Any, at: int) -> str:
    """The waiting function that the instruction ``at`` calls, or "lock.acquire" where it begins "with lock:"; else "".

    It is named by the instructions before, without the file of the code. A call and what it calls begin at the same
    column. Where columns are not known it is the waiting function that the line names first.
    """
    *before, (does, _, wanted) = _instructions(code, at)
    chain, entering = list[str](), does in ENTERING
    for does, name, place in before:
        if place != wanted and not entering:
            continue
        if does in ATTRIBUTES:
            chain += [name] * bool(chain)
        elif does in NAMES:
            chain = [name]
        elif does.startswith(("CALL", "BINARY")) and "INTRINSIC" not in does:  # of their result nothing is known
            chain = []
        if wanted[1] is None and not entering and chain and chain[-1] in WAITING:
            break
    chain += ["acquire"] * (entering and bool(chain))
    return ".".join(chain) if chain and chain[-1] in WAITING else ""


def _has_packages(folder: str) -> bool:
    """Whether pip has installed packages into a folder."""
    with contextlib.suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


class Places:
    """Files of Python code: whether they are the program's own, and their names without the program's folder."""

    def __init__(self) -> None:
        self._typed = TYPED if getattr(sys, "argv", [])[:1] == ["-c"] else TYPED[:-1]
        self._own: dict[str, bool] = {}
        self._roots: list[str] = []  # the folder of the program, then the working folder: left out of names of files
        self._packages: tuple[str, ...] = ()  # folders into which `pip install --target` has put packages
        with contextlib.suppress(OSError):  # the working folder may be gone
            program = os.path.abspath(next(iter(getattr(sys, "argv", ())), ""))
            self._roots = [os.path.join(folder, "") for folder in (os.path.dirname(program), os.getcwd())]
            others = (os.path.join(os.path.abspath(folder), "") for folder in sys.path)
            self._packages = tuple(one for one in others if one not in self._roots and _has_packages(one))

    def is_own(self, file: str) -> bool:
        """Whether a file is of the program's own code."""
        own = self._own.get(file)
        if own is None:
            if len(self._own) >= MOST_LINES:  # code that is made at run time has new names again and again
                self._own.clear()
            own = not self.is_packaged(file) and not file.startswith(OTHERS)
            own = self._own[file] = own and (not file.startswith("<") or file.startswith(self._typed))
        return own

    def is_packaged(self, file: str) -> bool:
        """Whether a file is of a package, and not of Python's library."""
        return PACKAGES in file or file.startswith(self._packages)

    def short(self, file: str) -> str:
        """A file's path below the folder of packages or of the program, else with the folder that it is in."""
        if PACKAGES in file:
            return file.rpartition(PACKAGES)[2]
        for root in (*self._packages, *self._roots):
            if file.startswith(root):
                return file[len(root) :]
        return os.sep.join(file.split(os.sep)[-2:])


def code_of(frame: Any) -> list[Any]:
    """The code of a frame and of all frames that called it, from the innermost to the outermost."""
    code: list[Any] = []
    while frame is not None and len(code) < MOST_FRAMES:
        code.append(frame.f_code)
        frame = frame.f_back
    return code


class Sampler:
    """Makes rows of samples while a window is open, as ``shared`` says. ``ahead_ns`` says how far CUPTI's clock is
    ahead of Unix time, and is asked before each write because clocks drift. Calls of ``library`` give up Python's lock,
    those of ``keeping`` keep it. ``microbench_asked`` waits for a call of CUDA that asks which line makes it, and
    ``microbench_answer`` tells that call that its stack is looked at, or has been. After each call that gave up the
    lock, ``microbench_has_lock`` says that this thread has it again. ``calling`` gets the code of new
    stacks that ask."""

    def __init__(
        self, library: Any, keeping: Any, ahead_ns: Any, shared: Any, main_thread: int, calling: list[list[Any]]
    ) -> None:
        self._shared, self._main_thread, self._calling = shared, main_thread, calling
        self._called: set[int] = set()  # stacks of calls that have asked
        self._asked, self._write = library.microbench_asked, library.microbench_give_samples
        self._has_lock, self._answer = keeping.microbench_has_lock, keeping.microbench_answer
        self._lock_given, self._waits_for_lock = keeping.microbench_lock_given, keeping.microbench_waits_for_lock
        self._main_waits = keeping.microbench_main_waits
        self._begins, self._ends = keeping.microbench_samples, library.microbench_samples
        self._random = time.monotonic_ns() | 1  # the program's own random numbers stay as they are
        self.impossible: tuple[str, str] | None = None  # why samples are missing, and what to do
        self._measure_ahead_ns = ahead_ns
        self._lock = _thread.allocate_lock()
        self._ended = False
        self._ahead_ns = ahead_ns()
        self._written_ns = time.monotonic_ns()
        self._cells: list[bytes] = []
        self._frames: dict[tuple[int, int, int], int] = {}  # keys by the caller's key, the code's id, and the line
        self._code: dict[int, Any] = {}  # by its id, which stays its own as long as it is kept
        self._may_wait: dict[int, bool] = {}  # by the code's id too
        self._may_compute: set[int] = set()  # functions in C of packages that read and write, by their keys
        self._places = Places()
        self._collects_ns = 0  # when the collection of garbage that goes on began
        self._own = 0  # the thread that samples, and for how long it has collected the program's garbage since last
        self._collected_ns = 0
        # Now, the main thread on a processor, and ready to run, and all threads but this one on a processor; in ns.
        self._since: tuple[int, int, int, int] | None = None
        self._processor = [0, 0, 0]  # the same of all samples
        self._kept: list[Kept] = []  # what the kernel says of the main thread, of this one, and of the main one's call
        self._lacked_ns = 0
        self._sampled_ns = 0  # the last sample
        self._absent_ns = 0  # the end of the main thread's last time without a processor or the lock
        self._open: dict[int, list[int]] = {}  # by thread: frame, first and last time, samples, late ones, ones at work

    def begin(self) -> None:
        """Begin to sample; returns when the thread that does it has opened its files."""
        opened = _thread.allocate_lock()
        opened.acquire()
        start_thread(self._run, opened)
        opened.acquire()

    def _run(self, opened: Any) -> None:
        """Sample until ``finish``. Whatever goes wrong ends the samples and not the program."""
        with contextlib.suppress(Exception):
            try:
                bytearray(4096)  # at the first memory of a thread, old C libraries read the number of processors
                self._cells.append(cells.fact("cores", f"{_allowed_cores()} {os.cpu_count()}"))
                self._kept = [Kept(path) for path in (MAIN_THREADS, OWN, f"/proc/self/task/{os.getpid()}/syscall")]
                self._begins(1, self._kept[2].file)
            finally:
                opened.release()
            self._own = _thread.get_ident()
            gc.callbacks.append(self._collected)
            due_ns, lost_ns, takes_ns = time.monotonic_ns(), 0, 0.0
            while True:
                began_ns, before_ns, self._collected_ns = time.monotonic_ns(), time.thread_time_ns(), 0
                with self._lock:
                    if self._ended:
                        return
                    forbidden = no_frames()
                    self.impossible = forbidden or self.impossible
                    wanted = not forbidden and bool(self._shared.window_open)
                    self._shared.answers = wanted
                    held = self._sample(began_ns - due_ns) if wanted else (0, 0)
                    if wanted or self._since is not None:
                        self._account(wanted, *held)
                    own_ns = time.thread_time_ns() - before_ns - self._collected_ns
                    takes_ns += (max(own_ns, min(lost_ns, MOST_LOST_NS)) - takes_ns) / NEWEST
                    if began_ns - self._written_ns > WRITE_NS or len(self._cells) > MOST_WAITING:
                        self._ended = not self._flush()
                self._random = (self._random * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
                apart_ns = cells.SAMPLE_NS // 2 + (self._random >> 32) * cells.SAMPLE_NS // (1 << 32)
                due_ns = max(due_ns + apart_ns, began_ns + int(LEAST_PAUSE * takes_ns))  # after a slow write at once
                if not wanted:
                    self._asked(UNWANTED_S)
                    lost_ns = self._has_lock()
                while wanted and (left_ns := due_ns - time.monotonic_ns()) > 0:
                    asks = self._asked(left_ns * 1e-9)
                    lost_ns = self._has_lock()
                    if asks:
                        self._called_from()

    def finish(self) -> None:
        """End the samples and write those that wait."""
        self._ends(0, -1)
        with self._lock:
            self._ended, self._shared.answers = True, 0
            with contextlib.suppress(Exception):
                gc.callbacks.remove(self._collected)
            with contextlib.suppress(Exception):
                self._flush()
            for kept in self._kept:
                kept.close()

    def _sample(self, waited_ns: int) -> tuple[int, int]:
        """Record which functions each thread is in. The frames are let go at the end, and the lock is kept meanwhile.
        The main thread works where it left the lock for this, or is in no call of the kernel.
        Returns the frame of another thread for whose lock the main one waited, or 0, and for how many ns at most: where
        the kernel said so when the sample was due, or where it has come to want the lock since then.

        Who keeps Python's lock gives it up at the end of a call or a turn of a loop, so a late sample names the
        function that made it wait. What that function waits in by then came later. Nothing before gives the lock up.
        """
        now_ns, own = time.time_ns() + self._ahead_ns, _thread.get_ident()
        stacks = [(thread, *self._stack(frame)) for thread, frame in sys._current_frames().items() if thread != own]
        late, (_, lacked_ns) = waited_ns > cells.SAMPLE_NS, self._kept[1].lacked()
        kept, self._lacked_ns = late and waited_ns > 2 * (lacked_ns - self._lacked_ns), lacked_ns
        since_ns = now_ns - waited_ns if late else now_ns
        given, computes, lacks = bool(self._lock_given()), not self._in_kernel(), self._waits_for_lock(0)
        works = given or computes
        holder = self._without_lock(stacks, works, now_ns)
        back = kept and (given or self._main_waits()) and (self._main_thread, True) in (
            (thread & THREAD, runs == waits) for thread, runs, waits in stacks
        )  # fmt: skip
        for thread, runs, waits in stacks:
            number = thread & THREAD
            mains = works and number == self._main_thread
            innermost = runs if kept or (mains and computes and waits in self._may_compute) else waits
            run = self._open.get(number)
            begin_ns = since_ns
            if run is not None:
                if run[0] == innermost and run[2] <= now_ns and since_ns - run[2] <= cells.FOLLOWING_NS:
                    run[2:] = now_ns, run[3] + 1, run[4] + late, run[5] + mains
                    continue
                self._close(number, run)
                begin_ns = min(max(since_ns, run[2]), now_ns)
            self._open[number] = [innermost, begin_ns, now_ns, 1, late, mains]
        running = {thread & THREAD for thread, *_ in stacks}
        for number in self._open.keys() - running:  # another thread may get the number of one that has ended
            self._close(number, self._open.pop(number))
        if lacks > 0 or (lacks < 0 and kept):
            return holder, sys.maxsize
        return holder * back, waited_ns

    def _without_lock(self, stacks: list[tuple[int, int, int]], main_works: bool, now_ns: int) -> int:
        """Note which threads that call CUDA, without the main one, have waited for Python's lock since the last sample.

        If the main thread works, it had the lock. Else another thread that runs Python had it. Of several it is one
        whose place has changed since the last sample, because idle ones stay. Returns the frame of that one, or 0.
        """
        run = {thread & THREAD: runs for thread, runs, waits in stacks if runs and runs == waits}
        waiting = {number for number in run if number != self._main_thread and self._waits_for_lock(number)}
        others = {number: runs for number, runs in run.items() if number not in waiting and number != self._main_thread}
        if len(others) > 1:
            others = {one: runs for one, runs in others.items() if self._open.get(one, (0,))[0] != runs} or others
        other = next(iter(others.values()), 0)
        holder = (run.get(self._main_thread, 0) if main_works else 0) or other
        begin_ns = max(self._sampled_ns, now_ns - cells.FOLLOWING_NS)
        if holder and begin_ns < now_ns and len(self._cells) < MOST_WAITING:
            self._cells += [cells.locked(holder, begin_ns, now_ns, number) for number in waiting]
        self._sampled_ns = now_ns
        return other

    def _in_kernel(self) -> bool:
        """Whether the main thread is in a call of the kernel. True where the kernel does not tell."""
        return self._kept[2].words()[:1] != [b"running"]

    def _called_from(self) -> None:
        """Record the stack of the call that asks; not if it has gone on meanwhile."""
        with self._lock:
            if self._ended or no_frames() or not self._answer(0):
                return
            thread, at_ns = self._shared.thread, self._shared.at_ns
            frame = sys._current_frames().get(thread)
            self._shared.no_python = frame is None
            key, _ = self._stack(frame)
            if key not in self._called and len(self._calling) < MOST_CALLING:
                self._called.add(key)
                self._calling.append(code_of(frame))
            if self._answer(1) and key:
                self._cells.append(cells.called_from(thread & THREAD, key, at_ns))

    def _collected(self, phase: str, about: dict[str, int]) -> None:
        """Note a long collection of garbage; Python calls this before and after each."""
        now_ns = time.time_ns()
        if phase == "start":
            self._collects_ns = now_ns
            return
        own = _thread.get_ident() == self._own
        self._collected_ns += (now_ns - self._collects_ns) * own
        if self._since and len(self._cells) < MOST_WAITING and now_ns - self._collects_ns > SHORTEST_NS:
            begin_ns, end_ns = self._collects_ns + self._ahead_ns, now_ns + self._ahead_ns
            thread = (self._main_thread if own else _thread.get_ident()) & THREAD  # which waits for this one's lock
            self._cells.append(cells.collected(thread, begin_ns, end_ns, about.get("generation", 0)))

    def _account(self, goes_on: bool, holder: int = 0, most_ns: int = 0) -> None:
        """Count what the main thread had of the processors since the last time, and note when it had none.

        It had one until this thread got Python's lock from it, so what it ran is taken to lie around the wait. If it
        waited for that lock, which ``holder`` held, and others ran, its sleep is that wait, of ``most_ns`` at most.
        """
        now = time.monotonic_ns(), *self._kept[0].lacked(), time.process_time_ns() - time.thread_time_ns()
        if self._since is not None:
            passed_ns, ran_ns, ready_ns, all_ns = (now[at] - was for at, was in enumerate(self._since))
            had_ns = self._processor
            self._processor = [had_ns[0] + passed_ns, had_ns[1] + ran_ns, had_ns[2] + ready_ns]
            until_ns = time.time_ns() + self._ahead_ns
            slept_ns = min(max(passed_ns - ran_ns - ready_ns, 0), most_ns)
            slept_ns *= holder != 0 and 2 * (all_ns - ran_ns) > slept_ns
            for lacked_ns, end_ns, locked in (
                (ready_ns, until_ns - slept_ns - min(ran_ns, passed_ns) // 2, False), (slept_ns, until_ns, True),
            ):  # fmt: skip
                begin_ns = max(end_ns - lacked_ns, self._absent_ns)
                if lacked_ns > SHORTEST_NS and begin_ns < end_ns and len(self._cells) < MOST_WAITING:
                    row = cells.locked(holder, begin_ns, end_ns) if locked else cells.absent(begin_ns, end_ns)
                    self._cells.append(row)
                    self._absent_ns = end_ns
        self._since = now if goes_on else None

    def _close(self, thread: int, run: list[int]) -> None:
        """Make the row of samples that have ended."""
        self._cells.append(cells.samples(thread, *run))

    def _stack(self, frame: Any) -> tuple[int, int]:
        """The key of a frame and of all that called it, of the outermost known ones where too many are known; and that
        of the function in C in which it waits, the same without one."""
        while frame is not None and frame.f_code.co_filename.startswith(HERE):
            frame = frame.f_back  # Python calls the recorder when it collects garbage
        at = frame.f_lasti if frame is not None else -1
        places: list[tuple[Any, int | None]] = []
        while frame is not None and len(places) < MOST_FRAMES:
            places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = 0
        for code, line in reversed(places):
            place = key, id(code), line or code.co_firstlineno
            known = self._frames.get(place)
            if known is None:
                if len(self._frames) >= MOST_LINES:
                    return key, key
                known = self._frames[place] = len(self._frames) + 1
                self._code[id(code)] = code
                own = self._places.is_own(code.co_filename)
                name = code.co_name if own else getattr(code, "co_qualname", code.co_name).replace(LOCALS, "")
                words = f"{key} {cells.OWN * own}{self._places.short(code.co_filename)}:{place[2]} {name}"
                self._cells.append(cells.text(cells.FRAME, known, words))
            key = known
        if not places:
            return key, key
        code, _ = places[0]
        may_wait = self._may_wait.get(id(code))
        if may_wait is None:
            may_wait = self._may_wait[id(code)] = _may_wait(code)
        if not may_wait or at < 0:
            return key, key
        place = key, -1, at
        known = self._frames.get(place)
        if known is None:
            called = _waits_in(code, at)
            known = self._frames[place] = len(self._frames) + 1 if called else key
            if called:
                self._cells.append(cells.text(cells.FRAME, known, f"{key} {called}"))
                if called.rpartition(".")[2] in FILES and self._places.is_packaged(code.co_filename):
                    self._may_compute.add(known)
        return key, known

    def _flush(self) -> bool:
        """Write all rows, also of samples that may go on. Returns whether the recording goes on."""
        for thread, run in self._open.items():
            self._close(thread, run)
        self._open.clear()
        if self._since is not None:
            self._account(True)
        if self._processor[0]:  # also of a window that has ended by now
            self._cells.append(cells.fact("processor", " ".join(map(str, self._processor))))
        whole, self._cells = b"".join(self._cells), []
        self._written_ns, self._ahead_ns = time.monotonic_ns(), self._measure_ahead_ns()
        goes_on = bool(self._write(whole, len(whole)))
        self._has_lock()
        return goes_on

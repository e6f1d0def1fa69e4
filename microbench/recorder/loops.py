"""Notes when each turn of a Python loop ends in which the program submits work, by sys.monitoring (Python 3.12 on).

A thread of its own looks at the stacks of the other threads a few times a second, and at some that call CUDA, as those
of coroutines, which wait elsewhere. It asks Python to report the jumps in the code that it finds there. Python reports
a jump forward once and a jump backward, which ends a turn, each time (0.7 us). Of a loop with more than FASTEST turns a
second only MOST_TURNS are noted in a window, and again each AGAIN_NS in a pause.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time
from opcode import opmap
from typing import Any

from . import cells
from .sampler import HERE, THREAD, Places, code_of, no_frames

TOOLS = (4, 3)  # numbers of sys.monitoring that no other tool has reserved
EVERY_S = 0.05
WRITE_NS = 500_000_000
MOST_CODE = 2000  # functions that are observed
GENERATOR = 0x20  # inspect.CO_GENERATOR
MOST_TURNS, FASTEST = 256, 400
AGAIN_NS = 250_000_000  # after which turns of fast loops are noted again in a pause
MOST_WAITING = 100_000  # turns; in a forked child nobody writes them
MODULES = os.path.join("torch", "nn", "modules", "module.py")  # calls the code of PyTorch's modules


class Loops:
    """Makes rows of the turns of loops. ``write`` takes cells and says whether the recording goes on; ``ahead_ns`` says
    how far CUPTI's clock is ahead of Unix time. ``shared`` is what the library tells."""

    def __init__(self, write: Any, ahead_ns: Any, shared: Any) -> None:
        self._write, self._ahead_ns, self._shared = write, ahead_ns, shared
        self._lock = _thread.allocate_lock()
        self._ended = False
        self._in_window, self._anew_ns = 1, 0  # as the library said last; when turns were last noted anew
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._tool = -1
        self._dynamo: Any = None  # of PyTorch, which compiles Python frames
        self._places = Places()
        self._observed: dict[int, Any] = {}  # code by its id, which stays its own as long as it is kept
        self._beneath: set[int] = set()
        # By code and target of a jump: key, turns, the time of their first one, target, place of the first jump, and
        # whether it is a for loop.
        self._loops: dict[tuple[int, int], list[int]] = {}
        self._turns: list[tuple[int, int, int, int]] = []
        self._texts: list[bytes] = []
        self.calling: list[list[Any]] = []  # the code of stacks that call CUDA, the innermost first

    def run(self) -> None:
        """Observe loops from the first launch until ``finish``. What goes wrong ends this and not the program."""
        monitoring = self._monitoring
        if monitoring is None:
            return
        with contextlib.suppress(Exception):
            while not self._shared.has_launched:
                time.sleep(EVERY_S)
                if self._ended:
                    return
            self._tool = next(tool for tool in TOOLS if monitoring.get_tool(tool) is None)
            monitoring.use_tool_id(self._tool, "microbench")
            monitoring.register_callback(self._tool, monitoring.events.JUMP, self._jumped)
            self._dynamo = getattr(getattr(sys.modules.get("torch"), "_C", None), "_dynamo", None)
            with contextlib.suppress(Exception):
                self._dynamo.eval_frame.skip_code(Loops._jumped.__code__)
            written_ns = time.monotonic_ns()
            while True:
                with self._lock:
                    if self._ended:
                        return
                    if no_frames() is None:
                        self._observe()
                    self._follow()
                    if time.monotonic_ns() - written_ns > WRITE_NS:
                        written_ns = time.monotonic_ns()
                        self._ended = not self._flush()
                time.sleep(EVERY_S)

    def _follow(self) -> None:
        """Note turns of fast loops again when a window or a pause begins, and now and then in a pause."""
        in_window, now_ns = self._shared.window_open, time.monotonic_ns()
        anew = in_window != self._in_window or (not in_window and now_ns - self._anew_ns > AGAIN_NS)
        self._in_window = in_window
        if anew:
            self._anew_ns = now_ns
            for (code, _), loop in list(self._loops.items()):
                if loop[1] >= MOST_TURNS:
                    for events in (0, self._monitoring.events.JUMP):
                        self._monitoring.set_local_events(self._tool, self._observed[code], events)
                loop[1] = 0

    def finish(self) -> None:
        """End the observation and write what waits."""
        with self._lock:
            self._ended = True
            with contextlib.suppress(Exception):
                if self._tool >= 0:
                    for code in self._observed.values():
                        self._monitoring.set_local_events(self._tool, code, 0)
                    self._monitoring.free_tool_id(self._tool)
                    self._flush()

    def _observe(self) -> None:
        """Observe all code that a thread is in now."""
        own = _thread.get_ident()
        for thread, innermost in sys._current_frames().items():
            if thread == own:
                continue
            self._see(code_of(innermost))
        while self.calling:
            self._see(self.calling.pop())

    def _see(self, stack: list[Any]) -> None:
        beneath = False
        for code in reversed(stack):
            beneath = beneath or code.co_filename.endswith(MODULES)
            if code.co_filename.startswith(HERE) or len(self._observed) >= MOST_CODE:
                continue
            if id(code) not in self._observed:
                self._observed[id(code)] = code
                if beneath:
                    self._beneath.add(id(code))
                self._monitoring.set_local_events(self._tool, code, self._monitoring.events.JUMP)

    def _jumped(self, code: Any, offset: int, target: int) -> Any:
        """The program jumps within a function. What goes wrong here must not reach it."""
        if target > offset or len(self._turns) > MOST_WAITING:
            return self._monitoring.DISABLE
        try:
            if (id(code), target) not in self._loops:
                self._first(code, offset, target)
            now_ns = time.time_ns()
            loop = self._loops[id(code), target]
            if loop[1] == 0:
                loop[2] = now_ns
            loop[1] += 1
            fast = loop[1] >= MOST_TURNS and (now_ns - loop[2]) * FASTEST < loop[1] * 1_000_000_000
            self._turns.append((loop[0], _thread.get_ident(), now_ns, int(fast)))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            fast = True
        return self._monitoring.DISABLE if fast else None

    def _first(self, code: Any, offset: int, target: int) -> None:
        """Note a loop at its first turn. torch.compile must not take this code for the program's."""
        before: Any = None
        with contextlib.suppress(Exception):
            before = self._dynamo.eval_frame.set_eval_frame(None)
        try:
            self._new(code, offset, target)
        finally:
            with contextlib.suppress(Exception):
                self._dynamo.eval_frame.set_eval_frame(before)

    def _new(self, code: Any, offset: int, target: int) -> None:
        """A loop that turns for the first time, or that has a second jump: a while loop with ``continue`` has two that
        overlap. Loops within each other seldom do."""
        iterates = code.co_code[target] == opmap["FOR_ITER"]
        for (other, _), loop in self._loops.items():
            (first, end), (second, later) = sorted(((loop[3], loop[4]), (target, offset)))
            if other == id(code) and first < second <= end < later and not iterates and not loop[5]:
                self._loops[other, target] = loop
                return
        # The jump of a while loop is at its condition, and the target is its body.
        places = (target,) if iterates else (target, offset)
        lines = [line for begin, end, line in code.co_lines() for at in places if begin <= at < end and line]
        file = code.co_filename
        own = self._places.is_own(file) and not code.co_flags & GENERATOR  # whose consumer has a loop too
        kind = cells.BENEATH if id(code) in self._beneath else cells.OWN if own else ""
        loop = self._loops[id(code), target] = [len(self._loops) + 1, 0, 0, target, offset, iterates]
        place = f"{self._places.short(file)}:{min(lines, default=code.co_firstlineno)} {code.co_name}"
        self._texts.append(cells.text(cells.LOOP, loop[0], kind + place))

    def _flush(self) -> bool:
        """Write what waits. Returns whether the recording goes on."""
        texts, self._texts = self._texts, []
        turns, self._turns = self._turns, []
        ahead_ns = self._ahead_ns()
        rows = (cells.turn(thread & THREAD, loop, at_ns + ahead_ns, last) for loop, thread, at_ns, last in turns)
        return bool(self._write(b"".join((*texts, *rows))))

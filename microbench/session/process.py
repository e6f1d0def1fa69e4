"""WorkerProcess: the parent's end of a worker. It starts the process, exchanges messages, notices a crash or a hang,
and makes sure that the process ends."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import msgspec

from microbench.core.errors import MicrobenchError
from microbench.core.units import plain
from microbench.session.messages import Busy, Job, Message, Order

# Placeholder in a variable's value for an empty temporary folder, which is removed when the process ends.
SCRATCH = "{scratch}"
STDERR_TAIL_BYTES = 8192
READ_BYTES = 1 << 16
LOOK_EVERY_S = 1.0
# Interval after the end of output, because the exit code comes later than the last byte.
LOOK_SOON_S = 0.01
LONGEST_LINE_BYTES = 256 << 20


@dataclass(frozen=True)
class Patience:
    """The longest waits for a worker's next message, for its first message or the one after Busy, for a stopped worker
    (SIGSTOP) to continue, for an idle worker to exit, and for a killed worker to end."""

    silent_s: float = 60.0
    busy_s: float = 180.0
    stopped_s: float = 10.0
    leave_s: float = 5.0
    killed_s: float = 10.0

    @classmethod
    def of(cls, silent_s: float | None) -> Self:
        """The usual waits, or those of a case that gives no sign of life for so long at the most."""
        return cls(silent_s=silent_s, busy_s=silent_s) if silent_s else cls()


@dataclass(frozen=True)
class Seams:
    """The parts of a run that tests replace. ``benchmarks`` names the package of benchmarks, ``backend`` the module
    that opens devices."""

    benchmarks: str = "microbench.benchmarks"
    backend: str = "microbench.gpu.open"
    patience: Patience = field(default_factory=Patience)


class WorkerCrashedError(Exception):
    """The worker exited or sent an invalid message. The text names the exit status and quotes the end of stderr."""


class WorkerSilentError(Exception):
    """The worker was stopped or sent nothing for too long, and was killed."""


class UnkillableWorkerError(MicrobenchError):
    """A killed worker still exists: it hangs inside the driver, where another worker would hang too."""


class WorkerProcess:
    """A worker in a process group of its own, so that a terminal's Ctrl-C does not reach it."""

    def __init__(self, job: Job, variables: Mapping[str, str], patience: Patience, python: str = "") -> None:
        """Start ``job`` with ``variables`` added to the environment.

        ``python`` is another interpreter, whose environment has a microbench of its own.
        Raises MicrobenchError if the system cannot start a process.
        """
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.began_s = time.monotonic()
        self._patience = patience
        self._wait_s = patience.busy_s  # the first message comes after the packages are imported
        self._look_every_s = LOOK_EVERY_S
        self._buffer = bytearray()
        self._errors = bytearray()
        try:
            if any(SCRATCH in value for value in variables.values()):
                self._scratch = tempfile.TemporaryDirectory(prefix="microbench-", ignore_cleanup_errors=True)
            folder = self._scratch.name if self._scratch else ""
            filled = {name: value.replace(SCRATCH, folder) for name, value in variables.items()}
            imported = {} if python else {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(
                [python or sys.executable, "-P", "-m", "microbench.session.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # The worker imports from where the parent does, not from the current folder (-P).
                env={**os.environ, **imported, **filled},
                process_group=0,
            )
        except OSError as error:
            cause = f"no worker process can be started: {error}"
            raise MicrobenchError(cause, "free memory or end other processes, then try again") from None
        self._streams = selectors.DefaultSelector()
        for stream, sink in ((self._process.stdout, self._buffer), (self._process.stderr, self._errors)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._streams.register(stream, selectors.EVENT_READ, sink)
        self._send(job)

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        """Let a waiting worker open its device."""
        assert self._process.stdin is not None
        self.began_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")

    def order(self, order: Order) -> None:
        """Let the worker measure a case. If it has died, the next ``receive`` raises."""
        self._send(order)

    def _send(self, message: Job | Order) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    def receive(self, longest_s: float | None = None) -> Message:
        """The next message.

        Raises WorkerCrashedError if the worker exited, WorkerSilentError if it was stopped or silent for longer than
        ``patience`` or ``longest_s``, UnkillableWorkerError if it then could not be killed. After the first two errors
        the process is gone.
        """
        wait_s = left_s = self._wait_s if longest_s is None else min(self._wait_s, longest_s)
        stopped_s = 0.0
        while (end := self._buffer.find(b"\n")) < 0 and len(self._buffer) < LONGEST_LINE_BYTES:
            if left_s <= 0 or stopped_s >= self._patience.stopped_s:
                self.end()
                words = f"no sign of life for {wait_s:.3g} s" if left_s <= 0 else f"stopped for {stopped_s:.3g} s"
                raise WorkerSilentError(words + self._stderr_tail())
            state = self._state()
            look_s = 0.0 if state == "ended" else min(left_s, self._look_every_s)
            began_s = time.monotonic()
            if not self._read(look_s) and state == "ended":
                self.end()
                raise WorkerCrashedError(self._exit_words() + self._stderr_tail())
            # Time in which this process was stopped (Ctrl-Z) or the machine suspended does not count.
            passed_s = min(time.monotonic() - began_s, look_s)
            left_s -= passed_s
            stopped_s = stopped_s + passed_s if state == "stopped" else 0.0
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message: Message = msgspec.json.decode(line, type=Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.end()
            shown = plain(line[:80].decode(errors="replace"))
            raise WorkerCrashedError(f"the worker sent an invalid message: {shown}{self._stderr_tail()}") from None
        self._wait_s = self._patience.busy_s if isinstance(message, Busy) else self._patience.silent_s
        return message

    def _read(self, timeout_s: float) -> bool:
        """Read from both streams for at most that time; False if nothing came."""
        came = False
        for key, _ in self._streams.select(timeout_s):
            data = os.read(key.fd, READ_BYTES)
            came = came or bool(data)
            key.data.extend(data)
            if not data:
                self._streams.unregister(key.fileobj)
                self._look_every_s = LOOK_SOON_S
        del self._errors[:-STDERR_TAIL_BYTES]
        return came

    def _stderr_tail(self) -> str:
        lines = [line.strip() for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
        return f": {' | '.join(map(plain, lines[-3:]))}" if lines else ""

    def _exit_words(self) -> str:
        code = self._process.returncode
        with contextlib.suppress(ValueError):
            return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def _state(self) -> Literal["running", "stopped", "ended"]:
        """The state. An ended process is not reaped yet, so that no other group gets its id before the kill."""
        if self._process.returncode is not None:
            return "ended"
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:  # where SIGCHLD is ignored, the kernel has reaped it already
            return "ended"
        if found is None or found.si_code == os.CLD_TRAPPED:  # a debugger may stop it for any time
            return "running"
        return "stopped" if found.si_code == os.CLD_STOPPED else "ended"

    def leave(self) -> None:
        """Let the worker begin to exit; ``close`` waits for it."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """Let the worker exit by itself, then kill what is left. Raises UnkillableWorkerError."""
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
            deadline_s = time.monotonic() + self._patience.leave_s
            while self._state() != "ended" and time.monotonic() < deadline_s:
                self._read(LOOK_SOON_S)
        self.end()

    def end(self) -> None:
        """Kill what is left of the process group and reap it. Raises UnkillableWorkerError."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(self._patience.killed_s)
        except subprocess.TimeoutExpired:
            cause = f"worker process {self.pid} cannot be killed: it hangs inside the driver or the kernel"
            next_step = f"see `ps -o stat,wchan -p {self.pid}` and the kernel log; if it stays, restart the machine"
            raise UnkillableWorkerError(cause, next_step) from None
        finally:
            while self._streams.get_map() and self._read(0.0):
                pass
            self._streams.close()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
            if self._scratch:
                self._scratch.cleanup()

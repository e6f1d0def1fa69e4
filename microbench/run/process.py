"""A worker process as the parent holds it: started, talked to, found dead or silent, ended for certain."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from microbench.core.errors import MicrobenchError
from microbench.core.units import plain
from microbench.run.messages import Busy, Job, Message, Order

# Stands in a variable's value for a folder that is made for this process and removed with it (an empty cache).
SCRATCH = "{scratch}"
STDERR_KEPT_BYTES = 8192
STDERR_LINES_TOLD = 3
READ_BYTES = 1 << 16
LOOK_EVERY_S = 1.0
# After end of output: the exit code comes later than the last byte.
LOOK_SOON_S = 0.01
LONGEST_LINE_BYTES = 256 << 20


@dataclass(frozen=True)
class Patience:
    """How long to wait for a worker: for its next line, for a line after it said that it is busy (or has not said
    anything yet), for it to leave when it has nothing to do, and for it to be gone when killed."""

    silent_s: float = 60.0
    busy_s: float = 180.0
    leave_s: float = 5.0
    killed_s: float = 10.0


class WorkerCrashedError(Exception):
    """The worker ended, or said what is no message: the text is how, and its last words."""


class WorkerSilentError(Exception):
    """The worker gave no sign of life for too long, and was killed."""


class UnkillableWorkerError(MicrobenchError):
    """A killed worker is still there: it hangs inside the driver, and any other one would hang beside it."""


class WorkerProcess:
    """A worker in a process group of its own, which a terminal's Ctrl-C does not reach."""

    def __init__(
        self,
        job: Job,
        variables: Mapping[str, str],
        patience: Patience,
        kill: Callable[[int, int], None] = os.killpg,
    ) -> None:
        """Start it on ``job`` with ``variables`` added to the environment. ``kill`` sends a signal to a group.

        Raises MicrobenchError when the system starts no process.
        """
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.began_s = time.monotonic()
        self._patience = patience
        self._kill = kill
        self._wait_s = patience.busy_s  # nothing is heard before the packages are imported
        self._look_every_s = LOOK_EVERY_S
        self._buffer = bytearray()
        self._errors = bytearray()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "microbench.run.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # The worker imports from where the parent does, not from the folder it happens to run in (-P).
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self._filled(variables)},
                process_group=0,
            )
        except OSError as error:
            raise MicrobenchError(f"no worker process can be started: {error}", "free memory or processes") from None
        self._streams = selectors.DefaultSelector()
        for stream, sink in ((self._process.stdout, self._buffer), (self._process.stderr, self._errors)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._streams.register(stream, selectors.EVENT_READ, sink)
        self._say(msgspec.json.encode(job))

    def _filled(self, variables: Mapping[str, str]) -> dict[str, str]:
        if self._scratch is None and any(SCRATCH in value for value in variables.values()):
            self._scratch = tempfile.TemporaryDirectory(prefix="microbench-", ignore_cleanup_errors=True)
        folder = self._scratch.name if self._scratch else ""
        return {name: value.replace(SCRATCH, folder) for name, value in variables.items()}

    @property
    def pid(self) -> int:
        """Its process id, and its group's."""
        return self._process.pid

    def order(self, order: Order) -> None:
        """Have it measure a case. If it has died meanwhile, the next ``receive`` tells."""
        self._say(msgspec.json.encode(order))

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")

    def receive(self) -> Message:
        """Its next message.

        Raises WorkerCrashedError when it ended instead, WorkerSilentError when it said nothing for as long as patience
        lasts, UnkillableWorkerError when it then could not be killed either. After any of them it is gone.
        """
        deadline_s = time.monotonic() + self._wait_s
        while (end := self._buffer.find(b"\n")) < 0 and len(self._buffer) < LONGEST_LINE_BYTES:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self.end()
                raise WorkerSilentError(f"no sign of life for {self._wait_s:g} s{self._last_words()}")
            ended = self._has_ended()
            if not self._read(0.0 if ended else min(left_s, self._look_every_s)) and ended:
                raise WorkerCrashedError(self._how_it_ended())
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message: Message = msgspec.json.decode(line, type=Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.end()
            shown = plain(line[:80].decode(errors="replace"))
            raise WorkerCrashedError(f"the worker sent what is no message: {shown}{self._last_words()}") from None
        self._wait_s = self._patience.busy_s if isinstance(message, Busy) else self._patience.silent_s
        return message

    def _read(self, timeout_s: float) -> bool:
        """Take what has come on both streams within that time; False if nothing did."""
        came = False
        for key, _ in self._streams.select(timeout_s):
            data = os.read(key.fd, READ_BYTES)
            came = came or bool(data)
            key.data.extend(data)
            if not data:
                self._streams.unregister(key.fileobj)
                self._look_every_s = LOOK_SOON_S
        del self._errors[:-STDERR_KEPT_BYTES]
        return came

    def _how_it_ended(self) -> str:
        self.end()
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
        return f"{how}{self._last_words()}"

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._errors.decode(errors="replace").splitlines() if line.strip()]
        return "".join(
            f"{': ' if not index else ' | '}{plain(line)}" for index, line in enumerate(lines[-STDERR_LINES_TOLD:])
        )

    def _has_ended(self) -> bool:
        """True once it is a zombie. Not reaped: its group's number must stay its own until the group is killed."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def close(self) -> None:
        """Let it leave by itself, then make sure. Raises UnkillableWorkerError."""
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
            deadline_s = time.monotonic() + self._patience.leave_s
            while not self._has_ended() and time.monotonic() < deadline_s:
                self._read(LOOK_SOON_S)
        self.end()

    def end(self) -> None:
        """Kill what is left of its process group and reap it. Raises UnkillableWorkerError."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(OSError):
            self._kill(self.pid, signal.SIGKILL)
        try:
            self._process.wait(self._patience.killed_s)
        except subprocess.TimeoutExpired:
            raise UnkillableWorkerError(
                f"worker process {self.pid} cannot be killed: it hangs inside the driver or the kernel",
                f"see `ps -o stat,wchan -p {self.pid}` and the kernel log; if it stays, restart the machine",
            ) from None
        finally:
            self._release()

    def _release(self) -> None:
        while self._streams.get_map() and self._read(0.0):
            pass
        self._streams.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if self._scratch:
            self._scratch.cleanup()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""A command that runs in the job of this process: it gets its signals once, and both stop and go on together."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from microbench.core.errors import UsageError
from microbench.core.units import plain

PASSED_ON = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
HELD = PASSED_ON | {signal.SIGCHLD}
# These do not end a process that has no handler for them.
HARMLESS = {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
}  # fmt: skip
PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}
CALLER_IGNORES = "microbench_caller_ignores"  # see microbench/__main__.py
LONGEST_WAIT_S = 1.0
GROUP_S = 0.02  # after which a signal to the group has reached all of it
SEEN = struct.Struct("iid")  # a signal, who sent it, and when
ASK = signal.SIGRTMAX  # what the witness is asked by: of several signals a process gets the highest one last
SEEN_S = 2.0  # after which another signal of the same sender is another one
LOOK_S = 0.02
PR_SET_PDEATHSIG = 1


def ignored_by_caller() -> set[int]:
    """The signals that are ignored where the command runs alone."""
    mask = sys._xoptions.get(CALLER_IGNORES)
    if isinstance(mask, str):
        return {number for number in PASSED_ON | {signal.SIGCHLD} if int(mask, 16) >> (number - 1) & 1}
    return {number for number in HELD - PYTHON_IGNORES if signal.getsignal(number) == signal.SIG_IGN}


class Job:
    """A command that has begun. Signals must be blocked (program.signals_held); ``before`` were those blocked before.

    Raises UsageError if the command cannot be run.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], before: set[int]) -> None:
        ignored = ignored_by_caller()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

        def as_alone() -> None:
            for number in HELD:
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        how: dict[str, Any] = {"env": environment, "preexec_fn": as_alone, "close_fds": False, "restore_signals": False}
        self._reading, writing = os.pipe()
        self._seen: list[tuple[int, int, float]] = []
        self._witness = 0
        try:
            with _forking():
                self._witness = self._fork_witness(writing)
                try:  # not by posix_spawn: glibc's has the command ignore two signals of its own
                    self._process = subprocess.Popen(command, **how)
                except OSError as error:
                    if error.errno != errno.ENOEXEC:
                        raise
                    script = shutil.which(command[0]) or command[0]  # without a first line that names its interpreter
                    self._process = subprocess.Popen(["/bin/sh", script, *command[1:]], **how)
        except OSError as error:
            self._dismiss()
            raise UsageError(
                f"{plain(command[0])} cannot be run: {error.strerror}", "microbench watch -- python train.py"
            ) from error
        finally:
            os.close(writing)

    def wait(self, meanwhile: Callable[[], None]) -> int:
        """Wait for the end of the command; the status that it ends with. ``meanwhile`` is called about once a second.

        A signal of the terminal, such as Ctrl-C, and any that is sent to the whole group, goes to the command too, so
        it has it already. Each other one that reaches this process is passed on. None of them ends this process first.
        """
        try:
            while True:
                ended, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
                while ended and os.WIFSTOPPED(status):
                    ended, status = self._stop_too(os.WSTOPSIG(status))
                if ended and not os.WIFCONTINUED(status):
                    self._process.returncode = os.waitstatus_to_exitcode(status)
                    return self._process.returncode
                # A thread of another library may have taken the signal of a command that ended before this line.
                received = signal.sigtimedwait(HELD, LONGEST_WAIT_S)
                if received is None:
                    meanwhile()
                elif received.si_signo != signal.SIGCHLD and self._is_for_us_alone(received):
                    os.kill(self._process.pid, received.si_signo)
        finally:
            self._dismiss()
            while signal.sigtimedwait(HELD, 0):  # signals that came too late for the command must not end this process
                pass

    def _is_for_us_alone(self, received: signal.struct_siginfo) -> bool:
        """Whether the command did not get the signal too. A timer of alarm() outlives exec, but children have none."""
        if received.si_code > 0:
            return received.si_signo == signal.SIGALRM
        if received.si_pid == self._process.pid:
            return False  # it does not mean itself by its parent
        time.sleep(GROUP_S)
        os.kill(self._witness, ASK)
        while select.select([self._reading], [], [], SEEN_S)[0]:
            data = os.read(self._reading, SEEN.size)
            if len(data) < SEEN.size or SEEN.unpack(data)[:2] == (
                ASK,
                os.getpid(),
            ):  # the answer, or the witness is gone
                break
            self._seen.append(SEEN.unpack(data))
        for one in self._seen:
            if one[:2] == (received.si_signo, received.si_pid):
                self._seen.remove(one)
                return False
        self._seen = [one for one in self._seen if time.monotonic() - one[2] < SEEN_S]
        return True

    def _fork_witness(self, writing: int) -> int:
        """Begin a process that tells what is sent to the whole group: it gets that too."""
        parent = os.getpid()
        witness = os.fork()
        if witness:
            return witness
        try:
            os.closerange(0, writing)
            os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            while os.getppid() == parent:
                received = signal.sigtimedwait(HELD, LONGEST_WAIT_S)
                if received is not None and received.si_code <= 0:
                    os.write(writing, SEEN.pack(received.si_signo, received.si_pid, time.monotonic()))
        finally:
            os._exit(0)

    def _dismiss(self) -> None:
        """End the witness."""
        os.close(self._reading)
        if self._witness:
            os.kill(self._witness, signal.SIGKILL)
            os.waitpid(self._witness, 0)

    def _stop_too(self, number: int) -> tuple[int, int]:
        """Stop this process as the command has stopped, for a shell to see, until either of them is let go on. Gives
        what became of the command, as waitpid does."""
        parent, command = os.getpid(), self._process.pid
        with _forking():
            helper = os.fork()
        if not helper:
            try:
                while os.getppid() == parent and _is_stopped(command):
                    time.sleep(LOOK_S)
                while os.getppid() == parent:
                    os.kill(parent, signal.SIGCONT)
                    time.sleep(LOOK_S)
            finally:
                os._exit(0)
        for how in (number, signal.SIGSTOP):
            if how != signal.SIGSTOP:
                handler = signal.signal(how, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {how})
            os.kill(parent, how)
            if how != signal.SIGSTOP:
                signal.pthread_sigmask(signal.SIG_BLOCK, {how})
                signal.signal(how, handler)
            if signal.sigtimedwait({signal.SIGCONT}, 0):
                break  # a terminal's stop is without effect where no shell waits for the group
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)
        time.sleep(LOOK_S)  # a shell lets the whole group go on
        stopped = _is_stopped(command)
        ended, status = os.waitpid(command, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if stopped and not ended:  # it has not stopped anew
            os.kill(command, signal.SIGCONT)
        return ended, status


@contextmanager
def _forking() -> Iterator[None]:
    """Fork without Python's warning about threads, such as those of NumPy: what follows is an exec, or little."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _is_stopped(process: int) -> bool:
    with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"T"
    return False

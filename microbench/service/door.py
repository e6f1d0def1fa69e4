"""Asks for a recording of a running program, and answers who asks: a socket in the user's run folder."""

import contextlib
import json
import os
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from microbench.core.errors import UsageError
from microbench.core.units import as_time

MOST_BYTES, MOST_ANSWERED = 1 << 12, 1 << 24  # of a request and an answer
MOST_GUESTS = 8
PATIENCE_S = 5.0  # in which a request has come whole
LONGEST_S, LEAST_S = 600.0, 0.05
CREDENTIALS = struct.Struct("iII")  # process, user and group of the other side: struct ucred
ANOTHER = "name another folder by XDG_RUNTIME_DIR"
NEXT_STEP = "start it by: microbench watch --dormant -- COMMAND"


def folders() -> list[Path]:
    """Where the sockets may be: a login shell has a folder of the user's, a service often has none."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    other = Path(tempfile.gettempdir()) / f"microbench-{os.getuid()}"
    return [Path(base) / "microbench", other] if base else [other]


def run_folder() -> Path:
    """The folder of the sockets, which only this user may enter. Raises UsageError."""
    folder = folders()[0]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}", ANOTHER) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(f"{folder} is not this user's alone", ANOTHER)
    return folder


class Door:
    """Listens for this process. ``record`` gets how long to record in s, and what says whether the asker still wants
    it; it gives what is answered, and is called from threads."""

    def __init__(self, record: Callable[[float, Callable[[], bool]], Mapping[str, Any]]) -> None:
        self._record = record
        folder = run_folder()
        self._path = folder / f"{os.getpid()}.sock"
        for path in folder.glob("*.sock"):  # of a process that was killed
            if path == self._path or not _answers(path):
                path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(self._path))
        except OSError as error:
            raise UsageError(f"{self._path} cannot be used: {error}", ANOTHER) from error
        finally:
            os.umask(before)
        self._socket.listen(MOST_GUESTS)
        self._guests = threading.BoundedSemaphore(MOST_GUESTS)
        self._closed = False

    def open(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                guest, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                continue
            if not self._guests.acquire(blocking=False):
                with guest, contextlib.suppress(OSError):
                    guest.sendall(json.dumps({"error": f"{MOST_GUESTS} others ask already"}).encode() + b"\n")
                continue
            threading.Thread(target=self._talk, args=(guest,), daemon=True).start()

    def _talk(self, guest: socket.socket) -> None:
        """Answer one request. Whatever the other side sends or does, this process goes on."""
        try:
            with guest, contextlib.suppress(OSError):
                _, user, _ = CREDENTIALS.unpack(
                    guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
                )
                if user not in (0, os.getuid()):
                    return
                guest.settimeout(PATIENCE_S)
                try:
                    asked_s = _asked(_line(guest, MOST_BYTES))
                except (ValueError, RecursionError):
                    answer: Mapping[str, Any] = {"error": "the request is not one of microbench watch --attach"}
                else:
                    guest.settimeout(0)
                    answer = self._record(asked_s, lambda: not _has_closed(guest))
                guest.settimeout(PATIENCE_S)
                guest.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            self._guests.release()


def _has_closed(side: socket.socket) -> bool:
    """Whether the other side of a socket that does not block sends no more: it has ended, or was interrupted."""
    try:
        return side.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _answers(path: Path) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as side:
        try:
            side.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return path.is_socket()
    return True


def _line(side: socket.socket, most_bytes: int) -> bytes:
    """What the other side sends, up to the end of a line. Raises ValueError for too much, and for half a line."""
    data = b""
    while not data.endswith(b"\n"):
        try:
            part = side.recv(MOST_BYTES)
        except ConnectionResetError:  # it has closed without having read all, but what it sent is still there
            part = side.recv(MOST_BYTES)
        data += part
        if not part or len(data) > most_bytes:
            raise ValueError
    return data


def _asked(line: bytes) -> float:
    """The time that is asked for in s. Raises ValueError and RecursionError."""
    asked = json.loads(line)
    seconds = asked.get("for_s") if isinstance(asked, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not LEAST_S <= seconds <= LONGEST_S:
        raise ValueError
    return float(seconds)


def ask(process: int, for_s: float) -> dict[str, Any]:
    """Have the `microbench watch` that runs a process record all its processes for some seconds, or until Ctrl-C, and
    give its answer. Raises UsageError."""
    if not LEAST_S <= for_s <= LONGEST_S:
        raise UsageError(f"--for {as_time(for_s)} is too short or too long to attach", "--for 5s, of 0.05s to 600s")
    for watch in _with_parents(process):
        path = next((one / f"{watch}.sock" for one in folders() if (one / f"{watch}.sock").exists()), None)
        if path is None:
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as side:
            try:
                side.connect(str(path))
                with contextlib.suppress(BrokenPipeError):  # it has answered before it was asked: it has no time
                    side.sendall(json.dumps({"for_s": for_s}).encode() + b"\n")
                try:
                    line = _line(side, MOST_ANSWERED)
                except KeyboardInterrupt:
                    side.shutdown(socket.SHUT_WR)
                    line = _line(side, MOST_ANSWERED)
                answer = json.loads(line)
            except ConnectionRefusedError:  # it was killed
                path.unlink(missing_ok=True)
                continue
            except (OSError, ValueError) as error:
                raise UsageError(f"the microbench watch of process {process} has ended", NEXT_STEP) from error
        if "error" in answer:
            raise UsageError(str(answer["error"]), "microbench watch --attach PID --for 5s")
        return dict(answer)
    raise UsageError(f"no microbench watch runs process {process}, or it answers nobody", NEXT_STEP)


def _with_parents(process: int) -> Iterator[int]:
    """A process and its parents."""
    seen: set[int] = set()
    while process > 0 and process not in seen:
        seen.add(process)
        yield process
        try:
            state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return
        process = int(state[1])

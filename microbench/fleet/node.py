"""What a Dask worker does on its node: it says what the node has, and starts ``microbench run`` there.

``describe`` and ``measure`` take and return plain values, because Dask sends them by pickle. A worker needs the same
microbench installed: Dask sends the names of the functions, not their code. The client reads what they return as
Described and Measured, because a worker may be of another version, or damaged.
"""

import contextlib
import fcntl
import json
import lzma
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from microbench.archive import store
from microbench.core.errors import ExitCode, MicrobenchError, RunUnreadableError
from microbench.core.units import plain, wall
from microbench.core.version import __version__
from microbench.fleet.campaign import Ended
from microbench.session.plan import Process
from microbench.session.process import Patience, Seams
from microbench.session.supervisor import Workers

FAKE = "fake"
# After SIGINT a run finishes its file; then everything that it started is killed.
FINISH_S, KILLED_S = 15.0, 10.0
LOCK_WAIT_S, LOOK_EVERY_S = 60.0, 0.1
CLOSE_S = 5.0  # for the regular end of a Dask process
STDERR_TAIL_BYTES = 2000
# The run ends with the Dask worker, also if that is killed: PR_SET_PDEATHSIG is 1, SIGKILL is 9. It hears SIGINT even
# where its worker does not: one that was started here, or by nohup.
HEARS = (
    "import ctypes, signal; ctypes.CDLL(None).prctl(1, 9); signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
)
GUARDED = HEARS + "import runpy; runpy.run_module('microbench', run_name='__main__')"
HANGS = HEARS + "import time; time.sleep(1e6)"

Values = dict[str, Any]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
LONGEST_REASON = 2000


class Described(msgspec.Struct, frozen=True):
    """What ``describe`` returns."""

    node: Name
    machine: Name
    versions: Annotated[dict[Name, Annotated[str, msgspec.Meta(max_length=255)]], msgspec.Meta(max_length=100)]
    gpus: Annotated[tuple[Name, ...], msgspec.Meta(max_length=4096)]
    no_gpu: str
    worker: str = ""  # older versions do not say it


class Measured(msgspec.Struct, frozen=True):
    """What ``measure`` returns."""

    status: Ended
    reason: str
    run: bytes
    seconds: Annotated[float, msgspec.Meta(ge=0)]


Answer = TypeVar("Answer", Described, Measured)


def understood(values: object, kind: type[Answer]) -> Answer | str:
    """What a worker returned, or why it is not that. Numbers are finite and text can be written, as JSON needs it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(values), type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return f"the worker's answer is damaged, or of another version: {plain(error)}"


def dask_setup(server: object) -> None:
    """Let this process end soon after its SSH connection, which is its standard input. Dask calls this at its start."""

    def end() -> None:
        while os.read(0, 1):
            pass
        time.sleep(CLOSE_S)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def describe(device: str | None) -> Values:
    """What this node is: its name, machine, versions and GPUs, or why it has none. No GPU is opened in this process.

    ``machine`` is the same for all processes and containers of one machine.
    """
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        machine = socket.gethostname()
    versions = {"microbench": __version__, "python": platform.python_version(), "driver": ""}
    name = str(_worker().name).rpartition("/")[2]  # without one it is tcp://HOST:PORT
    described = {
        "node": socket.gethostname(), "machine": machine, "worker": name, "versions": versions, "gpus": [],
        "no_gpu": "",
    }  # fmt: skip
    if device == FAKE:  # a simulated node is just a worker
        return described | {"node": f"simulated-{name}" if name.isdecimal() else name}
    try:
        workers = Workers(Seams(patience=Patience(silent_s=30.0, busy_s=60.0)), lambda event: None)
        environment, _ = workers.probe(Process("probe", None, 0))
    except MicrobenchError as error:
        return described | {"no_gpu": f"the search for a GPU failed: {error.cause}"}
    versions["driver"] = environment.driver_version or ""
    reason = environment.no_gpu_reason or ("" if environment.gpus else "no GPU was found")
    return described | {"gpus": [gpu.uuid for gpu in environment.gpus], "no_gpu": reason}


def measure(order: Values) -> Values:
    """Run ``microbench run`` once and return its status, reason and compressed run file.

    ``order`` has the ``task`` (a name), the ``arguments`` of the run, ``limit_s``, and for a simulated node its
    ``costs`` and ``fault``.
    """
    # The client hears that the task has begun, so that it is not started again if the node is lost later.
    if worker := _worker():
        worker.log_event(order["topic"], order["task"])
    began_s, wanted = time.monotonic(), _wanted()
    scratch = getattr(_worker(), "local_directory", None)  # Dask clears that of a worker which was killed
    variables, simulated = {}, order["device"] == FAKE
    if simulated:
        variables = {"MICROBENCH_FAKE_COSTS": json.dumps(order["costs"])} if order["costs"] else {}
        variables["MICROBENCH_FAKE_SEED"] = str(zlib.crc32(order["task"].encode()))
        if order["fault"] == "dies":
            time.sleep(0.5)  # so that the message of its begin is sent first
            os.kill(os.getpid(), signal.SIGKILL)
    code = HANGS if simulated and order["fault"] == "hangs" else GUARDED
    try:
        with tempfile.TemporaryDirectory(prefix="microbench-", dir=scratch) as folder, _alone(simulated):
            file = Path(folder) / "run.json"
            command = [sys.executable, "-P", "-c", code, "run", *order["arguments"], "--out", str(file)]
            exit_code, words = _ended(command, variables, order["limit_s"], Path(folder) / "errors", wanted)
            result = _result(file, exit_code, words, order["limit_s"])
            if exit_code is None and not wanted():
                result = {"status": "died", "reason": "the worker was told to end", "run": b""}
    except (OSError, TimeoutError) as error:
        result = {"status": "failed", "reason": f"the run could not be started: {plain(error)}", "run": b""}
    return result | {"seconds": time.monotonic() - began_s}


def _worker() -> Any:
    """The Dask worker whose task this thread runs; None in a test."""
    try:
        from distributed import get_worker

        return get_worker()
    except (ImportError, ValueError):
        return None


def _wanted() -> Callable[[], bool]:
    """Whether a client still waits for the task that this thread runs, and its worker is not closing.

    Dask itself does not end what runs if its client cancels the task, is interrupted or dies.
    """
    worker = _worker()
    if worker is None:
        return lambda: True
    from distributed import Status

    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        ends = worker.status in (Status.closing, Status.closed, Status.failed)
        return task is not None and task.state != "cancelled" and not ends

    return wanted


@contextlib.contextmanager
def _alone(simulated: bool) -> Iterator[None]:
    """Hold this machine's lock, so that two campaigns of a user never measure at the same time. Raises TimeoutError."""
    if simulated:
        yield
        return
    path = Path(tempfile.gettempdir()) / f"microbench-fleet-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TimeoutError("another campaign is measuring on this machine") from None
                time.sleep(LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _ended(
    command: list[str], variables: dict[str, str], limit_s: float, errors: Path, wanted: Callable[[], bool]
) -> tuple[int | None, str]:
    """Run the command for at most ``limit_s``, and while it is ``wanted``.

    Returns its exit code, None if it was ended, and its last line that says an error, else its last line.
    """
    path = os.pathsep.join(filter(None, sys.path))  # the run imports from where this worker does
    with errors.open("w+b") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            env={**os.environ, **variables, "PYTHONPATH": path},
            start_new_session=True,
        )
        exit_code, end_s = None, time.monotonic() + limit_s
        try:
            while exit_code is None and wanted() and (left_s := end_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    exit_code = process.wait(min(left_s, 1.0))
            if exit_code is None and wanted():
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(FINISH_S)
        finally:
            # Every process of the run's session is killed; its workers have process groups of their own.
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError, ValueError):
                    if os.getsid(int(folder.name)) == process.pid:
                        os.kill(int(folder.name), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs inside the driver stays
                process.wait(KILLED_S)
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return exit_code, plain((said or lines or [""])[-1])


def _result(file: Path, exit_code: int | None, words: str, limit_s: float) -> Values:
    """Status, reason and run file of a run that ended in this way."""
    if exit_code == ExitCode.NO_DEVICE:
        return {"status": "no_gpu", "reason": words, "run": b""}
    reason = f"ended after its limit of {wall(limit_s)}" if exit_code is None else f"exit code {exit_code}: {words}"
    status = "hung" if exit_code is None else "failed"
    try:
        run = store.read(file)
    except RunUnreadableError:
        return {"status": status, "reason": reason, "run": b""}
    measured = [outcome for outcome in run.outcomes if outcome.status != "skipped"]
    failures = [outcome for outcome in measured if outcome.status != "ok"]
    if exit_code in (ExitCode.MEASURED, ExitCode.SOME_FAILED):
        first = f", first {failures[0].case.id}: {plain(failures[0].reason or '')}" if failures else ""
        reason = f"{len(failures)} of {len(measured)} cases failed{first}" if failures else ""
        status = "ok" if len(measured) > len(failures) else "failed"
    elif exit_code is None:
        reason += f"; what was measured before is kept: {len(measured)} case{'s' if len(measured) != 1 else ''}"
    reason = reason or ("" if measured else "no case was measured")
    data = store.newest(file).read_bytes()
    return {"status": status, "reason": reason, "run": lzma.compress(data, preset=1)}

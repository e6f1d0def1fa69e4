"""What a Dask worker does on its node: it says what the node has, and starts ``microbench run`` there.

Both functions take and return plain values, because Dask sends them by pickle. A worker needs the same microbench
installed: Dask sends the names of the functions, not their code.
"""

from __future__ import annotations

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
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from microbench import __version__
from microbench.core.errors import ExitCode, MicrobenchError, RunUnreadableError
from microbench.core.units import plain, wall
from microbench.run.messages import Job
from microbench.run.process import Patience, WorkerProcess
from microbench.run.session import Seams, probe
from microbench.runs import store

FAKE = "fake"
PROBE_PATIENCE = Patience(silent_s=30.0, busy_s=60.0)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# After SIGINT a run finishes its file; then everything that it started is killed.
FINISH_S, KILLED_S = 15.0, 10.0
LOCK_WAIT_S, LOOK_EVERY_S = 60.0, 0.1
STDERR_TAIL_BYTES = 2000
# The run ends with the Dask worker, also if that is killed: PR_SET_PDEATHSIG is 1, SIGKILL is 9.
GUARDED = "import ctypes, runpy; ctypes.CDLL(None).prctl(1, 9); runpy.run_module('microbench', run_name='__main__')"
HANGS = "import time; time.sleep(1e6)"

Values = dict[str, Any]


def describe(device: str | None) -> Values:
    """What this node is: its name, machine, versions and GPUs, or why it has none. No GPU is opened in this process.

    ``machine`` is the same for all processes and containers of one machine.
    """
    try:
        machine = BOOT_ID.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    versions = {"microbench": __version__, "python": platform.python_version(), "driver": ""}
    described = {"node": socket.gethostname(), "machine": machine, "versions": versions, "gpus": [], "no_gpu": ""}
    if device == FAKE:
        return described | {"node": _simulated_name()}
    seams = Seams()
    job = Job("probe", None, seams.benchmarks, seams.backend, os.getpid())
    worker = None
    try:
        worker = WorkerProcess(job, {}, PROBE_PATIENCE)
        environment, _ = probe(worker, None, None)
    except MicrobenchError as error:
        return described | {"no_gpu": f"the search for a GPU failed: {error.cause}"}
    finally:
        if worker is not None:
            worker.end()
    versions["driver"] = environment.driver_version or ""
    reason = environment.no_gpu_reason or ("" if environment.gpus else "no GPU was found")
    return described | {"gpus": [gpu.uuid for gpu in environment.gpus], "no_gpu": reason}


def _simulated_name() -> str:
    """The name of the Dask worker: a simulated node is nothing but a worker."""
    from distributed import get_worker

    name = get_worker().name
    return f"simulated-{name}" if isinstance(name, int) else str(name).rpartition("/")[2]


def measure(order: Values) -> Values:
    """Run ``microbench run`` once and return its status, reason and compressed run file.

    ``order`` has the ``task`` (a name), the ``arguments`` of the run, ``limit_s``, and for a simulated node its
    ``costs`` and ``fault``.
    """
    _say_begun(order)
    began_s = time.monotonic()
    variables, simulated = {}, order["device"] == FAKE
    if simulated:
        variables = {"MICROBENCH_FAKE_COSTS": json.dumps(order["costs"])} if order["costs"] else {}
        variables["MICROBENCH_FAKE_SEED"] = str(zlib.crc32(order["task"].encode()))
        if order["fault"] == "dies":
            time.sleep(0.5)  # so that the word of its begin has left
            os.kill(os.getpid(), signal.SIGKILL)
    code = HANGS if simulated and order["fault"] == "hangs" else GUARDED
    try:
        with tempfile.TemporaryDirectory(prefix="microbench-") as folder, _alone(simulated):
            file = Path(folder) / "run.json"
            command = [sys.executable, "-P", "-c", code, "run", *order["arguments"], "--out", str(file)]
            exit_code, words = _ended(command, variables, order["limit_s"], Path(folder) / "errors")
            result = _result(file, exit_code, words, order["limit_s"])
    except (OSError, TimeoutError) as error:
        result = {"status": "failed", "reason": f"the run could not be started: {plain(error)}", "run": b""}
    return result | {"seconds": time.monotonic() - began_s}


def _say_begun(order: Values) -> None:
    """Tell the client that the task has begun: if the node is lost later, it is not started again."""
    with contextlib.suppress(ImportError, ValueError):  # in a test there is no worker
        from distributed import get_worker

        get_worker().log_event(order["topic"], order["task"])


@contextlib.contextmanager
def _alone(simulated: bool) -> Iterator[None]:
    """Hold this machine's lock, so that two campaigns of a user never measure at a time. Raises TimeoutError."""
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


def _ended(command: list[str], variables: dict[str, str], limit_s: float, errors: Path) -> tuple[int | None, str]:
    """Run the command for at most ``limit_s``. Returns its exit code, None if it was ended, and its last words."""
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
        exit_code = None
        try:
            exit_code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(FINISH_S)
        finally:
            _kill_session(process)
        return exit_code, _tail(stream)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of the run's session; its workers have process groups of their own."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == process.pid:
                os.kill(int(folder.name), signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs inside the driver stays
        process.wait(KILLED_S)


def _tail(stream: IO[bytes]) -> str:
    """The last line that says an error, else the last one."""
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
    lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return plain((errors or lines or [""])[-1])


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

"""Misbehaves in every way there is."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Metric
from microbench.meter.timer import Meter


def answers() -> int:
    """The worker's private stream: the highest open descriptor that is a pipe and none of the standard three."""
    pipes = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and _is_pipe(int(name))]
    return max(pipes)


def _is_pipe(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False


def segv() -> None:
    ctypes.string_at(0)


def ignore_termination() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)


def half_line() -> None:
    os.write(answers(), b'{"type":"done","outcome":{"case":')
    os._exit(0)


def rubbish_line() -> None:
    os.write(answers(), b"\x1b[31mSegmentation fault\xff\n")
    time.sleep(600)


def print_rubbish() -> None:
    sys.stdout.write('{"type":"refused"}\n')
    sys.stdout.flush()
    os.write(1, b"rubbish without an end")
    os.system("echo from a child")
    ctypes.CDLL(None).puts(b"from C")
    assert sys.stdin.read() == ""


def flood_errors() -> None:
    for _ in range(3000):
        os.write(2, b"x" * 1000 + b"\n")
    os.write(2, b"\nlast words\nand \x1b[1mvery last\n")
    os._exit(7)


def close_and_hang() -> None:
    os.close(answers())
    time.sleep(600)


def leave_a_child() -> None:
    """A child that holds every pipe open while its parent is gone."""
    subprocess.Popen(["sleep", "600"], pass_fds=(answers(),))
    os._exit(5)


def words(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise MeasurementError(text)

    return fail


def skip() -> None:
    raise Skip("not on a Tuesday")


WAYS: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "segv": segv,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "exit_politely": lambda: sys.exit("I had enough"),
    "exit_silently": lambda: os._exit(0),
    "hang": lambda: time.sleep(600),
    "hang_ignoring_signals": ignore_termination,
    "half_line": half_line,
    "rubbish_line": rubbish_line,
    "print": print_rubbish,
    "flood_errors": flood_errors,
    "close_and_hang": close_and_hang,
    "leave_a_child": leave_a_child,
    "fail": words("mismatch at byte 7"),
    "fail_again": words("mismatch at byte 8"),
    "fail_more": words("mismatch at byte 9"),
    "fail_still": words("mismatch at byte 10"),
    "raise": lambda: {}["no such key"],
    "skip": skip,
    "nothing": lambda: None,
}
ODD_YIELDS = ("nan", "undeclared", "twice", "no_measurement")


def measure(host: object, meter: Meter, how: str) -> Iterator[Measured]:
    yield meter.collect("seconds", lambda: [1e-6], clock="host")
    if how == "nan":
        yield Fact("broken", float("nan"))
    elif how == "undeclared":
        yield meter.collect("minutes", lambda: [1e-6], clock="host")
    elif how == "twice":
        yield meter.collect("seconds", lambda: [1e-6], clock="host")
    elif how == "no_measurement":
        yield 7  # type: ignore[misc]
    else:
        WAYS[how]()


NAMES = (*WAYS, *ODD_YIELDS)
BENCHMARK = Benchmark(
    suite="host",
    title="Wild",
    metrics=(Metric("seconds", "time", "s", "made up"),),
    axes={"how": Axis("what it does", ("nothing",), ("nothing",), NAMES)},
    gpus=0,
)

"""Defines what NVML said about a GPU while a program ran: shares with their times, states, and why some are missing."""

from typing import Generic, NamedTuple, TypeVar

import msgspec

from microbench.core.model import Telemetry

MOST_VALUES = 50_000
# The time between two samples, by NVIDIA's nvml.h: "between 1 second and 1/6 second depending on the product".
MOST_APART_S = 1.0
Value = TypeVar("Value")


class Series(Generic[Value]):
    """Values in the order in which they came. Of a long series every second, fourth, … one is kept."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._each, self._seen = 1, 0

    def add(self, value: Value) -> None:
        self._seen += 1
        if self._seen % self._each == 0:
            self.values.append(value)
        if len(self.values) > MOST_VALUES:
            del self.values[::2]
            self._each *= 2


class Share(NamedTuple):
    """A share from 0 to 1 that NVML gave, and the Unix time in ns at which its time ended."""

    at_ns: int
    share: float


class State(NamedTuple):
    """The state of a GPU at one moment; ``used_bytes`` is the memory that all processes use."""

    telemetry: Telemetry
    used_bytes: int | None


class GpuReadings(msgspec.Struct):
    """What NVML said about a GPU. ``number`` is NVML's number of it, ``bus_id`` its address as sysfs spells it.

    ``busy`` is the share of time in which any kernel ran, ``sms`` the share of the SMs that were busy (GPM), and
    ``process`` the share of time in which a kernel of the followed process ran. ``apart_s`` is the time between two
    values of ``busy``, None if NVML does not say it. ``why_not`` says by name why a figure has no values.
    """

    number: int
    name: str
    bus_id: str
    memory_bytes: int | None = None
    busy: Series[Share] = msgspec.field(default_factory=Series)
    sms: Series[Share] = msgspec.field(default_factory=Series)
    process: Series[Share] = msgspec.field(default_factory=Series)
    states: Series[State] = msgspec.field(default_factory=Series)
    apart_s: float | None = None
    why_not: dict[str, str] = {}


class Followed(NamedTuple):
    """What NVML said about the GPUs of a process for ``span_s`` s.

    Where it does not list the process (``listed`` is false), the GPUs are those whose device files the process has
    open.
    """

    pid: int
    name: str
    span_s: float
    gpus: tuple[GpuReadings, ...]
    listed: bool

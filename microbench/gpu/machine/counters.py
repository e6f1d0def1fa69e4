"""Counts a GPU's PCIe bytes and the errors of its links.

PCIe bytes come from NVML counters that wrap, or from sampled rates if the driver has no counters. Error counters are
read before and after a load, to see which of them rose.
"""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from microbench.core.model import Fact
from microbench.gpu.machine.pci import DEVICES, NOT_SHOWN, way_to_root
from microbench.gpu.machine.query import NVLINK_ERROR_FIELDS, Answer, Field, Query
from microbench.gpu.machine.topology import NvLinks, nvlinks
from microbench.gpu.protocol.gpu import PcieBytes
from microbench.host.files import Machine, known, labelled, unknown

# NVML's fields 197 and 198 are 32 bit: at 63 GB/s they wrap every 68 ms.
COUNTER_MODULUS = 1 << 32
FRESH_RATE_S = 1.0


def wrapped_difference(before: int, after: int, modulus: int = COUNTER_MODULUS) -> int:
    """The count between two readings of a counter that wraps at ``modulus``, if it wrapped at most once."""
    return (after - before) % modulus


class SampledTotals:
    """Totals from rates that a thread samples; they are right only for traffic that lasts many samples.

    ``rates()`` returns bytes a second (sent, received) and takes tens of milliseconds, as nvmlDeviceGetPcieThroughput
    does. Each rate is an average over a part of that time and counts for all of it. The thread starts with the first
    reading; a reading waits for a sample that ends after it was asked for.
    """

    def __init__(self, rates: Callable[[], tuple[float, float] | None]) -> None:
        self._rates = rates
        self._changed = threading.Condition()
        self._samples = 0
        self._sent = 0.0
        self._received = 0.0
        self._lost: bool = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> PcieBytes | None:
        """The totals so far; None if the rates can no longer be read."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, name="pcie-rates", daemon=True)
            self._thread.start()
        with self._changed:
            wanted = self._samples + 1
            self._changed.wait_for(lambda: self._samples >= wanted or self._lost, timeout=FRESH_RATE_S)
            return None if self._lost else PcieBytes(round(self._sent), round(self._received), coarse=True)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        before = time.monotonic()
        while not self._stop.is_set():
            rates = self._rates()
            now = time.monotonic()
            with self._changed:
                if rates is None:
                    self._lost = True
                else:
                    self._sent += rates[0] * (now - before)
                    self._received += rates[1] * (now - before)
                    self._samples += 1
                self._changed.notify_all()
            if rates is None:
                return
            before = now


RISEN = "_risen"
# Advanced error reporting in sysfs (kernel: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats): fact, file, the
# line with the total, and NVML's field for the case that no device on the way has the file.
REPORTED_ERRORS = (
    ("pcie_correctable_errors", "aer_dev_correctable", "TOTAL_ERR_COR", Field.PCIE_COUNT_CORRECTABLE_ERRORS),
    ("pcie_nonfatal_errors", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", Field.PCIE_COUNT_NON_FATAL_ERROR),
    ("pcie_fatal_errors", "aer_dev_fatal", "TOTAL_ERR_FATAL", Field.PCIE_COUNT_FATAL_ERROR),
)


def link_counters(bus_id: str | None, query: Query, root: Path = Path("/")) -> tuple[Fact, ...]:
    """Errors since boot or since the driver was loaded, each unknown with a reason. Never raises.

    The counters are replays, replays that ended in a new training of the link, the sum of errors that the GPU and the
    bridges above it reported, and errors of all NVLinks.
    """
    replays = query.ask_board("nvmlDeviceGetPcieReplayCounter")
    replays = replays if replays.value is not None else query.board_field(Field.PCIE_REPLAY_COUNTER)
    way = [hop.bus_id for hop in way_to_root(bus_id, root).hops]
    return (
        replays.fact("pcie_replays"),
        query.board_field(Field.PCIE_REPLAY_ROLLOVER_COUNTER).fact("pcie_replay_rollovers"),
        *(
            _reported(name, file, line, way, query.board_field(field), root)
            for name, file, line, field in REPORTED_ERRORS
        ),
        nvlink_errors(query, nvlinks(query)).fact("nvlink_errors"),
    )


def counters_risen(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Fact, ...]:
    """How far each counter rose between two readings, as ``<name>_risen``; unknown if either reading is unknown."""
    earlier = {fact.name: fact for fact in before}
    return tuple(_risen(earlier[fact.name], fact) for fact in after if fact.name in earlier)


def _risen(before: Fact, after: Fact) -> Fact:
    name, first, last = after.name + RISEN, before.value, after.value
    if not isinstance(first, int) or not isinstance(last, int):
        return unknown(name, before.reason or after.reason or "no number", after.source)
    if last < first:
        return unknown(name, "the counter was reset in between", after.source)
    if before.source != after.source:
        return unknown(name, f"not the same counters: {before.source}, then {after.source}", after.source)
    return known(name, last - first, after.source)


def _reported(name: str, file: str, line: str, way: list[str], answer: Answer, root: Path) -> Fact:
    """The sum over the devices on the way that have the counter, or NVML's count of the GPU alone if none has it."""
    machine = Machine(root)
    totals = {hop: labelled(machine.read(f"{DEVICES}/{hop}/{file}").text, line, " ") for hop in way}
    counted = {hop: int(total) for hop, total in totals.items() if total and total.isdigit()}
    if counted:
        return known(name, sum(counted.values()), f"{file} of {', '.join(counted)}")
    if answer.value is not None:
        return known(name, answer.value, "NVML")
    hidden = "no device on the way reports errors in sysfs" if way else NOT_SHOWN
    return unknown(name, f"{hidden}; {answer.why_none}", file)


def nvlink_errors(query: Query, links: NvLinks) -> Answer:
    """Replays, recoveries and damaged packets of all NVLinks, summed, since the driver was loaded."""
    answer = links.none_up
    for fields in NVLINK_ERROR_FIELDS if links.active else ():
        counts = [query.board_field(field, link) for link in links.active for field in fields]
        values = [count.value for count in counts if count.value is not None]
        if values:
            return Answer(sum(values))
        answer = counts[0]
    return answer

"""What NVML says of a GPU's links: PCIe as trained, NVLink, the coherent link to the processor, the way to other GPUs.

All of it belongs to the board, so that a MIG instance gets its board's answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from microbench.gpu.machine.pci import same_device
from microbench.gpu.machine.query import (
    FIELD_C2C_LINKS,
    FIELD_NVLINK_SPEED,
    FIELD_NVLINK_SPEED_OF_LINK,
    NVLINK_ERROR_FIELDS,
    NVLINK_MOST_LINKS,
    NVLINK_PEERS,
    NVLINK_VERSIONS,
    PEERS_BY_NVLINK,
    PEERS_OK,
    TOPOLOGY_LEVELS,
    Answer,
    Query,
)
from microbench.gpu.protocol.gpu import PcieBytes

MEGABYTE = 1e6


class NvLinks(NamedTuple):
    """The numbers of the NVLinks that are up; ``reason`` where that is not known. None are up without NVLink."""

    active: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def up(self) -> int | None:
        """How many are up."""
        return len(self.active) if self.reason is None else None


def nvlinks(query: Query) -> NvLinks:
    """Which NVLinks are up. A GPU that has none, and a driver that knows of none, have none up."""
    states = [query.ask_board("nvmlDeviceGetNvLinkState", link) for link in range(NVLINK_MOST_LINKS)]
    answered = any(state.value is not None for state in states)
    if not answered and not states[0].unsupported:
        return NvLinks(reason=states[0].reason)
    return NvLinks(tuple(link for link, state in enumerate(states) if state.flag()))


def nvlink_bytes_per_s(query: Query, links: NvLinks) -> Answer:
    """Bytes a second on the wires of one NVLink in one direction."""

    def speed(link: int) -> Answer:
        common = query.board_field(FIELD_NVLINK_SPEED)
        own = common if common.value else query.board_field(FIELD_NVLINK_SPEED_OF_LINK, link)
        return Answer(own.value * MEGABYTE) if own.value else Answer(None, common.reason or "NVML says 0")

    return _of_first(links, speed)


def nvlink_version(query: Query, links: NvLinks) -> Answer:
    """Such as "4.0"."""

    def version(link: int) -> Answer:
        answer = query.ask_board("nvmlDeviceGetNvLinkVersion", link)
        return answer._replace(value=NVLINK_VERSIONS.get(answer.value), reason=answer.reason or "not known here")

    return _of_first(links, version)


def nvlink_peers(query: Query, links: NvLinks) -> Answer:
    """What is at the other ends: "switch", "gpu", "processor", or several of them."""

    def peers(first: int) -> Answer:
        answers = [query.ask_board("nvmlDeviceGetNvLinkRemoteDeviceType", link) for link in links.active]
        words = {NVLINK_PEERS[answer.value] for answer in answers if answer.value in NVLINK_PEERS}
        return Answer(", ".join(sorted(words)) or None, answers[0].reason or "NVML does not know")

    return _of_first(links, peers)


def nvlink_errors(query: Query, links: NvLinks) -> Answer:
    """Replays, recoveries and damaged packets of all NVLinks together since the driver was loaded."""

    def errors(first: int) -> Answer:
        answer = Answer(None)
        for fields in NVLINK_ERROR_FIELDS:
            counts = [query.board_field(field, link) for link in links.active for field in fields]
            values = [count.value for count in counts if count.value is not None]
            if values:
                return Answer(sum(values))
            answer = counts[0]
        return answer

    return _of_first(links, errors)


def coherent(query: Query) -> Answer:
    """Whether a coherent chip-to-chip link (NVLink-C2C) joins GPU and processor; False where there is no such thing."""
    mode = query.ask_board("nvmlDeviceGetC2cModeInfoV").member("isC2cEnabled")
    links = query.board_field(FIELD_C2C_LINKS)
    if mode.value is None and links.value is None:
        return Answer(False) if mode.unsupported else mode
    return Answer(bool(mode.value) or bool(links.value))


def topology(query: Query, links: NvLinks, bus_id: str) -> tuple[Answer, Answer]:
    """How this GPU reaches the one of that PCI bus id: by NVLink ("NV18", "none"), and by PCIe ("PIX" to "SYS")."""
    other = query.ask_system("nvmlDeviceGetHandleByPciBusId", bus_id)
    if other.value is None:
        return other, other
    level = query.ask_board("nvmlDeviceGetTopologyCommonAncestor", other.value)
    by_pcie = level._replace(value=TOPOLOGY_LEVELS.get(level.value), reason=level.reason or "NVML does not know")
    if links.reason is not None:
        return Answer(None, links.reason), by_pcie
    joined = _links_to(query, links, bus_id, other.value)
    return Answer(f"NV{joined}" if joined else "none"), by_pcie


def _links_to(query: Query, links: NvLinks, bus_id: str, other: Any) -> int:
    """How many NVLinks lead to another GPU, straight or through a switch; 0 where NVML knows of none."""
    ends = [query.ask_board("nvmlDeviceGetNvLinkRemotePciInfo", link).member("busId").value for link in links.active]
    straight = sum(same_device(end, bus_id) for end in ends)
    if straight:
        return straight
    kinds = [query.ask_board("nvmlDeviceGetNvLinkRemoteDeviceType", link).value for link in links.active]
    switched = sum(NVLINK_PEERS.get(kind) == "switch" for kind in kinds)
    status = query.ask_board("nvmlDeviceGetP2PStatus", other, PEERS_BY_NVLINK).value if switched else None
    return switched if status == PEERS_OK else 0


def _of_first(links: NvLinks, ask: Callable[[int], Answer]) -> Answer:
    """The answer for the first NVLink that is up; why there is none otherwise."""
    return ask(links.active[0]) if links.active else Answer(None, links.reason or "no NVLink is up")


# PCIe traffic as running totals: from counters that wrap, or from sampled rates where a driver has no counters.


# NVML's fields 197 and 198 are 32 bit: at 63 GB/s they wrap every 68 ms.
COUNTER_MODULUS = 1 << 32
FRESH_RATE_S = 1.0


def wrapped_difference(before: int, after: int, modulus: int = COUNTER_MODULUS) -> int:
    """What a counter that starts again at ``modulus`` counted between two readings, if less than ``modulus``."""
    return (after - before) % modulus


class ExactTotals:
    """Totals of two wrapping counters (sent, received) since the first reading."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._sent = 0
        self._received = 0

    @property
    def started(self) -> bool:
        """True after the first reading."""
        return self._last is not None

    def add(self, sent: int, received: int) -> PcieBytes:
        """The totals after a reading of both counters."""
        if self._last is not None:
            self._sent += wrapped_difference(self._last[0], sent)
            self._received += wrapped_difference(self._last[1], received)
        self._last = (sent, received)
        return PcieBytes(self._sent, self._received, coarse=False)


class SampledTotals:
    """Totals made of rates that a thread samples: right only for traffic that lasts many samples.

    ``rates()`` returns bytes per second (sent, received) and takes some tens of milliseconds, as
    nvmlDeviceGetPcieThroughput does: each is an average over a part of that time and stands for all of it. The thread
    starts with the first reading; a reading waits for a sample that ends after it was asked for.
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
        """The totals so far; None when the rates can no longer be read."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, name="pcie-rates", daemon=True)
            self._thread.start()
        with self._changed:
            wanted = self._samples + 1
            self._changed.wait_for(lambda: self._samples >= wanted or self._lost, timeout=FRESH_RATE_S)
            return None if self._lost else PcieBytes(round(self._sent), round(self._received), coarse=True)

    def close(self) -> None:
        """End the thread."""
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

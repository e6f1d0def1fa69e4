"""Query asks NVML about one GPU, one question at a time. It returns an answer or a reason and never raises."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from microbench.core.model import Fact
from microbench.host.files import stated

# Constants of nvml.h; all releases of the bindings agree on them.
ERROR_NOT_SUPPORTED = 3
ERROR_FUNCTION_NOT_FOUND = 13


class Field(IntEnum):
    """Fields of nvmlDeviceGetFieldValues: their names after NVML_FI_DEV_. Bytes are as seen from the GPU."""

    NVLINK_SPEED_MBPS_COMMON = 90  # the line rate of one direction in MB/s
    PCIE_REPLAY_COUNTER = 94
    PCIE_REPLAY_ROLLOVER_COUNTER = 95
    NVLINK_GET_SPEED = 164  # the same rate, of one link
    C2C_LINK_COUNT = 170
    PCIE_COUNT_CORRECTABLE_ERRORS = 173
    PCIE_COUNT_NON_FATAL_ERROR = 179
    PCIE_COUNT_FATAL_ERROR = 180
    PCIE_COUNT_TX_BYTES = 197
    PCIE_COUNT_RX_BYTES = 198


# Of one link: NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC; from Blackwell on _COUNT_RCV_ERRORS,
# _COUNT_XMIT_DISCARDS, _COUNT_LINK_RECOVERY_EVENTS.
NVLINK_ERROR_FIELDS = ((161, 162, 163), (208, 212, 215))

# nvmlClocksEventReasons. analysis/clocks.py counts a reason with "power", "thermal" or "brake" as throttling.
CLOCK_REASONS = (
    (0x001, "idle"),
    (0x002, "application clocks set"),
    (0x004, "software power cap"),
    (0x008, "hardware slowdown by power brake or thermal limit"),
    (0x010, "sync boost"),
    (0x020, "software thermal slowdown"),
    (0x040, "hardware thermal slowdown"),
    (0x080, "hardware power brake"),
    (0x100, "display clock setting"),
    (0x200, "board limit"),
    (0x400, "reliability limit"),
)
# More than any GPU has; NVML refuses a link beyond the last one.
NVLINK_MOST_LINKS = 36
# nvmlNvlinkVersion_t.
NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
# nvmlIntNvLinkDeviceType_t.
NVLINK_PEERS = {0: "gpu", 1: "processor", 2: "switch"}
# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`; 0 means two GPUs on one board.
TOPOLOGY_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# NVML_P2P_CAPS_INDEX_NVLINK of nvmlDeviceGetP2PStatus, and its answer NVML_P2P_STATUS_OK.
PEERS_BY_NVLINK = 2
PEERS_OK = 0
# nvmlValueType: the member of the union that holds a field's value.
VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def clock_reasons(bits: int) -> tuple[str, ...]:
    """The names of a bit set of reasons; unknown bits are shown in hexadecimal."""
    known = tuple(word for bit, word in CLOCK_REASONS if bits & bit)
    rest = bits & ~sum(bit for bit, _ in CLOCK_REASONS)
    return (*known, f"reason {rest:#x}") if rest else known


def field_value(entry: Any) -> int | None:
    """The value of an nvmlFieldValue_t; None if the driver does not have the field."""
    member = VALUE_MEMBERS.get(entry.valueType)
    if entry.nvmlReturn != 0 or member is None:
        return None
    return int(getattr(entry.value, member))


class Answer(NamedTuple):
    """A query's result, or None and the reason. ``unsupported``: this GPU, driver or binding does not have it."""

    value: Any
    reason: str | None = None
    unsupported: bool = False

    def scaled(self, factor: float) -> float | None:
        """The number in SI units."""
        return None if self.value is None else self.value * factor

    def flag(self) -> bool | None:
        """The number as true or false; the first of a pair (now, after the next reboot)."""
        now = self.value[0] if isinstance(self.value, list | tuple) else self.value
        return None if now is None else bool(now)

    @property
    def why_none(self) -> str:
        """Why there is no value, in a text that names NVML once."""
        reason = self.reason or "it says 0"
        return reason if reason.startswith("NVML") else f"NVML: {reason}"

    def fact(self, name: str) -> Fact:
        """The answer as a fact, unknown with the reason if there is no value."""
        return stated(name, self.value, "NVML", self.reason or "NVML does not say")

    def member(self, name: str) -> Answer:
        """A member of the returned struct; bytes become text."""
        value = getattr(self.value, name, None)
        return self._replace(value=value.decode(errors="replace") if isinstance(value, bytes) else value)


class Query:
    """NVML opened for the GPU of a UUID. ``library`` is pynvml, or None if it is not installed.

    The constructor never raises: ``reason`` says why NVML cannot be used, and every answer then has that reason.
    A MIG instance answers for itself if it can, otherwise its board does.
    """

    def __init__(self, library: Any, uuid: str) -> None:
        self._library = library
        self._handle: Any = None
        self._board: Any = None
        self.reason = self._open(uuid)

    def close(self) -> None:
        """Shut NVML down; every later answer is None."""
        if self._handle is not None:
            self._handle = self._board = None
            self.reason = "closed"
            call(self._library, "nvmlShutdown")

    def ask(self, name: str, *arguments: Any) -> Answer:
        """The answer of ``name(handle, *arguments)``; the board is asked if a MIG instance has no answer."""
        answer = self.ask_system(name, self._handle, *arguments)
        if answer.value is None and self._board is not self._handle:
            return self.ask_board(name, *arguments)
        return answer

    def ask_board(self, name: str, *arguments: Any) -> Answer:
        """The answer of ``name(handle, *arguments)`` about the whole board, for what its MIG instances share."""
        return self.ask_system(name, self._board, *arguments)

    def board_field(self, field: int, scope: int | None = None) -> Answer:
        """The board's value of a field (NVML_FI_…); ``scope`` is an NVLink's number for the fields of one link."""
        asked = field if scope is None else (field, scope)
        entries = self.ask_board("nvmlDeviceGetFieldValues", [asked])
        if entries.value is None:
            return entries
        value, code = field_value(entries.value[0]), entries.value[0].nvmlReturn
        refused = None if value is not None else f"NVML refuses field {field} with code {code}"
        return Answer(value, refused, code == ERROR_NOT_SUPPORTED)

    def ask_first(self, names: tuple[str, ...], *arguments: Any) -> Answer:
        """The answer of the first function that has one; newer names come before those that they replace."""
        answers = (self.ask(name, *arguments) for name in names)
        last = Answer(None, "nothing was asked")
        for last in answers:
            if last.value is not None:
                break
        return last

    def ask_system(self, name: str, *arguments: Any) -> Answer:
        """The answer of ``name(*arguments)`` about the whole machine."""
        return Answer(None, self.reason) if self.reason is not None else call(self._library, name, *arguments)

    def _open(self, uuid: str) -> str | None:
        if self._library is None:
            return "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        started = call(self._library, "nvmlInit")
        if started.reason is not None:
            return f"NVML does not start: {started.reason}"
        # CUDA's UUID of a MIG instance does not say that it is one, and NVML needs the prefix.
        digits = uuid.removeprefix("GPU-").removeprefix("MIG-")
        for spelling in dict.fromkeys((uuid, f"GPU-{digits}", f"MIG-{digits}")):
            handle = call(self._library, "nvmlDeviceGetHandleByUUID", spelling).value
            if handle is not None:
                self._handle = handle
                board = call(self._library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
                self._board = handle if board.value is None else board.value
                return None
        call(self._library, "nvmlShutdown")
        return f"NVML does not know the GPU {uuid}"


def call(library: Any, name: str, *arguments: Any) -> Answer:
    """Call one NVML function; an error becomes a reason. Older bindings and drivers lack some functions."""
    function = getattr(library, name, None)
    if function is None:
        return Answer(None, f"this nvidia-ml-py has no {name}", unsupported=True)
    # Raised if the driver lacks the version of a function that the binding calls; it is not an NVMLError.
    mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
    try:
        return Answer(function(*arguments))
    except (library.NVMLError, mismatch, UnicodeDecodeError) as error:
        code = getattr(error, "value", ERROR_FUNCTION_NOT_FOUND)
        return Answer(None, str(error), code in (ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND))

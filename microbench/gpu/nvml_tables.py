"""NVML's numbers in words: constants of nvml.h that every release of the bindings agrees on."""

from __future__ import annotations

from typing import Any

ERROR_NOT_SUPPORTED = 3
ERROR_FUNCTION_NOT_FOUND = 13
CLOCK_SM = 1
CLOCK_MEMORY = 2
TEMPERATURE_GPU = 0
# NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES: sent and received as seen from the GPU.
FIELD_PCIE_SENT = 197
FIELD_PCIE_RECEIVED = 198
# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON; of one link _NVLINK_GET_SPEED: the line rate of one direction in MB/s.
FIELD_NVLINK_SPEED = 90
FIELD_NVLINK_SPEED_OF_LINK = 164
# NVML_FI_DEV_PCIE_REPLAY_COUNTER, _REPLAY_ROLLOVER_COUNTER, _COUNT_CORRECTABLE_ERRORS, _NON_FATAL_ERROR, _FATAL_ERROR.
FIELD_PCIE_REPLAYS = 94
FIELD_PCIE_REPLAY_ROLLOVERS = 95
FIELD_PCIE_CORRECTABLE = 173
FIELD_PCIE_NONFATAL = 179
FIELD_PCIE_FATAL = 180
# NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC of one link; from Blackwell on _COUNT_RCV_ERRORS,
# _COUNT_XMIT_DISCARDS, _COUNT_LINK_RECOVERY_EVENTS.
NVLINK_ERROR_FIELDS = ((161, 162, 163), (208, 212, 215))
# NVML_FI_DEV_C2C_LINK_COUNT.
FIELD_C2C_LINKS = 170
# NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES of nvmlDeviceGetPcieThroughput, which answers in kB/s.
PCIE_SENT = 0
PCIE_RECEIVED = 1

# nvmlClocksEventReasons. throttling.py takes a reason with "power", "thermal" or "brake" for a throttled clock.
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
VIRTUALIZATION_MODES = {
    0: "none",
    1: "passed through",
    2: "vGPU",
    3: "host of vGPUs",
    4: "host of shared graphics",
}
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# More than any GPU has; a link beyond the last one is refused.
NVLINK_MOST_LINKS = 36
# nvmlNvlinkVersion_t.
NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
# nvmlIntNvLinkDeviceType_t.
NVLINK_PEERS = {0: "gpu", 1: "processor", 2: "switch"}
# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`; 0 are two GPUs on one board.
TOPOLOGY_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# NVML_P2P_CAPS_INDEX_NVLINK of nvmlDeviceGetP2PStatus, and its answer NVML_P2P_STATUS_OK.
PEERS_BY_NVLINK = 2
PEERS_OK = 0
# nvmlValueType: which member of the union holds a field's value.
VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def clock_reasons(bits: int) -> tuple[str, ...]:
    """The words for a bit set of reasons, unknown bits in hexadecimal."""
    known = tuple(word for bit, word in CLOCK_REASONS if bits & bit)
    rest = bits & ~sum(bit for bit, _ in CLOCK_REASONS)
    return (*known, f"reason {rest:#x}") if rest else known


def field_value(entry: Any) -> int | None:
    """The value of an nvmlFieldValue_t, None if the driver has no such field."""
    member = VALUE_MEMBERS.get(entry.valueType)
    if entry.nvmlReturn != 0 or member is None:
        return None
    return int(getattr(entry.value, member))

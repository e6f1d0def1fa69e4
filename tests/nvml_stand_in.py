"""A stand-in for pynvml: every function answers as an H200 with 18 NVLinks would, except those that a test changes."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

UUID = "GPU-11111111-2222-3333-4444-555555555555"
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 6, 13
INVALID_ARGUMENT = 2
NVLINKS = 18
FIELDS = {
    90: 26_562, 91: NVLINKS, 94: 3, 95: 0, 161: 1, 162: 0, 163: 2, 164: 26_562, 170: 0, 173: 4, 179: 0, 180: 0, 197: 10,
    198: 20,
}  # fmt: skip


class StandInError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class MismatchError(Exception):
    """As pynvml's: not an NVMLError."""


def refuse(code: int) -> Callable[..., Any]:

    def function(*arguments: Any) -> Any:
        raise StandInError(code)

    return function


def answering(value: Any) -> Callable[..., Any]:
    return lambda *arguments: value


def field(value: int, code: int = 0) -> SimpleNamespace:
    """A field's value as a 32-bit number, or its refusal."""
    return SimpleNamespace(nvmlReturn=code, valueType=1, value=SimpleNamespace(uiVal=value))


def field_values(fields: dict[int, int]) -> Callable[..., list[SimpleNamespace]]:
    """nvmlDeviceGetFieldValues of a driver that has these; a field of an NVLink is asked for with its number."""

    def answer(handle: Any, asked: Sequence[int | tuple[int, int]]) -> list[SimpleNamespace]:
        ids = [one[0] if isinstance(one, tuple) else one for one in asked]
        return [field(fields[one]) if one in fields else field(0, NOT_SUPPORTED) for one in ids]

    return answer


def nvlink_state(handle: Any, link: int) -> int:
    return 1 if link < NVLINKS else refuse(INVALID_ARGUMENT)()


USUAL: dict[str, Any] = {
    "nvmlInit": None, "nvmlShutdown": None, "nvmlSystemGetDriverVersion": "580.95.05",
    "nvmlDeviceGetHandleByUUID": lambda uuid: "handle" if uuid == UUID else refuse(NOT_FOUND)(),
    "nvmlDeviceGetHandleByPciBusId": lambda bus_id: f"handle of {bus_id}",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": refuse(NOT_SUPPORTED),
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:43:00.0"),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150 << 30),
    "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=256 << 30),
    "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {1: 1980, 2: 3201}[clock],
    "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 345, 2: 3201}[clock],
    "nvmlDeviceGetMemoryBusWidth": 6144, "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetTotalEccErrors": lambda handle, error_type, counter: {(0, 1): 12, (1, 1): 1}.get(
        (error_type, counter), 0
    ),
    "nvmlDeviceGetRemappedRows": (0, 1, 0, 0), "nvmlDeviceGetRetiredPages": refuse(NOT_SUPPORTED),
    "nvmlDeviceGetRetiredPagesPendingStatus": refuse(NOT_SUPPORTED),
    "nvmlDeviceGetMigMode": [0, 1], "nvmlDeviceGetPersistenceMode": 0,
    "nvmlSystemGetConfComputeState": SimpleNamespace(ccFeature=0),
    "nvmlDeviceGetEnforcedPowerLimit": 700_000, "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetMPSComputeRunningProcesses": [], "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetCurrPcieLinkGeneration": 5, "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5, "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16, "nvmlDeviceGetPcieReplayCounter": 3, "nvmlDeviceGetNvLinkState": nvlink_state,
    "nvmlDeviceGetNvLinkVersion": 6, "nvmlDeviceGetNvLinkRemoteDeviceType": 2,
    "nvmlDeviceGetNvLinkRemotePciInfo": SimpleNamespace(busId=b"00000000:A0:00.0"),
    "nvmlDeviceGetP2PStatus": 0, "nvmlDeviceGetTopologyCommonAncestor": 50,
    "nvmlDeviceGetC2cModeInfoV": SimpleNamespace(isC2cEnabled=0),
    "nvmlDeviceGetTemperatureV": 41, "nvmlDeviceGetPowerUsage": 76_500, "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
    "nvmlDeviceGetVirtualizationMode": 1, "nvmlDeviceGetComputeMode": 0, "nvmlDeviceGetVbiosVersion": "96.00",
    "nvmlDeviceGetFieldValues": field_values(FIELDS),
}  # fmt: skip


def library(**functions: Any) -> SimpleNamespace:
    """A pynvml with some functions replaced. A value that is not callable is the function's answer."""
    made = {
        name: value if callable(value) else answering(value)
        for name, value in {**USUAL, **functions}.items()
        if value != "absent"
    }
    return SimpleNamespace(NVMLError=StandInError, NVMLLibraryMismatchError=MismatchError, **made)

"""NVML through a stand-in for pynvml: what is filled in, what stays unknown and why, counters that wrap."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import snapshots
from nvml_stand_in import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    UUID,
    MismatchError,
    field,
    library,
    refuse,
)

from microbench.analysis.clocks import THROTTLE_WORDS
from microbench.core.errors import Skip
from microbench.core.model import GpuInfo, LinkInfo, MemoryErrors, Telemetry
from microbench.gpu.machine import nvml
from microbench.gpu.machine.nvml import NvmlGpu, boards_in_mig_mode, other_processes
from microbench.gpu.machine.query import CLOCK_REASONS, Query, clock_reasons, field_value
from microbench.host.files import Machine

BARE = GpuInfo(name="GPU", uuid=UUID)


def mismatch(*arguments: Any) -> Any:
    raise MismatchError("pyNVML version does not match")


def process(pid: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid)


def test_describe_fills_what_is_unknown_in_si_units() -> None:
    gpu = NvmlGpu(UUID, library())
    assert gpu.query.reason is None
    assert gpu.query.ask_system("nvmlSystemGetDriverVersion").value == "580.95.05"
    snapshots.same("facts/nvml-describe", msgspec.json.format(msgspec.json.encode(gpu.describe(BARE))).decode())
    snapshots.same_facts("nvml", gpu.facts("gpu1_"))


def test_describe_leaves_what_is_known_alone() -> None:
    info = GpuInfo(name="GPU", uuid=UUID, memory_bytes=1, ecc=False, link=LinkInfo(lanes_now=4, max_payload_bytes=256))
    found = NvmlGpu(UUID, library()).describe(info)
    assert (found.memory_bytes, found.ecc) == (1, False)
    assert (found.link.lanes_now, found.link.lanes_max, found.link.max_payload_bytes) == (4, 16, 256)


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_each_query_is_guarded_alone(code: int) -> None:
    gpu = NvmlGpu(UUID, library(nvmlDeviceGetEccMode=refuse(code), nvmlDeviceGetPowerUsage=refuse(code)))
    info = gpu.describe(BARE)
    assert info.ecc is None
    assert info.memory_bus_bits == 6144
    assert gpu.telemetry().power_w is None
    assert gpu.telemetry().temperature_c == 41.0
    ecc = next(fact for fact in gpu.facts("gpu0_") if fact.name == "gpu0_ecc")
    assert (ecc.value, ecc.reason) == (None, f"NVML error {code}")


REFUSED = {
    name: refuse(NOT_SUPPORTED) for name in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows")
}  # fmt: skip


@pytest.mark.parametrize(("functions", "expected"), [
    ({}, MemoryErrors(0, 0, 12, 1, 0, 1, False, False)),
    ({"nvmlDeviceGetRemappedRows": (3, 2, 1, 1)}, MemoryErrors(0, 0, 12, 1, 3, 2, True, True)),
    (
        {**REFUSED, "nvmlDeviceGetRetiredPages": lambda handle, cause: [4096] * (2 + cause),
         "nvmlDeviceGetRetiredPagesPendingStatus": 1},
        MemoryErrors(pages_retired=5, retirement_pending=True),
    ),
    ({**REFUSED, "nvmlDeviceGetRetiredPages": lambda handle, cause: [] if cause else refuse(NOT_SUPPORTED)()}, None),
    ({**REFUSED, "nvmlDeviceGetRemappedRows": "absent"}, None),
    ({name: refuse(NO_PERMISSION) for name in REFUSED}, None),
    (dict.fromkeys(REFUSED, mismatch), None),
])  # fmt: skip
def test_memory_errors_are_counted_or_unknown(functions: dict[str, Any], expected: MemoryErrors | None) -> None:
    assert NvmlGpu(UUID, library(**functions)).describe(BARE).memory_errors == expected


def test_memory_errors_are_those_of_the_board_of_a_mig_instance() -> None:
    asked = []

    def errors(handle: str, error_type: int, counter: int) -> int:
        asked.append((handle, error_type, counter))
        return 10 * error_type + counter

    stand_in = library(
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: "board", nvmlDeviceGetTotalEccErrors=errors
    )
    found = NvmlGpu(UUID, stand_in).describe(BARE).memory_errors
    assert {handle for handle, _, _ in asked} == {"board"}
    # NVML's error types are 0 and 1 for corrected and uncorrected, its counters 0 and 1 for volatile and aggregate.
    assert found == MemoryErrors(0, 10, 1, 11, 0, 1, False, False)


def test_a_feature_that_does_not_exist_is_off_but_a_forbidden_one_is_unknown() -> None:
    forbidden = refuse(NO_PERMISSION)
    for mig, state, expected in ((refuse(NOT_SUPPORTED), "absent", False), (forbidden, forbidden, None)):
        info = NvmlGpu(UUID, library(nvmlDeviceGetMigMode=mig, nvmlSystemGetConfComputeState=state)).describe(BARE)
        assert (info.mig, info.confidential_computing) == (expected, expected)


def test_nothing_raises_when_the_binding_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "load", lambda: None)
    gpu = NvmlGpu(UUID)
    assert "pip install nvidia-ml-py" in str(gpu.query.reason)
    assert gpu.describe(BARE) == BARE
    assert gpu.telemetry() == Telemetry()
    with pytest.raises(Skip, match="nvidia-ml-py"):
        gpu.pcie_bytes()
    gpu.close()


def test_nvml_says_why_it_cannot_be_used() -> None:
    assert "does not start: NVML error 9" in str(NvmlGpu(UUID, library(nvmlInit=refuse(9))).query.reason)
    assert "does not know" in str(NvmlGpu("GPU-other", library()).query.reason)
    pytest.importorskip("pynvml")
    gpu = NvmlGpu("GPU-00000000-0000-0000-0000-000000000000")  # by the real binding
    assert gpu.query.reason is not None
    assert gpu.telemetry() == Telemetry()
    gpu.close()


def test_a_mig_instance_is_found_and_its_board_answers_for_it() -> None:
    def by_uuid(uuid: str) -> str:
        return "instance" if uuid == "MIG-" + UUID.removeprefix("GPU-") else refuse(NOT_FOUND)()

    def board_only(handle: str) -> Any:
        return 76_500 if handle == "board" else refuse(NOT_SUPPORTED)()

    stand_in = library(
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: "board",
        nvmlDeviceGetPowerUsage=board_only,
        nvmlDeviceGetMigMode=lambda handle: [1, 1] if handle == "board" else refuse(1)(),
    )
    gpu = NvmlGpu(UUID, stand_in)
    assert gpu.describe(BARE).mig is True
    assert gpu.telemetry().power_w == 76.5


def test_telemetry_in_si_units_with_reasons_in_words() -> None:
    gpu = NvmlGpu(UUID, library(nvmlDeviceGetCurrentClocksEventReasons=0x44))
    assert gpu.telemetry() == Telemetry(
        nvml_sm_clock_hz=345e6, memory_clock_hz=3201e6, temperature_c=41.0, power_w=76.5,
        throttle_reasons=("software power cap", "hardware thermal slowdown"),
    )  # fmt: skip


def test_older_names_are_asked_where_newer_ones_do_not_exist() -> None:
    stand_in = library(
        nvmlDeviceGetTemperatureV="absent", nvmlDeviceGetTemperature=50,
        nvmlDeviceGetCurrentClocksEventReasons=refuse(FUNCTION_NOT_FOUND),
        nvmlDeviceGetCurrentClocksThrottleReasons=0x80, nvmlDeviceGetComputeRunningProcesses=mismatch,
        nvmlDeviceGetComputeRunningProcesses_v2=[process(7)], nvmlSystemGetProcessName="/usr/bin/blender",
    )  # fmt: skip
    gpu = NvmlGpu(UUID, stand_in)
    assert gpu.telemetry().temperature_c == 50.0
    assert gpu.telemetry().throttle_reasons == ("hardware power brake",)
    assert gpu.describe(BARE).other_processes == ("blender (pid 7)",)


def test_reasons_that_throttle_carry_the_words_that_statistics_look_for() -> None:
    throttling = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
    for bit, words in CLOCK_REASONS:
        assert any(word in words for word in THROTTLE_WORDS) == bool(bit & throttling)
    assert clock_reasons(0) == ()
    assert clock_reasons(0x1 | 0x8000) == ("idle", "reason 0x8000")


def query(**lists: Any) -> Query:
    return Query(library(nvmlSystemGetProcessName=refuse(NOT_FOUND), **lists), UUID)


def host(root: Path, *pids: int, namespace: str = "pid:[4026531836]") -> Machine:
    for pid in pids:
        folder = root / f"proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"program{pid}\n")
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(namespace)
    return Machine(root)


def test_other_processes_are_named_and_our_own_left_out(tmp_path: Path) -> None:
    found = query(
        nvmlDeviceGetComputeRunningProcesses=[process(os.getpid()), process(50), process(60)],
        nvmlDeviceGetGraphicsRunningProcesses=[process(70), process(50)],
        nvmlDeviceGetMPSComputeRunningProcesses=[process(80)],
    )
    answer = other_processes(found, own_pids=(60,), machine=host(tmp_path, 50, 70))
    assert answer.value == (
        "program50 (pid 50)", "program70 (graphics, pid 70)", "a process not visible from here (MPS client, pid 80)",
    )  # fmt: skip


def test_only_in_a_pid_namespace_a_foreign_process_may_be_ourselves(tmp_path: Path) -> None:
    found = query(nvmlDeviceGetComputeRunningProcesses=[process(90001), process(90002)])
    machine = host(tmp_path / "container", namespace="pid:[4026532448]")
    assert other_processes(found, machine=machine).value == ("a process not visible from here (pid 90002)",)
    assert len(other_processes(found, context_open=False, machine=machine).value) == 2
    machine = host(tmp_path / "host")
    assert len(other_processes(found, machine=machine).value) == 2
    refused = refuse(NO_PERMISSION)
    found = query(nvmlDeviceGetComputeRunningProcesses=refused, nvmlDeviceGetComputeRunningProcesses_v2=refused)
    assert other_processes(found, machine=machine)[:2] == (None, f"NVML error {NO_PERMISSION}")


def counting(*readings: list[Any]) -> tuple[NvmlGpu, list[Any]]:
    """A GPU with these readings of its counters, and which fields were asked for."""
    left, asked = iter(readings), []
    fields = lambda handle, ids: asked.append(ids) or next(left)  # noqa: E731
    return NvmlGpu(UUID, library(nvmlDeviceGetFieldValues=fields)), asked


def test_counters_are_totals_since_the_first_reading_across_a_wrap() -> None:
    gpu, asked = counting(*([field(a), field(b)] for a, b in ((2**32 - 10, 5), (20, 5), (21, 2**32 - 1))))
    assert gpu.pcie_bytes() == (0, 0, False)
    assert gpu.pcie_bytes() == (30, 0, False)
    assert gpu.pcie_bytes() == (31, 2**32 - 6, False)
    assert asked == [[197, 198]] * 3, "sent, then received"


def test_counters_that_stop_or_were_never_there_are_a_skip() -> None:
    gpu, _ = counting([field(1), field(1)], [field(0, NOT_SUPPORTED)] * 2)
    gpu.pcie_bytes()
    with pytest.raises(Skip, match="stopped answering"):
        gpu.pcie_bytes()
    refused = refuse(NOT_SUPPORTED)
    gpu = NvmlGpu(UUID, library(nvmlDeviceGetFieldValues=refused, nvmlDeviceGetPcieThroughput=refused))
    with pytest.raises(Skip, match="no PCIe counters: NVML error 3"):
        gpu.pcie_bytes()
    gpu.close()
    gpu.close()


def test_without_counters_rates_are_sampled_and_marked_coarse() -> None:
    gpu = NvmlGpu(
        UUID,
        library(
            nvmlDeviceGetFieldValues=[field(0, NOT_SUPPORTED), field(0, NOT_SUPPORTED)],
            nvmlDeviceGetPcieThroughput=lambda handle, which: {0: 1_000_000, 1: 3_000_000}[which],
        ),
    )
    before, after = gpu.pcie_bytes(), gpu.pcie_bytes()
    gpu.close()
    assert before.coarse
    assert after.coarse
    sent, received = after.sent - before.sent, after.received - before.received
    assert received > 0
    assert received == pytest.approx(3 * sent, abs=5)


def test_values_of_other_types_are_read_by_their_type() -> None:
    wide = SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=1 << 40, uiVal=0))
    assert field_value(wide) == 1 << 40
    assert field_value(SimpleNamespace(nvmlReturn=0, valueType=99, value=None)) is None


def test_boards_in_mig_mode_are_counted_by_board() -> None:
    modes = {"a": [1, 1], "b": [0, 0]}
    stand_in = library(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: "ab"[index],
        nvmlDeviceGetMigMode=lambda handle: modes[handle],
    )
    assert boards_in_mig_mode(stand_in) == 1
    assert boards_in_mig_mode(library(nvmlInit=refuse(9))) is None

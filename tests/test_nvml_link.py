"""NVLink, C2C and the way to other GPUs through a stand-in for pynvml."""

from types import SimpleNamespace
from typing import Any

import nvml_stand_in as nvml
import pytest

from microbench.gpu.machine import topology
from microbench.gpu.machine.nvml import nvlink_errors
from microbench.gpu.machine.query import Query

OTHER = "0000:1b:00.0"
UP = topology.NvLinks((0, 1))


def query(**functions: Any) -> Query:
    return Query(nvml.library(**functions), nvml.UUID)


def without(*fields: int) -> Any:
    return nvml.field_values({number: value for number, value in nvml.FIELDS.items() if number not in fields})


def test_links_that_are_up() -> None:
    assert topology.nvlinks(query()).up == 18
    some = query(nvmlDeviceGetNvLinkState=lambda handle, link: (1, 0, 1)[link] if link < 3 else nvml.refuse(2)())
    assert topology.nvlinks(some) == topology.NvLinks((0, 2))


@pytest.mark.parametrize("code", [nvml.NOT_SUPPORTED, nvml.FUNCTION_NOT_FOUND])
def test_a_gpu_without_nvlink_has_none_up(code: int) -> None:
    assert topology.nvlinks(query(nvmlDeviceGetNvLinkState=nvml.refuse(code))).up == 0


def test_links_that_cannot_be_asked_for_are_unknown() -> None:
    found = topology.nvlinks(query(nvmlDeviceGetNvLinkState=nvml.refuse(nvml.NO_PERMISSION)))
    assert (found.up, found.reason) == (None, "NVML error 4")


def test_speed_of_a_link_in_one_direction() -> None:
    assert topology.nvlink_bytes_per_s(query(), UP).value == 26.562e9
    assert topology.nvlink_bytes_per_s(query(nvmlDeviceGetFieldValues=without(90)), UP).value == 26.562e9
    refused = topology.nvlink_bytes_per_s(query(nvmlDeviceGetFieldValues=without(90, 164)), UP)
    assert (refused.value, refused.reason) == (None, "NVML refuses field 90 with code 3")
    assert topology.nvlink_bytes_per_s(query(), topology.NvLinks()).reason == "no NVLink is up"
    assert topology.nvlink_bytes_per_s(query(), topology.NvLinks(reason="closed")).reason == "closed"


def test_versions() -> None:
    assert topology.nvlink_version(query(), UP).value == "4.0"
    newer = topology.nvlink_version(query(nvmlDeviceGetNvLinkVersion=99), UP)
    assert (newer.value, newer.reason) == (None, "not known here")


def test_peers() -> None:
    assert topology.nvlink_peers(query(), UP).value == "switch"
    mixed = query(nvmlDeviceGetNvLinkRemoteDeviceType=lambda handle, link: (0, 1)[link])
    assert topology.nvlink_peers(mixed, UP).value == "gpu, processor"
    assert topology.nvlink_peers(query(nvmlDeviceGetNvLinkRemoteDeviceType=255), UP).reason == "NVML does not know"


def test_errors_are_those_of_all_links() -> None:
    assert nvlink_errors(query(), UP).value == 2 * (1 + 0 + 2)
    newer = {number: value for number, value in nvml.FIELDS.items() if number not in (161, 162, 163)} | {208: 4, 212: 1}
    assert nvlink_errors(query(nvmlDeviceGetFieldValues=nvml.field_values(newer)), UP).value == 2 * (4 + 1)
    refused = nvlink_errors(query(nvmlDeviceGetFieldValues=without(161, 162, 163)), UP)
    assert (refused.value, refused.reason) == (None, "NVML refuses field 208 with code 3")


@pytest.mark.parametrize(("mode", "links", "value"), [
    (SimpleNamespace(isC2cEnabled=1), 0, True), (SimpleNamespace(isC2cEnabled=0), 0, False),
    (nvml.refuse(nvml.NOT_SUPPORTED), 10, True), (nvml.refuse(nvml.NOT_SUPPORTED), None, False),
    ("absent", None, False), (nvml.refuse(nvml.NO_PERMISSION), 0, False), (nvml.refuse(nvml.NO_PERMISSION), None, None),
])  # fmt: skip
def test_the_coherent_link(mode: Any, links: int | None, value: bool | None) -> None:
    fields = without(170) if links is None else nvml.field_values({**nvml.FIELDS, 170: links})
    found = topology.coherent(query(nvmlDeviceGetC2cModeInfoV=mode, nvmlDeviceGetFieldValues=fields))
    assert found.value is value
    assert (found.reason is None) == (value is not None)


def test_a_switch_joins_two_gpus_only_where_nvml_says_so() -> None:
    assert [answer.value for answer in topology.topology(query(), UP, OTHER)] == ["NV2", "SYS"]
    apart = query(nvmlDeviceGetP2PStatus=5)
    assert [answer.value for answer in topology.topology(apart, UP, OTHER)] == ["none", "SYS"]


def test_links_straight_to_the_other_gpu_are_counted() -> None:
    ends = {0: b"00000000:1B:00.0", 1: b"00000000:1C:00.0"}
    straight = query(
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: SimpleNamespace(busId=ends[link]),
        nvmlDeviceGetNvLinkRemoteDeviceType=0,
    )
    assert topology.topology(straight, UP, OTHER)[0].value == "NV1"
    assert topology.topology(straight, UP, "0000:98:00.0")[0].value == "none"


@pytest.mark.parametrize(
    ("level", "words"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (60, None)]
)
def test_levels_of_pcie(level: int, words: str | None) -> None:
    found = topology.topology(query(nvmlDeviceGetTopologyCommonAncestor=level), topology.NvLinks(), OTHER)
    assert [answer.value for answer in found] == ["none", words]
    found = topology.topology(query(nvmlDeviceGetHandleByPciBusId=nvml.refuse(nvml.NOT_FOUND)), UP, OTHER)
    assert [answer.reason for answer in found] == ["NVML error 6", "NVML error 6"]

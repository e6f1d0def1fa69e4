"""NVLink, C2C and the way to other GPUs through a stand-in for pynvml."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvml_stand_in import (
    FIELDS,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    UUID,
    field_values,
    library,
    refuse,
)

from microbench.core.model import GpuInfo
from microbench.gpu.machine.counters import nvlink_errors
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.query import Query
from microbench.gpu.machine.topology import (
    NvLinks,
    coherent,
    nvlink_bytes_per_s,
    nvlink_peers,
    nvlink_version,
    nvlinks,
    topology,
)

OTHER = "0000:1b:00.0"
UP = NvLinks((0, 1))


def query(**functions: Any) -> Query:
    return Query(library(**functions), UUID)


def without(*fields: int) -> Any:
    return field_values({number: value for number, value in FIELDS.items() if number not in fields})


def test_links_that_are_up() -> None:
    assert nvlinks(query()).up == 18
    some = query(nvmlDeviceGetNvLinkState=lambda handle, link: (1, 0, 1)[link] if link < 3 else refuse(2)())
    assert nvlinks(some) == NvLinks((0, 2))


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_a_gpu_without_nvlink_has_none_up(code: int) -> None:
    assert nvlinks(query(nvmlDeviceGetNvLinkState=refuse(code))).up == 0


def test_links_that_cannot_be_asked_for_are_unknown() -> None:
    found = nvlinks(query(nvmlDeviceGetNvLinkState=refuse(NO_PERMISSION)))
    assert (found.up, found.reason) == (None, "NVML error 4")


def test_speed_of_a_link_in_one_direction() -> None:
    assert nvlink_bytes_per_s(query(), UP).value == 26.562e9
    assert nvlink_bytes_per_s(query(nvmlDeviceGetFieldValues=without(90)), UP).value == 26.562e9
    refused = nvlink_bytes_per_s(query(nvmlDeviceGetFieldValues=without(90, 164)), UP)
    assert (refused.value, refused.reason) == (None, "NVML refuses field 90 with code 3")
    assert nvlink_bytes_per_s(query(), NvLinks()).reason == "no NVLink is up"
    assert nvlink_bytes_per_s(query(), NvLinks(reason="closed")).reason == "closed"


def test_versions() -> None:
    assert nvlink_version(query(), UP).value == "4.0"
    newer = nvlink_version(query(nvmlDeviceGetNvLinkVersion=99), UP)
    assert (newer.value, newer.reason) == (None, "not known here")


def test_peers() -> None:
    assert nvlink_peers(query(), UP).value == "switch"
    mixed = query(nvmlDeviceGetNvLinkRemoteDeviceType=lambda handle, link: (0, 1)[link])
    assert nvlink_peers(mixed, UP).value == "gpu, processor"
    assert nvlink_peers(query(nvmlDeviceGetNvLinkRemoteDeviceType=255), UP).reason == "NVML does not know"


def test_errors_are_those_of_all_links() -> None:
    assert nvlink_errors(query(), UP).value == 2 * (1 + 0 + 2)
    newer = {number: value for number, value in FIELDS.items() if number not in (161, 162, 163)} | {208: 4, 212: 1}
    assert nvlink_errors(query(nvmlDeviceGetFieldValues=field_values(newer)), UP).value == 2 * (4 + 1)
    refused = nvlink_errors(query(nvmlDeviceGetFieldValues=without(161, 162, 163)), UP)
    assert (refused.value, refused.reason) == (None, "NVML refuses field 208 with code 3")


@pytest.mark.parametrize(
    ("mode", "links", "value"),
    [
        (SimpleNamespace(isC2cEnabled=1), 0, True),
        (SimpleNamespace(isC2cEnabled=0), 0, False),
        (refuse(NOT_SUPPORTED), 10, True),
        (refuse(NOT_SUPPORTED), None, False),
        ("absent", None, False),
        (refuse(NO_PERMISSION), 0, False),
        (refuse(NO_PERMISSION), None, None),
    ],
)
def test_the_coherent_link(mode: Any, links: int | None, value: bool | None) -> None:
    fields = without(170) if links is None else field_values({**FIELDS, 170: links})
    found = coherent(query(nvmlDeviceGetC2cModeInfoV=mode, nvmlDeviceGetFieldValues=fields))
    assert found.value is value
    assert (found.reason is None) == (value is not None)


def test_a_switch_joins_two_gpus_only_where_nvml_says_so() -> None:
    assert [answer.value for answer in topology(query(), UP, OTHER)] == ["NV2", "SYS"]
    apart = query(nvmlDeviceGetP2PStatus=5)
    assert [answer.value for answer in topology(apart, UP, OTHER)] == ["none", "SYS"]


def test_links_straight_to_the_other_gpu_are_counted() -> None:
    ends = {0: b"00000000:1B:00.0", 1: b"00000000:1C:00.0"}
    straight = query(
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: SimpleNamespace(busId=ends[link]),
        nvmlDeviceGetNvLinkRemoteDeviceType=0,
    )
    assert topology(straight, UP, OTHER)[0].value == "NV1"
    assert topology(straight, UP, "0000:98:00.0")[0].value == "none"


@pytest.mark.parametrize(
    ("level", "words"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (60, None)]
)
def test_levels_of_pcie(level: int, words: str | None) -> None:
    found = topology(query(nvmlDeviceGetTopologyCommonAncestor=level), NvLinks(), OTHER)
    assert [answer.value for answer in found] == ["none", words]


def test_a_gpu_that_nvml_does_not_know() -> None:
    found = topology(query(nvmlDeviceGetHandleByPciBusId=refuse(NOT_FOUND)), UP, OTHER)
    assert [answer.reason for answer in found] == ["NVML error 6", "NVML error 6"]


def test_a_mig_instance_has_the_links_of_its_board() -> None:
    def board_only(handle: str, *arguments: Any) -> Any:
        return 1 if handle == "board" else refuse(INVALID_ARGUMENT)()

    stand_in = library(
        nvmlDeviceGetHandleByUUID=lambda uuid: "instance",
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: "board",
        nvmlDeviceGetNvLinkState=board_only,
        nvmlDeviceGetMaxPcieLinkGeneration=board_only,
    )
    link = NvmlGpu(UUID, stand_in).describe(GpuInfo("GPU", UUID)).link
    assert (link.nvlinks, link.generation_max) == (36, 1)

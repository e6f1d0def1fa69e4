"""Error counters of a GPU's links, read before and after a load: what rose meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from microbench.gpu.nvml import NvmlGpu
from microbench.gpu.nvml_link import nvlink_errors, nvlinks
from microbench.gpu.nvml_query import Answer
from microbench.gpu.nvml_tables import (
    FIELD_PCIE_CORRECTABLE,
    FIELD_PCIE_FATAL,
    FIELD_PCIE_NONFATAL,
    FIELD_PCIE_REPLAY_ROLLOVERS,
    FIELD_PCIE_REPLAYS,
)
from microbench.gpu.pci import DEVICES, NOT_SHOWN, way_to_root
from microbench.host.files import Machine, known, labelled, unknown
from microbench.model import Fact

RISEN = "_risen"
# Advanced error reporting in sysfs (kernel: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats): the file, the
# line with its total, and NVML's field where no device of the way has the file.
REPORTED_ERRORS = (
    ("pcie_correctable_errors", "aer_dev_correctable", "TOTAL_ERR_COR", FIELD_PCIE_CORRECTABLE),
    ("pcie_nonfatal_errors", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", FIELD_PCIE_NONFATAL),
    ("pcie_fatal_errors", "aer_dev_fatal", "TOTAL_ERR_FATAL", FIELD_PCIE_FATAL),
)


def link_counters(bus_id: str | None, nvml: NvmlGpu, root: Path = Path("/")) -> tuple[Fact, ...]:
    """Errors since boot or since the driver was loaded; each unknown with its reason. Never raises.

    Replays, replays given up for a new training of the link, errors that the devices on the way reported (the GPU's
    and every bridge's, together), and errors of all NVLinks.
    """
    query = nvml.query
    replays = query.ask_board("nvmlDeviceGetPcieReplayCounter")
    replays = replays if replays.value is not None else query.board_field(FIELD_PCIE_REPLAYS)
    way = [hop.bus_id for hop in way_to_root(bus_id, root).hops]
    return (
        replays.fact("pcie_replays"),
        query.board_field(FIELD_PCIE_REPLAY_ROLLOVERS).fact("pcie_replay_rollovers"),
        *(
            _reported(name, file, line, way, query.board_field(field), root)
            for name, file, line, field in REPORTED_ERRORS
        ),
        nvlink_errors(query, nvlinks(query)).fact("nvlink_errors"),
    )


def counters_risen(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Fact, ...]:
    """For each counter how far it rose between two readings, as ``<name>_risen``; unknown where either reading is."""
    earlier = {fact.name: fact for fact in before}
    return tuple(_risen(earlier[fact.name], fact) for fact in after if fact.name in earlier)


def _risen(before: Fact, after: Fact) -> Fact:
    name, first, last = after.name + RISEN, before.value, after.value
    if not isinstance(first, int) or not isinstance(last, int):
        return unknown(name, before.reason or after.reason or "no number", after.source)
    if last < first:
        return unknown(name, "the counter was set back meanwhile", after.source)
    if before.source != after.source:
        return unknown(name, f"not the same counters: {before.source}, then {after.source}", after.source)
    return known(name, last - first, after.source)


def _reported(name: str, file: str, line: str, way: list[str], answer: Answer, root: Path) -> Fact:
    """The total over the devices on the way that have the counter; NVML's word on the GPU's own where none has."""
    machine = Machine(root)
    totals = {hop: labelled(machine.read(f"{DEVICES}/{hop}/{file}").text, line, " ") for hop in way}
    counted = {hop: int(total) for hop, total in totals.items() if total and total.isdigit()}
    if counted:
        return known(name, sum(counted.values()), f"{file} of {', '.join(counted)}")
    if answer.value is not None:
        return known(name, answer.value, "NVML")
    hidden = "no device on the way reports errors in sysfs" if way else NOT_SHOWN
    return unknown(name, f"{hidden}; {answer.why_none}", file)

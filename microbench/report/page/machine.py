"""The machine and the commands behind a run's figures, as tables: GPUs, host, packages, sessions, how to repeat."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from microbench.core.model import Environment, GpuInfo, Run, Session, Settings
from microbench.core.units import MISSING, as_time, axis_title, quantity, short_size
from microbench.report.document import Cell, Column, Table
from microbench.report.tables import fact_words

DISTRIBUTION = "cuda-microbench"
SHORT_COMMIT = 12
REPEATED = "again.json"
FLOORS = {
    "timer_step_s": "the host clock's step", "timer_call_s": "reading the host's clock",
    "empty_submit_s": "submitting an empty kernel", "event_pair_s": "between two events",
    "event_step_s": "the step of events", "idle_sync_s": "an idle synchronise",
}  # fmt: skip


def machine_tables(run: Run) -> tuple[Table, ...]:
    """What the newest session knew of its machine; what each session was."""
    where = run.sessions[-1].environment
    tables = (_gpus(where.gpus), _software(where), _facts(where), _packages(where), _sessions(run.sessions))
    return tuple(table for table in tables if table.rows)


def _gpus(gpus: tuple[GpuInfo, ...]) -> Table:
    known = [dict(_gpu(gpu)) for gpu in gpus]
    names = list(dict.fromkeys(name for words in known for name in words))
    rows = tuple((Cell(name), *(_cell(words.get(name)) for words in known)) for name in names)
    titles = [f"GPU {gpu.index}" if len(gpus) > 1 else "value" for gpu in gpus]
    return Table("GPU", "", (Column("what", "left"), *(Column(title, "left") for title in titles)), rows)


def _gpu(gpu: GpuInfo) -> Iterable[tuple[str, str | None]]:
    link = gpu.link
    yield "name", gpu.name
    yield "UUID", gpu.uuid
    yield "PCI address", gpu.pci_bus_id
    yield "compute capability", "{}.{}".format(*gpu.compute_capability) if gpu.compute_capability else None
    yield "SMs", _number(gpu.sm_count)
    yield "L2", _size(gpu.l2_bytes)
    yield "memory", _size(gpu.memory_bytes)
    yield "memory bus", f"{gpu.memory_bus_bits} bits" if gpu.memory_bus_bits else None
    yield "highest SM clock", _quantity(gpu.sm_clock_max_hz, "Hz")
    yield "highest memory clock", _quantity(gpu.memory_clock_max_hz, "Hz")
    yield "power limit", _quantity(gpu.power_limit_w, "W")
    yield "ECC", _switch(gpu.ecc)
    yield "MIG", _switch(gpu.mig)
    yield "persistence", _switch(gpu.persistence)
    yield "confidential computing", _switch(gpu.confidential_computing)
    yield "NUMA node", _number(gpu.numa_node)
    yield "PCIe at most", _pcie(link.generation_max, link.lanes_max)
    yield "PCIe when asked", _pcie(link.generation_now, link.lanes_now)
    yield "payload of a packet", _size(link.max_payload_bytes)
    yield "read request", _size(link.max_read_request_bytes)
    yield "NVLinks", _number(link.nvlinks)
    yield "other processes", None if gpu.other_processes is None else ", ".join(gpu.other_processes) or "none"


def _cell(words: str | None) -> Cell:
    return Cell(words) if words is not None else Cell(MISSING, tone="quiet")


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _size(value: int | None) -> str | None:
    return None if value is None else short_size(value)


def _quantity(value: float | None, unit: str) -> str | None:
    return None if value is None else quantity(value, unit)


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _pcie(generation: int | None, lanes: int | None) -> str | None:
    return f"{generation}.0 x{lanes}" if generation and lanes else None


def _software(where: Environment) -> Table:
    named = {
        "driver": where.driver_version, "CUDA of the driver": where.cuda_driver_version,
        "CUDA toolkit": where.cuda_toolkit_version,
    }  # fmt: skip
    rows = tuple((Cell(name), Cell(version)) for name, version in named.items() if version)
    return Table("Software", "", (Column("what", "left"), Column("version", "left")), rows)


def _facts(where: Environment) -> Table:
    rows = tuple(
        (
            Cell(axis_title(fact.name)),
            Cell(fact_words(fact), tone="quiet" if fact.value is None else "plain"),
            Cell(fact.source, tone="quiet"),
        )
        for fact in where.facts
    )
    columns = (Column("what", "left"), Column("value", "left"), Column("source", "left", drop=1))
    return Table("Host", "", columns, rows)


def _packages(where: Environment) -> Table:
    rows = tuple((Cell(name), Cell(version)) for name, version in where.packages.items())
    return Table("Packages", "", (Column("package", "left"), Column("version", "left")), rows)


def _sessions(sessions: tuple[Session, ...]) -> Table:
    names = [name for name in FLOORS if any(getattr(one.floors, name) is not None for one in sessions)]
    columns = (
        Column("began (UTC)", "left"), Column("measured", "left"), Column("rounds"), Column("microbench", "left"),
        Column("commit", "left", drop=1), *(Column(FLOORS[name], drop=2) for name in names),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(one.started_at[:19].replace("T", " ")),
            Cell(", ".join(one.settings.select) or "everything", one.settings.preset),
            Cell(str(one.settings.rounds)),
            Cell(one.tool_version),
            _cell(one.commit[:SHORT_COMMIT] if one.commit else None),
            *(_cell(_time(getattr(one.floors, name))) for name in names),
        )
        for one in sessions
    )
    return Table("Sessions", "floors: the least that each way of timing can see", columns, rows)


def _time(value_s: float | None) -> str | None:
    return None if value_s is None else as_time(value_s)


def commands(run: Run) -> tuple[str, ...]:
    """What to type to measure the same again: the version, then each session as it was asked for, into one run."""
    install = f"pip install {DISTRIBUTION}=={shlex.quote(run.sessions[-1].tool_version)}"
    asked = list(dict.fromkeys(shlex.join(_command(one.settings)) for one in run.sessions))
    if len(asked) > 1:
        asked = [f"{asked[0]} --out {REPEATED}", *(f"{command} --into {REPEATED}" for command in asked[1:])]
    return (install, *asked)


def _command(settings: Settings) -> list[str]:
    words = ["microbench", "run", *settings.select]
    words += [f"--{settings.preset}"] if settings.preset != "default" else []
    for name, values in settings.overrides.items():
        words += ["--set", f"{name}={','.join(map(str, values))}"]
    words += ["--device", settings.device] if settings.device is not None else []
    words += ["--rounds", str(settings.rounds)] if settings.rounds != 1 else []
    words += ["--time-limit", f"{settings.time_limit_s:g}"] if settings.time_limit_s is not None else []
    return words

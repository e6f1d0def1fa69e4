"""The machine and the commands behind a run's figures, as tables: GPUs, host, packages, sessions, how to repeat."""

import shlex
from collections.abc import Iterable

from microbench.core.model import GpuInfo, Run, Session
from microbench.core.units import as_time, axis_title, quantity, short_size
from microbench.explain.environment import errors_in_words
from microbench.report.document import Cell, Column, Table, columns
from microbench.report.tables import NOTHING, fact_cell, value_cell

SHORT_COMMIT = 12
REPEATED = "again.json"
FLOORS = {
    "timer_step_s": "the host clock's step", "timer_call_s": "reading the host's clock",
    "empty_submit_s": "submitting an empty kernel", "event_pair_s": "between two events",
    "event_step_s": "the step of events", "idle_sync_s": "an idle synchronise",
}  # fmt: skip


def machine_tables(run: Run) -> tuple[Table, ...]:
    """The machine of the newest session, and every session."""
    where = run.sessions[-1].environment
    packages = tuple((Cell(name), Cell(version)) for name, version in where.packages.items())
    package_table = Table("Packages", "", columns("package", "version", left=2), packages)
    named = {
        "driver": where.driver_version, "CUDA of the driver": where.cuda_driver_version,
        "CUDA toolkit": where.cuda_toolkit_version,
    }  # fmt: skip
    versions = tuple((Cell(name), Cell(version)) for name, version in named.items() if version)
    software = Table("Software", "", columns("what", "version", left=2), versions)
    facts = tuple(
        (Cell(axis_title(fact.name)), fact_cell([fact]), Cell(fact.source, tone="quiet")) for fact in where.facts
    )
    host = Table("Host", "", columns("what", "value", "source", left=3, drop={"source": 1}), facts)
    each = zip(*map(_gpu_rows, where.gpus), strict=True)
    rows = tuple((Cell(members[0][0]), *(cell for _, cell in members)) for members in each)
    titles = [f"GPU {gpu.index}" if len(where.gpus) > 1 else "value" for gpu in where.gpus]
    gpus = Table("GPU", "", columns("what", *titles, left=1 + len(titles)), rows)
    tables = (gpus, software, host, package_table, _sessions(run.sessions))
    return tuple(table for table in tables if table.rows)


def _gpu_rows(gpu: GpuInfo) -> Iterable[tuple[str, Cell]]:
    link = gpu.link
    for name, text in (("name", gpu.name), ("UUID", gpu.uuid), ("PCI address", gpu.pci_bus_id)):
        yield name, value_cell(text, str)
    yield "compute capability", value_cell(gpu.compute_capability or None, lambda pair: "{}.{}".format(*pair))
    yield "SMs", value_cell(gpu.sm_count, str)
    yield "L2", value_cell(gpu.l2_bytes, short_size)
    yield "memory", value_cell(gpu.memory_bytes, short_size)
    yield "memory bus", value_cell(gpu.memory_bus_bits or None, lambda bits: f"{bits} bits")
    for name, hz in (("highest SM clock", gpu.sm_clock_max_hz), ("highest memory clock", gpu.memory_clock_max_hz)):
        yield name, value_cell(hz, lambda value: quantity(value, "Hz"))
    yield "power limit", value_cell(gpu.power_limit_w, lambda watts: quantity(watts, "W"))
    switches = {
        "ECC": gpu.ecc, "MIG": gpu.mig, "persistence": gpu.persistence,
        "confidential computing": gpu.confidential_computing,
    }  # fmt: skip
    for name, switch in switches.items():
        yield name, value_cell(switch, lambda on: "on" if on else "off")
    yield "memory errors", value_cell(errors_in_words(gpu.memory_errors), str)
    yield "NUMA node", value_cell(gpu.numa_node, str)
    speeds = {"at most": (link.generation_max, link.lanes_max), "when asked": (link.generation_now, link.lanes_now)}
    for when, (generation, lanes) in speeds.items():
        yield f"PCIe {when}", Cell(f"{generation}.0 x{lanes}") if generation and lanes else NOTHING
    yield "payload of a packet", value_cell(link.max_payload_bytes, short_size)
    yield "read request", value_cell(link.max_read_request_bytes, short_size)
    yield "NVLinks", value_cell(link.nvlinks, str)
    yield "other processes", value_cell(gpu.other_processes, lambda names: ", ".join(names) or "none")


def _sessions(sessions: tuple[Session, ...]) -> Table:
    names = [name for name in FLOORS if any(getattr(one.floors, name) is not None for one in sessions)]
    titles = (
        *columns("began (UTC)", "measured", "rounds", left=2), Column("microbench", "left"),
        Column("commit", "left", drop=1), *(Column(FLOORS[name], drop=2) for name in names),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(one.started_at[:19].replace("T", " ")),
            Cell(", ".join(one.settings.select) or "everything", one.settings.preset),
            Cell(str(one.settings.rounds)),
            Cell(one.tool_version),
            value_cell(one.commit or None, lambda commit: commit[:SHORT_COMMIT]),
            *(value_cell(getattr(one.floors, name), as_time) for name in names),
        )
        for one in sessions
    )
    return Table("Sessions", "floors: the least that each way of timing can see", titles, rows)


def commands(run: Run) -> tuple[str, ...]:
    """The commands that repeat the run: install its version, then measure each session again into one run."""
    latest = run.sessions[-1]
    commit = f", commit {shlex.quote(latest.commit[:SHORT_COMMIT])}" if latest.commit else ""
    install = f"pip install .  # in a checkout of microbench {shlex.quote(latest.tool_version)}{commit}"
    several = []
    for settings in (one.settings for one in run.sessions):
        words = ["microbench", "run", *settings.select]
        words += [f"--{settings.preset}"] if settings.preset != "default" else []
        for name, values in settings.overrides.items():
            words += ["--set", f"{name}={','.join(map(str, values))}"]
        words += ["--device", settings.device] if settings.device is not None else []
        words += ["--rounds", str(settings.rounds)] if settings.rounds != 1 else []
        words += ["--time-limit", f"{settings.time_limit_s:g}"] if settings.time_limit_s is not None else []
        several.append(shlex.join(words))
    asked = list(dict.fromkeys(several))
    if len(asked) > 1:
        asked = [f"{asked[0]} --out {REPEATED}", *(f"{command} --into {REPEATED}" for command in asked[1:])]
    return (install, *asked)

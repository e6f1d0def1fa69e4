"""Runs of the link suite on the simulated machine, with other facts of the link and as many GPUs as a test asks for."""

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fake_session import run_case
from make_run import DEVICE, make_run, measurement, outcome, with_suite
from msgspec.structs import replace

from microbench.core.bench import Preset, discover
from microbench.core.model import Environment, Fact, Measurement, Outcome, Param, Run, Scalar, Work
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.gpu import fake_environment
from microbench.meter.sampling import SamplingLimits

KIB, MIB = 1 << 10, 1 << 20
# Grids of these runs: a change of a benchmark's own grid changes no test.
GRIDS: dict[str, dict[str, tuple[Param, ...]]] = {
    "link_copy": {"size_bytes": (1, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)},
    "link_bidirectional": {"size_bytes": (64 * MIB,)},
    "link_zero_copy": {"width_bytes": (4, 16), "offset_bytes": (0, 32), "size_bytes": (256 * MIB,)},
    "link_latency": {"footprint_bytes": (0, 2 * MIB, 64 * MIB), "order": ("sequential", "random")},
    "link_pinning": {"size_bytes": (64 * KIB, 4 * MIB, 64 * MIB)},
    "link_chunks": {"chunks": (1, 4, 16), "streams": (1, 2), "size_bytes": (64 * MIB,)},
    "link_managed": {"size_bytes": (64 * MIB,)},
    "link_numa": {"size_bytes": (64 * MIB,)},
    "link_peer": {"access": ("on", "off"), "size_bytes": (0, 64 * MIB)},
}
MEASURED = (
    "link_bidirectional", "link_chunks", "link_concurrent", "link_copy", "link_latency", "link_managed", "link_numa",
    "link_peer", "link_pinning", "link_zero_copy",
)  # fmt: skip
FEW = SamplingLimits(seconds=0.001, minimum=20)

Facts = Mapping[str, Scalar]
FLAT: Facts = {
    "generation_now": 5, "lanes_now": 16, "generation_gpu_max": 5, "lanes_gpu_max": 16, "generation_slot_max": None,
    "lanes_slot_max": None, "max_payload_bytes": 256, "max_read_request_bytes": 512,
    "read_completion_boundary_bytes": 64, "relaxed_ordering": True, "extended_tags": True, "acs": None, "iommu": "off",
    "resizable_bar": True, "bar1_bytes": 1 << 37, "numa_node": None, "hops": 1, "switches": None,
    "hop0_bus_id": "0000:00:06.0", "hop0_kind": "endpoint", "hop0_generation_now": 5, "hop0_lanes_now": 16,
    "hop0_generation_max": 5, "hop0_lanes_max": 16, "hop0_max_payload_bytes": 256, "root": "pci0000:00",
    "virtual_bus": True, "nvlinks": 0, "c2c": False, "pcie_replays_risen": 0, "pcie_correctable_errors_risen": 0,
}  # fmt: skip
HIDDEN = "a virtual machine shows a flat bus"
KINDS = (
    "endpoint", "switch downstream port", "switch upstream port", "switch downstream port", "switch upstream port",
    "root port",
)  # fmt: skip
HOP_IDS = ("3e:00.0", "3d:08.0", "3c:00.0", "3b:00.0", "3a:00.0", "39:01.0")


def two_switches(**other: Scalar) -> Facts:
    """Facts of a bare-metal machine with two switches above its GPU, some of them changed."""
    hops: dict[str, Scalar] = {}
    for index, (kind, bus_id) in enumerate(zip(KINDS, HOP_IDS, strict=True)):
        values = (f"0000:{bus_id}", kind, 5, 16, 5, 16, 256)
        names = ("bus_id", "kind", "generation_now", "lanes_now", "generation_max", "lanes_max", "max_payload_bytes")
        hops |= {f"hop{index}_{name}": value for name, value in zip(names, values, strict=True)}
    metal: dict[str, Scalar] = {
        "generation_slot_max": 5, "lanes_slot_max": 16, "acs": False, "iommu": "passthrough", "numa_node": 1,
        "hops": 6, "switches": 2, "root": "pci0000:39", "virtual_bus": False, "topology_gpu1": "PIX",
        "topology_mlx5_0": "NODE",
    }  # fmt: skip
    return {**FLAT, **metal, **hops, **other}


def rate(name: str, value: float, size_bytes: int, bound: str | None = None, **more: object) -> Measurement:
    """A rate as samples: seconds of one copy of ``size_bytes``."""
    one = measurement(name, size_bytes / value, spread=0.001, work=Work(bytes=size_bytes), bound=bound, **more)
    return replace(one, verified="every byte compared", needs_verification=True)


def measured_batches(machine: str) -> dict[tuple[str, int, int], float]:
    """What link_batch measured on a real GPU, in B/s: by way, bytes of a piece, and pieces."""
    with (Path(__file__).parent.parent / "lab" / "measurements" / "batches.csv").open() as file:
        found = {row["what"]: float(row["microbench"]) for row in csv.DictReader(file) if row["machine"] == machine}
    words = {what: re.fullmatch(r"(\w+), (\d+) pieces of (\d+) KiB", what) for what in found}
    return {(at[1], int(at[3]) << 10, int(at[2])): found[what] * 1e9 for what, at in words.items() if at}


def with_batches(run: Run, batches: Mapping[tuple[str, int, int], float]) -> Run:
    """The run with these rates as link_batch's."""
    made, device = [], next(one.device for one in run.outcomes if one.device)
    for (way, size, pieces), value in batches.items():
        copied = [rate("bandwidth", value, size * pieces, "pcie_h2d")]
        one = outcome("link_batch", copied, way=way, piece_bytes=size, pieces_copied=pieces)
        made.append(replace(one, device=device))
    return with_suite(run, ("link_batch",), "full", made)


def state(facts: Facts) -> Outcome:
    """link_state's outcome with these facts; a fact without a value has a reason."""
    recorded = tuple(
        Fact(name, value, "sysfs", reason=HIDDEN if value is None else None) for name, value in facts.items()
    )
    return replace(outcome("link_state"), facts=recorded)


def machine(run: Run, gpus: int, nodes: int) -> Environment:
    """The hand-made machine with more GPUs and NUMA nodes."""
    here = run.sessions[-1].environment
    others = [replace(here.gpus[0], uuid=f"{DEVICE[:-1]}{index}", index=index) for index in range(gpus)]
    others[0] = here.gpus[0]
    facts = (*here.facts, Fact("numa_nodes", nodes, "made up"))
    return replace(here, gpus=tuple(others), facts=facts)


@cache
def measured(preset: Preset, gpus: int, nodes: int) -> list[Outcome]:
    """An outcome for each case of the suite's grid that can run on that machine."""
    costs = FakeCosts(gpus=gpus, link_bytes_per_s=59.73e9, links=LinkCosts(numa_nodes=nodes, uplink_factor=2.04))
    outcomes = []
    for name in MEASURED:
        benchmark = discover()[name]
        for case in benchmark.cases(preset, GRIDS.get(name) if preset == "default" else None):
            if benchmark.here(fake_environment(costs), case.params) is None:
                rows = run_case(benchmark, case, costs, spread=0.001, limits=FEW)
                one = outcome(name, [row for row in rows if isinstance(row, Measurement)], **case.params)
                outcomes.append(replace(one, facts=tuple(row for row in rows if isinstance(row, Fact))))
    return outcomes


def make_link_run(*, preset: Preset = "default", gpus: int = 1, nodes: int = 1, facts: Facts = FLAT) -> Run:
    run = make_run()
    outcomes = [state(facts), *measured(preset, gpus, nodes)]
    return with_suite(run, ("link_state", *MEASURED), preset, outcomes, machine(run, gpus, nodes))

"""Hand-made rows of the link suite, marked SIMULATED: every figure is invented, as if from PCIe 5.0 x16.

Cases, metrics and titles are those of the benchmarks.
"""

from collections.abc import Callable, Mapping

from make_run import DEVICE, make_run, measurement, outcome, per_call, with_suite
from msgspec.structs import replace

from microbench.core.bench import Preset, discover
from microbench.core.model import Environment, Fact, Measurement, Outcome, Param, Run, Scalar, Work

KIB, MIB = 1 << 10, 1 << 20
# A copy on the device: fixed time and bandwidth. On the host, call and wait add HOST_FIXED_S.
DEVICE_COPY = {"h2d": (1.3e-6, 55.4e9), "d2h": (1.5e-6, 55.3e9)}
HOST_FIXED_S = 7e-6
PAGEABLE = {"h2d": (9e-6, 15.9e9), "d2h": (12e-6, 15.4e9)}
TOGETHER = {"h2d": 46e9, "d2h": 51e9}
SUM_RATE = 98e9
ZERO_COPY = {"read": 50.5e9, "write": 52.0e9}
COUNTED = {"read": (1.1552, 0.1874), "write": (0.11, 1.1876)}
SMALL_S = {"flag": 1.7e-6, "copy_h2d": 8.4e-6, "copy_d2h": 8.1e-6, "memset": 6.1e-6}
# Pinning a buffer and releasing it: fixed seconds, and seconds for each MiB.
PINNING = {
    "allocate": ((30e-6, 180e-6), (20e-6, 60e-6)),
    "register": ((20e-6, 90e-6), (15e-6, 50e-6)),
    "touch": ((3e-6, 60e-6), (2e-6, 20e-6)),
}
MANAGED = {
    "fault_to_device": 11e9, "prefetch_to_device": 50e9, "read_mostly_to_device": 10.5e9, "again_on_device": 1900e9,
    "fault_to_host": 4e9, "prefetch_to_host": 49e9,
}  # fmt: skip
PEER = {
    "engine_read": 390e9, "engine_write": 395e9, "sm_read": 370e9, "sm_write": 380e9, "engine_both_read": 360e9,
    "engine_both_write": 365e9,
}  # fmt: skip
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
VERIFIED = "every byte compared with its pattern"

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
    return replace(one, verified=VERIFIED, needs_verification=True)


def copied(name: str, cost: tuple[float, float], size_bytes: int, bound: str, **more: object) -> Measurement:
    return rate(name, size_bytes / (cost[0] + size_bytes / cost[1]), size_bytes, bound, **more)


def copy(params: dict[str, Param]) -> list[Measurement]:
    direction, memory, size_bytes = str(params["direction"]), str(params["memory"]), int(params["size_bytes"])
    bound = f"pcie_{direction}"
    if memory == "pageable":
        return [copied("bandwidth_host", PAGEABLE[direction], size_bytes, bound)]
    fixed_s, bandwidth = DEVICE_COPY[direction]
    return [
        copied("bandwidth", (fixed_s, bandwidth), size_bytes, bound, clock="device"),
        copied("bandwidth_host", (fixed_s + HOST_FIXED_S, bandwidth), size_bytes, bound),
    ]


def bidirectional(params: dict[str, Param]) -> list[Measurement]:
    direction, size_bytes = str(params["direction"]), int(params["size_bytes"])
    return [
        rate("bandwidth", TOGETHER[direction], size_bytes, f"pcie_{direction}", clock="device"),
        rate("sum_bandwidth", SUM_RATE, 2 * size_bytes, "pcie_both", clock="device"),
    ]


def zero_copy(params: dict[str, Param]) -> list[Measurement]:
    access, width = str(params["access"]), int(params["width_bytes"])
    offset, size_bytes = int(params["offset_bytes"]), int(params["size_bytes"])
    share = (0.8 if offset and access == "read" else 1) * (0.97 if width == 4 else 1)
    value, bound = ZERO_COPY[access] * share, f"pcie_sm_{access}"
    received, sent = COUNTED[access]
    return [
        rate("bandwidth", value, size_bytes, bound, clock="device"),
        rate("bandwidth_host", value * 0.99, size_bytes, bound),
        measurement("received_per_byte", received, spread=0.0001, clock="counter"),
        measurement("sent_per_byte", sent, spread=0.0001, clock="counter"),
    ]


def latency(params: dict[str, Param]) -> list[Measurement]:
    what, footprint = str(params["what"]), int(params["footprint_bytes"])
    if what != "host_read":
        return [measurement("latency", SMALL_S[what], per_call=per_call(SMALL_S[what]))]
    own_s = 1.12e-6 * (1.5 if footprint > 2 * MIB and params["order"] == "random" else 1)
    return [measurement("latency", own_s, clock="device", calls=13_200, per_call=per_call(own_s))]


def numa(params: dict[str, Param]) -> list[Measurement]:
    node, direction, size_bytes = int(params["node"]), str(params["direction"]), int(params["size_bytes"])
    value = DEVICE_COPY[direction][1] * (1.0 if node == 1 else 0.82)
    bound = f"pcie_{direction}"
    own = rate("bandwidth", value, size_bytes, bound, clock="device")
    return [own, rate("bandwidth_host", value * 0.98, size_bytes, bound)]


def pinning(params: dict[str, Param]) -> list[Measurement]:
    mebibytes = int(params["size_bytes"]) / MIB
    costs = PINNING[str(params["way"])]
    seconds = [fixed_s + each_s * mebibytes for fixed_s, each_s in costs]
    return [measurement("pin", seconds[0]), measurement("release", seconds[1])]


def chunks(params: dict[str, Param]) -> list[Measurement]:
    pieces, streams, size_bytes = int(params["chunks"]), int(params["streams"]), int(params["size_bytes"])
    copy_s = size_bytes / DEVICE_COPY["h2d"][1]
    step_s = copy_s + HOST_FIXED_S + pieces * 2e-6
    if params["work"] == "copy_and_kernel":
        step_s += copy_s / pieces if streams > 1 else copy_s
    return [rate("bandwidth", size_bytes / step_s, size_bytes, "pcie_h2d")]


def managed(params: dict[str, Param]) -> list[Measurement]:
    way, size_bytes = str(params["way"]), int(params["size_bytes"])
    bound = None if way == "again_on_device" else "pcie_h2d" if way.endswith("device") else "pcie_d2h"
    return [rate("bandwidth", MANAGED[way], size_bytes, bound)]


def concurrent(params: dict[str, Param]) -> list[Measurement]:
    direction, size_bytes = str(params["direction"]), int(params["size_bytes"])
    index, others = int(params["gpu_index"]), str(params["beside"])
    alone = DEVICE_COPY[direction][1]
    share = 0.51 if others == "all" or int(others) // 2 == index // 2 else 0.99
    bound = f"pcie_{direction}"
    return [
        rate("alone", alone, size_bytes, bound, clock="device"),
        rate("together", alone * share, size_bytes, bound, clock="device"),
    ]


def peer(params: dict[str, Param]) -> list[Measurement]:
    first, second, way = int(params["first"]), int(params["second"]), str(params["way"])
    near = 1.0 if first // 2 == second // 2 else 0.5
    if way == "latency":
        return [measurement("latency", 0.83e-6 / near, clock="device", calls=13_200)]
    value = PEER[way] * near if params["access"] == "on" else 27e9
    return [rate("bandwidth", value, int(params["size_bytes"]), "nvlink" if params["access"] == "on" else None)]


MADE: dict[str, Callable[[dict[str, Param]], list[Measurement]]] = {
    "link_bidirectional": bidirectional, "link_chunks": chunks, "link_concurrent": concurrent, "link_copy": copy,
    "link_latency": latency, "link_managed": managed, "link_numa": numa, "link_peer": peer, "link_pinning": pinning,
    "link_zero_copy": zero_copy,
}  # fmt: skip


def case_facts(params: Mapping[str, Param]) -> tuple[Fact, ...]:
    """The facts of a case: the duration of a step's kernels, or the distance between lines that are read."""
    if params.get("what") == "host_read":
        return (Fact("stride_bytes", 128, "made up"),)
    if params.get("work") != "copy_and_kernel":
        return ()
    kernel_ns = 1_200_000 + 3000 * int(params["chunks"]) + 1000 * int(params["streams"])
    return (Fact("kernel_ns", kernel_ns, "made up", unit="ns"),)


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


def link_outcomes(environment: Environment, facts: Facts, preset: Preset = "default", round: int = 0) -> list[Outcome]:
    """An outcome for each case of the suite's grid that can run on that machine."""
    outcomes = [replace(state(facts), round=round)]
    for name, figures in MADE.items():
        benchmark = discover()[name]
        if benchmark.gpus != 1 and len(environment.gpus) < 2:
            continue
        for case in benchmark.cases(preset, GRIDS.get(name) if preset == "default" else None):
            if benchmark.here(environment, case.params) is None:
                one = outcome(name, figures(dict(case.params)), round=round, **case.params)
                outcomes.append(replace(one, facts=case_facts(case.params)))
    return outcomes


def make_link_run(
    *, preset: Preset = "default", rounds: int = 1, gpus: int = 1, nodes: int = 1, facts: Facts = FLAT
) -> Run:
    run = make_run(rounds=rounds)
    environment = machine(run, gpus, nodes)
    outcomes = [one for round in range(rounds) for one in link_outcomes(environment, facts, preset, round)]
    return with_suite(run, ("link_state", *MADE), preset, outcomes, environment)

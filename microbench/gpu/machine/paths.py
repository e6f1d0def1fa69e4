"""Facts about the PCIe paths from a GPU to network devices and to GPUs without NVLink: switches, links, packet sizes.

explain/link_paths.py computes modelled rates of GPUDirect from these facts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import get_args

from microbench.core.model import Fact, pcie_raw_rate
from microbench.gpu.machine import pci
from microbench.gpu.machine.topology import TOPOLOGY, Nearness, NetworkDevice, network_devices, redirection
from microbench.host.files import Machine, known, labelled, stated

CPU_INFO = "/proc/cpuinfo"
PORT_RATE = re.compile(r"([\d.]+) Gb/sec")
ACTIVE = "4:"  # the kernel's number of the state ACTIVE of an InfiniBand or RoCE port
GIGABIT_BYTES = 1e9 / 8


def path_facts(
    bus_id: str | None, topology: Iterable[Fact], others: Sequence[tuple[int, str]] = (), root: Path = Path("/")
) -> tuple[Fact, ...]:
    """``path0_device``, ``path0_switches`` and so on for every device whose class in ``topology`` is a PCIe class.

    ``topology`` are the facts of topology.py. Devices joined by NVLink, and devices whose place on the bus is hidden,
    have no path. ``others`` are CUDA index and bus id of the other GPUs. Further facts identify the processor, because
    a path may lead through it.
    """
    classes = {fact.name: fact.value for fact in topology if fact.name.startswith(TOPOLOGY)}
    near = {name.removeprefix(TOPOLOGY): value for name, value in classes.items() if value in get_args(Nearness)}
    own = pci.way_to_root(bus_id, root)
    facts: list[Fact] = []
    gpus = [NetworkDevice(f"gpu{index}", other) for index, other in others]
    devices = [device for device in (*gpus, *network_devices(root)) if device.name in near]
    for number, device in enumerate(devices):
        prefix, network = f"path{number}_", device not in gpus
        facts.append(known(f"{prefix}device", device.name, f"{pci.DEVICES}/{device.bus_id}"))
        facts += _between(prefix, own, pci.way_to_root(device.bus_id, root), root, network=network)
        if network:
            facts += _port(prefix, device, Machine(root))
    if devices:
        facts += _processor(Machine(root))
    return tuple(facts)


def _between(prefix: str, own: pci.Way, other: pci.Way, root: Path, *, network: bool) -> Iterator[Fact]:
    """Facts of both ways below the lowest device that they share, or of the whole ways if they share none."""
    shared = {hop.bus_id for hop in own.hops} & {hop.bus_id for hop in other.hops}
    sides = [tuple(takewhile(lambda hop: hop.bus_id not in shared, way.hops)) for way in (own, other)]
    source = f"{pci.DEVICES}/{other.hops[0].bus_id}" if other.hops else pci.DEVICES
    # On each side there are the endpoint, the port above it, and two more ports for each further switch.
    between = [len(side) - 2 for side in sides]
    whole = all(count >= 0 and count % 2 == 0 for count in between)
    switches = sum(between) // 2 + bool(shared) if whole else None
    yield stated(f"{prefix}switches", switches, source, "a bridge of another kind is on the way")
    hops = [hop for side in sides for hop in side]
    # A GPU's link counts with its highest speed, because an idle GPU trains it down; the link of a network device
    # counts with its current speed.
    trained = {hop.bus_id for hop in sides[1]} if network else set()
    rated = []
    for hop in hops:
        generation, lanes = _speed(hop, now=hop.bus_id in trained)
        if rate := pcie_raw_rate(generation or 0, lanes or 0):
            rated.append((rate, generation, lanes, hop.bus_id))
    _, generation, lanes, narrowest = min(rated, key=lambda one: one[0], default=(None, None, None, None))
    for name, value in (("generation", generation), ("lanes", lanes), ("narrowest_bus_id", narrowest)):
        yield stated(f"{prefix}{name}", value, source, "sysfs gives no speed of any link on the way")
    payloads = [hop.control.max_payload_bytes for hop in hops]
    sizes = [size for size in payloads if size is not None]
    why = next((hop.control.reason for hop in hops if hop.control.reason), pci.NOT_SHOWN)
    yield stated(f"{prefix}max_payload_bytes", min(sizes, default=None), f"{source}/config", why)
    bridges = [hop for side in sides for hop in side[1:]]
    yield redirection(f"{prefix}acs", bridges, root) if bridges else known(f"{prefix}acs", False, source)
    if network and other.hops:
        control = other.hops[0].control
        for name in ("max_read_request_bytes", "extended_tags"):
            yield stated(f"{prefix}{name}", getattr(control, name), f"{source}/config", control.reason or why)


def _speed(hop: pci.Hop, *, now: bool) -> tuple[int | None, int | None]:
    link = hop.link
    if now and link.generation_now and link.lanes_now:
        return link.generation_now, link.lanes_now
    return link.generation_max, link.lanes_max


def _port(prefix: str, device: NetworkDevice, machine: Machine) -> Iterator[Fact]:
    """The device's RDMA state ("active", "down", "no"), its fastest active port ("mlx5_0:1") and that port's rate."""
    folder = f"{pci.DEVICES}/{device.bus_id}/infiniband"
    names = machine.names(folder)
    ports = [(name, port) for name in names for port in machine.names(f"{folder}/{name}/ports")]
    active = {}
    for name, port in ports:
        files = f"{folder}/{name}/ports/{port}"
        if (machine.read(f"{files}/state").text or "").startswith(ACTIVE):
            match = PORT_RATE.match(machine.read(f"{files}/rate").text or "")
            active[f"{name}:{port}"] = float(match[1]) * GIGABIT_BYTES if match else None
    state = "no" if not names else None if not ports else "active" if active else "down"
    yield stated(f"{prefix}rdma", state, folder, "sysfs shows no port of the device")
    fastest = max(active, key=lambda port: active[port] or 0.0, default=None)
    yield stated(f"{prefix}port", fastest, folder, "no active port")
    rate = active[fastest] if fastest else None
    yield stated(f"{prefix}port_bytes_per_s", rate, folder, "no active port with a rate")


def _processor(machine: Machine) -> Iterator[Fact]:
    """Vendor, family and model number of the processor: a path through it depends on them."""
    reading = machine.read(CPU_INFO)
    arm = "ARM" if labelled(reading.text, "CPU implementer") else None
    power = "POWER" if (labelled(reading.text, "cpu") or "").startswith("POWER") else None
    vendor = labelled(reading.text, "vendor_id") or arm or power
    yield stated("processor_vendor", vendor, CPU_INFO, reading.reason or "the kernel names no vendor")
    for name, label in (("processor_family", "cpu family"), ("processor_model", "model")):
        text = labelled(reading.text, label) or ""
        number = int(text) if text.isdecimal() else None
        yield stated(name, number, CPU_INFO, reading.reason or "the kernel gives no such number")

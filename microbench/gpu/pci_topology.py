"""How far two PCI devices are apart, in the words of ``nvidia-smi topo -m``, and which network devices there are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from microbench.gpu.pci import DEVICES, folder_of, is_bus_id, numa_node
from microbench.host.files import Machine
from microbench.host.topology import nodes

# At most one switch; several switches; the host bridge (a processor's root complex); two of them on one NUMA node; the
# link between NUMA nodes.
Nearness = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
NETWORK_CLASS = "0x02"
VIRTIO_VENDOR = "0x1af4"
# A device below a switch has the switch's downstream port above it.
BELOW_ONE_SWITCH = 2


class NetworkDevice(NamedTuple):
    """A network or InfiniBand controller by its name ("mlx5_0", "eth0"); its bus id where it has none.

    ``reason`` says why it has no place worth naming.
    """

    name: str
    bus_id: str
    reason: str | None = None


class Distance(NamedTuple):
    """How far two devices are apart; None and why."""

    value: Nearness | None
    reason: str | None = None


def distance(first: str | None, second: str | None, root: Path = Path("/")) -> Distance:
    """From the places of two devices (bus ids) on the bus, and their NUMA nodes where they share no root."""
    folders = folder_of(first, root), folder_of(second, root)
    if folders[0] is None or folders[1] is None:
        return Distance(None, "sysfs does not show both devices")
    (one_root, one), (other_root, other) = _place(folders[0]), _place(folders[1])
    if one_root != other_root:
        return _between_roots(first, second, root)
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    if shared == 0:
        return Distance("PHB")
    return Distance("PIX" if max(len(one), len(other)) - shared <= BELOW_ONE_SWITCH else "PXB")


def network_devices(root: Path = Path("/")) -> tuple[NetworkDevice, ...]:
    """All network controllers, in the order of their bus ids; virtual functions of another one are left out."""
    machine = Machine(root)
    found = []
    for bus_id in machine.names(DEVICES):
        folder = f"{DEVICES}/{bus_id}"
        kind = machine.read(f"{folder}/class").text or ""
        if kind.startswith(NETWORK_CLASS) and not machine.exists(f"{folder}/physfn"):
            virtio = machine.read(f"{folder}/vendor").text == VIRTIO_VENDOR
            reason = "a virtio device: its hypervisor's software, no place on the bus" if virtio else None
            found.append(NetworkDevice(_network_name(machine, folder) or bus_id, bus_id, reason))
    return tuple(found)


def _place(folder: Path) -> tuple[Path, list[str]]:
    """The root that a device hangs on, and the bus ids from there down to the device."""
    ids: list[str] = []
    while is_bus_id(folder.name):
        ids.insert(0, folder.name)
        folder = folder.parent
    return folder, ids


def _between_roots(first: str | None, second: str | None, root: Path) -> Distance:
    one, other = numa_node(first, root), numa_node(second, root)
    if one is not None and other is not None:
        return Distance("NODE" if one == other else "SYS")
    if len(nodes(Machine(root))) == 1:
        return Distance("NODE")
    return Distance(None, "the firmware does not say on which NUMA nodes they are")


def _network_name(machine: Machine, folder: str) -> str | None:
    """InfiniBand's name first, as nvidia-smi does; a virtio controller's interface is its child's."""
    inside = [folder, *(f"{folder}/{name}" for name in machine.names(folder) if name.startswith("virtio"))]
    places = [f"{folder}/infiniband", *(f"{place}/net" for place in inside)]
    return next((name for place in places for name in machine.names(place)), None)

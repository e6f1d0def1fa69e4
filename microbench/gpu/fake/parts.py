"""Which class or function carries out each operation of Graphs, Links, DeviceMemory and Compute when simulated."""

from __future__ import annotations

from microbench.gpu.fake import compute, links, managed, memory
from microbench.gpu.fake.machine import Machine
from microbench.gpu.protocol.part import Part, built


class FakePart(Part[Machine]):
    """A part of the simulated GPU in the scope of one case: using it after that case raises MeasurementError."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._scope = machine.scope

    def subject(self) -> Machine:
        self._subject.check(self._scope)
        return self._subject


class FakeLinks(FakePart):
    """The links of one case."""

    state = built(managed.state)
    copy = built(links.engine_copy)
    kernel_copy = built(links.kernel_copy)
    duplex = built(links.FakeDuplex)
    chase = built(managed.host_chase)
    pinning = built(links.pinning)
    pipeline = built(links.FakePipeline)
    peer = built(links.FakePeer)
    peer_chase = built(managed.peer_chase)
    gpus = built(links.gpus)
    concurrent = built(links.FakeConcurrent)
    collective = built(links.FakeCollective)
    managed = built(managed.FakeManaged)


class FakeMemory(FakePart):
    """Memory and caches of one case. Memory that is taken is held until the case ends."""

    shapes = built(memory.shapes)
    stream = built(memory.stream)
    level = built(memory.FakeLevel)
    written = built(memory.FakeWritten)
    fill = built(memory.FakeFill)
    chase = built(memory.FakeLocalChase)
    loaded = built(memory.FakeLoadedChase)
    occupied = built(memory.occupied)
    strided = built(memory.strided)
    scattered = built(memory.scattered)
    atomics = built(memory.atomics)
    engine = built(memory.engine)
    allocating = built(memory.allocating)
    capacity = built(memory.capacity)
    peers = built(memory.peers)


class FakeCompute(FakePart):
    """Tensor cores and ALUs of one case. Problems hold their memory until the case ends."""

    problem = built(compute.problem)
    needed_bytes = built(compute.needed_bytes)
    free_bytes = built(compute.free_bytes)
    bracket = built(compute.FakeBracket)
    state = built(compute.state)
    tensor = built(compute.tensor)
    arithmetic = built(compute.arithmetic)
    chain = built(compute.chain)

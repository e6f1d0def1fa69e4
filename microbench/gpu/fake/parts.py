"""Which class or function carries out each operation of Links and Compute when simulated."""

from __future__ import annotations

from microbench.gpu.fake import links, managed
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

"""The protocols Checked, Transfer and Operations: work on memory whose result is compared after it was measured."""

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from microbench.gpu.protocol.gpu import Submit

FloatArray = npt.NDArray[np.float64]
Direction = Literal["h2d", "d2h"]
HostMemory = Literal["pageable", "pinned", "write_combined", "registered"]


class Checked(Protocol):
    """Moves data that can be refreshed before a measurement and compared after it."""

    def fresh(self) -> None:
        """Write a new pattern to every source and poison to every destination; returns when both are done."""

    def check(self) -> str:
        """Compare each whole destination with the pattern of the last ``fresh``. Returns how it was compared.

        Raises MeasurementError for the first wrong byte.
        """


class Transfer(Checked, Protocol):
    """A movement of ``size_bytes`` by a copy engine or a kernel, which can be repeated.

    ``submit`` goes to stream 0. It can be queued behind a gate unless ``blocks`` is True: a copy of pageable memory
    waits inside the call, or returns before its data have arrived.
    """

    submit: Submit
    size_bytes: int
    blocks: bool


class Operations(Checked, Protocol):
    """Work that is counted in operations (random accesses, atomic additions): ``operations`` per call."""

    submit: Submit
    operations: int

"""Results of the simulated units: what was computed from fresh data, what became of it, and how that is compared."""

from __future__ import annotations

from microbench.errors import MeasurementError
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.links.ends import Ends

CHECKED = "SIMULATED: every number that is kept compared"


class Answer(Ends):
    """A result of ``size_bytes``: right when what is computed is what the operands give."""

    def __init__(self, costs: FakeCosts, size_bytes: int, what: str) -> None:
        super().__init__(costs, size_bytes)
        self._what = what

    def check(self) -> str:
        """See Gemm and Resident."""
        if (self.target != self.source).any():
            raise MeasurementError(f"SIMULATED: {self._what} is not what its operands give")
        return CHECKED

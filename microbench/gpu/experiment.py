"""An experiment: the same work on the real GPU and on the simulated one, behind one name; and what both are made of."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.submit import Parameters, launch, run
from microbench.gpu.fake.device import Item
from microbench.gpu.fake.machine import Machine, Scoped
from microbench.gpu.fake.transfers import require_host_memory
from microbench.gpu.protocol.gpu import Gpu, Submit

__all__ = [
    "Case", "IntArray", "Item", "Launch", "Machine", "MeasurementError", "Parameters", "Scoped", "Skip", "Submit",
    "check", "driver", "experiment", "launch", "loops", "require_host_memory", "run",
]  # fmt: skip
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def experiment(
    real: Callable[Concatenate[Case, Arguments], Result],
    simulated: Callable[Concatenate[Machine, Arguments], Result],
) -> Callable[Concatenate[Gpu, Arguments], Result]:
    """A function of a Gpu that calls ``real`` with the Gpu's case, or ``simulated`` with the simulated machine.

    Both take the same further arguments. What they return belongs to the case and is released at its end.
    """

    def begin(gpu: Gpu, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return gpu.carry_out(real, simulated, *args, **kwargs)

    return begin

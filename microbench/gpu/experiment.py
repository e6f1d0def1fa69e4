"""An experiment: the same work on the real GPU and on the simulated one, behind one name."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from microbench.gpu.cuda.case import Case
from microbench.gpu.fake.machine import Machine
from microbench.gpu.protocol.gpu import Gpu

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

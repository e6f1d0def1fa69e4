"""Kernels that stream through device memory: the fastest of the shapes that one can have, measured and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from microbench.energy import power
from microbench.errors import MeasurementError
from microbench.gated import gated
from microbench.gpu.api import Gpu
from microbench.gpu.link_api import Transfer
from microbench.model import Fact, Measurement
from microbench.timing import Meter
from microbench.transfers import moved, verified, warm_s

TRIALS = 3
TRIAL_S = 1e-3
MOST_CALLS = 100
# A set is in device memory beyond doubt from four times the L2 on, and can stay in the L2 up to half of it.
BEYOND_L2, WITHIN_L2 = 4, 0.5
LARGER_THAN_ANY_L2_BYTES = 512 << 20


def answering_level(gpu: Gpu, touched_bytes: int) -> str | None:
    """The bound of what goes again and again through so many bytes: "dram", "l2", or None between the two.

    Where the L2's size is not known, what is larger than any is in device memory.
    """
    l2_bytes = gpu.info.l2_bytes
    if touched_bytes >= (BEYOND_L2 * l2_bytes if l2_bytes else LARGER_THAN_ANY_L2_BYTES):
        return "dram"
    return "l2" if l2_bytes and touched_bytes <= WITHIN_L2 * l2_bytes else None


def streamed(
    meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str], touched_bytes: int
) -> Iterator[Measurement | Fact]:
    """The rate of the fastest shape: found by TRIALS samples of each, measured anew, so that no luck is counted."""
    best, found = _fastest(meter, make, shapes)
    yield found
    yield from moved(meter, best, device="bandwidth", bound=answering_level(meter.gpu, touched_bytes))


def powered(meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str]) -> Iterator[Measurement | Fact]:
    """Power and energy of a byte while the fastest shape runs; its output is poisoned before and compared after."""
    best, found = _fastest(meter, make, shapes)
    yield found
    one_s = warm_s(best)
    best.fresh()
    measured = list(power(meter, best.submit, one_s, best.size_bytes))
    yield from verified(measured, best.check())


def _fastest(meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str]) -> tuple[Transfer, Fact]:
    best = shapes[0]
    if len(shapes) > 1:
        trials = {shape: _trial_s(meter, make(shape)) for shape in shapes}
        best = min(trials, key=lambda shape: trials[shape])
    return make(best), Fact(
        "shape", best, source=f"the fastest of {len(shapes)}" if len(shapes) > 1 else "the only one"
    )


def _trial_s(meter: Meter, transfer: Transfer) -> float:
    """Seconds of one call: the median of TRIALS samples. Raises MeasurementError where every gate was late.

    On fresh data: memory full of zeros gave dot another winner on an H200, which then lost 6 %.
    """
    transfer.fresh()
    count = min(max(round(TRIAL_S / warm_s(transfer)), 1), MOST_CALLS)
    take = gated(meter.gpu, transfer.submit, count)
    taken_s = [one for _ in range(TRIALS) for one in take()]
    if not taken_s:
        raise MeasurementError("a shape could not be tried: the gate timed out each time")
    return float(np.median(taken_s)) / count

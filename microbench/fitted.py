"""What the model knows of one machine: its constants with their intervals, where they come from, how far they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from microbench.submission import Way


class Constant(msgspec.Struct, frozen=True):
    """One constant of ``submission.CONSTANTS`` in its SI unit, with the interval that holds it at 95 %.

    ``rests_on`` lists the rows it comes from; ``assumed`` says what stands in for a measurement, "" where one is there.
    """

    value: float
    low: float
    high: float
    rests_on: tuple[str, ...] = ()
    assumed: str = ""


# How much less than overhead a kernel's own time scatters: steps that the GPU paces on three H200s are off by 0.35 % of
# their kernels (median; 90th percentile: 0.93 %) where these are over nine tenths of the step, and by 1.8 % (6.5 %) of
# the rest where they are under half of it.
OWN_SCATTERS = 0.15


def scattering_s(step_s: float, own_s: float) -> float:
    """What of a step scatters, in seconds: its overhead, and a little of the ``own_s`` that it takes for kernels and
    copies, whose lengths are known by themselves."""
    return max(step_s - own_s, 0.0) + OWN_SCATTERS * own_s


class Misfit(msgspec.Struct, frozen=True):
    """How far measured steps lie from the model's: the median, and what 95 % are within.

    Both are shares of what scatters in a step (``scattering_s``), not of all of it. ``steps`` is how many were
    compared; 0: none was measured, and the two are what is assumed then.
    """

    median: float
    most: float
    steps: int = 0


class Reach(msgspec.Struct, frozen=True):
    """The largest of what was measured: beyond it a prediction is an extrapolation."""

    kernels: int = 0
    copy_bytes: int = 0
    streams: int = 1


class Fit(msgspec.Struct, frozen=True):
    """The constants of one GPU of one run, by name; ``layers`` are those whose launch calls are known.

    ``misfit`` is by way and by what limits the step: (way, "host" | "gpu").
    """

    constants: Mapping[str, Constant]
    layers: tuple[str, ...]
    misfit: Mapping[tuple[Way, str], Misfit]
    reach: Reach
    device: str | None = None
    run_id: str = ""

    @property
    def values(self) -> dict[str, float]:
        """The constants' values, as ``submission.acts`` takes them."""
        return {name: constant.value for name, constant in self.constants.items()}

    def rests_on(self, names: Iterable[str]) -> tuple[str, ...]:
        """The rows that these constants come from."""
        return tuple(dict.fromkeys(row for name in names for row in self.constants[name].rests_on))

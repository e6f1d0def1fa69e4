"""Blocks that have an SM to themselves and stamp the time: how they get it, and what their stamps say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.compute_api import UnitPass
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case

# Stamps of kernels/common.cu.
STAMPS = np.dtype([("begin_ns", "u8"), ("end_ns", "u8"), ("cycles", "u8"), ("sm", "u4"), ("sum", "u4")])
NANOSECOND_S = 1e-9
# What a kernel may have for itself beside the dynamic shared memory.
OWN_SHARED_BYTES = 1024


def alone_on_its_sm(case: Case, function: int) -> int:
    """Dynamic shared memory, in bytes, of which two blocks do not fit on one SM; the kernel may have it from now on.

    A block may have nearly all that an SM has, on every architecture since 7.0.
    """
    shared_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - OWN_SHARED_BYTES
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(function, most, shared_bytes))
    return shared_bytes


def require_an_sm_each(stamps: npt.NDArray[Any]) -> None:
    """Raise MeasurementError where two blocks shared an SM."""
    if len(np.unique(stamps["sm"])) < len(stamps):
        raise MeasurementError("two blocks shared an SM: is another process at work on this GPU?")


def pass_of(stamps: npt.NDArray[Any]) -> UnitPass:
    """What a launch took by the stamps of its blocks, one on each SM. Raises MeasurementError where two shared one."""
    require_an_sm_each(stamps)
    elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
    own_s = (stamps["end_ns"] - stamps["begin_ns"]) * NANOSECOND_S
    clock_hz = float(np.median(stamps["cycles"] / own_s))
    return UnitPass(elapsed_ns * NANOSECOND_S, float(np.median(stamps["cycles"])), clock_hz)

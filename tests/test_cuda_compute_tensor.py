"""Tensor instructions on a real GPU: right on fresh operands, wrong operands noticed, time in proportion to work."""

from __future__ import annotations

from typing import get_args

import pytest
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.cuda.compute.tensor import CudaTensor
from microbench.gpu.protocol.compute import TensorPath, TensorType
from microbench.gpu.protocol.gpu import Gpu

pytestmark = pytest.mark.gpu

NO_SUCH: tuple[TensorPath, TensorType] = ("wgmma", "fp64")


def made(gpu: Gpu, path: TensorPath, dtype: TensorType) -> CudaTensor:
    unit = gpu.compute.tensor(path, dtype)
    assert isinstance(unit, CudaTensor)
    return unit


CASES = [(path, dtype) for path in get_args(TensorPath) for dtype in get_args(TensorType) if (path, dtype) != NO_SUCH]


def test_there_is_no_fp64_of_warpgroups(gpu: Gpu) -> None:
    with pytest.raises(Skip, match="mma does"):
        gpu.compute.tensor(*NO_SUCH)


@pytest.mark.parametrize(("path", "dtype"), CASES)
def test_results_are_right_after_any_number_of_repetitions(gpu: Gpu, path: TensorPath, dtype: TensorType) -> None:
    unit = made(gpu, path, dtype)
    for repeats in (1, 2, 100):
        unit.take(repeats)
        assert "compared in float64" in unit.check()


@pytest.mark.parametrize(("path", "dtype"), CASES)
def test_a_wrong_operand_is_noticed(gpu: Gpu, path: TensorPath, dtype: TensorType) -> None:
    unit = made(gpu, path, dtype)
    with pytest.raises(MeasurementError, match="is off by"):
        unit.check()  # nothing was computed yet
    unit.take(1)
    unit.check()
    (code,) = driver.cuMemsetD8(unit.operands, 0, 64)
    assert int(code) == 0
    unit.take(1)
    with pytest.raises(MeasurementError, match="is off by"):
        unit.check()


@pytest.mark.parametrize("path", get_args(TensorPath))
def test_more_repetitions_take_as_much_longer(gpu: Gpu, path: TensorPath) -> None:
    unit = made(gpu, path, "bf16")
    unit.take(10)
    few, many = unit.take(2000), unit.take(20000)
    assert 8 < many.cycles / few.cycles < 12
    assert 0.5e9 < many.cycles / many.seconds < 4e9

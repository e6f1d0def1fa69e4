"""ALU instructions and clock brackets on a real GPU: results, rates near the architecture's, missing work noticed."""

from __future__ import annotations

from typing import get_args

import pytest

from microbench.analysis.rates import alu_rate
from microbench.core.errors import MeasurementError
from microbench.core.ops import Launch
from microbench.gpu.cuda.compute import alu
from microbench.gpu.cuda.compute.alu import Bits, Operands, expected
from microbench.gpu.protocol.compute import AluOperation
from microbench.gpu.protocol.gpu import Gpu

pytestmark = pytest.mark.gpu

OPERATIONS = get_args(AluOperation)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_are_right(gpu: Gpu, operation: AluOperation) -> None:
    unit = gpu.compute.arithmetic(operation)
    assert "every thread's results on every SM" in unit.check()
    unit.take(1000)
    unit.check()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_repetition_is_noticed(gpu: Gpu, operation: AluOperation, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = gpu.compute.arithmetic(operation)

    def of_one_more(operation: AluOperation, operands: Operands, repeats: int) -> tuple[Bits, Bits]:
        return expected(operation, operands, repeats + 1)

    monkeypatch.setattr(alu, "expected", of_one_more)
    with pytest.raises(MeasurementError, match="results are wrong"):
        unit.check()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rates_are_near_those_of_the_architecture(gpu: Gpu, operation: AluOperation) -> None:
    unit = gpu.compute.arithmetic(operation)
    unit.take(100)
    few, many = unit.take(1000), unit.take(4000)
    assert 3.6 < many.cycles / few.cycles < 4.4
    assert 0.2e9 < many.cycles / many.seconds < 4e9
    rate = alu_rate(operation, gpu.info)
    if rate is not None:
        assert 0.5 < unit.operations * 4000 / many.cycles / rate.value < 1.01


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_latency_of_an_instruction_is_plausible(gpu: Gpu, operation: AluOperation) -> None:
    chain = gpu.compute.chain(operation)
    chain.take(16)
    taken = chain.take(100)
    assert 2 < taken.cycles / (100 * chain.instructions) < 100
    assert 1.9 < chain.take(200).cycles / taken.cycles < 2.1


def test_a_bracket_gives_the_clock_that_the_sms_count(gpu: Gpu) -> None:
    bracket = gpu.compute.bracket()
    spin = gpu.bind(Launch(duration_ns=5_000_000))
    for _ in range(2):  # the first round loads the code
        bracket.begin()
        spin(1)
        bracket.end()
        gpu.synchronize()
    assert bracket.hz() == pytest.approx(gpu.telemetry().sm_clock_begin_hz, rel=0.02)


def test_a_bracket_can_be_queued_behind_a_gate(gpu: Gpu) -> None:
    bracket, spin, gate = gpu.compute.bracket(), gpu.bind(Launch(duration_ns=100_000)), gpu.gate()
    bracket.begin()
    spin(1)
    bracket.end()
    gpu.synchronize()
    gate.shut()
    bracket.begin()
    spin(1)
    bracket.end()
    gate.open()
    gpu.synchronize()
    assert not gate.was_late()
    assert 0.2e9 < bracket.hz() < 4e9

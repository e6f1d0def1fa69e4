"""Each trust grade is given for its own condition and for nothing else."""

import msgspec
import pytest

from microbench.analysis.clocks import clock_state, is_arithmetic
from microbench.analysis.stats import Interval, Trust, combined_trust, summarize
from microbench.core.model import Measurement, Metric, Telemetry

TIME = Metric("submit", "time", "s/launch", "time of a call")
COOL = Telemetry(sm_clock_begin_hz=2e9, sm_clock_end_hz=2e9)
BRAKED = Telemetry(sm_clock_begin_hz=2e9, sm_clock_end_hz=1.9e9, throttle_reasons=("sw_power_cap",))


def measured(values: list[float], **fields: object) -> Measurement:
    raw = msgspec.Raw(msgspec.json.encode(values))
    defaults = {"metric": "submit", "clock": "host", "samples": raw, "n": len(values)}
    return Measurement(**{**defaults, **fields})  # type: ignore[arg-type]


def grade(values: list[float], telemetry: Telemetry = COOL, **fields: object) -> Trust:
    return summarize(TIME, measured(values, **fields), telemetry).trust


NARROW = [1.0 + index / 1e4 for index in range(20)]
WIDE = [1.0 + index for index in range(20)]


def test_each_grade_of_one_process_is_reached() -> None:
    assert grade(NARROW) == "steady"
    assert grade(WIDE) == "noisy"
    assert grade(NARROW[:9]) == "single"
    assert grade(NARROW, floor_s=0.21) == "below floor"
    assert grade(NARROW, BRAKED) == "throttled"
    assert grade(NARROW, needs_verification=True) == "unverified"
    assert grade(NARROW, needs_verification=True, verified="pattern") == "steady"


def test_the_floor_is_held_against_a_whole_sample_and_not_against_a_call() -> None:
    assert grade(NARROW, floor_s=0.19) == "steady"
    assert grade(NARROW, floor_s=0.19, calls_per_sample=1000) == "steady"
    assert grade(NARROW, floor_s=0.21, clock="counter") == "steady"


def test_a_fallen_clock_throttles_only_with_a_reason_and_beyond_three_percent() -> None:
    assert clock_state(BRAKED, arithmetic=False).throttled
    idle = msgspec.structs.replace(BRAKED, throttle_reasons=("gpu_idle",))
    little = msgspec.structs.replace(BRAKED, sm_clock_end_hz=1.95e9)
    for telemetry in (None, Telemetry(), idle, little):
        assert clock_state(telemetry, arithmetic=False) == (False, False)


HOT = msgspec.structs.replace(BRAKED, throttle_reasons=("software power cap", "software thermal slowdown"))
STOPPED = msgspec.structs.replace(BRAKED, throttle_reasons=("hardware power brake",))


def test_arithmetic_at_the_power_limit_is_no_distrust_and_heat_and_the_brake_are() -> None:
    one = measured(NARROW)
    trusts = [summarize(TIME, one, telemetry, arithmetic=True).trust for telemetry in (BRAKED, HOT, STOPPED)]
    assert trusts == ["steady", "throttled", "throttled"]
    assert summarize(TIME, one, BRAKED).trust == "throttled"


@pytest.mark.parametrize("bound", ["gemm:bf16", "tensor:fp8_e4m3_per_clock", "alu:fma_fp32"])
def test_all_rows_of_a_case_that_computes_are_arithmetic(bound: str) -> None:
    assert is_arithmetic([measured(NARROW, bound=bound), measured(NARROW)])
    assert not is_arithmetic([measured(NARROW, bound="dram"), measured(NARROW)])


def test_three_rounds_make_stable_and_two_do_not() -> None:
    one = summarize(TIME, measured(NARROW))
    narrow, wide = Interval(1, 0.95, 1.05), Interval(1, 0.8, 1.2)
    assert combined_trust([one] * 3, narrow) == "stable"
    assert combined_trust([one] * 3, wide) == "noisy"
    assert combined_trust([one] * 2, narrow) == "steady"
    assert combined_trust([one], narrow) == "steady"


def test_rounds_of_few_samples_are_single_until_there_are_enough() -> None:
    few = summarize(TIME, measured([1.0]))
    assert combined_trust([few] * 2, few.interval) == "single"
    assert combined_trust([few] * 5, few.interval) == "stable"


def test_the_worst_fault_of_any_round_is_the_grade() -> None:
    good = summarize(TIME, measured(NARROW))
    floored = summarize(TIME, measured(NARROW, floor_s=1.0))
    braked = summarize(TIME, measured(NARROW), BRAKED)
    unchecked = summarize(TIME, measured(NARROW, needs_verification=True))
    noisy = summarize(TIME, measured(WIDE))
    assert combined_trust([good, good, floored], good.interval) == "below floor"
    assert combined_trust([floored, braked, good], good.interval) == "throttled"
    assert combined_trust([floored, braked, unchecked], good.interval) == "unverified"
    assert combined_trust([good, noisy], good.interval) == "noisy"

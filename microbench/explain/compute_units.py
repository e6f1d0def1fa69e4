"""Tensor cores and ALUs: the share of their rate that products and instructions reach, and what instructions need."""

from math import ceil
from typing import NamedTuple

from microbench.analysis.clocks import HEAT_WORDS
from microbench.analysis.evidence import Evidence, Finding, Rule, facts_of, rests_on, rule, said, share_of
from microbench.analysis.limits import Ceiling, ceiling_at
from microbench.analysis.rates import data_sheet_clock_hz
from microbench.analysis.stats import Row
from microbench.core.model import Fact
from microbench.core.units import percent, quantity, round_percent, times

PRODUCTS, SEARCH, DATA, LASTING = "gemm_throughput", "gemm_search", "gemm_data", "gemm_sustained"
SHAPES, GROUPED, TENSORS, ALUS = "gemm_shapes", "gemm_grouped", "tensor_ceiling", "alu_ceiling"
NATIVE = "cublaslt"
LIBRARIES = {"cupy": "CuPy", "torch": "PyTorch"}
# Most models multiply in this type; where it was not measured, the first measured type speaks for the suite.
MAIN_DTYPE = "bf16"
HEAT, POWER_LIMIT, POWER_BRAKE = "heat", "the power limit", "the power brake"
# Metrics of floating and of integer operations.
RATES, PER_CLOCK, ENERGIES = ("rate", "integer_rate"), ("per_clock", "integer_per_clock"), ("energy", "integer_energy")


class Reached(NamedTuple):
    """A rate against what its units can do at the SM clock they ran at, at the highest and at the data sheet's.

    ``fed`` is the share at the measured clock: how well the units are fed. ``units`` are "tensor cores" or "ALUs". What
    a clock decides is None where that clock is not known.
    """

    row: Row
    clock_hz: float | None
    highest_hz: float | None
    data_sheet_hz: float | None
    highest: Ceiling | None
    fed: float | None
    of_highest: float | None
    of_data_sheet: float | None
    clock_share: float | None
    units: str


# The variant of each type that short texts mean by the type's name.
USUAL_VARIANTS = {
    "fp8": "fp8_e4m3_fast",
    "int8": "int8",
    "fp16": "fp16",
    "tf32": "tf32",
    "fp32": "fp32",
    "fp64": "fp64",
}


def rates(evidence: Evidence, benchmark: str, metrics: tuple[str, ...] = RATES, /, **params: int | str) -> list[Row]:
    """Rows above 0 of floating operations and of integer ones, in the order of the run."""
    return [row for name in metrics for row in evidence.rows(benchmark, name, **params) if row.value > 0]


def one_rate(
    evidence: Evidence, benchmark: str, metrics: tuple[str, ...] = RATES, /, **params: int | str
) -> Row | None:
    """The first of them, or None."""
    return next(iter(rates(evidence, benchmark, metrics, **params)), None)


def same_case(evidence: Evidence, row: Row | None, *metrics: str) -> Row | None:
    """Another metric of the case that a row belongs to; the first of these that was measured."""
    others = (evidence.row(row.benchmark, name, **row.params) for name in metrics if row is not None)
    return next((other for other in others if other is not None), None)


def reached(evidence: Evidence, row: Row) -> Reached:
    """A rate with its clock and its ceilings."""
    clock = same_case(evidence, row, "sm_clock")
    clock_hz, bound, gpu = clock.value if clock is not None else None, row.measurement.bound, evidence.gpu
    highest_hz, data_sheet_hz = gpu.sm_clock_max_hz if gpu is not None else None, data_sheet_clock_hz(bound, gpu)
    measured, highest, data_sheet = (ceiling_at(bound, gpu, hz) for hz in (clock_hz, highest_hz, data_sheet_hz))
    fed, of_highest, of_data_sheet = (
        row.value / limit.value if limit is not None and limit.unit == row.metric.unit else None
        for limit in (measured, highest, data_sheet)
    )
    clock_share = measured.value / highest.value if measured is not None and highest is not None else None
    limit = highest or measured
    units = "ALUs" if limit is not None and limit.source.startswith("ALUs") else "tensor cores"
    return Reached(
        row, clock_hz, highest_hz, data_sheet_hz, highest, fed, of_highest, of_data_sheet, clock_share, units
    )


def dtype_of(row: Row) -> str:
    """The type of its operands."""
    return str(row.params.get("dtype", ""))


def not_main(row: Row) -> bool:
    """The sort key that puts the suite's main type first."""
    return dtype_of(row) != MAIN_DTYPE


def dtypes(evidence: Evidence, benchmark: str) -> list[str]:
    """The types that a benchmark measured, in the order of the run."""
    return list(dict.fromkeys(dtype_of(row) for row in rates(evidence, benchmark)))


def best_product(evidence: Evidence, dtype: str, library: str = NATIVE) -> Row | None:
    """A library's fastest square product of a type, over all sizes."""
    return max(rates(evidence, PRODUCTS, dtype=dtype, library=library), key=lambda row: row.value, default=None)


def best_products(evidence: Evidence) -> list[Row]:
    """The fastest square product of each type, the main type first: cuBLASLt's, or else another library's."""
    rows = []
    for dtype in dtypes(evidence, PRODUCTS):
        others = [best_product(evidence, dtype, library) for library in LIBRARIES]
        fastest = max((row for row in others if row is not None), key=lambda row: row.value, default=None)
        row = best_product(evidence, dtype) or fastest
        rows += [row] if row is not None else []
    return sorted(rows, key=not_main)


def figure(row: Row) -> str:
    """A value with its unit."""
    return quantity(row.value, row.metric.unit)


def typed(row: Row) -> str:
    """A type, and the library that multiplied where it was not cuBLASLt: "bf16", "fp16 by CuPy"."""
    library = LIBRARIES.get(str(row.params.get("library")))
    return f"{dtype_of(row)} by {library}" if library else dtype_of(row)


def fact_of(row: Row, name: str) -> Fact | None:
    """A fact of a row's case, of the round whose median is nearest to the row's value."""
    apart = [abs(summary.interval.median - row.value) for summary in row.summaries]
    nearest = sorted(range(len(apart)), key=apart.__getitem__)
    return next((fact for number in nearest for fact in row.outcomes[number].facts if fact.name == name), None)


def shape_of(row: Row) -> str | None:
    """Rows, columns and depth of its product; None where the case does not say."""
    fact = fact_of(row, "shape")
    return fact.value if fact is not None and isinstance(fact.value, str) else None


def reasons(evidence: Evidence, row: Row) -> tuple[str, ...]:
    """NVML's reasons for a lower clock: those seen during sustained work, each with its second, else after the case."""
    names = [value for value in facts_of(row, "throttle_reasons") if isinstance(value, str)]
    names = names or [
        reason
        for outcome in row.outcomes
        for device, telemetry in outcome.telemetry.items()
        if device == evidence.device
        for reason in telemetry.throttle_reasons
    ]
    return tuple(dict.fromkeys(names))


def held_by(evidence: Evidence, row: Row) -> str | None:
    """What lowers the clock of a row's case: HEAT, POWER_BRAKE or POWER_LIMIT; None where NVML named nothing.

    The brake is a signal of the power supply; with it NVML also sets a reason that means brake or heat.
    """
    names = reasons(evidence, row)
    brake = any("power brake" in name and "thermal" not in name for name in names)
    if brake and not any("thermal slowdown" in name for name in names):
        return POWER_BRAKE
    if any(word in name for name in names for word in HEAT_WORDS):
        return HEAT
    return POWER_LIMIT if any("power" in name for name in names) else None


WGMMA, MMA = "wgmma", "mma"
SUSTAINED, BURST = "sustained", "burst"
LEFT_BEHIND, FULL = 0.9, 0.97
# Gaming boards accumulate in fp32 at half the rate: the ratio is near 2 there, elsewhere near 1.
HALVED_FROM, WHOLE_UP_TO = 1.7, 1.3


def per_clock(evidence: Evidence, path: str, dtype: str, metrics: tuple[str, ...] = PER_CLOCK) -> Row | None:
    """Operations a clock cycle and SM (or another metric) by one path, sustained where that was measured."""
    rows = (one_rate(evidence, TENSORS, metrics, path=path, dtype=dtype, load=load) for load in (SUSTAINED, BURST))
    return next((row for row in rows if row is not None), None)


def tensor_dtypes(evidence: Evidence) -> list[str]:
    """The types of tensor instructions that were measured, the main type first."""
    names = dict.fromkeys(dtype_of(row) for row in rates(evidence, TENSORS, PER_CLOCK))
    return sorted(names, key=lambda dtype: dtype != MAIN_DTYPE)


def halves(evidence: Evidence) -> tuple[Row, Row] | None:
    """fp16 products accumulated in fp16, and in fp32, by instructions where they were measured, else by products."""
    short, long = (per_clock(evidence, MMA, dtype) for dtype in ("fp16_acc16", "fp16"))
    if short is None or long is None:
        short, long = (best_product(evidence, dtype) for dtype in ("fp16_acc16", "fp16"))
    return (short, long) if short is not None and long is not None else None


WARP_THREADS = 32
# A rate slightly above its round figure needs no further instruction in flight.
SLACK = 0.02
# Operations of one instruction of one thread: a multiply-add is two, of packed halves four.
OPERATIONS = {"fma_fp64": 2, "fma_fp32": 2, "fma_fp16x2": 4, "fma_bf16x2": 4}


def in_flight(evidence: Evidence, row: Row) -> int | None:
    """Warp instructions that an SM needs in flight for an ALU's rate: latency x instructions issued in a cycle."""
    latency, operations = same_case(evidence, row, "latency"), OPERATIONS.get(str(row.params.get("operation")), 1)
    exact = latency.value * row.value / (WARP_THREADS * operations) if latency is not None else None
    return ceil(exact * (1 - SLACK)) if exact is not None else None


@rule("compute.ceiling", f"good from {round_percent(FULL)} of the architecture's rate a cycle and SM on")
def alone(evidence: Evidence) -> Finding | None:
    """What tensor instructions sustain without memory traffic, and the share of it that products reach."""
    rows = [row for row in rates(evidence, TENSORS) if row.params.get("load") == SUSTAINED]
    if not rows:
        return None
    dtype = dtype_of(min(rows, key=not_main))
    best = max((row for row in rows if dtype_of(row) == dtype), key=lambda row: row.value)
    clocked = same_case(evidence, best, *PER_CLOCK)
    share = share_of(evidence, clocked) if clocked is not None else None
    full = share is not None and share >= FULL
    both = (best_product(evidence, name) for name in (dtype, f"{dtype}_fast"))
    products = [row for row in both if row is not None and row.metric.unit == best.metric.unit]
    product = max(products, key=lambda row: row.value, default=None)
    words = []
    if product is not None and product.value > best.value:
        words.append("A product is faster: it uses other instructions, or ran in a cooler moment.")
    else:
        words += [f"A product reaches {percent(product.value / best.value)} of that."] if product is not None else []
        words += ["No product of random numbers can be faster for long on this board."] if full else []
    of_rate = f", {percent(share)} of their rate a cycle" if share is not None else ""
    title = f"Tensor cores alone sustain {figure(best)} ({dtype} {best.params.get('path')}){of_rate}"
    text = " ".join(words)
    return said(title, text, rows=(best, clocked, product), severity="good" if full else "note")


def paths(evidence: Evidence) -> Finding | None:
    """The rate of mma.sync against that of wgmma, or against the architecture's where wgmma was not measured."""
    pairs = [
        (dtype, wgmma, mma)
        for dtype in tensor_dtypes(evidence)
        if (wgmma := per_clock(evidence, WGMMA, dtype)) is not None
        and (mma := per_clock(evidence, MMA, dtype)) is not None
    ]
    if not pairs:
        return _one_path(evidence)
    dtype, wgmma, mma = pairs[0]
    share = mma.value / wgmma.value
    behind = share < LEFT_BEHIND
    title = f"mma.sync gives {percent(share)} of wgmma's rate ({dtype}, clock for clock)"
    text = "Kernels written for older GPUs use mma.sync and cannot be faster than that." if behind else ""
    advice = "Use wgmma, or a library that does." if behind else ""
    names = rests_on(*(row for _, *both in pairs for row in both))
    threshold = f"advice where mma.sync stays below {round_percent(LEFT_BEHIND)}"
    return said(title, text, advice, names=names, rule="compute.path", threshold=threshold)


@rule("compute.path", f"the only path measured stays below {round_percent(LEFT_BEHIND)} of the rate")
def _one_path(evidence: Evidence) -> Finding | None:
    for dtype in tensor_dtypes(evidence):
        row = per_clock(evidence, MMA, dtype)
        share = share_of(evidence, row) if row is not None else None
        if share is not None and share < LEFT_BEHIND:
            title = f"mma.sync reaches {percent(share)} of the tensor cores' rate ({dtype}, clock for clock)"
            text = "Other instructions of this architecture give the rest."
            advice = "Use a library that is built for this architecture."
            return said(title, text, advice, rows=(row,))
    return None


@rule("compute.accumulate", f"shown above {times(WHOLE_UP_TO)}; halved from {times(HALVED_FROM)} on")
def accumulate(evidence: Evidence) -> Finding | None:
    """Whether this board accumulates in fp32 at half the rate, as gaming boards do."""
    pair = halves(evidence)
    ratio = pair[0].value / pair[1].value if pair is not None else 0.0
    if pair is None or ratio <= WHOLE_UP_TO:
        return None
    halved = ratio >= HALVED_FROM
    title = f"fp16 products are {times(ratio)} as fast with fp16 accumulation as with fp32"
    text = "This board runs fp32 accumulation at half the rate, as gaming boards do." if halved else ""
    advice = "Accumulate in fp16 where its precision is enough." if halved else ""
    return said(title, text, advice, rows=pair)


RULES: tuple[Rule, ...] = (alone, paths, accumulate)

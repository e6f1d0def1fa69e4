"""What products and instructions reach of the units that do them: at the measured, highest and data sheet's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, facts_of
from microbench.limits import Ceiling, ceiling_at
from microbench.model import Fact
from microbench.rates import data_sheet_clock_hz
from microbench.stats import Row
from microbench.throttling import HEAT_WORDS
from microbench.units import percent, quantity

PRODUCTS, SEARCH, DATA, LASTING = "gemm_throughput", "gemm_search", "gemm_data", "gemm_sustained"
SHAPES, TENSORS, ALUS = "gemm_shapes", "tensor_ceiling", "alu_ceiling"
NATIVE = "cublaslt"
LIBRARIES = {"cupy": "CuPy", "torch": "PyTorch"}
# What most models are multiplied in; where it was not measured, the first type that was speaks for the suite.
MAIN_DTYPE = "bf16"
# A finding names so many rows.
NAMED = 4
HEAT, POWER_LIMIT, POWER_BRAKE = "heat", "the power limit", "the power brake"
RATES, PER_CLOCK, ENERGIES = ("rate", "integer_rate"), ("per_clock", "integer_per_clock"), ("energy", "integer_energy")


class Reached(NamedTuple):
    """A rate against what its units can do: at the SM clock that they ran at, at the highest, at the data sheet's."""

    row: Row
    clock_hz: float | None
    highest_hz: float | None
    data_sheet_hz: float | None
    measured: Ceiling | None
    highest: Ceiling | None
    data_sheet: Ceiling | None

    @property
    def fed(self) -> float | None:
        """Share of what the units can do at the measured clock: how well they are fed."""
        return self._share(self.measured)

    @property
    def of_highest(self) -> float | None:
        """Share of what they can do at the highest clock."""
        return self._share(self.highest)

    @property
    def of_data_sheet(self) -> float | None:
        """Share of what they can do at the clock that the data sheet takes; None where it is not known."""
        return self._share(self.data_sheet)

    @property
    def clock_share(self) -> float | None:
        """The measured clock over the highest."""
        if self.measured is None or self.highest is None:
            return None
        return self.measured.value / self.highest.value

    def _share(self, limit: Ceiling | None) -> float | None:
        return self.row.value / limit.value if limit is not None and limit.unit == self.row.metric.unit else None


def rates(evidence: Evidence, benchmark: str, metrics: tuple[str, ...] = RATES, /, **params: int | str) -> list[Row]:
    """Rows above 0 of floating operations and of integer ones, in the order of the run."""
    found = [row for name in metrics for row in evidence.rows(benchmark, name, **params)]
    return [row for row in found if row.value > 0]


def one_rate(
    evidence: Evidence, benchmark: str, metrics: tuple[str, ...] = RATES, /, **params: int | str
) -> Row | None:
    """The first of them, or None."""
    return next(iter(rates(evidence, benchmark, metrics, **params)), None)


def beside(evidence: Evidence, row: Row, *metrics: str) -> Row | None:
    """Another metric of a row's own case; the first that was measured."""
    found = (evidence.row(row.benchmark, name, **row.params) for name in metrics)
    return next((one for one in found if one is not None), None)


def reached(evidence: Evidence, row: Row) -> Reached:
    """A rate with its clock and its ceilings."""
    clock = beside(evidence, row, "sm_clock")
    clock_hz, bound, gpu = clock.value if clock is not None else None, row.measurement.bound, evidence.gpu
    highest_hz, data_sheet_hz = gpu.sm_clock_max_hz if gpu is not None else None, data_sheet_clock_hz(bound, gpu)
    ceilings = (ceiling_at(bound, gpu, one) for one in (clock_hz, highest_hz, data_sheet_hz))
    return Reached(row, clock_hz, highest_hz, data_sheet_hz, *ceilings)


def some(words: Sequence[str]) -> str:
    """The first NAMED of them, and how many more there are: tables show them all."""
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return "; ".join(words[:NAMED]) + more


def counted(count: int, what: str) -> str:
    """ "1 type", "9 types"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def dtype_of(row: Row) -> str:
    """The type of its operands."""
    return str(row.params.get("dtype", ""))


def dtypes(evidence: Evidence, benchmark: str) -> list[str]:
    """The types that a benchmark measured, in the order of the run."""
    return list(dict.fromkeys(dtype_of(row) for row in rates(evidence, benchmark)))


def best_product(evidence: Evidence, dtype: str, library: str = NATIVE) -> Row | None:
    """A library's fastest square product of a type, over all sizes."""
    found = rates(evidence, PRODUCTS, dtype=dtype, library=library)
    return max(found, key=lambda row: row.value, default=None)


def best_products(evidence: Evidence) -> list[Row]:
    """The fastest square product of each type, cuBLASLt's where it was measured, else another library's; that which
    speaks for the suite first."""
    found = []
    for dtype in dtypes(evidence, PRODUCTS):
        others = [best_product(evidence, dtype, library) for library in LIBRARIES]
        fastest = max((row for row in others if row is not None), key=lambda row: row.value, default=None)
        row = best_product(evidence, dtype) or fastest
        found += [row] if row is not None else []
    return sorted(found, key=lambda row: dtype_of(row) != MAIN_DTYPE)


def figure(row: Row) -> str:
    """A value with its unit."""
    return quantity(row.value, row.metric.unit)


def typed(row: Row) -> str:
    """A type and who multiplied, where that was not cuBLASLt: "bf16", "fp16 by CuPy"."""
    library = LIBRARIES.get(str(row.params.get("library")))
    return f"{dtype_of(row)} by {library}" if library else dtype_of(row)


def fact_of(row: Row, name: str) -> Fact | None:
    """A fact of a row's case, that of the newest round."""
    found = [fact for outcome in row.outcomes for fact in outcome.facts if fact.name == name]
    return found[-1] if found else None


def accumulator(row: Row) -> str:
    """What products are added up in: ", accumulator fp32"; nothing where it was not said."""
    told = [value for value in facts_of(row, "accumulator") if isinstance(value, str)]
    return f", accumulator {told[-1]}" if told else ""


def shape_of(row: Row) -> str | None:
    """Rows, columns and depth of its product as the benchmark says them; None where it does not."""
    told = [value for value in facts_of(row, "shape") if isinstance(value, str)]
    return told[-1] if told else None


def units_of(one: Reached) -> str:
    """Who does the work: "tensor cores", or the ALUs."""
    limit = one.highest or one.measured
    return "ALUs" if limit is not None and limit.source.startswith("ALUs") else "tensor cores"


def shares(one: Reached) -> str:
    """Its shares, each with the clock that it holds at: "92.0 % at 1.39 GHz, 65.0 % at 1.98 GHz (highest), …"."""
    words = []
    if one.fed is not None:
        words.append(f"{percent(one.fed)} at {quantity(one.clock_hz, 'Hz')} (measured)")
    for share, clock_hz, name in (
        (one.of_highest, one.highest_hz, "highest"),
        (one.of_data_sheet, one.data_sheet_hz, "data sheet"),
    ):
        if share is not None:
            words.append(f"{percent(share)} at {quantity(clock_hz, 'Hz')} ({name})")
    return ", ".join(words)


def reasons(evidence: Evidence, row: Row) -> tuple[str, ...]:
    """Why NVML says the clock was held down: as work that lasts was told, each with its second, else after the case."""
    told = [value for value in facts_of(row, "throttle_reasons") if isinstance(value, str)]
    told = told or [
        reason
        for outcome in row.outcomes
        for device, telemetry in outcome.telemetry.items()
        if device == evidence.device
        for reason in telemetry.throttle_reasons
    ]
    return tuple(dict.fromkeys(told))


def held_by(evidence: Evidence, row: Row) -> str | None:
    """What takes the clock of a row's case: "heat", "the power brake", "the power limit"; None where NVML named none.

    The brake is a signal of the power supply; NVML sets a reason that may be brake or heat beside it.
    """
    told = reasons(evidence, row)
    if any("power brake" in reason and "thermal" not in reason for reason in told) and not any(
        "thermal slowdown" in reason for reason in told
    ):
        return POWER_BRAKE
    if any(word in reason for reason in told for word in HEAT_WORDS):
        return HEAT
    return POWER_LIMIT if any("power" in reason for reason in told) else None

"""What products and instructions reach of the units that do them: at the measured, highest and data sheet's clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from microbench.analysis.clocks import HEAT_WORDS
from microbench.analysis.evidence import Evidence, Finding, facts_of, listed, rests_on, share_of
from microbench.analysis.limits import Ceiling, ceiling_at
from microbench.analysis.rates import data_sheet_clock_hz
from microbench.analysis.stats import Row
from microbench.core.model import Fact
from microbench.core.units import percent, quantity, round_percent, times

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


# Explains ALU instructions: what an SM issues of each in a cycle, and how many must be under way for that.


BELOW = 0.9
WARP_THREADS = 32
SLACK = 0.02
# Operations of one instruction of one thread: a multiply-add is two, of packed halves four.
OPERATIONS = {"fma_fp64": 2, "fma_fp32": 2, "fma_fp16x2": 4, "fma_bf16x2": 4}


class Instruction(NamedTuple):
    """An ALU instruction: its rate, its latency, and how many of them a warp scheduler's SM must have under way."""

    operation: str
    rate: Row
    share: float | None
    latency: Row | None

    @property
    def under_way(self) -> float | None:
        """Instructions of a warp that an SM needs under way: latency x instructions issued in a cycle."""
        if self.latency is None:
            return None
        # A rate that is a hair above its round figure wants no further instruction.
        exact = self.latency.value * self.rate.value / (WARP_THREADS * OPERATIONS.get(self.operation, 1))
        return float(ceil(exact * (1 - SLACK)))


def instructions(evidence: Evidence) -> list[Instruction]:
    """Every ALU instruction that was measured."""
    return [
        Instruction(
            str(row.params.get("operation")), row, share_of(evidence, row), beside(evidence, row, "latency")
        )
        for row in rates(evidence, ALUS, PER_CLOCK)
    ]  # fmt: skip


def alus(evidence: Evidence) -> list[Finding]:
    """What ALUs issue in a cycle against the architecture's table, and what must be under way for it."""
    found = instructions(evidence)
    if not found:
        return []
    shown = next((one for one in found if one.operation == "fma_fp32"), found[0])
    less = [one.operation for one in found if one.share is not None and one.share < BELOW]
    of_rate = f" ({percent(shown.share)} of the rate)" if shown.share is not None else ""
    needed = f", {shown.under_way:.0f} warp instructions under way fill an SM" if shown.under_way is not None else ""
    ending = f" Below the table's rate: {listed(less)}." if less else ""
    return [
        Finding(
            rule="compute.alu",
            severity="note",
            title=f"{shown.operation} gives {figure(shown.rate)}{of_rate}{needed}",
            text=(
                f"{'; '.join(_instruction_words(one) for one in found)}.{ending} With fewer under way, as warps "
                "or as independent instructions of one, the units wait."
            ),
            threshold=f"under way: latency x rate over {WARP_THREADS} threads; below its rate under "
            f"{round_percent(BELOW)}",
            rests_on=rests_on(*(row for one in found for row in (one.rate, one.latency))),
            suite="compute",
        )
    ]


def _instruction_words(one: Instruction) -> str:
    share = f" ({percent(one.share)})" if one.share is not None else ""
    if one.latency is None or one.under_way is None:
        return f"{one.operation} {figure(one.rate)}{share}"
    return f"{one.operation} {figure(one.rate)}{share}, {figure(one.latency)}: {one.under_way:.0f} under way"


# Explains tensor instructions alone: what they sustain, what each path leaves behind, what adding up in fp32 costs.


WGMMA, MMA = "wgmma", "mma"
SUSTAINED, BURST = "sustained", "burst"
LEFT_BEHIND, FULL = 0.9, 0.97
# Boards for games add up fp32 at half the rate: a ratio near 2, elsewhere near 1.
HALVED_FROM, WHOLE_UP_TO = 1.7, 1.3


def per_clock(evidence: Evidence, path: str, dtype: str) -> Row | None:
    """Operations a clock cycle and SM by one path, of work that lasts where it was measured."""
    found = (one_rate(evidence, TENSORS, PER_CLOCK, path=path, dtype=dtype, load=load) for load in (SUSTAINED, BURST))
    return next((row for row in found if row is not None), None)


def tensor_dtypes(evidence: Evidence) -> list[str]:
    """The types of tensor instructions that were measured, that which speaks for the suite first."""
    found = dict.fromkeys(dtype_of(row) for row in rates(evidence, TENSORS, PER_CLOCK))
    return sorted(found, key=lambda dtype: dtype != MAIN_DTYPE)


class Paths(NamedTuple):
    """Both paths to the tensor cores for one type."""

    dtype: str
    wgmma: Row
    mma: Row

    @property
    def share(self) -> float:
        """What mma.sync gives of wgmma, clock for clock."""
        return self.mma.value / self.wgmma.value


def both_paths(evidence: Evidence) -> list[Paths]:
    """Every type that was measured by both."""
    found = []
    for dtype in tensor_dtypes(evidence):
        wgmma, mma = per_clock(evidence, WGMMA, dtype), per_clock(evidence, MMA, dtype)
        if wgmma is not None and mma is not None:
            found.append(Paths(dtype, wgmma, mma))
    return found


def paths(evidence: Evidence) -> list[Finding]:
    """The instruction path that leaves the rate behind."""
    found = both_paths(evidence)
    if not found:
        return _one_path(evidence)
    first = found[0]
    behind = first.share < LEFT_BEHIND
    words = [
        f"{one.dtype} {figure(one.mma)} of {figure(one.wgmma)} ({percent(one.share)})" for one in found
    ]  # fmt: skip
    advice = (
        " A kernel written with mma.sync (as those for older GPUs are) cannot be faster than that: "
        "use warpgroups' instructions."
        if behind else ""
    )  # fmt: skip
    return [
        Finding(
            rule="compute.path",
            severity="advice" if behind else "note",
            title=f"mma.sync gives {percent(first.share)} of what wgmma gives ({first.dtype}, clock for clock)",
            text=f"{some(words)}.{advice}",
            threshold=f"advice where mma.sync stays below {round_percent(LEFT_BEHIND)}",
            rests_on=rests_on(*(row for one in found for row in (one.wgmma, one.mma))),
            suite="compute",
        )
    ]


def _one_path(evidence: Evidence) -> list[Finding]:
    """mma.sync alone, where the architecture has instructions that were not measured."""
    found = [(row, share_of(evidence, row)) for dtype in tensor_dtypes(evidence)
             if (row := per_clock(evidence, MMA, dtype)) is not None]  # fmt: skip
    behind = [(row, share) for row, share in found if share is not None and share < LEFT_BEHIND]
    if not behind:
        return []
    row, share = behind[0]
    words = [f"{dtype_of(one)} {figure(one)} ({percent(part)})" for one, part in behind]
    return [
        Finding(
            rule="compute.path",
            severity="advice",
            title=f"mma.sync reaches {percent(share)} of the tensor cores' rate ({dtype_of(row)}, clock for clock)",
            text=(
                f"{some(words)}. Other "
                "instructions of this architecture give the rest: use a library that is built for it."
            ),
            threshold=f"the only path measured below {round_percent(LEFT_BEHIND)} of the architecture's rate",
            rests_on=rests_on(*(one for one, _ in behind)),
            suite="compute",
        )
    ]


def alone(evidence: Evidence) -> list[Finding]:
    """Tensor instructions without traffic, burst and sustained, and what products keep of them."""
    found = [row for row in rates(evidence, TENSORS) if row.params.get("load") == SUSTAINED]
    best = {dtype: max((row for row in found if dtype_of(row) == dtype), key=lambda row: row.value)
            for dtype in dict.fromkeys(dtype_of(row) for row in found)}  # fmt: skip
    ordered = sorted(best.values(), key=lambda row: dtype_of(row) != MAIN_DTYPE)
    if not ordered:
        return []
    first = ordered[0]
    clocked = beside(evidence, first, *PER_CLOCK)
    share = share_of(evidence, clocked) if clocked is not None else None
    clock = beside(evidence, first, "sm_clock")
    at = f" at {quantity(clock.value, 'Hz')}" if clock is not None else ""
    full = share is None or share >= FULL
    of_rate = f", {percent(share)} of their rate a cycle" if share is not None else ""
    return [
        Finding(
            rule="compute.ceiling",
            severity="good" if share is not None and full else "note",
            title=f"Tensor cores alone sustain {figure(first)}{at} ({_instruction(first)}){of_rate}",
            text=(
                f"{some([_alone_words(evidence, row) for row in ordered])}.{_most(evidence, first)}"
            ),
            threshold=f"good from {round_percent(FULL)} of the architecture's rate a cycle and SM on",
            rests_on=rests_on(*ordered, clocked, clock),
            suite="compute",
        )
    ]  # fmt: skip


def _most(evidence: Evidence, row: Row) -> str:
    """What instructions alone say of products: nothing where a product is faster, or the rate is not reached."""
    clocked, product = beside(evidence, row, *PER_CLOCK), _best_of(evidence, row)
    share = share_of(evidence, clocked) if clocked is not None else None
    if product is not None and product.value > row.value:
        return " A product is faster: it is made of other instructions, or of a cooler moment."
    if share is None or share < FULL:
        return ""
    return " No product of random numbers can be faster for long on this board."


def _best_of(evidence: Evidence, row: Row) -> Row | None:
    """The fastest square product of a type of instructions, in the same unit."""
    both = (best_product(evidence, name) for name in (dtype_of(row), f"{dtype_of(row)}_fast"))
    found = [one for one in both if one is not None and one.metric.unit == row.metric.unit]
    return max(found, key=lambda one: one.value, default=None)


def _instruction(row: Row) -> str:
    return f"{dtype_of(row)} {row.params.get('path')}"


def _alone_words(evidence: Evidence, row: Row) -> str:
    dtype, path = dtype_of(row), str(row.params.get("path"))
    burst = one_rate(evidence, TENSORS, path=path, dtype=dtype, load=BURST)
    words = f"{_instruction(row)} {figure(row)}" + (f", burst {figure(burst)}" if burst is not None else "")
    product = _best_of(evidence, row)
    if product is None:
        return words
    return f"{words}, of which a product reaches {percent(product.value / row.value)}"


class Halves(NamedTuple):
    """fp16 that adds up in fp16 against fp16 that adds up in fp32."""

    short: Row
    long: Row

    @property
    def ratio(self) -> float:
        """2 where adding up in fp32 is halved, 1 where it is not."""
        return self.short.value / self.long.value


def halves(evidence: Evidence) -> Halves | None:
    """By instructions where they were measured, else by products of the same size."""
    short, long = (per_clock(evidence, MMA, dtype) for dtype in ("fp16_acc16", "fp16"))
    if short is None or long is None:
        short, long = (best_product(evidence, dtype) for dtype in ("fp16_acc16", "fp16"))
    if short is None or long is None:
        return None
    return Halves(short, long)


def accumulate(evidence: Evidence) -> list[Finding]:
    """Whether this board adds up in fp32 at half the rate, as boards for games do."""
    found = halves(evidence)
    if found is None:
        return []
    ratio = found.ratio
    like = "GeForce-like" if ratio >= HALVED_FROM else "not GeForce-like" if ratio <= WHOLE_UP_TO else "unclear"
    advice = " Where fp16 sums are exact enough they are worth it." if like == "GeForce-like" else ""
    return [
        Finding(
            rule="compute.accumulate",
            severity="note",
            title=f"Adding up in fp16 is {times(ratio)} as fast as in fp32: {like}",
            text=(
                f"fp16 that adds up in fp16 {figure(found.short)}, in fp32 {figure(found.long)}. Boards for games "
                f"halve the latter, and compute capability cannot tell.{advice}"
            ),
            threshold=f"GeForce-like from {times(HALVED_FROM)} on, not up to {times(WHOLE_UP_TO)}",
            rests_on=rests_on(*found),
            suite="compute",
        )
    ]

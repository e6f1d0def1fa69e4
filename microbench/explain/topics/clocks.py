"""Topic clocks: which clock a GPU really runs at, what takes the rest, and how that misleads benchmarks."""

from __future__ import annotations

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import Evidence
from microbench.analysis.stats import Row
from microbench.core.units import percent
from microbench.explain.compute_power import LASTS, lasting, nvml_clock_hz
from microbench.explain.compute_units import ALUS, DATA, LASTING, beside, dtype_of, rates
from microbench.explain.topics.topic import Gathering, Passage, Topic, in_unit, over, ratio, up_to, word

NORMAL, ZEROS = "normal", "zeros"
NUMBERS = {NORMAL: "random numbers", ZEROS: "zeros"}
# What is nearer than that is told as equal.
EQUAL = 1.03


def figures(evidence: Evidence) -> Gathering:
    """The highest clock, the one that work settles at, burst against sustained, and what the data do."""
    found = Gathering(evidence)
    gpu = evidence.gpu
    highest_hz, limit_w = (gpu.sm_clock_max_hz, gpu.power_limit_w) if gpu is not None else (None, None)
    found.reported("highest", "the highest SM clock", highest_hz, in_unit("Hz"), "GPU sm_clock_max_hz")
    found.reported("limit", "the board's power limit", limit_w, in_unit("W"), "GPU power_limit_w")
    late = next(iter(lasting(evidence)), None)
    _settled(found, late)
    for data, numbers in NUMBERS.items():
        row = _of_data(evidence, data, late)
        found.row(data, f"a product of {numbers}", row, DATA)
        for metric, what in (("sm_clock", "SM clock"), ("power", "power")):
            found.row(f"{data}_{metric}", f"{what}, {numbers}", _beside(evidence, row, metric), DATA)
    alu = next(iter(rates(evidence, ALUS, operation="fma_fp32")), None)
    found.row("alu", "SM clock, fp32 multiply-adds", _beside(evidence, alu, "sm_clock"), ALUS)
    return found


def _settled(found: Gathering, late: Row | None) -> None:
    """Work that lasts: its first batch, its second half, and the clocks then."""
    evidence = found.evidence
    dtype = dtype_of(late) if late is not None else None
    found.parameter(
        "dtype", "type of the products", None if dtype is None else 0.0, word(dtype or ""), LASTING, "dtype"
    )
    found.row("sustained", "rate of products after seconds", late, LASTING)
    for slot, metric, what in (
        ("burst", "burst", "rate of the first batch"),
        ("settled", "sm_clock", "SM clock after seconds"),
        ("turn", "turn", "until half of the loss is there"),
    ):
        found.row(slot, what, _beside(evidence, late, metric), LASTING)
    found.computed("kept", "what lasts of the burst", "sustained / burst", percent, ratio, "sustained", "burst")
    found.computed(
        "lost", "taken of the highest clock", "1 − sm_clock / highest", percent,
        lambda settled, highest: 1 - settled / highest, "settled", "highest",
    )  # fmt: skip
    nvml_hz = nvml_clock_hz(evidence, late) if late is not None else None
    found.reported("nvml", "SM clock by NVML meanwhile", nvml_hz, in_unit("Hz"), "NVML")


def _beside(evidence: Evidence, row: Row | None, metric: str) -> Row | None:
    return beside(evidence, row, metric) if row is not None else None


def _of_data(evidence: Evidence, data: str, late: Row | None) -> Row | None:
    """The product of such data, of the type that the text speaks of where it was measured."""
    found = rates(evidence, DATA, data=data)
    same = [row for row in found if late is not None and dtype_of(row) == dtype_of(late)]
    return next(iter(same or found), None)


TOPIC = Topic(
    name="clocks",
    title="Clocks and power",
    about="which clock the SMs really run at, and what takes the rest",
    suites=("compute",),
    figures=figures,
    needs=("settled", "burst"),
    headline=(
        Passage(
            "{dtype} products settle at {settled} of {highest}, {kept} of their burst", when=over("lost", CLOCK_LOSS)
        ),
        Passage("{dtype} products run at {settled} of {highest}"),
        Passage("The SM clock is what the power limit leaves"),
    ),
    paragraphs=(
        (
            Passage("The SM clock is no constant: a board lowers it until it draws no more than its power limit."),
            Passage("That is {limit} here, and the highest clock {highest}."),
            Passage(
                "{dtype} products that last settle at {settled}: {lost} less than the highest.",
                when=over("lost", CLOCK_LOSS),
            ),
            Passage("{dtype} products that last hold it: {settled}.", when=up_to("lost", CLOCK_LOSS)),
        ),
        (
            Passage(
                "So short benchmarks flatter: the first batch from rest gives {burst}, seconds of the same work "
                "{sustained}, and half of the loss is there after {turn}.",
                when=up_to("kept", 1 - LASTS),
            ),
            Passage(
                "The first batch from rest gives {burst}, seconds of the same work {sustained}.",
                when=over("kept", 1 - LASTS),
            ),
            Passage(
                "So do zeros: they give {zeros} at {zeros_sm_clock} and {zeros_power}, random numbers {normal} at "
                "{normal_sm_clock} and {normal_power}.",
                when=over("zeros", "normal", EQUAL),
            ),
        ),
        (
            Passage("The ALUs' fp32 multiply-adds run at {alu}."),
            Passage(
                "During the {dtype} products NVML showed {nvml} while the SMs counted {settled}: believe the SMs.",
                when=over("nvml", "settled", EQUAL),
            ),
        ),
        (
            Passage(
                "Quote a rate with its clock, and measure for seconds with random numbers. Hold a kernel against rate "
                "× SMs × measured clock: what it lacks then is feeding, not power."
            ),
        ),
    ),
    related=("tensor",),
)

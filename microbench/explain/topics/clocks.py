"""Topic clocks: at which clock a GPU really runs, what lowers it, and how that misleads benchmarks."""

from operator import truediv

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import Evidence
from microbench.core.units import percent
from microbench.explain.compute_units import ALUS, DATA, LASTING, dtype_of, rates, same_case
from microbench.explain.compute_verdict import LASTS, lasting, nvml_clock_hz
from microbench.explain.topics.topic import Topic, TopicFigures, in_unit

NORMAL, ZEROS = "normal", "zeros"
NUMBERS = {NORMAL: "random numbers", ZEROS: "zeros"}
# Closer figures count as equal.
EQUAL = 1.03


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """The highest clock, the clock of sustained work, burst and sustained rates, and the effect of the data."""
    gpu = evidence.gpu
    highest_hz, limit_w = (gpu.sm_clock_max_hz, gpu.power_limit_w) if gpu is not None else (None, None)
    known.reported("highest", "the highest SM clock", highest_hz, in_unit("Hz"), "GPU sm_clock_max_hz")
    known.reported("limit", "the board's power limit", limit_w, in_unit("W"), "GPU power_limit_w")
    late = next(iter(lasting(evidence)), None)
    dtype = dtype_of(late) if late is not None else None
    known.named("dtype", "type of the products", dtype, LASTING, "dtype")
    known.row("sustained", "rate of products after seconds", late, LASTING)
    for slot, metric, what in (
        ("burst", "burst", "rate of the first batch"),
        ("settled", "sm_clock", "SM clock after seconds"),
        ("turn", "turn", "until half of the loss is there"),
    ):
        known.row(slot, what, same_case(evidence, late, metric), LASTING)
    known.computed("lasting", "sustained of burst", "sustained / burst", percent, truediv, "sustained", "burst")
    known.computed(
        "lost", "below the highest clock", "1 − sm_clock / highest", percent,
        lambda settled, highest: 1 - settled / highest, "settled", "highest",
    )  # fmt: skip
    nvml_hz = nvml_clock_hz(evidence, late) if late is not None else None
    known.reported("nvml", "SM clock by NVML at that time", nvml_hz, in_unit("Hz"), "NVML")
    for data, numbers in NUMBERS.items():
        rows = rates(evidence, DATA, data=data)
        same = [row for row in rows if late is not None and dtype_of(row) == dtype_of(late)]
        row = next(iter(same or rows), None)
        known.row(data, f"a product of {numbers}", row, DATA)
        for metric, what in (("sm_clock", "SM clock"), ("power", "power")):
            known.row(f"{data}_{metric}", f"{what}, {numbers}", same_case(evidence, row, metric), DATA)
    alu = next(iter(rates(evidence, ALUS, operation="fma_fp32")), None)
    known.row("alu", "SM clock, fp32 multiply-adds", same_case(evidence, alu, "sm_clock"), ALUS)


TOPIC = Topic(
    name="clocks",
    title="Clocks and power",
    about="which clock the SMs really run at, and what takes the rest",
    suites=("compute",),
    collect=figures,
    needs=("settled", "burst"),
    related=("tensor",),
    text="""
    [falls] {dtype} products settle at {settled} of {highest}, {lasting} of their burst
    {dtype} products run at {settled} of {highest}
    The power limit sets the SM clock

    The SM clock is not constant: a board lowers it until it draws no more than its power limit.
    Here the limit is {limit}, and the highest clock {highest}.
    [falls] Sustained {dtype} products settle at {settled}, {lost} below the highest clock.
    [holds] Sustained {dtype} products hold it: {settled}.

    [tires] So short benchmarks flatter: the first batch from rest reaches {burst}, seconds of the same work
      {sustained}, and half of the loss is there after {turn}.
    [lasts] The first batch from rest reaches {burst}, seconds of the same work {sustained}.
    [zeros_flatter] Zeros flatter: they reach {zeros} at {zeros_sm_clock} and {zeros_power}, random numbers in turn with
      them {normal} at {normal_sm_clock} and {normal_power}.

    The ALUs' fp32 multiply-adds run at {alu}.
    [nvml_flatters] During the {dtype} products NVML showed {nvml} while the SMs counted {settled}: believe the SMs.

    Quote a rate with its clock, and measure for seconds with random numbers. Compare a kernel with rate × SMs ×
      measured clock: what it then lacks is data, not power.
    """,
    when={
        "falls": lambda value: value("lost") > CLOCK_LOSS,
        "holds": lambda value: value("lost") <= CLOCK_LOSS,
        "tires": lambda value: value("lasting") <= 1 - LASTS,
        "lasts": lambda value: value("lasting") > 1 - LASTS,
        "zeros_flatter": lambda value: value("zeros") > EQUAL * value("normal"),
        "nvml_flatters": lambda value: value("nvml") > EQUAL * value("settled"),
    },
)

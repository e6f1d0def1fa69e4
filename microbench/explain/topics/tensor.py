"""Topic tensor: the rate of each path to the tensor cores, and what products of each type and size reach of it."""

from operator import truediv

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.stats import Row
from microbench.core.units import percent
from microbench.explain import compute_units as units
from microbench.explain.topics.topic import Topic, TopicFigures, count

FILLED = 0.9


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """Both paths clock for clock, instructions alone, and products: large, small, of other types."""
    dtype = next(iter(units.tensor_dtypes(evidence)), None)
    wgmma, mma = (units.per_clock(evidence, path, dtype or "") for path in (units.WGMMA, units.MMA))
    known.named("dtype", "type of the operands", dtype, units.TENSORS, "dtype")
    known.row("mma", "mma.sync, an SM in a cycle", mma, units.TENSORS)
    if wgmma is not None or mma is None:  # older architectures have no wgmma to run
        known.row("wgmma", "wgmma, an SM in a cycle", wgmma, units.TENSORS)
    known.computed("mma_share", "mma.sync of wgmma", "mma / wgmma", percent, truediv, "mma", "wgmma")
    alone = units.per_clock(evidence, units.WGMMA if wgmma is not None else units.MMA, dtype or "", units.RATES)
    known.row("alone", "instructions alone, all SMs", alone, units.TENSORS)
    known.row("alone_clock", "SM clock of these", units.same_case(evidence, alone, "sm_clock"), units.TENSORS)
    measured = _by_size(evidence, dtype or "")
    large, small = (measured[-1], measured[0]) if measured else (None, None)
    for slot, row, what in (("product", large, "the large product"), ("small", small, "the small product")):
        size = whole(row, "size") if row is not None else None
        known.parameter(f"{slot}_size", f"size of {what}", size, count, units.PRODUCTS, "size")
        known.row(slot, what, row, units.PRODUCTS)
    known.row("product_clock", "SM clock of that", units.same_case(evidence, large, "sm_clock"), units.PRODUCTS)
    known.computed("reached", "the product of that", "product / alone", percent, truediv, "product", "alone")
    known.computed(
        "filled", "the small product of the large one", "small / large", percent, truediv, "small", "product"
    )
    for slot, other in units.USUAL_VARIANTS.items():
        rows = _by_size(evidence, other)
        if other != dtype:
            known.row(slot, f"the large product in {slot}", rows[-1] if rows else None, units.PRODUCTS)
    if sums := units.halves(evidence):
        known.row("short_sums", "fp16 with fp16 accumulation", sums[0], units.TENSORS)
        known.row("long_sums", "fp16 with fp32 accumulation", sums[1], units.TENSORS)


def _by_size(evidence: Evidence, dtype: str) -> list[Row]:
    return sorted(
        units.rates(evidence, units.PRODUCTS, dtype=dtype, library=units.NATIVE), key=lambda row: whole(row, "size")
    )


TOPIC = Topic(
    name="tensor",
    title="Paths to the tensor cores",
    about="what each path to the tensor cores gives, what a product keeps",
    suites=("compute",),
    collect=figures,
    needs=("mma", "product"),
    related=("clocks",),
    text="""
    [left_behind] mma.sync gives {mma_share} of wgmma's rate; a {dtype} product reaches {reached}
    A {dtype} product of size {product_size} reaches {product}
    Path and clock set the rate of tensor cores

    Kernels reach the tensor cores by mma.sync, on Hopper also by wgmma.
    wgmma does {wgmma} in {dtype}; mma.sync, which kernels for older GPUs use, does {mma}: {mma_share} of it, at any
      clock.
    [without_wgmma] Here mma.sync does {mma} in {dtype}.

    Instructions alone sustain {alone} at {alone_clock}.
    [below] cuBLASLt's product of size {product_size} reaches {product} at {product_clock}, {reached} of that: it must
      also load data.
    [above] cuBLASLt's product of size {product_size} reaches {product} at {product_clock}: more, so it uses other
      instructions or ran on a cooler board.

    [types] Products of other types reach {items}.
    [halved] Accumulating in fp32 halves the rate of fp16, as on gaming boards: {long_sums}, and {short_sums} with
      accumulation in fp16.
    [unfilled] Size {small_size} reaches {small}, {filled} of the large product: units stay idle.

    Use a library built for this architecture, and batch small products.
    [left_behind] In a slow kernel's machine code look for HGMMA, many before each wait: the older HMMA cannot be fast.
    """,
    when={
        "left_behind": lambda value: value("mma_share") <= units.LEFT_BEHIND,
        "without_wgmma": lambda value: not value("wgmma") > 0,
        "below": lambda value: value("reached") <= 1,
        "above": lambda value: value("reached") > 1,
        "types": tuple(f"{{{slot}}} in {slot}" for slot in units.USUAL_VARIANTS),
        "halved": lambda value: value("short_sums") > units.HALVED_FROM * value("long_sums"),
        "unfilled": lambda value: value("filled") <= FILLED,
    },
)

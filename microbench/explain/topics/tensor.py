"""Topic tensor: what each path to the tensor cores gives, what a product keeps of it, and for which types and sizes."""

from __future__ import annotations

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.stats import Row
from microbench.core.units import percent
from microbench.explain.compute_units import (
    BURST,
    HALVED_FROM,
    LEFT_BEHIND,
    MMA,
    NATIVE,
    PRODUCTS,
    SUSTAINED,
    TENSORS,
    WGMMA,
    beside,
    one_rate,
    per_clock,
    rates,
    tensor_dtypes,
)
from microbench.explain.topics.topic import Gathering, Passage, Topic, count, over, ratio, up_to, without, word

# The types that the text may name beside the one that it speaks of: by slot, their name on the axis and in words.
TYPES = {"fp8": "fp8_e4m3_fast", "int8": "int8", "fp16": "fp16", "tf32": "tf32", "fp32": "fp32", "fp64": "fp64"}
FILLED = 0.9


def figures(evidence: Evidence) -> Gathering:
    """Both paths clock for clock, instructions alone, and products: large, small, of other types."""
    found = Gathering(evidence)
    dtype = next(iter(tensor_dtypes(evidence)), None)
    wgmma, mma = (per_clock(evidence, path, dtype or "") for path in (WGMMA, MMA))
    found.parameter(
        "dtype", "type of the operands", None if dtype is None else 0.0, word(dtype or ""), TENSORS, "dtype"
    )
    found.row("mma", "mma.sync, an SM in a cycle", mma, TENSORS)
    if wgmma is not None or mma is None:  # an architecture without it has nothing to run
        found.row("wgmma", "wgmma, an SM in a cycle", wgmma, TENSORS)
    found.computed("mma_share", "mma.sync of wgmma", "mma / wgmma", percent, ratio, "mma", "wgmma")
    alone = _alone(evidence, WGMMA if wgmma is not None else MMA, dtype or "")
    found.row("alone", "instructions alone, all SMs", alone, TENSORS)
    found.row("alone_clock", "SM clock of these", beside(evidence, alone, "sm_clock") if alone else None, TENSORS)
    _products(found, dtype or "")
    if sums := _sums(evidence):
        found.row("short_sums", "fp16 added up in fp16", sums[0], TENSORS)
        found.row("long_sums", "fp16 added up in fp32", sums[1], TENSORS)
    return found


def _alone(evidence: Evidence, path: str, dtype: str) -> Row | None:
    """The rate of instructions alone, of work that lasts where it was measured."""
    found = (one_rate(evidence, TENSORS, path=path, dtype=dtype, load=load) for load in (SUSTAINED, BURST))
    return next((row for row in found if row is not None), None)


def _products(found: Gathering, dtype: str) -> None:
    """The largest and the smallest square product, and the largest of other types, all by cuBLASLt."""
    evidence = found.evidence
    measured = _by_size(evidence, dtype)
    large, small = (measured[-1], measured[0]) if measured else (None, None)
    for slot, row, what in (("product", large, "the large product"), ("small", small, "the small product")):
        size = whole(row, "size") if row is not None else None
        found.parameter(f"{slot}_size", f"size of {what}", size, count, PRODUCTS, "size")
        found.row(slot, what, row, PRODUCTS)
    found.row("product_clock", "SM clock of that", beside(evidence, large, "sm_clock") if large else None, PRODUCTS)
    found.computed("reached", "what a product keeps of that", "product / alone", percent, ratio, "product", "alone")
    found.computed("filled", "what the small one reaches of it", "small / large", percent, ratio, "small", "product")
    for slot, other in TYPES.items():
        rows = _by_size(evidence, other)
        if other != dtype:
            found.row(slot, f"the large product in {slot}", rows[-1] if rows else None, PRODUCTS)


def _sums(evidence: Evidence) -> tuple[Row, Row] | None:
    """fp16 that adds up in fp16, and in fp32: by instructions where both were measured, else by products."""
    short, long = (per_clock(evidence, MMA, dtype) for dtype in ("fp16_acc16", "fp16"))
    if short is not None and long is not None:
        return short, long
    products = [_by_size(evidence, dtype) for dtype in ("fp16_acc16", "fp16")]
    return (products[0][-1], products[1][-1]) if all(products) else None


def _by_size(evidence: Evidence, dtype: str) -> list[Row]:
    """cuBLASLt's square products of a type, the largest last."""
    return sorted(rates(evidence, PRODUCTS, dtype=dtype, library=NATIVE), key=lambda row: whole(row, "size"))


TOPIC = Topic(
    name="tensor",
    title="Paths to the tensor cores",
    about="what each path to the tensor cores gives, what a product keeps",
    suites=("compute",),
    figures=figures,
    needs=("mma", "product"),
    headline=(
        Passage(
            "mma.sync gives {mma_share} of wgmma's rate; a {dtype} product keeps {reached}",
            when=up_to("mma_share", LEFT_BEHIND),
        ),
        Passage("A {dtype} product of size {product_size} reaches {product}"),
        Passage("Tensor cores give what their path and clock leave"),
    ),
    paragraphs=(
        (
            Passage("Tensor cores are reached by instructions of more than one kind."),
            Passage(
                "wgmma, a warpgroup's, does {wgmma} in {dtype}; mma.sync, which kernels for older GPUs are made of, "
                "{mma}: {mma_share} of it, whatever the clock.",
            ),
            Passage("This GPU's are reached by mma.sync, which does {mma} in {dtype}.", when=without("wgmma")),
        ),
        (
            Passage("Instructions alone sustain {alone} at {alone_clock}."),
            Passage(
                "cuBLASLt's product of size {product_size} gives {product}, {reached} of that, at {product_clock}: "
                "feeding takes time, and power that would have been clock.",
                when=up_to("reached", 1.0),
            ),
            Passage(
                "cuBLASLt's product of size {product_size} gives {product} at {product_clock}: more, so it is made of "
                "other instructions, or of a cooler moment.",
                when=over("reached", 1.0),
            ),
        ),
        (
            Passage(
                "Products of other types give {items}.",
                items=tuple(f"{{{slot}}} in {slot}" for slot in TYPES),
            ),
            Passage(
                "Sums in fp32 halve the rate of fp16, as on boards for games: {long_sums}, and {short_sums} where they "
                "are added up in fp16.",
                when=over("short_sums", "long_sums", HALVED_FROM),
            ),
            Passage(
                "Size {small_size} gives {small}, {filled} of the large one: units idle.", when=up_to("filled", FILLED)
            ),
        ),
        (
            Passage("Use a library built for this architecture, and join small products to batches."),
            Passage(
                "In a slow kernel's machine code look for HGMMA, many before each wait: with the older HMMA it cannot "
                "be fast.",
                when=up_to("mma_share", LEFT_BEHIND),
            ),
        ),
    ),
    related=("clocks",),
)

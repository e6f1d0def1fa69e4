"""Explains launch_layers: what each Python layer adds over the compiled loop, and what a one-operation call costs."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import as_time, times

CHOICE_MARGIN = 1.10
NATIVE = "loop"
FOUR_ARGUMENTS = 4

TITLES = {
    "loop": "compiled loop",
    "cuda_bindings": "cuda.bindings",
    "cuda_core": "cuda.core",
    "cupy_raw": "CuPy RawKernel",
    "numba_configured": "Numba (configured before)",
    "numba_each_call": "Numba (configured each call)",
    "triton": "Triton",
    "warp": "Warp",
    "cupy_ufunc": "CuPy ufunc",
    "torch_eager": "PyTorch eager",
    "torch_out": "PyTorch out=",
    "jax_jit": "JAX jit",
}


def layer(row: Row) -> str:
    """The layer that a row measured, by its name on the axis."""
    return str(row.params.get("layer"))


def title(row: Row) -> str:
    """A row's layer as its authors write it."""
    return TITLES.get(layer(row), layer(row))


def layer_rows(evidence: Evidence, family: str, arguments: int | None = None) -> list[Row]:
    """Submit rows of a family, cheapest first; of a number of arguments if given."""
    chosen = {} if arguments is None else {"arguments": arguments}
    found = [row for row in evidence.rows("launch_layers", "submit", family=family, **chosen) if row.value > 0]
    return sorted(found, key=lambda row: row.value)


def same_kernel(evidence: Evidence) -> list[Finding]:
    """What Python adds to the launch of the same empty kernel, and which layer to choose."""
    found = layer_rows(evidence, "same_kernel", 0)
    loop = next((row for row in found if layer(row) == NATIVE), None)
    layers = [row for row in found if layer(row) != NATIVE]
    if loop is None or not layers:
        return []
    best = layers[0]
    equal = [row for row in layers if row.value <= best.value * CHOICE_MARGIN]
    added = [f"{title(row)} {as_time(row.value - loop.value)} ({times(row.value / loop.value)})" for row in layers]
    choice = listed([title(row) for row in equal])
    launch = "launches" if len(equal) == 1 else "launch"
    return [
        Finding(
            rule="launch.layers",
            severity="advice",
            title=f"From Python, {choice} {launch} cheapest: {as_time(best.value)} a call",
            text=(
                f"The same launch from a compiled loop takes {as_time(loop.value)}. Over it, a call adds: "
                f"{', '.join(added)}.{_arguments(evidence, layers)} Choose {choice} where kernels are short; where a "
                "kernel "
                "outlasts its layer's submit, the GPU never waits and the choice is free."
            ),
            threshold=f"layers within {CHOICE_MARGIN:.2f} times the cheapest count as equal",
            rests_on=rests_on(loop, *layers),
            suite="launch",
        )
    ]


def _arguments(evidence: Evidence, layers: list[Row]) -> str:
    with_four = {layer(row): row for row in layer_rows(evidence, "same_kernel", FOUR_ARGUMENTS)}
    added = [(with_four[layer(row)].value - row.value, title(row)) for row in layers if layer(row) in with_four]
    if len(added) < 2:
        return ""
    (least, cheap), (most, dear) = min(added), max(added)
    return f" Four arguments add between {as_time(max(least, 0.0))} ({cheap}) and {as_time(max(most, 0.0))} ({dear})."


def one_op(evidence: Evidence) -> list[Finding]:
    """What one array operation costs through the array libraries; a different kernel each, so no ratio to the loop."""
    found = layer_rows(evidence, "one_op")
    if not found:
        return []
    words = [f"{title(row)} {as_time(row.value)}" for row in found]
    best = title(found[0])
    several = [title(row) for row in found if (_kernels(row) or 1) != 1]
    more = f" More than one kernel a call: {listed(several)}." if several else ""
    return [
        Finding(
            rule="launch.one_op",
            severity="note",
            title=f"One array operation costs {as_time(found[0].value)} to submit at best ({best})",
            text=(
                f"x + 1 on one element: {', '.join(words)}.{more} Each library runs a kernel of its own and looks "
                "after dtypes, "
                "shapes and memory, so these are not launch costs of one kernel and are not held against the "
                "compiled loop."
            ),
            threshold="cheapest first; told whenever measured",
            rests_on=rests_on(*found),
            suite="launch",
        )
    ]


def _kernels(row: Row) -> int | None:
    """Kernels that one call was seen to launch when captured; None where capture does not work."""
    for fact in row.outcomes[0].facts:
        if fact.name == "kernels_per_call" and isinstance(fact.value, int):
            return fact.value
    return None

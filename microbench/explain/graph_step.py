"""The measured step of graph_gain that lies nearest to a described one."""

from __future__ import annotations

import math

import msgspec

from microbench.explain.evidence import Evidence
from microbench.explain.graph_gain import Pair, kernel_counts, pairs, usual_kernels
from microbench.ops import LOOP_LAYER


class Measured(msgspec.Struct, frozen=True):
    """A measured step: how many kernels, and what each took both ways."""

    kernels: int
    pair: Pair


def nearest(evidence: Evidence, kernels: int, duration_s: float, layer: str = LOOP_LAYER) -> Measured | None:
    """The case whose kernels and duration lie nearest, by ratio; None if that layer was not measured."""
    count = usual_kernels(kernel_counts(evidence, layer), kernels)
    if count is None:
        return None
    shortest_s = 1e-7  # an empty kernel's own time, roughly: what keeps 0 on a logarithmic scale
    pair = min(
        pairs(evidence, layer, count),
        key=lambda one: abs(math.log(max(one.duration_s, shortest_s) / max(duration_s, shortest_s))),
        default=None,
    )
    return None if pair is None else Measured(count, pair)

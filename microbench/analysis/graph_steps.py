"""Finds the steps that graph_gain measured, and puts steps and layers into words."""

import math
from collections.abc import Mapping, Sequence

from microbench.analysis.evidence import Evidence
from microbench.core.model import Run
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time

USUAL_KERNELS = 100
# A graph that gains less than this factor gains little.
LITTLE = 1.05
# The phases of making a graph: metrics of graph_lifecycle.
MAKING = ("capture", "instantiate", "upload")


def kernel_counts(evidence: Evidence, submitter: str = LOOP_LAYER) -> list[int]:
    """The counts of kernels in a step measured with that submitter, ascending."""
    return [count for count, _ in evidence.curve("graph_gain", "stream", "kernels", submitter=submitter)]


def usual_kernels(counts: Sequence[int], wanted: int = USUAL_KERNELS) -> int | None:
    """The count nearest to ``wanted``, by ratio; None without counts."""
    positive = [count for count in counts if count > 0]
    return min(positive, key=lambda count: abs(math.log(count / wanted)), default=None)


def kernels_in_words(count: int, duration_s: float) -> str:
    """A number of kernels of one length: "8 kernels of 3.00 µs", "1 empty kernel"."""
    plural = "" if count == 1 else "s"
    return f"{count} kernel{plural} of {as_time(duration_s)}" if duration_s > 0 else f"{count} empty kernel{plural}"


def layer_titles(run: Run) -> dict[str, str]:
    """The titles of layers by their names, as the run recorded them."""
    axes = (axis for info in run.benchmarks for axis in info.axes if axis.name in ("layer", "submitter"))
    return {layer: title for axis in axes for layer, title in axis.labels.items()}


def title_of(layer: str, titles: Mapping[str, str]) -> str:
    """A layer as its authors write it, or its name where ``titles`` lacks it."""
    title = titles.get(layer, layer)
    return f"the {title}" if layer == LOOP_LAYER else title

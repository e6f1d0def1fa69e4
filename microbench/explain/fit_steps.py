"""Whole steps of a run, and what the law says of each: how often it counts every constant, and who sets the pace."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from microbench.explain.evidence import Evidence, rests_on, whole
from microbench.explain.fit_direct import own_s
from microbench.ops import LOOP_LAYER
from microbench.submission import WAYS, Way, call_name, replay_name

# A step is known no better than this, as a share of it: processes differ, and the samples of one say nothing of that.
LEAST_SIGMA = 0.01
# Half a 95 % interval in standard deviations.
NORMAL = 1.96


class Step(msgspec.Struct, frozen=True):
    """``kernels`` alike, launched one by one or replayed, and a synchronise.

    ``seconds`` is what it was measured to take, ``sigma_s`` the standard deviation of that, ``own_s`` how long each
    kernel runs by its own record. ``row`` names the row.
    """

    way: Way
    layer: str
    arguments: int
    kernels: int
    own_s: float
    seconds: float
    sigma_s: float
    row: str

    @property
    def call(self) -> str:
        """The constant of its launch call."""
        return call_name(self.layer, self.arguments)

    def gpu_paced(self, values: Mapping[str, float]) -> bool:
        """True if kernels and their gaps take longer than their calls."""
        return self.way == "graph" or self.own_s + values["gap_stream"] >= values[self.call]

    def terms(self, gpu_paced: bool) -> dict[str, float]:
        """How often the law counts each constant at that pace; the kernels' own time comes on top.

        It is what ``costmodel.play`` makes of ``submission.acts`` for such a step.
        """
        after_first = float(self.kernels - 1)
        if self.way == "graph":
            counted = {replay_name(self.layer): 1.0, "replay_node": float(self.kernels), "replay_way": 1.0}
            counted["gap_graph"] = after_first
        elif gpu_paced:
            counted = {self.call: 1.0, "way": 1.0, "gap_stream": after_first}
        else:
            counted = {self.call: 1.0 + after_first, "way": 1.0}
        return {name: factor for name, factor in counted.items() if factor} | {"complete": 1.0}

    def kernels_s(self, gpu_paced: bool) -> float:
        """How much of the kernels' own time the law counts: all of it, or that of the last one."""
        return self.own_s * (self.kernels if gpu_paced else 1)

    def law_s(self, values: Mapping[str, float], gpu_paced: bool) -> float:
        """What the step takes by the law."""
        terms = self.terms(gpu_paced).items()
        return self.kernels_s(gpu_paced) + sum(factor * values[name] for name, factor in terms)


def steps(evidence: Evidence) -> list[Step]:
    """graph_gain's steps, both ways. An empty kernel has no argument, one that spins has its length."""
    found = []
    for way in WAYS:
        for row in evidence.rows("graph_gain", way):
            kernels, duration_ns = whole(row, "kernels"), whole(row, "duration_ns")
            if row.value <= 0 or kernels < 1:
                continue
            seconds = row.value * kernels
            found.append(
                Step(
                    way=way,
                    layer=str(row.params.get("submitter", LOOP_LAYER)),
                    arguments=1 if duration_ns else 0,
                    kernels=kernels,
                    own_s=own_s(evidence, duration_ns),
                    seconds=seconds,
                    sigma_s=max(row.interval.half_width / NORMAL, LEAST_SIGMA) * seconds,
                    row=rests_on(row)[0],
                )
            )
    return found

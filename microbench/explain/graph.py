"""The graph suite explained: its rules in the order they are told."""

from __future__ import annotations

from microbench.explain import (
    graph_gain,
    graph_life,
    graph_limits,
    graph_memory,
    graph_nodes,
    graph_pdl,
    graph_replay,
    graph_shape,
    graph_update,
    model_check,
)
from microbench.explain.evidence import Rule

RULES: tuple[Rule, ...] = (
    graph_life.break_even,
    graph_gain.crossovers,
    graph_limits.no_help,
    graph_life.phases,
    graph_replay.replaying,
    graph_replay.upload,
    graph_update.update,
    graph_nodes.kinds,
    graph_nodes.one_by_one,
    graph_pdl.dependent_launch,
    graph_nodes.decided,
    graph_nodes.refused,
    graph_shape.shapes,
    graph_memory.memory,
    graph_replay.footprint,
    model_check.foresight,
)

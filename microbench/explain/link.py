"""The link suite explained: its rules in the order they are told, the verdict first."""

from __future__ import annotations

from microbench.explain import (
    link_copy,
    link_duplex,
    link_latency,
    link_limits,
    link_peers,
    link_pinning,
    link_places,
    link_steps,
    link_verdict,
    link_way,
    link_zero_copy,
)
from microbench.explain.evidence import Rule

RULES: tuple[Rule, ...] = (
    link_verdict.verdict,
    link_limits.over_limit,
    link_way.errors,
    link_way.settings,
    link_copy.copy_size,
    link_copy.memories,
    link_pinning.pays,
    link_duplex.together,
    link_zero_copy.zero_copy,
    link_latency.latency,
    link_latency.switches,
    link_places.numa,
    link_places.concurrent,
    link_peers.peers,
    link_steps.chunks,
    link_steps.managed,
)

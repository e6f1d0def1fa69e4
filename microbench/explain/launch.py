"""The launch suite explained: its rules in the order they are told."""

from __future__ import annotations

from microbench.explain import launch_bus, launch_cost, launch_layers, launch_waits, launch_ways
from microbench.explain.evidence import Rule

RULES: tuple[Rule, ...] = (
    launch_cost.cost,
    launch_cost.starving,
    launch_cost.gaps,
    launch_layers.same_kernel,
    launch_layers.one_op,
    launch_ways.queue,
    launch_bus.traffic,
    launch_bus.counters,
    launch_waits.waits,
    launch_waits.calls,
    launch_ways.threads,
    launch_ways.streams,
    launch_ways.kinds,
    launch_ways.arguments,
    launch_waits.cold,
    launch_cost.tails,
)

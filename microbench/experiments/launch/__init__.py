"""Experiments with launches: what a launch goes through on its way, and what disturbs it."""

"""Arithmetic on measured rows: statistics, physical limits, and the evidence that rules read."""

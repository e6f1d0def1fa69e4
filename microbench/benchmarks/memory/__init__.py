"""Bandwidth and latency of each memory level."""

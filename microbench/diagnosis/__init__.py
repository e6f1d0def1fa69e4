"""Finds out why the GPU waits in a recorded trace, and what a graph would give."""

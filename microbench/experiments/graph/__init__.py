"""Experiments with CUDA Graphs beyond a replay: how they are made and changed, and what they hold."""

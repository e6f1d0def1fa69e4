"""Experiments with the GPU's own memory and caches."""

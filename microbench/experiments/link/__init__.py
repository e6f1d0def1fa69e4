"""Experiments with the links to the host and to other GPUs."""

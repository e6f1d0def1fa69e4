"""Experiments with what the user brings: a function, or a kernel of a CUDA C++ file."""

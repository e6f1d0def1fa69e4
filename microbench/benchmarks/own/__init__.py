"""Benchmarks of a user's own functions and kernels, which `microbench measure` gives their parameters."""

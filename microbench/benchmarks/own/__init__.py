"""Benchmarks of a user's own functions and kernels; `microbench measure` sets their parameters."""

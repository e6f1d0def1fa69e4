"""Throughput of tensor cores and ALUs."""

"""Reads recordings of other profilers into one form: calls of the host, work of the GPU, ranges of host code."""

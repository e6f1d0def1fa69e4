"""Reads recordings of other profilers into one form: the calls of the host, the work of the GPU, ranges of host code."""

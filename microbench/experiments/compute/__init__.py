"""Experiments with tensor cores and ALUs: matrix products of libraries, and instructions alone."""

"""Tensor cores and ALUs of a real GPU: matrix products and single instructions."""

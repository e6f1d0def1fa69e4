"""Tensor cores and ALUs of a real GPU: products by libraries, instructions alone."""

"""The version of microbench."""

__version__ = "0.1.0"

"""microbench: what it costs to submit work to a CUDA GPU, and what limits it."""

__version__ = "0.1.0"

"""Makes a CUDA graph of a function, proves that it computes the same, and hands over the change."""

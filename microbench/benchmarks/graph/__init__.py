"""What CUDA Graphs cost and what they gain."""

"""CUDA Graphs on a real GPU: building, changing and replaying them."""

"""CUDA Graphs on a real GPU: lives, changes, chains of every kind of node, shapes, loops and allocations."""

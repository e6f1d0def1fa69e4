"""The operations of a GPU, real or simulated."""

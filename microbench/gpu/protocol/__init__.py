"""What can be asked of a GPU, real or simulated."""

"""GPUs, real and simulated, and the Python layers that launch on them. Only this room imports GPU packages."""

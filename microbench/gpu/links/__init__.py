"""The links of a real GPU: host memory, copies, kernels on far memory, other GPUs."""

"""The links of the simulated GPU: host memory, copies, kernels on far memory, other GPUs."""

"""PCIe bandwidth and latency, pinned and managed memory, and other GPUs."""

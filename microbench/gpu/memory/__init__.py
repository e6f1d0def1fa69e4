"""Device memory and caches on a real GPU: streaming kernels, working sets, walks, copies, allocation."""

"""Device code: one CUDA C++ file a topic, compiled by NVRTC, and Numba's kernels. Reached as microbench._kernels."""

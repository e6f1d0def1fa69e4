"""Device code: CUDA C++ files that NVRTC compiles, and Numba kernels. Imported as microbench._kernels."""

"""The benchmarks: one file, one benchmark, one question; found by walking this folder."""

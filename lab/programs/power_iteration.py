"""The largest eigenvalue by CuPy, as a script: one loop at module level."""

import cupy as cp
from iterations import it

matrix = cp.random.standard_normal((1024, 1024), dtype=cp.float32)
matrix = matrix @ matrix.T / 1024
vector = cp.ones(1024, dtype=cp.float32)

for _ in range(10_000_000):
    image = matrix @ vector
    value = vector @ image
    vector = image / cp.linalg.norm(image)
    if it.reads:
        print(f"{value.item():.4f}", end="\r")
    elif it.waits():
        cp.cuda.Device().synchronize()
    it.end()
    if it.enough():
        break

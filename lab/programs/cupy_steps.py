"""CuPy programs: a wave equation in arrays of its own, and expressions whose results are allocated by the driver."""

from __future__ import annotations

import cupy
import numpy as np

from programs import Made, Step

SIZE, PIECES = 640, 12
SOURCE = """
extern "C" __global__ void laplacian(const float *u, float *out, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= size || y >= size) return;
    int left = x ? x - 1 : size - 1, right = x + 1 < size ? x + 1 : 0;
    int up = y ? y - 1 : size - 1, down = y + 1 < size ? y + 1 : 0;
    out[y * size + x] = u[y * size + left] + u[y * size + right] + u[up * size + x] + u[down * size + x]
                        - 4.0f * u[y * size + x];
}
"""


def cupy_wave() -> Made:
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    laplacian = cupy.RawModule(code=SOURCE).get_function("laplacian")
    now, before, curved, damped = (cupy.zeros((SIZE, SIZE), dtype=cupy.float32) for _ in range(4))
    now[SIZE // 2, SIZE // 2] = 1.0
    blocks = ((SIZE + 31) // 32, (SIZE + 7) // 8)

    def step() -> None:
        a, b = now, before
        for _ in range(PIECES):
            laplacian(blocks, (32, 8), (a, curved, np.int32(SIZE)))
            cupy.multiply(a, np.float32(1.99), out=damped)
            cupy.subtract(damped, b, out=b)
            cupy.multiply(curved, np.float32(0.2), out=curved)
            cupy.add(b, curved, out=b)
            a, b = b, a

    def graph() -> Step:
        stream.begin_capture()
        step()
        whole = stream.end_capture()
        whole.upload(stream)
        return lambda: whole.launch(stream)

    return Made(step, stream.synchronize, graph)


def cupy_without_pool() -> Made:
    cupy.cuda.set_allocator(None)
    x, y = (cupy.arange(900_000, dtype=cupy.float32) / 900_000 for _ in range(2))

    def step() -> None:
        z = x
        for _ in range(6):
            z = cupy.tanh(z * y) + x

    def pooled() -> None:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        step()
        cupy.cuda.set_allocator(None)

    return Made(step, cupy.cuda.get_current_stream().synchronize, remedies={"allocation": pooled})

"""CuPy programs: solvers, a clustering, a filter, a kernel by hand; each with a loop of its own shape."""

from __future__ import annotations

from collections.abc import Iterator

import cupy as cp
import numpy as np
from iterations import Iterations


def conjugate_gradient(it: Iterations) -> None:
    """Poisson's equation in two dimensions without a matrix; alpha and beta stay on the GPU."""
    size = 512

    def apply(u: cp.ndarray) -> cp.ndarray:
        out = 4 * u
        out[1:] -= u[:-1]
        out[:-1] -= u[1:]
        out[:, 1:] -= u[:, :-1]
        out[:, :-1] -= u[:, 1:]
        return out

    b = cp.random.standard_normal((size, size), dtype=cp.float32)
    x, r = cp.zeros_like(b), b.copy()
    p, rr = r.copy(), (r * r).sum()

    def update() -> None:
        nonlocal p, rr
        ap = apply(p)
        alpha = rr / (p * ap).sum()
        x[...] += alpha * p
        r[...] -= alpha * ap
        after = (r * r).sum()
        p = r + after / rr * p
        rr = after

    it.capture_cupy(update)
    for _ in range(10**6):
        update()
        if it.reads:
            float(rr)
        elif it.waits():
            cp.cuda.Device().synchronize()
        it.end()
        if it.enough():
            break


def jacobi(it: Iterations) -> None:
    """Heat in a plate by slices, until a count; the style that reads reads the change."""
    old = cp.zeros((700, 700), dtype=cp.float32)
    old[0] = 100.0
    new = old.copy()

    def sweep(source: cp.ndarray, target: cp.ndarray) -> None:
        target[1:-1, 1:-1] = 0.25 * (source[:-2, 1:-1] + source[2:, 1:-1] + source[1:-1, :-2] + source[1:-1, 2:])

    it.capture_cupy(lambda: sweep(old, new))
    count, change = 0, 1.0
    while count < 10**7 and change >= 0:
        sweep(old, new)
        difference = cp.abs(new - old).max()
        old, new = new, old
        count += 1
        if it.reads:
            change = difference.item()
        elif it.waits():
            cp.cuda.get_current_stream().synchronize()
        it.end()
        if it.enough():
            break


class KMeans:
    def __init__(self, it: Iterations, clusters: int = 16) -> None:
        self.it = it
        self.points = cp.random.random((40_000, 8), dtype=cp.float32)
        self.numbers = cp.arange(clusters)
        self.centers = self.points[:clusters].copy()

    def assign(self) -> cp.ndarray:
        squares = (self.points**2).sum(1)[:, None] - 2 * self.points @ self.centers.T + (self.centers**2).sum(1)
        return squares.argmin(1)

    def move(self, nearest: cp.ndarray) -> cp.ndarray:
        member = (nearest[:, None] == self.numbers).astype(cp.float32)
        centers = member.T @ self.points / cp.maximum(member.sum(0), 1)[:, None]
        shift = cp.linalg.norm(centers - self.centers)
        self.centers = centers
        return shift

    def fit(self) -> None:
        for _ in range(10**6):
            shift = self.move(self.assign())
            if self.it.reads and float(shift) < 0:
                break
            if self.it.waits():
                cp.cuda.Device().synchronize()
            self.it.end()
            if self.it.enough():
                break


def kmeans(it: Iterations) -> None:
    """Lloyd's rounds in a class with fit()."""
    KMeans(it).fit()


def fft_filter(it: Iterations) -> None:
    """Images from a generator of pageable memory are filtered; the result goes back in the style that reads."""
    images = np.random.default_rng(0).random((8, 512, 512), dtype=np.float32)
    rows, columns = cp.fft.fftfreq(512)[:, None], cp.fft.rfftfreq(512)[None]
    low = cp.exp(-((rows**2 + columns**2) / 0.01)).astype(cp.float32)

    def source() -> Iterator[np.ndarray]:
        while True:
            yield from images

    def smooth(image: cp.ndarray) -> cp.ndarray:
        return cp.fft.irfft2(cp.fft.rfft2(image) * low, s=image.shape)

    for image in source():
        smoothed = smooth(cp.asarray(image))
        if it.reads:
            cp.asnumpy(smoothed.mean())
        elif it.waits():
            cp.cuda.Device().synchronize()
        it.end()
        if it.enough():
            break


WAVE = r"""
extern "C" __global__ void wave(const float *now, float *before, int n, float speed) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    int i = y * n + x;
    float curved = now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4.0f * now[i];
    before[i] = 2.0f * now[i] - before[i] + speed * curved;
}
"""


def wave_kernel(it: Iterations) -> None:
    """A RawKernel four times an iteration with two buffers in turn, then an absorbing edge by a ufunc."""
    n = 768
    kernel = cp.RawKernel(WAVE, "wave")
    now, before = cp.zeros((n, n), dtype=cp.float32), cp.zeros((n, n), dtype=cp.float32)
    now[n // 2, n // 2] = 1.0
    damping = cp.ones((n, n), dtype=cp.float32)
    damping[:16] = damping[-16:] = 0.9
    block, grid = (32, 8), (n // 32, n // 8)
    it.parts = 4

    def advance() -> None:
        a, b = now, before
        for _ in range(4):
            kernel(grid, block, (a, b, np.int32(n), np.float32(0.2)))
            a, b = b, a
        cp.multiply(a, damping, out=a)

    it.capture_cupy(advance)
    frame = 0
    while True:
        advance()
        frame += 1
        if it.reads:
            now[n // 2, n // 2].get()
        elif it.waits():
            cp.cuda.get_current_stream().synchronize()
        it.end()
        if it.enough():
            break


def monte_carlo(it: Iterations) -> None:
    """Asian options: normal numbers, a cumulative sum, an ElementwiseKernel and a mean, for strikes in turn."""
    payoff = cp.ElementwiseKernel(
        "float32 mean, float32 strike", "float32 paid", "paid = max(mean - strike, 0.0f)", "payoff"
    )
    strikes, paths, times = (90.0, 95.0, 100.0, 105.0, 110.0), 20_000, 16

    def price(strike: float) -> cp.ndarray:
        steps = cp.random.standard_normal((paths, times), dtype=cp.float32) * np.float32(0.05) - np.float32(0.00125)
        means = (100 * cp.exp(cp.cumsum(steps, axis=1))).mean(1)
        return payoff(means, np.float32(strike)).mean()

    def valued(rounds: int) -> Iterator[cp.ndarray]:
        for _ in range(rounds):
            for strike in strikes:
                yield price(strike)

    book = []
    for value in valued(100_000):
        if it.reads:
            book.append(float(value.get()))
        elif it.waits():
            cp.cuda.Device().synchronize()
        it.end()
        if it.enough():
            break

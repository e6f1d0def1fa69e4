"""Numba programs: kernels by hand, launched in loops of other shapes. On the CPU they are tiny, for the simulator."""

from __future__ import annotations

import math

import numpy as np
from iterations import Iterations
from numba import cuda, float32


@cuda.jit(device=True)
def normal(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x * 0.7071067811865475))


@cuda.jit
def price(stock, strike, years, call, put, rate, volatility):
    i = cuda.grid(1)
    if i < stock.size:
        root = volatility * math.sqrt(years[i])
        first = (math.log(stock[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]) / root
        owed = strike[i] * math.exp(-rate * years[i])
        call[i] = stock[i] * normal(first) - owed * normal(first - root)
        put[i] = owed * normal(root - first) - stock[i] * normal(-first)


def black_scholes(it: Iterations) -> None:
    """Options are priced for other volatilities in turn; prices of the stocks are copied in each time."""
    n, threads = (1 << 19, 256) if it.device == "cuda" else (64, 32)
    random = np.random.default_rng(0)
    stock = random.uniform(5, 30, n).astype(np.float32)
    strike, years = (cuda.to_device(random.uniform(1, 10, n).astype(np.float32)) for _ in range(2))
    call, put = (cuda.device_array(n, np.float32) for _ in range(2))
    for _ in range(100_000):
        for volatility in (0.1, 0.2, 0.3):
            on_gpu = cuda.to_device(stock)
            price[(n + threads - 1) // threads, threads](on_gpu, strike, years, call, put, 0.02, volatility)
            if it.reads:
                call[:1].copy_to_host()
            elif it.waits():
                cuda.synchronize()
            it.end()
            if it.enough():
                return


@cuda.jit
def pull(place, speed, after, dt):
    i = cuda.grid(1)
    if i >= place.shape[0]:
        return
    x, y, z = place[i, 0], place[i, 1], place[i, 2]
    ax, ay, az = float32(0.0), float32(0.0), float32(0.0)
    for j in range(place.shape[0]):
        dx, dy, dz = place[j, 0] - x, place[j, 1] - y, place[j, 2] - z
        near = dx * dx + dy * dy + dz * dz + float32(0.01)
        force = float32(1.0) / (near * math.sqrt(near))
        ax += force * dx
        ay += force * dy
        az += force * dz
    speed[i, 0] += dt * ax
    speed[i, 1] += dt * ay
    speed[i, 2] += dt * az
    after[i, 0] = x + dt * speed[i, 0]
    after[i, 1] = y + dt * speed[i, 1]
    after[i, 2] = z + dt * speed[i, 2]


def nbody(it: Iterations) -> None:
    """Two buffers in turn in a while loop; one kernel is nearly all of an iteration."""
    n, threads = (2048, 128) if it.device == "cuda" else (16, 8)
    place = cuda.to_device(np.random.default_rng(1).random((n, 3), dtype=np.float32))
    after, speed = cuda.device_array_like(place), cuda.to_device(np.zeros((n, 3), np.float32))
    steps = 0
    while steps < 10**7:
        pull[n // threads, threads](place, speed, after, np.float32(1e-3))
        place, after = after, place
        steps += 1
        if it.reads:
            place[0].copy_to_host()
        elif it.waits():
            cuda.synchronize()
        it.end()
        if it.enough():
            break


@cuda.jit
def diffuse(old, new, rate):
    y, x = cuda.grid(2)
    if 0 < y < old.shape[0] - 1 and 0 < x < old.shape[1] - 1:
        around = old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
        new[y, x] = old[y, x] + rate * (around - 4 * old[y, x])


@cuda.jit
def edges(field):
    i = cuda.grid(1)
    if i < field.shape[0]:
        field[i, 0] = field[i, 1]
        field[i, field.shape[1] - 1] = field[i, field.shape[1] - 2]


class Plate:
    """run() calls frame(), which calls step() ten times: an iteration is a frame."""

    def __init__(self, it: Iterations) -> None:
        side, self.threads = (512, (8, 32)) if it.device == "cuda" else (8, (4, 4))
        hot = np.zeros((side, side), np.float32)
        hot[side // 4 : side // 2] = 1.0
        self.it, self.old, self.new = it, cuda.to_device(hot), cuda.to_device(hot)
        self.blocks = (side // self.threads[0], side // self.threads[1])
        self.line = ((side + 127) // 128, 128) if it.device == "cuda" else (2, 4)

    def step(self) -> None:
        diffuse[self.blocks, self.threads](self.old, self.new, np.float32(0.2))
        edges[self.line](self.new)
        self.old, self.new = self.new, self.old

    def frame(self) -> None:
        for _ in range(10):
            self.step()

    def run(self) -> None:
        while True:
            self.frame()
            if self.it.reads:
                self.old[1, :1].copy_to_host()
            elif self.it.waits():
                cuda.default_stream().synchronize()
            self.it.end()
            if self.it.enough():
                return


def heat(it: Iterations) -> None:
    """A stencil in a class, methods three deep; ten equal steps make an iteration."""
    it.unit, it.parts = "one frame of ten steps", 10
    Plate(it).run()


@cuda.jit
def clear(bins):
    i = cuda.grid(1)
    if i < bins.size:
        bins[i] = 0


@cuda.jit
def count(values, bins):
    begin, stride = cuda.grid(1), cuda.gridsize(1)
    for i in range(begin, values.size, stride):
        cuda.atomic.add(bins, min(int(values[i] * bins.size), bins.size - 1), 1)


@cuda.jit
def largest(bins, most):
    i = cuda.grid(1)
    if i < bins.size:
        cuda.atomic.max(most, 0, bins[i])


def histogram(it: Iterations) -> None:
    """Three kernels and a small copy for each of six pieces of data on a stream of its own."""
    n, grid, line = (1 << 20, (132, 256), (1, 256)) if it.device == "cuda" else (64, (2, 8), (2, 8))
    pieces = [cuda.to_device(np.random.default_rng(seed).random(n, dtype=np.float32)) for seed in range(6)]
    stream = cuda.stream()
    bins, most = cuda.device_array(line[0] * line[1], np.int32), cuda.device_array(1, np.int32)
    zero = np.zeros(1, np.int32)
    tops: list[int] = []

    def top_of(values) -> None:
        most.copy_to_device(zero, stream=stream)
        clear[(*line, stream)](bins)
        count[(*grid, stream)](values, bins)
        largest[(*line, stream)](bins, most)

    number = 0
    while True:
        top_of(pieces[number % len(pieces)])
        number += 1
        if it.reads:
            tops.append(int(most.copy_to_host(stream=stream)[0]))
        elif it.waits():
            stream.synchronize()
        it.end()
        if it.enough():
            break


@cuda.jit
def matmul_tiled(a, b, c):
    left, right = cuda.shared.array((16, 16), float32), cuda.shared.array((16, 16), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for piece in range(a.shape[1] // 16):
        left[tx, ty] = a[x, ty + piece * 16]
        right[tx, ty] = b[tx + piece * 16, y]
        cuda.syncthreads()
        for k in range(16):
            total += left[tx, k] * right[k, ty]
        cuda.syncthreads()
    c[x, y] = total


def matrix_powers(it: Iterations) -> None:
    """Products by a kernel with shared memory: long kernels, so that the GPU is busy all the time."""
    side = 1024 if it.device == "cuda" else 16
    a = cuda.to_device(np.eye(side, k=1, dtype=np.float32))
    now, after = cuda.to_device(np.eye(side, dtype=np.float32)), cuda.device_array((side, side), np.float32)
    for _ in range(10**7):
        matmul_tiled[(side // 16, side // 16), (16, 16)](a, now, after)
        now, after = after, now
        if it.reads:
            now[0, :1].copy_to_host()
        elif it.waits():
            cuda.synchronize()
        it.end()
        if it.enough():
            break

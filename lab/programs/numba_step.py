"""Particles in a box by Numba kernels, each configured at its call as most programs do."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from microbench.gpu.layers import base
from programs import Made, Step

PARTICLES, PIECES, THREADS = 20_000, 10, 128


@cuda.jit
def pushed(velocity, place, strength):
    i = cuda.grid(1)
    if i < place.shape[0]:
        for axis in range(3):
            velocity[i, axis] -= strength * math.sin(place[i, axis])


@cuda.jit
def moved(place, velocity, seconds):
    i = cuda.grid(1)
    if i < place.shape[0]:
        for axis in range(3):
            place[i, axis] += seconds * velocity[i, axis]


@cuda.jit
def reflected(place, velocity, edge):
    i = cuda.grid(1)
    if i < place.shape[0]:
        for axis in range(3):
            if abs(place[i, axis]) > edge:
                velocity[i, axis] = -velocity[i, axis]


def numba_particles() -> Made:
    cuda.current_context()
    driver = base.load_driver()
    own = base.check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    stream = cuda.external_stream(int(own))
    start = np.random.default_rng(0).standard_normal((PARTICLES, 3)).astype(np.float32)
    place, velocity = cuda.to_device(start), cuda.to_device(np.zeros_like(start))
    blocks, seconds, edge = (PARTICLES + THREADS - 1) // THREADS, np.float32(0.01), np.float32(3.0)

    def step() -> None:
        for _ in range(PIECES):
            pushed[blocks, THREADS, stream](velocity, place, seconds)
            moved[blocks, THREADS, stream](place, velocity, seconds)
            reflected[blocks, THREADS, stream](place, velocity, edge)

    def graph() -> Step:
        return base.driver_graph("Numba", (RuntimeError,), int(own), step, 1).launch

    return Made(step, stream.synchronize, graph)

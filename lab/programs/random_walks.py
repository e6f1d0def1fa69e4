"""Random walks by Numba with a generator a thread, as a script: a while loop at module level."""

import numpy as np
from iterations import it
from numba import cuda
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_normal_float32

WALKERS, THREADS = (1 << 16, 128) if it.device == "cuda" else (32, 16)


@cuda.jit
def walk(states, places, steps):
    i = cuda.grid(1)
    if i < places.size:
        place = places[i]
        for _ in range(steps):
            place += xoroshiro128p_normal_float32(states, i)
        places[i] = place


@cuda.jit
def far(places, beyond, count):
    i = cuda.grid(1)
    if i < places.size and abs(places[i]) > beyond:
        cuda.atomic.add(count, 0, 1)


states = create_xoroshiro128p_states(WALKERS, seed=1)
places = cuda.to_device(np.zeros(WALKERS, np.float32))
count = cuda.to_device(np.zeros(1, np.int32))
blocks = WALKERS // THREADS

done = 0
while done < 10**8:
    walk[blocks, THREADS](states, places, 8)
    far[blocks, THREADS](places, np.float32(100.0), count)
    done += 8
    if it.reads:
        print(count.copy_to_host()[0], end="\r")
    elif it.waits():
        cuda.synchronize()
    it.end()
    if it.enough():
        break

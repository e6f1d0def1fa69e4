"""The same as graph_traps.py for functions of CuPy, Numba and cuda.core, none of which uses PyTorch.

``python lab/array_traps.py [OUT.csv] [NAME…]`` on a GPU prints a line for each.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace as Space
from typing import Any

import cupy as cp
import numpy as np
from traps import Functions, main

FUNCTIONS = Functions()
TRAPS, SETTINGS, SOUND = FUNCTIONS.traps, FUNCTIONS.settings, FUNCTIONS.sounds
trap, setting, sound = FUNCTIONS.trap, FUNCTIONS.setting, FUNCTIONS.sound
RATE = 0.5
SAXPY = 'extern "C" __global__ void saxpy(float* y, const float* x, float a, int n) {'
SAXPY += " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += a * x[i]; }"


def x(*shape: int) -> Any:
    random = np.random.default_rng(3)
    return cp.asarray(random.standard_normal(shape or (64, 16)), dtype=cp.float32)


# ---- what stops a capture


@trap("in the way: .*item|in the way: float")
def reads_a_norm() -> Any:
    def step(a: Any) -> Any:
        norm = float(cp.abs(a).max())
        return a / norm

    return step, (x(),)


@trap("in the way: .*make the indices once")
def selects_by_a_mask() -> Any:
    return lambda a: a[a > 0].sum(), (x(),)


@trap("in the way: .*copy results to the host")
def copies_to_the_host() -> Any:
    def step(a: Any) -> Any:
        b = a * 2
        Space(host=b.get())
        return b

    return step, (x(),)


@trap("in the way: .*make the tensor on the GPU once")
def makes_an_array_from_a_list() -> Any:
    return lambda a: a + cp.asarray([1.0] * 16, dtype=cp.float32), (x(),)


@trap("in the way: .*make the tensor on the GPU once")
def indexes_by_a_list() -> Any:
    return lambda a: a[[1, 3, 5]].sum(axis=0), (x(),)


@trap("in the way: .*a replay needs no wait")
def waits_for_the_stream() -> Any:
    def step(a: Any) -> Any:
        b = a * 2
        cp.cuda.get_current_stream().synchronize()
        return b + 1

    return step, (x(),)


@trap("in the way: .*keep it out of the graph")
def multiplies_by_cublas() -> Any:
    weight = x(16, 16)
    return lambda a: a @ weight + 1, (x(),)


@trap("in the way: .*keep it out of the graph")
def draws_by_curand() -> Any:
    return lambda a: a + cp.random.standard_normal(a.shape, dtype=cp.float32), (x(),)


@trap("in the way: .*item.*make the indices once.*a replay needs no wait")
def has_three_in_the_way() -> Any:
    def step(a: Any) -> Any:
        if a.sum().item() > 1e9:
            return a
        rows = cp.nonzero(a[:, 0])[0]
        cp.cuda.Stream.null.synchronize()
        return a[rows].sum()

    return step, (x(),)


@trap("give each kernel the same stream")
def numba_without_a_stream() -> Any:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def double(y: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            y[i] *= 2

    held = cuda.to_device(np.ones(4096, np.float32))
    return lambda: double[32, 128](held), ()


# ---- what a graph freezes


@trap("host|replay|each call changes")
def swaps_two_buffers() -> Any:
    held = Space(u=x(), v=cp.zeros((64, 16), dtype=cp.float32))

    def step(a: Any) -> Any:
        held.v[...] = held.u * 0.5 + a
        held.u, held.v = held.v, held.u
        return held.u.sum()

    return step, (x(),)


@trap("host|replay|each call changes")
def counts_on_the_host() -> Any:
    state = {"calls": 0}

    def step(a: Any) -> Any:
        state["calls"] += 1
        return a * state["calls"]

    return step, (x(),)


@trap("host|replay|each call changes")
def makes_its_state_anew() -> Any:
    held = Space(u=x())

    def step() -> Any:
        held.u = held.u * 0.9 + 1
        return held.u.sum()

    return step, ()


@trap("random numbers of a Generator")
def draws_on_the_host() -> Any:
    random = np.random.default_rng(1)
    return lambda a: a * float(random.random()), (x(),)


@trap("iterator|replay|host|not repeatable")
def takes_from_an_iterator() -> Any:
    rates = iter(np.linspace(0.1, 0.9, 5000).tolist())
    return lambda a: a * next(rates), (x(),)


@trap("computes something else|host|each call changes|replay")
def keeps_a_hidden_number() -> Any:
    class Hidden:
        __slots__ = ("number",)

        def __init__(self) -> None:
            self.number = [0]

    held = Hidden()

    def step(a: Any) -> Any:
        held.number[0] += 1
        return a + held.number[0]

    return step, (x(),)


@trap("2 streams")
def works_in_two_streams() -> Any:
    one, two = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    kept = cp.zeros((64, 16), dtype=cp.float32)

    def step(a: Any) -> Any:
        with one:
            cp.multiply(a, 2, out=kept)
        with two:
            cp.add(kept, 1, out=kept)
        return kept

    return step, (x(),)


@trap("it works in another stream")
def launches_in_a_stream_that_it_makes() -> Any:
    kept = cp.zeros((64, 16), dtype=cp.float32)

    def step(a: Any) -> Any:
        with cp.cuda.Stream(non_blocking=True):
            cp.multiply(a, 2, out=kept)
        return kept

    return step, (x(),)


@trap("default stream|another stream")
def names_the_default_stream() -> Any:
    stream, kept = cp.cuda.Stream(null=True), cp.zeros((64, 16), dtype=cp.float32)

    def step(a: Any) -> Any:
        with stream:
            cp.multiply(a, 2, out=kept)
        return kept

    return step, (x(),)


@trap("DeviceNDArray|Buffer")
def numba_returns_memory_of_its_own() -> Any:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def double(y: Any, z: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            z[i] = 2 * y[i]

    stream = cuda.stream()

    def step(a: Any) -> Any:
        z = cuda.device_array(4096, np.float32, stream=stream)
        double[32, 128, stream](a, z)
        return z

    return step, (x(4096),)


# ---- settings that a caller changes


@setting
def a_number_of_c() -> Any:
    rate = ctypes.c_float(0.5)

    def change() -> None:
        rate.value = 0.25

    return lambda a: a * rate.value, (x(),), change


@setting
def a_number_of_numpy() -> Any:
    held = Space(rate=np.float32(0.5))

    def change() -> None:
        held.rate = np.float32(0.25)

    return lambda a: a * held.rate, (x(),), change


@setting
def an_array_of_the_host() -> Any:
    rates = np.array([0.5, 0.25])

    def change() -> None:
        rates[0] = 0.125

    return lambda a: a * float(rates[0]), (x(),), change


@setting
def a_rate_of_the_module() -> Any:
    global RATE
    RATE = 0.5

    def change() -> None:
        global RATE
        RATE = 0.25

    return lambda a: a * RATE, (x(),), change


@setting
def a_rate_of_an_object() -> Any:
    held = Space(rate=0.5)

    def change() -> None:
        held.rate = 0.25

    return lambda a: a * held.rate, (x(),), change


@setting
def another_array_in_an_attribute() -> Any:
    held = Space(weight=x())

    def change() -> None:
        held.weight = x() * 3

    return lambda a: a * held.weight, (x(),), change


@setting
def another_array_in_a_list() -> Any:
    held = [x(), x() + 1]

    def change() -> None:
        held[1] = x() * 3

    return lambda a: sum(a * one for one in held), (x(),), change


@setting
def another_function() -> Any:
    held = Space(shape=cp.tanh)

    def change() -> None:
        held.shape = cp.exp

    return lambda a: held.shape(a), (x(),), change


@setting
def a_default_in_a_closure() -> Any:
    rate = 0.5

    def step(a: Any) -> Any:
        return a * rate

    def change() -> None:
        nonlocal rate
        rate = 0.25

    return step, (x(),), change


# ---- sound ones


@sound
def elementwise() -> Any:
    return lambda a: cp.tanh(a * 2 + 1).sum(axis=1), (x(),)


@sound
def heat_in_place() -> Any:
    field = x(128, 128)

    def step() -> Any:
        field[1:-1, 1:-1] += 0.1 * (
            field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2] - 4 * field[1:-1, 1:-1]
        )
        return cp.abs(field).max()

    return step, ()


@sound
def two_steps_with_a_swap() -> Any:
    held = Space(u=x(128, 128), v=cp.zeros((128, 128), dtype=cp.float32))

    def half(old: Any, new: Any) -> None:
        new[1:-1, 1:-1] = 0.25 * (old[2:, 1:-1] + old[:-2, 1:-1] + old[1:-1, 2:] + old[1:-1, :-2])

    def step() -> None:
        half(held.u, held.v)
        half(held.v, held.u)

    return step, ()


@sound
def raw_kernel() -> Any:
    kernel, y = cp.RawKernel(SAXPY, "saxpy"), cp.zeros(4096, dtype=cp.float32)

    def step(a: Any) -> Any:
        kernel((32,), (128,), (y, a, np.float32(0.5), np.int32(4096)))
        return y * 1

    return step, (x(4096),)


@sound
def elementwise_kernel() -> Any:
    kernel = cp.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = a * b + 1", "fma_of_mine")
    weight = x()
    return lambda a: kernel(a, weight), (x(),)


@sound
def reduction_kernel() -> Any:
    kernel = cp.ReductionKernel("T a", "T b", "a * a", "a + b", "b = sqrt(a)", "0", "norm_of_mine")
    return lambda a: kernel(a, axis=1), (x(),)


@sound
def fused() -> Any:
    @cp.fuse()  # type: ignore[untyped-decorator]
    def shape(a: Any, b: Any) -> Any:
        return cp.exp(-a * a) * b + 1

    weight = x()
    return lambda a: shape(a, weight), (x(),)


@sound
def fourier() -> Any:
    def step(a: Any) -> Any:
        return cp.fft.ifft(cp.fft.fft(a, axis=1) * 0.5, axis=1).real

    return step, (x(64, 64),)


@sound
def sorts() -> Any:
    return lambda a: cp.sort(a, axis=1)[:, :5].cumsum(axis=1), (x(),)


@sound
def own_generator() -> Any:
    random = cp.random.default_rng(3)
    return lambda a: a + random.random(a.shape, dtype=cp.float32), (x(),)


@sound
def complex_numbers() -> Any:
    return lambda a: cp.exp(1j * a).sum(axis=0), (x().astype(cp.complex64),)


@sound
def gathers_by_an_array() -> Any:
    index = cp.asarray(np.random.default_rng(1).integers(0, 64, 200))
    return lambda a: a[index].sum(axis=0), (x(),)


@sound
def adds_at_indices() -> Any:
    index = cp.asarray(np.random.default_rng(1).integers(0, 7, 4096))

    def step(a: Any) -> Any:
        found = cp.zeros(7, dtype=cp.float32)
        cp.add.at(found, index, a)
        return found

    return step, (x(4096),)


@sound
def whole_numbers() -> Any:
    return lambda a: (a * 3 + 1) % 7, (cp.arange(1024).reshape(32, 32),)


@sound
def dictionary_of_results() -> Any:
    return lambda a: {"mean": a.mean(), "parts": [a + 1, a * 2]}, (x(),)


@sound
def a_method_with_state() -> Any:
    class Filter:
        def __init__(self) -> None:
            self.mean, self.rate = cp.zeros(16, dtype=cp.float32), 0.1

        def step(self, a: Any) -> Any:
            self.mean += self.rate * (a.mean(axis=0) - self.mean)
            return a - self.mean

    return Filter().step, (x(),)


@sound
def numba_in_its_stream() -> Any:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def axpy(y: Any, a: Any, rate: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            y[i] += rate * a[i]

    stream = cuda.stream()
    y, a = cuda.to_device(np.ones(4096, np.float32)), cuda.to_device(np.full(4096, 0.25, np.float32))

    def step() -> None:
        for _ in range(4):
            axpy[32, 128, stream](y, a, 0.5)

    return step, ()


@sound
def numba_with_memory_of_its_own() -> Any:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def axpy(y: Any, a: Any, z: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            z[i] = y[i] + 0.5 * a[i]

    stream = cuda.stream()
    y, a = cuda.to_device(np.ones(4096, np.float32)), cuda.to_device(np.full(4096, 0.25, np.float32))

    def step() -> None:
        between = cuda.device_array(4096, np.float32, stream=stream)
        axpy[32, 128, stream](y, a, between)
        axpy[32, 128, stream](between, a, y)

    return step, ()


@sound
def numba_on_arrays_of_cupy() -> Any:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def axpy(y: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            y[i] += 0.5 * a[i]

    stream, y = cuda.stream(), cp.ones(4096, dtype=cp.float32)

    def step(a: Any) -> None:
        axpy[32, 128, stream](y, a)

    return step, (x(4096),)


@sound
def cuda_core_in_its_stream() -> Any:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    stream = device.create_stream()
    kernel = Program(SAXPY, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin").get_kernel("saxpy")
    y, a = device.allocate(4 * 4096, stream=stream), device.allocate(4 * 4096, stream=stream)
    for one in (y, a):
        cp.from_dlpack(one).view(cp.float32)[...] = 0.5
    cp.cuda.runtime.deviceSynchronize()

    def step(s: Any) -> None:
        for _ in range(4):
            launch(s, LaunchConfig(grid=32, block=128), kernel, y, a, np.float32(0.5), np.int32(4096))

    return step, (stream,)


if __name__ == "__main__":
    main(TRAPS, SETTINGS, SOUND, lambda: None)

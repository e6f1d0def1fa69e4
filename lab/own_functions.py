"""Functions and kernels that `microbench measure` is tried on: sources of the files that a user would have."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SAXPY = """
#include <cuda_fp16.h>
extern "C" __global__ void saxpy(const float* x, float* y, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] += a * x[i];
}
template <typename T> __global__ void scale(T* x, T a) {
    x[blockIdx.x * blockDim.x + threadIdx.x] *= a;
}
extern "C" __global__ void wild(float* x) { x[1ull << 40] = 1; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
#include <cooperative_groups.h>
extern "C" __global__ void whole(float* x) {
    cooperative_groups::this_grid().sync();
    x[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}
extern "C" __global__ void spilling(float* x) {
    float v[256];
    for (int i = 0; i < 256; i++) v[i] = x[i * 32 + threadIdx.x];
    for (int r = 0; r < 8; r++) for (int i = 0; i < 256; i++) v[i] = v[(i * 7 + r) % 256] * 1.5f + v[i];
    for (int i = 0; i < 256; i++) x[i * 32 + threadIdx.x] = v[i];
}
"""
CUPY = """
import cupy
add = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x + 2 * y", "fused_add")
def setup():
    return cupy.random.random(1 << 20, dtype="float32"), cupy.random.random(1 << 20, dtype="float32")
def elementwise(x, y):
    return add(x, y)
def cub(x, y):
    return cupy.sum(x)
whole = cupy.RawKernel('''
#include <cooperative_groups.h>
extern "C" __global__ void whole(const float* x, float* y) {
    cooperative_groups::this_grid().sync();
    y[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x] + 1;
}''', "whole", enable_cooperative_groups=True)
def cooperative(x, y):
    whole((128,), (256,), (x, y))
    return y
"""
NUMBA = """
import numpy as np
from numba import cuda
@cuda.jit
def reduce(x, out):
    shared = cuda.shared.array(256, dtype=np.float32)
    i = cuda.grid(1)
    shared[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    step = 128
    while step:
        if cuda.threadIdx.x < step:
            shared[cuda.threadIdx.x] += shared[cuda.threadIdx.x + step]
        cuda.syncthreads()
        step //= 2
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = shared[0]
def setup():
    x = cuda.to_device(np.random.rand(1 << 20).astype(np.float32))
    return x, cuda.to_device(np.zeros(4096, np.float32)), cuda.stream()
def reduction(x, out, stream):
    reduce[4096, 256, stream](x, out)
    return out
def in_default_stream(x, out, stream):
    reduce[4096, 256](x, out)
    return out
"""
TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def softmax_kernel(out, x, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, values / tl.sum(values, axis=0), mask=at < columns)
@triton.jit
def matmul_kernel(a, b, c, n, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, n, 64):
        at = k + tl.arange(0, 64)
        total += tl.dot(tl.load(a + i[:, None] * n + at[None, :]), tl.load(b + at[:, None] * n + j[None, :]))
    tl.store(c + i[:, None] * n + j[None, :], total.to(tl.float16))
def softmax_setup():
    return torch.randn(16384, 4096, device="cuda")
def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](out, x, x.shape[1], BLOCK=4096)
    return out
def matmul_setup():
    return torch.randn(2048, 2048, device="cuda").half(), torch.randn(2048, 2048, device="cuda").half()
def matmul(a, b):
    c = torch.empty_like(a)
    matmul_kernel[(32, 32)](a, b, c, 2048, BLOCK=64)
    return c
"""
TORCH = """
import torch
import torch.nn.functional as F
def sdpa_setup():
    return tuple(torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.float16) for _ in range(3))
def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)
def norm_setup():
    return torch.randn(4096, 1024, device="cuda"), torch.ones(1024, device="cuda"), torch.zeros(1024, device="cuda")
def norm(x, weight, bias):
    return {"out": F.layer_norm(x, (1024,), weight, bias)}
def many(x, weight, bias):
    for _ in range(20):
        x = x[:8] + 1
    return x
moving = []
def stale_setup():
    return torch.zeros(4, device="cuda"),
def stale(x):
    moving.append(torch.full((4,), float(len(moving)), device="cuda"))
    return x + len(moving)
def item(x, weight, bias):
    y = x * 2
    total = y.sum().item()
    return y + total
def pageable(x, weight, bias):
    y = x * 2
    host = torch.zeros(1024)
    moved = host.to("cuda")
    return y + moved
def waits(x, weight, bias):
    y = x * 2
    torch.cuda.synchronize()
    return y
"""
UNPOOLED = """
import cupy
def setup():
    cupy.cuda.set_allocator(None)
    return cupy.ones(1 << 16, dtype="float32")
def allocates(x):
    y = cupy.empty_like(x)
    cupy.add(x, x, out=y)
    return y
"""
JAX = """
import jax, jax.numpy as jnp
def setup():
    return jnp.ones((2048, 2048)),
@jax.jit
def step(x):
    return jnp.tanh(x @ x) + 1
"""
DEPENDENT = """
from cuda.bindings import driver, nvrtc
SOURCE = b'''extern "C" __global__ void first(float* x) {
    asm volatile("griddepcontrol.launch_dependents;");
    x[threadIdx.x] += 1; }
extern "C" __global__ void second(float* x) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    x[threadIdx.x] *= 2; }'''
def check(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]
def setup():
    program = check(nvrtc.nvrtcCreateProgram(SOURCE, b"pair.cu", 0, [], []))
    check((*nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"]), None))
    cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    library = check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
    names = (b"first", b"second")
    kernels = [check(driver.cuKernelGetFunction(check(driver.cuLibraryGetKernel(library, name)))) for name in names]
    memory = check(driver.cuMemAlloc(1024))
    import numpy
    address = numpy.array([int(memory)], dtype=numpy.uint64)
    pointers = numpy.array([address.ctypes.data], dtype=numpy.uint64)
    class Stream:
        def __init__(self):
            self.handle = int(check(driver.cuStreamCreate(0)))
        def __cuda_stream__(self):
            return 0, self.handle
    return kernels, (address, pointers), Stream()
def pair(kernels, memory, stream):
    for kernel in kernels:
        attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX = config.gridDimY = config.gridDimZ = 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
        config.hStream = driver.CUstream(stream.handle)
        config.attrs, config.numAttrs = [attribute], 1
        (code,) = driver.cuLaunchKernelEx(config, kernel, int(memory[1].ctypes.data), 0)
        assert int(code) == 0, code
"""


class Function(NamedTuple):
    """A function that can be captured: its package, file and setup, its launches (None if the library decides), a part
    of a kernel's name, and what its library is called."""

    package: str
    file: str
    name: str
    setup: str
    launches: int | None
    kernel: str
    library: str

    @property
    def target(self) -> str:
        return f"{self.file}.py::{self.name}"

    @property
    def setup_target(self) -> str:
        return f"{self.file}.py::{self.setup}"


FUNCTIONS = (
    Function("cupy", "in_cupy", "elementwise", "setup", 1, "fused_add", "CuPy"),
    Function("cupy", "in_cupy", "cub", "setup", None, "", "CuPy"),
    Function("cupy", "in_cupy", "cooperative", "setup", 1, "whole", "CuPy"),
    Function("numba.cuda", "in_numba", "reduction", "setup", 1, "reduce", "Numba"),
    Function("triton", "in_triton", "softmax", "softmax_setup", 1, "softmax_kernel", "PyTorch"),
    Function("triton", "in_triton", "matmul", "matmul_setup", 1, "matmul_kernel", "PyTorch"),
    Function("torch", "in_torch", "sdpa", "sdpa_setup", None, "", "PyTorch"),
    Function("torch", "in_torch", "norm", "norm_setup", 1, "layer_norm", "PyTorch"),
    Function("torch", "in_torch", "many", "norm_setup", 20, "elementwise", "PyTorch"),
    Function("cuda", "dependent", "pair", "setup", 2, "first", ""),
)


def write(folder: Path) -> None:
    """Write the files that the functions and kernels are in."""
    sources = {"in_cupy": CUPY, "in_numba": NUMBA, "in_triton": TRITON, "in_torch": TORCH, "unpooled": UNPOOLED}
    for name, source in (sources | {"in_jax": JAX, "dependent": DEPENDENT}).items():
        (folder / f"{name}.py").write_text(source)
    (folder / "kernels.cu").write_text(SAXPY)

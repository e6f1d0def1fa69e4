"""A chain of Triton kernels on PyTorch tensors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from programs import Made
from programs.torch_steps import rand, whole

ROWS, WIDTH, LAYERS = 384, 1024, 10


@triton.jit
def normalized(x, y, width, BLOCK: tl.constexpr):  # noqa: N803
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * width + column, mask=column < width, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + 1e-5)
    tl.store(y + row * width + column, values * scale, mask=column < width)


@triton.jit
def gated(x, gate, y, count, BLOCK: tl.constexpr):  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place, mask=place < count, other=0.0)
    gates = tl.load(gate + place, mask=place < count, other=0.0)
    tl.store(y + place, values * gates / (1.0 + tl.exp(-gates)), mask=place < count)


@triton.jit
def softened(x, y, width, BLOCK: tl.constexpr):  # noqa: N803
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * width + column, mask=column < width, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * width + column, powers / tl.sum(powers, 0), mask=column < width)


def triton_norms() -> Made:
    x, gate = rand(ROWS, WIDTH), rand(ROWS, WIDTH)
    count = x.numel()

    def step() -> None:
        y = x
        for _ in range(LAYERS):
            z = torch.empty_like(y)
            normalized[(ROWS,)](y, z, WIDTH, BLOCK=1024)
            gated[(triton.cdiv(count, 512),)](z, gate, z, count, BLOCK=512)
            y = torch.empty_like(z)
            softened[(ROWS,)](z, y, WIDTH, BLOCK=1024)

    return whole(step)

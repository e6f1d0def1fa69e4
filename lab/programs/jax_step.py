"""A jitted training step of a normalizing flow in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from programs import Made

WIDTH, HIDDEN, LAYERS, ROWS = 24, 160, 8, 144


def jax_coupling() -> Made:
    key = jax.random.key(0)

    def weight(number: int, *shape: int) -> Any:
        return jax.random.normal(jax.random.fold_in(key, number), shape, jnp.float32) * 0.1

    half = WIDTH // 2
    shapes = ((half, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, WIDTH))
    weights = [[weight(10 * layer + place, *shape) for place, shape in enumerate(shapes)] for layer in range(LAYERS)]
    x = weight(999, ROWS, WIDTH)

    def loss(weights: Any, x: Any) -> Any:
        total = 0.0
        for first, second, third in weights:
            a, b = jnp.split(x, 2, -1)
            shift, scale = jnp.split(jnp.tanh(jnp.tanh(a @ first) @ second) @ third, 2, -1)
            x = jnp.concatenate([b * jnp.exp(jnp.tanh(scale)) + shift, a], -1)
            total = total + jnp.tanh(scale).sum(-1).mean()
        return (x * x).sum(-1).mean() / 2 - total

    @jax.jit
    def train(weights: Any) -> Any:
        slopes = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda one, slope: one - 1e-3 * slope, weights, slopes)

    state = weights

    def step() -> None:
        nonlocal state
        state = train(state)

    return Made(step, lambda: jax.block_until_ready(state))

"""JAX programs: networks of Flax trained with Optax, equations of diffrax, scans; each with a loop of its own shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from iterations import Iterations


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (512, 512, 256):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


@jax.jit
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(weights: Any) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(state.apply_fn(weights, x), y).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def flax_mlp(it: Iterations) -> None:
    """Training with a TrainState; batches of NumPy go to the GPU in each step."""
    model, random = Mlp(), np.random.default_rng(0)
    images, labels = random.random((2048, 784), dtype=np.float32), random.integers(0, 10, 2048)
    state = TrainState.create(
        apply_fn=model.apply, params=model.init(jax.random.key(0), images[:1]), tx=optax.adam(1e-3)
    )

    def batches(size: int = 128) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            order = random.permutation(len(images))
            for begin in range(0, len(images), size):
                chosen = order[begin : begin + size]
                yield images[chosen], labels[chosen]

    total = 0.0
    for x, y in batches():
        state, loss = train_step(state, x, y)
        if it.reads:
            total += float(loss)
        elif it.waits():
            loss.block_until_ready()
        it.end()
        if it.enough():
            break
    jax.block_until_ready(state.params)


class Cnn(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 32, (3, 3), rngs=rngs)
        self.second = nnx.Conv(32, 64, (3, 3), rngs=rngs)
        self.head = nnx.Linear(64 * 49, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.avg_pool(nnx.relu(self.first(x)), (2, 2), (2, 2))
        x = nnx.avg_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        return self.head(x.reshape(len(x), -1))


def flax_cnn(it: Iterations) -> None:
    """A network of flax.nnx. Each call of nnx.jit splits it into arrays and joins them again."""
    model = Cnn(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    data = [
        (jax.random.normal(key, (64, 28, 28, 1)), jax.random.randint(key, (64,), 0, 10))
        for key in jax.random.split(jax.random.key(1), 5)
    ]

    @nnx.jit
    def step(model: Cnn, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss_of(model: Cnn) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return loss

    for _ in range(100_000):
        for number, (x, y) in enumerate(data):
            loss = step(model, optimizer, x, y)
            if it.reads:
                value = loss.item()
                if number > len(data):
                    print(value)
            elif it.waits():
                loss.block_until_ready()
            it.end()
            if it.enough():
                return


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(128)(nn.gelu(nn.Dense(512)(nn.LayerNorm()(x))))


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(1000, 128)(tokens) + self.param("places", nn.initializers.normal(0.02), (tokens.shape[1], 128))
        for _ in range(4):
            x = Block()(x)
        return nn.Dense(1000)(x)


class Training:
    """A user's class with fit() and training_step(); the weights are donated."""

    def __init__(self, it: Iterations) -> None:
        self.it, self.model = it, Decoder()
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000)
        self.rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
        self.tokens = jax.random.randint(jax.random.key(3), (16, 65), 0, 1000)
        self.weights = self.model.init(jax.random.key(4), self.tokens[:, :-1])
        self.state = self.rule.init(self.weights)

    @partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def update(self, weights: Any, state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        def loss_of(weights: Any) -> jax.Array:
            logits = self.model.apply(weights, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        changes, state = self.rule.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, loss

    def training_step(self) -> jax.Array:
        self.weights, self.state, loss = self.update(self.weights, self.state, self.tokens)
        return loss

    def fit(self) -> None:
        while not self.it.enough():
            loss = self.training_step()
            if self.it.reads:
                self.loss = float(loss)
            elif self.it.waits():
                loss.block_until_ready()
            self.it.end()


def flax_transformer(it: Iterations) -> None:
    """A small decoder in a Trainer class."""
    Training(it).fit()


def diffrax_solve(it: Iterations) -> None:
    """Lotka-Volterra for many begins at once; the solver's own loop runs inside of each iteration."""
    begins = jax.random.uniform(jax.random.key(0), (8, 256, 2), minval=0.5, maxval=2.0)

    def slope(t: Any, y: jax.Array, rates: Any) -> jax.Array:
        a, b, c, d = rates
        return jnp.stack((a * y[0] - b * y[0] * y[1], d * y[0] * y[1] - c * y[1]))

    @jax.jit
    def solve(begins: jax.Array) -> jax.Array:
        def one(begin: jax.Array) -> jax.Array:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(slope), diffrax.Tsit5(), 0.0, 4.0, 0.1, begin, args=(1.1, 0.4, 0.4, 0.1),
                stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6), max_steps=256,
            ).ys[-1]  # fmt: skip

        return jax.vmap(one)(begins)

    results = []
    for number in itertools.count():
        ends = solve(begins[number % 8])
        if it.reads:
            results.append(float(ends.mean()))
        elif it.waits():
            ends.block_until_ready()
        it.end()
        if it.enough():
            break
    ends.block_until_ready()


def neural_ode(it: Iterations) -> None:
    """The right-hand side is a network, trained through a solver of thirty equal steps."""
    times = jnp.linspace(0.0, 3.0, 31)
    wanted = jnp.stack((jnp.cos(times), jnp.sin(times)), 1)
    keys = jax.random.split(jax.random.key(0), 2)
    weights = [jax.random.normal(keys[0], (2, 64)) * 0.5, jax.random.normal(keys[1], (64, 2)) * 0.1]
    rule = optax.adabelief(1e-3)
    state = rule.init(weights)

    def loss_of(weights: Any) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, given: jnp.tanh(y @ given[0]) @ given[1])
        found = diffrax.diffeqsolve(
            term, diffrax.Heun(), 0.0, 3.0, 0.1, wanted[0], args=weights, saveat=diffrax.SaveAt(ts=times), max_steps=64
        )
        return ((found.ys - wanted) ** 2).mean()

    @jax.jit
    def step(weights: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        changes, state = rule.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, loss

    count = 0
    while count < 10**6:
        weights, state, loss = step(weights, state)
        count += 1
        if it.reads:
            loss.item()
        elif it.waits():
            jax.block_until_ready(weights)
        it.end()
        if it.enough():
            break
    jax.block_until_ready(weights)


def jax_scan(it: Iterations) -> None:
    """A recurrent network by lax.scan over 32 times, trained: XLA's loop is inside of an iteration."""
    width = 128
    keys = jax.random.split(jax.random.key(5), 4)
    weights = {
        "in": jax.random.normal(keys[0], (16, width)) * 0.1, "state": jax.random.normal(keys[1], (width, width)) * 0.05,
        "out": jax.random.normal(keys[2], (width, 1)) * 0.1,
    }  # fmt: skip
    series = jax.random.normal(keys[3], (32, 64, 16))
    it.parts = 32

    def loss_of(weights: Any, series: jax.Array) -> jax.Array:
        def cell(state: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jnp.tanh(now @ weights["in"] + state @ weights["state"])
            return state, state @ weights["out"]

        out = jax.lax.scan(cell, jnp.zeros((64, width)), series)[1]
        return ((out[:-1, :, 0] - series[1:, :, 0]) ** 2).mean()

    @jax.jit
    def step(weights: Any, series: jax.Array) -> tuple[Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, series)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), loss

    def main() -> None:
        nonlocal weights
        for _ in range(1000):
            for _ in range(1000):
                weights, loss = step(weights, series)
                if it.reads:
                    float(loss)
                elif it.waits():
                    loss.block_until_ready()
                it.end()
                if it.enough():
                    return

    main()
    jax.block_until_ready(weights)


def jax_eager(it: Iterations) -> None:
    """Langevin dynamics without jit around the step: each operation is a program of its own."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (4096, 3))
    force = jax.jit(jax.grad(lambda x: ((x**2 - 1) ** 2).sum()))
    while True:
        key, draw = jax.random.split(key)
        x = x - 0.01 * force(x) + 0.1 * jax.random.normal(draw, x.shape)
        x = jnp.clip(x, -3.0, 3.0)
        if it.reads:
            float(jnp.abs(x).mean())
        elif it.waits():
            x.block_until_ready()
        it.end()
        if it.enough():
            break
    x.block_until_ready()

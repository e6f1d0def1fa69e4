"""Training of a perceptron of JAX by gradient descent."""

import jax
import jax.numpy as jnp

RATE = 0.01


def scores(weights, inputs):
    for matrix in weights[:-1]:
        inputs = jnp.tanh(inputs @ matrix)
    return inputs @ weights[-1]


def mean_loss(weights, inputs, targets):
    return jnp.mean((scores(weights, inputs) - targets) ** 2)


@jax.jit
def update(weights, inputs, targets):
    loss, slopes = jax.value_and_grad(mean_loss)(weights, inputs, targets)
    return [matrix - RATE * slope for matrix, slope in zip(weights, slopes, strict=True)], loss


def make():
    keys = jax.random.split(jax.random.key(0), 4)
    state = {"weights": [jax.random.normal(key, (64, 64)) * 0.1 for key in keys], "losses": []}
    inputs = jax.random.normal(keys[0], (256, 64))
    targets = jnp.sin(inputs)

    def turn(number):
        weights, loss = update(state["weights"], inputs, targets)
        state["weights"] = weights
        state["losses"].append(loss)
        if number % 100 == 99:
            mean = sum(map(float, state["losses"])) / len(state["losses"])
            state["losses"].clear()
            print(f"step {number + 1}: loss {mean:.4f}")

    return turn

"""Plain JAX: parameters in nested dicts, gradient descent with momentum, nothing but ``jax`` itself.

python examples/plain_pytrees.py
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

SIZES = (256, 1024, 1024, 64)


def init(random):
    layers = [
        {"w": (random.normal(size=(n, m)) * n**-0.5).astype(np.float32), "b": np.zeros(m, np.float32)}
        for n, m in pairwise(SIZES)
    ]
    return {"layers": layers}


def loss_fn(params, batch):
    *hidden, last = params["layers"]
    h = batch["x"]
    for layer in hidden:
        h = jax.nn.relu(h @ layer["w"] + layer["b"])
    return jnp.mean((h @ last["w"] + last["b"] - batch["y"]) ** 2)


def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, loss


def batches(steps):
    random = np.random.default_rng(0)
    for _ in range(steps):
        x = random.normal(size=(2048, SIZES[0])).astype(np.float32)
        yield {"x": x, "y": np.sin(x[:, : SIZES[-1]])}


def train(step, state):
    for batch in batches(3):
        state, loss = step(state, batch)
    return state, float(loss)


params = init(np.random.default_rng(0))
state = {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}
expected_state, expected_loss = train(jax.jit(train_step), state)

# Shardwright, in place of jax.jit(train_step): plan, then jit with the plan inside.
plan = sw.partition(train_step, state, next(batches(1)), mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=0)
planned_step = plan.jit()

state, loss = train(planned_step, state)

print(plan)
print(f"loss {loss:.6f}; with plain jax.jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), state, expected_state)

"""Gradient accumulation: ``lax.scan`` over microbatches, so that a large batch needs the activations of a small one.

Every op in the loop counts as often as the loop runs, in seconds and in bytes sent; the table of collectives says how
often each is run.

python examples/gradient_accumulation.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

WIDTH, HIDDEN, BATCH, MICROBATCHES = 128, 512, 8192, 4


def init(random):
    def normal(*shape):
        return (random.normal(size=shape) * shape[0] ** -0.5).astype(np.float32)

    return {"up": normal(WIDTH, HIDDEN), "down": normal(HIDDEN, WIDTH)}


def loss_fn(params, x):
    y = jax.nn.gelu(x @ params["up"]) @ params["down"]
    return jnp.mean((y - jnp.roll(x, 1, axis=-1)) ** 2)


def train_step(params, x):
    def accumulate(carry, microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(params, microbatch)
        return jax.tree.map(jnp.add, carry, (loss, grads)), None

    # Every device's rows make up an equal part of every microbatch, so that they need not move.
    microbatches = x.reshape(-1, MICROBATCHES, WIDTH).swapaxes(0, 1)
    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    (loss, grads), _ = lax.scan(accumulate, zeros, microbatches)
    params = jax.tree.map(lambda p, g: p - 2.0 * g / MICROBATCHES, params, grads)
    return params, loss / MICROBATCHES


def train(step, params):
    random = np.random.default_rng(1)
    for _ in range(3):
        params, loss = step(params, random.normal(size=(BATCH, WIDTH)).astype(np.float32))
    return float(loss)


params = init(np.random.default_rng(0))
expected_loss = train(jax.jit(train_step), params)

# Shardwright, in place of jax.jit(train_step).
x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
plan = sw.partition(train_step, params, x, mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=0)
planned_step = plan.jit()

loss = train(planned_step, params)

print(plan)
print(f"loss {loss:.6f}; with plain jax.jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

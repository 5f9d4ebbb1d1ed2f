"""Equinox: a module with functions among its leaves, ``eqx.filter_jit`` and Optax.

To Equinox whatever is no array (the activation, the dropout rate) is a constant, and Shardwright takes it so as well. A
step that goes by ``eqx.partition`` and ``eqx.combine`` under plain ``jax.jit`` works the same.

python examples/equinox_mlp.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

INPUTS, OUTPUTS, WIDTH, BATCH = 64, 8, 512, 2048

optimizer = optax.adamw(3e-3)


class Regressor(eqx.Module):
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(INPUTS, OUTPUTS, WIDTH, depth=2, activation=jax.nn.silu, key=key)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, key):
        return self.mlp(self.dropout(x, key=key))


@eqx.filter_jit
def make_step(model, opt_state, x, y, key):
    @eqx.filter_value_and_grad
    def loss_fn(model):
        return jnp.mean((jax.vmap(model)(x, jax.random.split(key, x.shape[0])) - y) ** 2)

    loss, grads = loss_fn(model)
    updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), opt_state, loss


def batches(steps):
    random = np.random.default_rng(0)
    for i in range(steps):
        x = random.normal(size=(BATCH, INPUTS)).astype(np.float32)
        yield x, np.sin(x[:, :OUTPUTS]), jax.random.key(i)


def train(step, model, opt_state):
    for x, y, key in batches(3):
        model, opt_state, loss = step(model, opt_state, x, y, key)
    return float(loss)


model = eqx.filter_jit(Regressor)(jax.random.key(0))
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
expected_loss = train(make_step, model, opt_state)

# Shardwright, in place of eqx.filter_jit.
plan = sw.partition(
    make_step, model, opt_state, *next(batches(1)), mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=(0, 1)
)
planned_step = plan.jit()

loss = train(planned_step, model, opt_state)

print(plan)
print(f"loss {loss:.6f}; with plain eqx.filter_jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

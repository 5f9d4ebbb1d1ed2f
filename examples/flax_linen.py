"""Flax Linen: a network with batch normalisation, its statistics in a ``TrainState`` beside parameters and optimizer.

python examples/flax_linen.py
"""

from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

BATCH, PIXELS, CLASSES = 1024, 784, 10


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        for features in (512, 256):
            x = nn.Dense(features, use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        return nn.Dense(CLASSES)(x)


class TrainState(train_state.TrainState):
    batch_stats: Any


def train_step(state, batch):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), updates

    (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"]), loss


def batches(steps):
    random = np.random.default_rng(0)
    for _ in range(steps):
        image = random.normal(size=(BATCH, PIXELS)).astype(np.float32)
        yield {"image": image, "label": np.argmax(image[:, :CLASSES], 1).astype(np.int32)}


def create(key):
    network = Network()
    variables = network.init(key, np.zeros((1, PIXELS), np.float32))
    tx = optax.sgd(0.1, momentum=0.9, nesterov=True)
    return TrainState.create(apply_fn=network.apply, tx=tx, **variables)


def train(step, state):
    for batch in batches(3):
        state, loss = step(state, batch)
    return float(loss)


state = jax.jit(create)(jax.random.key(0))
expected_loss = train(jax.jit(train_step), state)

# Shardwright, in place of jax.jit(train_step).
plan = sw.partition(train_step, state, next(batches(1)), mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=0)
planned_step = plan.jit()

loss = train(planned_step, state)

print(plan)
print(f"loss {loss:.6f}; with plain jax.jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

"""Flax NNX: a residual network of ``nnx.Module``s with dropout, and ``nnx.Optimizer``.

Modules are pytrees, so the step takes and returns them. A step that changes them in place and does not return them,
with or without ``nnx.jit``, is planned too, and the planned step changes them likewise; ``nnx.split`` and ``nnx.merge``
around the step work the same.

python examples/flax_nnx.py
"""

import jax
import numpy as np
import optax
from flax import nnx

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

WIDTH, HIDDEN, CLASSES, BATCH = 128, 512, 16, 2048


class Block(nnx.Module):
    def __init__(self, *, rngs):
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm(x)))))


class Classifier(nnx.Module):
    def __init__(self, layers, *, rngs):
        self.blocks = nnx.List([Block(rngs=rngs) for _ in range(layers)])
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train_step(model, optimizer, batch):
    def loss_fn(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["label"]).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return model, optimizer, loss


def batches(steps):
    random = np.random.default_rng(0)
    for _ in range(steps):
        x = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
        yield {"x": x, "label": np.argmax(x[:, :CLASSES], 1).astype(np.int32)}


@jax.jit
def create():
    model = Classifier(layers=2, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)


def train(step, model, optimizer):
    for batch in batches(3):
        model, optimizer, loss = step(model, optimizer, batch)
    return float(loss)


expected_loss = train(jax.jit(train_step), *create())

# Shardwright, in place of jax.jit(train_step).
model, optimizer = create()
plan = sw.partition(
    train_step, model, optimizer, next(batches(1)), mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=(0, 1)
)
planned_step = plan.jit()

loss = train(planned_step, model, optimizer)

print(plan)
print(f"loss {loss:.6f}; with plain jax.jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

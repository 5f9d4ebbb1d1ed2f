"""Adam: the optimiser of every training step, as plain functions over pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shardwright.models import shapes

#: Step size of the built-in training steps.
LEARNING_RATE = 1e-3
#: Decay of the running mean of gradients.
DECAY_M = 0.9
#: Decay of the running mean of squared gradients.
DECAY_V = 0.95
#: Keeps the update finite where gradients vanish.
EPSILON = 1e-8


def state(params: Any) -> dict[str, Any]:
    """Return the shapes of a training state around ``params``: {params, opt: {m, v}, step}."""
    return {"params": params, "opt": {"m": params, "v": params}, "step": shapes.integers()}


def update(params: Any, opt: dict[str, Any], step: jax.Array, grads: Any) -> tuple[Any, dict[str, Any]]:
    """Return the parameters and moments after one step; ``step`` counts the updates made before it."""
    count = (step + 1).astype(jnp.float32)
    m = jax.tree.map(lambda m, g: DECAY_M * m + (1 - DECAY_M) * g, opt["m"], grads)
    v = jax.tree.map(lambda v, g: DECAY_V * v + (1 - DECAY_V) * jnp.square(g), opt["v"], grads)
    # The moments start at zero and are too small at first by exactly these factors.
    correct_m = 1.0 / (1.0 - DECAY_M**count)
    correct_v = 1.0 / (1.0 - DECAY_V**count)

    def move(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - LEARNING_RATE * (m * correct_m) / (jnp.sqrt(v * correct_v) + EPSILON)

    return jax.tree.map(move, params, m, v), {"m": m, "v": v}


def training(loss: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], tuple[Any, jax.Array]]:
    """Return ``train_step(state, batch) -> (state, loss)`` for a function ``loss(params, batch)``."""

    def train_step(state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
        """One training step with Adam."""
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        params, opt = update(state["params"], state["opt"], state["step"], grads)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, value

    return train_step

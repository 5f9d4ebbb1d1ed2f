"""The training step that most models here share, and shapes in place of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Planned = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments as shapes, and what ``sw.partition`` is told beside them."""

KEY = jax.eval_shape(lambda: jax.random.key(0))
"""A random key, as a shape."""


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An argument that is never allocated."""
    return jax.ShapeDtypeStruct(shape, dtype)


def tokens(*shape: int) -> jax.ShapeDtypeStruct:
    """Indices of words, labels, …."""
    return array(*shape, dtype=jnp.int32)


def training(
    loss: Callable[..., jax.Array], params: Any, *batch: Any, optimizer: optax.GradientTransformation | None = None
) -> Planned:
    """A step of ``optimizer`` (AdamW unless told otherwise) down ``loss(params, *batch)``."""
    chosen = optimizer or optax.adamw(1e-4)

    def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, opt_state = chosen.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return train_step, (params, jax.eval_shape(chosen.init, params), batch), {"donate": (0, 1)}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Its mean, in float32."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()

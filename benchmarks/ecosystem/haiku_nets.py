"""Haiku's own networks, `haiku.nets`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from ecosystem.steps import KEY, Planned, array, cross_entropy, tokens


def resnet_152() -> Planned:
    """Classification with momentum and batch statistics, 1,024 pictures of 224 × 224."""
    return _training(lambda pictures: hk.nets.ResNet152(1000)(pictures, is_training=True))


def resnet_50() -> Planned:
    """The same with fewer blocks."""
    return _training(lambda pictures: hk.nets.ResNet50(1000)(pictures, is_training=True))


def _training(model: Callable[[Any], Any]) -> Planned:
    net = hk.transform_with_state(model)
    optimizer = optax.sgd(0.1, momentum=0.9, nesterov=True)

    def train_step(params: Any, stats: Any, opt_state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, changed = net.apply(params, stats, None, batch["pictures"])
            return cross_entropy(logits, batch["labels"]), changed

        (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, new_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), changed, new_state, value

    batch = {"pictures": array(1024, 224, 224, 3, dtype=jnp.bfloat16), "labels": tokens(1024)}
    params, stats = jax.eval_shape(net.init, KEY, batch["pictures"])
    opt_state = jax.eval_shape(optimizer.init, params)
    return train_step, (params, stats, opt_state, batch), {"donate": (0, 1, 2)}

"""Kauldron (Google DeepMind): the vision transformer of its modules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from kauldron import kd

from ecosystem.steps import KEY, Planned, array, cross_entropy, tokens, training


def vit() -> Planned:
    """Classification with AdamW, 128 pictures of 224 × 224."""
    model = kd.nn.Vit(encoder=kd.nn.VitEncoder.from_variant_str("L/16", dtype=jnp.bfloat16))
    pictures = array(128, 224, 224, 3)
    params = jax.eval_shape(model.init, KEY, pictures)["params"]

    def loss(params: Any, pictures: Any, labels: Any) -> jax.Array:
        return cross_entropy(model.apply({"params": params}, pictures)["logits"], labels)

    return training(loss, params, pictures, tokens(128))

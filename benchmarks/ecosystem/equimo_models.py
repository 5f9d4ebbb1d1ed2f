"""Equimo: vision models in Equinox, one picture at a time; ``jax.vmap`` makes the batch."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import optax
from equimo.models.vit import VisionTransformer

from ecosystem.steps import KEY, Planned, array, cross_entropy, tokens


def dino_giant(layers: int = 40) -> Planned:
    """Classification with DINOv2's ViT-g/14 and AdamW, 128 pictures of 224 × 224."""
    optimizer = optax.adamw(1e-4)
    model = eqx.filter_eval_shape(
        lambda key: VisionTransformer(
            img_size=224,
            in_channels=3,
            dim=1536,
            patch_size=14,
            num_heads=24,
            depths=[layers],
            num_classes=1000,
            key=key,
        ),
        KEY,
    )
    opt_state = eqx.filter_eval_shape(lambda m: optimizer.init(eqx.filter(m, eqx.is_inexact_array)), model)

    @eqx.filter_jit
    def train_step(model: Any, opt_state: Any, pictures: Any, labels: Any, key: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss(model: Any) -> jax.Array:
            return cross_entropy(jax.vmap(model)(pictures, jax.random.split(key, pictures.shape[0])), labels)

        value, grads = loss(model)
        updates, new_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), new_state, value

    return train_step, (model, opt_state, array(128, 3, 224, 224), tokens(128), KEY), {"donate": (0, 1)}

"""Google DeepMind's gemma: Flax Linen modules that make parameters in bfloat16."""

from __future__ import annotations

from typing import Any

import jax
import optax
from gemma import gm

from ecosystem.steps import KEY, Planned, cross_entropy, tokens, training


def gemma_2_2b() -> Planned:
    """Fine-tuning with Adafactor, batch 32 × 1,024."""
    return _fine_tuning(gm.nn.Gemma2_2B(), 32)


def gemma_3_4b() -> Planned:
    """Fine-tuning of the text model with Adafactor, batch 32 × 1,024."""
    return _fine_tuning(gm.nn.Gemma3_4B(text_only=True), 32)


def _fine_tuning(model: Any, batch: int) -> Planned:
    words = tokens(batch, 1024)
    params = jax.eval_shape(model.init, KEY, words)["params"]

    def loss(params: Any, words: Any) -> jax.Array:
        return cross_entropy(model.apply({"params": params}, words).logits[:, :-1], words[:, 1:])

    return training(loss, params, words, optimizer=optax.adafactor(1e-4))

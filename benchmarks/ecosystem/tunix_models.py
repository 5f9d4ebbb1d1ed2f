"""Tunix, Google's library for tuning after training: language models in Flax NNX, which are pytrees as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from tunix.models.llama3 import model as llama3
from tunix.models.qwen3 import model as qwen3

from ecosystem.steps import Planned, cross_entropy, tokens


def llama_3_1b(layers: int = 16) -> Planned:
    """Fine-tuning of Llama 3.2 1B with AdamW, batch 32 × 1,024."""
    config = replace(llama3.ModelConfig.llama3p2_1b(), num_layers=layers, remat_config=llama3.RematConfig.BLOCK)
    return _fine_tuning(lambda: llama3.Llama3(config, rngs=nnx.Rngs(0)), 32, 1024)


def qwen_3_8b(layers: int = 36) -> Planned:
    """Forward pass of Qwen 3 8B, batch 16 × 2,048."""
    config = replace(qwen3.ModelConfig.qwen3_8b(), num_layers=layers)
    model = nnx.eval_shape(lambda: qwen3.Qwen3(config, rngs=nnx.Rngs(0)))

    def forward(model: Any, words: Any) -> Any:
        logits, _ = model(words, *_positions(*words.shape))
        return logits

    return forward, (model, tokens(16, 2048)), {}


def _fine_tuning(make: Any, batch: int, length: int) -> Planned:
    @nnx.eval_shape
    def created() -> Any:
        model = make()
        return model, nnx.Optimizer(model, optax.adamw(1e-5), wrt=nnx.Param)

    def train_step(model: Any, optimizer: Any, words: Any) -> Any:
        def loss(model: Any) -> jax.Array:
            logits, _ = model(words, *_positions(*words.shape))
            return cross_entropy(logits[:, :-1], words[:, 1:])

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return model, optimizer, value

    return train_step, (*created, tokens(batch, length)), {"donate": (0, 1)}


def _positions(batch: int, length: int) -> tuple[jax.Array, None, jax.Array]:
    """Positions, no cache, and the causal mask."""
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    mask = jnp.tril(jnp.ones((length, length), bool))
    return positions, None, jnp.broadcast_to(mask, (batch, length, length))

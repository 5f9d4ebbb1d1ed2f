"""Levanter (Stanford CRFM): Equinox modules with named axes, its layers in a scan with checkpoints."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import optax
from levanter.layers.attention import AttentionMask
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel

from ecosystem.steps import KEY, Planned, cross_entropy, tokens


def llama_7b(layers: int = 32) -> Planned:
    """Training with AdamW in mixed precision, batch 32 × 2,048."""
    config, optimizer = LlamaConfig(num_layers=layers), optax.adamw(1e-4)
    batch = hax.Axis("batch", 32)
    model = eqx.filter_eval_shape(LlamaLMHeadModel.init, hax.Axis("vocab", 32000), config, key=KEY)
    opt_state = eqx.filter_eval_shape(lambda m: optimizer.init(eqx.filter(m, eqx.is_inexact_array)), model)

    @eqx.filter_jit
    def train_step(model: Any, opt_state: Any, words: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss(model: Any) -> jax.Array:
            half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if eqx.is_inexact_array(leaf) else leaf, model)
            logits = half(hax.named(words, (batch, config.Pos)), AttentionMask.causal()).array
            return cross_entropy(logits[:, :-1], words[:, 1:])

        value, grads = loss(model)
        updates, new_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), new_state, value

    return train_step, (model, opt_state, tokens(32, config.seq_len)), {"donate": (0, 1)}

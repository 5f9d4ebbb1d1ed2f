"""Penzai (Google DeepMind): models as trees of named arrays, frozen into values before a step takes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from penzai import pz
from penzai.models.transformer.variants import llamalike_common

from ecosystem.steps import KEY, Planned, cross_entropy, tokens, training


def gemma_7b() -> Planned:
    """Training with AdamW of a Gemma 7B with its layers in a scan, batch 16 × 1,024."""
    config = llamalike_common.LlamalikeTransformerConfig(
        num_decoder_blocks=28,
        vocab_size=256_128,
        num_kv_heads=16,
        query_head_multiplier=1,
        embedding_dim=3072,
        projection_dim=256,
        mlp_hidden_dim=24_576,
        mlp_variant="geglu_approx",
        tie_embedder_and_logits=True,
        parameter_dtype=jnp.bfloat16,
        activation_dtype=jnp.bfloat16,
        use_layer_stack=True,
    )

    def create(key: Any) -> Any:
        return pz.freeze_params(llamalike_common.build_llamalike_transformer(config, key))

    def loss(model: Any, words: Any) -> jax.Array:
        named = pz.nx.wrap(words).tag("batch", "seq")
        positions = pz.nx.arange("seq", words.shape[1])
        logits = model(named, token_positions=positions).unwrap("batch", "seq", "vocabulary")
        return cross_entropy(logits[:, :-1], words[:, 1:])

    return training(loss, jax.eval_shape(create, KEY), tokens(16, 1024))

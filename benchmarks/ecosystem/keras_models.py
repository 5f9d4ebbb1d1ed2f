"""Keras 3 and Keras Hub on JAX, with Keras's own stateless calls.

Keras makes weights where a model is built. In a ``StatelessScope`` that initializes nothing they are shapes, which is
all that planning needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import keras_hub

from ecosystem.steps import Planned, array, tokens


def _shapes(variables: list[Any]) -> list[jax.ShapeDtypeStruct]:
    return [array(*v.shape, dtype=jnp.dtype(v.dtype)) for v in variables]


def _training(build: Callable[[], keras.Model], inputs: Any, labels: Any) -> Planned:
    """A step of AdamW in mixed precision, as Keras's guide to training with JAX has it."""
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    optimizer = keras.optimizers.AdamW(1e-4)
    with keras.StatelessScope(initialize_variables=False):
        model = build()
        optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(trainable: Any, rest: Any, state: Any, inputs: Any, labels: Any) -> Any:
        def compute(trainable: Any) -> Any:
            logits, changed = model.stateless_call(trainable, rest, inputs, training=True)
            return loss(labels, logits.astype(jnp.float32)), changed

        (value, changed), grads = jax.value_and_grad(compute, has_aux=True)(trainable)
        trainable, state = optimizer.stateless_apply(state, grads, trainable)
        return trainable, changed, state, value

    weights = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    return train_step, (*map(_shapes, weights), inputs, labels), {"donate": (0, 1, 2)}


def efficientnet_v2_l() -> Planned:
    """Classification with AdamW, 512 pictures of 480 × 480."""
    return _training(
        lambda: keras.applications.EfficientNetV2L(weights=None, classifier_activation=None),
        array(512, 480, 480, 3),
        tokens(512),
    )


def convnext_xl() -> Planned:
    """Classification with AdamW, 512 pictures of 224 × 224."""
    return _training(
        lambda: keras.applications.ConvNeXtXLarge(weights=None, classifier_activation=None),
        array(512, 224, 224, 3),
        tokens(512),
    )


def t5_large(layers: int = 24) -> Planned:
    """Encoder and decoder, forward: batch 64, 512 words in and 128 out."""
    keras.mixed_precision.set_global_policy("bfloat16")
    with keras.StatelessScope(initialize_variables=False):
        model = keras_hub.models.T5Backbone(
            vocabulary_size=32128, num_layers=layers, num_heads=16, hidden_dim=1024, intermediate_dim=4096
        )
    words = {
        "encoder_token_ids": tokens(64, 512),
        "encoder_padding_mask": tokens(64, 512),
        "decoder_token_ids": tokens(64, 128),
        "decoder_padding_mask": tokens(64, 128),
    }

    def forward(trainable: Any, rest: Any, words: Any) -> Any:
        return model.stateless_call(trainable, rest, words)[0]

    return forward, (_shapes(model.trainable_variables), _shapes(model.non_trainable_variables), words), {}


def mixtral(layers: int = 32) -> Planned:
    """Forward pass of a mixture of 8 experts with Mixtral's sizes, batch 16 × 2,048."""
    keras.mixed_precision.set_global_policy("bfloat16")
    with keras.StatelessScope(initialize_variables=False):
        model = keras_hub.models.MixtralBackbone(
            vocabulary_size=32000,
            num_layers=layers,
            num_query_heads=32,
            num_key_value_heads=8,
            hidden_dim=4096,
            intermediate_dim=14336,
            num_experts=8,
            top_k=2,
        )
    words = {"token_ids": tokens(16, 2048), "padding_mask": tokens(16, 2048)}

    def forward(trainable: Any, rest: Any, words: Any) -> Any:
        return model.stateless_call(trainable, rest, words)[0]

    return forward, (_shapes(model.trainable_variables), _shapes(model.non_trainable_variables), words), {}

"""A GRPO step of Llama 3 8B: groups of answers to a prompt, each weighed against the mean of its group.

https://arxiv.org/abs/2402.03300, equations 3 and 4: the clipped ratio to the policy that wrote the answers, and a
penalty for leaving the frozen reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import LLAMA_8B, MIDDLE, SMALL, Built, logits, parameters
from shardwright.models import adam, shapes

SCALES = {
    "real": (replace(LLAMA_8B, batch=128, sequence=4096), 8, {"data": 16, "model": 4}, "tpu-v5p"),
    "middle": (replace(MIDDLE, layers=2), 4, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, 2, {"data": 4, "model": 2}, "tpu-v5e"),
}
CLIP, PENALTY = 0.2, 0.04


def log_probabilities(params: Any, tokens: jax.Array, dtype: Any) -> jax.Array:
    """Of each token after those before it: tokens [b, s] -> [b, s - 1]."""
    scores = logits(params, tokens[:, :-1], dtype).astype(jnp.float32)
    picked = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1, mode="clip")[..., 0]
    return picked - jax.nn.logsumexp(scores, axis=-1)


def build(scale: str) -> Built:
    sizes, group, mesh, device = SCALES[scale]

    def train_step(state: Any, reference: Any, batch: Any) -> Any:
        answered = batch["answered"][:, 1:].astype(jnp.float32)
        rewards = batch["rewards"]  # [prompts, group]
        mean, spread = jnp.mean(rewards, axis=1, keepdims=True), jnp.std(rewards, axis=1, keepdims=True)
        advantages = ((rewards - mean) / (spread + 1e-4)).reshape(-1, 1)
        before = jax.lax.stop_gradient(log_probabilities(reference, batch["tokens"], sizes.dtype))

        def loss(params: Any, batch: Any) -> jax.Array:
            now = log_probabilities(params, batch["tokens"], sizes.dtype)
            ratio = jnp.exp(now - batch["sampled"])
            clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
            gain = jnp.minimum(ratio * advantages, clipped * advantages)
            left = before - now
            penalty = jnp.exp(left) - left - 1
            each = jnp.sum((gain - PENALTY * penalty) * answered, axis=1) / jnp.maximum(jnp.sum(answered, axis=1), 1)
            return -jnp.mean(each)

        return adam.training(loss)(state, batch)

    batch = {
        "tokens": shapes.integers(sizes.batch, sizes.sequence),
        "answered": shapes.integers(sizes.batch, sizes.sequence),
        "sampled": shapes.floats(sizes.batch, sizes.sequence - 1),
        "rewards": shapes.floats(sizes.batch // group, group),
    }
    args = (adam.state(parameters(sizes)), parameters(sizes, sizes.dtype), batch)
    return train_step, args, {"donate": (0,), "mesh": mesh, "device": device}

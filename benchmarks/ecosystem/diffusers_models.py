"""Hugging Face's diffusers (the last with Flax is 0.35): the U-Net of Stable Diffusion."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from diffusers import FlaxUNet2DConditionModel

from ecosystem.steps import KEY, Planned, array, tokens


def stable_diffusion() -> Planned:
    """Denoising step of Stable Diffusion 1.5, forward: 64 pictures of 512 × 512."""
    unet = FlaxUNet2DConditionModel(sample_size=64, cross_attention_dim=768, dtype=jnp.bfloat16)
    params = jax.eval_shape(unet.init_weights, KEY)
    params = jax.tree.map(lambda p: array(*p.shape, dtype=jnp.bfloat16), params)

    def denoise(params: Any, latents: Any, times: Any, text: Any) -> jax.Array:
        return unet.apply({"params": params}, latents, times, text).sample

    half = jnp.bfloat16
    return denoise, (params, array(64, 4, 64, 64, dtype=half), tokens(64), array(64, 77, 768, dtype=half)), {}

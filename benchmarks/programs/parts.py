"""What the programs share: meshes without devices, and the layers of a Llama-like decoder as plain functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardwright.models import shapes
from shardwright.models.layers import rms_norm, rotary, rotary_angles

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments as shapes, and what ``sw.partition`` is told beside them."""

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def mesh_of(axis_type: AxisType = AxisType.Auto, **axes: int) -> AbstractMesh:
    """A mesh of no devices: enough to trace a program that names its axes."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(axis_type,) * len(axes))


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder with grouped queries and a gated feed-forward layer."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    batch: int
    sequence: int
    dtype: Any = jnp.bfloat16

    @property
    def tokens(self) -> dict[str, Any]:
        """A batch of token ids and what comes next."""
        ids = shapes.integers(self.batch, self.sequence)
        return {"tokens": ids, "targets": ids}


LLAMA_8B = Decoder(32, 4096, 32, 8, 128, 14336, 128256, batch=128, sequence=4096)
LLAMA_70B = Decoder(80, 8192, 64, 8, 128, 28672, 128256, batch=64, sequence=4096)
LLAMA_1B = Decoder(16, 2048, 32, 8, 64, 8192, 128256, batch=256, sequence=4096)
MIDDLE = Decoder(4, 2048, 16, 8, 128, 7168, 32768, batch=32, sequence=2048)
SMALL = Decoder(2, 32, 4, 2, 8, 64, 64, batch=8, sequence=16, dtype=jnp.float32)
# https://arxiv.org/abs/2407.21783, table 3; the smallest: https://huggingface.co/meta-llama/Llama-3.2-1B config.json


def parameters(sizes: Decoder, dtype: Any = jnp.float32) -> dict[str, Any]:
    """Shapes of the weights; those of the layers are stacked for a scan."""

    def floats(*shape: int) -> jax.ShapeDtypeStruct:
        return shapes.floats(*shape, dtype=dtype)

    layer = {
        "attention_norm": floats(sizes.width),
        "wq": floats(sizes.width, sizes.heads, sizes.head_dim),
        "wk": floats(sizes.width, sizes.kv_heads, sizes.head_dim),
        "wv": floats(sizes.width, sizes.kv_heads, sizes.head_dim),
        "wo": floats(sizes.heads, sizes.head_dim, sizes.width),
        "mlp_norm": floats(sizes.width),
        "w_gate": floats(sizes.width, sizes.hidden),
        "w_up": floats(sizes.width, sizes.hidden),
        "w_down": floats(sizes.hidden, sizes.width),
    }
    return {
        "embed": floats(sizes.vocabulary, sizes.width),
        "layers": shapes.stacked(layer, sizes.layers),
        "final_norm": floats(sizes.width),
        "unembed": floats(sizes.width, sizes.vocabulary),
    }


def parameter_specs(data: str | None = "data", model: str | None = "model") -> dict[str, Any]:
    """How such weights are usually laid out: the width on ``data`` (FSDP), heads and hidden on ``model``."""
    return {
        "embed": P(model, data),
        "layers": {
            "attention_norm": P(None, None),
            "wq": P(None, data, model, None),
            "wk": P(None, data, model, None),
            "wv": P(None, data, model, None),
            "wo": P(None, model, None, data),
            "mlp_norm": P(None, None),
            "w_gate": P(None, data, model),
            "w_up": P(None, data, model),
            "w_down": P(None, model, data),
        },
        "final_norm": P(None),
        "unembed": P(data, model),
    }


def training_specs(params: Any, batch: P) -> tuple[Any, Any]:
    """Specs of the arguments of a training step with Adam: the moments lie as the weights do."""
    return {"params": params, "opt": {"m": params, "v": params}, "step": P()}, {"tokens": batch, "targets": batch}


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal: queries [b, s, n, h], keys and values [b, t, k, h] -> [b, s, n, h]; n is a multiple of k."""
    batch, length, heads, head_dim = q.shape
    q = q.reshape(batch, length, k.shape[2], heads // k.shape[2], head_dim) * head_dim**-0.5
    scores = jnp.einsum("bskgh,btkh->bkgst", q, k).astype(jnp.float32)
    seen = jnp.arange(length)[:, None] >= jnp.arange(k.shape[1])[None, :]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgst,btkh->bskgh", weights, v).reshape(batch, length, heads, head_dim)


def attention_layer(x: jax.Array, layer: Any, attend: Attend = attention) -> jax.Array:
    """Attention with rotary positions: x [b, s, d] -> [b, s, d]."""
    q = jnp.einsum("bsd,dnh->bsnh", x, layer["wq"].astype(x.dtype))
    k = jnp.einsum("bsd,dkh->bskh", x, layer["wk"].astype(x.dtype))
    v = jnp.einsum("bsd,dkh->bskh", x, layer["wv"].astype(x.dtype))
    angles = rotary_angles(jnp.arange(x.shape[1]), q.shape[-1])[:, None, :]
    return jnp.einsum("bsnh,nhd->bsd", attend(rotary(q, angles), rotary(k, angles), v), layer["wo"].astype(x.dtype))


def feed_forward(x: jax.Array, layer: Any) -> jax.Array:
    """Gated by SiLU: x [..., d] -> [..., d]."""
    gate = jnp.einsum("...d,df->...f", x, layer["w_gate"].astype(x.dtype))
    up = jnp.einsum("...d,df->...f", x, layer["w_up"].astype(x.dtype))
    return jnp.einsum("...f,fd->...d", jax.nn.silu(gate) * up, layer["w_down"].astype(x.dtype))


def block(x: jax.Array, layer: Any, attend: Attend = attention) -> jax.Array:
    """A layer of the decoder: x [b, s, d] -> [b, s, d]."""
    x = x + attention_layer(rms_norm(x, layer["attention_norm"]), layer, attend)
    return x + feed_forward(rms_norm(x, layer["mlp_norm"]), layer)


def logits(params: Any, tokens: jax.Array, dtype: Any, attend: Attend = attention) -> jax.Array:
    """Next-token logits: tokens [b, s] -> [b, s, v]; each layer is computed again in the backward pass."""
    x = jnp.take(params["embed"], tokens, axis=0, mode="clip").astype(dtype)
    remat = jax.checkpoint(lambda x, layer: block(x, layer, attend), prevent_cse=False)
    x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params["layers"])
    x = rms_norm(x, params["final_norm"])
    return jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(x.dtype))

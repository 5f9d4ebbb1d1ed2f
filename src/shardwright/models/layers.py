"""Layers shared by the models: small pure functions over arrays.

Parameters are stored in float32 and cast to the type of the activations where they are used, so that
a layer under ``jax.checkpoint`` saves no cast copy of its weights. Normalisations, softmax and losses
are computed in float32.

Letters in shapes: b batch, s query position, t key position, d width, n heads, k key-value heads,
g query heads per key-value head, h head dimension, f hidden width, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwright.models import kernels

Array = jax.Array
Activation = Callable[[Array], Array]


def dense(x: Array, w: Array, b: Array) -> Array:
    """Apply an affine map: x [..., i], w [i, o], b [o] -> [..., o]."""
    return jnp.einsum("...i,io->...o", x, w.astype(x.dtype)) + b.astype(x.dtype)


def rms_norm(x: Array, scale: Array) -> Array:
    """Divide by the root mean square over the last dimension: x [..., d], scale [d]."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return (y * scale).astype(x.dtype)


def layer_norm(x: Array, norm: Mapping[str, Array]) -> Array:
    """Standardise over the last dimension: x [..., d], norm {scale [d], bias [d]}."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return (y * norm["scale"] + norm["bias"]).astype(x.dtype)


def group_norm(x: Array, norm: Mapping[str, Array], groups: int) -> Array:
    """Standardise each group of channels of an image: x [b, y, x, c], norm {scale [c], bias [c]}."""
    batch, rows, columns, channels = x.shape
    y = x.astype(jnp.float32).reshape(batch, rows, columns, groups, channels // groups)
    y = y - jnp.mean(y, axis=(1, 2, 4), keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=(1, 2, 4), keepdims=True) + 1e-5)
    y = y.reshape(x.shape) * norm["scale"] + norm["bias"]
    return y.astype(x.dtype)


def rotary_angles(positions: Array, head_dim: int) -> Array:
    """Return the rotation of each pair of features: positions [...] -> [..., h / 2]."""
    pairs = head_dim // 2
    frequencies = 10_000.0 ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
    return positions.astype(jnp.float32)[..., None] * frequencies


def rotary(x: Array, angles: Array) -> Array:
    """Rotate pairs of features by position: x [..., h], angles broadcastable to [..., h / 2].

    A pair is a feature of the first half with its fellow of the second half.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def softmax(scores: Array, mask: Array | None, dtype: Any) -> Array:
    """Normalise scores over the last dimension in float32; where ``mask`` is false the weight is zero."""
    scores = scores.astype(jnp.float32)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """Attend from queries [b, s, n, h] to keys and values; returns [b, s, n, h].

    Keys and values are [b, t, h] (multi-query), [b, t, n, h] (multi-head) or [b, t, k, h] (grouped),
    and the mask [s, t] is true where a query may look.
    """
    q = q * q.shape[-1] ** -0.5
    if k.ndim == 3:
        weights = softmax(jnp.einsum("bsnh,bth->bnst", q, k), mask, v.dtype)
        return jnp.einsum("bnst,bth->bsnh", weights, v)
    if k.shape[2] == q.shape[2]:
        weights = softmax(jnp.einsum("bsnh,btnh->bnst", q, k), mask, v.dtype)
        return jnp.einsum("bnst,btnh->bsnh", weights, v)
    batch, length, heads, head_dim = q.shape
    grouped = q.reshape(batch, length, k.shape[2], heads // k.shape[2], head_dim)
    weights = softmax(jnp.einsum("bskgh,btkh->bkgst", grouped, k), mask, v.dtype)
    return jnp.einsum("bkgst,btkh->bskgh", weights, v).reshape(q.shape)


def causal_attention(x: Array, layer: Mapping[str, Array], kernel: str = kernels.PLAIN) -> Array:
    """Self-attention with rotary positions and a causal mask: x [b, s, d] -> [b, s, d].

    ``layer`` has wq [d, n, h], wk and wv [d, k, h] (or [d, h], multi-query) and wo [n, h, d]. ``kernel``
    is what attends, of those in ``kernels.py``.
    """
    shared = layer["wk"].ndim == 2
    q = jnp.einsum("bsd,dnh->bsnh", x, layer["wq"].astype(x.dtype))
    k = jnp.einsum("bsd,dh->bsh" if shared else "bsd,dkh->bskh", x, layer["wk"].astype(x.dtype))
    v = jnp.einsum("bsd,dh->bsh" if shared else "bsd,dkh->bskh", x, layer["wv"].astype(x.dtype))
    positions = jnp.arange(x.shape[1])
    angles = rotary_angles(positions, q.shape[-1])  # [s, h / 2]
    q = rotary(q, angles[:, None, :])
    k = rotary(k, angles if shared else angles[:, None, :])
    if kernel == kernels.PLAIN:
        mixed = attention(q, k, v, positions[:, None] >= positions[None, :])
    else:
        mixed = kernels.attention(kernel, q, k, v, causal=True)
    return jnp.einsum("bsnh,nhd->bsd", mixed, layer["wo"].astype(mixed.dtype))


def feed_forward(x: Array, layer: Mapping[str, Array], activation: Activation = jax.nn.gelu) -> Array:
    """Feed-forward layer: x [..., d] -> [..., d].

    ``layer`` has w_up [d, f], w_down [f, d] and, when the layer is gated, w_gate [d, f].
    """
    up = jnp.einsum("...d,df->...f", x, layer["w_up"].astype(x.dtype))
    gate = jnp.einsum("...d,df->...f", x, layer["w_gate"].astype(x.dtype)) if "w_gate" in layer else None
    hidden = activation(up) if gate is None else activation(gate) * up
    return jnp.einsum("...f,fd->...d", hidden, layer["w_down"].astype(hidden.dtype))


def embed(tokens: Array, table: Array, dtype: Any) -> Array:
    """Look token ids up in a table [v, d].

    Scaled by the root of the width, because a table that also makes the logits has small entries.
    """
    rows = jnp.take(table, tokens, axis=0, mode="clip").astype(dtype)
    return rows * jnp.asarray(table.shape[1] ** 0.5, dtype)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Mean cross-entropy: logits [..., v], integer targets [...] -> float32 scalar.

    The target's logit is picked by comparison rather than a gather: the comparison fuses into the sum
    and stays local when the vocabulary is split across devices.
    """
    logits = logits.astype(jnp.float32)
    picked = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logits = jnp.sum(jnp.where(picked, logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logits)


def mean_squared_error(outputs: Array, targets: Array) -> Array:
    """Mean squared error, as a float32 scalar."""
    return jnp.mean(jnp.square(outputs.astype(jnp.float32) - targets.astype(jnp.float32)))


def apply_layers(block: Callable[[Any, Any], Any], x: Any, layers: Any, *, scan: bool, remat: bool) -> Any:
    """Thread ``x`` through ``block(x, layer)`` for every layer, scanned or unrolled.

    With ``remat`` only the input of each block is kept for the backward pass.
    """
    if remat:
        # Inside a scan the loop itself keeps the recomputation apart, so the barrier would only cost.
        block = jax.checkpoint(block, prevent_cse=not scan)
    if scan:
        x, _ = jax.lax.scan(lambda carry, layer: (block(carry, layer), None), x, layers)
        return x
    for layer in layers:
        x = block(x, layer)
    return x

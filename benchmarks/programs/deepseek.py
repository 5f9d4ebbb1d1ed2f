"""DeepSeek-V3, 671 billion parameters: latent attention, 256 routed experts and a shared one, 8 for each token.

Within a sequence every expert has ``capacity`` places; tokens are scattered into them, and what has found no place
passes through the shared expert alone. Sizes: https://arxiv.org/abs/2412.19437, section 4.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.parts import Built, feed_forward
from shardwright.models import adam, shapes
from shardwright.models.layers import cross_entropy, rms_norm, rotary, rotary_angles


@dataclass(frozen=True)
class Sizes:
    """Of the model and its batch; ``nope`` and ``rope`` are a key's features without and with positions."""

    dense_layers: int = 3
    expert_layers: int = 58
    width: int = 7168
    heads: int = 128
    query_latent: int = 1536
    latent: int = 512
    nope: int = 128
    rope: int = 64
    value: int = 128
    dense_hidden: int = 18432
    hidden: int = 2048
    experts: int = 256
    top: int = 8
    capacity_factor: float = 1.25
    vocabulary: int = 129280
    batch: int = 512
    sequence: int = 4096
    dtype: Any = jnp.bfloat16

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that one expert has room for."""
        return math.ceil(self.top * self.sequence * self.capacity_factor / self.experts)


MIDDLE = Sizes(2, 2, 1024, 16, 256, 128, 64, 32, 64, 2560, 256, 256, 8, 1.25, 16384, 32, 512)
SMALL = Sizes(1, 2, 32, 4, 16, 16, 8, 8, 8, 64, 16, 8, 2, 2.0, 64, 8, 16, jnp.float32)
SCALES = {
    "real": (Sizes(), {"data": 32, "model": 16}, "tpu-v5p"),
    "middle": (MIDDLE, {"data": 4, "model": 4}, "tpu-v5e"),
    "small": (SMALL, {"data": 4, "model": 2}, "tpu-v5e"),
}


def parameters(s: Sizes) -> dict[str, Any]:
    attention = {
        "attention_norm": shapes.floats(s.width),
        "query_down": shapes.floats(s.width, s.query_latent),
        "query_norm": shapes.floats(s.query_latent),
        "query_up": shapes.floats(s.query_latent, s.heads, s.nope + s.rope),
        "latent_down": shapes.floats(s.width, s.latent),
        "latent_norm": shapes.floats(s.latent),
        "key_rope": shapes.floats(s.width, s.rope),
        "key_up": shapes.floats(s.latent, s.heads, s.nope),
        "value_up": shapes.floats(s.latent, s.heads, s.value),
        "out": shapes.floats(s.heads, s.value, s.width),
        "mlp_norm": shapes.floats(s.width),
    }

    def mlp(*leading: int, hidden: int) -> dict[str, Any]:
        into, out = shapes.floats(*leading, s.width, hidden), shapes.floats(*leading, hidden, s.width)
        return {"w_gate": into, "w_up": into, "w_down": out}

    router = {"router": shapes.floats(s.width, s.experts), "bias": shapes.floats(s.experts)}
    experts = {**router, "shared": mlp(hidden=s.hidden), "routed": mlp(s.experts, hidden=s.hidden)}
    return {
        "embed": shapes.floats(s.vocabulary, s.width),
        "dense": shapes.stacked({**attention, "mlp": mlp(hidden=s.dense_hidden)}, s.dense_layers),
        "experts": shapes.stacked({**attention, "mlp": experts}, s.expert_layers),
        "final_norm": shapes.floats(s.width),
        "unembed": shapes.floats(s.width, s.vocabulary),
    }


def latent_attention(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    """Keys and values of all heads come from one small vector a token: x [b, s, d] -> [b, s, d]."""
    w = jax.tree.map(lambda p: p.astype(x.dtype), layer)
    query = rms_norm(jnp.einsum("bsd,dq->bsq", x, w["query_down"]), layer["query_norm"])
    query = jnp.einsum("bsq,qnh->bsnh", query, w["query_up"])
    latent = rms_norm(jnp.einsum("bsd,dl->bsl", x, w["latent_down"]), layer["latent_norm"])
    angles = rotary_angles(jnp.arange(x.shape[1]), s.rope)
    query_rope = rotary(query[..., s.nope :], angles[:, None, :])
    key_rope = rotary(jnp.einsum("bsd,dr->bsr", x, w["key_rope"]), angles)
    key = jnp.einsum("btl,lnh->btnh", latent, w["key_up"])
    value = jnp.einsum("btl,lnh->btnh", latent, w["value_up"])
    scores = jnp.einsum("bsnh,btnh->bnst", query[..., : s.nope], key)
    scores = scores + jnp.einsum("bsnr,btr->bnst", query_rope, key_rope)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(seen, scores.astype(jnp.float32) * (s.nope + s.rope) ** -0.5, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bnst,btnh,nhd->bsd", weights, value, w["out"])


def mixture(s: Sizes, x: jax.Array, mlp: Any) -> jax.Array:
    """Every token through its experts: x [b, s, d] -> [b, s, d]. Letters: e experts, c places, k choices."""
    affinity = jax.nn.sigmoid(jnp.einsum("bsd,de->bse", x.astype(jnp.float32), mlp["router"]))
    _, chosen = jax.lax.top_k(affinity + mlp["bias"], s.top)  # [b, s, k]; the bias only chooses
    gates = jnp.take_along_axis(affinity, chosen, axis=-1)
    gates = (2.5 * gates / jnp.sum(gates, axis=-1, keepdims=True)).astype(x.dtype)

    # The place of a token in its expert is how many before it have chosen the same one.
    flat = chosen.reshape(x.shape[0], -1)  # [b, s k]
    taken = jax.nn.one_hot(flat, s.experts, dtype=jnp.int32)
    places = jnp.take_along_axis(jnp.cumsum(taken, axis=1), flat[..., None], axis=-1)[..., 0] - 1

    def scatter(tokens: jax.Array, expert: jax.Array, place: jax.Array) -> jax.Array:
        buffer = jnp.zeros((s.experts, s.capacity, s.width), tokens.dtype)
        return buffer.at[expert, place].add(jnp.repeat(tokens, s.top, axis=0), mode="drop")

    inputs = jax.vmap(scatter)(x, flat, places)  # [b, e, c, d]
    w = jax.tree.map(lambda p: p.astype(x.dtype), mlp["routed"])
    hidden = jax.nn.silu(jnp.einsum("becd,edf->becf", inputs, w["w_gate"]))
    hidden = hidden * jnp.einsum("becd,edf->becf", inputs, w["w_up"])
    outputs = jnp.einsum("becf,efd->becd", hidden, w["w_down"])
    back = jax.vmap(lambda out, expert, place: out.at[expert, place].get(mode="fill", fill_value=0))
    routed = back(outputs, flat, places).reshape(*chosen.shape, s.width)
    return feed_forward(x, mlp["shared"]) + jnp.einsum("bskd,bsk->bsd", routed, gates)


def block(s: Sizes, x: jax.Array, layer: Any) -> jax.Array:
    x = x + latent_attention(s, rms_norm(x, layer["attention_norm"]), layer)
    h = rms_norm(x, layer["mlp_norm"])
    return x + (mixture(s, h, layer["mlp"]) if "routed" in layer["mlp"] else feed_forward(h, layer["mlp"]))


def build(scale: str) -> Built:
    sizes, mesh, device = SCALES[scale]

    def loss(params: Any, batch: Any) -> jax.Array:
        x = jnp.take(params["embed"], batch["tokens"], axis=0, mode="clip").astype(sizes.dtype)
        remat = jax.checkpoint(partial(block, sizes), prevent_cse=False)
        for stack in ("dense", "experts"):
            x, _ = jax.lax.scan(lambda x, layer: (remat(x, layer), None), x, params[stack])
        x = rms_norm(x, params["final_norm"])
        logits = jnp.einsum("bsd,dv->bsv", x, params["unembed"].astype(x.dtype))
        return cross_entropy(logits, batch["targets"])

    ids = shapes.integers(sizes.batch, sizes.sequence)
    args = (adam.state(parameters(sizes)), {"tokens": ids, "targets": ids})
    return adam.training(loss), args, {"donate": (0,), "mesh": mesh, "device": device}

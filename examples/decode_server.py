"""An inference server's loop: prefill the key-value cache, then decode token by token on eight devices.

The decode step is planned; its cache is donated, so that a step overwrites it, and ``plan.place`` puts what prefill
left on one device where the plan wants it.

python examples/decode_server.py
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

LAYERS, WIDTH, HEADS, VOCABULARY = 2, 256, 8, 1024
BATCH, PROMPT, LENGTH, NEW_TOKENS = 4, 32, 1024, 16


def init(random):
    def normal(*shape):
        return jnp.asarray(random.normal(size=shape) * shape[0] ** -0.5, jnp.float32)

    def layer():
        attention = {"qkv": normal(WIDTH, 3 * WIDTH), "out": normal(WIDTH, WIDTH)}
        return attention | {"up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)}

    layers = [layer() for _ in range(LAYERS)]
    return {"embed": normal(VOCABULARY, WIDTH) * 32, "layers": layers, "head": normal(WIDTH, VOCABULARY)}


def empty_cache():
    shape = (BATCH, LENGTH, HEADS, WIDTH // HEADS)
    return [{"k": jnp.zeros(shape), "v": jnp.zeros(shape)} for _ in range(LAYERS)]


def norm(x):
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def forward(params, cache, tokens, position):
    """Logits of the last of ``tokens`` [batch, time], which begin at ``position``; and the cache with them in it."""
    x, filled = params["embed"][tokens], []
    seen = jnp.arange(LENGTH) <= position + jnp.arange(tokens.shape[1])[:, None]
    for layer, old in zip(params["layers"], cache, strict=True):
        q, k, v = jnp.split(norm(x) @ layer["qkv"], 3, axis=-1)
        q, k, v = (a.reshape(*a.shape[:2], HEADS, -1) for a in (q, k, v))
        k, v = (lax.dynamic_update_slice_in_dim(old[name], new, position, 1) for name, new in (("k", k), ("v", v)))
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
        x = x + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
        filled.append({"k": k, "v": v})
    return norm(x[:, -1]) @ params["head"], filled


def decode_step(params, cache, token, position):
    logits, cache = forward(params, cache, token[:, None], position)
    return jnp.argmax(logits, -1), cache


def generate(step, params, cache, token):
    tokens = [token]
    for position in range(PROMPT, PROMPT + NEW_TOKENS):
        token, cache = step(params, cache, token, position)
        tokens.append(token)
    return np.stack(tokens, 1)


params = init(np.random.default_rng(0))
prompt = np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, PROMPT))
logits, cache = jax.jit(partial(forward, position=0))(params, empty_cache(), prompt)
token = jnp.argmax(logits, -1)
expected = generate(jax.jit(decode_step), params, cache, token)

# Shardwright, in place of jax.jit(decode_step, donate_argnums=1).
plan = sw.partition(decode_step, params, cache, token, PROMPT, mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=1)
planned_step = plan.jit()
params, cache = plan.place(params), plan.place(cache)

found = generate(planned_step, params, cache, token)

print(plan)
print("tokens of the first request:", *found[0])
np.testing.assert_array_equal(found, expected)

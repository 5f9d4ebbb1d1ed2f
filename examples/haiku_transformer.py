"""Haiku: a transformer under ``hk.transform`` whose layers are a loop (``layer_stack``), trained by Optax.

python examples/haiku_transformer.py
"""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 512, 128, 4, 3, 32, 32


def norm(x):
    return hk.RMSNorm(-1)(x)


def block(x):
    mask = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH)))
    w_init = hk.initializers.VarianceScaling()
    attention = hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=w_init, with_bias=False, model_size=WIDTH)
    h = norm(x)
    x = x + attention(h, h, h, mask=mask)
    return x + hk.nets.MLP([4 * WIDTH, WIDTH], with_bias=False, activation=jax.nn.gelu)(norm(x))


def forward(tokens):
    x = hk.Embed(VOCABULARY, WIDTH)(tokens)
    x = hk.experimental.layer_stack(LAYERS, name="layers")(block)(x)
    return hk.Linear(VOCABULARY, with_bias=False)(norm(x))


model = hk.without_apply_rng(hk.transform(forward))
optimizer = optax.adam(1e-3)


def loss_fn(params, tokens):
    logits = model.apply(params, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def train_step(params, opt_state, tokens):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def batches(steps):
    random = np.random.default_rng(0)
    for _ in range(steps):
        start = random.integers(0, VOCABULARY, (BATCH, 1))
        yield ((start + np.arange(LENGTH + 1)) % VOCABULARY).astype(np.int32)


def train(step, params, opt_state):
    for tokens in batches(3):
        params, opt_state, loss = step(params, opt_state, tokens)
    return float(loss)


params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, LENGTH), np.int32))
opt_state = optimizer.init(params)
expected_loss = train(jax.jit(train_step), params, opt_state)

# Shardwright, in place of jax.jit(train_step).
plan = sw.partition(
    train_step, params, opt_state, next(batches(1)), mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=(0, 1)
)
planned_step = plan.jit()

loss = train(planned_step, params, opt_state)

print(plan)
print(f"loss {loss:.6f}; with plain jax.jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

"""Optax: AdamW behind a clipped gradient with a warm-up and a cosine schedule; its states are NamedTuples in a chain.

python examples/optax_states.py
"""

import jax
import numpy as np
import optax

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

VOCABULARY, WIDTH, HIDDEN, BATCH, LENGTH = 1024, 128, 512, 32, 64

schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=2, decay_steps=100)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def init(random):
    def normal(*shape):
        return (random.normal(size=shape) * shape[0] ** -0.5).astype(np.float32)

    return {"embed": normal(VOCABULARY, WIDTH), "up": normal(WIDTH, HIDDEN), "down": normal(HIDDEN, VOCABULARY)}


def loss_fn(params, tokens):
    h = jax.nn.gelu(params["embed"][tokens[:, :-1]] @ params["up"])
    return optax.softmax_cross_entropy_with_integer_labels(h @ params["down"], tokens[:, 1:]).mean()


def train_step(params, opt_state, tokens):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def batches(steps):
    random = np.random.default_rng(1)
    for _ in range(steps):
        start = random.integers(0, VOCABULARY, (BATCH, 1))
        yield ((start + 3 * np.arange(LENGTH + 1)) % VOCABULARY).astype(np.int32)


def train(step, params):
    opt_state = optimizer.init(params)
    for tokens in batches(4):
        params, opt_state, loss = step(params, opt_state, tokens)
    return float(loss)


params = init(np.random.default_rng(0))
expected_loss = train(jax.jit(train_step), params)

# Shardwright, in place of jax.jit(train_step). Shapes are enough to plan with: here those of the optimizer's state.
plan = sw.partition(
    train_step,
    params,
    jax.eval_shape(optimizer.init, params),
    next(batches(1)),
    mesh={"data": 4, "model": 2},
    device="tpu-v5e",
    donate=(0, 1),
)
planned_step = plan.jit()

loss = train(planned_step, params)

print(plan)
print(f"loss {loss:.6f}; with plain jax.jit {expected_loss:.6f}")
np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

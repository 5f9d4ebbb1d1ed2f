"""Brax: its physics and its PPO, as its own training loop calls them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from brax import envs
from brax.training import types
from brax.training.agents.ppo import losses, networks

from ecosystem.steps import KEY, Planned, array

ENVIRONMENTS, UNROLL = 8192, 20


def ppo() -> Planned:
    """A minibatch of PPO for the humanoid with Adam, wide networks, 8,192 × 20 steps."""
    env = envs.get_environment("humanoid", backend="generalized")
    wide = (2048,) * 4
    nets = networks.make_ppo_networks(
        env.observation_size, env.action_size, policy_hidden_layer_sizes=wide, value_hidden_layer_sizes=wide
    )
    params = jax.eval_shape(
        lambda key: losses.PPONetworkParams(nets.policy_network.init(key), nets.value_network.init(key)), KEY
    )
    optimizer, actions = optax.adam(3e-4), array(ENVIRONMENTS, UNROLL, env.action_size)
    observations, scalars = array(ENVIRONMENTS, UNROLL, env.observation_size), array(ENVIRONMENTS, UNROLL)
    data = types.Transition(
        observation=observations,
        action=actions,
        reward=scalars,
        discount=scalars,
        next_observation=observations,
        extras={
            "policy_extras": {
                "log_prob": scalars,
                "raw_action": actions,
                "distribution_params": array(ENVIRONMENTS, UNROLL, 2 * env.action_size),
            },
            "state_extras": {"truncation": scalars},
        },
    )

    def train_step(params: Any, opt_state: Any, data: Any, key: Any) -> Any:
        grads, metrics = jax.grad(losses.compute_ppo_loss, has_aux=True)(params, None, data, key, nets)
        updates, new_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), new_state, metrics

    return train_step, (params, jax.eval_shape(optimizer.init, params), data, KEY), {"donate": (0, 1)}


def humanoid() -> Planned:
    """Rigid bodies: 65,536 humanoids, 10 steps."""
    env = envs.get_environment("humanoid", backend="positional")
    state = jax.eval_shape(jax.vmap(env.reset), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 65536)))

    def simulate(state: Any, actions: Any) -> Any:
        return jax.lax.scan(lambda state, action: (jax.vmap(env.step)(state, action), None), state, actions)[0]

    return simulate, (state, array(10, 65536, env.action_size, dtype=jnp.float32)), {"donate": 0}

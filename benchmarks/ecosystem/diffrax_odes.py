"""Diffrax: a neural ordinary differential equation, its field a network of Equinox, as its documentation has it.

Equinox reports errors at run time by a call back into Python, which JAX lowers only for the platform that is present;
``EQX_ON_ERROR=nan`` is Equinox's own setting for accelerators, and has it return NaN in place of the call.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["EQX_ON_ERROR"] = "nan"

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ecosystem.steps import KEY, Planned, array

STATE, WIDTH, BATCH, TIMES = 512, 4096, 8192, 16


def neural_ode() -> Planned:
    """Fitting trajectories with Adam, 8,192 of 512 numbers at 16 times, 64 steps of Tsit5."""
    optimizer = optax.adam(1e-3)
    field = eqx.filter_eval_shape(lambda key: eqx.nn.MLP(STATE, STATE, WIDTH, depth=3, key=key), KEY)
    opt_state = eqx.filter_eval_shape(lambda f: optimizer.init(eqx.filter(f, eqx.is_inexact_array)), field)

    def solve(field: Any, start: Any, times: Any) -> Any:
        # The batch is part of the state. With vmap around the solver the way back would hold a gradient for each path.
        term = diffrax.ODETerm(lambda t, y, args: jax.vmap(field)(y))  # noqa: ARG005
        return diffrax.diffeqsolve(
            term,
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=1 / 64,
            y0=start,
            saveat=diffrax.SaveAt(ts=times),
            max_steps=64,
        ).ys

    @eqx.filter_jit
    def train_step(field: Any, opt_state: Any, times: Any, paths: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss(field: Any) -> jax.Array:
            return jnp.mean((solve(field, paths[0], times) - paths) ** 2)

        value, grads = loss(field)
        updates, new_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(field, updates), new_state, value

    return train_step, (field, opt_state, array(TIMES), array(TIMES, BATCH, STATE)), {"donate": (0, 1)}

"""MLP: the training step of a multilayer perceptron for regression.

Parameter count: "default" 0.54 billion.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.models import adam, layers, shapes
from shardwright.models.model import Program
from shardwright.models.sizes import Sizes, choose


@dataclass(frozen=True)
class MlpSizes(Sizes):
    """Sizes of the multilayer perceptron.

    Attributes:
        layers: Affine layers, the last of them without activation.
        inputs: Features of an input.
        width: Features between the layers.
        outputs: Features of an output.
        batch: Examples in a batch.
        dtype: Type of activations; parameters and the optimiser's state are float32.

    """

    model: ClassVar[str] = "mlp"

    layers: int = 8
    inputs: int = 8192
    width: int = 8192
    outputs: int = 8192
    batch: int = 16384
    dtype: str = "float32"


#: Named sizes: full size, and one that runs on a CPU.
PRESETS: dict[str, MlpSizes] = {
    "default": MlpSizes(),
    "tiny": MlpSizes(layers=3, inputs=16, width=64, outputs=8, batch=32),
}


def mlp(preset: str = "default", **sizes: Any) -> Program:
    """Build the training step of a multilayer perceptron: ``train_step(state, batch)``.

    The batch holds ``inputs`` [batch, inputs] and ``targets`` [batch, outputs]. Sizes are those of
    ``MlpSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)

    def loss(params: Any, batch: Any) -> jax.Array:
        outputs = forward(params, batch["inputs"].astype(jnp.dtype(chosen.dtype)))
        return layers.mean_squared_error(outputs, batch["targets"])

    batch = {
        "inputs": shapes.floats(chosen.batch, chosen.inputs),
        "targets": shapes.floats(chosen.batch, chosen.outputs),
    }
    return adam.training(loss), (adam.state(parameters(chosen)), batch), {"donate": (0,)}


def parameters(sizes: MlpSizes) -> dict[str, Any]:
    """Return the shapes of the parameters: ``layers``, a list of {w, b}."""
    widths = [sizes.inputs, *[sizes.width] * (sizes.layers - 1), sizes.outputs]
    pairs = itertools.pairwise(widths)
    return {"layers": [{"w": shapes.floats(i, o), "b": shapes.floats(o)} for i, o in pairs]}


def forward(params: Any, x: jax.Array) -> jax.Array:
    """Return the outputs: x [b, inputs] -> [b, outputs]."""
    *inner, last = params["layers"]
    for layer in inner:
        x = jax.nn.relu(layers.dense(x, layer["w"], layer["b"]))
    return layers.dense(x, last["w"], last["b"])

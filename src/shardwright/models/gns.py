"""GNS: the training step of a graph network simulator.

After "Learning to Simulate Complex Physics with Graph Networks" (Sanchez-Gonzalez et al., 2020):
particles are nodes, neighbours are joined by edges, and the network predicts accelerations.
Parameter count: "default" 0.23 billion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.models import adam, layers, shapes
from shardwright.models.model import Program
from shardwright.models.sizes import Sizes, choose


@dataclass(frozen=True)
class GnsSizes(Sizes):
    """Sizes of the graph network simulator.

    Attributes:
        steps: Message-passing steps, each with parameters of its own.
        latent: Features of an encoded node or edge.
        hidden: Features inside the perceptrons.
        nodes: Particles.
        edges: Pairs of neighbours.
        node_features: Features of a node: its last velocities, distances to walls, material.
        edge_features: Features of an edge: the displacement and its length.
        dimensions: Components of an acceleration.
        scan: Loop over stacked steps; otherwise the steps are unrolled into a list.
        remat: Recompute each step in the backward pass instead of keeping its activations.
        dtype: Type of activations; parameters and the optimiser's state are float32.

    """

    model: ClassVar[str] = "gns"

    steps: int = 24
    latent: int = 1024
    hidden: int = 1024
    nodes: int = 16384
    edges: int = 131072
    node_features: int = 37
    edge_features: int = 4
    dimensions: int = 3
    scan: bool = False
    remat: bool = False
    dtype: str = "float32"


#: Named sizes: full size, and one that runs on a CPU.
PRESETS: dict[str, GnsSizes] = {
    "default": GnsSizes(),
    "tiny": GnsSizes(steps=2, latent=32, hidden=48, nodes=64, edges=256, node_features=16, edge_features=8),
}


def gns(preset: str = "default", **sizes: Any) -> Program:
    """Build the training step of a graph network simulator: ``train_step(state, batch)``.

    The batch holds ``nodes`` [nodes, node_features], ``edges`` [edges, edge_features], ``senders`` and
    ``receivers`` [edges], and ``targets`` [nodes, dimensions]. Sizes are those of ``GnsSizes``.
    """
    chosen = choose(PRESETS, preset, sizes)

    def loss(params: Any, batch: Any) -> jax.Array:
        return layers.mean_squared_error(accelerations(params, batch, chosen), batch["targets"])

    batch = {
        "nodes": shapes.floats(chosen.nodes, chosen.node_features),
        "edges": shapes.floats(chosen.edges, chosen.edge_features),
        "senders": shapes.integers(chosen.edges),
        "receivers": shapes.integers(chosen.edges),
        "targets": shapes.floats(chosen.nodes, chosen.dimensions),
    }
    return adam.training(loss), (adam.state(parameters(chosen)), batch), {"donate": (0,)}


def parameters(sizes: GnsSizes) -> dict[str, Any]:
    """Return the shapes of the parameters; ``steps`` is stacked or a list, as ``sizes.scan`` says."""

    def encode(inputs: int) -> dict[str, Any]:
        return perceptron_shapes(inputs, sizes.hidden, sizes.latent) | {"norm": shapes.norm(sizes.latent)}

    step = {"edge": encode(3 * sizes.latent), "node": encode(2 * sizes.latent)}
    return {
        "encode_nodes": encode(sizes.node_features),
        "encode_edges": encode(sizes.edge_features),
        "steps": shapes.repeated(step, sizes.steps, scan=sizes.scan),
        "decode": perceptron_shapes(sizes.latent, sizes.hidden, sizes.dimensions),
    }


def perceptron_shapes(inputs: int, hidden: int, outputs: int) -> dict[str, Any]:
    """Return the parameters of a perceptron with two hidden layers."""
    return {
        "w1": shapes.floats(inputs, hidden),
        "b1": shapes.floats(hidden),
        "w2": shapes.floats(hidden, hidden),
        "b2": shapes.floats(hidden),
        "w3": shapes.floats(hidden, outputs),
        "b3": shapes.floats(outputs),
    }


def accelerations(params: Any, batch: Any, sizes: GnsSizes) -> jax.Array:
    """Return the acceleration of every particle: [nodes, dimensions]."""
    dtype = jnp.dtype(sizes.dtype)
    senders, receivers = batch["senders"], batch["receivers"]

    def interact(graph: tuple[jax.Array, jax.Array], step: Any) -> tuple[jax.Array, jax.Array]:
        nodes, edges = graph
        sent = jnp.take(nodes, senders, axis=0, mode="clip")
        received = jnp.take(nodes, receivers, axis=0, mode="clip")
        messages = perceptron(jnp.concatenate([edges, sent, received], axis=-1), step["edge"])
        gathered = jax.ops.segment_sum(messages, receivers, num_segments=sizes.nodes)
        moved = perceptron(jnp.concatenate([nodes, gathered], axis=-1), step["node"])
        return nodes + moved, edges + messages

    nodes = perceptron(batch["nodes"].astype(dtype), params["encode_nodes"])
    edges = perceptron(batch["edges"].astype(dtype), params["encode_edges"])
    graph = (nodes, edges)
    nodes, _ = layers.apply_layers(interact, graph, params["steps"], scan=sizes.scan, remat=sizes.remat)
    return perceptron(nodes, params["decode"])


def perceptron(x: jax.Array, params: Any) -> jax.Array:
    """Apply two hidden layers and an output layer, and a layer norm if there is one: [n, i] -> [n, o]."""
    x = jax.nn.relu(layers.dense(x, params["w1"], params["b1"]))
    x = jax.nn.relu(layers.dense(x, params["w2"], params["b2"]))
    x = layers.dense(x, params["w3"], params["b3"])
    return layers.layer_norm(x, params["norm"]) if "norm" in params else x

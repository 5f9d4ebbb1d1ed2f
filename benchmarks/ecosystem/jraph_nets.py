"""Jraph: the graph network of its example for the Open Graph Benchmark, as its package has it."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jraph
from jraph.ogb_examples.train import net_fn

from ecosystem.steps import KEY, Planned, array, cross_entropy, tokens, training

NODES, EDGES, GRAPHS = 2**20, 2**21, 2**15


def molecules() -> Planned:
    """Classification of graphs with AdamW, 32,768 graphs that have 1,048,576 nodes and 2,097,152 edges together."""
    net = hk.without_apply_rng(hk.transform(net_fn))
    graphs = jraph.GraphsTuple(
        nodes=array(NODES, 9),
        edges=array(EDGES, 3),
        senders=tokens(EDGES),
        receivers=tokens(EDGES),
        globals=None,
        n_node=tokens(GRAPHS),
        n_edge=tokens(GRAPHS),
    )

    def loss(params: Any, graphs: Any, labels: Any) -> jax.Array:
        return cross_entropy(net.apply(params, graphs).globals, labels)

    return training(loss, jax.eval_shape(net.init, KEY, graphs), graphs, tokens(GRAPHS))

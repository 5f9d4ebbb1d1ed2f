"""Loops that run once: XLA opens them, and computes once what is then there twice.

Seen in RecurrentGemma's training step with one group of layers in a ``scan``, each layer under
``jax.checkpoint(prevent_cse=False)``, compiled for v5e 4x4 by the libtpu of jax 0.10.2. There is no ``while`` left in
its final program; no weight is gathered a second time for the backward pass (767 MB sent, where recomputing would send
999); and what the forward pass made is kept (1.42 GiB, where recomputing would take 0.93). With the default
``prevent_cse=True`` a barrier stands between, and layers are recomputed. Loops of two trips stay loops.
"""

from __future__ import annotations

OPENED_TRIPS = 1
MERGED_WITH_BODIES = frozenset(
    {"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.sort", "stablehlo.scatter", "stablehlo.map"}
)
"""Operations with bodies of their own that are compared with these."""
_EFFECTS = frozenset(
    {
        "stablehlo.custom_call",
        "stablehlo.rng",
        "stablehlo.optimization_barrier",
        "stablehlo.send",
        "stablehlo.recv",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.create_token",
        "stablehlo.after_all",
    }
)


def never_merged(operation: str) -> bool:
    """Whether two operations of this name are both run, however alike they are."""
    return operation in _EFFECTS or not operation.startswith(("stablehlo.", "chlo.", "sdy.sharding_constraint"))

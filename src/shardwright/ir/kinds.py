"""Traits of ops, by their kind: what an op is, said once and under one name.

A kind is an op's name without its dialect. Whether an op is elementwise is read off its sharding rule, not its kind:
see ``program.is_elementwise``.
"""

from __future__ import annotations

CONSTRAINT, MANUAL = "sharding_constraint", "manual_computation"
"""The ops by which a program shards itself: a value that is given a sharding, and a ``shard_map``."""

PRODUCTS = frozenset({"dot", "dot_general"})
"""Matrix products, batches and all."""
CONTRACTIONS = PRODUCTS | {"convolution", "ragged_dot"}
"""Ops that a matrix unit computes."""
REDUCING = frozenset({"reduce", "reduce_window", "select_and_scatter", "sort"})
"""Ops whose work is counted by the entries that they read."""
EXPENSIVE = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "cosine", "digamma"),
        *("erf", "erf_inv", "erfc", "exponential", "exponential_minus_one", "lgamma", "log", "log_plus_one"),
        *("logistic", "power", "remainder", "rsqrt", "sine", "sinh", "sqrt", "tan", "tanh"),
    }
)
"""Elementwise ops that take more than a few instructions for each entry."""
WRITTEN_OUT = frozenset({"digamma", "erf_inv", "lgamma"})
"""Ops that are polynomials of dozens of ops by the time they are fused (StableHLO, ``ChloLegalizeToStablehlo.cpp``)."""

MADE = frozenset({"constant", "iota"})
"""Ops that make their result of nothing."""
VIEWS = frozenset({"reshape", "transpose"})
"""Ops that, on a stored value, need no memory of their own: another way to read the same buffer."""
CUTS = frozenset({"slice", "dynamic_slice"})
"""Ops that take one piece out of their operand."""
MOVES_DATA = MADE | VIEWS | CUTS | {"broadcast_in_dim", "concatenate", "pad", "reverse", CONSTRAINT}
"""Ops that only move entries around, or make them."""
SAME_ENTRIES = VIEWS | CUTS | {"convert"}
"""Ops whose result is their operand, or a piece of it, in another form."""
ADDS_DIMENSIONS = VIEWS | {"broadcast_in_dim"}
"""The ways in which JAX writes a value as one of more dimensions."""
SAME_SCALAR = frozenset({"broadcast_in_dim", "convert", "reshape"})
"""Ops through which a number stays the same number."""
FREE_OF_FREE = frozenset({"broadcast_in_dim", "reshape", "slice"})
"""Ops, elementwise ones aside, that any device can compute at no cost from what it can make itself."""
INDEXED = frozenset({"gather", "scatter"})
"""Ops that read or write rows of a table that indices choose."""
READS_A_PART = CUTS | {"gather"}
"""Ops that read no more of their operand than they give."""
IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})
"""Ops that write into their first operand's buffer where nobody needs the old content."""

BRANCHES = frozenset({"case", "if"})
CONTROL = BRANCHES | {"while"}
"""Ops with regions that run, or do not, or run more than once."""
CARRIES = frozenset({"while", "optimization_barrier"})
"""Ops that have a result for each operand, which is that operand, before or after."""
COLLECTIVES = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"}
)
"""Collectives that a program has itself, in manual regions."""
ALONE = COLLECTIVES | {"custom_call", "rng_bit_generator"}
"""Ops that are kernels of their own, whatever stands beside them."""
READS_OUT_OF_PLACE = frozenset({"broadcast_in_dim", "concatenate", "custom_call", "gather", "pad", "reduce", "sort"})
"""Ops that do not write over an operand: an entry that they read and the one that they write have other places."""

"""What the forward pass keeps of a layer for the backward pass: everything, products of matrices, or its inputs."""

from __future__ import annotations

from enum import Enum

from shardwright.ir.program import Op


class Policy(Enum):
    """From what keeps most to what keeps least, each called as JAX calls it."""

    EVERYTHING = ""
    DOTS = "dots_saveable"
    PLAIN_DOTS = "dots_with_no_batch_dims_saveable"
    NOTHING = "nothing_saveable"

    def keeps(self, op: Op) -> bool:
        """Whether the results of an op are kept where they are needed."""
        if self is Policy.EVERYTHING:
            return True
        dot = op.kind == "dot_general" and self is not Policy.NOTHING
        return dot and (self is Policy.DOTS or not _has_batch(op))


def _has_batch(op: Op) -> bool:
    """Some factor lies on both operands and the result."""
    left, right, out = ({f for dim in dims for f in dim} for dims in (*op.rule.operands[:2], op.rule.results[0]))
    return any(op.rule.sizes[f] > 1 for f in left & right & out)

"""Functions that JAX ships with a sharding rule which says other than what their own ``partition`` takes.

``ir.own_rules`` has the rule that is taken in its place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Misdescribed:
    """A function by the name of its implementation, what holds of it, and on what evidence.

    ``layout_at``: which of its static arguments says in which order a tensor's dimensions are, 1 for heads first.
    """

    name: str
    backward: bool
    layout_at: int
    what: str
    evidence: str


_WHAT = "sequences and heads of queries, keys, values and results are split together, and nothing else is"
_EVIDENCE = (
    "jax._src.cudnn.fused_attention_stablehlo of jax 0.10.2 and 0.12: {} ties no dimension of the keys to one of the "
    "queries, and lets the positions of the queries be split; _check_qkv_bias_mask_spec, which the partition calls, "
    "raises for either ('Query, key and value should have same sharding.', 'Sharding on sequence dim is not allowed.')."
)
CUDNN_ATTENTION = {
    record.name: record
    for record in (
        Misdescribed("_dot_product_attention_fwd_impl", False, 5, _WHAT, _EVIDENCE.format("_fwd_shardy_rule")),
        Misdescribed("_dot_product_attention_bwd_impl", True, 5, _WHAT, _EVIDENCE.format("_bwd_shardy_rule")),
    )
}

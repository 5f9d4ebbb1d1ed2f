"""``plan.explain``: why a plan is as it is, and what the alternatives would cost."""

from shardwright.explain.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]

"""Why a plan is as it is: explanations, differences between plans, and the plan as plain Python."""

from shardwright.explain.difference import Difference, diff
from shardwright.explain.explanation import Explanation, explain
from shardwright.explain.python import to_python

__all__ = ["Difference", "Explanation", "diff", "explain", "to_python"]

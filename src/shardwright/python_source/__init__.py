"""``plan.to_python``: the plan as Python to paste."""

from shardwright.python_source.source import to_python

__all__ = ["to_python"]

"""Plans: decisions about a function on a mesh, what they imply, and how to run it so."""

from shardwright.plan.plan import Plan, make_plan

__all__ = ["Plan", "make_plan"]

"""The space of decisions: what can be said about a program, by a person, a tactic or a search."""

from shardwright.request import Decision, Whole
from shardwright.space.decisions import Decisions, describe, resolve
from shardwright.space.pinned import implied_decisions
from shardwright.space.tactics import TACTICS, expand

__all__ = ["TACTICS", "Decision", "Decisions", "Whole", "describe", "expand", "implied_decisions", "resolve"]

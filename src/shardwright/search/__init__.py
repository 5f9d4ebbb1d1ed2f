"""The search: from what there is to decide to the best state under a memory limit."""

from shardwright.search.actions import Actions, Pruned, find_actions
from shardwright.search.scores import Milestone
from shardwright.search.search import Outcome, Search, find_state
from shardwright.search.space import Space, parameters_of

__all__ = [
    "Actions",
    "Milestone",
    "Outcome",
    "Pruned",
    "Search",
    "Space",
    "find_actions",
    "find_state",
    "parameters_of",
]

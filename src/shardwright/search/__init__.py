"""The search: from what there is to decide to the best state under a memory limit."""

from shardwright.search.actions import Actions, Pruned, find_actions
from shardwright.search.scores import Milestone
from shardwright.search.search import Outcome, Search, find_state
from shardwright.search.space import Keepers, Space, find_keepers

__all__ = [
    "Actions",
    "Keepers",
    "Milestone",
    "Outcome",
    "Pruned",
    "Search",
    "Space",
    "find_actions",
    "find_keepers",
    "find_state",
]

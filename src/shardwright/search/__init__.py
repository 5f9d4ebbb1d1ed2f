"""The search: from what there is to decide to the best state under a memory limit."""

from shardwright.search.actions import Actions, Kept, Pruned, find_actions
from shardwright.search.glance import Glance
from shardwright.search.scores import Milestone
from shardwright.search.search import Outcome, Search, find_state
from shardwright.search.simplify import AS_GOOD, complexity, without_idle
from shardwright.search.space import Keepers, Space, find_keepers

__all__ = [
    "AS_GOOD",
    "Actions",
    "Glance",
    "Keepers",
    "Kept",
    "Milestone",
    "Outcome",
    "Pruned",
    "Search",
    "Space",
    "complexity",
    "find_actions",
    "find_keepers",
    "find_state",
    "without_idle",
]

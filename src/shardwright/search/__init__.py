"""The search: from what there is to decide to the best state under a memory limit."""

from shardwright.search.actions import Actions, Pruned, find_actions
from shardwright.search.game import Keepers, Space, find_keepers
from shardwright.search.improve import LocalSearch
from shardwright.search.scores import Milestone, Watch
from shardwright.search.search import Outcome, Search, find_state
from shardwright.search.simpler import AS_GOOD, complexity, without_idle
from shardwright.space.pinned import Kept

__all__ = [
    "AS_GOOD",
    "Actions",
    "Keepers",
    "Kept",
    "LocalSearch",
    "Milestone",
    "Outcome",
    "Pruned",
    "Search",
    "Space",
    "Watch",
    "complexity",
    "find_actions",
    "find_keepers",
    "find_state",
    "without_idle",
]

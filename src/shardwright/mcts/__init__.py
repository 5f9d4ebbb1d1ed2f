"""Monte Carlo tree search for one player, who may start and stop anywhere; it knows nothing of what is played."""

from shardwright.mcts.base import Game, Settings
from shardwright.mcts.search import Result, search

__all__ = ["Game", "Result", "Settings", "search"]

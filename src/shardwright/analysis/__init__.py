"""The static analysis: which dimensions are sharded together, where that conflicts, and what is left to decide."""

from shardwright.analysis.analysis import Analysis, analyse_program

__all__ = ["Analysis", "analyse_program"]

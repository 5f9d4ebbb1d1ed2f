"""The proof benchmark: our plans beside those of others, all judged by one TPU compiler.

A *case* is a model on a slice of TPUs with a limit of memory; a *contender* decides its shardings. Every contender runs
in a process of its own, in one of two virtual environments that the benchmark makes, so that all programs are compiled
by the same libtpu: the last one that still had XLA's own auto-sharding.
"""

from benchmarks.contenders.cases import CASES, Case, choose_cases
from benchmarks.contenders.contender import CONTENDERS, Contender, choose_contenders

__all__ = ["CASES", "CONTENDERS", "Case", "Contender", "choose_cases", "choose_contenders"]

"""What else could have decided: experts, an integer program, a search without conflicts, and brute force.

All of them work on the same program and are priced by the same cost model as our own search.
"""

from benchmarks.baselines.automap import automap
from benchmarks.baselines.base import Baseline
from benchmarks.baselines.exhaustive import exhaustive
from benchmarks.baselines.experts import experts
from benchmarks.baselines.integer_program import integer_program

__all__ = ["Baseline", "automap", "exhaustive", "experts", "integer_program"]

"""Front ends: each turns a program in some form into the partitioning IR."""

from shardwright.frontend.stablehlo import StableHLO, read_stablehlo, stablehlo_program
from shardwright.frontend.trace import trace

__all__ = ["StableHLO", "read_stablehlo", "stablehlo_program", "trace"]

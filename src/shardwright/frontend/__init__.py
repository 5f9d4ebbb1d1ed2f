"""Front ends: each turns a program in some form into the partitioning IR."""

from shardwright.frontend.stablehlo import read_stablehlo
from shardwright.frontend.trace import trace

__all__ = ["read_stablehlo", "trace"]

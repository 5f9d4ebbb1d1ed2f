"""The partitioning IR: programs as plain data, with a sharding rule for every op."""

from shardwright.ir.program import Argument, Loop, Op, Program, Region, Source, Value
from shardwright.ir.rules import Rule

__all__ = ["Argument", "Loop", "Op", "Program", "Region", "Rule", "Source", "Value"]

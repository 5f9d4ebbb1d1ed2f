"""Tuning: the compiler corrects the prices of one program, chooses among plans, and among its own options."""

from shardwright.tune.judge import Judge, compiled_by
from shardwright.tune.loop import tune_plan

__all__ = ["Judge", "compiled_by", "tune_plan"]

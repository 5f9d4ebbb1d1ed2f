"""Shardwright: an automatic partitioner for JAX programs."""

from shardwright import _start  # noqa: F401 (first: Ctrl-C during the imports below)
from shardwright._version import __version__
from shardwright.analyse import analyse
from shardwright.analysis import Analysis
from shardwright.compare import Comparison, compare
from shardwright.devices import Device, Link
from shardwright.difference import diff
from shardwright.errors import (
    CompilerMissingError,
    DeviceError,
    InfeasibleError,
    MeshError,
    ModuleError,
    PinError,
    PlanError,
    PlanWarning,
    RuleError,
    ShardwrightError,
    TargetError,
    TraceError,
    UnsupportedJaxError,
)
from shardwright.evaluate import evaluate, load
from shardwright.fit import Fit, fit
from shardwright.front import Front
from shardwright.frontend import StableHLO, read_stablehlo
from shardwright.pareto import pareto
from shardwright.partition import partition
from shardwright.plan import Plan
from shardwright.price import Estimate
from shardwright.problem import Problem
from shardwright.space import Decision, Whole

analyze = analyse

__all__ = [
    "Analysis",
    "Comparison",
    "CompilerMissingError",
    "Decision",
    "Device",
    "DeviceError",
    "Estimate",
    "Fit",
    "Front",
    "InfeasibleError",
    "Link",
    "MeshError",
    "ModuleError",
    "PinError",
    "Plan",
    "PlanError",
    "PlanWarning",
    "Problem",
    "RuleError",
    "ShardwrightError",
    "StableHLO",
    "TargetError",
    "TraceError",
    "UnsupportedJaxError",
    "Whole",
    "__version__",
    "analyse",
    "analyze",
    "compare",
    "diff",
    "evaluate",
    "fit",
    "load",
    "pareto",
    "partition",
    "read_stablehlo",
]

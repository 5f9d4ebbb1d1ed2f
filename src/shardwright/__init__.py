"""Shardwright: an automatic partitioner for JAX programs."""

from shardwright.analyse import analyse
from shardwright.analysis import Analysis
from shardwright.errors import (
    ModuleError,
    RuleError,
    ShardwrightError,
    TargetError,
    TraceError,
    UnsupportedJaxError,
)

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "ModuleError",
    "RuleError",
    "ShardwrightError",
    "TargetError",
    "TraceError",
    "UnsupportedJaxError",
    "__version__",
    "analyse",
]

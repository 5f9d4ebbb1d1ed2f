"""What a partitioned program costs on a device: seconds of compute and communication, bytes of memory."""

from shardwright.cost.estimate import Estimate, make_estimate
from shardwright.cost.model import Cost, CostModel
from shardwright.cost.prices import DevicePrices

__all__ = ["Cost", "CostModel", "DevicePrices", "Estimate", "make_estimate"]

"""What a state of a program costs on a mesh of devices: how every value lies, how every op runs, seconds and bytes."""

from shardwright.price.breakdown import make_estimate
from shardwright.price.cost_model import Cost, CostModel
from shardwright.price.estimate import Estimate
from shardwright.price.partitioned import Collective, Partitioned, partition_program
from shardwright.price.prices import DevicePrices
from shardwright.price.shardings import Places
from shardwright.price.ways import Prices

__all__ = [
    "Collective",
    "Cost",
    "CostModel",
    "DevicePrices",
    "Estimate",
    "Partitioned",
    "Places",
    "Prices",
    "make_estimate",
    "partition_program",
]

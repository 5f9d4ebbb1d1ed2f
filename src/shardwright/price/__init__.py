"""What a state of a program costs on a mesh of devices: how every value lies, how every op runs, seconds and bytes."""

from shardwright.price.estimate import Estimate, make_estimate
from shardwright.price.model import Cost, CostModel
from shardwright.price.partitioned import Collective, Partitioned, partition_program
from shardwright.price.prices import DevicePrices
from shardwright.price.shardings import Places
from shardwright.price.state import Entry, MeshShape, Sharding, State, keep_whole
from shardwright.price.weights import Prices

__all__ = [
    "Collective",
    "Cost",
    "CostModel",
    "DevicePrices",
    "Entry",
    "Estimate",
    "MeshShape",
    "Partitioned",
    "Places",
    "Prices",
    "Sharding",
    "State",
    "keep_whole",
    "make_estimate",
    "partition_program",
]

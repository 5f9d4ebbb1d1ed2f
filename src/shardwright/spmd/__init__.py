"""From a state to the sharding of every value, how every op runs, and the collectives that this implies."""

from shardwright.spmd.partitioned import Collective, Partitioned, partition_program
from shardwright.spmd.prices import Prices
from shardwright.spmd.shardings import Places
from shardwright.spmd.state import Entry, MeshShape, Sharding, State, keep_whole

__all__ = [
    "Collective",
    "Entry",
    "MeshShape",
    "Partitioned",
    "Places",
    "Prices",
    "Sharding",
    "State",
    "keep_whole",
    "partition_program",
]

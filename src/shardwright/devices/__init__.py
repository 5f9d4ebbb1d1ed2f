"""Devices and what joins them: the figures that costs are made of."""

from shardwright.devices.device import AxisLink, Device, KernelCosts, Link
from shardwright.devices.find import find_device
from shardwright.devices.links import Part, axis_links, axis_parts, joined, slice_shares
from shardwright.devices.presets import PRESETS
from shardwright.devices.sizes import parse_bytes

__all__ = [
    "PRESETS",
    "AxisLink",
    "Device",
    "KernelCosts",
    "Link",
    "Part",
    "axis_links",
    "axis_parts",
    "find_device",
    "joined",
    "parse_bytes",
    "slice_shares",
]

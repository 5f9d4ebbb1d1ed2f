"""Devices for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardwright._amounts import human_bytes
from shardwright.devices.device import Device, Link


def devices_table(devices: Iterable[Device]) -> RenderableType:
    """One line for each device."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device", no_wrap=True)
    for column in ("TFLOP/s", "of", "usable", "of memory", "GB/s"):
        table.add_column(column, justify="left" if column == "of" else "right", no_wrap=True)
    table.add_column("links, GB/s one way", overflow="fold")
    for device in devices:
        dtype = max(("bf16", "f16", "f32"), key=lambda dtype: device.flops_per_second.get(dtype, 0))
        table.add_row(
            Text(device.name, style="cyan"),
            f"{device.flops_per_second[dtype] / 1e12:,.4g}",
            dtype,
            human_bytes(device.usable_bytes),
            human_bytes(device.memory_bytes),
            f"{device.memory_bytes_per_second / 1e9:,.0f}",
            ", ".join(map(_link, device.links)),
        )
    note = (
        "Each is one device as JAX counts them: a core of a v3 chip, a chiplet of a 7x chip, otherwise a chip or a GPU."
    )
    return Group(table, Text(), Text(note, style="dim"))


def _link(link: Link) -> str:
    shape = f", {link.torus_dimensions}D torus" if link.torus_dimensions else ""
    reach = f" ({link.devices:,} devices{shape})" if link.devices else ""
    return f"{link.name} {link.bytes_per_second / 1e9:.4g}{reach}"

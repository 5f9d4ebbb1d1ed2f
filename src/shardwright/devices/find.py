"""The device that a caller means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from shardwright.devices.device import Device
from shardwright.devices.presets import PRESETS, cpu_device
from shardwright.errors import DeviceError, nearest

_KINDS = {
    "TPU v3": "tpu-v3",
    "TPU v4": "tpu-v4",
    "TPU v5 lite": "tpu-v5e",
    "TPU v5e": "tpu-v5e",
    "TPU v5": "tpu-v5p",
    "TPU v5p": "tpu-v5p",
    "TPU v6 lite": "tpu-v6e",
    "TPU v6e": "tpu-v6e",
    "TPU7x": "tpu-7x",
    "Tesla P100-SXM2-16GB": "p100",
    "Tesla V100-SXM2-16GB": "v100",
    "Tesla V100-SXM2-32GB": "v100",
    "NVIDIA A100-SXM4-40GB": "a100-40",
    "NVIDIA A100-SXM4-80GB": "a100-80",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA B200": "b200",
}
"""JAX's ``device_kind``. Modules on PCIe cards are slower and have no NVLink, so they have no preset."""


def find_device(device: str | Device | None = None) -> Device:
    """A device by its preset's name, or as it is; None stands for that of JAX's default backend."""
    if device is None:
        return _default_device()
    if isinstance(device, Device):
        return device
    found = PRESETS.get(device) if isinstance(device, str) else None
    if found is None:
        hint = nearest(str(device), list(PRESETS)) or f"; known devices: {', '.join(PRESETS)}"
        raise DeviceError(f"there is no device {device!r}{hint}.")
    return found


def default_backend() -> str:
    """What JAX runs on here; JAX asks for it even to trace a function for something else."""
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()
        raise DeviceError(
            f"JAX cannot run on what JAX_PLATFORMS names ({reason[0] if reason else 'it is not there'}); planning "
            "needs no accelerator: set JAX_PLATFORMS=cpu, and give device= what to plan for."
        ) from error


def _default_device() -> Device:
    """The preset of this process's devices, with as much memory as the runtime grants here."""
    default_backend()
    devices = jax.local_devices()
    first: Any = devices[0]
    if first.platform == "cpu":
        return cpu_device(len(devices))
    name = _KINDS.get(first.device_kind)
    if name is None:
        raise DeviceError(
            f"no preset describes this backend's {first.device_kind!r}; give device= one of {', '.join(PRESETS)}, "
            "or describe it as Device(...)."
        )
    granted = (first.memory_stats() or {}).get("bytes_limit")
    if not granted:
        return PRESETS[name]
    return replace(PRESETS[name], memory_bytes=max(granted, PRESETS[name].memory_bytes), usable_bytes=granted)

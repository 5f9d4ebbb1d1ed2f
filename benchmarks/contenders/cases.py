"""What is partitioned, on what, and within how much memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shardwright.errors import TargetError
from shardwright.models import build
from shardwright.models.model import Program
from shardwright.models.sizes import suggestion
from shardwright.request.targets import Target, parse_target


@dataclass(frozen=True)
class Case:
    """A model of some sizes on a mesh of a target's devices.

    ``tight_gib`` is what may be used of a device's memory, in whole GiB, as XLA's auto-sharding is told it; None for
    all that the device has.
    """

    name: str
    model: str
    sizes: Mapping[str, Any]
    target_name: str
    mesh: Mapping[str, int]
    tight_gib: int | None = None
    quick: bool = field(default=False, compare=False)

    @property
    def target(self) -> Target:
        """The devices."""
        return parse_target(self.target_name)

    @property
    def limit_bytes(self) -> int:
        """What a plan may take of a device."""
        return self.target.device.usable_bytes if self.tight_gib is None else self.tight_gib * 2**30

    def build(self) -> Program:
        """The function, its arguments and what it donates."""
        return build(self.model, **self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """All that its results depend on, of JSON's types alone."""
        return {
            "name": self.name,
            "model": self.model,
            "sizes": dict(self.sizes),
            "target": self.target_name,
            "mesh": dict(self.mesh),
            "tight_gib": self.tight_gib,
        }

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Case:
        """The inverse of ``to_dict``."""
        return cls(given["name"], given["model"], given["sizes"], given["target"], given["mesh"], given["tight_gib"])


_V5E_16, _V5E_64 = ("tpu:v5e:4x4", {"data": 4, "model": 4}), ("tpu:v5e:8x8", {"data": 8, "model": 8})
_V3_16 = ("tpu:v3:4x4", {"data": 8, "model": 4})  # 16 chips of two cores, each of which is a device
_V5P_16, _V5P_64 = ("tpu:v5p:2x2x4", {"data": 4, "model": 4}), ("tpu:v5p:4x4x4", {"data": 16, "model": 4})

# Models whose layers are written out, not scanned, are shorter than by default: they take compilers long.
_UNET = {"levels": 2, "attention_levels": 1, "blocks": 1, "width": 128, "batch": 128}
_LONG = {"batch": 2, "sequence": 16384, "heads": 4, "kv_heads": 4, "head_dim": 512}

_ALL = (
    Case("mlp v5e-16", "mlp", {}, *_V5E_16, quick=True),
    Case("gpt v5e-16", "gpt", {}, *_V5E_16),
    Case("gpt v5e-16 tight", "gpt", {}, *_V5E_16, tight_gib=3),
    Case("gemma-2b v5e-16", "gpt", {"preset": "gemma-2b"}, *_V5E_16),
    Case("gemma-2b v3-16 tight", "gpt", {"preset": "gemma-2b"}, *_V3_16, tight_gib=4),
    Case("gemma-7b v5e-64", "gpt", {"preset": "gemma-7b", "batch": 64}, *_V5E_64),
    Case("gemma-7b v5p-64", "gpt", {"preset": "gemma-7b", "batch": 64}, *_V5P_64),
    Case("long context v5e-16", "gpt", _LONG, *_V5E_16),
    Case("decode v5e-16", "itx", {}, *_V5E_16, quick=True),
    Case("decode v5p-16 tight", "itx", {}, *_V5P_16, tight_gib=6),
    Case("moe v5e-16", "moe", {"layers": 2}, *_V5E_16),
    Case("moe v5p-64", "moe", {"layers": 2}, *_V5P_64),
    Case("vit v3-16", "vit", {}, *_V3_16),
    Case("vit v5p-64 tight", "vit", {}, *_V5P_64, tight_gib=1),
    Case("gns v5e-16", "gns", {"steps": 3}, *_V5E_16),
    Case("gns v3-16 tight", "gns", {"steps": 3}, *_V3_16, tight_gib=1),
    Case("unet v5e-16", "unet", _UNET, *_V5E_16),
)

CASES: Mapping[str, Case] = MappingProxyType({case.name: case for case in _ALL})
"""Every case by name, in the order in which they run."""


def choose_cases(only: Sequence[str] = (), *, quick: bool = False) -> tuple[Case, ...]:
    """The cases of these names, or with these in their names; without any, the quick ones or all."""
    if not only:
        return tuple(case for case in CASES.values() if case.quick or not quick)
    chosen: set[str] = set()
    for part in only:
        found = {part} & CASES.keys() or {name for name in CASES if part in name}
        if not found:
            raise TargetError(f"There is no case {part!r}; {suggestion(part, CASES)}")
        chosen |= found
    return tuple(case for name, case in CASES.items() if name in chosen)

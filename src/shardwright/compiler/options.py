"""Options of XLA that a plan needs to be carried out as it was meant.

``xla_tpu_user_reserved_hbm_bytes``: the TPU compiler takes what a device has, and economises only where that is short.
Told that some of it is another's, it economises sooner: a training step of an MLP (4 layers of 8,192, batch 270,336,
FSDP over 8 v5e) takes 10.80 GiB of 15.75, 8.23 with 6 GiB reserved, and 7.72 with 8 (libtpu of jax 0.10.2).
"""

from __future__ import annotations

RESERVED = "xla_tpu_user_reserved_hbm_bytes"


def options_within(platform: str, usable_bytes: int, limit_bytes: int) -> dict[str, str]:
    """Options that keep a program within a limit of memory below what a device has; none where there is no need."""
    spare = usable_bytes - limit_bytes
    return {RESERVED: str(spare)} if platform == "tpu" and spare > 0 else {}

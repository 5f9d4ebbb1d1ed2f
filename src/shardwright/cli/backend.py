"""Which devices JAX looks for here."""

from __future__ import annotations

import jax


def need_no_accelerator() -> None:
    """Have JAX look for none, whatever ``JAX_PLATFORMS`` says.

    To plan for a device takes none. Where its libraries are installed and it is not there, looking for one fails, or
    takes seconds and prints warnings; where it is there, it would be taken from who uses it.
    """
    jax.config.update("jax_platforms", "cpu")

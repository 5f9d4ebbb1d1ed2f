"""Which devices JAX looks for here."""

from __future__ import annotations

import jax


def need_no_accelerator() -> None:
    """Have JAX look for none, unless the user has said where it shall run.

    To plan for a device takes none. Where its libraries are installed and it is not there, looking for one takes
    seconds and prints warnings; where it is there, it would be taken from who uses it.
    """
    if not getattr(jax.config, "jax_platforms", None):
        jax.config.update("jax_platforms", "cpu")

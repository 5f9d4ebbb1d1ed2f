"""Exit codes."""

from shardwright._start import INTERRUPTED

__all__ = ["DOES_NOT_FIT", "INTERRUPTED", "MISTAKE", "NOBODY_READS", "TERMINATED"]

MISTAKE = 2
"""A mistake in the call, or something outside that is missing, full or not permitted."""
DOES_NOT_FIT = 3
"""No plan that fits, or a check that says so."""
NOBODY_READS = 141
"""Who read standard output has gone, as head does; as shells count SIGPIPE."""
TERMINATED = 143
"""SIGTERM, as shells count it."""

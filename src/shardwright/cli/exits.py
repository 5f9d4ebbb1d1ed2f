"""Exit codes."""

MISTAKE = 2
"""A mistake in the call."""
DOES_NOT_FIT = 3
"""No plan that fits, or a check that says so."""
INTERRUPTED = 130
"""Ctrl-C, as shells count it."""

"""The command line."""

from shardwright.cli.main import main

__all__ = ["main"]

"""``python -m shardwright``."""

from shardwright.cli import main

main(prog_name="shardwright")

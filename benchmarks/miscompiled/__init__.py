"""Ops that XLA's partitioner gets wrong: a matrix of real runs. ``python -m benchmarks.miscompiled --help``."""

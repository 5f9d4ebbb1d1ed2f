"""Set up before JAX starts: tests run on eight CPU devices, whatever else is installed."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

from collections import defaultdict

import jax
import pytest
from hypothesis import settings

from shardwright.compiler import margins
from shardwright.compiler.margins import Margin

# Compilers' optimizations take longer than the few steps that they would speed up. Children are left alone: what a
# compiler makes of a plan is measured there.
jax.config.update("jax_disable_most_optimizations", True)

# The same examples in every run, so that a test fails because of a change and not because of luck;
# pytest --hypothesis-profile=thorough looks further.
settings.register_profile("repeatable", max_examples=150, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=3000, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="module")
def exact_estimates():
    """Estimates of memory that are never off: for tests of what follows from them, with limits worked out by hand."""
    exact = Margin(1.0, 1.0, 0, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(margins, "margins", lambda: defaultdict(lambda: defaultdict(lambda: exact)))
        yield

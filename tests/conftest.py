"""Set up before JAX starts: tests run on eight CPU devices, whatever else is installed."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

from hypothesis import settings

# The same examples in every run, so that a test fails because of a change and not because of luck;
# pytest --hypothesis-profile=thorough looks further.
settings.register_profile("repeatable", max_examples=150, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=3000, deadline=None)
settings.load_profile("repeatable")

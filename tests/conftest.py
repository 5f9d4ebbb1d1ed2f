"""Set up before JAX starts: tests run on the CPU, whatever else is installed."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

"""What fits: the largest size of a dimension on a mesh, and the smallest number of devices for a program."""

from shardwright.fit.fit import fit
from shardwright.fit.found import Fit, Tried

__all__ = ["Fit", "Tried", "fit"]

"""Floating-point operations of the contractions: the multiplications and additions of dots and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.ir.rules import Rule


def dot_flops(rule: Rule) -> int:
    """Two per point of the iteration space: ``2 · Π factor sizes``; none where one operand only scales the other."""
    return 0 if _scales(rule) else 2 * math.prod(rule.sizes)


def _scales(rule: Rule) -> bool:
    """Whether nothing is summed up and one operand has no dimension of its own, such as ``bhqk,h->bhqk``.

    XLA has an elementwise multiplication for it (``AlgebraicSimplifier``, dot strength reduction).
    """
    left, right = ({f for dim in dims for f in dim} for dims in rule.operands[:2])
    return not rule.reduction and (left <= right or right <= left)


@dataclass(frozen=True)
class Window:
    """One spatial dimension of a convolution."""

    size_in: int
    size_out: int
    taps: int
    stride: int = 1
    pad_low: int = 0
    dilation_in: int = 1
    dilation_taps: int = 1


def convolution_flops(results_per_point: int, features_in: int, windows: Sequence[Window]) -> int:
    """``2 · (outputs at one position) · (input features of one group) · Π pairs``.

    ``pairs`` counts, for each spatial dimension, the (output position, tap) combinations that read an input element
    and not padding or a hole of the dilation, as XLA's HloCostAnalysis::HandleConvolution counts them.
    """
    return 2 * results_per_point * features_in * math.prod(map(_pairs, windows))


def _pairs(window: Window) -> int:
    position = (
        np.arange(window.size_out)[:, None] * window.stride
        + np.arange(window.taps)[None, :] * window.dilation_taps
        - window.pad_low
    )
    inside = (position >= 0) & (position <= (window.size_in - 1) * window.dilation_in)
    return int(np.count_nonzero(inside & (position % window.dilation_in == 0)))

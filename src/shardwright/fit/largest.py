"""The largest size that fits, found by asking about few sizes."""

from __future__ import annotations

from collections.abc import Callable

Ask = Callable[[int], bool | None]
"""Whether a size fits; None where there is no such size."""

_MOST_DOUBLINGS = 20
_COARSE, _FINE = 8, 64
"""A step is too coarse where the answer is less than so many of them, and needlessly fine where it is more."""


def largest(ask: Ask, given: int, step: int) -> int | None:
    """The largest multiple of a step that fits, within a 64th, or of a part of the step where that is too coarse.

    None if none does. ``given`` is asked about first and may be the answer whatever the step. Sizes are doubled up to
    one that does not fit, or halved down to one that does; what lies between is halved. Larger sizes are taken to need
    more, but what is returned was asked about.
    """
    low, high = _bounds(ask, given, step)
    while low is not None and high is not None:
        low, high = _narrowed(ask, low, high, step)
        if step == 1 or low >= _COARSE * step:
            break
        step //= _smallest_prime(step)
    return low


def _bounds(ask: Ask, given: int, step: int) -> tuple[int | None, int | None]:
    """A size that fits and a larger one that does not, where there are such."""
    if ask(given):
        low = given
        for _ in range(_MOST_DOUBLINGS):
            high = _down(2 * low, step)
            if not ask(high):
                return low, high
            low = high
        return low, None
    high = given
    while (smaller := _down(high // 2, step)) > 0:
        if ask(smaller):
            return smaller, high
        high = smaller
    return None, high


def _narrowed(ask: Ask, low: int, high: int, step: int) -> tuple[int, int]:
    """The largest multiple of the step below ``high`` that fits, and the next above it, which does not."""
    while high - low > low // _FINE and (inside := _inside(low, high, step)) is not None:
        answer = ask(inside)
        if answer is None:
            # There is no such size: look for one on either side of it.
            below, above = inside, inside
            while answer is None:
                below, above = below - step, above + step
                if below <= low and above >= high:
                    return low, high
                inside, answer = above, ask(above) if above < high else None
                if answer is None:
                    inside, answer = below, ask(below) if below > low else None
        low, high = (inside, high) if answer else (low, inside)
    return low, high


def _inside(low: int, high: int, step: int) -> int | None:
    """The multiple of the step nearest to the middle, if there is one between."""
    middle = (low + high) // 2 // step * step
    return next((n for n in (middle, middle + step) if low < n < high), None)


def _down(size: int, step: int) -> int:
    """The multiple of the step at or below a size; below the step, the size itself."""
    return size // step * step if size >= step else size


def _smallest_prime(number: int) -> int:
    return next((p for p in range(2, int(number**0.5) + 1) if number % p == 0), number)

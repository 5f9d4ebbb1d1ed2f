"""The form of a record: one behaviour of XLA, where it applies, what it does to a price, and how it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

E = TypeVar("E")

TPU, GPU, CUDA, CPU = frozenset({"tpu"}), frozenset({"cuda", "rocm"}), frozenset({"cuda"}), frozenset({"cpu"})
EVERYWHERE = TPU | GPU | CPU
"""Platforms, as JAX calls them when it lowers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Behaviour(Generic[E]):
    """Something that XLA does, or JAX on the way to it, and that a price or a plan depends on.

    Attributes:
        name: A few words to call it by.
        what: What the compiler does, in whole sentences.
        evidence: What was measured or seen, and with which versions.
        tests: The tests that hold it, as ``test_file.py::test_name``.
        where: What asks for the effect, or carries it out, as ``module.name`` inside the package.
        effect: What is asked for: figures, a function, or True. None where the behaviour is a way to go through a
            program, which ``where`` names.
        otherwise: The same where the record does not apply.
        platforms: Where it applies.
        generations: Names of devices without their platform (``v5e``) to which it is confined, if it is.
        ops: The kinds of ops that it is about; none where it is about all.

    """

    name: str
    what: str
    evidence: str
    tests: tuple[str, ...]
    where: tuple[str, ...]
    effect: E
    otherwise: E
    platforms: frozenset[str] = EVERYWHERE
    generations: frozenset[str] | None = None
    ops: tuple[str, ...] = ()

    def applies(self, platform: str | None, generation: str = "") -> bool:
        """Whether it is what a platform's compiler does; of an unknown platform, whether all of them do it."""
        if platform is None:
            return self.platforms == EVERYWHERE and self.generations is None
        return platform in self.platforms and (self.generations is None or generation in self.generations)


@dataclass(frozen=True, eq=False)
class Compiler:
    """The behaviours of one compiler. ``compiler[RECORD]`` is the record's effect, or what holds otherwise."""

    behaviours: frozenset[Behaviour[Any]]

    def __getitem__(self, behaviour: Behaviour[E]) -> E:
        return behaviour.effect if behaviour in self.behaviours else behaviour.otherwise


def everywhere(
    name: str,
    what: str,
    *,
    effect: E,
    evidence: str,
    tests: tuple[str, ...],
    where: tuple[str, ...],
    ops: tuple[str, ...] = (),
) -> Behaviour[E]:
    """A behaviour of every platform's compiler."""
    return Behaviour(
        name=name, what=what, evidence=evidence, tests=tests, where=where, ops=ops, effect=effect, otherwise=effect
    )


def structural(
    name: str,
    what: str,
    *,
    evidence: str,
    tests: tuple[str, ...],
    where: tuple[str, ...],
    ops: tuple[str, ...] = (),
) -> Behaviour[None]:
    """A behaviour of every platform's compiler that is a way to go through a program, without figures."""
    return everywhere(name, what, effect=None, evidence=evidence, tests=tests, where=where, ops=ops)

"""What a program looks like from outside and inside, in a few lines: enough to tell whether a plan was made for it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax

from shardwright.ir.program import Program

_EVERYWHERE = ("dot_general", "convolution")
"""Ops that a program has whatever it is lowered for; many others come and go with the platform and JAX's version."""
_MOST_TOLD = 2


@dataclass(frozen=True)
class Fingerprint:
    """A program's arguments and their types, its results by type, its ops by kind, and a digest of its structure.

    ``made_with`` tells the platform and the versions: the digest, and most kinds, can be compared where it is equal.
    """

    made_with: str
    arguments: Mapping[str, str]
    results: Mapping[str, int]
    ops: Mapping[str, int]
    digest: str

    def to_dict(self) -> dict[str, object]:
        """Of JSON's types alone."""
        return dataclasses.asdict(self)


def fingerprint(program: Program, platform: str | None) -> Fingerprint:
    """The fingerprint of a program that was lowered for a platform."""
    from shardwright import __version__

    types = [str(value) for value in program.values]
    digest = hashlib.sha256()
    for op in program.ops:
        made = [types[v] for v in op.results]
        digest.update(repr((op.kind, op.operands, made, op.regions, op.rule.operands, op.rule.results)).encode())
    for region in program.regions:
        digest.update(repr((region.parameters, region.results)).encode())
    return Fingerprint(
        f"shardwright {__version__}, jax {jax.__version__}, for {platform or 'any platform'}",
        {argument.path: types[argument.value] for argument in program.arguments},
        _counted(types[v] for v in program.regions[0].results),
        _counted(op.kind for op in program.ops),
        digest.hexdigest()[:16],
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def differences(old: Fingerprint, new: Fingerprint) -> str:
    """In what a program differs from another, as a part of a sentence; nothing if it is the same, as far as known."""
    told = list(_arguments(old.arguments, new.arguments))
    returned = _counts(old.results, new.results)
    if returned:
        told.append(f"it returns {_few(returned, 'other types in other numbers')}")
    return "; ".join(told) or _ops(old, new)


def _arguments(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    changed = [f"{path} is {new[path]} in place of {kind}" for path, kind in old.items() if new.get(path, kind) != kind]
    if changed:
        yield _few(changed, "others have other types")
    for here, there, word in ((old, new, "gone or unused"), (new, old, "new")):
        paths = [path for path in here if path not in there]
        if paths:
            verb = "is" if len(paths) == 1 else "are"
            yield f"the argument{'s' * (len(paths) > 1)} {_few(paths, 'more')} {verb} {word}"


def _ops(old: Fingerprint, new: Fingerprint) -> str:
    alike = old.made_with == new.made_with
    kinds = {*old.ops, *new.ops} if alike else _EVERYWHERE
    counts = _counts(*({kind: ops[kind] for kind in ops if kind in kinds} for ops in (old.ops, new.ops)))
    if counts:
        return f"it has {_few(counts, 'other kinds of operations in other numbers')}"
    if alike and old.digest != new.digest:
        return "it has as many operations of each kind, but in another order or of other values"
    return ""


def _counts(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    """What there is more or less of, the greatest difference first."""
    both = [(kind, old.get(kind, 0), new.get(kind, 0)) for kind in {**old, **new}]
    both.sort(key=lambda counted: -abs(counted[1] - counted[2]))
    return [f"{now} {kind} in place of {before}" for kind, before, now in both if now != before]


def _few(parts: Sequence[str], others: str) -> str:
    """Some of many, and how many more."""
    rest = len(parts) - _MOST_TOLD
    told = [*parts[:_MOST_TOLD], *([f"{rest} {others}"] if rest > 0 else [])]
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)

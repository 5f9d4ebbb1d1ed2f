"""Who decides how a program is sharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from benchmarks.contenders.environments import AUTO, JUDGE, Environment
from shardwright.errors import TargetError
from shardwright.models.sizes import suggestion

OURS, XLA = "shardwright", "xla auto-sharding"
_PRICE = (
    *(
        "*.py",
        "analysis",
        "apply",
        "compiler",
        "devices",
        "frontend",
        "ir",
        "models",
        "plan",
        "price",
        "request",
        "space",
    ),
    *("verify", "benchmarks/contenders/attempt.py", "benchmarks/contenders/match.py"),
)
_SEARCH = ("mcts", "search")
_TACTICS = ("search",)


@dataclass(frozen=True)
class Contender:
    """Something that decides.

    Attributes:
        name: As tables have it.
        summary: One line for people.
        environment: Where it runs.
        script: The module of this package that runs there.
        source: The files, as globs, and folders that its results depend on: of the package, or of `benchmarks/`.
        options: For the script.

    """

    name: str
    summary: str
    environment: Environment
    script: str
    source: tuple[str, ...]
    options: Mapping[str, int | float] = field(default_factory=dict)


_WITH_XLA = ("models", "devices", "verify", *(f"benchmarks/contenders/xla_{name}.py" for name in ("auto", "result")))

_ALL = (
    Contender(OURS, "the plan of sw.partition", JUDGE, "attempt", (*_PRICE, *_SEARCH)),
    Contender("experts", "the best expert tactics", JUDGE, "attempt", (*_PRICE, *_TACTICS), {"most": 2}),
    Contender(XLA, "XLA's own, as AUTO(mesh) of jax 0.10.0 gives it", AUTO, "xla_auto", _WITH_XLA),
    Contender(
        "integer program",
        "an integer program over every op, as in Alpa",
        JUDGE,
        "attempt",
        (*_PRICE, "benchmarks/baselines"),
        {"seconds": 120},
    ),
    Contender(
        "automap",
        "Automap's tree search, without its learned ranker",
        JUDGE,
        "attempt",
        (*_PRICE, "benchmarks/baselines"),
        {"seconds": 60},
    ),
)

CONTENDERS: Mapping[str, Contender] = MappingProxyType({contender.name: contender for contender in _ALL})
"""Every contender by name."""


def choose_contenders(names: Sequence[str] = ()) -> tuple[Contender, ...]:
    """The contenders of these names, or all; ours is always one of them."""
    for name in names:
        if name not in CONTENDERS:
            raise TargetError(f"There is no contender {name!r}; {suggestion(name, CONTENDERS)}")
    return tuple(c for name, c in CONTENDERS.items() if not names or name in names or name == OURS)

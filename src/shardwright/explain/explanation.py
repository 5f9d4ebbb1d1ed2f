"""``plan.explain``: why an argument, or a line of the program, is sharded as it is, and what else it would cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import PartitionSpec
from rich.console import RenderableType

from shardwright._console import plain_text
from shardwright.apply import spec
from shardwright.errors import PlanError
from shardwright.explain.alternatives import Alternative, better_than_ours, find_alternatives, kept_whole
from shardwright.explain.choices import Choice, choices_at, choices_of_groups
from shardwright.explain.explanation_text import explanation_table
from shardwright.explain.moves import Moved, moved_at, moved_by_argument
from shardwright.explain.reasons import Dimension, dimension_reasons, keeper_of
from shardwright.explain.source_lines import OpKind, find_lines, ops_at
from shardwright.explain.uneven_sizes import Padded, Uneven, find_uneven, padded_tensors
from shardwright.frontend.names import leaf_paths, parameter_names
from shardwright.ir.program import Argument
from shardwright.plan.facts import ARGUMENT, REGION, OwnSharding, cost_without
from shardwright.plan.tuning import Correction, KeptOption
from shardwright.plan.words import plain
from shardwright.price.collectives import local_bytes
from shardwright.price.estimate import KernelCost
from shardwright.space.decisions import path_matches

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan


@dataclass(frozen=True)
class Tensor:
    """An argument, or several that are alike: of one type, sharded alike, for the same reasons.

    ``device_bytes`` are those of one device for one of them, ``bytes`` those of the whole. ``unused``: the result does
    not depend on it.
    """

    paths: tuple[str, ...]
    type: str
    spec: PartitionSpec
    bytes: int
    device_bytes: int
    dimensions: tuple[Dimension, ...]
    unused: bool = False
    on_host: bool = False


@dataclass(frozen=True)
class Explanation:
    """What ``plan.explain`` says; ``print`` shows it, and ``to_dict()`` gives it as plain data.

    Of an argument there are ``tensors``, ``alternatives`` (with the plan itself among them), ``collectives`` and
    ``conflicts``, and of its dimensions those that axes do not divide (``uneven``); of a source line ``ops``,
    ``kernels``, ``collectives``, ``conflicts`` and which results are ``padded``. ``left_out`` says what was not priced,
    if anything. ``own`` are shardings that the program has already there, ``step_seconds_without`` what the step would
    take without them. Of a plan that was tuned by a compiler, ``options`` are those of the compiler that were kept, and
    ``learned`` what the compiler has at a source line in place of the estimate.
    """

    about: str
    step_seconds: float
    peak_bytes: int
    limit_bytes: int
    tensors: tuple[Tensor, ...] = ()
    ops: tuple[OpKind, ...] = ()
    kernels: tuple[KernelCost, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    collectives: tuple[Moved, ...] = ()
    conflicts: tuple[Choice, ...] = ()
    uneven: tuple[Uneven, ...] = ()
    padded: tuple[Padded, ...] = ()
    left_out: str = ""
    own: tuple[OwnSharding, ...] = ()
    step_seconds_without: float | None = None
    options: tuple[KeptOption, ...] = ()
    learned: tuple[Correction, ...] = ()

    @property
    def better(self) -> Alternative | None:
        """The best of the alternatives, where the estimate prefers it to the plan."""
        return better_than_ours(self.alternatives)

    @property
    def comm_seconds(self) -> float:
        """Of the collectives, in each step."""
        return sum(c.seconds for c in self.collectives)

    @property
    def hidden_seconds(self) -> float:
        """Those of them that other work runs beside."""
        return sum(c.hidden_seconds for c in self.collectives)

    @property
    def compute_seconds(self) -> float:
        """Of the kernels, in each step."""
        return sum(k.seconds for k in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Everything, of JSON's types alone."""
        better = self.better
        return {**plain(self), "better": better.change if better else None}

    def __rich__(self) -> RenderableType:
        return explanation_table(self)

    def __str__(self) -> str:
        return plain_text(self.__rich__())


def explain(plan: Plan, path: str) -> Explanation:
    """Explain arguments (a path, a prefix or a glob) or a source line (``"model.py:120"``, a function's name)."""
    if not isinstance(path, str) or not path:
        first = plan.analysis.program.arguments[:1]
        example = f"{first[0].path!r}, " if first else ""
        raise PlanError(f"say what to explain: an argument such as {example}or a line such as 'model.py:12'.")
    program = plan.analysis.program
    arguments = [a for a in program.arguments if path_matches(path, a.path)]
    unused = [p for p in program.unused_arguments if path_matches(path, p)]
    if arguments or unused:
        return _explain_arguments(plan, path, arguments, unused)
    return _explain_line(plan, path)


def _explain_arguments(plan: Plan, path: str, arguments: list[Argument], unused: list[str]) -> Explanation:
    cost, names = plan.estimate_cost, plan.partitioned.mesh.names
    program = plan.analysis.program
    places = plan.partitioned.places
    alike: dict[Any, list[Argument]] = defaultdict(list)
    for a in arguments:
        keepers = tuple(keeper_of(plan, axis, a.path) for axis in names)
        alike[str(program.values[a.value]), places.of_value[a.value], places.pairs(a.value), keepers].append(a)
    tensors = [_tensor(plan, found) for found in alike.values()]
    alternatives: tuple[Alternative, ...] = ()
    if len(tensors) == 1:
        alternatives = find_alternatives(plan, arguments[0], tensors[0].dimensions, path)
    elif tensors:
        used = {axis for t in tensors for d in t.dimensions for axis in d.axes}
        alternatives = kept_whole(plan, arguments[0], path, [axis for axis in plan.mesh if axis in used])
    groups = dict.fromkeys(g for _, own, *_ in alike for g in own if g >= 0)
    split = any(d.axes for t in tensors for d in t.dimensions)
    priced_whole = any(a.change.startswith(f"{path} whole on ") for a in alternatives)
    return Explanation(
        path,
        cost.step_seconds,
        cost.peak_bytes,
        plan.memory_bytes,
        tensors=(*tensors, *(_unused(plan, p) for p in unused)),
        alternatives=alternatives,
        collectives=moved_by_argument(plan, [a.value for a in arguments]),
        conflicts=choices_of_groups(plan, groups) if len(tensors) == 1 else (),
        uneven=find_uneven(plan, arguments[0], tensors[0].dimensions) if len(tensors) == 1 else (),
        left_out="" if priced_whole or not split else f"{path} whole",
        options=plan.tuning.options if plan.tuning is not None else (),
        **_own(plan, lambda own: own.what == ARGUMENT and path_matches(path, own.name)),
    )


def _own(plan: Plan, about: Callable[[OwnSharding], bool]) -> dict[str, Any]:
    """The shardings of the program's own that are asked about, and what the step would take without them."""
    own = tuple(each for each in plan.own_shardings if about(each))
    free = [each for each in own if each.what != REGION]
    return {"own": own, "step_seconds_without": cost_without(plan, free).step_seconds if free else None}


def _tensor(plan: Plan, alike: list[Argument]) -> Tensor:
    value, mesh = plan.analysis.program.values[alike[0].value], plan.partitioned.mesh
    sharding = plan.partitioned.values[alike[0].value]
    return Tensor(
        tuple(a.path for a in alike),
        str(value),
        spec(sharding, mesh.names),
        value.bytes,
        int(local_bytes(value.bytes, sharding, mesh)),
        dimension_reasons(plan, alike[0]),
        on_host=alike[0].memory_kind is not None,
    )


def _unused(plan: Plan, path: str) -> Tensor:
    leaf = jax.tree.leaves(plan.args)[leaf_paths(parameter_names(plan.fn, len(plan.args)), plan.args).index(path)]
    shape, dtype = getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf).__name__)
    size = int(getattr(leaf, "size", 1)) * int(getattr(dtype, "itemsize", 4))
    return Tensor((path,), f"{dtype}[{','.join(map(str, shape))}]", PartitionSpec(), size, size, (), True)


def _explain_line(plan: Plan, text: str) -> Explanation:
    cost, tuning = plan.estimate_cost, plan.tuning
    at = find_lines(plan.analysis.program, text)
    lines = {str(op.source) for op in plan.analysis.program.ops if at(op.source)}
    return Explanation(
        text,
        cost.step_seconds,
        cost.peak_bytes,
        plan.memory_bytes,
        ops=ops_at(plan, at),
        kernels=tuple(k for k in plan.estimate.kernels if at(k.source)),
        collectives=moved_at(plan, at),
        conflicts=choices_at(plan, at),
        padded=padded_tensors(plan, [v for op in plan.analysis.program.ops if at(op.source) for v in op.results]),
        options=tuning.options if tuning is not None else (),
        learned=tuple(c for c in tuning.corrections if c.line in lines) if tuning is not None else (),
        **_own(plan, lambda own: own.what != ARGUMENT and at(own.source)),
    )

"""What a plan says about the inside of a function: its constraints and its Pallas kernels, by source line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.sharding import PartitionSpec

from shardwright import _jax
from shardwright.apply import annotated_module, spec_text
from shardwright.apply.annotate import TAG
from shardwright.apply.specs import spec
from shardwright.ir.build import ReadModule
from shardwright.ir.program import Source, Value

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan


@dataclass(frozen=True)
class Constraint:
    """A tensor at a source line that is brought to a spec; ``what`` tells it from others of its type.

    ``bytes`` are those of the whole tensor.
    """

    source: Source
    tensor: str
    what: str
    spec: PartitionSpec
    bytes: int


def interior_constraints(plan: Plan) -> tuple[Constraint, ...]:
    """The constraints that the plan puts inside of its function, in program order, each once.

    What JAX makes of one in the backward pass, by transposing it, is not repeated.
    """
    _, module, _, _ = annotated_module(plan.sharded, plan.platform)
    found: dict[Constraint, None] = {}
    with module.module.context:

        def visit(operation: Any) -> Any:
            if operation.name == "sdy.sharding_constraint" and TAG not in operation.attributes:
                found.setdefault(_constraint(module, operation))
            return _jax.ir.WalkResult.ADVANCE

        _jax.walk(module.module.operation, visit, _jax.ir.WalkOrder.PRE_ORDER)
    forward = {_place(c) for c in found if not c.source.backward}
    return tuple(c for c in found if not c.source.backward or _place(c) not in forward)


def _place(c: Constraint) -> tuple[str, str, PartitionSpec]:
    return str(c.source), c.tensor, c.spec


def _constraint(module: ReadModule, operation: Any) -> Constraint:
    sdy, program = _jax.sdy, module.program
    dims = sdy.TensorShardingAttr(operation.attributes["sharding"]).dimension_shardings
    parts: list[Any] = []
    for dim in dims:
        axes = tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(dim).axes)
        parts.append(axes if len(axes) > 1 else axes[0] if axes else None)
    while parts and parts[-1] is None:
        parts.pop()
    maker, reader = _maker(operation), _reader(operation)
    type_ = _jax.ir.RankedTensorType(operation.operands[0].type)
    tensor = Value(tuple(type_.shape), str(type_.element_type), -1, -1)
    source, what = Source(), "carried by a loop"
    if maker is not None and str(maker.location) == str(operation.location):
        op = program.ops[_number(maker)]
        source, what = op.source, f"result of {op.kind}"
    elif reader is not None:
        op = program.ops[_number(reader)]
        source, what = op.source, f"operand of {op.kind}"
    return Constraint(source, str(tensor), what, PartitionSpec(*parts), tensor.bytes)


def _maker(operation: Any) -> Any | None:
    """The op of the program that makes what is constrained, looking through other constraints."""
    while True:
        owner = operation.operands[0].owner
        if not isinstance(owner, _jax.ir.Operation | _jax.ir.OpView):
            return None
        operation = owner.operation
        if TAG in operation.attributes:
            return operation
        if operation.name != "sdy.sharding_constraint":
            return None


def _reader(operation: Any) -> Any | None:
    """The first op of the program that reads what is constrained, looking through other constraints."""
    for use in operation.results[0].uses:
        owner = use.owner.operation
        if TAG in owner.attributes:
            return owner
        if owner.name == "sdy.sharding_constraint":
            return _reader(owner)
    return None


def _number(operation: Any) -> int:
    return int(_jax.ir.IntegerAttr(operation.attributes[TAG]).value)


_MOST_KERNELS = 20


def kernel_comments(plan: Plan, width: int) -> list[str]:
    """For each line that calls kernels, the ``shard_map`` to put around it, as comments of Python.

    A kernel that is called backward only follows from one that is called forward at its line; where there is none, it
    stands for itself. None are given where there is nothing to partition.
    """
    if plan.partitioned.mesh.devices == 1:
        return []
    program, names = plan.analysis.program, plan.partitioned.mesh.names
    found: dict[tuple[str, str, tuple[str, ...]], None] = {}
    calls = [o for o, op in enumerate(program.ops) if "facts" in op.attributes]
    forward = {str(program.ops[o].source) for o in calls if not program.ops[o].source.backward}
    for o in calls:
        op, assignment = program.ops[o], plan.partitioned.assignments[o]
        if op.source.backward and str(op.source) in forward:
            continue
        tensors = (*op.operands, *op.results)
        shardings = (
            [spec(s, names) for s in (*assignment.operands, *assignment.results)]
            if assignment is not None
            else [PartitionSpec()] * len(tensors)
        )
        count = len(op.operands)
        into = ", ".join(map(spec_text, shardings[:count])) + ("," if count == 1 else "")
        out = ", ".join(map(spec_text, shardings[count:]))
        out = out if len(op.results) == 1 else f"({out})"
        types = [str(program.values[v]) for v in tensors]
        wrapped = f"jax.shard_map(f, mesh=mesh, in_specs=({into}), out_specs={out}, check_vma=False)"
        of = f"f: the kernel, of {', '.join(types[:count])}; it returns {', '.join(types[count:])}"
        lines = [f"#   {wrapped}  # {of}"]
        if len(lines[0]) > width:
            lines = [f"#   # {of}", f"#   {wrapped}"]
        found[str(op.source), op.attributes["kernel"], tuple(lines)] = None
    if not found:
        return []
    out_lines = [
        "",
        "# JAX does not partition Pallas kernels: with the specs alone no step compiles for a TPU. Wrap each",
        "# kernel at its line as the plan runs it (the backward pass follows), or use plan.jit, which does so:",
    ]
    for source, name, shown in list(found)[:_MOST_KERNELS]:
        out_lines += [f"# {source}: {name}", *shown]
    if len(found) > _MOST_KERNELS:
        out_lines.append(f"# … and {len(found) - _MOST_KERNELS} more.")
    return out_lines

"""What each op of an annotated program reads, once Shardy's own passes have run over it."""

from __future__ import annotations

from typing import Any, NamedTuple

from shardwright import _jax
from shardwright.apply import annotated_module
from shardwright.apply.annotate import TAG
from shardwright.ir.move_terms import narrowed_by


class Read(NamedTuple):
    """An operand: as it is, as the op wants it, and as the plan has the value."""

    op: str
    operand: int
    actual: Any
    wanted: Any
    planned: Any


def operands_read(plan, platform="tpu"):
    """Of every op that the plan assigns; values in loops' bodies, which carry no sharding there, are left out."""
    _, module, partitioned, _ = annotated_module(plan.sharded, platform)
    program, numbers = module.program, {name: a for a, name in enumerate(partitioned.mesh.names)}
    copy = module.module.operation.clone()
    _jax.run_passes(copy, "sdy-propagation-pipeline")
    found = []

    def visit(operation):
        if TAG not in operation.attributes:
            return _jax.ir.WalkResult.ADVANCE
        o = _jax.ir.IntegerAttr(operation.attributes[TAG]).value
        assignment = partitioned.assignments[o]
        for t, v in enumerate(program.ops[o].operands if assignment else ()):
            narrowed = narrowed_by(program, v) == o  # it is moved after its conversion, by intent
            if not program.free[v] and program.values[v].shape and not narrowed and known(operation.operands[t]):
                actual = sharding_of(operation.operands[t], numbers) or ((),) * len(program.values[v].shape)
                found.append(Read(str(program.ops[o]), t, actual, assignment.operands[t], partitioned.values[v]))
        return _jax.ir.WalkResult.ADVANCE

    with copy.context:
        copy.operation.walk(visit)
    return found


def known(value):
    """Whether it can be told how a value is sharded: it comes from an op, or is an argument of the program."""
    return not isinstance(value.owner, _jax.ir.Block) or "arg_attrs" in value.owner.owner.attributes


def sharding_of(value, numbers):
    """As the op that makes it, or the program's signature, has it."""
    sdy = _jax.sdy
    if isinstance(value.owner, _jax.ir.Block):
        attributes = _jax.ir.ArrayAttr(value.owner.owner.attributes["arg_attrs"])
        own = _jax.ir.DictAttr(attributes[_jax.ir.BlockArgument(value).arg_number])
        attribute = own["sdy.sharding"] if "sdy.sharding" in own else None
    elif value.owner.name in ("sdy.reshard", "sdy.sharding_constraint"):
        attribute = value.owner.attributes["sharding"]
    elif "sdy.sharding" in value.owner.attributes:
        every = sdy.TensorShardingPerValueAttr(value.owner.attributes["sdy.sharding"]).shardings
        attribute = every[_jax.ir.OpResult(value).result_number]
    else:
        attribute = None
    if attribute is None:
        return None
    dims = [sdy.DimensionShardingAttr(d) for d in sdy.TensorShardingAttr(attribute).dimension_shardings]
    return tuple(tuple(numbers[sdy.AxisRefAttr(axis).name] for axis in dim.axes) for dim in dims)

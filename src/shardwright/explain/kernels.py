"""How to run a plan's Pallas kernels in code of one's own: JAX does not partition them, a ``shard_map`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax.sharding import PartitionSpec

from shardwright.apply import spec_text
from shardwright.apply.specs import spec

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

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

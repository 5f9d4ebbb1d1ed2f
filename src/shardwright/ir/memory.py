"""Memory spaces: which values of a program lie in the host's memory and not in the device's.

A program says so where a value is moved (``jax.device_put(x, jax.memory.Space.Host)``, a checkpoint policy that
offloads) and where an argument comes from there. What follows from it is the rest: what is sliced, reshaped or stacked
of a value on the host is on the host as well, and so is what a loop carries from turn to turn, until it is moved back.

    y = jax.device_put(x, jax.memory.Space.Host)      y is on the host
    ys = stack.at[i].set(y)                           stack and ys, a loop's carry, are on the host
    z = jax.device_put(ys[0], jax.memory.Space.Device)    ys[0] is on the host, z is not

JAX has it in its types, and refuses an op whose operands lie in different spaces; XLA's host offloader goes the same
ways from each move (openxla/xla, ``xla/hlo/transforms/host_offloader.cc``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.ir.program import Op, Program

HOST, DEVICE = "host", "device"
PINNED = "pinned_host"
"""What JAX calls the part of the host's memory that a device reads and writes by itself."""
MEMORY_KIND = "mhlo.memory_kind"
"""The attribute of main's arguments and results that tells where they lie."""
_KINDS = frozenset({PINNED, "unpinned_host"})


def is_on_host(memory_kind: str | None) -> bool:
    """Whether a memory kind, as JAX names them, is of the host."""
    return memory_kind in _KINDS


def moved_to(op: Op) -> str | None:
    """Where an op moves its operand to, "host" or "device"; None for an op that does nothing but something else."""
    to: str | None = op.attributes.get("to")
    return to


def moves_between(program: Program, o: int) -> bool:
    """Whether an op moves a value from the one memory to the other; to where it lies already is no move."""
    op = program.ops[o]
    to = moved_to(op)
    return to is not None and (to == HOST) != (op.operands[0] in program.on_host)


def find_on_host(program: Program) -> frozenset[int]:
    """The values that lie on the host."""
    if program.one_memory:
        return frozenset()
    found = {argument.value for argument in program.arguments if is_on_host(argument.memory_kind)}
    moves = {o for o, op in enumerate(program.ops) if moved_to(op) is not None}
    found.update(program.ops[o].results[0] for o in moves if moved_to(program.ops[o]) == HOST)
    if not found:
        return frozenset()
    before = -1
    while before != len(found):  # as deep as loops are nested
        before = len(found)
        for o, op in enumerate(program.ops):
            if o in moves:
                continue
            if op.regions or op.kind == "optimization_barrier":
                for a, b in program.ties(op):
                    if a in found or b in found:
                        # A table of zeros that a stack begins with is made wherever it is needed.
                        found.update(v for v in (a, b) if not program.free[v])
            elif any(v in found for v in op.operands):
                found.update(op.results)
                if op.kind == "dynamic_update_slice" and not program.free[op.operands[0]]:
                    found.add(op.operands[0])
    return frozenset(found)

"""Writes a partitioned program's decisions into its module, as sharding constraints.

Shardy's propagation is asked first: starting from the shardings of arguments and results, what would it do by itself?
Constraints are added where an op is to read an operand in another sharding than the value has, where large values meet
(``JOINED``), and where a value would come out differently from the plan; then it is asked again, until the two agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardwright import _jax
from shardwright.compiler.partitioner import JOINED
from shardwright.ir.build import ReadModule
from shardwright.ir.given import mesh_symbol
from shardwright.ir.kinds import CONSTRAINT
from shardwright.ir.move_terms import narrowed_by
from shardwright.ir.program import Op, is_elementwise
from shardwright.price import Partitioned
from shardwright.price.collectives import stations
from shardwright.space.state import Sharding

TAG = "shardwright.op"
"""Attribute with the number of the op that an operation is in the program; compilers pass over it."""
_CONSTRAINT = "sdy.sharding_constraint"
_PASS_ON = ("func.call", "stablehlo.optimization_barrier")
_ROUNDS = 6


@dataclass(frozen=True)
class Annotation:
    """How much had to be said: constraints on definitions and on uses, of how many values; what was left differing."""

    on_definitions: int
    on_uses: int
    values: int
    differing: int


def annotate(read: ReadModule, partitioned: Partitioned, *, all_said: bool = False) -> Annotation:
    """Constrain the module (in place) to the plan and drop Shardy's rules from it, which no compiler may see.

    ``all_said``: the module says of every value how it lies, as in explicit mode, so that only what the compiler would
    get wrong is left to say.
    """
    writer = _Writer(read, partitioned, all_said)
    with read.module.context:
        writer.clamp_indices()
        writer.close_constraints()
        on_uses = writer.constrain_uses()
        constrained = writer.constrain_results()
        if not all_said:
            constrained |= writer.constrain_joins(constrained)
        writer.tag()
        for round_ in range(_ROUNDS):
            wrong = set() if all_said else writer.differing() - constrained
            if not wrong:
                left = 0
                break
            chosen = wrong if round_ >= _ROUNDS - 2 else writer.first_of(wrong)
            for v in sorted(chosen):
                writer.constrain_definition(v)
            constrained |= chosen
        else:
            left = len(writer.differing() - constrained)
        writer.drop_repeated()
        _jax.run_passes(read.module, "func.func(sdy-drop-sharding-rules)")
        read.module.operation.verify()
    return Annotation(len(constrained), on_uses, len(read.program.values), left)


class _Writer:
    def __init__(self, read: ReadModule, partitioned: Partitioned, all_said: bool) -> None:
        self.read, self.all_said = read, all_said
        self.plan = partitioned
        self.program = read.program
        self.mesh = mesh_symbol(read.module, partitioned.mesh.axes, add=False)

    def attribute(self, sharding: Sharding) -> Any:
        """A sharding on the module's mesh."""
        return sharding_attribute(self.mesh, self.plan.mesh.names, sharding)

    def clamp_indices(self) -> None:
        """Clamp the indices of dynamic slices that the compiler may merge with its own, which then forgets to."""
        for operation, op in zip(self.read.operations, self.program.ops, strict=True):
            if op.kind != "dynamic_slice" or not op.rule.records:
                continue
            sizes = (self.program.values[v].shape for v in (op.operands[0], op.results[0]))
            with _jax.ir.InsertionPoint(operation), operation.location:
                for d, (size, kept) in enumerate(zip(*sizes, strict=True)):
                    index = operation.operands[1 + d]
                    low, high = (
                        _jax.stablehlo.constant(
                            _jax.ir.DenseElementsAttr.get_splat(
                                index.type, _jax.ir.IntegerAttr.get(index.type.element_type, number)
                            )
                        )
                        for number in (0, size - kept)
                    )
                    operation.operands[1 + d] = _jax.stablehlo.clamp(low, index, high)

    def close_constraints(self) -> None:
        """Say in the program's own constraints what the plan makes of dimensions that they leave open."""
        for operation, op in zip(self.read.operations, self.program.ops, strict=True):
            if op.kind == CONSTRAINT:
                operation.attributes["sharding"] = self.attribute(self.plan.values[op.results[0]])

    def constrain_uses(self) -> int:
        """Bring operands to what their ops want, where that moves anything."""
        made: dict[tuple[int, Any, Sharding], Any] = {}
        brought: dict[Any, int] = {}
        for operation, op, assignment in zip(
            self.read.operations, self.program.ops, self.plan.assignments, strict=True
        ):
            if assignment is None:
                continue
            if op.kind == CONSTRAINT:
                self.route(operation, op)
                continue
            if self.all_said and not op.rule.records:
                continue
            for t, (want, moves) in enumerate(zip(assignment.operands, assignment.before, strict=True)):
                value, v = operation.operands[t], op.operands[t]
                guarded = bool(op.rule.records) and want != self.plan.values[v] and not self.program.free[v]
                if not moves and not guarded:
                    continue
                key = (op.region, value, want)  # one for all uses in a body, before the first of them
                if key not in made:
                    with _jax.ir.InsertionPoint(operation), operation.location:
                        made[key] = self.brought(value, v, self.plan.values[v], want)
                        brought.setdefault(value, v)
                operation.operands[t] = made[key]
        for value, v in brought.items():
            self.shield(value, v)
        return len(made)

    def route(self, operation: Any, op: Op) -> None:
        """A constraint of the program's own is what moves its operand; it takes the steps that XLA takes."""
        (v,), (made,) = op.operands, op.results
        shape, values = self.program.values[v].shape, self.plan.values
        value = operation.operands[0]
        with _jax.ir.InsertionPoint(operation), operation.location:
            for station in stations(shape, values[v], values[made], self.plan.mesh):
                value = self.constrained(value, station)
        operation.operands[0] = value

    def shield(self, value: Any, v: int) -> None:
        """Keep a value's other uses as they are, where Shardy would put the only constraint on it into all of them.

        It does (`sdy-apply-sharding-constraints`) with what a call, a loop, a branch or a barrier gives or is given,
        and with constraints one after the other. The value's own sharding, said first, stands between.
        """
        uses = [(use.owner, use.operand_number) for use in value.uses]
        constraints = [owner for owner, _ in uses if owner.name == _CONSTRAINT]
        if len(constraints) != 1 or len(uses) == 1 or self.program.free[v]:
            return
        maker = value.owner
        flows = isinstance(maker, _jax.ir.Block) or maker.name in _PASS_ON or len(maker.regions) > 0
        in_steps = any(use.owner.name == _CONSTRAINT for use in constraints[0].results[0].uses)
        if not flows and not in_steps:
            return
        if isinstance(maker, _jax.ir.Block):
            place, location = _jax.ir.InsertionPoint.at_block_begin(maker), _jax.ir.Location.unknown()
        else:
            place, location = _jax.ir.InsertionPoint.after(maker), maker.location
        with place, location:
            own = self.constrained(value, self.plan.values[v])
        for owner, number in uses:
            owner.operands[number] = own

    def constrain_results(self) -> set[int]:
        """Where a result is brought to another sharding than its op works with, say first how the op works.

        Shardy would rather run the op so that it makes the result as wanted, whatever that costs on the other side, and
        XLA would gather weights for it. Partial sums have no sharding to name; what they are reduced to has.
        """
        done: set[int] = set()
        for op, assignment in zip(self.program.ops, self.plan.assignments, strict=True):
            if assignment is None or op.kind == CONSTRAINT:
                continue
            for k, v in enumerate(op.results):
                own = assignment.made(k, self.plan.values[v])
                # A convolution would become a loop, a thin slice of the features at a time; others would scatter their
                # partial sums into a split that they are kept from.
                if op.kind == "convolution" or not self.may_have(op, k, own):
                    own = assignment.results[k]
                # An op must not be talked into a split that it was kept from, not even for a local slice.
                guarded = bool(op.rule.records) or op.kind == "convolution"
                if self.all_said and not guarded:
                    continue
                apart = own != self.plan.values[v]
                needed = apart if assignment.partial or guarded else bool(assignment.after[k])
                if not needed or self.program.free[v] or v in done:
                    continue
                narrower = narrowed_by(self.program, v)
                if narrower >= 0:  # moved at fewer bytes, once it is converted
                    self.constrain(v, own)
                    done.add(v)
                    (v,) = self.program.ops[narrower].results
                self.constrain(v, own, self.plan.values[v])
                done.add(v)
        return done

    def constrain_joins(self, done: set[int]) -> set[int]:
        """Say how the results of elementwise ops lie in which large values meet: see ``JOINED``."""
        program, large = self.program, JOINED.effect
        least = max(large.least_bytes, large.part * max((value.bytes for value in program.values), default=0))
        found: set[int] = set()
        for op in program.ops:
            met = {v for v in op.operands if program.values[v].bytes >= least}
            if len(met) < 2 or not is_elementwise(program, op):
                continue
            for v in op.results:
                if v not in done and not program.free[v]:
                    self.constrain_definition(v)
                    found.add(v)
        return found

    def may_have(self, op: Op, result: int, sharding: Sharding) -> bool:
        """Whether a sharding of a result splits no factor that the op is kept from splitting, or not so."""
        rule = op.rule
        return not rule.records or all(
            not axes or (factors[:1] and factors[0] not in rule.whole and rule.divisors.get(factors[0], 0) % ways == 0)
            for axes, ways, factors in zip(
                sharding, map(self.plan.mesh.ways, sharding), rule.results[result], strict=True
            )
        )

    def constrain_definition(self, v: int) -> None:
        """Constrain a value where it is defined, for all of its uses."""
        self.constrain(v, self.plan.values[v])

    def constrain(self, v: int, *shardings: Sharding) -> None:
        """Bring a value to shardings, one after the other, for all of its uses."""
        value = self.read.value(v)
        uses = list(value.uses)
        owner = self.program.values[v].op
        if owner >= 0:
            operation = self.read.operations[owner]
            place = _jax.ir.InsertionPoint.after(operation)
            location = operation.location
        else:
            block = self.read.blocks[self.program.values[v].region]
            place, location = _jax.ir.InsertionPoint.at_block_begin(block), _jax.ir.Location.unknown()
        with place, location:
            value = self.constrained(value, shardings[0])
            for have, want in pairwise(shardings):
                value = self.brought(value, v, have, want)
        for use in uses:
            use.owner.operands[use.operand_number] = value

    def brought(self, value: Any, v: int, have: Sharding, want: Sharding) -> Any:
        """Value ``v`` in another sharding than it has, by steps that XLA takes."""
        shape = self.program.values[v].shape
        for sharding in (*stations(shape, have, want, self.plan.mesh), want):
            value = self.constrained(value, sharding)
        return value

    def constrained(self, value: Any, sharding: Sharding) -> Any:
        """The result of a constraint, which goes where MLIR is inserting."""
        return _jax.sdy.ShardingConstraintOp(value, self.attribute(sharding)).result

    def tag(self) -> None:
        """Number the operations, so that they can be told in a copy that passes have rewritten."""
        number = _jax.ir.IntegerType.get_signless(64)
        for o, operation in enumerate(self.read.operations):
            operation.attributes[TAG] = _jax.ir.IntegerAttr.get(number, o)

    def differing(self) -> set[int]:
        """Values that Shardy's propagation would shard differently from the plan."""
        copy = self.read.module.operation.clone()
        _jax.run_passes(copy, "sdy-propagation-pipeline")
        found: dict[int, list[Sharding | None]] = {}
        _read_shardings(copy.operation, self.plan, found)
        free = self.program.free
        wrong: set[int] = set()
        for o, op in enumerate(self.program.ops):
            if op.kind == CONSTRAINT:  # which is gone by now, and was heard
                continue
            shardings = found.get(o)
            for k, v in enumerate(op.results):
                if free[v] or not self.program.values[v].shape:
                    continue
                actual = shardings[k] if shardings else None
                if (actual or ((),) * len(self.program.values[v].shape)) != self.plan.values[v]:
                    wrong.add(v)
        return wrong

    def drop_repeated(self) -> None:
        """Take out constraints on arguments that say what the argument's own attribute says: XLA would copy them."""
        arguments = {argument.value for argument in self.program.arguments}
        for operation, op in zip(self.read.operations, self.program.ops, strict=True):
            if op.kind != CONSTRAINT or op.operands[0] not in arguments:
                continue
            value = operation.operands[0]
            same = self.plan.values[op.operands[0]] == self.plan.values[op.results[0]]
            if same and isinstance(value.owner, _jax.ir.Block):
                operation.results[0].replace_all_uses_with(value)
                operation.erase()

    def first_of(self, wrong: set[int]) -> set[int]:
        """Those whose own operands are right: the others may follow from them."""
        out = set()
        for v in wrong:
            op = self.program.ops[self.program.values[v].op]
            if op.regions or not any(operand in wrong for operand in op.operands):
                out.add(v)
        return out or wrong


def sharding_attribute(mesh: str, names: Sequence[str], sharding: Sharding) -> Any:
    """A closed Shardy sharding on the mesh of this symbol, whose axes have these names."""
    sdy = _jax.sdy
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(names[a]) for a in axes], is_closed=True)
        for axes in sharding
    ]
    return sdy.TensorShardingAttr.get(mesh, dims)


def _read_shardings(operation: Any, plan: Partitioned, found: dict[int, list[Sharding | None]]) -> None:
    number = {name: a for a, name in enumerate(plan.mesh.names)}
    sdy = _jax.sdy

    def sharding(attribute: Any) -> Sharding:
        dims = sdy.TensorShardingAttr(attribute).dimension_shardings
        return tuple(
            tuple(number[sdy.AxisRefAttr(axis).name] for axis in sdy.DimensionShardingAttr(dim).axes) for dim in dims
        )

    def visit(op: Any) -> Any:
        attributes = op.attributes
        told = "out_shardings" if op.name == "sdy.manual_computation" else "sdy.sharding"
        if TAG in attributes and told in attributes:
            per_value = sdy.TensorShardingPerValueAttr(attributes[told]).shardings
            found[_jax.ir.IntegerAttr(attributes[TAG]).value] = [sharding(s) for s in per_value]
        return _jax.ir.WalkResult.ADVANCE

    _jax.walk(operation, visit)

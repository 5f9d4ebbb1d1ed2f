"""A partitioned program as Shardy would carry it out: every value told its sharding, every collective made explicit.

Unlike ``verify_shardy``, which checks what becomes of the few annotations that a plan carries, this asks only what the
shardings themselves imply. Nothing is left to propagate, so it takes a fraction of the time, and it works on the module
that was planned on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright import _jax
from shardwright.apply.annotate import TAG, sharding_attribute
from shardwright.ir.build import TERMINATORS, ReadModule, functions_of
from shardwright.ir.given import mesh_symbol
from shardwright.ir.kinds import CONSTRAINT, MANUAL
from shardwright.ir.move_terms import narrowed_by
from shardwright.price import Partitioned
from shardwright.space.state import Sharding
from shardwright.verify.shardy import EXPLICIT, ShardyCollective, read_collectives


def explicit_collectives(read: ReadModule, partitioned: Partitioned) -> tuple[ShardyCollective, ...]:
    """The collectives that Shardy puts into the module, which stays as it is."""
    module = read.module.operation.clone()
    with module.context:
        writer = _Writer(module, partitioned)
        _jax.run_passes(module, "func.func(sdy-drop-sharding-rules)")
        writer.write()
        module.verify()  # a module that is not as Shardy expects would crash it
        _jax.run_passes(module, EXPLICIT)
        return read_collectives(module, partitioned)


class _Writer:
    """Writes a sharding on every value of a module: ops, loops, functions, calls."""

    def __init__(self, module: Any, partitioned: Partitioned) -> None:
        self.module, self.plan, self.program = module, partitioned, partitioned.program
        self.functions = functions_of(module)
        self.made: dict[tuple[int, Any, Sharding], Any] = {}
        self._attributes: dict[Sharding, Any] = {}
        self._ids: dict[Any, int] = {}
        self._early: dict[int, Sharding] = {}
        self._mesh = mesh_symbol(module, partitioned.mesh.axes)
        self._walk = iter(enumerate(zip(self.program.ops, partitioned.assignments, strict=True)))

    def write(self) -> None:
        """Write everything."""
        main = self.functions["main"]
        body = main.regions[0].blocks[0]
        region = self.program.regions[0]
        self._ids.update(zip(body.arguments, region.parameters, strict=True))
        self._function(main, list(region.parameters), list(region.results))
        list(self._block(body, 0))

    def _function(self, function: Any, arguments: list[int], results: list[int]) -> None:
        for name, values in (("arg_attrs", arguments), ("res_attrs", results)):
            attributes = [_jax.ir.DictAttr.get({"sdy.sharding": self._attribute(self.plan.values[v])}) for v in values]
            function.attributes[name] = _jax.ir.ArrayAttr.get(attributes)

    def _block(self, block: Any, region: int) -> Iterator[int]:
        """Write the ops of a block and yield what its terminator returns."""
        for view in list(block.operations):
            operation = view.operation
            name = operation.name
            if name in TERMINATORS:
                yield from [self._ids[v] for v in operation.operands]
            elif name == "func.call":
                self._call(operation, region)
            else:
                self._op(operation)

    def _call(self, call: Any, region: int) -> None:
        callee = self.functions[_jax.ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        body = callee.regions[0].blocks[0]
        operands = [self._ids[v] for v in call.operands]
        self._ids.update(zip(body.arguments, operands, strict=True))
        results = list(self._block(body, region))
        self._ids.update(zip(call.results, results, strict=True))
        self._function(callee, operands, results)
        call.attributes["sdy.sharding"] = self._per_value(self.plan.values[v] for v in results)

    def _op(self, operation: Any) -> None:
        number, (op, assignment) = next(self._walk)
        self._ids.update(zip(operation.results, op.results, strict=True))
        shardings = [self.plan.values[v] for v in op.results]
        if assignment is not None:
            for t, (want, moves) in enumerate(zip(assignment.operands, assignment.before, strict=True)):
                if moves:
                    self._constrain_use(operation, t, want, op.region)
            early = [self._early.pop(v) for v in op.operands if v in self._early]
            shardings = [
                early[0] if early else assignment.made(k, planned) if moves else planned
                for k, (planned, moves) in enumerate(zip(shardings, assignment.after, strict=True))
            ]
            for result, v, made in zip(operation.results, op.results, shardings, strict=True):
                if made != self.plan.values[v] and narrowed_by(self.program, v) >= 0:
                    self._early[v] = made  # moved at fewer bytes, once it is converted
                elif made != self.plan.values[v] and not self.program.free[v]:
                    self._constrain_result(operation, result, v)
        if op.kind == MANUAL:
            operation.attributes["in_shardings"] = self._per_value(self.plan.values[v] for v in op.operands)
            operation.attributes["out_shardings"] = self._per_value(shardings)
        elif operation.results:
            operation.attributes["sdy.sharding"] = self._per_value(shardings)
        if op.kind == CONSTRAINT:
            operation.attributes["sharding"] = self._attribute(shardings[0])
        if op.regions:
            operation.attributes[TAG] = _jax.ir.IntegerAttr.get(_jax.ir.IntegerType.get_signless(64), number)
        for k, r in enumerate(op.regions):
            body = operation.regions[k].blocks[0]
            self._ids.update(zip(body.arguments, self.program.regions[r].parameters, strict=True))
            list(self._block(body, r))

    def _constrain_use(self, operation: Any, operand: int, want: Sharding, region: int) -> None:
        value = operation.operands[operand]
        key = (region, value, want)  # one for all uses in a body, before the first of them
        if key not in self.made:
            with _jax.ir.InsertionPoint(operation), operation.location:
                self.made[key] = _jax.sdy.ShardingConstraintOp(value, self._attribute(want)).result
                self._ids[self.made[key]] = self._ids[value]
        operation.operands[operand] = self.made[key]

    def _constrain_result(self, operation: Any, result: Any, v: int) -> None:
        uses = list(result.uses)
        with _jax.ir.InsertionPoint.after(operation), operation.location:
            wanted = _jax.sdy.ShardingConstraintOp(result, self._attribute(self.plan.values[v])).result
        self._ids[wanted] = v
        for use in uses:
            use.owner.operands[use.operand_number] = wanted

    def _per_value(self, shardings: Any) -> Any:
        return _jax.sdy.TensorShardingPerValueAttr.get([self._attribute(s) for s in shardings])

    def _attribute(self, sharding: Sharding) -> Any:
        known = self._attributes.get(sharding)
        if known is None:
            known = self._attributes[sharding] = sharding_attribute(self._mesh, self.plan.mesh.names, sharding)
        return known

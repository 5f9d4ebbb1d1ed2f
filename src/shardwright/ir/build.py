"""From an MLIR module, with Shardy's rules on its ops, to a ``Program`` that knows nothing of MLIR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright import _jax
from shardwright._collector import collector_paused
from shardwright._function import Function
from shardwright._kernel import Kernel
from shardwright.compiler import of as compiler_of
from shardwright.compiler.offloading import ONE_MEMORY
from shardwright.errors import ModuleError
from shardwright.ir import given
from shardwright.ir.classes import REGION_ROLES, Classes, TensorType, text_attribute
from shardwright.ir.given import Given
from shardwright.ir.kinds import CONSTRAINT, CONTROL, MANUAL
from shardwright.ir.loops import TripCounts, find_loops
from shardwright.ir.memory import MEMORY_KIND, is_on_host
from shardwright.ir.program import (
    NO_ATTRIBUTES,
    Argument,
    Op,
    Program,
    Region,
    Source,
    Value,
)
from shardwright.ir.sources import Sources

TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
TOKEN = "!stablehlo.token"
_MOST_BYTES = 2**60


@dataclass(frozen=True)
class ReadModule:
    """A program together with the MLIR that it was read from: the operation of each op, the block of each region."""

    module: Any
    program: Program
    operations: list[Any]
    blocks: list[Any]

    def value(self, v: int) -> Any:
        """The MLIR value that defines a value of the program."""
        value = self.program.values[v]
        if value.op >= 0:
            return self.operations[value.op].results[self.program.ops[value.op].results.index(v)]
        return self.blocks[value.region].arguments[self.program.regions[value.region].parameters.index(v)]


def read_module(
    module: Any,
    *,
    name: str = "",
    argument_paths: Sequence[str] | None = None,
    unused_arguments: Sequence[str] = (),
    result_paths: Sequence[str] | None = None,
    donated: Sequence[int] = (),
    trip_counts: TripCounts = None,
    user_rules: Mapping[str, str] | None = None,
    platform: str | None = None,
    boundary: Sequence[str] = (),
    origin: Source | None = None,
    given_arguments: Sequence[Given | None] = (),
    kernels: Sequence[Kernel] = (),
    functions: Sequence[Function] = (),
    memory_kinds: Sequence[str | None] = (),
    result_kinds: Sequence[str | None] = (),
    typed: bool = False,
) -> ReadModule:
    """Read a module operation (changed in place: Shardy's rules are written on it) into a ``Program``.

    ``argument_paths``: names of the main function's arguments, else ``arg0`` and so on. ``unused_arguments``: paths of
    those that the module no longer has. ``donated``: indices of arguments whose buffers may be reused.
    ``user_rules``: sharding rules of custom calls by target name. ``platform``: whose compiler is to have it, if known.
    ``boundary``: files whose frames, and all outside them, are not the user's. ``origin``: where the whole program
    comes from, for ops that have no line of their own. ``given_arguments``: the shardings that arguments have already.
    ``kernels`` and ``functions``: what the Pallas kernels, and the functions with a rule of their own, are that custom
    calls stand for by number. ``memory_kinds`` and ``result_kinds``: where arguments and results lie, as far as that is
    known beside what the module says. ``typed``: types have shardings, and these are kept.
    """
    _jax.populate_rules(module)
    with module.context, collector_paused():
        mesh, compiler = given.own_mesh(module), compiler_of(platform)
        classes = Classes(user_rules or {}, compiler, mesh, kernels, functions)
        walk = _Walk(functions_of(module), Sources(boundary), classes)
        main = main_of(module)
        block = body_of(main)
        walk.region(block, op=-1, role="program", caller=origin or Source())
    main_region = walk.regions[0]
    for argument, own in zip(main_region.parameters, given_arguments, strict=False):
        walk.values[argument] = walk.values[argument]._replace(given=own)
    # The order of effects (io_callback with ordered=True) is handed in and out as tokens, which no user sees.
    parameters = [v for v in main_region.parameters if walk.values[v].dtype != TOKEN]
    results = [v for v in main_region.results if walk.values[v].dtype != TOKEN]
    walk.regions[0] = replace(main_region, results=tuple(results))
    paths = list(argument_paths or (f"arg{i}" for i in range(len(parameters))))
    extra = len(parameters) - len(paths)
    if extra < 0:
        raise ModuleError(f"the module's main function has {len(parameters)} arguments, not {len(paths)}.")
    # JAX may lift closed-over arrays into arguments before the user's own.
    paths = [f"constant.{i}" for i in range(extra)] + paths
    walk.hand_back(always=typed)
    if typed:
        walk.hand_through()
    gone = {extra + i for i in donated}
    kinds = _memory_kinds(main, "arg_attrs", main_region.parameters, parameters[extra:], memory_kinds)
    out_kinds = _memory_kinds(main, "res_attrs", main_region.results, results, result_kinds)
    program = Program(
        name=name or _symbol(module, "module"),
        values=tuple(walk.values),
        ops=tuple(walk.ops),
        regions=tuple(walk.regions),
        loops=(),
        arguments=tuple(
            Argument(path, v, i in gone, kinds.get(v))
            for i, (path, v) in enumerate(zip(paths, parameters, strict=True))
        ),
        unused_arguments=tuple(unused_arguments),
        results=tuple(result_paths or (f"result.{i}" for i in range(len(results)))),
        own_mesh=mesh,
        told_result_kinds=tuple(out_kinds.get(v) for v in results),
        one_memory=compiler[ONE_MEMORY],
        typed=typed,
    )
    _check_size(program)
    program = replace(program, loops=find_loops(program, trip_counts))
    return ReadModule(module, program, walk.operations, walk.blocks)


def _check_size(program: Program) -> None:
    """Sums of bytes are kept in 64 bits."""
    if sum(value.bytes for value in program.values) > _MOST_BYTES:
        largest = max(program.values, key=lambda value: value.bytes)
        raise ModuleError(
            f"the program has a tensor of shape {list(largest.shape)} and {largest.bytes:,} bytes; all tensors "
            f"together may have {_MOST_BYTES:,}."
        )


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module operation by name."""
    return {
        _symbol(op.operation, "main"): op.operation
        for op in module.regions[0].blocks[0].operations
        if op.operation.name == "func.func"
    }


def main_of(module: Any) -> Any:
    """The function of a module operation that is called from outside."""
    functions = functions_of(module)
    public = [f for f in functions.values() if text_attribute(f.attributes, "sym_visibility", "public") == "public"]
    main = functions.get("main") or (public[0] if len(public) == 1 else None)
    if main is None:
        raise ModuleError("the module needs a function called main, or exactly one public function.")
    body_of(main)
    return main


def body_of(function: Any) -> Any:
    """The block of a function; StableHLO has ops for what others do by jumps between blocks."""
    blocks = function.regions[0].blocks
    if not len(blocks):
        raise ModuleError(f"the function {_symbol(function, 'main')!r} has no body.")
    if len(blocks) > 1:
        raise ModuleError(f"the function {_symbol(function, 'main')!r} jumps between {len(blocks)} blocks.")
    return blocks[0]


def _memory_kinds(
    main: Any, each: str, values: Sequence[int], known_of: Sequence[int], known: Sequence[str | None]
) -> dict[int, str]:
    """Where those of main's arguments or results lie that are on the host, as the module tells or it is known."""
    attributes = list(main.attributes[each]) if each in main.attributes else []
    told = dict(zip(values, (text_attribute(a, MEMORY_KIND, "") for a in attributes), strict=False))
    told |= {v: kind for v, kind in zip(known_of, known, strict=False) if kind is not None}
    return {v: kind for v, kind in told.items() if is_on_host(kind)}


def _symbol(operation: Any, default: str) -> str:
    return text_attribute(operation.attributes, "sym_name", default)


@dataclass
class _Walk:
    functions: dict[str, Any]
    sources: Sources
    classes: Classes
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    operations: list[Any] = field(default_factory=list)
    blocks: list[Any] = field(default_factory=list)
    _ids: dict[Any, int] = field(default_factory=dict)
    _types: dict[Any, TensorType] = field(default_factory=dict)
    _type_of: list[TensorType] = field(default_factory=list)
    _manual: list[frozenset[str]] = field(default_factory=list)
    """Of each region, the axes along which it is local."""

    def region(self, block: Any, *, op: int, role: str, caller: Source, manual: frozenset[str] = frozenset()) -> int:
        """Walk a block as a region of its own; returns the region's number."""
        number = len(self.regions)
        self.blocks.append(block)
        self._manual.append(manual)
        self.regions.append(None)  # type: ignore[arg-type]  # filled below: the ops inside need the number now
        parameters = tuple(self._define(argument, -1, number) for argument in block.arguments)
        start = len(self.ops)
        results = self.block(block, number, caller)
        self.regions[number] = Region(op, role, parameters, results, start, len(self.ops))
        return number

    def block(self, block: Any, region: int, caller: Source) -> tuple[int, ...]:
        """Walk a block's ops into ``region``; returns what its terminator returns."""
        ids = self._ids
        for view in block.operations:
            operation = view.operation
            name = operation.name
            operands = tuple([ids[v] for v in operation.operands])
            if name in TERMINATORS:
                return operands
            if name == "func.call":
                self._inline(operation, operands, region, caller)
            else:
                self._op(operation, name, operands, region, caller)
        return ()

    def _inline(self, call: Any, operands: tuple[int, ...], region: int, caller: Source) -> None:
        callee = self.functions[_jax.ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        body = body_of(callee)
        self._ids.update(zip(body.arguments, operands, strict=True))
        results = self.block(body, region, self.sources.of(call.location, caller))
        self._ids.update(zip(call.results, results, strict=True))

    def _op(self, operation: Any, name: str, operands: tuple[int, ...], region: int, caller: Source) -> None:
        number = len(self.ops)
        source = self.sources.of(operation.location, caller)
        results = tuple([self._define(v, number, region) for v in operation.results])
        types = self._type_of
        cls = self.classes.of(operation, name, [types[v] for v in operands], [types[v] for v in results])
        attributes = cls.attributes(operation) if cls.attributes else NO_ATTRIBUTES
        op = Op(cls.kind, operands, results, cls.rule, region, source, cls.number, (), cls.flops, attributes)
        self.ops.append(op)
        self.operations.append(operation)
        roles = REGION_ROLES.get(name)
        if roles:
            manual = self._manual[region]
            inside = manual | attributes["manual"] if op.kind == MANUAL else manual
            regions = tuple(
                self.region(r.blocks[0], op=number, role=roles[min(k, len(roles) - 1)], caller=source, manual=inside)
                for k, r in enumerate(operation.regions)
            )
            self.ops[number] = op._replace(regions=regions)
        if op.kind == CONSTRAINT:
            self.give(results[0], operation.attributes["sharding"])
        elif op.kind == MANUAL:
            shardings = _jax.sdy.TensorShardingPerValueAttr(operation.attributes["out_shardings"]).shardings
            for v, sharding in zip(results, shardings, strict=True):
                self.give(v, sharding)
            for v in (*operands, *results):
                own = self.values[v].given
                if own is not None:
                    self.values[v] = self.values[v]._replace(given=own._replace(barred=attributes["manual"]))

    def hand_back(self, *, always: bool) -> None:
        """Give what is spread out only to be constrained the constraint's sharding at once, as Shardy does.

        It is then made so, from less, and not in another sharding that has to be left again. ``always``: and whatever
        else is made only to be constrained, as all is whose type has a sharding.
        """
        uses = Counter(v for op in self.ops for v in op.operands)
        uses.update(v for region in self.regions for v in region.results)
        for op in reversed(self.ops):
            if op.kind != CONSTRAINT:
                continue
            (v,), made = op.operands, self.values[op.results[0]].given
            value = self.values[v]
            if made is None or value.op < 0 or uses[v] != 1 or (value.given is not None and value.given.decides):
                continue
            maker = self.ops[value.op]
            spread = value.bytes > sum(self.values[a].bytes for a in maker.operands)
            if maker.rule.tensors and maker.kind != CONSTRAINT and (always or spread):
                self.values[v] = value._replace(given=made)

    def hand_through(self) -> None:
        """Give what loops carry and branches return the sharding of what goes in and comes out, as its type has it."""
        for op in reversed(self.ops):
            if op.kind not in CONTROL:
                continue
            for k, made in enumerate(op.results):
                inside = [self.regions[r] for r in op.regions]
                carried = [region.parameters[k] for region in inside if op.kind == "while"]
                ends = [region.results[k] for region in inside if region.role != "condition"]
                known = [*ends, *(op.operands[k : k + 1] if op.kind == "while" else ())]
                found = next((g for v in known if (g := self.values[v].given) is not None and g.decides), None)
                for v in (made, *carried):
                    if found is not None and self.values[v].given is None:
                        self.values[v] = self.values[v]._replace(given=found)

    def give(self, v: int, sharding: Any) -> None:
        """Note the sharding that the module has for a value."""
        value = self.values[v]
        self.values[v] = value._replace(given=given.from_shardy(sharding, self._manual[value.region]))

    def _define(self, value: Any, op: int, region: int) -> int:
        number = len(self.values)
        type_ = self._type(value.type)
        self.values.append(
            Value(type_.shape, type_.dtype, op, region, given.local(len(type_.shape), self._manual[region]))
        )
        self._type_of.append(type_)
        self._ids[value] = number
        return number

    def _type(self, mlir_type: Any) -> TensorType:
        known = self._types.get(mlir_type)
        if known is None:
            shape: tuple[int, ...] = ()
            dtype = str(mlir_type)
            if isinstance(mlir_type, _jax.ir.RankedTensorType):
                if not mlir_type.has_static_shape:
                    raise ModuleError(f"the module has a tensor of dynamic shape ({dtype}); give every size a number.")
                shape, dtype = tuple(mlir_type.shape), str(mlir_type.element_type)
            known = self._types[mlir_type] = TensorType(shape, dtype)
        return known

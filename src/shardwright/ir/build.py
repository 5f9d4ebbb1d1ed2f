"""From an MLIR module, with Shardy's rules on its ops, to a ``Program`` that knows nothing of MLIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright import _jax
from shardwright.errors import ModuleError
from shardwright.ir import rules
from shardwright.ir.flops import Window, convolution_flops, dot_flops
from shardwright.ir.loops import TripCounts, find_loops
from shardwright.ir.program import Argument, Op, Program, Region, Source, Value
from shardwright.ir.rules import Rule
from shardwright.ir.sources import Sources

_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_IDENTITIES = frozenset({"sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.reshard", "sdy.data_flow_edge"})
_IDENTITY_CALLS = frozenset({"Sharding", "annotate_device_placement", "LayoutConstraint", "MoveToHost", "MoveToDevice"})
_REGION_ROLES = {"stablehlo.while": ("condition", "body")}
_BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
_TYING = frozenset({*_REGION_ROLES, *_BRANCHES, "stablehlo.optimization_barrier"})

# What, beside the rule and the types, makes two ops of one kind differ: read into the op's class.
_DISTINGUISHING = {
    "stablehlo.slice": ("strides",),
    "stablehlo.pad": ("interior_padding",),
    "stablehlo.reduce_window": ("window_dimensions",),
    "stablehlo.convolution": (
        "dimension_numbers",
        "window_strides",
        "padding",
        "lhs_dilation",
        "rhs_dilation",
    ),
    "stablehlo.custom_call": ("call_target_name",),
    "chlo.ragged_dot": ("ragged_dot_dimension_numbers",),
}


def build_program(
    module: Any,
    *,
    name: str = "",
    argument_paths: Sequence[str] | None = None,
    result_paths: Sequence[str] | None = None,
    donated: Sequence[int] = (),
    trip_counts: TripCounts = None,
    user_rules: Mapping[str, str] | None = None,
    boundary: Sequence[str] = (),
) -> Program:
    """Read a module operation (changed in place: Shardy's rules are written on it) into a ``Program``.

    ``argument_paths``: names of the main function's arguments, else the module's own. ``donated``: indices of
    arguments whose buffers may be reused. ``user_rules``: sharding rules of custom calls by target name.
    ``boundary``: files whose frames, and all outside them, are not the user's.
    """
    _jax.populate_rules(module)
    with module.context:
        walk = _Walk(_functions(module), Sources(boundary), user_rules or {})
        main = _main(walk.functions)
        block = main.regions[0].blocks[0]
        paths = list(argument_paths or _own_argument_names(block))
        extra = len(block.arguments) - len(paths)
        if extra < 0:
            raise ModuleError(f"the module's main function has {len(block.arguments)} arguments, not {len(paths)}.")
        # JAX may lift closed-over arrays into arguments before the user's own.
        paths = [f"constant.{i}" for i in range(extra)] + paths
        walk.region(block, op=-1, role="program", caller=Source())
    parameters = walk.regions[0].parameters
    gone = {extra + i for i in donated}
    program = Program(
        name=name or _symbol(module, "module"),
        values=tuple(walk.values),
        ops=tuple(walk.ops),
        regions=tuple(walk.regions),
        loops=(),
        arguments=tuple(Argument(p, v, i in gone) for i, (p, v) in enumerate(zip(paths, parameters, strict=True))),
        results=tuple(result_paths or (f"result.{i}" for i in range(len(walk.regions[0].results)))),
    )
    return replace(program, loops=find_loops(program, trip_counts))


def _functions(module: Any) -> dict[str, Any]:
    return {
        _symbol(op.operation, "main"): op.operation
        for op in module.regions[0].blocks[0].operations
        if op.operation.name == "func.func"
    }


def _main(functions: Mapping[str, Any]) -> Any:
    public = [f for f in functions.values() if _text(f.attributes, "sym_visibility", "public") == "public"]
    main = functions.get("main") or (public[0] if len(public) == 1 else None)
    if main is None:
        raise ModuleError("the module needs a function called main, or exactly one public function.")
    return main


def _symbol(operation: Any, default: str) -> str:
    return _text(operation.attributes, "sym_name", default)


def _text(attributes: Any, name: str, default: str) -> str:
    return _jax.ir.StringAttr(attributes[name]).value if name in attributes else default


def _own_argument_names(block: Any) -> list[str]:
    names = []
    for i, argument in enumerate(block.arguments):
        text = str(argument.location)
        plain = text.startswith('loc("') and text.endswith('")')
        names.append(text[5:-2] if plain else f"arg{i}")
    return names if len(set(names)) == len(names) else [f"arg{i}" for i in range(len(names))]


@dataclass
class _Class:
    """What all ops of one class share."""

    number: int
    kind: str
    rule: Rule
    flops: int


@dataclass
class _Walk:
    functions: dict[str, Any]
    sources: Sources
    user_rules: Mapping[str, str]
    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    operations: list[Any] = field(default_factory=list)
    """The MLIR operation of each op."""
    _ids: dict[Any, int] = field(default_factory=dict)
    _types: dict[Any, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    _classes: dict[Any, _Class] = field(default_factory=dict)

    def region(self, block: Any, *, op: int, role: str, caller: Source) -> int:
        """Walk a block as a region of its own; returns the region's number."""
        number = len(self.regions)
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
            if name in _TERMINATORS:
                return operands
            if name == "func.call":
                self._inline(operation, operands, region, caller)
            else:
                self._op(operation, name, operands, region, caller)
        return ()

    def _inline(self, call: Any, operands: tuple[int, ...], region: int, caller: Source) -> None:
        callee = self.functions[_jax.ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        body = callee.regions[0].blocks[0]
        self._ids.update(zip(body.arguments, operands, strict=True))
        results = self.block(body, region, self.sources.of(call.location, caller))
        self._ids.update(zip(call.results, results, strict=True))

    def _op(self, operation: Any, name: str, operands: tuple[int, ...], region: int, caller: Source) -> None:
        number = len(self.ops)
        source = self.sources.of(operation.location, caller)
        results = tuple([self._define(v, number, region) for v in operation.results])
        cls = self._class(operation, name, operands, results, source)
        op = Op(
            kind=cls.kind,
            operands=operands,
            results=results,
            rule=cls.rule,
            region=region,
            source=source,
            signature=cls.number,
            flops=cls.flops,
            attributes=_attributes(operation, name, self.values[results[0]] if results else None),
        )
        self.ops.append(op)
        self.operations.append(operation)
        if name in _REGION_ROLES or name in _BRANCHES:
            roles = _REGION_ROLES.get(name) or ("branch",) * len(operation.regions)
            regions = tuple(
                self.region(r.blocks[0], op=number, role=role, caller=source)
                for r, role in zip(operation.regions, roles, strict=True)
            )
            self.ops[number] = replace(op, regions=regions)

    def _define(self, value: Any, op: int, region: int) -> int:
        number = len(self.values)
        shape, dtype = self._type(value.type)
        self.values.append(Value(shape, dtype, op, region))
        self._ids[value] = number
        return number

    def _type(self, type_: Any) -> tuple[tuple[int, ...], str]:
        known = self._types.get(type_)
        if known is None:
            if isinstance(type_, _jax.ir.RankedTensorType):
                if not type_.has_static_shape:
                    raise ModuleError(f"the module has a tensor of dynamic shape ({type_}); give every size a number.")
                known = tuple(type_.shape), str(type_.element_type)
            else:
                known = (), str(type_)
            self._types[type_] = known
        return known

    def _class(
        self, operation: Any, name: str, operands: tuple[int, ...], results: tuple[int, ...], source: Source
    ) -> _Class:
        attributes = operation.attributes
        given = attributes["sdy.sharding_rule"] if "sdy.sharding_rule" in attributes else None
        values = self.values
        key = (
            name,
            given,
            tuple([(values[v].shape, values[v].dtype) for v in operands]),
            tuple([(values[v].shape, values[v].dtype) for v in results]),
            tuple([attributes[a] if a in attributes else None for a in _DISTINGUISHING.get(name, ())]),
        )
        known = self._classes.get(key)
        if known is None:
            ins, outs = ([values[v].shape for v in side] for side in (operands, results))
            rule = self._rule(name, attributes, given, ins, outs, source)
            kind = name.partition(".")[2]
            known = _Class(len(self._classes), kind, rule, _flops(name, attributes, rule, ins, outs))
            self._classes[key] = known
        return known

    def _rule(
        self,
        name: str,
        attributes: Any,
        given: Any,
        operands: list[tuple[int, ...]],
        results: list[tuple[int, ...]],
        source: Source,
    ) -> Rule:
        target = _text(attributes, "call_target_name", "") if name == "stablehlo.custom_call" else ""
        if target in self.user_rules:
            try:
                return rules.parse(self.user_rules[target], operands, results)
            except rules.RuleError as error:
                raise rules.RuleError(f"at {source}: {error}") from None
        shapes = operands + results
        if given is not None:
            rule = rules.from_shardy(given, _jax.sdy, shapes)
            cut = _CUTS.get(name)
            return cut(rule, shapes, attributes) if cut and rule.halo else rule
        if name in _TYING:
            return rules.NONE
        if name in ("chlo.top_k", "stablehlo.top_k"):
            return rules.batched(operands, results, len(operands[0]) - 1)
        if name == "chlo.ragged_dot":
            return _ragged_dot(attributes, shapes)
        alike = len(results) == 1 and all(s == results[0] for s in operands) and len(operands) > 0
        if alike and (name in _IDENTITIES or target in _IDENTITY_CALLS or _is_plain_chlo(name)):
            return rules.elementwise(results[0], len(operands), 1)
        return rules.opaque(operands, results)


_NOT_ELEMENTWISE_CHLO = frozenset({"chlo.top_k", "chlo.ragged_dot", "chlo.scan"})


def _is_plain_chlo(name: str) -> bool:
    return name.startswith("chlo.") and name not in _NOT_ELEMENTWISE_CHLO


_Cut = Callable[[Rule, Sequence[tuple[int, ...]], Any], Rule]
_CUTS: Mapping[str, _Cut] = {
    "stablehlo.slice": lambda rule, shapes, a: rules.cut_slice(rule, shapes, list(a["strides"])),
    "stablehlo.pad": lambda rule, shapes, a: rules.cut_pad(rule, shapes, list(a["interior_padding"])),
    "stablehlo.concatenate": lambda rule, shapes, _: rules.cut_concatenate(rule, shapes),
    "stablehlo.reduce_window": lambda rule, shapes, a: rules.cut_window(rule, shapes, list(a["window_dimensions"])),
}


def _ragged_dot(attributes: Any, shapes: Sequence[tuple[int, ...]]) -> Rule:
    numbers = _jax.chlo.RaggedDotDimensionNumbers(attributes["ragged_dot_dimension_numbers"])
    return rules.ragged_dot(
        shapes,
        batch=(list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)),
        contracting=(list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)),
        ragged=next(iter(numbers.lhs_ragged_dimensions)),
        groups=list(numbers.rhs_group_dimensions),
    )


def _flops(
    name: str, attributes: Any, rule: Rule, operands: list[tuple[int, ...]], results: list[tuple[int, ...]]
) -> int:
    if name in ("stablehlo.dot_general", "stablehlo.dot"):
        return dot_flops(rule)
    if name == "chlo.ragged_dot":  # every row meets one group's matrix
        rows_and_columns = results[0]
        contracted = [rule.sizes[f] for f in rule.reduction]
        size = 2
        for n in (*rows_and_columns, *contracted):
            size *= n
        return size
    if name == "stablehlo.convolution":
        return _convolution(attributes, operands[0], operands[1], results[0])
    return 0


def _convolution(attributes: Any, lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...]) -> int:
    numbers = _jax.stablehlo.ConvDimensionNumbers(attributes["dimension_numbers"])
    rank = len(numbers.input_spatial_dimensions)

    def ints(name: str, default: int) -> list[int]:
        return list(attributes[name]) if name in attributes else [default] * rank

    pad = _jax.ir.DenseIntElementsAttr(attributes["padding"]) if "padding" in attributes else None
    lows = [int(pad[2 * i]) for i in range(rank)] if pad is not None else [0] * rank
    stride, dilate_in, dilate_taps = (ints(n, 1) for n in ("window_strides", "lhs_dilation", "rhs_dilation"))
    windows = [
        Window(
            size_in=lhs[numbers.input_spatial_dimensions[i]],
            size_out=out[numbers.output_spatial_dimensions[i]],
            taps=rhs[numbers.kernel_spatial_dimensions[i]],
            stride=stride[i],
            pad_low=lows[i],
            dilation_in=dilate_in[i],
            dilation_taps=dilate_taps[i],
        )
        for i in range(rank)
    ]
    per_point = out[numbers.output_batch_dimension] * out[numbers.output_feature_dimension]
    return convolution_flops(per_point, rhs[numbers.kernel_input_feature_dimension], windows)


_REDUCING = frozenset({"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter", "stablehlo.select_and_scatter"})
_NOTHING: Mapping[str, Any] = {}


def _attributes(operation: Any, name: str, result: Value | None) -> Mapping[str, Any]:
    """The few attributes that later stages read."""
    if name == "stablehlo.constant" and result is not None and not result.shape and result.dtype[0] in "iu":
        return {"value": int(_jax.ir.DenseIntElementsAttr(operation.attributes["value"])[0])}
    if name == "stablehlo.compare":
        return {"direction": str(operation.attributes["comparison_direction"]).split()[-1].rstrip(">")}
    if name == "stablehlo.custom_call":
        return {"target": _text(operation.attributes, "call_target_name", "")}
    if name in _REDUCING:
        inside = [o.operation.name for o in operation.regions[-1].blocks[0].operations]
        return {"reducer": inside[0].partition(".")[2] if len(inside) == 2 else "other"}
    return _NOTHING

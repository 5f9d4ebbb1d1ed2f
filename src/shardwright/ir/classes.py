"""Classes of ops: what all ops of one kind, with one rule and the same types, share.

A class is read from MLIR once, however many layers repeat it: its sharding rule, its FLOPs, and which attributes later
stages need of each op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shardwright import _function, _jax
from shardwright._function import Function
from shardwright._kernel import TARGET, Kernel
from shardwright.compiler import Compiler
from shardwright.compiler.miscompiled import KINDS as MISCOMPILED_KINDS
from shardwright.compiler.miscompiled import Site, forbid
from shardwright.compiler.partitioner import COMPUTED_WHOLE, CUDNN_ATTENTION
from shardwright.errors import RuleError
from shardwright.ir import collective_ops, own_rules, rules
from shardwright.ir.flops import Window, convolution_flops, dot_flops
from shardwright.ir.given import manual_axes
from shardwright.ir.kernel_rules import kernel_rule, split_by_user
from shardwright.ir.kinds import COLLECTIVES
from shardwright.ir.memory import DEVICE, HOST, is_on_host
from shardwright.ir.rules import Rule
from shardwright.ir.user_rules import parse_rule

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]

REGION_ROLES: Mapping[str, tuple[str, ...]] = {
    "stablehlo.while": ("condition", "body"),
    "stablehlo.case": ("branch",),
    "stablehlo.if": ("branch",),
    "sdy.manual_computation": ("manual",),
}
"""Ops whose regions belong to the program, and what these are; the last role serves all that follow."""

_TYING = frozenset({*REGION_ROLES, "stablehlo.optimization_barrier"})
_IDENTITIES = frozenset({"sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.reshard", "sdy.data_flow_edge"})
_TRANSFERS: Mapping[str, str | None] = {"annotate_device_placement": None, "MoveToHost": HOST, "MoveToDevice": DEVICE}
"""Custom calls that move a value between the memories of host and device, and where to if the target alone tells."""
_PLACEMENT = "_xla_buffer_placement"
_IDENTITY_CALLS = frozenset({"Sharding", "LayoutConstraint", *_TRANSFERS})

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
    "stablehlo.custom_call": ("call_target_name", "mhlo.frontend_attributes"),
    "stablehlo.dot_general": ("precision_config",),
    "stablehlo.dot": ("precision_config",),
    "chlo.ragged_dot": ("ragged_dot_dimension_numbers",),
    **{f"stablehlo.{kind}": collective_ops.ATTRIBUTES for kind in COLLECTIVES},
}


@dataclass(frozen=True, eq=False, slots=True)
class TensorType:
    """A shape and an element type; one object for each that occurs, so that it can be told by identity."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class OpClass:
    """What the ops of one class share. ``attributes`` reads what is an op's own, if anything."""

    number: int
    kind: str
    rule: Rule
    flops: int
    attributes: Callable[[Any], Attributes] | None


class ReadKernel(NamedTuple):
    """A Pallas kernel, and which of its results anybody reads."""

    kernel: Kernel
    read: frozenset[int]


@dataclass
class Classes:
    """The classes met so far, numbered in order."""

    user_rules: Mapping[str, str]
    compiler: Compiler
    mesh: Mapping[str, int] | None = None
    """The module's own."""
    kernels: Sequence[Kernel] = ()
    """The Pallas kernels that custom calls stand for by number."""
    functions: Sequence[Function] = ()
    """The functions with a rule of their own that custom calls stand for by number."""
    _known: dict[Any, OpClass] = field(default_factory=dict)
    _classes: dict[Any, OpClass] = field(default_factory=dict)

    def of(self, operation: Any, name: str, operands: Sequence[TensorType], results: Sequence[TensorType]) -> OpClass:
        """The class of an MLIR operation."""
        attributes = operation.attributes
        given = attributes["sdy.sharding_rule"] if "sdy.sharding_rule" in attributes else None
        more = _DISTINGUISHING.get(name)
        own = tuple([attributes[a] if a in attributes else None for a in more]) if more else None
        # All attributes can matter to what the compiler gets wrong, but they make a class only where it does.
        watched = tuple([attributes[a] for a in attributes]) if name in MISCOMPILED_KINDS else None
        kernel = self._kernel(operation) if name == "stablehlo.custom_call" else None
        function = self._function(operation) if name == "stablehlo.custom_call" else None
        if kernel is not None or function is not None:
            own = (*(own or ()), kernel or function)
        types = (len(operands), *operands, *results)
        known = self._known.get((name, given, own, watched, types))
        if known is None:
            ins, outs = [t.shape for t in operands], [t.shape for t in results]
            rule = rules.empty_whole(self._rule(name, attributes, given, kernel, function, ins, outs))
            if name.partition(".")[2] in self.compiler[COMPUTED_WHOLE]:
                rule = replace(rule, whole=frozenset(range(len(rule.sizes))))
            if watched is not None and rule.known:
                rule = rules.restricted(rule, forbid(_site(name, attributes, rule, ins + outs)))
            known = self._classes.get((name, given, own, rule, types))
            if known is None:
                called = kernel.kernel if kernel else function
                known = OpClass(
                    number=len(self._classes),
                    kind=name.partition(".")[2],
                    rule=rule,
                    flops=called.flops if called else _flops(name, attributes, rule, ins, outs),
                    attributes=self._reader(name, results, kernel, function),
                )
            self._known[name, given, own, watched, types] = self._classes[name, given, own, rule, types] = known
        return known

    def _kernel(self, operation: Any) -> ReadKernel | None:
        """The Pallas kernel that a custom call stands for, and which of its results are read."""
        if _jax.MARK not in operation.attributes:
            return None
        kernel = self.kernels[_jax.ir.IntegerAttr(operation.attributes[_jax.MARK]).value]
        return ReadKernel(
            kernel, frozenset(k for k, value in enumerate(operation.results) if any(True for _ in value.uses))
        )

    def _function(self, operation: Any) -> Function | None:
        """The function with a rule of its own that a custom call stands for."""
        if _jax.FUNCTION_MARK not in operation.attributes:
            return None
        return self.functions[_jax.ir.IntegerAttr(operation.attributes[_jax.FUNCTION_MARK]).value]

    def _rule(
        self,
        name: str,
        attributes: Any,
        given: Any,
        kernel: ReadKernel | None,
        function: Function | None,
        operands: list[Shape],
        results: list[Shape],
    ) -> Rule:
        is_call = name == "stablehlo.custom_call"
        target = text_attribute(attributes, "call_target_name", "") if is_call else ""
        called = text_attribute(attributes, "kernel_name", target) if is_call else ""
        for key, what in ((called, "kernel"), (target, "custom call")):
            if key in self.user_rules:
                try:
                    rule = parse_rule(self.user_rules[key], operands, results)
                    if kernel is None:
                        return rule
                    return kernel_rule(*kernel, split_by_user(kernel.kernel, rule, kernel.read))
                except RuleError as error:
                    what = "custom call" if key == target else what
                    raise RuleError(f"for the {what} {key!r}, {error}") from None
        if kernel is not None:
            return kernel_rule(*kernel)
        shapes = operands + results
        if function is not None and function.name in CUDNN_ATTENTION:
            return own_rules.attention_rule(function, operands, results)
        if given is not None:
            rule = rules.from_shardy(given, _jax.sdy, shapes)
            cut = _CUTS.get(name)
            return cut(rule, shapes, attributes) if cut and rule.halo else rule
        if name in _TYING:
            return own_rules.NONE
        if name in ("chlo.top_k", "stablehlo.top_k"):
            return own_rules.batched(operands, results, len(operands[0]) - 1)
        if name == "chlo.ragged_dot":
            return _ragged_dot(attributes, shapes)
        if collective_ops.is_collective(name):
            return collective_ops.rule(attributes, operands, results)
        alike = len(results) == 1 and len(operands) > 0 and all(shape == results[0] for shape in operands)
        if alike and (name in _IDENTITIES or target in _IDENTITY_CALLS or name.startswith("chlo.")):
            return own_rules.elementwise(results[0], len(operands), 1)
        return own_rules.opaque(operands, results)

    def _reader(
        self, name: str, results: Sequence[TensorType], kernel: ReadKernel | None, function: Function | None
    ) -> Callable[[Any], Attributes] | None:
        if function is not None:
            return lambda op: {
                "target": _function.TARGET,
                "kernel": function.name,
                "function": _jax.ir.IntegerAttr(op.attributes[_jax.FUNCTION_MARK]).value,
                "work": function,
            }
        if kernel is not None:
            return lambda op: {
                "target": TARGET,
                "kernel": kernel.kernel.name,
                "call": _jax.ir.IntegerAttr(op.attributes[_jax.MARK]).value,
                "facts": kernel,
            }
        if collective_ops.is_collective(name):
            return lambda op: {"over": collective_ops.axes_of(op, self.mesh)}
        return _reader(name, results)


def text_attribute(attributes: Any, name: str, default: str) -> str:
    """A string attribute's value, or the default."""
    return str(_jax.ir.StringAttr(attributes[name]).value) if name in attributes else default


def _site(name: str, attributes: Any, rule: Rule, shapes: Sequence[Shape]) -> Site:
    """An op as the table of what the compiler gets wrong looks at it."""
    found: dict[str, tuple[int, ...]] = {}
    if name == "stablehlo.convolution":
        found |= _convolution_dimensions(attributes["dimension_numbers"])
    for key in attributes:
        attribute = attributes[key]
        if isinstance(attribute, _jax.ir.IntegerAttr):
            found[key] = (int(attribute.value),)
        elif isinstance(attribute, _jax.ir.DenseI64ArrayAttr | _jax.ir.DenseIntElementsAttr):
            found[key] = tuple([int(attribute[i]) for i in range(len(attribute))])
    return Site(
        name.partition(".")[2], tuple(shapes), rule.tensors, len(rule.operands), rule.halo, rule.reduction, found
    )


def _convolution_dimensions(attribute: Any) -> dict[str, tuple[int, ...]]:
    """Of image, kernel and result: batch (of the kernel: input features), features, then the image's own.

    With them comes the window that a convolution has where it names none.
    """
    n = _jax.stablehlo.ConvDimensionNumbers(attribute)
    rank = len(n.input_spatial_dimensions)
    return {
        "window_strides": (1,) * rank,
        "padding": (0, 0) * rank,
        "lhs_dilation": (1,) * rank,
        "input": (n.input_batch_dimension, n.input_feature_dimension, *n.input_spatial_dimensions),
        "kernel": (
            n.kernel_input_feature_dimension,
            n.kernel_output_feature_dimension,
            *n.kernel_spatial_dimensions,
        ),
        "output": (n.output_batch_dimension, n.output_feature_dimension, *n.output_spatial_dimensions),
    }


_Cut = Callable[[Rule, Sequence[Shape], Any], Rule]
_CUTS: Mapping[str, _Cut] = {
    "stablehlo.slice": lambda rule, shapes, a: rules.cut_slice(rule, shapes, list(a["strides"])),
    "stablehlo.pad": lambda rule, shapes, a: rules.cut_pad(rule, shapes, list(a["interior_padding"])),
    "stablehlo.concatenate": lambda rule, shapes, _: rules.cut_concatenate(rule, shapes),
    "stablehlo.reduce_window": lambda rule, shapes, a: rules.cut_window(rule, shapes, list(a["window_dimensions"])),
}


def _ragged_dot(attributes: Any, shapes: Sequence[Shape]) -> Rule:
    numbers = _jax.chlo.RaggedDotDimensionNumbers(attributes["ragged_dot_dimension_numbers"])
    return own_rules.ragged_dot(
        shapes,
        batch=(list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)),
        contracting=(list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)),
        ragged=next(iter(numbers.lhs_ragged_dimensions)),
        groups=list(numbers.rhs_group_dimensions),
    )


def _flops(name: str, attributes: Any, rule: Rule, operands: list[Shape], results: list[Shape]) -> int:
    if name in ("stablehlo.dot_general", "stablehlo.dot"):
        return dot_flops(rule)
    if name == "chlo.ragged_dot":  # every row meets one group's matrix, or another row of its group
        left, right = ({f for dim in dims for f in dim} for dims in rule.operands[:2])
        return 2 * math.prod(rule.sizes[f] for f in left | (right - rule.whole))
    if name == "stablehlo.convolution":
        return _convolution(attributes, operands[0], operands[1], results[0])
    return 0


def _convolution(attributes: Any, lhs: Shape, rhs: Shape, out: Shape) -> int:
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


def _reader(name: str, results: Sequence[TensorType]) -> Callable[[Any], Attributes] | None:
    """How to read the few attributes of an op that later stages need."""
    if name == "stablehlo.constant" and not results[0].shape and results[0].dtype[0] in "iu":
        return lambda op: {"value": int(_jax.ir.DenseIntElementsAttr(op.attributes["value"])[0])}
    if name == "stablehlo.compare":
        return lambda op: {"direction": str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")}
    if name == "stablehlo.slice":
        return lambda op: {"start": _integers(op, "start_indices"), "strides": _integers(op, "strides")}
    if name == "stablehlo.concatenate":
        return lambda op: {"dimension": int(_jax.ir.IntegerAttr(op.attributes["dimension"]).value)}
    if name in ("stablehlo.dot_general", "stablehlo.dot"):
        return lambda op: {"precise": _is_precise(op)}
    if name == "stablehlo.custom_call":
        return _call_names
    if name == "sdy.manual_computation":
        return lambda op: {"manual": manual_axes(op)}
    if name in ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter", "stablehlo.select_and_scatter"):
        return lambda op: {"reducer": _reducer(op.regions[-1].blocks[0])}
    return None


def _call_names(op: Any) -> Attributes:
    names = {"target": text_attribute(op.attributes, "call_target_name", "")}
    if "kernel_name" in op.attributes:
        names["kernel"] = text_attribute(op.attributes, "kernel_name", "")
    if names["target"] in _TRANSFERS:
        names["to"] = _TRANSFERS[names["target"]] or _placement(op.attributes)
    return names


def _placement(attributes: Any) -> str:
    """The memory that a value is moved to, by the attribute with which JAX writes it."""
    found = attributes["mhlo.frontend_attributes"] if "mhlo.frontend_attributes" in attributes else None
    kind = text_attribute(found, _PLACEMENT, DEVICE) if found is not None else DEVICE
    return HOST if is_on_host(kind) else DEVICE


def _is_precise(op: Any) -> bool:
    """Whether a product asked for more than its type's default precision."""
    return "precision_config" in op.attributes and "HIGH" in str(op.attributes["precision_config"])


def _integers(op: Any, name: str) -> tuple[int, ...]:
    return tuple(_jax.ir.DenseI64ArrayAttr(op.attributes[name]))


def _reducer(block: Any) -> str:
    """``add``, ``maximum``, …: the one op that a reduction's body applies, else "other"."""
    inside = [op.operation.name for op in block.operations]
    return inside[0].partition(".")[2] if len(inside) == 2 else "other"

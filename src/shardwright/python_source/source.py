"""``plan.to_python``: the plan as Python to paste, for whoever wants nothing from us but the specs."""

from __future__ import annotations

import json
import keyword
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import jax

from shardwright.apply import spec_text
from shardwright.errors import PlanError
from shardwright.frontend.calls import Positional, positional_call
from shardwright.frontend.in_place import Updating
from shardwright.frontend.names import parameter_names
from shardwright.price.estimate import headline
from shardwright.python_source.inside import Constraint, interior_constraints, kernel_comments
from shardwright.python_source.literals import WIDTH, Literals, Node, node_of

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_MOST_CONSTRAINTS = 50
_TAKEN = (
    "in_specs",
    "out_specs",
    "in_memory",
    "in_kinds",
    "out_kinds",
    "mesh",
    "step",
    "planned",
    "by_path",
    "by_position",
    "args",
    "result",
    "jax",
    "P",
)

_BY_PATH = '''\
def by_path(tree, specs):
    """A tree like this one, with the spec of each leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, _: specs[jax.tree_util.keystr(path)], tree)
'''
_SHARDINGS = "jax.tree.map(lambda spec: NamedSharding(mesh, spec), {}_specs)"
_IN_MEMORY = '''\
def in_memory(specs, kinds):
    """The specs on the mesh, each leaf in the kind of memory where it lives."""
    leaves, tree = jax.tree.flatten(specs)
    return jax.tree.unflatten(tree, [NamedSharding(mesh, s, memory_kind=k) for s, k in zip(leaves, kinds, strict=True)])
'''
_ON_DEVICE = "device"


def to_python(plan: Plan, *, constraints: bool = True) -> str:
    """Imports, the mesh, the specs and ``jax.jit``; what the plan decides inside of the function as comments."""
    specs = plan.argument_specs
    if isinstance(plan.fn, Updating):
        raise PlanError(
            f"{plan.analysis.program.name} changes {next(iter(plan.fn.changes))} in place and does not return it, "
            "which jax.jit would lose; run the plan with plan.jit, or let it return what it changes."
        )
    if _structure(specs) != _structure(plan.args) or _structure(plan.out_specs) != _structure(plan.result):
        raise PlanError(
            "some leaves of the arguments or the result are no arrays, which jax.jit does not take; "
            "run the plan with plan.jit, or close over them."
        )
    name = plan.analysis.program.name
    function = name if name.isidentifier() and not keyword.iskeyword(name) else "fn"
    names = parameter_names(plan.fn, len(plan.args))
    arguments = Node(
        "tuple",
        "",
        (),
        tuple(node_of(tree, f"args[{k}]", names[k]) for k, tree in enumerate(specs)),
        "args",
        "in",
    )
    result = node_of(plan.out_specs, "result", "out")
    same = arguments.content == result.content
    literals = Literals([arguments] if same else [arguments, result], [*_TAKEN, function])
    plain = not any(node.kind == "path" for root in (arguments, result) for node in root.walk())
    call = positional_call(plan.fn)
    jitted = function if call is None else "by_position"
    body = _plain(plan, jitted, literals, arguments, result)
    if not plain:
        body = _like_arguments(plan, jitted, literals, arguments, result)
    adapted = [] if call is None else _by_position(call, function)
    head = [*_head(plan, function, plain), *adapted]
    kernels = kernel_comments(plan, WIDTH + 20)
    return "\n".join([*head, *literals.definitions(), *body, *kernels, *_inside(plan, constraints)]) + "\n"


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def _head(plan: Plan, function: str, plain: bool) -> list[str]:
    axes = plan.partitioned.mesh
    about = " × ".join(f"{name} {size}" for name, size in plan.mesh.items())
    types = f"axis_types=(AxisType.Auto,) * {len(axes.sizes)}"
    return [
        f"# {plan.analysis.program.name} on {axes.devices} × {plan.device.name} ({about}).",
        *(f"# {line}" for line in textwrap.wrap(f"Estimate: {headline(plan.estimate)}.", WIDTH)),
        f"# {function} is the function that was planned; import it, or paste this below it.",
        "",
        "import jax",
        "from jax.sharding import AxisType, NamedSharding",
        "from jax.sharding import PartitionSpec as P",
        "",
        f"mesh = jax.make_mesh({axes.sizes}, {_tuple(axes.names)}, {types})",
        "",
        *([] if plain else ["", *_BY_PATH.splitlines(), "", ""]),
        *(_kinds(plan) if _has_kinds(plan) else []),
    ]


def _has_kinds(plan: Plan) -> bool:
    return any(plan.argument_kinds) or any(plan.analysis.program.result_kinds)


def _kinds(plan: Plan) -> list[str]:
    """Where each leaf of arguments and results lives, for a program that has some of them on the host."""
    told = {"in": plan.argument_kinds, "out": plan.analysis.program.result_kinds}
    lines = ["", *_IN_MEMORY.splitlines(), "", ""]
    for name, kinds in told.items():
        runs = [(kind or _ON_DEVICE, len(list(same))) for kind, same in groupby(kinds)]
        lines.append(f"{name}_kinds = " + " + ".join(f'{count} * ["{kind}"]' for kind, count in runs))
    return lines


def _by_position(call: Positional, function: str) -> list[str]:
    """The function of arguments by position, which are all that ``jax.jit`` takes shardings of."""
    own = {name: f"args[{k}]" for k, name in enumerate(call.argument_names)}
    static = {name: _literal(value) or name for name, value in call.static.items()}
    values = own | static
    keywords = [*call.keywords, *(name for name in static if name not in call.given)]
    passed = [*(values[name] for name in call.given), *(f"{name}={values[name]}" for name in keywords)]
    return [
        "",
        "def by_position(*args):",
        f'    """{function} with its keyword arguments last: jax.jit takes shardings by position alone."""',
        *(f"    # {name} is the value that was planned for." for name in static if static[name] == name),
        f"    return {function}({', '.join(passed)})",
        "",
        "",
    ]


def _plain(plan: Plan, function: str, literals: Literals, arguments: Node, result: Node) -> list[str]:
    same = result.content == arguments.content
    shadows = function == "by_position" and plan.analysis.program.name == "step"  # it would call itself
    step = "planned_step" if shadows else "step"
    return [
        f"in_specs = {literals.expression(arguments, 0, len('in_specs = '))}",
        f"out_specs = {'in_specs' if same else literals.expression(result, 0, len('out_specs = '))}",
        "",
        *_jit(plan, function, f"{step} = ", ""),
    ]


def _like_arguments(plan: Plan, function: str, literals: Literals, arguments: Node, result: Node) -> list[str]:
    """Where specs go by path, a tree of them needs the arguments, or their shapes, to be like."""
    traced = any(node.kind == "path" for node in result.walk())
    return [
        "",
        "",
        "def planned(*args):",
        f'    """{function} with its shardings; args are its arguments, or their shapes (jax.eval_shape)."""',
        *([f"    result = jax.eval_shape({function}, *args)"] if traced else []),
        f"    in_specs = {literals.expression(arguments, 4, 4 + len('in_specs = '))}",
        f"    out_specs = {literals.expression(result, 4, 4 + len('out_specs = '))}",
        *_jit(plan, function, "return ", "    "),
        "",
    ]


def _literal(value: Any) -> str | None:
    """A value as Python, if it is short to write."""
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value) if isinstance(value, (bool, int, float, type(None))) else None


def _jit(plan: Plan, function: str, before: str, indent: str) -> list[str]:
    donated = f"    donate_argnums={plan.donate}," if plan.donate else ""
    shardings = "in_memory({0}_specs, {0}_kinds)" if _has_kinds(plan) else _SHARDINGS
    lines = [
        f"{before}jax.jit(",
        f"    {function},",
        f"    in_shardings={shardings.format('in')},",
        f"    out_shardings={shardings.format('out')},",
        *([donated] if donated else []),
        *_options(plan),
        ")",
    ]
    return [indent + line for line in lines]


def _options(plan: Plan) -> list[str]:
    """The options of the compiler that belong to the plan, each with what it is for."""
    if not plan.compiler_options:
        return []
    kept = plan.tuning.options if plan.tuning is not None else ()
    about = {name: f"{option.name}: {100 * option.saved:.1f}% less" for option in kept for name in option.settings}
    lines = [f"    compiler_options={{  # for the compiler of {plan.device.name} alone"]
    for name, value in plan.compiler_options.items():
        said = f"  # {about[name]}" if name in about else ""
        lines.append(f"        {json.dumps(name)}: {json.dumps(value)},{said}")
    return [*lines, "    },"]


def _inside(plan: Plan, wanted: bool) -> list[str]:
    if not wanted:
        return []
    try:
        found = interior_constraints(plan)
    except PlanError as error:
        return ["", f"# What the plan decides inside of the function is not known: {error}"]
    if not found:
        return ["", "# Inside of the function the compiler does by itself what the plan says."]
    lines = [
        "",
        "# Inside of the function the plan says more than the compiler would do by itself. To say so too, constrain",
        "# these tensors at these lines (the backward pass follows), and call the step under jax.set_mesh(mesh):",
    ]
    few = sorted(found, key=lambda c: -c.bytes)[:_MOST_CONSTRAINTS]
    by_line: dict[str, list[Constraint]] = {}
    for c in found:
        if c in few:
            by_line.setdefault(str(c.source), []).append(c)
    for line, constraints in by_line.items():
        lines.append(f"# {line}")
        lines += dict.fromkeys(text for c in constraints for text in _comment(c))
    if len(found) > len(few):
        lines.append(f"# … and {len(found) - len(few)} of smaller tensors, which plan.jit() has.")
    return lines


def _comment(c: Constraint) -> list[str]:
    call = f"jax.lax.with_sharding_constraint(x, {spec_text(c.spec)})"
    which = f"# x: {c.tensor}, {c.what}{', backward' * c.source.backward}"
    line = f"#   {call}  {which}"
    return [line] if len(line) <= WIDTH + 20 else [f"#   {which}", f"#   {call}"]


def _tuple(names: Sequence[str]) -> str:
    inner = ", ".join(f'"{name}"' for name in names)
    return f"({inner},)" if len(names) == 1 else f"({inner})"

"""What the parameters of a ``pallas_call`` say, read into plain data.

Like ``_jax.py``, this file reads what JAX does not promise to keep: the grid and block mappings of Pallas, and how the
primitives of a kernel's body name the memory that they touch. It imports nothing private.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwright._kernel import ALL, ROUNDED, SOME, Access, Atom, Block, Code, Constant, Kernel, Place, Span, Step

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Calls, each with the parameter that is what is called."""
_TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "erf", "rsqrt", "sqrt", "pow"}
)


CUDNN_PRODUCTS = {"dot_product_attention_fwd": 2, "dot_product_attention_bwd": 5}
"""Products as large as that of queries and keys in cuDNN's attention (Dao, "FlashAttention-2", 2023)."""


def open_jaxpr(jaxpr: Any) -> Any:
    """A jaxpr without the constants that it may be closed over."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def read_kernel(params: Mapping[str, Any], operands: Sequence[Any]) -> Kernel:
    """What a kernel's parameters say of it."""
    mapping, body = params["grid_mapping"], open_jaxpr(params["jaxpr"])
    blocks = [_block(mapped, len(mapping.grid)) for mapped in mapping.block_mappings]
    scalars = len(operands) - mapping.num_inputs
    own = [k for k in range(len(mapping.grid)) if k not in mapping.vmapped_dims]
    semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    declared = zip(own, semantics, strict=False)
    work = params["cost_estimate"]
    flops, transcendentals = (0, 0) if work is not None else work_of(body)
    sizes = [size if isinstance(size, int) else 1 for size in mapping.grid]
    steps, bounds = math.prod(sizes), mapping.num_dynamic_grid_bounds
    try:
        code, unread = _Reader(own).code(body), ""
    except (AttributeError, KeyError, TypeError, ValueError):  # as another version of JAX may write it
        code, unread = Code((), (), ()), "belongs to a kernel whose code is not understood"
    return Kernel(
        name=params["name"] or body.debug_info.func_name,
        grid=tuple(sizes),
        scalars=tuple(tuple(aval.shape) for aval in operands[:scalars]),
        operands=tuple(blocks[: mapping.num_inputs]),
        results=tuple(blocks[mapping.num_inputs :]),
        body=code,
        scratch=tuple(str(getattr(aval, "dtype", "")) for aval in mapping.scratch_avals),
        parallel=frozenset(mapping.vmapped_dims) | {k for k, word in declared if "parallel" in str(word).lower()},
        aliases=tuple((int(operand) + bounds, int(result)) for operand, result in params["input_output_aliases"]),
        fixed=_fixed(params, code) or unread,
        flops=work.flops if work is not None else flops * steps,
        transcendentals=work.transcendentals if work is not None else transcendentals * steps,
        dynamic=frozenset(k for k, size in enumerate(mapping.grid) if not isinstance(size, int)),
        bounds=bounds,
    )


def _fixed(params: Mapping[str, Any], code: Code) -> str:
    mapping = params["grid_mapping"]
    if mapping.get_grid_indices is not None or mapping.local_grid_env is not None or params["mesh"] is not None:
        return "belongs to a grid that is mapped to cores by the kernel itself"
    if any(block.transforms for block in mapping.block_mappings):
        return "belongs to a kernel whose blocks are stored in another order"
    if any(step.op in _REMOTE for step in code.everything()):
        return "belongs to a kernel that talks to other devices by itself"
    return ""


_REMOTE = frozenset({"axis_index", "get_barrier_semaphore", "dma_remote", "semaphore_signal"})


def _block(mapped: Any, indices: int) -> Block:
    """Where the block of an array lies, by its index map."""
    place = _Reader(range(indices), by_number=False).code(open_jaxpr(mapped.index_map_jaxpr))
    shape = tuple(mapped.array_aval.shape)
    sizes, units = [], []
    for size, whole in zip(mapped.block_shape, shape, strict=True):
        kind, part = type(size).__name__, getattr(size, "block_size", None)
        sizes.append(1 if kind == "Squeezed" else whole if part is None else part)
        unpadded = kind == "Element" and not any(getattr(size, "padding", None) or (0, 0))
        units.append(sizes[-1] if kind in ("Blocked", "Squeezed") else int(unpadded))
    if len(place.outs) != len(shape):
        place = Code(place.params, place.steps, ())
    seen = tuple(d for d, size in enumerate(mapped.block_shape) if type(size).__name__ != "Squeezed")
    bits = 8 * mapped.array_aval.dtype.itemsize
    return Block(shape, bits, tuple(sizes), tuple(units), place, indices, seen)


class _Reader:
    """Reads a jaxpr into code, its variables numbered in order."""

    def __init__(self, own: Sequence[int], *, by_number: bool = True) -> None:
        self.own = own if by_number else ()
        self.count = 0

    def code(self, jaxpr: Any) -> Code:
        env: dict[Any, Atom] = dict.fromkeys(jaxpr.constvars, Constant(None))
        params = self._new(jaxpr.invars, env)
        steps = self._steps(jaxpr, env)
        return Code(params, steps, tuple(self._atom(v, env) for v in jaxpr.outvars))

    def _new(self, variables: Sequence[Any], env: dict[Any, Atom]) -> tuple[int, ...]:
        first = self.count
        self.count += len(variables)
        env.update({v: first + n for n, v in enumerate(variables)})
        return tuple(range(first, self.count))

    def _atom(self, v: Any, env: Mapping[Any, Atom]) -> Atom:
        if not hasattr(v, "val"):
            return env[v] if hasattr(v, "aval") else Constant(v if isinstance(v, (int, float)) else None)
        value = np.asarray(v.val) if isinstance(v.val, (bool, int, float, np.generic, np.ndarray)) else None
        if value is None or value.shape or value.dtype.kind not in "biuf":
            return Constant(None)
        return Constant(value.item())

    def _steps(self, jaxpr: Any, env: dict[Any, Atom], first: int = 0) -> tuple[Step, ...]:
        """The steps of a jaxpr from its first equation on, or a later one."""
        steps: list[Step] = []
        for equation in jaxpr.eqns[first:]:
            called = CALLS.get(equation.primitive.name)
            if called and called in equation.params:
                self._inline(equation, equation.params[called], env, steps)
            elif equation.primitive.name == "cond":
                steps.extend(self._cond(equation, env))
            else:
                steps.append(self._step(equation, env))
        return tuple(steps)

    def _inline(self, equation: Any, called: Any, env: dict[Any, Atom], steps: list[Step]) -> None:
        inside = self._bound(called, equation.invars, env)
        steps.extend(self._steps(open_jaxpr(called), inside))
        for out, v in zip(equation.outvars, open_jaxpr(called).outvars, strict=True):
            env[out] = self._atom(v, inside)

    def _bound(self, called: Any, operands: Sequence[Any], env: dict[Any, Atom]) -> dict[Any, Atom]:
        """The variables of a jaxpr whose first parameters are what is around it."""
        jaxpr = open_jaxpr(called)
        inside: dict[Any, Atom] = dict.fromkeys(jaxpr.constvars, Constant(None))
        inside.update({v: self._atom(o, env) for v, o in zip(jaxpr.invars, operands, strict=False)})
        return inside

    def _step(self, equation: Any, env: dict[Any, Atom]) -> Step:
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, env)
        if name == "while":
            return self._while(equation, env)
        if name == "run_scoped" and len(open_jaxpr(equation.params["jaxpr"]).constvars) == len(equation.invars):
            jaxpr = open_jaxpr(equation.params["jaxpr"])
            inside = {v: self._atom(o, env) for v, o in zip(jaxpr.constvars, equation.invars, strict=True)}
            params = self._new(jaxpr.invars, inside)
            body = Code(params, self._steps(jaxpr, inside), tuple(self._atom(v, inside) for v in jaxpr.outvars))
            return Step("scoped", (), self._new(equation.outvars, env), bodies=(body,))
        if name in ("program_id", "num_programs"):
            axis = self.own[equation.params["axis"]] if self.own else -1
            return Step(name, (), self._new(equation.outvars, env), axis=axis, dtype="int32")
        accesses, ins = self._touched(equation, env)
        scalar = [v.aval for v in equation.outvars if not getattr(v.aval, "shape", (0,))]
        dtype = str(scalar[0].dtype) if len(equation.outvars) == len(scalar) == 1 else ""
        inner = [j for v in equation.params.values() for j in (v if isinstance(v, (tuple, list)) else (v,))]
        inner = [open_jaxpr(j) for j in inner if hasattr(open_jaxpr(j), "eqns")]
        if name == "dma_start" and _is_remote(equation):
            name = "dma_remote"
        if name == "convert_element_type" and np.dtype(equation.params["new_dtype"]).kind not in "biu":
            dtype = ""
            if all(_is_wide_float(v.aval.dtype) for v in (*equation.invars, *equation.outvars)):
                name = ROUNDED
        return Step(
            name,
            ins,
            self._new(equation.outvars, env),
            accesses,
            dtype=dtype,
            effect=bool(equation.effects) or bool(accesses) or name.startswith("prng_"),
            asked=frozenset(k for jaxpr in inner for k in self._asked(jaxpr)),
        )

    def _cond(self, equation: Any, env: dict[Any, Atom]) -> Iterator[Step]:
        """Branches, after the steps that all of them begin with, which are done whichever is taken."""
        pred, *operands = equation.invars
        branches = [open_jaxpr(branch) for branch in equation.params["branches"]]
        inside = [self._bound(branch, operands, env) for branch in branches]
        same, shared = _beginning(branches)
        yield from self._steps(_Part(branches[0].eqns[:same]), inside[0])
        for found, names in zip(inside[1:], shared, strict=True):
            found.update({v: inside[0][first] for v, first in names.items()})
        bodies = tuple(
            Code((), self._steps(branch, found, same), tuple(self._atom(v, found) for v in branch.outvars))
            for branch, found in zip(branches, inside, strict=True)
        )
        yield Step("cond", (self._atom(pred, env),), self._new(equation.outvars, env), bodies=bodies)

    def _body(self, called: Any, operands: Sequence[Any], new: int, env: dict[Any, Atom]) -> Code:
        """Code in a branch or loop: its last parameters are new, those before are what is around it."""
        jaxpr = open_jaxpr(called)
        inside = self._bound(called, operands, env)
        params = self._new(jaxpr.invars[len(jaxpr.invars) - new :], inside) if new else ()
        return Code(params, self._steps(jaxpr, inside), tuple(self._atom(v, inside) for v in jaxpr.outvars))

    def _scan(self, equation: Any, env: dict[Any, Atom]) -> Step:
        params = equation.params
        if "num_consts" in params:
            consts, carried = params["num_consts"], params["num_carry"]
        else:
            consts, carried = (len(part) for part in params["ft_in"].unpack()[:2])
        changing = equation.invars[consts:]
        body = self._body(params["jaxpr"], equation.invars[:consts], len(changing), env)
        ins = tuple(self._atom(v, env) for v in changing)
        return Step("loop", ins, self._new(equation.outvars, env), bodies=(body,), carried=carried)

    def _while(self, equation: Any, env: dict[Any, Atom]) -> Step:
        params, given = equation.params, equation.invars
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        changing = given[second:]
        goes_on = self._body(params["cond_jaxpr"], given[:first], len(changing), env)
        body = self._body(params["body_jaxpr"], given[first:second], len(changing), env)
        ins = tuple(self._atom(v, env) for v in changing)
        return Step("loop", ins, self._new(equation.outvars, env), bodies=(body, goes_on), carried=len(ins))

    def _asked(self, jaxpr: Any) -> set[int]:
        found: set[int] = set()
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("program_id", "num_programs"):
                found.add(self.own[equation.params["axis"]] if self.own else -1)
            for value in equation.params.values():
                for each in value if isinstance(value, (tuple, list)) else (value,):
                    if hasattr(open_jaxpr(each), "eqns"):
                        found |= self._asked(open_jaxpr(each))
        return found

    def _touched(self, equation: Any, env: dict[Any, Atom]) -> tuple[tuple[Access, ...], tuple[Atom, ...]]:
        """The memory that an operation touches, and what else it reads."""
        name, given = equation.primitive.name, equation.invars
        ins: list[Atom] = []
        found: list[Access] = []

        def touch(ref: Any, transforms: Sequence[Any]) -> None:
            at, read = self._at(transforms, len(ref.aval.shape), env)
            found.append(Access(_number(env[ref]), at))
            ins.extend(read)

        if name in ("get", "swap", "addupdate") and "tree" in equation.params:
            value = 0 if name == "get" else 1
            ins += [self._atom(v, env) for v in given[1 : 1 + value]]
            touch(given[0], jax.tree.unflatten(equation.params["tree"], given[1 + value :]))
        elif name in ("dma_start", "dma_wait") and "tree" in equation.params:
            for part in jax.tree.unflatten(equation.params["tree"], given):
                for ref in part if isinstance(part, tuple) else (part,):
                    if type(ref).__name__ == "TransformedRef":
                        touch(ref.ref, ref.transforms)
                    elif _is_ref(ref):
                        touch(ref, ())
                    elif hasattr(ref, "aval"):
                        ins.append(self._atom(ref, env))
        else:
            for v in given:
                if _is_ref(v):
                    found.append(Access(_number(env[v]), None))
                else:
                    ins.append(self._atom(v, env))
        return tuple(found), tuple(ins)

    def _at(
        self, transforms: Sequence[Any], rank: int, env: dict[Any, Atom]
    ) -> tuple[tuple[Place, ...] | None, list[Atom]]:
        """Where in memory an operation is at work, and the variables that say so otherwise than as a place."""
        at: list[Place] = [ALL] * rank
        read: list[Atom] = []
        for transform in transforms:
            if type(transform).__name__ != "NDIndexer" or transform.int_indexer_shape:
                return None, self._said(transforms, env)
            left = [d for d in range(rank) if isinstance(at[d], (str, Span))]
            for d, index, size in zip(left, transform.indices, transform.shape, strict=True):
                if type(index).__name__ != "Slice":
                    if at[d] != ALL:
                        return None, self._said(transforms, env)
                    at[d] = self._atom(index, env)
                elif (index.start, index.size, index.stride) != (0, size, 1):
                    starts = [self._atom(v, env) for v in (index.start, index.stride) if hasattr(v, "aval")]
                    if at[d] == ALL and index.stride == 1 and starts and isinstance(starts[0], int):
                        at[d] = Span(starts[0], index.size)
                    elif at[d] == ALL:
                        at[d] = SOME
                        read += starts
                    else:
                        return None, self._said(transforms, env)
        return tuple(at), read

    def _said(self, transforms: Sequence[Any], env: dict[Any, Atom]) -> list[Atom]:
        """All variables by which a place is said."""
        return [self._atom(v, env) for each in transforms for v in jax.tree.leaves(each) if hasattr(v, "aval")]


@dataclass(frozen=True)
class _Part:
    """The first equations of a jaxpr."""

    eqns: Sequence[Any]


def _beginning(branches: Sequence[Any]) -> tuple[int, list[dict[Any, Any]]]:
    """How many equations all branches begin with, and whose variables of the first each of the others has as its own.

    Equations with jaxprs in their parameters are taken for different ones.
    """
    first, *others = branches
    if any(branch.constvars for branch in branches):
        return 0, [{} for _ in others]
    shared = [dict(zip(other.invars, first.invars, strict=True)) for other in others]
    own: list[dict[Any, Any]] = [{} for _ in others]
    for n, equation in enumerate(first.eqns):
        for other, names, mine in zip(others, shared, own, strict=True):
            if (
                n >= len(other.eqns)
                or first.constvars
                or other.constvars
                or not _is_same(equation, other.eqns[n], names)
            ):
                return n, own
            found = dict(zip(other.eqns[n].outvars, equation.outvars, strict=True))
            names.update(found)
            mine.update(found)
    return len(first.eqns), own


def _is_same(one: Any, other: Any, names: Mapping[Any, Any]) -> bool:
    """Whether two equations do the same, as their variables are called in the first."""
    if one.primitive is not other.primitive or len(one.invars) != len(other.invars):
        return False
    for a, b in zip(one.invars, other.invars, strict=True):
        literal = hasattr(a, "val"), hasattr(b, "val")
        if literal[0] != literal[1] or (not literal[0] and names.get(b) is not a):
            return False
        if literal[0] and not (a.aval == b.aval and np.array_equal(np.asarray(a.val), np.asarray(b.val))):
            return False
    if len(one.outvars) != len(other.outvars) or [v.aval for v in one.outvars] != [v.aval for v in other.outvars]:
        return False
    inside = (each for v in one.params.values() for each in (v if isinstance(v, (tuple, list)) else (v,)))
    return not any(hasattr(open_jaxpr(each), "eqns") for each in inside) and bool(one.params == other.params)


def _is_wide_float(dtype: Any) -> bool:
    """Whether a number is a float of 16 bits at least."""
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.floating)) and np.dtype(dtype).itemsize >= 2


def _number(atom: Atom) -> int:
    if isinstance(atom, Constant):
        raise TypeError("memory is never a constant")
    return atom


def _is_ref(v: Any) -> bool:
    return hasattr(v, "aval") and not hasattr(v, "val") and hasattr(v.aval, "inner_aval")


def _is_remote(equation: Any) -> bool:
    """Whether a copy goes to another device, which is the last that it is told."""
    if "tree" not in equation.params:
        return True
    parts = jax.tree.unflatten(equation.params["tree"], equation.invars)
    return parts[-1] is not None


def work_of(jaxpr: Any, times: int = 1) -> tuple[int, int]:
    """FLOPs of products and transcendental operations of one step. Of branches, the one with the most work counts."""
    flops = transcendentals = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "pallas_call":
            kernel = read_kernel(params, [v.aval for v in equation.invars])
            flops += times * kernel.flops
            transcendentals += times * kernel.transcendentals
            continue
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[d] for d in contracted)
            flops += times * 2 * depth * math.prod(equation.outvars[0].aval.shape)
        elif name in CUDNN_PRODUCTS:
            queries, keys = (v.aval.shape for v in equation.invars[:2])
            scores = math.prod(queries[:-1]) * keys[2 if params["layout"] == 1 else 1]
            flops += times * 2 * CUDNN_PRODUCTS[name] * scores * queries[-1]
            transcendentals += times * scores
        elif name in _TRANSCENDENTAL:
            transcendentals += times * math.prod(equation.outvars[0].aval.shape)
        inside = times * params["length"] if name == "scan" else times
        found = []
        for value in params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(open_jaxpr(each), "eqns"):
                    found.append(work_of(open_jaxpr(each), inside))
        if name == "cond":
            found = [max(found)]
        flops += sum(work for work, _ in found)
        transcendentals += sum(work for _, work in found)
    return flops, transcendentals

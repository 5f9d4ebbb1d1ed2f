"""A StableHLO file of any framework, text or bytecode: as a ``Program``, or as a function that JAX can call."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from shardwright import _jax
from shardwright.errors import ModuleError, ShardwrightError
from shardwright.frontend.leaves import host_sharding, memory_kind_of, put_on_host
from shardwright.frontend.names import ALIAS, argument_names, attributes_of, result_names
from shardwright.frontend.parse import parse_file
from shardwright.ir.build import main_of, read_module
from shardwright.ir.classes import text_attribute
from shardwright.ir.loops import TripCounts
from shardwright.ir.memory import MEMORY_KIND, is_on_host
from shardwright.ir.program import Program, Source
from shardwright.ir.user_rules import check_targets

Shapes = tuple[jax.ShapeDtypeStruct, ...]

_DTYPES = {
    "i1": "bool",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
_DONATED = (ALIAS, "jax.buffer_donor")
_SHARDED = ("sdy.sharding", "mhlo.sharding", "sdy.in_shardings")


@dataclass(frozen=True, eq=False)
class StableHLO:
    """A StableHLO module as a function of its main function's arguments; made by ``sw.read_stablehlo``.

    The function takes the arguments one by one and returns a tuple of the results. ``sw.partition(module, *module.args,
    donate=module.donate, mesh=…)`` plans it, and ``plan.to_stablehlo`` writes the module with the plan in it.

    Attributes:
        file: the file that it was read from.
        data: the content of the file.
        args: the shapes of the arguments.
        donate: the positions of arguments whose buffers may be reused, as the module says.
        argument_names, result_names: the names of arguments and results in the module.

    """

    file: Path
    data: bytes
    args: Shapes
    results: Shapes
    donate: tuple[int, ...]
    argument_names: tuple[str, ...]
    result_names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        """What a person calls it: the file's name."""
        return self.file.stem

    @property
    def origin(self) -> Source:
        """Where ops belong that have no line of their own."""
        return Source(str(self.file))

    @property
    def form(self) -> str:
        """``"text"``, ``"bytecode"`` as MLIR writes it, or ``"portable"``: an artifact of StableHLO."""
        return (
            "text" if self.data[:4] != _jax.BYTECODE else "portable" if _jax.artifact_version(self.data) else "bytecode"
        )

    def module(self) -> Any:
        """The module operation, parsed again."""
        return parse_file(self.file, self.data)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run the module, inside of ``jax.jit`` or by itself."""
        if len(args) != len(self.args):
            raise ModuleError(f"{self.file} takes {len(self.args)} arguments, not {len(args)}.")
        for name, given, own in zip(self.argument_names, args, self.args, strict=True):
            if np.shape(given) != own.shape:
                raise ModuleError(
                    f"{name} has the shape {own.shape} in {self.file}, which is fixed, not {np.shape(given)}."
                )
        results: tuple[Any, ...] = self._exported.call(*args)
        return results

    def __repr__(self) -> str:
        return f"StableHLO({str(self.file)!r}: {', '.join(self.argument_names)} -> {', '.join(self.result_names)})"

    @cached_property
    def _exported(self) -> export.Exported:
        # JAX makes an Exported of a function alone: one with these arguments and results, whose module is exchanged.
        # The module is for whatever platform it is called on.
        def stand_in(*_: Any) -> tuple[Any, ...]:
            zeros = [(jnp.zeros(result.shape, result.dtype), memory_kind_of(result)) for result in self.results]
            return tuple(put_on_host(result, kind) for result, kind in zeros)

        made = export.export(
            jax.jit(stand_in, keep_unused=True),
            platforms=["cpu"],
            disabled_checks=[export.DisabledSafetyCheck.platform()],
        )(*self.args)
        module = self.module()
        with module.context:
            main_of(module).attributes["sym_name"] = _jax.ir.StringAttr.get("main")
            serialized = _jax.serialize(module)
        return dataclasses.replace(made, fun_name=self.__name__, mlir_module_serialized=serialized)


def read_stablehlo(path: str | os.PathLike[str]) -> StableHLO:
    """Read a StableHLO module of any framework, text or bytecode, as a function to plan.

    It raises ``ModuleError`` if the module cannot be read, or if JAX cannot call it.
    """
    file = Path(path)
    data = _read(file)
    module = parse_file(file, data)
    with _read_from(file), module.context:
        main = main_of(module)
        _refuse_sharded(module)
        block = main.regions[0].blocks[0]
        names, returned = argument_names(main, data), list(block.operations)[-1].operation.operands
        results = result_names(main, names, len(returned))
        return StableHLO(
            file,
            data,
            args=_shapes(main, "arg_attrs", names, block.arguments),
            results=_shapes(main, "res_attrs", results, returned),
            donate=tuple(
                i for i, given in enumerate(attributes_of(main, "arg_attrs")) if any(d in given for d in _DONATED)
            ),
            argument_names=tuple(names),
            result_names=tuple(results),
        )


def stablehlo_program(
    path: str | os.PathLike[str], *, trip_counts: TripCounts = None, rules: Mapping[str, str] | None = None
) -> Program:
    """Read a module's program alone; it may hold what JAX cannot call, and be sharded already."""
    file = Path(path)
    data = _read(file)
    module = parse_file(file, data)
    with _read_from(file):
        with module.context:
            names = argument_names(main_of(module), data)
        program = read_module(
            module,
            name=file.stem,
            argument_paths=names,
            origin=Source(str(file)),
            trip_counts=trip_counts,
            user_rules=rules,
        ).program
        check_targets(program, rules)
        return program


@contextlib.contextmanager
def _read_from(file: Path) -> Iterator[None]:
    """Say which file it is that cannot be taken; files come from strangers, with what nobody has thought of."""
    try:
        yield
    except ModuleError as error:
        raise ModuleError(f"{file}: {error}") from None
    except ShardwrightError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise ModuleError(
            f"{file} has something in it that is not understood ({type(error).__name__}: {reason}); please report it, "
            "with the file."
        ) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise ModuleError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}.") from None


def _shapes(main: Any, each: str, names: Sequence[str], values: Sequence[Any]) -> Shapes:
    """Arguments or results as JAX has them, each in the memory that the module tells."""
    told = attributes_of(main, each) or [{}] * len(values)
    kinds = [text_attribute(attributes, MEMORY_KIND, "") for attributes in told]
    return tuple(_shape(name, v.type, kind) for name, v, kind in zip(names, values, kinds, strict=True))


def _shape(name: str, type_: Any, memory_kind: str) -> jax.ShapeDtypeStruct:
    """An argument or result as JAX has it."""
    if not isinstance(type_, _jax.ir.RankedTensorType):
        raise ModuleError(f"{name} is a {type_}, which is no array; take it out of the module.")
    if not type_.has_static_shape:
        raise ModuleError(f"the module has a tensor of dynamic shape ({type_}); give every size a number.")
    element = str(type_.element_type)
    dtype = getattr(jnp, _DTYPES.get(element, _float8(element)), None)
    if dtype is None:
        raise ModuleError(f"{name} is a {type_}, whose type JAX does not have.")
    sharding = host_sharding(memory_kind) if is_on_host(memory_kind) else None
    shape = jax.ShapeDtypeStruct(tuple(type_.shape), dtype, sharding=sharding)
    if jax.dtypes.canonicalize_dtype(shape.dtype) != shape.dtype:
        raise ModuleError(
            f'{name} is a {type_} of 64 bits, which JAX must be told to use: jax.config.update("jax_enable_x64", True).'
        )
    return shape


def _float8(element: str) -> str:
    """``f8E4M3FN`` as ``float8_e4m3fn``."""
    return re.sub(r"^f(\d)(E.*)$", lambda m: f"float{m[1]}_{m[2].lower()}", element)


def _refuse_sharded(module: Any) -> None:
    """A module with shardings in it: they would clash with the plan's, and are somebody's decisions."""
    found: list[str] = []

    def look(operation: Any) -> Any:
        attributes = [operation.attributes]
        for each in ("arg_attrs", "res_attrs"):
            attributes += attributes_of(operation, each)
        named = [name for given in attributes for name in _SHARDED if name in given]
        if operation.name.startswith("sdy.") and operation.name not in ("sdy.mesh", "sdy.return"):
            named.append(operation.name)
        if "call_target_name" in operation.attributes and str(operation.attributes["call_target_name"]) == '"Sharding"':
            named.append("custom_call @Sharding")
        found.extend(named)
        return _jax.ir.WalkResult.INTERRUPT if found else _jax.ir.WalkResult.ADVANCE

    _jax.walk(module, look)
    if found:
        raise ModuleError(
            f"it is sharded already ({found[0]}); give the module from before that, and pin what is decided."
        )

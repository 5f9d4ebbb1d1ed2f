"""Plans as files: JSON, versioned, small, and readable; what they imply is derived again when they are loaded."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import jax

from shardwright._files import write_whole
from shardwright._version import __version__
from shardwright.devices import PRESETS, Device, KernelCosts, Link, find_device
from shardwright.errors import DeviceError, PlanError
from shardwright.frontend.names import function_name
from shardwright.frontend.own_shardings import DROP, KEEP
from shardwright.ir.program import Program
from shardwright.plan import schema
from shardwright.plan.tuning import Tuning, tuning_from, unknown_option, written
from shardwright.space import Decision, Whole

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

_MOST_BYTES = 2**24
_WIDTH = 120


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan; nothing half-written stays behind."""
    arguments = {d.name: d.arguments for d in plan.analysis.descriptions}

    def in_words(decision: Decision | Whole) -> dict[str, Any]:
        if isinstance(decision, Whole):
            return {"axis": decision.axis, "whole": decision.path}
        out: dict[str, Any] = {"axis": decision.axis, "dimension": decision.dimension}
        anchors = arguments.get(decision.dimension, ())
        if anchors and decision.dimension not in anchors:
            out["argument"] = anchors[0]  # a name with a * in it is ours alone; this one the user knows
        if any(decision.sides):
            out["sides"] = list(decision.sides)
        if decision.unless:
            out["unless"] = decision.unless
        return out

    content = {
        # Earlier releases would read the decisions and leave the options out; a plan without them they may read.
        "shardwright_plan": schema.VERSION if plan.tuning is None else schema.TUNED_VERSION,
        "function": function_name(plan.fn),
        "mesh": plan.mesh,
        "device": as_written(plan.device),
        "memory_bytes": plan.memory_bytes,
        "decisions": [in_words(decision) for decision in plan.decisions],
        "donate": list(plan.donate),
        **({"constraints": DROP} if plan.options.get("constraints") == DROP else {}),
        **({"tuning": written(plan.tuning)} if plan.tuning is not None else {}),
        "program": fingerprint(plan.analysis.program, plan.options.get("platform")).to_dict(),
    }
    text = _laid_out(content) + "\n"
    try:
        _parsed(text.encode())
    except ValueError as error:
        raise PlanError(f"the plan cannot be saved, because it could not be read again: {error}.") from None
    write_whole(path, text, "the plan")


def _laid_out(content: Any, indent: int = 0) -> str:
    """JSON with what fits on a line on one line, and everything else item by item."""
    line = json.dumps(content, default=methodcaller("item"))  # a figure of a device may be of NumPy's types
    if not isinstance(content, (dict, list)) or indent + len(line) <= _WIDTH:
        return line
    space = " " * (indent + 1)
    if isinstance(content, dict):
        items = [f"{space}{json.dumps(key)}: {_laid_out(value, indent + 1)}" for key, value in content.items()]
        return "{\n" + ",\n".join(items) + f"\n{' ' * indent}}}"
    return "[\n" + ",\n".join(space + _laid_out(item, indent + 1) for item in content) + f"\n{' ' * indent}]"


@dataclass(frozen=True)
class Saved:
    """What a plan file says, with the decisions as they are written; ``program`` is None in files of version 2."""

    function: str
    mesh: dict[str, int]
    device: Device
    memory_bytes: int
    decisions: list[dict[str, Any]]
    donate: tuple[int, ...]
    program: Fingerprint | None
    constraints: str = KEEP
    tuning: Tuning | None = None


def read(path: str | os.PathLike[str]) -> Saved:
    """Read a plan file, every field of it checked: it may come from a stranger."""
    shown = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise PlanError(f"cannot read the plan {shown}: {getattr(error, 'strerror', None) or error}.") from None
    try:
        content = _parsed(data)
        program = content.get("program")
        device = device_from(content["device"])
        _check_options(content.get("tuning"), device)
        return Saved(
            content["function"],
            content["mesh"],
            device,
            content["memory_bytes"],
            content["decisions"],
            tuple(content["donate"]),
            None if program is None else Fingerprint(**program),
            content.get("constraints", KEEP),
            tuning_from(content["tuning"]) if "tuning" in content else None,
        )
    except (schema.DamagedError, DeviceError) as error:
        raise PlanError(f"{shown} is damaged: {str(error).removesuffix('.')}.") from None
    except ValueError as error:
        raise PlanError(f"{shown} is not a plan that this shardwright reads: {error}.") from None


def _check_options(tuning: Mapping[str, Any] | None, device: Device) -> None:
    """Raise where a file has options of the compiler that are none of ours."""
    for k, option in enumerate(tuning["options"] if tuning is not None else ()):
        if reason := unknown_option(device.platform, option["name"], option["settings"]):
            raise schema.DamagedError(f"tuning.options[{k}] is {schema.short(option['name'])}, and {reason}")


def _parsed(data: bytes) -> dict[str, Any]:
    """The content of a plan file; ``DamagedError`` where it is a plan with something wrong, else ``ValueError``."""
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES // 2**20} MiB")
    try:
        content = json.loads(
            data.decode("utf-8-sig"),
            parse_int=schema.whole,
            parse_float=schema.finite,
            parse_constant=schema.no_number,
            object_pairs_hook=schema.unique,
        )
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or "shardwright_plan" not in content:
        raise ValueError("it has no shardwright_plan, which tells the version")
    version = content["shardwright_plan"]
    if type(version) is not int or version not in schema.VERSIONS:
        known = " and ".join(map(str, schema.VERSIONS))
        raise ValueError(f"its version is {schema.short(version)}, and those that are read are {known}")
    return schema.check(content)


def as_written(device: Device) -> str | dict[str, Any]:
    """A preset by its name, another device with all its figures."""
    if PRESETS.get(device.name) == device:
        return device.name
    out = {f.name: getattr(device, f.name) for f in dataclasses.fields(device)}
    return {
        **out,
        "flops_per_second": dict(device.flops_per_second),
        "links": list(map(dataclasses.asdict, device.links)),
        "kernel_costs": dataclasses.asdict(device.kernel_costs),
    }


def device_from(written: str | dict[str, Any]) -> Device:
    """The device that ``as_written`` wrote."""
    if isinstance(written, str):
        return find_device(written)
    tile = written["tile"]
    links = tuple(Link(**link) for link in written["links"])
    costs = KernelCosts(**written.get("kernel_costs", {}))
    return Device(**{**written, "links": links, "tile": tuple(tile) if tile else None, "kernel_costs": costs})


def as_decision(written: dict[str, Any], known: set[str]) -> Decision | Whole:
    """A decision as it was written; by its argument where its name is not known in this program."""
    if "whole" in written:
        return Whole(written["axis"], written["whole"])
    name = written["dimension"]
    if name not in known and "argument" in written:
        name = written["argument"]
    return Decision(written["axis"], name, tuple(written.get("sides", ())), written.get("unless", ""))


_EVERYWHERE = ("dot_general", "convolution")
"""Ops that a program has whatever it is lowered for; many others come and go with the platform and JAX's version."""
_MOST_TOLD = 2


@dataclass(frozen=True)
class Fingerprint:
    """A program's arguments and their types, its results by type, its ops by kind, and a digest of its structure.

    ``made_with`` tells the platform and the versions: the digest, and most kinds, can be compared where it is equal.
    """

    made_with: str
    arguments: Mapping[str, str]
    results: Mapping[str, int]
    ops: Mapping[str, int]
    digest: str

    def to_dict(self) -> dict[str, object]:
        """Of JSON's types alone."""
        return dataclasses.asdict(self)


def fingerprint(program: Program, platform: str | None) -> Fingerprint:
    """The fingerprint of a program that was lowered for a platform."""
    types = [str(value) for value in program.values]
    digest = hashlib.sha256()
    for op in program.ops:
        made = [types[v] for v in op.results]
        digest.update(repr((op.kind, op.operands, made, op.regions, op.rule.operands, op.rule.results)).encode())
    for region in program.regions:
        digest.update(repr((region.parameters, region.results)).encode())
    return Fingerprint(
        f"shardwright {__version__}, jax {jax.__version__}, for {platform or 'any platform'}",
        {argument.path: types[argument.value] for argument in program.arguments},
        _counted(types[v] for v in program.regions[0].results),
        _counted(op.kind for op in program.ops),
        digest.hexdigest()[:16],
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def differences(old: Fingerprint, new: Fingerprint) -> str:
    """In what a program differs from another, as a part of a sentence; nothing if it is the same, as far as known."""
    told = list(_arguments(old.arguments, new.arguments))
    returned = _counts(old.results, new.results)
    if returned:
        told.append(f"it returns {_few(returned, 'other types in other numbers')}")
    return "; ".join(told) or _ops(old, new)


def _arguments(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    changed = [f"{path} is {new[path]} in place of {kind}" for path, kind in old.items() if new.get(path, kind) != kind]
    if changed:
        yield _few(changed, "others have other types")
    for here, there, word in ((old, new, "gone or unused"), (new, old, "new")):
        paths = [path for path in here if path not in there]
        if paths:
            verb = "is" if len(paths) == 1 else "are"
            yield f"the argument{'s' * (len(paths) > 1)} {_few(paths, 'more')} {verb} {word}"


def _ops(old: Fingerprint, new: Fingerprint) -> str:
    alike = old.made_with == new.made_with
    kinds = {*old.ops, *new.ops} if alike else _EVERYWHERE
    counts = _counts(*({kind: ops[kind] for kind in ops if kind in kinds} for ops in (old.ops, new.ops)))
    if counts:
        return f"it has {_few(counts, 'other kinds of operations in other numbers')}"
    if alike and old.digest != new.digest:
        return "it has as many operations of each kind, but in another order or of other values"
    return ""


def _counts(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    """What there is more or less of, the greatest difference first."""
    both = [(kind, old.get(kind, 0), new.get(kind, 0)) for kind in {**old, **new}]
    both.sort(key=lambda counted: -abs(counted[1] - counted[2]))
    return [f"{now} {kind} in place of {before}" for kind, before, now in both if now != before]


def _few(parts: Sequence[str], others: str) -> str:
    """Some of many, and how many more."""
    rest = len(parts) - _MOST_TOLD
    told = [*parts[:_MOST_TOLD], *([f"{rest} {others}"] if rest > 0 else [])]
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)

"""What XLA says in words: that a program does not fit, that a resharding went through a whole copy, why it crashed."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass

from shardwright.ir.program import Source
from shardwright.plan.verdicts import Involuntary
from shardwright.verify.hlo import bytes_of, source_in

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_AMOUNT = r"(\d+(?:\.\d+)?)\s?([KMGT]?)i?B?"
_USED = re.compile(rf"Used {_AMOUNT} of {_AMOUNT} (?:hbm|HBM|memory)")
_EXCEEDS = re.compile(rf"\({_AMOUNT}\) exceeds (?:the )?available \w+ \({_AMOUNT}\)")
_ALLOCATE = re.compile(rf"allocat\w+ {_AMOUNT}(?: bytes)?\b.*?(?:limit|available|free)\w*\D*?{_AMOUNT}", re.DOTALL)

_INVOLUNTARY = re.compile(
    r"\[(?:SPMD|spmd)\] Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go from sharding "
    r"(?P<have>.*?) to (?P<want>.*?) (?:efficiently|without doing a full rematerialization of the tensor)"
    r"(?: for HLO operation:? (?P<operation>.*?))?\.(?: As the last resort| You probably want|\s*$)",
    re.DOTALL | re.MULTILINE,
)
_RESULT = re.compile(r"^%?[\w.\-]+ = (\([^)]*\)|\S+)")
_TILES = re.compile(r"devices=\[([\d,]+)\]")
_MESH = re.compile(r"mesh\[(.*?)\], \[(.*)\]")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_QUOTED = re.compile(r"'([^']+)'")
_BRACES = re.compile(r"\{([^{}]*)\}")
_OTHER_MEMORY = re.compile(r"memory space (?!hbm)\w+|\b(?:vmem|smem)\b")

_ARRAY = re.compile(r"^([a-z]\w*)\[([\d,]*)\]")

_CHECK = re.compile(r"^(?:F\d{4} .*?)?(?P<where>[\w./\-]+:\d+)\] (?P<what>.*\S)")
_FATAL = re.compile(r"^F\d{4} |Check fail")
_TELLING = re.compile(r"Check fail|^F\d{4} |FATAL|Fatal|[Ee]rror|LLVM ERROR|terminate called|SIG[A-Z]+")
_NOISE = re.compile(
    r"^\s*$|^\s+(File|@|at) |^=== Source Location|^learning/|^E0000 .*TPU_WORKER|TPU_ACCELERATOR_TYPE|Extension modules"
    r"|Fatal Python error|^Thread |^Current thread|InitGoogle|^\*\*\* |^PC: "
)


@dataclass(frozen=True)
class Shortage:
    """A program that does not fit: what it needs and what there is, in bytes; None where the message does not say."""

    needed_bytes: int | None
    limit_bytes: int | None


def shortage(message: str) -> Shortage | None:
    """What a RESOURCE_EXHAUSTED error says; None for any other error, such as too little scratch memory on the chip."""
    if ("RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message) or _OTHER_MEMORY.search(message):
        return None
    for pattern in (_USED, _EXCEEDS, _ALLOCATE):
        if found := pattern.search(message):
            return Shortage(_bytes(found[1], found[2]), _bytes(found[3], found[4]))
    return Shortage(None, None)


def involuntary(log: str, frames: dict[int, Source]) -> tuple[Involuntary, ...]:
    """Every such warning in what a compiler printed, largest tensor first, each distinct one once.

    ``frames`` are those of the compiled program, to which the warnings refer.
    """
    found: dict[Involuntary, None] = {}
    for warning in _INVOLUNTARY.finditer(log):
        operation = (warning["operation"] or "").strip()
        result = _RESULT.match(operation)
        shape = _whole(result[1] if result else "", warning["have"])
        source = source_in(operation, frames)
        found[Involuntary(warning["have"], warning["want"], operation, shape, bytes_of(shape), source)] = None
    return tuple(sorted(found, key=lambda warning: -warning.bytes))


def _whole(shape: str, sharding: str) -> str:
    """The shape of the whole tensor, of which the message gives one device's part."""
    array = _ARRAY.match(shape)
    if not array:
        return shape
    dims = [int(d) for d in array[2].split(",") if d]
    ways = _ways(sharding)[: len(dims)]
    ways += [1] * (len(dims) - len(ways))
    return f"{array[1]}[{','.join(str(d * n) for d, n in zip(dims, ways, strict=True))}]"


def _ways(sharding: str) -> list[int]:
    """Into how many parts each dimension is split, from either of the forms in which XLA writes shardings.

    ``{devices=[2,1,4]<=[4,2]T(1,0)}``, and from jaxlib 0.12 on ``{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}``.
    """
    if tiles := _TILES.search(sharding):
        return [int(n) for n in tiles[1].split(",")]
    if mesh := _MESH.search(sharding):
        sizes = {name: int(size) for name, size in _MESH_AXIS.findall(mesh[1])}
        return [math.prod(sizes.get(axis, 1) for axis in _QUOTED.findall(dim)) for dim in _BRACES.findall(mesh[2])]
    return []


def last_words(log: str, returncode: int, process: str = "the compiler's process") -> str:
    """Why a process ended: the signal's name if any, and the check that failed, or the last line that tells something.

    What a failed check prints after itself is where the compiler stood, which tells a user nothing.
    """
    lines = [line.strip() for line in log.splitlines() if not _NOISE.search(line)]
    fatal = [line for line in lines if _FATAL.search(line)]
    telling = [line for line in lines if _TELLING.search(line)] or lines or ["it printed nothing"]
    words = _check(fatal[0]) if fatal else telling[-1]
    if returncode < 0:
        try:
            ended = f"was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            ended = f"was ended by signal {-returncode}"
    else:
        ended = f"ended with exit code {returncode}"
    return f"{process} {ended}: {words[:300]}"


def _check(line: str) -> str:
    """What failed and where, as ``Check failed: a == b (3 vs. 4), in file.cc:801``, of the fatal line of a log."""
    found = _CHECK.search(line)
    return f"{found['what']}, in {found['where']}" if found else line


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])

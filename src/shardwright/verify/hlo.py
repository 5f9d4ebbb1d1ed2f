"""XLA's final program as it prints it (``compiled.as_text()``), read line by line into instructions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shardwright.frontend.trace import lower
from shardwright.ir.program import Source
from shardwright.ir.sources import parse_location

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_PARENTHESIS = re.compile(r"[()]")
_OPERAND = re.compile(r"%([\w.\-]+)|(?:^|[ ,])([A-Za-z_][\w.\-]*)(?=,|$)")
_ARRAY = re.compile(r"\b([a-z]+[a-z0-9]*)\[([^\]]*)\]")
_END = re.compile(r"^\}(?!\})")
_WITH_LAYOUT = re.compile(r"\b[a-z]+[a-z0-9]*\[[^\]]*\](?:\{[^}]*\})?")
_TABLE = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)$")
_TABLE_ROW = re.compile(r'^(\d+) (?:"(.*)"|\{(.*)\})$')
_NUMBER = re.compile(r"(\w+)=(\d+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LIST = re.compile(r"\b(branch_computations|called_computations)=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE_FILE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"')
_SOURCE_LINE = re.compile(r"\bsource_line=(\d+)")
_STACK_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")

_NO_ESTIMATE = 2**62
_DEEPEST_STACK = 200
_OUR_OWN = frozenset({lower.__code__.co_filename})
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_BITS_IN_NAME = re.compile(r"^(?:bf|[fsu])(\d+)")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    ``rest`` is what follows the operands: attributes, metadata and the backend's own configuration, as printed.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    inside: str
    """The text between the parentheses: operands, or a parameter's number, or a constant's value."""
    rest: str
    root: bool = False

    @cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """The computations that it calls, by the attribute that names them."""
        found: dict[str, tuple[str, ...]] = {key: (name,) for key, name in _CALLED.findall(self.rest)}
        for key, names in _CALLED_LIST.findall(self.rest):
            found[key] = tuple(name.strip().lstrip("%") for name in names.split(",") if name.strip())
        return found

    @cached_property
    def estimated_cycles(self) -> int | None:
        """What the TPU compiler expects it to take; it says so for fusions, copies and the like.

        The largest 64-bit number is how it says that it does not know.
        """
        found = _CYCLES.search(self.rest)
        return int(found[1]) if found and int(found[1]) < _NO_ESTIMATE else None

    @property
    def known_trip_count(self) -> int | None:
        """Of a loop, where the compiler wrote it down."""
        found = _TRIPS.search(self.rest)
        return int(found[1]) if found else None

    @property
    def op_name(self) -> str:
        """JAX's name of the op that it comes from, with its transforms."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    def attribute(self, name: str) -> str:
        """The text of an attribute up to the comma that ends it, or nothing."""
        start = re.search(rf"\b{name}=", self.rest)
        return _until_comma(self.rest, start.end()) if start else ""


@dataclass(frozen=True)
class Computation:
    """A named list of instructions."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def root(self) -> Instruction | None:
        """The one whose value it returns."""
        marked = [i for i in self.instructions.values() if i.root]
        return marked[-1] if marked else next(reversed(self.instructions.values()), None)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The parameters' names with their positions."""
        return {i.name: int(i.inside) for i in self.instructions.values() if i.opcode == "parameter"}


@dataclass(frozen=True)
class HloModule:
    """A whole program: its computations, which of them is the entry, and the tables of source lines."""

    computations: dict[str, Computation]
    entry: str
    partitions: int
    frames: dict[int, Source]

    def source(self, instruction: Instruction) -> Source:
        """The line of the user's code that an instruction comes from, as far as the compiler kept it."""
        return source_in(instruction.rest, self.frames)


def source_in(metadata: str, frames: dict[int, Source]) -> Source:
    """The place that an instruction's metadata names, by file and line or by a stack frame."""
    name = _OP_NAME.search(metadata)
    scope = name[1] if name else ""
    if (frame := _STACK_FRAME.search(metadata)) and int(frame[1]) in frames:
        found = frames[int(frame[1])]
        return Source(found.file, found.line, found.function, scope)
    file, line = _SOURCE_FILE.search(metadata), _SOURCE_LINE.search(metadata)
    return Source(file[1], int(line[1]) if line else 0, "", scope) if file else Source(scope=scope)


def parse_hlo(text: str) -> HloModule:
    """Read a printed module; lines that are none of an instruction, a computation or a table's row are passed over."""
    computations: dict[str, Computation] = {}
    tables: dict[str, dict[int, tuple[str, str]]] = {}
    entry, current, table = "", None, None
    partitions = 1
    for line in _whole_lines(text):
        if current is not None and line.startswith(" "):
            if instruction := parse_instruction(line):
                current.instructions[instruction.name] = instruction
        elif line.startswith("HloModule"):
            found = _PARTITIONS.search(line)
            partitions = int(found[1]) if found else 1
        elif _TABLE.match(line):
            table = tables.setdefault(line, {})
        elif table is not None and (row := _TABLE_ROW.match(line)):
            table[int(row[1])] = (row[2] or "", row[3] or "")
        elif head := _COMPUTATION.match(line):
            current, table = computations.setdefault(head[2], Computation(head[2])), None
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
    return HloModule(computations, entry or next(reversed(computations), ""), partitions, _frames(tables))


def _whole_lines(text: str) -> Iterator[str]:
    """Lines as they are meant: what a kernel says of itself is printed over several, in the middle of its own."""
    whole = ""
    for line in text.splitlines():
        if whole.startswith(" ") and line and not line.startswith(" ") and not _END.match(line):
            whole += line
        else:
            yield whole
            whole = line
    yield whole


def parse_instruction(line: str) -> Instruction | None:
    """``ROOT %name = shape opcode(operands), attributes``, or None where the line is something else."""
    head = _INSTRUCTION.match(line)
    if not head:
        return None
    start = head.end()
    end = _closing(line, start) if line.startswith("(", start) else line.find(" ", start)
    opcode = _OPCODE.match(line, end) if end > 0 else None
    if not opcode:
        return None
    close = _closing(line, opcode.end() - 1)
    inside = line[opcode.end() : close - 1]
    operands = tuple(a or b for a, b in _OPERAND.findall(inside))
    return Instruction(head[2], line[start:end], opcode[1], operands, inside, line[close:], bool(head[1]))


def bytes_of(shape: str) -> float:
    """Bytes of all arrays in a printed shape, a tuple's elements summed; padding by the layout is not counted."""
    return sum(
        math.prod(int(d.strip().removeprefix("<=")) for d in dims.split(",") if d.strip()) * bits_of(kind) / 8
        for kind, dims in _ARRAY.findall(shape)
    )


def array_shapes(shape: str) -> list[str]:
    """The arrays of a printed shape, a tuple's one by one, each with its layout."""
    return [found[0] for found in _WITH_LAYOUT.finditer(shape)]


def bits_of(kind: str) -> int:
    """Bits of one element of a type, as XLA spells it (``f8e4m3fn``, ``bf16``, ``s4``, ``pred``)."""
    if kind in _BITS:
        return _BITS[kind]
    found = _BITS_IN_NAME.match(kind)
    return int(found[1]) if found else 0


def _closing(line: str, opening: int) -> int:
    """The position after the parenthesis that closes the one at ``opening``."""
    depth = 0
    for found in _PARENTHESIS.finditer(line, opening):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return len(line)


def _until_comma(text: str, start: int) -> str:
    depth = 0
    for k in range(start, len(text)):
        if text[k] in "{[(":
            depth += 1
        elif text[k] in "}])":
            depth -= 1
        elif text[k] == "," and depth <= 0 and text[k + 1 : k + 2] == " ":
            return text[start:k].strip()
    return text[start:].strip()


def _frames(tables: dict[str, dict[int, tuple[str, str]]]) -> dict[int, Source]:
    """Each stack frame's place in the user's code.

    Newer compilers write files, functions and lines into tables ahead of the program, and refer to the innermost frame
    of each instruction; of it and its callers the one to show is chosen as for any other op.
    """
    files, functions = tables.get("FileNames", {}), tables.get("FunctionNames", {})
    places: dict[int, str] = {}
    for key, (_, row) in tables.get("FileLocations", {}).items():
        numbers = _numbers(row)
        file, _ = files.get(numbers.get("file_name_id", 0), ("", ""))
        function, _ = functions.get(numbers.get("function_name_id", 0), ("", ""))
        places[key] = f'"{function}"("{file}":{numbers.get("line", 0)}:0)'
    frames = {key: _numbers(row) for key, (_, row) in tables.get("StackFrames", {}).items()}
    # Parents are printed one too high, so that the outermost frame seems to be its own; 0 is none.
    high = any(frame.get("parent_frame_id") == key for key, frame in frames.items())
    out: dict[int, Source] = {}
    for key in frames:
        chain: list[str] = []
        at = key
        while at in frames and len(chain) < _DEEPEST_STACK:
            chain.append(places.get(frames[at].get("file_location_id", 0), ""))
            at = frames[at].get("parent_frame_id", 0) - high
        out[key] = parse_location(" at ".join(chain), _OUR_OWN)
    return out


def _numbers(row: str) -> dict[str, int]:
    return {name: int(value) for name, value in _NUMBER.findall(row)}

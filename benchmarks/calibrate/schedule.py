"""The TPU compiler's own schedule (``*.schedule.txt``, text of xla.ScheduleProto): what it takes collectives to last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from shardwright.verify.hlo_totals import KINDS

_DONE, _START = "-done", "-start"


class Latency(NamedTuple):
    """A collective with its cycles in the schedule; ``waited`` where nothing hid its end, so that they are its own."""

    kind: str
    name: str
    channel: str
    cycles: float
    waited: bool


def latencies(text: Iterable[str]) -> Iterator[Latency]:
    """Every collective of a schedule.

    One with a start and a done lasts from the end of its start to the start of its done, if what runs between them
    ends before that.
    """
    root = _parsed(text)
    instructions = {i["id"][0]: i for c in root["hlo_module"][0]["computations"] for i in c["instructions"]}
    for schedule in root["computation_schedules"]:
        when = {i["id"][0]: (_cycles(i, "start"), _cycles(i, "end")) for i in schedule["instructions"]}
        for number, (start, end) in when.items():
            i = instructions[number]
            opcode, name = i["opcode"][0], i["name"][0]
            base = opcode.removesuffix(_DONE)
            if base in KINDS and opcode != base:
                begun = i["operand_ids"][0]
                if begun not in when:
                    continue
                since = when[begun][1]
                between = [w for k, w in when.items() if k != number and w[0] >= since - 0.5 and w[1] <= start + 0.5]
                waited = start - since > sum(b - a for a, b in between) + 5
                channel = instructions[begun].get("channel_id", [""])[0]
                yield Latency(base, name, channel, start - since, waited)
            elif opcode in KINDS:
                yield Latency(opcode, name, i.get("channel_id", [""])[0], end - start, True)
            elif opcode == "fusion" and "all-reduce-scatter" in name:
                yield Latency("reduce-scatter", name, "", end - start, True)


def _cycles(instruction: dict[str, Any], which: str) -> float:
    return float(instruction.get(f"{which}_timestamp_cycles", ["0"])[0])


def _parsed(text: Iterable[str]) -> dict[str, list[Any]]:
    """The text of a message as lists by field."""
    root: dict[str, list[Any]] = defaultdict(list)
    stack = [root]
    for line in map(str.strip, text):
        if line.endswith("{"):
            inner: dict[str, list[Any]] = defaultdict(list)
            stack[-1][line[:-1].strip()].append(inner)
            stack.append(inner)
        elif line == "}":
            stack.pop()
        elif ":" in line:
            key, value = line.split(":", 1)
            stack[-1][key].append(value.strip().strip('"'))
    return root

"""Where ``jax.checkpoint`` stands, or could stand: around the layers of a program, in a scan or written out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwright.advice.around import function_around
from shardwright.advice.draft import Draft, bodies_of
from shardwright.advice.layers import Layers, find_layers, is_forward
from shardwright.advice.numbering import Numbering, find_scans
from shardwright.advice.policy import Policy
from shardwright.advice.scanned import change_scan
from shardwright.advice.unrolled import keep_layers, recompute_layers
from shardwright.ir.program import Program, Source

_MOST = 3


@dataclass(frozen=True)
class Boundary:
    """Layers and what they are: turns of a ``scan``, ``layers`` that are not recomputed, or a region of some that are.

    ``source`` is the innermost function that all of a layer is called from.
    """

    source: Source
    recomputed: bool
    flops: float
    scan: Numbering | None = None
    layers: Layers | None = None
    region: int = -1

    def change(self, draft: Draft, policy: Policy) -> bool:
        """Let a draft keep what the policy says; false if this cannot be done or changes nothing."""
        if self.scan is not None:
            return change_scan(draft, self.scan, policy)
        if self.layers is not None:
            return policy is not Policy.EVERYTHING and recompute_layers(draft, self.layers, policy)
        return policy is not Policy.NOTHING and keep_layers(draft, self.region, policy)


def find_boundaries(program: Program) -> list[Boundary]:
    """Those with the most work in the backward pass, largest first; none in a program without one."""
    if not any(op.source.backward for op in program.ops):
        return []
    found: list[Boundary] = []
    bodies = bodies_of(program)
    scanned = set()
    for scan in find_scans(program):
        body = program.regions[program.ops[scan.backward].regions[-1]]
        scanned.add(program.ops[scan.backward].regions[-1])
        inside = range(body.start, body.stop)
        recomputed = [o for o in inside if program.ops[o].source.recomputed]
        forward = program.regions[program.ops[scan.forward].regions[-1]]
        layer = range(forward.start, forward.stop)
        source = function_around(program, layer) or program.ops[scan.forward].source
        found.append(Boundary(source, bool(recomputed), _flops(program, inside), scan=Numbering(program, scan)))
    for r, body_ops in enumerate(bodies):
        if r in scanned or _computed_again(program, r):
            continue
        again = [o for o in body_ops if program.ops[o].source.recomputed]
        if again:
            source = function_around(program, _first_call(program, body_ops)) or program.ops[again[0]].source
            found.append(Boundary(source, True, _flops(program, again), region=r))
        elif _differentiates(program, body_ops) and (layers := find_layers(program, r, body_ops)) is not None:
            source = function_around(program, layers.ops[-1]) or program.ops[layers.ops[-1][0]].source
            ops = [o for layer_ops in layers.ops for o in layer_ops]
            found.append(Boundary(source, False, _flops(program, ops), layers=layers))
    return sorted((b for b in found if b.flops), key=lambda b: -b.flops)[:_MOST]


def _computed_again(program: Program, region: int) -> bool:
    """A region is inside an op that is computed again, and so is a copy of another."""
    o = program.regions[region].op
    return o >= 0 and (program.ops[o].source.recomputed or _computed_again(program, program.ops[o].region))


def _first_call(program: Program, ops: list[int]) -> list[int]:
    """What the first of several calls computes again: up to the barrier before the next."""
    found: list[int] = []
    for o in ops:
        op = program.ops[o]
        if op.source.recomputed:
            found.append(o)
        elif found and op.kind == "optimization_barrier":
            break
    return found


def _flops(program: Program, ops: Iterable[int]) -> float:
    return float(sum(program.ops[o].flops * int(program.repeats[o]) for o in ops))


def _differentiates(program: Program, ops: list[int]) -> bool:
    """There is work of a forward and of a backward pass."""
    heavy = [program.ops[o] for o in ops if program.ops[o].flops]
    return any(map(is_forward, heavy)) and any(op.source.backward for op in heavy)

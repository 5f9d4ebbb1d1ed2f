"""Where nothing fits: how much is missing, what holds the memory, and what would help."""

from __future__ import annotations

import time
from collections.abc import Iterator

from shardwright._amounts import human_bytes
from shardwright.errors import InfeasibleError, PinError, TraceError
from shardwright.frontend.calls import positional_call
from shardwright.plan import Plan
from shardwright.price import Cost
from shardwright.problem import Problem
from shardwright.request import MeshShape
from shardwright.space.carried import carried_results
from shardwright.space.roles import Roles

_SHOWN, _ADVISED, _HALVINGS, _DOUBLINGS = 4, 2, 4, 3
_WORTH = 0.01
"""Of the memory: a hint that saves less is none."""
_ENOUGH_SECONDS = 30.0
"""Nobody waits longer than that for advice."""


def infeasible(problem: Problem, smallest: Plan) -> InfeasibleError:
    """The error for a program whose smallest plan found does not fit."""
    estimate, limit, verdict = smallest.estimate, smallest.memory_bytes, smallest.verdict
    if smallest.estimate_cost.host_over_bytes:
        return _too_much_on_host(smallest)
    needed, by = estimate.peak_bytes, ""
    if verdict is not None and verdict.peak_bytes is not None:
        needed, by = verdict.peak_bytes, f" by the compiler for {verdict.on}"
    held = ", ".join(f"{a.name} ({a.what}, {human_bytes(a.bytes)})" for a in estimate.alive[:_SHOWN])
    advice = []
    stop = time.perf_counter() + _ENOUGH_SECONDS
    for sentence in _advice(problem, smallest):
        advice.append(sentence)
        if time.perf_counter() > stop:
            break
    message = (
        f"no plan fits: the smallest that was found needs {human_bytes(needed)} on each device{by}, "
        f"{human_bytes(needed - limit)} more than the limit of {human_bytes(limit)}; at its peak it holds {held}"
    )
    message += f". What would help: {'; '.join(advice)}." if advice else "."
    return InfeasibleError(message, needed, limit, smallest, advice)


def _too_much_on_host(smallest: Plan) -> InfeasibleError:
    """The error for a program that keeps more on the host than there is."""
    estimate, limit = smallest.estimate, smallest.device.host_memory_bytes
    needed = estimate.host_bytes
    held = ", ".join(f"{a.name} ({a.what}, {human_bytes(a.bytes)})" for a in estimate.alive_on_host[:_SHOWN])
    advice = ["more devices, or less of it on the host"]
    message = (
        f"no plan fits: the smallest that was found keeps {human_bytes(needed)} on the host for each device, "
        f"{human_bytes(needed - limit)} more than the {human_bytes(limit)} that a device has there; there lie {held}. "
        f"What would help: {advice[0]}."
    )
    return InfeasibleError(message, needed, limit, smallest, advice)


def _advice(problem: Problem, smallest: Plan) -> Iterator[str]:
    yield from _recomputing(smallest)  # without a search, so that there is time for it whatever the program's size
    yield from _donation(problem, smallest)
    yield from _smaller_batch(problem, smallest)
    if not problem.program.is_sharded:  # whose own shardings are on one mesh alone
        yield from _larger_mesh(problem, smallest)


def _donation(problem: Problem, smallest: Plan) -> Iterator[str]:
    """Arguments that come back as results could be overwritten."""
    program, carried = problem.program, carried_results(problem.program)
    names = problem.traced.lowering.names
    positions = []
    for k, name in enumerate(names):
        own = [a for a in program.arguments if a.path == name or a.path.startswith((f"{name}.", f"{name}["))]
        size = sum(program.values[a.value].bytes for a in own)
        back = sum(program.values[a.value].bytes for a in own if a.value in carried)
        if k not in problem.traced.donate and own and back > 0.5 * size:
            positions.append(k)
    if positions:
        donate = tuple(sorted({*problem.traced.donate, *positions}))
        cost = problem.again(donate=donate).best_cost()
        if not _helps(cost, smallest):
            return
        call = positional_call(problem.traced.fn)
        shown = donate if call is None else tuple(call.as_given(k) for k in donate)
        yield f"donate={shown}, so that results reuse these arguments' memory: {_needs(cost, smallest)}"


def _recomputing(smallest: Plan) -> Iterator[str]:
    """What the forward pass keeps for the backward pass could be computed again."""
    for advice in smallest.advice[:_ADVISED]:
        if advice.saved_bytes > 0:
            yield advice.text


def _smaller_batch(problem: Problem, smallest: Plan) -> Iterator[str]:
    """The batch halved until it fits."""
    try:
        batch = Roles.of(problem.analysis).batch
    except PinError:
        return
    size = problem.analysis.descriptions[batch].size
    places = {
        f"{a.path}[{d}]": problem.program.values[a.value].shape[d]
        for a in problem.program.arguments
        for d, g in enumerate(problem.places.of_value[a.value])
        if g == batch
    }
    for halving in range(1, _HALVINGS + 1):
        parts = 2**halving
        if size % parts or size // parts < 1:
            return
        shapes = problem.traced.resized({place: given // parts for place, given in places.items()})
        try:
            cost = problem.again(shapes=shapes).best_cost()
        except (TraceError, PinError):  # the function does not take another batch, or a pin does not
            return
        if cost.peak_bytes <= smallest.memory_bytes or halving == _HALVINGS:
            if _helps(cost, smallest):
                yield f"a batch of {size // parts} in place of {size}: {_needs(cost, smallest)}"
            return


def _larger_mesh(problem: Problem, smallest: Plan) -> Iterator[str]:
    """One axis after another doubled, always the one that helps most."""
    mesh = smallest.partitioned.mesh
    for doubling in range(1, _DOUBLINGS + 1):
        tried: list[tuple[Cost, MeshShape]] = []
        for axis in range(len(mesh.sizes)):
            sizes = tuple(size * 2 if a == axis else size for a, size in enumerate(mesh.sizes))
            larger = MeshShape(mesh.names, sizes)
            try:
                tried.append((problem.on(larger).best_cost(), larger))
            except PinError:
                continue
        if not tried:
            return
        cost, mesh = min(tried, key=lambda found: (found[0].peak_bytes, found[1].sizes))
        if cost.peak_bytes <= smallest.memory_bytes or doubling == _DOUBLINGS:
            if _helps(cost, smallest):
                axes = dict(zip(mesh.names, mesh.sizes, strict=True))
                yield f"the mesh {axes} of {mesh.devices} devices: {_needs(cost, smallest)}"
            return


def _helps(cost: Cost, smallest: Plan) -> bool:
    """Whether less memory is needed: the short search of a hint may find no plan as small as the one at hand."""
    return cost.peak_bytes < (1 - _WORTH) * smallest.estimate_cost.peak_bytes


def _needs(cost: Cost, smallest: Plan) -> str:
    fits = "fits" if cost.peak_bytes <= smallest.memory_bytes else "still too much"
    return f"{human_bytes(cost.peak_bytes)} on each device ({fits})"

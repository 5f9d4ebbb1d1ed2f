"""Estimates in detail: from the cost model's sums to the kernels, collectives, transfers and tensors in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwright.compiler.fusing import COPIED_SLICES
from shardwright.devices import Device
from shardwright.ir.kinds import MANUAL
from shardwright.ir.memory import moved_to, moves_between
from shardwright.ir.program import Program, Source
from shardwright.price.collectives import REDUCE_SCATTER, Move
from shardwright.price.compute import Work, kernel_seconds
from shardwright.price.corrections import heaviest
from shardwright.price.cost_model import CostModel
from shardwright.price.estimate import Alive, CollectiveCost, Estimate, KernelCost, TransferCost
from shardwright.price.partitioned import Collective, Partitioned
from shardwright.request import MeshShape

RELAID = "copy to another layout"
"""What the copies of a loop's values are called among the kernels of an estimate."""


def make_estimate(model: CostModel, partitioned: Partitioned, limit_bytes: int) -> Estimate:
    """The estimate of a partitioned program, in detail."""
    cost = model.evaluate(partitioned.state)
    step = cost.step_seconds
    return Estimate(
        device=model.device.name,
        limit_bytes=limit_bytes,
        compute_seconds=cost.compute_seconds,
        comm_seconds=cost.comm_seconds,
        peak_bytes=cost.peak_bytes,
        argument_bytes=model.held_bytes(partitioned.state),
        collectives=_collectives(model, partitioned, cost.hidden_seconds),
        kernels=_kernels(model, partitioned),
        alive=_alive(model, partitioned),
        peak_fraction=_seconds_at_peak(model) / step / model.mesh.devices if step else 0.0,
        host_bytes=cost.host_bytes,
        host_limit_bytes=model.device.host_memory_bytes or None,
        transfer_seconds=cost.transfer_seconds,
        exposed_transfer_seconds=cost.exposed_transfer_seconds,
        transfers=_transfers(model, partitioned),
        alive_on_host=_alive_on_host(model, partitioned),
        hidden_seconds=cost.hidden_seconds,
    )


def _seconds_at_peak(model: CostModel) -> float:
    """What one device would take for all contractions if each ran at the peak of its own type."""
    program = model.classes.program
    devices = [_devices_of(program, region, model.mesh) for region in range(len(program.regions))]
    seconds = 0.0
    # As Python's numbers: 64 bits are too few for the FLOPs of large models.
    for op, times in zip(program.ops, program.repeats.tolist(), strict=True):
        if op.flops:
            flops = op.flops * times * devices[op.region]
            seconds += flops / model.device.flops(program.values[op.operands[0]].dtype)
    return seconds


def _devices_of(program: Program, region: int, mesh: MeshShape) -> int:
    """How many devices each do the work of a region that is manual, on shapes that are local; 1 for others."""
    count = 1
    while program.regions[region].op >= 0:
        op = program.ops[program.regions[region].op]
        if op.kind == MANUAL:
            count *= mesh.ways(tuple(mesh.numbers(op.attributes["manual"])))
        region = op.region
    return count


def _counted(model: CostModel, partitioned: Partitioned) -> Iterator[Collective]:
    """Those of the program with its shortcuts: none for what is not computed, one for what is the same value."""
    program, short = partitioned.program, model.classes.program
    first: dict[object, int] = {}
    for c in partitioned.collectives:
        op = short.ops[c.op]
        if op.kind != program.ops[c.op].kind:
            continue
        if c.where == "use":
            value = op.operands[program.ops[c.op].operands.index(c.value)]
            if first.setdefault((value, op.region, c.kind, c.axes, c.bytes), c.value) != c.value:
                continue
        yield c


def _collectives(model: CostModel, partitioned: Partitioned, hidden_seconds: float) -> tuple[CollectiveCost, ...]:
    """Every collective; what is hidden of all is shared out by what runs beside each."""
    parts = model.hidden_parts(partitioned.state.lists)
    found = [(_priced(model, c, partitioned), c) for c in _counted(model, partitioned)]
    hidden = [_hidden_part(model, c, partitioned, parts) * cost.seconds for cost, c in found]
    scale = hidden_seconds / total if (total := sum(hidden)) else 0.0
    shares = [min(seconds * scale, cost.seconds) for seconds, (cost, _) in zip(hidden, found, strict=True)]
    return tuple(replace(cost, hidden_seconds=share) for (cost, _), share in zip(found, shares, strict=True))


def _priced(model: CostModel, c: Collective, partitioned: Partitioned) -> CollectiveCost:
    seconds = model.prices.link_seconds(_move(c, partitioned)) * c.times
    tensor = str(partitioned.program.values[c.value])
    return CollectiveCost(c.kind, c.axes, c.bytes * c.scale / c.addends, c.times, seconds, tensor, c.where, c.source)


def _move(c: Collective, partitioned: Partitioned) -> Move:
    axes = tuple(partitioned.mesh.names.index(a) for a in c.axes)
    return Move(c.kind, axes, c.bytes, c.sharers, c.scale, c.in_place, c.addends)


def _hidden_part(model: CostModel, c: Collective, partitioned: Partitioned, parts: Mapping[int, float]) -> float:
    """How much of a collective runs beside other work, as a part of it; ``parts`` are those of slots."""
    short, overlap, assignment = model.classes.program.ops[c.op], model.overlap, partitioned.assignments[c.op]
    if c.where == "use" and overlap is not None and assignment is not None:
        operand = partitioned.program.ops[c.op].operands.index(c.value)
        if model.units.starts_early(assignment.before[operand]):
            return overlap.hidden_part(parts, short.operands[operand], c.op)
    looped = assignment.looped_seconds if assignment is not None and model.units.looped else 0.0
    if c.where == "result" and c.kind == REDUCE_SCATTER and looped:
        price = model.ops.price(model.classes.of_op[c.op], model.view(partitioned.state.lists))
        return price.share.beside_seconds / looped
    return 0.0


def _kernels(model: CostModel, partitioned: Partitioned) -> tuple[KernelCost, ...]:
    program, view = partitioned.program, model.view(partitioned.state.lists)
    found: dict[tuple[str, Source, str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for k, kernel in enumerate(model.classes.kernel_classes.keys):
        kernel_work = model.kernels.of(k, view)
        work, seconds = kernel_work.work, kernel_work.seconds(model.device)
        if not seconds:
            continue
        bound = _bound(work, model.device)
        for root in model.classes.kernel_classes.members[k]:
            op = program.ops[heaviest(program, model.classes.ops_of_kernel[root], root)]
            tensor = str(program.values[op.results[0]]) if op.results else ""
            entry = found[op.attributes.get("kernel", op.kind), op.source, bound, tensor]
            entry[0] += kernel.repeats
            entry[1] += seconds * kernel.repeats
    for relaid in model.units.relaid:
        if seconds := model.units.relaid_work(relaid, view).seconds:
            v = relaid.value
            entry = found[RELAID, program.source_of(v), "memory", str(program.values[v])]
            entry[0] += 2
            entry[1] += seconds
    for stacked in model.units.stacked:
        if seconds := model.units.stacked_work(stacked, view).seconds:
            op = program.ops[stacked.put]
            entry = found["copy of slices to another layout", op.source, "vector", str(program.values[stacked.value])]
            entry[0] += int(program.repeats[stacked.put])
            entry[1] += seconds
    for v in model.units.given_back:
        value_class = model.classes.of_value[v]
        seconds = model.units.given_back_seconds(value_class, model.tensors.sharding(value_class, view))
        entry = found["copy to a donated argument", program.source_of(v), "memory", str(program.values[v])]
        entry[0] += 1
        entry[1] += seconds
    for buffer in model.units.converted if model.device.compiler[COPIED_SLICES] else ():
        value_class = model.classes.of_value[buffer.value]
        sharding = model.tensors.sharding(value_class, view)
        seconds = model.units.converted_seconds(value_class, buffer.form, sharding)
        entry = found["convert", program.source_of(buffer.value), "vector", str(program.values[buffer.value])]
        entry[0] += 1
        entry[1] += seconds
    for laid in model.units.laid:
        seconds, times = model.units.laid_work(laid, view).seconds, int(program.repeats[laid.op])
        if seconds:
            entry = found[laid.why, program.ops[laid.op].source, "vector", str(program.values[laid.value])]
            entry[0] += times
            entry[1] += seconds * times
    for c in _counted(model, partitioned):
        if seconds := model.prices.copy_seconds(_move(c, partitioned)):
            entry = found["copy into place", c.source, "vector", str(program.values[c.value])]
            entry[0] += c.times
            entry[1] += seconds * c.times
    costs = [
        KernelCost(kind, source, int(times), seconds, bound, tensor)
        for (kind, source, bound, tensor), (times, seconds) in found.items()
    ]
    return tuple(sorted(costs, key=lambda c: -c.seconds))


def _bound(work: Work, device: Device) -> str:
    """What a kernel waits for."""
    parts = {
        "matrix": Work(work.matrix_seconds),
        "vector": Work(vector_ops=work.vector_ops),
        "memory": Work(memory_bytes=work.memory_bytes),
    }
    return max(parts, key=lambda name: kernel_seconds(parts[name], device))


def _transfers(model: CostModel, partitioned: Partitioned) -> tuple[TransferCost, ...]:
    """Every move to the host or back, those of one kind at one line together."""
    program, view = model.classes.program, model.view(partitioned.state.lists)
    found: dict[tuple[str, float, str, Source], int] = defaultdict(int)
    for k, kernel in enumerate(model.classes.kernel_classes.keys):
        for root in model.classes.kernel_classes.members[k]:
            if moves_between(program, root):
                op = program.ops[root]
                size, tensor = model.units.transfer_bytes(k, view), str(program.values[op.results[0]])
                found[moved_to(op) or "", size, tensor, op.source] += kernel.repeats
    rate = model.device.host_bytes_per_second
    costs = [
        TransferCost(to, size, times, size * times / rate, tensor, source)
        for (to, size, tensor, source), times in found.items()
    ]
    return tuple(sorted(costs, key=lambda c: -c.seconds))


def _alive_on_host(model: CostModel, partitioned: Partitioned) -> tuple[Alive, ...]:
    """What lies on the host where most does."""
    program, buffers = partitioned.program, model.classes.buffers
    view = model.view(partitioned.state.lists)
    found = [
        Alive(program.argument_of[v].path, "argument", 1, model.value_bytes(v, view)) for v in buffers.held_on_host
    ]
    moments = {buffer.start for buffer in buffers.on_host}
    sizes = {buffer: model.buffer_bytes(buffer, view) for buffer in buffers.on_host}
    most = max(moments, key=lambda t: sum(sizes[b] for b in sizes if b.start <= t <= b.end), default=None)
    if most is not None:
        alive = [b for b in sizes if b.start <= most <= b.end]
        found += [Alive(program.name_of(b.value), "value", 1, sizes[b]) for b in alive]
    return tuple(sorted(found, key=lambda a: -a.bytes))


def _alive(model: CostModel, partitioned: Partitioned) -> tuple[Alive, ...]:
    """Everything that is held at the point of the peak; its bytes add up to the peak."""
    program, classes = partitioned.program, model.classes
    view = model.view(partitioned.state.lists)
    rows = model.rows(partitioned.state.lists)
    point = int(rows.argmax())
    position = int(model.at[point])
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    def add(name: str, what: str, size: float) -> None:
        found[name, what][0] += 1
        found[name, what][1] += int(size)

    for v in classes.buffers.held:
        add(program.argument_of[v].path, "argument", model.value_bytes(v, view))
    for buffer in classes.buffers.temporary:
        if buffer.start <= position <= buffer.end:
            size = model.buffer_bytes(buffer, view)
            what = "relaid copy" if buffer.form.copy else "value" if buffer.form.scale == 1.0 else "converted copy"
            if size or not buffer.form.copy:
                add(program.name_of(buffer.value), what, size)
    for relaid in model.units.relaid:
        if relaid.start <= position <= relaid.end and (copy := model.units.relaid_work(relaid, view).copy_bytes):
            add(program.name_of(relaid.value), "relaid copy", copy)
    for stacked in model.units.stacked:
        if stacked.start <= position <= stacked.end and (copy := model.units.stacked_work(stacked, view).copy_bytes):
            add(program.name_of(stacked.value), "relaid copy", copy)
    for laid in model.units.laid:
        start, end = model.units.laid_span(laid) if laid.made >= 0 else (1, 0)
        if start <= position <= end and (copy := model.units.laid_work(laid, view).copy_bytes):
            add(program.name_of(laid.value), "relaid copy", copy)
    for u in range(len(classes.use_classes.keys)):
        for want, (moves, which) in model.units.wanted(u, view).items():
            early = model.units.starts_early(moves)
            for m in classes.use_classes.members[u]:
                start, end = model.units.use_span(m, which, early)
                if start <= position <= end:
                    add(program.name_of(classes.uses[m][0]), "resharded copy", model.units.copy_bytes(u, want, which))
        if late := model.units.kept_late(u, view):
            for m in classes.use_classes.members[u]:
                span = model.units.late_span(m, late.which)
                if span and span[0] <= position <= span[1]:
                    add(program.name_of(classes.uses[m][0]), "kept for its gradient", late.bytes)
    kind = int(model.points.kinds[point])
    extra = model.kernels.of(kind, view).unmoved_bytes if kind >= 0 else 0.0  # a program may have nothing to run
    if extra:
        add(str(classes.op(classes.kernel_classes.keys[kind].ops[-1]).source), "unreduced result", extra)
    alive = [Alive(name, what, count, size) for (name, what), (count, size) in found.items()]
    return tuple(sorted(alive, key=lambda a: -a.bytes))

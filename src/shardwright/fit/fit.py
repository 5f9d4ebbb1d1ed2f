"""``sw.fit``: how large a batch a mesh takes, and how few devices a program needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shardwright._amounts import human_bytes
from shardwright._progress import note_bar
from shardwright.choose import MOST_ASKED, whom_to_ask
from shardwright.devices import Device
from shardwright.errors import DeviceError, InfeasibleError, MeshError, PinError, PlanError
from shardwright.fit.attempts import Attempt, Attempts
from shardwright.fit.dimension import find_dimension
from shardwright.fit.found import DEVICES, SIZE, Fit
from shardwright.fit.judged import MOST_COMPILED, Judge
from shardwright.fit.largest import largest
from shardwright.frontend.calls import Donate, Names
from shardwright.frontend.own_shardings import KEEP
from shardwright.ir.loops import TripCounts
from shardwright.meshes import best_mesh
from shardwright.plan import Plan
from shardwright.problem import Problem
from shardwright.request import Budget, MeshLike, MeshShape, PinLike, check_count
from shardwright.request.mesh import shapes
from shardwright.request.targets import parse_target

_MOST_NUMBERS_ASKED = 2
"""Numbers of devices that the compiler is asked about, at most."""


def fit(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnames: Names = (),
    mesh: MeshLike = None,
    device: str | Device | None = None,
    memory: int | str | None = None,
    dimension: str | Sequence[str] | None = None,
    verify: str | None = None,
    most_devices: int = 4096,
    donate: Donate = (),
    pin: PinLike = None,
    replicate: str | Sequence[str] = (),
    seconds: float | None = None,
    simulations: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    ask_compiler: bool | None = None,
    platform: str | None = None,
    trip_counts: TripCounts = None,
    rules: Mapping[str, str] | None = None,
    constraints: str = KEEP,
) -> Fit:
    """Find the largest size of a dimension that fits a mesh, and the fewest devices that ``fn(*args)`` fits on.

    The function is traced again at every size that is tried; sizes that it does not take are skipped. Sizes are
    multiples of the number of devices, or of a part of it where that is too coarse.

    Args:
        fn: a JAX callable.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``.
        mesh: as in ``sw.partition``. If it is a number of devices, the mesh has the shape that looks best for the size
            as given.
        device: as in ``sw.partition``.
        memory: the bytes that a device may hold, or text such as ``"12GiB"``; by default all that is usable of the
            device's memory.
        dimension: the dimension of an argument whose size changes, such as ``"batch.tokens[0]"``, with all that is tied
            to it; or a list of several that grow together. By default it is the batch, which is found.
        verify: a target such as ``"tpu:v5e:4x4"`` whose compiler has the last word. It is asked about the size that
            the estimate finds and then about smaller or larger ones, about eight at most.
        ask_compiler: whether the device's compiler may be asked. By default it is asked where it is installed, about
            four sizes and two numbers of devices at most. Elsewhere, and with False, an answer fits even if the
            estimate errs by its whole margin. ``plan.fits_by`` says what an answer rests on.
        most_devices: the largest number of devices that is tried. 0 leaves the question out, which is also done for a
            program that has shardings of its own.
        kwargs: as in ``sw.partition``.
        static_argnames: as in ``sw.partition``.
        donate: as in ``sw.partition``.
        pin: as in ``sw.partition``; the pins must suit every size and mesh that is tried.
        replicate: as in ``sw.partition``.
        seconds: the most time that the search for each of the two plans may take.
        simulations: the number of simulations of their tree searches.
        seed: the seed of the searches' random choices.
        progress: whether to show what is tried; by default only on a terminal.
        platform: as in ``sw.partition``.
        trip_counts: as in ``sw.analyse``.
        rules: as in ``sw.analyse``.
        constraints: as in ``sw.partition``.

    Raises:
        InfeasibleError: no size fits the mesh, and no number of devices fits the program.
        PinError: the dimension does not exist, or no batch was found.

    """
    budget = Budget(seconds, simulations, seed)
    check_count("most_devices", most_devices)
    problem = Problem(
        fn,
        *args,
        mesh=mesh,
        device=device,
        memory=memory,
        kwargs=kwargs,
        static_argnames=static_argnames,
        donate=donate,
        pin=pin,
        replicate=replicate,
        platform=platform,
        trip_counts=trip_counts,
        rules=rules,
        constraints=constraints,
    )
    named = None if len(problem.shapes) == 1 else problem.pins.axes
    if verify is not None:
        parse_target(verify).check(problem.shapes[0].devices)
    changed = find_dimension(problem, dimension)
    with note_bar(progress) as watch:
        problem = best_mesh(problem)
        shape = problem.mesh
        attempts = Attempts(problem, changed, budget, watch)
        estimated = largest(lambda n: attempts.fits(n, shape), changed.size, shape.devices)
        notes, on = list(_untaken(attempts)), verify
        if verify is None and not attempts.margin.exact:
            on = whom_to_ask(problem.device, shape.devices, ask_compiler)
        size, plan = None, None
        if on is not None and estimated is not None:
            most = MOST_ASKED if verify is None else MOST_COMPILED
            try:
                size, plan, more = _judged(attempts, shape, on, estimated, most)
                notes += more
            except (PlanError, MeshError) as error:  # of a target that nobody named
                if verify is not None:
                    raise
                notes.append(f"The compiler was not asked: {error}")
        if plan is None and verify is None:
            size, plan, more = _sure(attempts, shape, estimated)
            notes += more
        # Shardings of the program's own are on one mesh alone.
        most = 0 if problem.program.is_sharded else most_devices
        devices_plan = _fewest(attempts, shape, most, named, ask_compiler)
    if plan is None and devices_plan is None:
        raise _nothing(attempts, shape)
    return Fit(
        problem.program.name,
        changed.name,
        changed.size,
        shape.axes,
        problem.device,
        problem.limit_bytes,
        size,
        plan,
        devices_plan.partitioned.mesh.devices if devices_plan is not None else None,
        devices_plan,
        tuple(attempts.tried),
        plan.verdict if plan is not None else None,
        tuple(notes),
    )


def _sure(attempts: Attempts, mesh: MeshShape, estimated: int | None) -> tuple[int | None, Plan | None, list[str]]:
    """The largest size that surely fits, its plan, and what else is to say; ``estimated`` fits by the estimate."""
    if estimated is None:
        return None, None, []
    size = largest(lambda n: n <= estimated and attempts.surely(n, mesh), estimated, mesh.devices)
    margin = attempts.margin
    if size == estimated:
        note = ""
    else:
        off = f"such estimates are off by factors of {margin.low:.2f} to {margin.high:.2f}"
        note = f"By the estimate it would be {estimated:,}, but {off}: what fits beyond is for the compiler to say."
    return size, attempts.sure_plan(size, mesh) if size is not None else None, [note] if note else []


def _judged(
    attempts: Attempts, mesh: MeshShape, on: str, size: int, most: int
) -> tuple[int | None, Plan | None, list[str]]:
    """The largest size that a compiler takes, its plan, and what else is to say."""
    judge = Judge(attempts, mesh, on, mesh.devices, most)
    notes = []
    if not judge.ask(size):
        notes.append(f"After {most} compilations no more was tried: a larger size may fit.")
    taken = max(judge.accepted, default=None)
    if taken is None:
        return None, None, notes
    if taken != size:
        notes.append(f"By the estimate it would be {size:,}.")
    return taken, judge.accepted[taken], notes


def _untaken(attempts: Attempts) -> list[str]:
    """What to say where the function takes no size but the one given."""
    sizes = [t for t in attempts.tried if t.question == SIZE and t.size != attempts.dimension.size]
    if sizes and all(t.needed_bytes is None for t in sizes):
        return [f"The function takes no other size of {attempts.dimension.name}: {sizes[0].why}."]
    return []


def _fewest(
    attempts: Attempts, mesh: MeshShape, most: int, named: Sequence[str] | None, ask_compiler: bool | None
) -> Plan | None:
    """The program as given on 1, 2, 4, … devices, and on as many as there are, until something fits.

    Where the mesh's shape was open, so it is here, but for axes that pins name.
    """
    size, left = attempts.dimension.size, _MOST_NUMBERS_ASKED
    counts, count = {mesh.devices} if mesh.devices <= most else set(), 1
    while count <= most:
        counts.add(count)
        count *= 2
    for devices in sorted(counts):
        for shape in meshes_of(mesh, devices) if named is None else _open(attempts, devices, named):
            if attempts.surely(size, shape, DEVICES):
                return attempts.sure_plan(size, shape)
            attempt = attempts.attempt(size, shape, DEVICES)
            if attempt is None or not attempts.may_fit(attempt) or not left:
                continue
            on = whom_to_ask(attempts.problem.device, devices, ask_compiler)
            if on is not None:
                left -= 1
                plan = attempts.ask(attempt, on, DEVICES)
                if plan.fits:
                    return plan
    return None


def _open(attempts: Attempts, devices: int, named: Sequence[str]) -> list[MeshShape]:
    """The shape that looks best of those that so many devices can have."""
    try:
        return [best_mesh(attempts.problem.among(shapes(attempts.problem.device, devices, named))).mesh]
    except (MeshError, PinError, DeviceError):  # too few devices for the axes that pins name
        return []


def _nothing(attempts: Attempts, mesh: MeshShape) -> InfeasibleError:
    """The error where neither question has an answer: the smallest that was met."""
    met = [attempt for attempt in attempts.made.values() if isinstance(attempt, Attempt)]
    least = min(met, key=lambda attempt: attempt.outcome.cost.peak_bytes)
    plan = attempts.smallest_plan(least)
    needed, limit = int(plan.estimate_cost.peak_bytes), attempts.problem.limit_bytes
    held = ", ".join(f"{a.name} ({a.what}, {human_bytes(a.bytes)})" for a in plan.estimate.alive[:4])
    most = max(attempt.mesh.devices for attempt in met)
    message = (
        f"nothing fits: no size of {attempts.dimension.name} fits the mesh of {mesh.devices:,} devices, and no number "
        f"of devices up to {most:,} the program as given; the smallest plan found needs {human_bytes(needed)} on each "
        f"device, and {human_bytes(limit)} is the limit; at its peak it holds {held}."
    )
    return InfeasibleError(message, needed, limit, plan, ())


def meshes_of(mesh: MeshShape, count: int) -> Iterator[MeshShape]:
    """A mesh with the first axis made longer or shorter, further ones only where it must; then all on the first."""
    sizes, left = list(mesh.sizes), count
    for axis in range(len(sizes) - 1, -1, -1):
        kept = sizes[axis] if axis else left
        while left % kept:
            kept -= 1
        sizes[axis], left = kept, left // kept
    yield MeshShape(mesh.names, tuple(sizes))
    alone = MeshShape(mesh.names, (count, *(1 for _ in sizes[1:])))
    if alone.sizes != tuple(sizes):
        yield alone

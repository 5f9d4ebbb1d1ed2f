"""What XLA runs at the same time: which collectives it starts early, and how its final text says so."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour

SCHEDULED = Behaviour(
    name="the final text is in the order in which it runs",
    what="Each computation's instructions stand in the order of the schedule, so that what stands between a start and "
    "its done runs while it is under way.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence="libtpu of jax 0.10.2 and 0.12: the text says is_scheduled=true.",
    tests=("test_replay.py::test_what_stands_between_start_and_done_hides_it",),
    where=("verify.figures.program_figures",),
)


@dataclass(frozen=True)
class AsyncFusion:
    """Words of the final text by which a collective in three kinds of fusions is known."""

    start: str
    done: str
    chain: str


ASYNC_FUSIONS = Behaviour(
    name="an all-gather is taken apart into fusions",
    what="An all-gather that runs beside products is a fusion with a custom call that starts it, the products' own "
    "fusions, each of which does some of its steps and repeats the instruction, and a fusion with a custom call that "
    "ends it. All of them have the same chain in the instruction's attributes.",
    effect=AsyncFusion("AsyncCollectiveStart", "AsyncCollectiveDone", "chain_id"),
    otherwise=AsyncFusion("", "", ""),
    platforms=TPU,
    ops=("all_gather",),
    evidence="@ASYNC@",
    tests=("test_replay.py::test_an_all_gather_in_fusions_runs_beside_their_products",),
    where=("verify.replay.replay", "verify.hlo_totals.hlo_totals"),
)

RECORDS = (SCHEDULED, ASYNC_FUSIONS)

"""What XLA runs at the same time: which collectives it starts early, and how its final text says so."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour

_SEEN = "libtpu of jax 0.10.2, v5e 4x4, training steps of a GPT of 4 layers (width 2,048, batch 32 of 1,024): "

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
    evidence=_SEEN + "of 20 all-gathers under FSDP 12 are such fusions, 13 of 24 under FSDP and Megatron; "
    "what an AsyncCollectiveStart starts was an all-gather in all of seven programs.",
    tests=("test_replay.py::test_an_all_gather_in_fusions_runs_beside_their_products",),
    where=("verify.replay_steps.Steps", "verify.hlo_totals.hlo_totals"),
)

WAITED_FOR = Behaviour(
    name="sums and all-to-alls are waited for",
    what="An all-reduce and an all-to-all are single instructions, which nothing runs beside. Permutes are pairs of a "
    "start and a done. An all-gather that was not taken apart is one instruction "
    "too, even though the scheduler had it as a pair.",
    effect=None,
    otherwise=None,
    platforms=TPU,
    ops=("all_reduce", "all_to_all", "collective_permute", "all_gather"),
    evidence=_SEEN + "with FSDP 4 all-reduces and 2 all-to-alls are single and 7 permutes are pairs, with FSDP and "
    "Megatron 8, 2 and 31; the schedule that xla_dump_latency_hiding_schedule writes has 20 and 24 all-gather-starts, "
    "the final text none. So of 23.8 ms of communication 11.0 are exposed, and of 28.2 ms 22.5.",
    tests=("test_compile.py::test_data_parallelism_on_a_tpu",),
    where=("verify.replay_steps.Steps",),
)

_EARLY: frozenset[str] = frozenset({"all-gather", "collective-permute"})
STARTED_EARLY = Behaviour(
    name="an all-gather is started with a product ahead of its use",
    what="TODO",
    effect=_EARLY,
    otherwise=frozenset(),
    platforms=TPU,
    ops=("all_gather", "collective_permute"),
    evidence="TODO",
    tests=(),
    where=("price.overlap.Overlap",),
)

LOOPED_BESIDE = Behaviour(
    name="a product that is a loop moves its sums beside itself",
    what="TODO",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("dot", "dot_general"),
    evidence="TODO",
    tests=(),
    where=("price.units.Units",),
)

RECORDS = (SCHEDULED, ASYNC_FUSIONS, WAITED_FOR, STARTED_EARLY, LOOPED_BESIDE)

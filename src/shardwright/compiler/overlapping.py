"""What XLA runs at the same time: which collectives it starts early, and how its final text says so."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour, Compiler

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

_NONE: frozenset[str] = frozenset()
_IN_PAIRS = frozenset({"v4", "v5e", "v5p", "v6e", "7x"})
"""The generations whose permutes were seen to be pairs of a start and a done."""
STARTED_EARLY: Behaviour[frozenset[str]] = Behaviour(
    name="an all-gather is started with a product ahead of its use",
    what="An all-gather of what is there already (an argument, a slice or a conversion of one) is "
    "started with a product and runs beside it and all that follows, up to its own use. One is under way at a time, so "
    "that the next starts with the use of the last, or a little earlier if that one is through. What has no product "
    "ahead of it in the same loop's body, or since the last loop outside of them, is waited for: so is the first of a "
    "body, and what was computed just before. From its start it has the memory of its result. Compilers for other "
    "generations take no all-gather apart unless they are told to, and wait for each. The effect are the kinds of "
    "collectives.",
    effect=frozenset({"all-gather"}),
    otherwise=_NONE,
    platforms=TPU,
    generations=frozenset({"v5e"}),
    ops=("all_gather",),
    evidence="libtpu of jax 0.10.2, v5e 4x4, final texts replayed. GPT of 4 scanned layers under FSDP: of the six "
    "all-gathers of a layer's forward body the first, of 93 µs, is one instruction and waited for, and each of the "
    "others has a product's fusion, or several, between its start and its end; the 356 µs of the first feed-forward "
    "weight begin beside attention in the forward body, ahead of the product that the gather before was for, and with "
    "that product in the backward body; 1.4 ms of the embedding for the logits, with no product since the loop, are "
    "waited for. With Megatron, 0.56 ms of activations gathered right after they were made are waited for, the "
    "weights' gathers are not. An MLP of 4 layers: the first of four weights is waited for, the others are hidden for "
    "as long as the product before them takes, 181 to 193 of 356 µs. Estimated and replayed to be exposed, ms: GPT "
    "3.5 and 4.3 (FSDP), 24.0 and 22.5 (FSDP and Megatron), ViT 0.5 and 1.1, 14.1 and 14.8. XLA:GPU starts collectives "
    "early as well with xla_gpu_enable_latency_hiding_scheduler, which is off unless asked for (docs.jax.dev, "
    "GPU performance tips), and how much it hides was not measured; so all is taken to be waited for there, as on "
    "CPUs. Two layers of eight experts under FSDP over 4, weights bf16[8,1024,3584], 8 x 512 tokens: two gathered "
    "weights of 56 MiB are there at the peak; 340 MiB, the estimate is 312, and 256 with one.",
    tests=(
        "test_overlap.py::test_a_weight_is_gathered_beside_the_product_before",
        "test_overlap.py::test_the_first_of_a_loops_body_is_waited_for",
        "test_overlap.py::test_what_was_just_made_is_waited_for",
        "test_overlap.py::test_nothing_is_started_ahead_of_a_loop",
        "test_overlap.py::test_what_is_gathered_has_its_memory_from_its_start",
    ),
    where=(
        "compiler.overlapping.started_early",
        "price.overlap.Overlap",
        "price.units.Units.starts_early",
        "price.units.Units.use_span",
    ),
)

PERMUTED_EARLY: Behaviour[frozenset[str]] = Behaviour(
    name="a permute is started with a product ahead of its use",
    what="As an all-gather is on v5e, from v4 on: a permute is a pair of a start and a done there, and one "
    "instruction, which is waited for, on v3.",
    effect=frozenset({"collective-permute"}),
    otherwise=_NONE,
    platforms=TPU,
    generations=_IN_PAIRS,
    ops=("collective_permute",),
    evidence="libtpu of jax 0.10.2, GPT of 2 layers under FSDP on 4x4: on v5p and v6e 20 all-gathers are single "
    "instructions and 35 permutes pairs, of which windowed products are made; on v5e 12 all-gathers of 24 are taken "
    "apart. v4 is as v5p, and v7x has twice as many permutes and 8 all-gathers. v3: 15 all-gathers, no permute and no "
    "loop of them; where it has permutes (GPT, ViT by XLA's auto-sharding), they are single instructions. Exposed of "
    "all communication, ms: 4.2 of 11.7 (v5e), 2.9 of 5.0 (v5p), 4.0 of 6.0 (v6e), 5.6 of 9.8 (v4), 5.0 of 10.1 (v7x), "
    "12.8 of 12.8 (v3).",
    tests=("test_overlap.py::test_other_generations_wait_for_what_they_gather",),
    where=("compiler.overlapping.started_early",),
)


def started_early(compiler: Compiler) -> frozenset[str]:
    """The kinds of collectives that a compiler starts ahead of their use."""
    gathered: frozenset[str] = compiler[STARTED_EARLY]
    permuted: frozenset[str] = compiler[PERMUTED_EARLY]
    return gathered | permuted


LOOPED_BESIDE = Behaviour(
    name="a product that is a loop moves its sums beside itself",
    what="Where a product's partial sums are scattered in a loop over its parts, each part is on its way to the "
    "neighbour while the next one is computed: what the product takes, in parts as they are, is hidden of what the "
    "sums do. Nothing is on its way while what came is added.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    generations=_IN_PAIRS,
    ops=("dot", "dot_general"),
    evidence="libtpu of jax 0.10.2, v5e 4x4: under FSDP over 16 devices loops of 4 turns "
    "(windowed_dot_general_body_rs) with two permutes a turn each way, each between start and done of which stands one "
    "of the turn's products; over 4 devices the same without a loop, the permutes anywhere up to the gradient's use. "
    "GPT: 6.6 of 6.9 ms hidden. GPT-2: 29.5 µs of each permute of bf16[100,6400] beside products of 17 and 19 µs, "
    "additions of 14 and 16 µs between them. MLP of f32, whose products are shorter than the permutes of their sums: "
    "22 of 94 µs each. No all-gather with a product was made such a loop.",
    tests=("test_overlap.py::test_sums_are_scattered_beside_their_product",),
    where=("price.class_prices.OpShare",),
)

RECORDS = (SCHEDULED, ASYNC_FUSIONS, WAITED_FOR, STARTED_EARLY, PERMUTED_EARLY, LOOPED_BESIDE)

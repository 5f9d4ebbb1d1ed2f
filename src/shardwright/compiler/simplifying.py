"""What XLA makes of a program before it fuses anything: loops opened, equal things computed once, detours cut short."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import everywhere, structural


@dataclass(frozen=True)
class Merging:
    """Which operations are computed once where they stand twice, by their names in MLIR.

    Those of ``effects`` are run however alike they are. ``with_bodies`` have bodies that are compared as well; others
    with bodies are left alone.
    """

    with_bodies: frozenset[str]
    effects: frozenset[str]
    dialects: tuple[str, ...]

    def never(self, operation: str) -> bool:
        """Whether two operations of this name are both run."""
        return operation in self.effects or not operation.startswith(self.dialects)


_ONCE = (
    "RecurrentGemma's training step with one group of layers in a scan, each layer under "
    "jax.checkpoint(prevent_cse=False), v5e 4x4, libtpu of jax 0.10.2: there is no while left in the final program; no "
    "weight is gathered a second time for the backward pass (767 MB sent, where recomputing would send 999); what the "
    "forward pass made is kept (1.42 GiB, where recomputing would take 0.93)."
)

OPENED_LOOPS = everywhere(
    "loops that run once are opened",
    "The body of a loop of at most so many trips stands where the loop stood. Loops of two trips stay loops.",
    effect=1,
    ops=("while",),
    evidence=_ONCE,
    tests=("test_once.py::test_a_checkpoint_in_a_loop_of_one_trip_is_void",),
    where=("frontend.once.open_loops",),
)

MERGED = everywhere(
    "what stands twice is computed once",
    "Operations of one name with the same operands and attributes are one, so a jax.checkpoint in an opened loop "
    "is void. With the default prevent_cse=True a barrier stands between, and layers are recomputed.",
    effect=Merging(
        with_bodies=frozenset(
            {"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.sort", "stablehlo.scatter", "stablehlo.map"}
        ),
        effects=frozenset(
            {
                *("stablehlo.custom_call", "stablehlo.rng", "stablehlo.optimization_barrier", "stablehlo.send"),
                *("stablehlo.recv", "stablehlo.infeed", "stablehlo.outfeed", "stablehlo.create_token"),
                "stablehlo.after_all",
            }
        ),
        dialects=("stablehlo.", "chlo.", "sdy.sharding_constraint"),
    ),
    evidence=_ONCE,
    tests=(
        "test_once.py::test_a_barrier_keeps_what_is_recomputed_apart",
        "test_once.py::test_weights_are_gathered_once_as_the_compiler_does",
    ),
    where=("frontend.once.open_loops",),
)

PIECES = structural(
    "a slice that takes one piece back out of what was put together is that piece",
    "The algebraic simplifier replaces it so, and what nobody reads any more is not computed. A scan that is unrolled "
    "is written with such pairs: each turn's residuals are put together for all turns, and the derivative takes them "
    "apart again. Where only the piece is left, it need not be stored if it can be computed again.",
    ops=("slice", "concatenate"),
    evidence="Gemma 7B of Penzai, v5e, libtpu of jax 0.10.2: refused with an estimate of 35 GiB without it, and a plan "
    "of 10.8 GiB with it.",
    tests=(
        "test_memory.py::test_what_is_cut_out_again_is_the_piece_itself",
        "test_memory.py::test_an_unrolled_scan_keeps_what_layers_that_are_written_out_keep",
    ),
    where=("price.shortcuts.with_shortcuts",),
)

RECORDS = (OPENED_LOOPS, MERGED, PIECES)

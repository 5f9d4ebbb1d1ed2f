"""Which collectives are left of those that shardings ask for, and how many bytes they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour, everywhere, structural

COMBINED = structural(
    "all-reduces that nothing heavy waits for are made one",
    "Those of one region share the latency of one (XLA's all-reduce combiner): gradients, in short.",
    ops=("all_reduce",),
    evidence="A U-Net under data parallelism, v5e, libtpu of jax 0.10.2: two all-reduces were left of 109.",
    tests=(
        "test_move_terms.py::test_gradients_share_a_latency_and_activations_do_not",
        "test_move_terms.py::test_data_parallelism_pays_one_latency_for_all_gradients",
    ),
    where=("ir.move_terms.find_move_terms",),
)

NARROWED = structural(
    "a tensor is moved once it is narrower",
    "One whose only use is a conversion to a narrower type is moved after it, at fewer bytes.",
    ops=("convert",),
    evidence="libtpu of jax 0.10.2, v5e, and Shardy's own program: collectives of bf16 behind sums in f32 that are "
    "only used in bf16.",
    tests=(
        "test_move_terms.py::test_a_tensor_is_moved_once_it_is_narrower",
        "test_move_terms.py::test_no_narrowing_where_the_wide_tensor_is_used_too",
    ),
    where=("ir.move_terms.narrowed_by",),
)

ROUNDED = Behaviour(
    name="operands of f32 products are rounded before they are moved",
    what="A matrix product of f32 is one of so many bits unless it was asked to be precise, and its operands are "
    "rounded first, before they are gathered by indices, cut or put together if nothing but products reads the "
    "outcome. Partial sums keep all of their bits.",
    effect=16,
    otherwise=0,
    platforms=TPU,
    ops=("dot", "dot_general"),
    evidence="libtpu of jax 0.10.2, v5e: the all-gathers of an MLP's f32 weights are of bf16. In a graph network in "
    "f32 under FSDP the nodes that edges look up are moved by an all-to-all of bf16 before, and what was looked up by "
    "others after, since nothing but products reads it; their gradients go as f32.",
    tests=(
        "test_move_terms.py::test_what_only_products_read_is_moved_rounded",
        "test_move_terms.py::test_tpus_round_the_operands_of_products_before_they_move_them",
        "test_move_terms.py::test_a_product_says_whether_its_operands_may_be_rounded",
    ),
    where=("price.prices.DevicePrices.rounding",),
)


@dataclass(frozen=True)
class Looped:
    """A product as a loop over the parts of its result, which takes ``passes`` times their bytes.

    Of types of fewer than four bytes it takes ``narrow_passes``. Every other turn reads the operand that is not cut,
    at ``read_part`` of the memory's rate. It is a loop if the matrix unit takes ``least_part`` of what scattering the
    result does, or more.
    """

    passes: float
    narrow_passes: float
    read_part: float
    least_part: float


LOOPED_PRODUCTS = Behaviour(
    name="a product whose partial sums are scattered is a loop over its parts",
    what="Each part is written, and read and written again when it is added to what came from the neighbour, in time "
    "of its own. Parts that are smaller than the matrix unit leave the rest of it idle. A turn makes two parts, one "
    "for each way around, and every other turn reads the whole operand that is not cut once more. There must be work "
    "to hide the moves behind; where there is too little, the sums are scattered after the product, or reduced whole.",
    effect=Looped(passes=4.8, narrow_passes=6.6, read_part=0.55, least_part=0.15),
    otherwise=Looped(passes=0, narrow_passes=0, read_part=1.0, least_part=float("inf")),
    platforms=TPU,
    ops=("dot", "dot_general"),
    evidence="Cycles of the libtpu of jax 0.10.2 on v5e: 2.28 ms for an f32[8192,8192] of 16,384 rows on 16 devices, "
    "0.70 without. bf16[n,m] of k rows on each of 16 devices, scattered along n, ms of the products by turns and of "
    "all additions: k, n, m of 2048, 2048, 16384: 4 × (0.157 + 0.093), 0.53; 4096, 2048, 8192: 4 × (0.137 + 0.091), "
    "0.27; 1024, 2048, 8192: 4 × (0.050 + 0.026), 0.27. Where a turn takes the matrix unit longer than reading takes, "
    "all turns are alike: 8192, 4096, 4096: 8 × 0.191; 2048, 8192, 8192: 8 × 0.186, 1.06. Products bf16[n,n] of k rows "
    "on each device, n of 1,024 to 4,096: on 16 of 4x4 they are loops from k = 384 on, all-reduced up to 256, in f32 "
    "from 1,024 on and up to 512; on 8 of 2x4 loops from 640 on and scattered by a fusion up to 512, whatever n is. By "
    "our prices of products and scattering these are parts of 0.12 to 0.18, 0.12 to 0.25, and 0.13 to 0.17.",
    tests=(
        "test_move_terms.py::test_scattering_partial_sums_takes_the_product_apart_on_tpus",
        "test_move_terms.py::test_loops_read_the_operand_that_is_not_cut_in_every_other_turn",
        "test_move_terms.py::test_a_product_is_a_loop_where_it_takes_a_part_of_what_scattering_its_sums_does",
    ),
    where=("price.prices.DevicePrices.makes_loop", "price.prices.DevicePrices.loop_seconds"),
)

SCATTERED_SUMS = structural(
    "partial sums of a scatter are reduced whole",
    "A sum over a graph's edges, say. Each device takes its part of it afterwards, which moves twice as much as "
    "scattering it.",
    ops=("scatter",),
    evidence="Graph networks split by edges, v5e, libtpu of jax 0.10.2: sums over edges are reduced before a device "
    "takes its part, over all of 4x4 and, with features split by the other axis, over 4 of it; and two that are added "
    "up are then reduced each. Not always: f32[65536,128] of 262,144 rows is scattered over all of 2x4, and so is the "
    "gradient of a GPT's embeddings over 4 of 4x4.",
    tests=("test_move_terms.py::test_sums_over_edges_are_reduced_whole",),
    where=("ir.move_terms.find_move_terms",),
)

LATE_SCATTERING = everywhere(
    "sums are not scattered onto a dimension that lies along a later axis",
    "The partitioner reduces the whole part and takes its slice, which moves so many times what scattering it does.",
    effect=2.0,
    evidence="Compiled for v5e by the libtpu of jax 0.10.2, with Shardy's constraints and with plain ones.",
    tests=("test_collectives.py::test_xla_reduces_whole_what_is_scattered_before_an_axis_of_the_dimension",),
    where=("price.collectives.reduce_partial",),
)

SCATTERED_APART = structural(
    "sums are not scattered onto several dimensions",
    "Where the axes that a sum is partial over go to more than one of its dimensions, it is reduced whole over all of "
    "them, in one all-reduce, and each device takes its slice; and a product is not made a loop.",
    ops=("all_reduce", "dot_general"),
    evidence="libtpu of jax 0.10.2. A gradient bf16[2048,2048] of 65,536 rows split by both axes of v5e 2x4 or 4x4, to "
    "lie along one axis by rows and along the other by columns: one all-reduce of all of it, and so for an f32 sum "
    "over 64; to lie by rows along both: a loop of permutes. GPT of 2 layers under FSDP and Megatron with sequences "
    "split: the gradients of the attention's weights, whose width lies along the one axis and heads along the other, "
    "are all-reduced.",
    tests=("test_collectives.py::test_sums_that_go_to_several_dimensions_are_reduced_whole",),
    where=("price.collectives.reduce_partial", "price.assign.is_scattered"),
)

SCATTERED_WITHIN = structural(
    "a part is scattered within itself",
    "The axes that partial sums are scattered over come after those that the dimension has, whatever their order "
    "should be. Told otherwise, XLA gathers the operands in place of scattering the result.",
    evidence="Compiled for v5e by the libtpu of jax 0.10.2.",
    tests=("test_collectives.py::test_where_partial_sums_are_scattered",),
    where=("price.collectives.reduced",),
)


def _square_or_cuboid(sides: Sequence[int]) -> bool:
    """Whether chips along each dimension of a slice make a square of 4 × 4 or more, or a cuboid."""
    longer = [side for side in sides if side > 1]
    return len(longer) == 3 or (len(longer) == 2 and longer[0] == longer[1] >= 4)


def _never(sides: Sequence[int]) -> bool:  # noqa: ARG001
    return False


_OfSides = Callable[[Sequence[int]], bool]
_SLICES: _OfSides = _square_or_cuboid
WHOLE_SLICES = Behaviour(
    name="sums over every device of a square or a cuboid are reduced whole",
    what="A sum over devices that becomes split along them is one fusion, all-reduce-scatter, which sends half of what "
    "an all-reduce does; but not where its group is every device of a square or a cuboid of chips. Products are not "
    "meant, which are loops that scatter their sums, unless they are many at once: those of experts, say.",
    effect=_SLICES,
    otherwise=_never,
    platforms=TPU,
    ops=("reduce", "ragged_dot"),
    evidence="Final programs of libtpu 0.0.42 for f32[32768,512], summed from [32768,512,64] split along its last "
    "dimension. Whole, over all devices of v5e and v6e 4x4 and 8x8 (by one axis or two) and of v5p 2x2x2, 2x2x4, 2x4x4 "
    "and 4x4x4. Scattered, over all devices of v5e 2x2, 2x4 and 4x8, of v6e 2x4 and of v5p 2x2x1; and over some: 4 of "
    "v5e 4x4, 8 of 4x4 and of 8x8, 16 of 16x16, 4 of v6e 4x4, 4 and 16 of v5p 4x4x4. A mixture of 16 experts under "
    "FSDP on v5e 4x4: the gradients bf16[16,1024,4096] of both of their weights, products of 0.62 ms, are all-reduced "
    "whole; those of all other weights, down to products of 10 µs, are loops.",
    tests=(
        "test_move_terms.py::test_sums_over_every_device_of_a_square_or_a_cuboid_are_reduced_whole",
        "test_overlap.py::test_products_of_many_at_once_are_no_loops",
        "test_move_terms.py::test_a_sum_that_is_reduced_whole_costs_twice_what_scattering_it_does",
    ),
    where=("price.prices.DevicePrices.reduces_whole",),
)

ADDED_UP = structural(
    "sums that are added up are reduced once",
    "XLA's all-reduce reassociation: sums that are added up before anything else is done with them have one "
    "all-reduce, or reduce-scatter, between them, if all of them are partial over the same axes; not products that "
    "are loops, each of which scatters its own. What is added to something that is not "
    "partial is reduced first, unless it is a scatter, which then scatters into that.",
    ops=("add",),
    evidence="libtpu of jax 0.10.2, v5e. On 2x4, two products, two scatters or two reductions, added up: one "
    "reduce-scatter where the result is split, one all-reduce where not. The backward pass of a Megatron layer: of the "
    "three all-reduces behind queries, keys and values one is left. With adapters of low rank beside every weight, "
    "whose products are not partial, three are left, and two of gate and up. A graph network split by edges: the "
    "gradients of nodes as senders and as receivers, two scatters, are added up and then reduced, though the first of "
    "them is added to something else before.",
    tests=(
        "test_move_terms.py::test_sums_that_are_added_up_are_reduced_once",
        "test_move_terms.py::test_what_is_added_to_something_whole_is_reduced_first",
    ),
    where=("ir.move_terms.find_additions", "price.added.reduced_together"),
)

RECORDS = (
    COMBINED,
    NARROWED,
    ROUNDED,
    LOOPED_PRODUCTS,
    SCATTERED_SUMS,
    LATE_SCATTERING,
    SCATTERED_APART,
    SCATTERED_WITHIN,
    WHOLE_SLICES,
    ADDED_UP,
)

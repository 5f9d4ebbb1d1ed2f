"""Which values share memory, and what exists twice for a while."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour, structural


@dataclass(frozen=True)
class OnChip:
    """Values of at most such a part of the memory on the chip that are needed for no more than so many kernels."""

    most_part: float
    most_kernels: int


_ON_CHIP = OnChip(most_part=0.125, most_kernels=8)
ON_CHIP = Behaviour(
    name="what is small and soon used up stays in the memory of the chip itself",
    what="A kernel writes its result to the vector memory where there is room, and the next ones read it there; what "
    "is needed later is moved out. So a small value that is used up within a few kernels is not in the device's memory "
    "at all. Larger ones often are not either, but share the room with others, and are counted.",
    effect=_ON_CHIP,
    otherwise=_ON_CHIP,
    platforms=TPU,
    evidence="Final texts of the libtpu of jax 0.10.2 for v5e, whose vector memory is 128 MiB, of which 16 are a "
    "kernel's own: layouts with S(1) are there. Values of up to half of it were left out at first: that is right for a "
    "Conformer, 4x4, fsdp, where scores of attention of 50 MiB are never outside, and too much for layers whose "
    "moments come from the host (1,136 MiB estimated, 1,408 compiled; 1,264 with an eighth). It is asked where a "
    "device's memory on the chip is known.",
    tests=("test_memory.py::test_what_is_soon_used_up_stays_on_the_chip",),
    where=("price.buffers.find_buffers", "price.class_prices.Tensors.held_bytes", "devices.device.Device"),
)

CARRIED = structural(
    "one buffer holds what a loop carries",
    "From its first content to the last use of what comes out; what a loop does not change is read where it lies. Two "
    "slots that begin as one table of zeros are two buffers.",
    ops=("while",),
    evidence="docs/benchmarks/clock.md: memory of scanned models, libtpu of jax 0.10.2, v5e.",
    tests=(
        "test_memory.py::test_a_loop_keeps_one_copy_of_what_it_carries",
        "test_memory.py::test_what_begins_as_one_table_of_zeros_ends_as_two",
    ),
    where=("price.buffers.find_buffers",),
)

UPDATED_IN_PLACE = structural(
    "updates are written in place where nobody needs the old content",
    "A table of zeros that is written to place by place has no sharding of its own: it is split as what comes out.",
    ops=("dynamic_update_slice", "scatter"),
    evidence="Levanter's Llama 7B, libtpu of jax 0.10.2: the derivative of take_along_axis over [batch, sequence, "
    "vocabulary] was counted as one whole table on every device, 7.8 GiB that the compiled program does not have.",
    tests=(
        "test_memory.py::test_a_table_of_zeros_is_split_as_what_is_written_to_it",
        "test_memory.py::test_residuals_are_stacked",
    ),
    where=("price.buffers.find_buffers",),
)

OVERWRITTEN = structural(
    "an elementwise kernel writes over an operand that it is the last to read",
    "Where operand and result have one shape and type. The same holds of a donated argument that has been read when "
    "the result is complete. A kernel that also reduces what it goes through writes elsewhere, and so does one that "
    "turns the dimensions of a product around.",
    evidence="docs/benchmarks/clock.md: memory of training steps, libtpu of jax 0.10.2, v5e. Buffers "
    "counted so over final texts add up to the compiler's own peak, to the MiB, in 14 of 21 programs; a fusion that "
    "gives a softmax's exponentials with their sums takes a second f32[8,8,2,2047,2047] beside what it reads. "
    "Gated layers compiled alone, bf16: silu(x @ g) * (x @ u) of bf16[16384,8192] is there once, of experts "
    "bf16[8192,8,896] too, also batched, and twice where both products are turned around to bf16[8,8192,896].",
    tests=(
        "test_memory.py::test_a_kernel_that_reduces_does_not_write_over_what_it_reads",
        "test_memory.py::test_a_product_that_is_turned_around_writes_elsewhere",
        "test_memory.py::test_a_chain_holds_two_values_at_a_time",
        "test_memory.py::test_a_result_takes_over_a_donated_argument",
    ),
    where=("price.buffers.find_buffers",),
)

RESULTS_FROM_THE_START = structural(
    "what a program returns has its memory from the start",
    "The caller gives it before the program runs. Unless a result takes over a donated argument, it is beside all that "
    "is needed on the way to it. Before the result is there, what is no larger may lie in its memory: the largest is "
    "given a place first, in the smallest memory that is free while it is needed, and one at a time.",
    evidence="Compiled alone, v5e, libtpu of jax 0.10.2, bf16; MiB of temporaries beside arguments and results. A "
    "chain of products with 64 each between and a result of 128: 64 after four of them, 64 after six with a result of "
    "256 (every other lies in the result's memory; the last, which is read while the result is written, cannot). 128, "
    "64, 128, 64 and a result of 256: 64. 256, 128, 256, 128 and a result of 128: 384. Two layers of attention whose "
    "scores are f32 of 512, bf16 of 256 after the softmax: 289 with logits of 1,024, 769 with a result of 16. Experts "
    "of 8,192 tokens: 298 at the peak with arguments of 58 and two values of 112, and 16 of results written later.",
    tests=(
        "test_memory.py::test_a_result_has_its_memory_from_the_start",
        "test_memory.py::test_what_is_smaller_lies_in_a_results_memory_before_it",
    ),
    where=("price.buffers.find_buffers",),
)

MADE_WHERE_NEEDED = structural(
    "constants are made where they are needed",
    "So are iotas, broadcasts of a scalar, and what is computed elementwise from these alone; a loop that carries one "
    "unchanged makes it again inside.",
    ops=("constant", "iota", "broadcast_in_dim"),
    evidence="Shardy copies such a sub-computation for each of its uses before it propagates (its pass "
    "constant-or-scalar-splitter), and XLA fuses each copy into its use; jax 0.10.2 and 0.12.",
    tests=("test_memory.py::test_what_any_device_can_make_is_free",),
    where=("ir.program.Program.free", "price.buffers.find_buffers"),
)

RELAID = structural(
    "a cache that a loop writes to position by position may be copied to another layout and back",
    "Where a loop writes single positions of an inner dimension into what it carries, the tensor lies in the loop as "
    "what is written does: positions outermost, and the rows written at once, a batch, second to the innermost. "
    "Where what is written comes straight out of a collective, or is one row, it lies as the product of matrices that "
    "reads it wants it: the product's batch dimensions outermost. An argument lies in the order of its dimensions, and "
    "is copied before the loop and back after it where the order is another; dimensions of which a device has one "
    "entry have no place in an order.",
    ops=("while", "dynamic_update_slice"),
    evidence="Decoding steps of 4 layers, cache [layers, batch, 2048, heads, 128], v5e 4x4, libtpu of jax 0.10.2; in "
    "the loop {4,1,3,2,0} is as it is written and {4,2,3,1,0} as it is read, and outside it is {4,3,2,1,0}, or with "
    "one head on a device {4,2,3,1,0}. Keys and values as written, both copied: data parallel on 16, on 4 and 2 with "
    "Megatron on 4 and 8, all with one query to a head or one head to all. Values as read: FSDP with 4 queries to a "
    "head, where they are reduced first, copied with 8 and 2 heads on a device and not with one (2.93 ms and 401 MiB, "
    "the estimate 2.95 and 404, where keys alone are copied; 4.44 and 596 with both). One sequence on a device, 8192 "
    "positions, 8 heads: both as read, copied. Copies take 222 bytes a cycle, into tiles of 2 or 4 rows 84.",
    tests=(
        "test_memory.py::test_a_cache_that_is_written_by_position_is_copied",
        "test_memory.py::test_a_cache_is_copied_where_its_order_in_the_loop_is_another",
    ),
    where=("price.relaid.find_relaid", "price.relaid.Relaid.is_copied", "price.compute.relayout_seconds"),
)

STACKED = structural(
    "a slice of a stacked cache is copied in each turn of a loop that writes to single positions of it",
    "Where a scan has a cache as xs and gives what it wrote to it as ys, each turn takes the slice out of one stack "
    "and puts it into another one, and both are copies. Stacks lie in the order of their dimensions; the slice lies "
    "as the product of matrices that reads it wants it, the product's batch dimensions outermost, or where no "
    "product does, as what is written: positions outermost, and the rows written at once, a batch, second to the "
    "innermost. Where the order is another it is copied once more on the way in; on the way out one copy does both. "
    "Where the positions are split over devices, the whole stack is copied before the loop to the order of what is "
    "written, and slices are copied from that to the one in which they are read. A tile of 2 or 4 rows takes as "
    "many instructions as one of 8.",
    ops=("while", "dynamic_slice", "dynamic_update_slice"),
    evidence="Layers of attention in a scan, 16 sequences, bf16, heads of 128, v5e, libtpu of jax 0.10.2, one device: "
    "[batch, positions, heads, 128], 4 queries to a head, in the loop {3,1,2,0}; with 8, 4 and 2 heads the "
    "slice and what puts it back take 222, 143 and 84 bytes a cycle, the copy between 222 or, from or to the "
    "memory on the chip, 285. One query to a head: {3,0,2,1}. [batch, heads, positions, 128]: as it lies, no "
    "copy between. With or without donation alike. Positions split over 4: {4,1,3,2,0} before the loop, with "
    "2 and 8 heads, and {4,1,2,3,0} of [layers, batch, heads, positions, 128], all with a copy between, and "
    "1,024 MiB for the two stacks where they are not donated. Seen otherwise: with one head on a device, "
    "keys as they lie and values as they are written, which is not modelled. v5e 4x4, 8 layers, 64 sequences "
    "of 4096, 8 heads, estimated and compiled milliseconds: batch split over 16 13.7 and 16.1; heads over "
    "one axis, positions over the other 18.5 and 20.3, and 19.9 and 19.1; heads and batch 28.6 and 29.1, and "
    "28.2 and 30.7 with FSDP. Seen otherwise: with data parallelism alone 23.9 and 19.3, as slices of "
    "weights that are not split are not copied.",
    tests=(
        "test_memory.py::test_a_slice_of_a_stacked_cache_is_copied_in_each_turn",
        "test_memory.py::test_a_stack_is_copied_before_the_loop_where_positions_are_split",
        "test_cost_formulas.py::test_a_small_tile_takes_as_long_as_a_whole_one",
    ),
    where=("price.stacked.find_stacked", "price.stacked.Stacked.turned", "price.compute.tiled_copy_seconds"),
)

GIVEN_BACK = structural(
    "what a loop stacks is copied to a donated argument that the loop reads",
    "Results of a scan that take over the memory of an argument of which the scan reads a slice in each turn cannot "
    "lie there before it ends. They have memory of their own until then, and are copied.",
    ops=("while",),
    evidence="The decoding steps of the record before, v5e, libtpu of jax 0.10.2: a buffer for each stack beside the "
    "donated one (2.07 GiB compiled, 2.07 estimated, 1.57 without), and after the loop a copy at 222 bytes a "
    "cycle, 143 and 84 with tiles of 4 and 2 rows. Without donation, and where the stack was copied before "
    "the loop, there is no copy after it.",
    tests=("test_memory.py::test_what_a_loop_stacks_is_copied_to_a_donated_argument_that_it_reads",),
    where=("price.buffers.find_buffers", "price.units.Units.given_back_seconds"),
)

HOISTED = structural(
    "a stack that a loop only reads is converted to a narrower type once, before the loop",
    "Not slice by slice: all of the stack is there in both types while the loop runs.",
    ops=("convert", "dynamic_slice"),
    evidence="Scanned decoders with f32 weights that are used in bf16, v5e, libtpu of jax 0.10.2: one convert of the "
    "stack before the while (docs/benchmarks/clock.md).",
    tests=("test_memory.py::test_a_stack_is_converted_before_the_loop",),
    where=("price.buffers.find_buffers",),
)

IN_BOTH_TYPES = Behaviour(
    name="what is converted to a wider type to be gathered from is there in both",
    what="A gather reads its table from memory. Where a product's result is converted to a wider type and gathered "
    "from, as a loss by labels does with logits, the wide one is stored for the gather, and all others read the "
    "narrow one and convert it themselves.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("convert", "gather"),
    evidence="libtpu of jax 0.10.2, v5e 4x4: one fusion gives f32[2,2047,32768] and bf16[2,2047,32768], of which a "
    "gather reads the former and the sums and the derivative the latter (GRPO); f32[4,1023,50257] and bf16 (GPT-2 "
    "with Megatron on 4). Where only the batch is split, over 16, the gather was seen to run after the backward pass, "
    "with all of the wide table kept until then (GPT-2, BERT, Gemma); that is not modelled.",
    tests=("test_memory.py::test_logits_that_are_gathered_from_are_there_in_both_types",),
    where=("price.kernels._gathered_tables", "price.buffers.find_buffers"),
)

LATE_SUMS = Behaviour(
    name="gradients whose sums are scattered in steps are computed last",
    what="A product whose partial sums are scattered is a loop of products and permutes, and where no other product "
    "waits for it, it runs after the last one that is waited for: at the end of a loop's body, or of the backward "
    "pass, loops with such products counted, but before the next barrier, as there is one before a layer that is "
    "computed again. What it is computed from is kept until then. Such a loop never has the whole of its sums.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("dot_general", "reduce_scatter"),
    evidence="libtpu of jax 0.10.2, v5e 2x4, fsdp on 8, buffer by buffer at the peak: GPT of 6 layers in a loop, in "
    "the derivative of attention, two bf16[8,1024,4096] of the feed-forward layer, from 792 and 807 to 1161 and 1299 "
    "where the last product that is waited for is at 959; a vision transformer of 2 layers written out, what two GELUs "
    "give, bf16[64,197,3072], to 1794 and 2367 of 2820, after all of the backward pass but these. With data "
    "parallelism alone they are used at once. GPT of 3 layers written out and recomputed: 0.93 GiB, the estimate with "
    "barriers 1.02, and 1.60 to the end. v5e 4x4, fsdp on 16: the gradient of the logits is kept through the loop of "
    "the backward pass, bf16[2,2048,32768] of a GPT and bf16[2,2047,32768] of a step of GRPO; of Gemma 2B there are no "
    "partial sums of all of [2048,256000]. Seen otherwise: GPT of 4 layers, fsdp on 4 of 16, where they are used at "
    "once too.",
    tests=("test_memory.py::test_what_a_scattered_gradient_is_computed_from_is_kept",),
    where=("price.units.Units.kept_late", "price.class_prices.OpPrices"),
)

KEPT_ROUNDED = Behaviour(
    name="what only products read is kept rounded",
    what="A value of f32 all of whose uses are matrix products that round their operands, or pieces and views of it "
    "that are used so, is made and kept in bf16, be it a product's result itself. Sums of it do not count, which are "
    "taken in the kernel that makes it. One that others read too is kept in f32, sometimes in both types.",
    effect="bf16",
    otherwise="",
    platforms=TPU,
    ops=("dot", "dot_general"),
    evidence="libtpu of jax 0.10.2, v5e 2x2, f32[16384,4096] and weights f32[4096,4096]: of tanh(tanh(x @ u) @ v) @ w "
    "both tanh are bf16 in the final text; in a step of gradient descent of gelu layers, whose derivatives read what "
    "the products read, they are f32. v5e 4x4, an f32 decoder under FSDP: norms' results, gradients of logits and what "
    "is padded of them, and gathered weights are bf16. v5e 2x2: of (x @ w) @ v, and of a product that two others read, "
    "the first product's result is bf16[8192,4096]. v5e 2x4, a vision transformer and a GPT in f32, two layers written "
    "out, buffer by buffer at the peak: queries, keys, values and what attention gives are bf16[64,197,768], gradients "
    "that two products and a bias's sum read bf16[64,197,3072], rows that were gathered for a product "
    "bf16[16384,1024]; what enters a GELU, which its derivative reads again, is f32[64,197,3072].",
    tests=("test_memory.py::test_what_only_products_read_is_kept_rounded",),
    where=("price.rounded.kept_rounded",),
)

RECORDS = (
    ON_CHIP,
    KEPT_ROUNDED,
    CARRIED,
    UPDATED_IN_PLACE,
    OVERWRITTEN,
    RESULTS_FROM_THE_START,
    MADE_WHERE_NEEDED,
    RELAID,
    STACKED,
    GIVEN_BACK,
    HOISTED,
    IN_BOTH_TYPES,
    LATE_SUMS,
)

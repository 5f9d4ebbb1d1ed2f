"""Which ops run together as one kernel, so that what is between them never exists in memory."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour, everywhere, structural

_SEEN = "Final programs of the libtpu of jax 0.10.2 for v5e, and the totals of the built-in models"


@dataclass(frozen=True)
class Recomputing:
    """When a value that several kernels need is computed again in each.

    It may keep alive, of what it is computed from, ``cheap`` times its own bytes, or ``expensive`` times where
    something expensive is on the way: a little more for cheap ones, so that what is reduced or broadcast on the way
    does not count. It is kept if it is computed from more than ``most_leaves`` stored values, or if ``longest_chain``
    ops are not enough.
    """

    cheap: float
    expensive: float
    most_leaves: int
    longest_chain: int


@dataclass(frozen=True)
class Softmax:
    """The longest rows of which a softmax is one kernel, and those that a product makes in a kernel with its own."""

    longest_row: int
    longest_product_row: int


ELEMENTWISE = structural(
    "elementwise ops run inside the kernel that needs them",
    "So do broadcasts, conversions and slices. What a loop carries, a branch or the program returns, or an op uses "
    "that fuses nothing (sort, gather, …) is stored. Collectives, custom calls and generators of random bits fuse "
    "with nothing.",
    evidence=f"{_SEEN}: docs/benchmarks/clock.md.",
    tests=("test_memory.py::test_elementwise_chains_are_one_kernel",),
    where=("price.kernels.find_kernels",),
)

RECOMPUTED = everywhere(
    "cheap ops are computed again in each kernel, expensive ones are kept",
    "Where several kernels need a value, a cheap one is computed again in each unless that would keep more in "
    "memory than its result; an expensive one (exp, tanh) only if it would keep less. What is needed anyway costs "
    "nothing.",
    effect=Recomputing(cheap=1.25, expensive=0.75, most_leaves=12, longest_chain=64),
    evidence=f"{_SEEN}: of a softmax the scores in bf16 are kept and not their exponentials in f32. The figures are "
    "fitted to the memory of these programs (docs/benchmarks/clock.md).",
    tests=(
        "test_memory.py::test_cheap_ops_are_computed_again_and_expensive_ones_kept",
        "test_memory.py::test_what_is_smaller_than_its_inputs_is_kept",
        "test_memory.py::test_a_long_way_to_what_is_spread_is_gone_once",
    ),
    where=("price.kernels.find_kernels",),
)

WRITTEN_OUT = structural(
    "what is written out at length is not computed twice",
    "Some ops are polynomials of dozens of ops by the time they are fused. They are kept where several kernels need "
    "them, and before they are repeated in a larger value.",
    ops=("digamma", "erf_inv", "lgamma"),
    evidence="BERT of transformers, v5e, libtpu of jax 0.10.2: the bits of a dropout are computed where their mask is "
    "(StableHLO, ChloLegalizeToStablehlo.cpp, has the polynomials). erfc, some 65 ops when it is fused, is none of "
    "these: a vision transformer in float32, two layers written out, computes it in both passes, and "
    "f32[64,197,3072] is kept once for each layer, not twice.",
    tests=("test_memory.py::test_what_is_written_out_at_length_is_not_computed_twice",),
    where=("price.kernels.find_kernels",),
)

_ERROR_FUNCTIONS: frozenset[str] = frozenset({"erf", "erfc"})
KEPT_WHERE_ROUNDED = Behaviour(
    name="error functions of a narrow type are kept",
    what="They are computed in 32 bits and rounded, by some 65 ops when they are fused. Where several kernels need "
    "one, what was rounded is stored beside what it is computed from, by the same kernel. The effect are the ops; of "
    "32 bits they are computed again.",
    effect=_ERROR_FUNCTIONS,
    otherwise=frozenset(),
    platforms=TPU,
    ops=("erf", "erfc"),
    evidence="Two layers of gelu(x @ u) @ w and their gradients compiled alone, v5e, libtpu of jax 0.10.2, bf16, rows "
    "of 1,024 and 4,096: with the error function a product's fusion gives two bf16[16384,4096] for each layer, what "
    "goes into the function and erfc, which the derivative reads; with tanh it gives one. A vision transformer of 12 "
    "heads, 2 layers, the same in both.",
    tests=("test_memory.py::test_an_error_function_of_a_narrow_type_is_kept",),
    where=("price.kernels.find_kernels",),
)

COMES_TOGETHER = structural(
    "where all kernels need one value that comes of another, that one is kept",
    "A value whose uses all come together again in one op is computed no more often than that op, and whether to keep "
    "the op's result is the question.",
    evidence=f"{_SEEN}.",
    tests=("test_memory.py::test_what_comes_together_again_is_decided_there",),
    where=("price.kernels._come_together",),
)

SCALING = structural(
    "a product that sums nothing up is a multiplication",
    "A matrix product that scales one operand by the other is elementwise, and fuses as such.",
    ops=("dot", "dot_general"),
    evidence="BERT of transformers, v5e, libtpu of jax 0.10.2: a head's mask is multiplied, and is no matrix product.",
    tests=("test_memory.py::test_a_product_that_only_scales_is_a_multiplication",),
    where=("price.kernels.find_fused",),
)

OPERANDS_INSIDE = Behaviour(
    name="contractions compute their operands inside",
    what="A contraction takes elementwise ops on its operands in. On a GPU or a CPU it is a library's, which reads its "
    "operands from memory.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("convolution", "dot", "dot_general", "ragged_dot"),
    evidence=f"{_SEEN}. For GPUs docs/benchmarks/gpu_memory.md: products there are custom calls of cuBLAS.",
    tests=("test_memory.py::test_a_product_computes_its_operands_inside_on_a_tpu_but_not_on_a_gpu",),
    where=("price.kernels.find_kernels",),
)

EPILOGUES = everywhere(
    "contractions take in what follows",
    "Elementwise ops that follow a contraction run inside it, as long as they come together in one value again, "
    "which is what is stored; at most so many of them. Of two contractions that meet in one op, the later takes it in.",
    effect=32,
    ops=("convolution", "dot", "dot_general", "ragged_dot"),
    evidence=f"{_SEEN}. The length is a bound on the walk; no longer one was seen.",
    tests=(
        "test_memory.py::test_a_product_takes_its_epilogue_in",
        "test_memory.py::test_of_two_products_that_meet_the_later_takes_the_op_in",
    ),
    where=("price.kernels._epilogues", "price.kernels._meetings"),
)

LEFT_TO_THE_NEXT = structural(
    "a product whose dimensions are turned around takes in nothing that another product makes",
    "Where the result has to be turned around by more than a change of operands, what it is brought together with from "
    "another product, for a third one alone, is left to that, which reads both: the gates of experts and what they are "
    "multiplied with are both there while it runs, and its own result, before partial sums are added up, is beside "
    "them.",
    ops=("dot", "dot_general"),
    evidence="Eight gated experts of 8,192 tokens, bf16, width 1,024, compiled alone, v5e, libtpu of jax 0.10.2: of "
    "td,edf->etf two bf16[8,3584,8192] are there, which the third product's fusion reads, and 896 MiB at the peak; of "
    "td,edf->tef the second product's fusion multiplies, and there are 448. The same split by Megatron over 4, 16 x "
    "1,024 tokens: two bf16[8,896,16,1024] of 224 MiB and the unreduced bf16[16,1024,1024,8] of 256; 852 MiB, the "
    "estimate is 820, and 596 where one product takes in the other's result.",
    tests=("test_memory.py::test_what_is_turned_around_is_left_to_the_product_that_reads_it",),
    where=("price.kernels._meetings",),
)

ONE_HOT = Behaviour(
    name="a scatter of one entry to a row of zeros is a selection",
    what="The derivative of take_along_axis, as a loss by labels has it, writes one entry into each row of a table of "
    "zeros. It becomes a selection where an index is the row's own, element by element, and runs inside what needs it.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("scatter",),
    evidence="A GPT in float32, two layers written out, v5e 2x4, libtpu of jax 0.10.2: no table f32[32,511,8192] of "
    "512 MiB beside the two that the log of the softmax takes; select_add_fusion, bf16[32,511,8192], is its sum with "
    "the rest of the derivative.",
    tests=("test_memory.py::test_a_scatter_of_one_entry_to_a_row_is_computed_inside",),
    where=("price.kernels.find_kernels",),
)

JOINED_REDUCTIONS = Behaviour(
    name="reductions run in the kernel that makes what they read",
    what="What a product makes is reduced in its own kernel, if all else that the reduction needs was there before; "
    "reductions that read the same value are one kernel. A softmax is one kernel where its rows are short enough, and "
    "reads them twice unless it computes them; where a product makes them, only up to the largest of each row, unless "
    "it gives a narrower type and they are masked in the wider one. Rows too long for that, of a product of a narrower "
    "type, are a softmax by themselves again. The largest of what is converted is found before it is converted, in a "
    "kernel of its own. No other value as large is read: the derivative of a softmax is three kernels. A sum of "
    "exponentials that nothing else needs is a kernel of its own.",
    effect=Softmax(longest_row=2048, longest_product_row=1024),
    otherwise=None,
    platforms=TPU,
    ops=("reduce",),
    evidence="Attention, softmax and layer norms compiled alone, v5e, libtpu of jax 0.10.2: scores and the largest of "
    "each row are results of one fusion, in bf16 and f32, for 196 to 2,048 keys; of 1,024 masked keys in bf16 with a "
    "softmax in f32 the exponentials and their sums are, and of 2,048 they are not. A softmax of f32[4,16,1024,1024] "
    "is one fusion of 2,104,200 cycles, masked 1,453,900, one of f32[4096,4096] three; its derivative takes 2,102,900, "
    "1,871,300 and 1,872,000 cycles, and the logarithm of a sum of exponentials of f32[16384,1024] 505,400 and "
    "304,500. Sums of x and of x² over 512 x 32,768 take 303,760 cycles together, "
    "and the sum of x² alone 302,992.",
    tests=("test_calibration.py::test_reductions_run_with_what_makes_what_they_read",),
    where=("price.kernels._joined",),
)

SUMMED_INSIDE = Behaviour(
    name="what a product makes only to be added up is not stored",
    what="Where one reduction alone reads what comes out of a product and what follows it, the product's kernel ends "
    "with the reduction, over a dimension of the batch too. A batch of products with vectors is a multiplication and "
    "such a reduction.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("dot", "dot_general", "reduce"),
    evidence="Eight experts that are all computed for each of 8,192 tokens, bf16, width 1024, compiled alone, v5e, "
    "libtpu of jax 0.10.2: one fusion multiplies bf16[8,8192,896] by the experts' weights, scales bf16[8,8192,1024] by "
    "the tokens' weights and reduces it over the experts to bf16[8192,1024], which alone is there; 224 MiB at the "
    "peak, which are the gates and what they are multiplied with. No memory but for their arguments and results take "
    "rows of tanh(x @ w), bf16[8192,8192], that are added up, a batch of products of bf16[16,1024,4096] with vectors, "
    "and a sum over the experts of f32[8,8192,1024] scaled.",
    tests=("test_memory.py::test_what_is_made_to_be_added_up_is_not_stored",),
    where=("price.sums.sum_of", "price.kernels._epilogues"),
)

_ATTENTION = (
    "attention and its derivative compiled alone, v5e, libtpu of jax 0.10.2, bf16 with a softmax in f32, with and "
    "without jax.checkpoint, for 196 to 2,048 keys"
)

EXPONENTIALS = Behaviour(
    name="a masked softmax stores its exponentials",
    what="Where a product's masked scores go through a softmax in one kernel, this reads the scores and writes the "
    "exponentials in their own type, beside their sums; products and the derivative read these. Of scores in short "
    "rows what is stored before is the narrow result of the product, of longer ones the masked scores. Where "
    "dimensions are turned around between the product and the mask, as with queries in groups, it is done only if one "
    "product reads the exponentials. Without a mask the scores are kept as narrow as the product gives them, and the "
    "exponentials are computed again in every kernel.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("exponential",),
    evidence=f"{_ATTENTION}. Masked, 16 heads: f32[2,16,2048,2048] twice, scores and exponentials; of 1,024 keys "
    "bf16[8,16,1024,1024] and f32; of 512 f32 alone. Groups of two queries: the same where nothing is derived, and "
    "else bf16[2,8,2048,2048,2] alone. No mask: bf16 alone in all. A step of GRPO, 4x4, data parallel with Megatron: "
    "two f32[8,8,2,2047,2047] at the peak, 5.57 GiB; the estimate is 5.42, and 3.57 without.",
    tests=("test_memory.py::test_a_masked_softmax_stores_its_exponentials",),
    where=("price.softmaxes.exponentials",),
)

EXPONENTIALS_ALONE = structural(
    "exponentials are written by the product that makes the scores",
    "Where the queries and keys are of no narrower type than the scores, a masked softmax is in the kernel of these: "
    "what the product would store is not there, but the exponentials in its place. Of narrower queries and keys it is "
    "so where another product makes one of them as it is read, or it was repeated for groups of queries, and neither "
    "is an argument; with rotary positions on both the masked scores are stored and read again.",
    ops=("dot", "dot_general", "exponential"),
    evidence="Layers of attention with their projections, bf16 with a softmax in f32, 16 heads of 128, compiled alone, "
    "v5e, libtpu of jax 0.10.2. One fusion gives f32[2,16,2048] and f32[2,16,2048,2048], 513 MiB of temporaries, with "
    "one mask or two; with rotary positions convert_select_fusion gives a second f32[2,16,2048,2048], 1,025 MiB, and "
    "with these and keys repeated four times one fusion does it again, 513. Queries and keys as arguments: 1,024. "
    "Derived, one f32[2,8,2048,2048] or f32[4,16,1024,1024] stays for the derivative. One sequence on a device and "
    "its derivative: bf16 scores alone, and so are 4,096 keys; this is not modelled.",
    tests=("test_memory.py::test_exponentials_are_written_by_the_product_of_the_scores",),
    where=("price.kernels._written_over", "price.buffers.find_buffers"),
)

INSIDE_PRODUCTS = Behaviour(
    name="what only products read is computed inside them, if that reads little more",
    what="A value on the way to which something expensive is computed, and that several products read, is not stored "
    "where the tensors of its size that it is computed from have no more than so many times its bytes together: the "
    "derivative of a softmax whose exponentials are not stored.",
    effect=2.0,
    otherwise=0.0,
    platforms=TPU,
    ops=("dot", "dot_general"),
    evidence=f"{_ATTENTION}: without a mask there are the scores and the derivative of the weights, both "
    "bf16[2,16,2048,2048], and the derivative of the scores is in the two products that read it; with the "
    "exponentials in f32 it is stored. DiT, 4x4: 3.20 GiB with data parallelism; the estimate is 3.21, and 3.67 with "
    "it stored. Derivatives of attention alone, bf16 and f32, 128 to 2,048 keys: two products of 1,457,700 and "
    "1,486,200 cycles for bf16[8,16,1024,1024], each reading the scores and their gradient, and no kernel between.",
    tests=(
        "test_memory.py::test_the_derivative_of_scores_is_computed_inside_products",
        "test_calibration.py::test_batches_of_products_compute_what_they_share",
    ),
    where=("price.kernels._inside_products",),
)

READ_AGAIN = Behaviour(
    name="what is computed again is read again",
    what="Each kernel that computes a value again reads what it is computed from.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence="A layer norm of bf16[4096,4096], v5e, libtpu of jax 0.10.2: 234,512, 235,280 and 304,336 cycles for the "
    "mean, the variance and the result, each of which reads the argument.",
    tests=("test_calibration.py::test_what_is_computed_again_is_read_again",),
    where=("price.kernels.read_again",),
)

WIDENED = structural(
    "a conversion to a wider type is left to the users",
    "What a contraction stores is the narrow value, where a conversion to a wider type is the last that follows it; "
    "where several contractions read what follows, also if cheap ops come after the conversion.",
    ops=("convert",),
    evidence=f"{_SEEN}. Llama with queries in groups, recomputed, 4x4: masked scores, which six kernels of the "
    "derivative read, are kept as bf16[2,8,2047,2047,2] before the mask.",
    tests=(
        "test_memory.py::test_a_wider_copy_is_left_to_the_users",
        "test_memory.py::test_grouped_scores_are_kept_narrow",
    ),
    where=("price.kernels._widened", "price.kernels._narrowest"),
)

NO_WAITING = structural(
    "no contraction waits for what is made after it",
    "What needs something that a later kernel has to make first (a loop, a scatter) is not taken in: the contraction's "
    "operands would be kept for as long. Of two contractions that meet in one op the later takes it in.",
    evidence="GPT with batch 272 on 16 v5e, libtpu of jax 0.10.2: 13.08 GiB; the estimate is 12.94, and 2.1 more where "
    "the gradient of the logits is kept through the backward pass for a sum at its end. GPT of three layers written "
    "out, 2x4: the gradient of the embedding waits as bf16[16384,1024] for the scatter that it is added to, not the "
    "gradient of the logits, bf16[4,1024,16384].",
    tests=(
        "test_memory.py::test_a_product_does_not_wait_for_a_loop_after_it",
        "test_memory.py::test_a_product_does_not_wait_for_a_scatter_after_it",
    ),
    where=("price.kernels._meetings",),
)

WHEN_READY = structural(
    "a contraction runs as soon as what it takes in is there",
    "In its own place in the program, or where the last of what its kernel needs is made; not where its last op "
    "stands, which in a loop over layers is at the end of the body, where gradients are written into their stacks.",
    ops=("convolution", "dot", "dot_general", "ragged_dot"),
    evidence="GPT of four layers in a loop, recomputed, fsdp on 4 of v5e 4x4, libtpu of jax 0.10.2, buffer by buffer: "
    "at the peak, in the derivative of attention, what the feed-forward layer's weights' gradients are computed from, "
    "2 x bf16[8,1024,8192], is gone; 2.39 GiB, the estimate 2.44, and 2.72 where they are kept. The same with batch "
    "320 over 16: 8.16, 8.26 and 9.01.",
    tests=("test_memory.py::test_a_gradient_that_a_loop_stacks_is_computed_at_once",),
    where=("price.kernel_order._run_when_ready",),
)

CUT_BY_MOVES = Behaviour(
    name="what follows a contraction waits until its partial sums are added up",
    what="Where the result of a contraction is moved between devices, what would run inside it is a kernel of its own, "
    "which reads what was moved. So that is in memory too until it has been read; what is as large is written over it.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("convolution", "dot", "dot_general", "ragged_dot"),
    evidence="DiT-XL/2 by fsdp and Megatron, v5e 4x4, libtpu of jax 0.10.2: the residual sum of a feed-forward layer "
    "is multiply_add_fusion(…, all-reduce.54, …) of 1,702,488 cycles; the gate, the residual sum and the mean of a "
    "layer norm run inside the product where its result is not split.",
    tests=("test_calibration.py::test_what_waits_for_partial_sums_is_a_kernel_of_its_own",),
    where=("price.class_prices._kernel_work",),
)

COPIED_SLICES = Behaviour(
    name="slices of what a loop carries are copied out first",
    what="A slice of so many or more dimensions that a loop takes of what it carries is a copy before anything is "
    "computed from it; not if it is all of it, or converted to a narrower type, which is done for the whole stack "
    "before the loop.",
    effect=3,
    otherwise=0,
    platforms=TPU,
    ops=("dynamic_slice",),
    evidence="A decoding step with a cache, libtpu of jax 0.10.2: copies of 286 bytes a cycle on v5e, 287 on each core "
    "of v5p. Matrices, of two dimensions, are read where they lie. DeepSeek-V3 by data parallelism: convert.423 "
    "bf16[2,256,1024,256] before the loop, 4,588,700 cycles.",
    tests=("test_memory.py::test_slices_of_three_dimensions_are_copied_out_on_a_tpu",),
    where=("price.kernels.is_copied_slice",),
)

EARLY_RESULTS = structural(
    "what leads to the results alone runs as soon as it can",
    "Elementwise ops and reductions that lead to nothing but the program's results (an optimizer's update) run as soon "
    "as their operands are there, which frees a gradient as soon as it is known; but what writes over a donated "
    "argument waits until that has been read for the last time, by what is computed again from it too, and a product "
    "that such an op takes in runs in its own place.",
    evidence="An unrolled perceptron with plain gradient descent, v5e, libtpu of jax 0.10.2: 419 MB; the estimate is "
    "463, and 808 where the products run with the updates.",
    tests=(
        "test_memory.py::test_a_gradient_is_used_up_before_the_next_one_comes",
        "test_memory.py::test_a_donated_argument_is_read_for_the_last_time_before_it_is_written_over",
    ),
    where=("price.kernel_order.positions",),
)

DEPTHWISE = Behaviour(
    name="a convolution of each channel by itself runs on the vector unit",
    what="There is nothing in it that a matrix unit could hold. The effect are slots for each multiplication and "
    "addition, beside those for each entry of the result.",
    effect=7.5,
    otherwise=0.0,
    platforms=TPU,
    ops=("convolution",),
    evidence="Compiled alone, v5e, libtpu of jax 0.10.2, slots for each multiplication with those of the entries: 8.57 "
    "(16 x 512 x 256 by 32), 8.54 (8 x 1,024 x 512 by 16, f32), 8.43 (8 x 56 x 56 x 128 by 7 x 7), 8.86 (16 x 28 x 28 "
    "x 512 by 3 x 3), 17.3 (8 x 2,048 x 1,024 by 4), the same for what comes back to the operand; 2.8 to 3.8, and 7.0 "
    "by 4, for what comes back to the kernel, which is taken to be as dear.",
    tests=("test_calibration.py::test_a_convolution_of_single_channels_is_the_vector_units",),
    where=("price.compute.depthwise_slots",),
)

RECORDS = (
    DEPTHWISE,
    ELEMENTWISE,
    RECOMPUTED,
    WRITTEN_OUT,
    KEPT_WHERE_ROUNDED,
    COMES_TOGETHER,
    SCALING,
    OPERANDS_INSIDE,
    EPILOGUES,
    LEFT_TO_THE_NEXT,
    ONE_HOT,
    JOINED_REDUCTIONS,
    SUMMED_INSIDE,
    EXPONENTIALS,
    EXPONENTIALS_ALONE,
    INSIDE_PRODUCTS,
    READ_AGAIN,
    WIDENED,
    NO_WAITING,
    WHEN_READY,
    CUT_BY_MOVES,
    COPIED_SLICES,
    EARLY_RESULTS,
)

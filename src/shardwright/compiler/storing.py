"""Which values share memory, and what exists twice for a while."""

from __future__ import annotations

from shardwright.compiler.behaviours import TPU, Behaviour, structural

CARRIED = structural(
    "one buffer holds what a loop carries",
    "From its first content to the last use of what comes out; what a loop does not change is read where it lies. Two "
    "slots that begin as one table of zeros are two buffers.",
    ops=("while",),
    evidence="docs/benchmarks/fidelity.md: memory of scanned models, libtpu of jax 0.10.2, v5e.",
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
    "the result is complete.",
    evidence="docs/benchmarks/fidelity.md: memory of training steps, libtpu of jax 0.10.2, v5e.",
    tests=(
        "test_memory.py::test_a_chain_holds_two_values_at_a_time",
        "test_memory.py::test_a_result_takes_over_a_donated_argument",
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
    "a cache that a loop writes to position by position is copied to another layout and back",
    "Where a loop writes single positions of an inner dimension into what it carries, the tensor is laid out with that "
    "dimension outermost, and an argument, whose layout is given, is copied before the loop and back after it. It is "
    "counted always; the compiler does without under some shardings.",
    ops=("while", "dynamic_update_slice"),
    evidence="A decoding step of 8 layers, v5e, libtpu of jax 0.10.2, estimate and compiled, ms: 11.5 and 12.1 (data "
    "parallel + Megatron), 19.0 and 21.5 (data parallel), where it copies; 10.3 and 2.7 (FSDP + Megatron), where it "
    "does not. Copies take 222 bytes a cycle, into tiles of 2 or 4 rows 84.",
    tests=("test_memory.py::test_a_cache_that_is_written_by_position_is_copied",),
    where=("price.buffers.find_buffers", "price.compute.relayout_seconds"),
)

HOISTED = structural(
    "a stack that a loop only reads is converted to a narrower type once, before the loop",
    "Not slice by slice: all of the stack is there in both types while the loop runs.",
    ops=("convert", "dynamic_slice"),
    evidence="Scanned decoders with f32 weights that are used in bf16, v5e, libtpu of jax 0.10.2: one convert of the "
    "stack before the while (docs/benchmarks/fidelity.md).",
    tests=("test_memory.py::test_a_stack_is_converted_before_the_loop",),
    where=("price.buffers.find_buffers",),
)

KEPT_ROUNDED = Behaviour(
    name="what only products read is kept rounded",
    what="A value of f32 all of whose uses are matrix products that round their operands, or pieces and views of it "
    "that are used so, is made and kept in bf16. One that others read too is kept in f32, sometimes in both types, and "
    "sums that a product makes keep all of their bits.",
    effect="bf16",
    otherwise="",
    platforms=TPU,
    ops=("dot", "dot_general"),
    evidence="libtpu of jax 0.10.2, v5e 2x2, f32[16384,4096] and weights f32[4096,4096]: of tanh(tanh(x @ u) @ v) @ w "
    "both tanh are bf16 in the final text; in a step of gradient descent of gelu layers, whose derivatives read what "
    "the products read, they are f32. v5e 4x4, an f32 decoder under FSDP: norms' results, gradients of logits and what "
    "is padded of them, and gathered weights are bf16.",
    tests=("test_memory.py::test_what_only_products_read_is_kept_rounded",),
    where=("price.rounded.kept_rounded",),
)

RECORDS = (KEPT_ROUNDED, CARRIED, UPDATED_IN_PLACE, OVERWRITTEN, MADE_WHERE_NEEDED, RELAID, HOISTED)

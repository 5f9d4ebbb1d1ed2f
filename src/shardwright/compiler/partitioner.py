"""What XLA's partitioner does not split though it could, what it pads, and rules that say other than what holds."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import CUDA, TPU, Behaviour, everywhere, structural

COMPUTED_WHOLE = Behaviour(
    name="every device computes all of some results",
    what="The bits that jax.random draws with keys of impl='rbg' or 'unsafe_rbg' are there whole on every device, and "
    "what is split is cut out of them, at the time and the memory of all of them.",
    effect=frozenset({"rng_bit_generator"}),
    otherwise=frozenset(),
    platforms=TPU,
    ops=("rng_bit_generator",),
    evidence="Dropout of bf16[16384,4096] split by rows over 4 devices, v5e:2x2, libtpu of jax 0.10.2: "
    "%rng-bit-generator = u32[16384,4096] on each device, and 0.28 GiB in all where a quarter of the bits would make "
    "it 0.12. On CPUs (jax 0.10.2) the bits are written out as arithmetic before partitioning, and no device has "
    "all.",
    tests=("test_rules.py::test_random_bits_that_the_compiler_does_not_partition_are_whole_on_every_device",),
    where=("ir.classes.Classes", "price.shardings.Places"),
)


@dataclass(frozen=True)
class Padding:
    """``most``: the part of a dimension's size that may be padding. ``exact``: kinds of ops that are not padded."""

    most: float
    exact: frozenset[str]


PADDED = everywhere(
    "dimensions that an axis does not divide are padded",
    "50,257 words on 8 devices: inside of a program each device has the same number of rows, and the last ones some "
    "that nobody looks at. JAX wants what comes into a program and what leaves it divided exactly. Beyond half of "
    "the size a device more would do nothing but padding. Not padded are ops along which neighbours exchange rims, "
    "and those that nobody tried.",
    effect=Padding(
        0.5,
        frozenset({"convolution", "reduce_window", "select_and_scatter", "sort", "fft", "custom_call", "cholesky"}),
    ),
    evidence="A transformer with 6 heads and 251 words on 4 devices, libtpu of jax 0.10.2: it moves exactly the bytes "
    "that are estimated; run on CPU devices with jaxlib 0.10.2 and 0.12 it computes the same.",
    tests=(
        "test_uneven.py::test_a_padded_program_computes_the_same",
        "test_uneven.py::test_the_compiler_moves_the_same_bytes_and_computes_the_same",
        "test_uneven.py::test_what_can_be_split",
    ),
    where=("price.uneven.splits", "price.uneven.paddable"),
)


@dataclass(frozen=True)
class Large:
    """Values of at least ``least_bytes``, and of at least ``part`` of the largest value's bytes."""

    part: float
    least_bytes: int


JOINED = everywhere(
    "XLA simplifies a program before it asks Shardy how values lie",
    "So what Shardy's propagation finds for the module as it is written need not be what it finds later. Where large "
    "values meet in an elementwise op, one of them may come to lie as an argument behind the other does, and all of "
    "it is moved, or gathered whole. A plan says how the result of such an op lies, even though propagation would find "
    "it.",
    effect=Large(1 / 16, 2**26),
    evidence="An encoder and decoder of 2 layers, 64 × 512 tokens on 4 × 4 v5e, one-hot labels, libtpu of jax 0.10.2: "
    "the logits' batch on data, the vocabulary on model, the labels on both. Shardy's own explicit collectives are the "
    "plan's. The compiler's program exchanged f32[64,512,32128] twice by all-to-all, gathered their gradient whole, "
    "and took 63.2 ms and 2.18 GiB; with the results of such ops told 21.7 ms and 0.46 GiB, where the estimate has "
    "25.5 and 0.49. A GPT of 4 layers takes 134.0 ms with and without it.",
    tests=("test_obeyed.py::test_where_large_values_meet_it_is_said_how_the_result_lies",),
    where=("apply.annotate.annotate",),
)

KEPT_WHOLE = structural(
    "what is made of a whole argument stays whole, and so does its gradient",
    "Casts and slices of a weight that a plan keeps whole are whole; so is a gradient that is added to it, which would "
    "be scattered only to be gathered. An update by an optimizer's state is free: the new weight is gathered.",
    evidence="It is what a plan tells the compiler; the bytes that plans imply are those of Shardy's program within "
    "10% for 112 of 117 plans, jax 0.10.2 (docs/benchmarks/obeyed.md).",
    tests=(
        "test_move_terms.py::test_a_gradient_stays_whole_with_its_weight",
        "test_move_terms.py::test_an_update_by_an_optimizers_state_does_not_stay_whole_with_the_weight",
    ),
    where=("price.kept.stays_whole",),
)


@dataclass(frozen=True)
class Attention:
    """A function by the name of its implementation.

    ``layout_at``: which of its static arguments says in which order a tensor's dimensions are, 1 for heads first.
    """

    name: str
    backward: bool
    layout_at: int


def _cudnn(name: str, rule: str, *, backward: bool) -> Behaviour[Attention]:
    """A call of cuDNN's attention, which JAX ships with a rule that says other than its own ``partition`` takes."""
    record = Attention(name, backward, 5)
    return Behaviour(
        name=f"cuDNN's attention, {'backward' if backward else 'forward'}, is split by sequences and heads alone",
        what="Sequences and heads of queries, keys, values and results are split together, and nothing else is, though "
        "the rule that JAX ships says otherwise.",
        effect=record,
        otherwise=record,
        platforms=CUDA,
        ops=("custom_call",),
        evidence=f"jax._src.cudnn.fused_attention_stablehlo of jax 0.10.2 and 0.12: {rule} ties no dimension of the "
        "keys to one of the queries, and lets the positions of the queries be split; _check_qkv_bias_mask_spec, which "
        "the partition calls, raises for either ('Query, key and value should have same sharding.', 'Sharding on "
        "sequence dim is not allowed.').",
        tests=(
            "test_cudnn.py::test_sequences_and_heads_are_factors_forward_and_backward",
            "test_cudnn.py::test_a_training_step_calls_cudnn_on_local_arrays_and_gathers_nothing",
        ),
        where=("ir.own_rules.attention_rule",),
    )


_ATTENTION = (
    _cudnn("_dot_product_attention_fwd_impl", "_fwd_shardy_rule", backward=False),
    _cudnn("_dot_product_attention_bwd_impl", "_bwd_shardy_rule", backward=True),
)
CUDNN_ATTENTION = {record.effect.name: record.effect for record in _ATTENTION}

RECORDS = (COMPUTED_WHOLE, PADDED, JOINED, KEPT_WHOLE, *_ATTENTION)

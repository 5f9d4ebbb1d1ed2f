"""In which order a tensor's dimensions lie in memory, what is padded for it, and what is copied.

Gathers and scatters read and write *rows*: the dimensions that an index does not choose from. The TPU compiler wants
these minor, one row after the other, where arguments and results lie as wastes least. So a table of narrow rows exists
twice for a while: once as it came, and once in rows, each of them padded to whole tiles. All of this is asked where a
device has tiles (``Device.tile``).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.compiler.behaviours import TPU, Behaviour

TILED = Behaviour(
    name="the two minor dimensions lie in tiles",
    what="Of 8 × 128 elements of four bytes; narrower types pack several rows into a word, and their tiles are "
    "padded alike. So [512, 3] may take as much as [512, 128]. A second-minor dimension below 8 gets a tile of 1, 2 "
    "or 4 rows.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence='XLA, "Tiled layout"; seen in programs compiled by the libtpu of jax 0.10.2 as T(8,128), T(2,128).',
    tests=(
        "test_cost_formulas.py::test_two_minor_dimensions_are_padded",
        "test_cost_formulas.py::test_few_rows_get_a_small_tile",
    ),
    where=("devices.device.Device.tile", "price.layout.stored_bytes"),
)

LEAST_WASTE = Behaviour(
    name="those dimensions are minor that waste least",
    what="The compiler chooses which dimensions are minor, for arguments too unless the user says so.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence="libtpu of jax 0.10.2, v5e: f32[16384,3] lies as {0,1:T(4,128)}.",
    tests=("test_cost_formulas.py::test_the_compiler_chooses_what_wastes_least",),
    where=("price.layout.stored_bytes",),
)


@dataclass(frozen=True)
class Rows:
    """When a tensor that is gathered from or scattered to lies in rows.

    ``most_padding`` is what it may take for that, beside the least that it can take in any order; where it is as much
    or more, it is read and written as it lies. What was scattered is used in rows too where it updates no more than
    ``most_updated`` arguments, and else copied to lie as they do. A copy takes ``copy_slots`` of the vector unit for
    each byte that it reads or writes.
    """

    most_padding: float
    most_updated: int
    copy_slots: float


_IN_ROWS = Rows(most_padding=2.0, most_updated=2, copy_slots=13.2)
ROWS = Behaviour(
    name="tables that are gathered from or scattered to lie in rows",
    what="Unless that would take twice the least that they can take. What was scattered is used in rows too where it "
    "updates few arguments, and else copied to lie as they do.",
    effect=_IN_ROWS,
    otherwise=_IN_ROWS,
    platforms=TPU,
    ops=("gather", "scatter"),
    evidence="libtpu of jax 0.10.2, v5e, training steps of f32 tables [n, width] that are looked up. In rows: 64 × "
    "1,000,000 (1.9999 times the least), 96 × 699,136 and 192 × 349,568 (1.33). As they lie: 64 × 1,048,576 (2.0), "
    "48 × as many (2.67), 32 × 2,000,000 (4.0), 16 and 8. Peaks for 1,000,000 × 64, 244 MiB, by number of tables: "
    "plain descent 1,221 MiB (1), momentum 1,465 (1) and 3,451 (3), which is all in rows; Adam 1,465 (1) and 2,234 "
    "(2), which is one gradient in rows and as it lies. Adagrad is here and there: 1,953 (1) and 2,206 (3). Copies "
    "of 1,000,000 × 64 to rows and back: 1.65 ms each, of 768 MB read and written.",
    tests=(
        "test_memory.py::test_rows_are_minor_unless_that_takes_twice_as_much",
        "test_memory.py::test_narrow_rows_are_padded_while_they_are_looked_up_and_added_up",
        "test_gathered.py::test_copies_of_tables_take_time_too",
    ),
    where=("price.layout.row_bytes", "price.layout.row_copy_slots", "price.buffers.find_buffers"),
)


@dataclass(frozen=True)
class TakenApart:
    """What becomes of gathered rows whose indices are added up along their last dimension, and of what is spread so.

    Such are bags of embeddings: ids [batch, tables, hots], rows [batch, tables, hots, width], summed over hots; and
    backward the same is spread again before it is scattered. Gathers and scatters have all indices in one dimension;
    to take them apart the tensor is copied so that either the rows or the last two indices are minor, whichever wastes
    less, padded to whole tiles. Rows of at most ``flat_width`` go through a flat tensor instead, and always have their
    indices minor. All slots are of the vector unit: of copies for each byte read or written, of flat ones for each that
    is not padding, of sums and spreads for each byte with its padding, and so of what is ``moved`` between devices,
    which has to be taken apart as well.
    """

    flat_width: int
    flat_slots: float
    sum_slots: float
    spread_slots: float
    flat_sum_slots: float
    flat_spread_slots: float
    moved_slots: float


_APART = TakenApart(
    flat_width=8,
    flat_slots=86.0,
    sum_slots=33.0,
    spread_slots=22.5,
    flat_sum_slots=19.0,
    flat_spread_slots=10.2,
    moved_slots=10.2,
)
TAKEN_APART = Behaviour(
    name="gathered rows whose indices are added up are taken apart",
    what="Gathers and scatters have all indices in one dimension. To add rows up along the last dimension of their "
    "indices, or to spread them so, the tensor is copied so that either the rows or the last two indices are minor, "
    "whichever wastes less; narrow rows go through a flat tensor.",
    effect=_APART,
    otherwise=_APART,
    platforms=TPU,
    ops=("gather", "scatter", "reduce", "broadcast_in_dim"),
    evidence="libtpu of jax 0.10.2, v5e, steps of descent of an f32 table [1000000, width] with ids [4096, 20, 8] "
    "summed over the last. Width 128: reduce 1.80 ms, broadcast 1.23, no copy. 64, 32 and 16: the same, as "
    "[4096,20,8,width] is padded to 128; with 32 and 16, whose tables are not in rows, copies of [655360,width] of "
    "0.61 to 0.63 ms each way as well, and a peak of 320 MiB. Width 8: [8,4096,20,8] with 20 × 8 minor, 384 MiB; "
    "reduce 1.25, broadcast 0.67, two loops that flatten and unflatten 1.19 ms. Ids [4096,8,20], width 8: 128 MiB, "
    "0.43, 0.23, 1.18. Ids [16384,21,8], width 16: 1,872 MiB; copies 3.41 each, reduce 7.40, broadcast 5.19. Ids "
    "[4096,8,128], width 32: the indices are minor; copies 1.63 each, reduce 2.79, broadcast 1.97. With one "
    "dimension of indices, or none summed, there is none of this. On 4x4, a table split by width into rows of 8, ids "
    "[16384,21,8], exchanged for rows of 128 before the sum: the same loops and [8,16384,21,8] of 1.5 GiB, and a "
    "copy of it of 2.67 ms each way.",
    tests=(
        "test_gathered.py::test_bags_of_rows_take_what_the_compiler_says",
        "test_gathered.py::test_rows_exchanged_between_devices_are_taken_apart_before",
    ),
    where=("price.gathered.taken_apart", "price.gathered.laid_work"),
)

MOVED_INTO_PLACE = Behaviour(
    name="what was moved is copied into place",
    what="What goes to another dimension is copied once, and what is gathered along two dimensions at once twice, once "
    "into tiles of few rows.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    ops=("all_to_all", "all_gather"),
    evidence="libtpu of jax 0.10.2, v5e, cycles for 64 MiB of bf16: 0.3 ms, and 1.0.",
    tests=("test_move_terms.py::test_copies_bring_into_place_what_was_moved",),
    where=("price.prices.DevicePrices.copy_seconds",),
)

RECORDS = (TILED, LEAST_WASTE, ROWS, TAKEN_APART, MOVED_INTO_PLACE)

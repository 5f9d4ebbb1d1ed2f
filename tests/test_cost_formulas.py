"""Each formula of the cost model against values worked out by hand; the reference stands beside them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.devices import AxisLink, KernelCosts, find_device
from shardwright.ir.program import Op
from shardwright.price.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    PERMUTE,
    REDUCE_SCATTER,
    collective_seconds,
)
from shardwright.price.compute import (
    Work,
    contraction_factors,
    efficiency,
    kernel_seconds,
    matrix_seconds,
    tiled_copy_seconds,
    traffic,
    vector_ops,
)
from shardwright.price.layout import stored_bytes
from shardwright.request import MeshShape

GB = 1e9
TILE = (8, 128)
COSTS = KernelCosts()


def link(rate: float = 10 * GB, shape: str = "ring", latency: float = 0.0, name: str = "ICI") -> AxisLink:
    return AxisLink(name, rate, latency, shape)


class TestCollectives:
    """ "How to Scale Your Model", Google DeepMind 2025, part 3; Thakur, Rabenseifner and Gropp, 2005."""

    def test_all_gather_on_a_ring_uses_both_directions(self):
        # 8 GB gathered over 4 devices: each sends 3/4 of it, 6 GB, at 2 · 10 GB/s.
        assert collective_seconds(ALL_GATHER, 6 * GB, [link()], [4]) == pytest.approx(0.3)

    def test_all_gather_on_a_line_has_one_direction_at_the_ends(self):
        assert collective_seconds(ALL_GATHER, 6 * GB, [link(shape="line")], [4]) == pytest.approx(0.6)

    def test_all_reduce_is_a_reduce_scatter_and_an_all_gather(self):
        # 8 GB reduced over 4: 6 GB there and 6 GB back.
        assert collective_seconds(ALL_REDUCE, 12 * GB, [link()], [4]) == pytest.approx(0.6)
        assert collective_seconds(REDUCE_SCATTER, 6 * GB, [link()], [4]) == pytest.approx(0.3)

    def test_two_axes_of_one_torus_carry_it_together(self):
        # 16 GB over 4 · 4: each sends 15 GB, at twice the rate of one axis.
        assert collective_seconds(ALL_GATHER, 15 * GB, [link(), link()], [4, 4]) == pytest.approx(15 / 40)

    def test_a_slow_link_sees_only_what_the_fast_one_left(self):
        # 16 GB reduced over 8 on a switch of 100 GB/s and 2 on a network of 10: 2 · (14/100 + 1/10).
        links = [link(10 * GB, "switch", name="network"), link(100 * GB, "switch", name="NVLink")]
        assert collective_seconds(ALL_REDUCE, 2 * 15 * GB, links, [2, 8]) == pytest.approx(2 * (14 / 100 + 1 / 10))

    def test_all_to_all_is_bound_by_the_middle(self):
        # 4 devices with 4 GB each, each sends 3 GB; a half of 16 GB is in each half, a half of that crosses: 4 GB
        # each way, on a line by one link, on a ring by two.
        assert collective_seconds(ALL_TO_ALL, 3 * GB, [link(shape="line")], [4]) == pytest.approx(0.4)
        assert collective_seconds(ALL_TO_ALL, 3 * GB, [link()], [4]) == pytest.approx(0.2)
        assert collective_seconds(ALL_TO_ALL, 3 * GB, [link(shape="switch")], [4]) == pytest.approx(0.3)

    def test_two_devices_have_one_link_between_them(self):
        # 2 GB each, 1 GB crosses each way.
        assert collective_seconds(ALL_TO_ALL, 1 * GB, [link()], [2]) == pytest.approx(0.1)

    def test_a_permute_goes_by_the_slowest_link(self):
        links = [link(10 * GB), link(1 * GB)]
        assert collective_seconds(PERMUTE, 1 * GB, links, [2, 2]) == pytest.approx(1.0)

    def test_latency_counts_every_hop(self):
        slow = link(latency=1e-6)
        assert collective_seconds(ALL_GATHER, 1e-9, [slow], [8]) == pytest.approx(7e-6)
        assert collective_seconds(ALL_REDUCE, 1e-9, [slow], [8]) == pytest.approx(14e-6)

    def test_nothing_takes_no_time(self):
        assert collective_seconds(ALL_GATHER, 0.0, [link(latency=1.0)], [4]) == 0.0
        assert collective_seconds(ALL_GATHER, 5.0, [], []) == 0.0


class TestLayout:
    """XLA's "Tiled layout"; the tiles are those of compiled programs."""

    def test_two_minor_dimensions_are_padded(self):
        assert stored_bytes((8, 128), "f32", TILE) == 8 * 128 * 4
        assert stored_bytes((100, 200), "f32", TILE) == 200 * 128 * 4  # the 100 are minor; else 104 * 256

    def test_the_compiler_chooses_what_wastes_least(self):
        # f32[16384,3]{0,1:T(4,128)} in a compiled program.
        assert stored_bytes((16384, 3), "f32", TILE) == 4 * 16384 * 4
        # f32[128,224,224,3]{0,2,3,1:T(8,128)}: batch and one side of the image are minor, nothing is wasted.
        assert stored_bytes((128, 224, 224, 3), "f32", TILE) == 128 * 224 * 224 * 3 * 4

    def test_few_rows_get_a_small_tile(self):
        assert stored_bytes((2, 2048), "i32", TILE) == 2 * 2048 * 4
        assert stored_bytes((3, 2048), "bf16", TILE) == 4 * 2048 * 2

    def test_vectors_and_scalars(self):
        assert stored_bytes((1000,), "f32", TILE) == 1024 * 4
        assert stored_bytes((), "f32", TILE) == 4

    def test_sharding_a_small_dimension_saves_nothing(self):
        whole, half = stored_bytes((64, 128), "f32", TILE), stored_bytes((64, 64), "f32", TILE)
        assert whole == 64 * 128 * 4
        assert half == 64 * 128 * 4  # 64 is padded to 128 again, whichever dimension is minor

    def test_no_padding_without_tiles(self):
        assert stored_bytes((3, 5), "bf16", None) == 30


def toy(**more: object) -> sw.Device:
    given = {
        "name": "toy",
        "platform": "tpu",
        "flops_per_second": {"bf16": 100e12, "f32": 50e12},
        "memory_bytes": 10**9,
        "memory_bytes_per_second": 100 * GB,
        "matrix_unit": 128,
    }
    return sw.Device(**{**given, **more})


def dot(m: int, k: int, n: int, batch: int = 0) -> Op:
    shapes = [(batch, m, k), (batch, k, n)] if batch else [(m, k), (k, n)]
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    program = sw.analyse(lambda x, y: x @ y, *args).program
    return next(op for op in program.ops if op.kind == "dot_general")


class TestCompute:
    """The roofline model: Williams, Waterman and Patterson, 2009."""

    def test_padding_of_the_matrix_unit(self):
        assert efficiency(1024, 1024, 1024, 128, 8) == 1.0
        assert efficiency(1024, 64, 1024, 128, 8) == 1.0  # the 1,024 rows are held instead, 64 columns stream
        assert efficiency(1024, 1024, 64, 128, 8) == 0.5  # the depth is padded in any case
        assert efficiency(4, 1024, 1024, 128, 8) == 0.5  # eight rows at a time
        assert efficiency(64, 64, 128, 128, 8) == 0.5

    def test_factors_of_a_product(self):
        op = dot(256, 512, 1024, batch=4)
        rows, columns, depth = ([op.rule.sizes[f] for f in found] for found in contraction_factors(op.rule))
        assert (rows, columns, depth) == ([256], [1024], [512])

    def test_a_product_split_on_its_columns(self):
        op, mesh = dot(256, 512, 1024), MeshShape(("x",), (4,))
        columns = contraction_factors(op.rule)[1][0]
        seconds = matrix_seconds(op, "bf16", (columns,), mesh, toy())
        assert seconds == pytest.approx(2 * 256 * 512 * 256 / (100e12 * COSTS.matrix_efficiency))

    def test_the_type_sets_the_peak(self):
        op, mesh = dot(256, 512, 1024), MeshShape(("x",), (4,))
        fast, slow = (matrix_seconds(op, dtype, (-1,), mesh, toy()) for dtype in ("bf16", "f32"))
        assert slow == pytest.approx(2 * fast)

    def test_a_kernel_takes_as_long_as_its_slowest_part(self):
        device = toy(vector_ops_per_second=1e12)
        memory = 8e9 / (100 * GB * COSTS.memory_efficiency)
        assert kernel_seconds(Work(0.0, 1e10, 8e9), device) == pytest.approx(COSTS.launch_seconds + memory)
        memory = 8e9 / (100 * GB * COSTS.contraction_memory_efficiency)
        assert kernel_seconds(Work(0.02, 1e10, 8e9), device) == pytest.approx(COSTS.launch_seconds + memory)
        assert kernel_seconds(Work(0.02, 5e12, 1e9), device) == pytest.approx(COSTS.launch_seconds + 5.0)
        assert kernel_seconds(Work(3.0, 1e10, 1e9), device) == pytest.approx(COSTS.launch_seconds + 3.0)

    def test_slices_read_what_they_give_and_updates_write_what_they_get(self):
        def op_of(kind: str, fn: object, *shapes: tuple[int, ...]) -> Op:
            program = sw.analyse(fn, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).program
            return next(op for op in program.ops if op.kind == kind)

        cut = op_of("slice", lambda x: x[:2], (100, 4))
        assert traffic(cut, [1600.0], [32.0]) == ((32.0,), 32.0)
        update = op_of(
            "dynamic_update_slice", lambda x, y: jax.lax.dynamic_update_slice(x, y, (0, 0)), (100, 4), (1, 4)
        )
        reads, writes = traffic(update, [1600.0, 16.0, 4.0, 4.0], [1600.0])
        assert (sum(reads), writes) == (24.0, 16.0)
        add = op_of("add", lambda x, y: x + y, (100, 4), (100, 4))
        assert traffic(add, [1600.0, 1600.0], [1600.0]) == ((1600.0, 1600.0), 1600.0)
        assert vector_ops(add, 400, 400, COSTS) < vector_ops(op_of("exponential", jnp.exp, (100, 4)), 400, 400, COSTS)
        assert vector_ops(cut, 400, 8, COSTS) == 0.0


def test_a_small_tile_takes_as_long_as_a_whole_one():
    """Bytes a cycle that the compiler counts for copies into tiles of 8, 4 and 2 rows: 222, 143 and 84."""
    device = find_device("tpu-v5e")
    size = 256 * 2**20
    for rows, bytes_a_cycle in ((1, 222), (2, 84), (3, 143), (4, 143), (8, 222), (4096, 222)):
        seconds = tiled_copy_seconds(rows, size, device)
        assert seconds == pytest.approx(2 * size / bytes_a_cycle / device.clock_hertz, rel=0.12)

"""Which values a compiler stores, when, and what a device holds at most: small programs worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.compiler import of
from shardwright.models import build
from shardwright.price.buffers import find_buffers
from shardwright.price.kernels import find_kernels
from shardwright.price.layout import row_bytes, stored_bytes
from shardwright.price.rounded import kept_rounded
from shardwright.price.shortcuts import with_shortcuts

MIB = 2**20
TOY = sw.Device(
    name="toy",
    platform="tpu",
    flops_per_second={"bf16": 1e14},
    memory_bytes=10**12,
    memory_bytes_per_second=1e11,
    links=(sw.Link("wire", 1e10, 1e-6),),
)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def stored(fn: Callable[..., Any], *args: Any, platform: str = "tpu") -> list[str]:
    """The kinds of the ops whose results are in memory."""
    program = sw.analyse(fn, *args).program
    kernels = find_kernels(program, of(platform))
    return [op.kind for op in program.ops if any(kernels.stored[v] for v in op.results)]


def peak_mib(fn: Callable[..., Any], *args: Any, mesh: Any = None, decisions: Any = (), **options: Any) -> float:
    plan = sw.evaluate(fn, *args, mesh=mesh or {"x": 2}, device=TOY, decisions=decisions, platform="cpu", **options)
    estimate = plan.estimate
    assert sum(a.bytes for a in estimate.alive) == estimate.peak_bytes
    return estimate.peak_bytes / MIB


class TestStored:
    def test_elementwise_chains_are_one_kernel(self):
        assert stored(lambda x: jnp.sin(x * 2 + 1), f32(512, 512)) == ["sine"]

    def test_a_product_takes_its_epilogue_in(self):
        assert stored(lambda x, w: jnp.maximum(x @ w, 0) * 2, f32(64, 64), f32(64, 64)) == ["multiply"]

    def test_what_is_made_to_be_added_up_is_not_stored(self):
        """Be it over the batch of a product, as by experts' weights; but it is where another op reads it too."""

        def experts(x, w, weights):
            return jnp.einsum("etd,te->td", jnp.einsum("etf,efd->etd", x, w), weights)

        given = f32(8, 128, 32), f32(8, 32, 64), f32(128, 8)
        assert stored(experts, *given) == ["dot_general"]
        assert stored(experts, *given, platform="cuda").count("dot_general") == 2
        assert stored(lambda x, w: (jnp.tanh(x @ w)).sum(-1), f32(64, 64), f32(64, 64)) == ["reduce"]
        both = stored(lambda x, w: ((h := x @ w * 2).sum(-1), h), f32(64, 64), f32(64, 64))
        assert both == ["multiply", "reduce"]

    def test_a_product_does_not_wait_for_a_loop_after_it(self):
        """Its sum with what the loop makes is a kernel of its own; what a product before it makes joins it."""

        def fn(x, w):
            early = x @ w
            late = jax.lax.fori_loop(0, 3, lambda _, h: jnp.sin(h), w)
            return early * 2 + late

        program = sw.analyse(fn, f32(64, 64), f32(64, 64)).program
        kernels = find_kernels(program, of("tpu"))
        at = {op.kind: kernels.at[o] for o, op in enumerate(program.ops)}
        assert at["dot_general"] < at["while"] < at["add"]
        assert stored(lambda x, w, v: (x @ w) * 2 + jnp.sin(v), *[f32(64, 64)] * 3) == ["add"]

    def test_a_product_does_not_wait_for_a_scatter_after_it(self):
        """The gradient of an embedding that is used twice: what its product is computed from is not kept for it."""

        def fn(x, w, table, ids):
            return x @ w + table.at[ids].add(1.0)

        program = sw.analyse(fn, *[f32(64, 64)] * 3, jax.ShapeDtypeStruct((8,), jnp.int32)).program
        kernels = find_kernels(program, of("tpu"))
        at = {op.kind: kernels.at[o] for o, op in enumerate(program.ops) if op.kind in ("dot_general", "scatter")}
        assert at["dot_general"] < at["scatter"]

    def test_a_scatter_of_one_entry_to_a_row_is_computed_inside(self):
        def fn(labels_of_each):
            def loss(x, w, labels):
                y = jnp.sin(x @ w)
                return jnp.sum(jnp.take_along_axis(y, labels, axis=-1)) + jnp.sum(y * y)

            return stored(
                jax.grad(loss), f32(64, 32), f32(32, 128), jax.ShapeDtypeStruct((64, labels_of_each), "int32")
            )

        assert "scatter" not in fn(1)
        assert "scatter" in fn(2)

    def test_a_product_computes_its_operands_inside_on_a_tpu_but_not_on_a_gpu(self):
        def fn(x, w):
            return (x * 2) @ w

        assert stored(fn, f32(64, 64), f32(64, 64)) == ["dot_general"]
        assert stored(fn, f32(64, 64), f32(64, 64), platform="gpu") == ["multiply", "dot_general"]

    def test_cheap_ops_are_computed_again_and_expensive_ones_kept(self):
        def fn(kind):
            def inner(x, v, w):
                y = kind(x)
                return y @ v, y @ w

            return inner

        args = (f32(64, 64),) * 3
        assert stored(fn(lambda x: x * 3), *args) == ["dot_general", "dot_general"]
        assert stored(fn(jnp.exp), *args) == ["exponential", "dot_general", "dot_general"]

    def test_what_is_smaller_than_its_inputs_is_kept(self):
        def fn(x, y, v, w):
            z = jnp.sin(x) @ x + jnp.sin(y) @ y  # two stored values would be needed again
            return z @ v, z @ w

        assert stored(fn, *(f32(64, 64),) * 4).count("add") == 1

    def test_of_two_products_that_meet_the_later_takes_the_op_in(self):
        def fn(x, v, w):
            return (x @ v) * (x @ w)

        program = sw.analyse(fn, *(f32(64, 64),) * 3).program
        kernels = find_kernels(program, of("tpu"))
        dots = [o for o, op in enumerate(program.ops) if op.kind == "dot_general"]
        assert [kernels.stored[program.ops[o].results[0]] for o in dots] == [True, False]

    def test_a_wider_copy_is_left_to_the_users(self):
        def fn(x, w):
            y = (x @ w).astype(jnp.float32)
            return jnp.sum(y * y, axis=0), jnp.max(y, axis=0)

        bf16 = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
        assert "convert" not in stored(fn, bf16, bf16)

    def test_what_comes_together_again_is_decided_there(self):
        def fn(x, v, w):
            y = x @ v
            a, b = jnp.sin(y), jnp.cos(y)
            for _ in range(40):
                a, b = a + b, a * b
            kept = a > b
            return jnp.where(kept, y, 0) @ v, jnp.where(kept, 0, y) @ w

        # Of two numbers that are mixed over and over the comparison alone is kept, as of the random bits of a dropout.
        assert stored(fn, *(f32(64, 64),) * 3) == ["dot_general", "compare", "dot_general", "dot_general"]

    def test_what_is_written_out_at_length_is_not_computed_twice(self):
        def fn(kind):
            def inner(x, v, w):
                y = x @ v
                z = kind(y)
                return (y * z) @ v, (y + z) @ w

            return inner

        args = (f32(64, 64),) * 3
        assert "tanh" not in stored(fn(jnp.tanh), *args)  # its operand is there anyway
        assert "erfc" not in stored(fn(jax.lax.erfc), *args)
        assert stored(fn(jax.lax.digamma), *args).count("digamma") == 1

    def test_an_error_function_of_a_narrow_type_is_kept(self):
        """In the kernel that makes what it is computed from; of a wide type it is computed again."""

        def gradient(dtype):
            def loss(x, v, w):
                return jnp.sum((jax.nn.gelu(x @ v, approximate=False) @ w).astype(jnp.float32))

            args = (jax.ShapeDtypeStruct((64, 64), dtype),) * 3
            return sw.analyse(jax.grad(loss, argnums=(1, 2)), *args).program

        def kept(program):
            kernels = find_kernels(program, of("tpu"))
            (erfc,) = [o for o, op in enumerate(program.ops) if op.kind == "erfc"]
            return kernels.stored[program.ops[erfc].results[0]], kernels.joined.get(kernels.root[erfc])

        narrow = gradient(jnp.bfloat16)
        first = next(o for o, op in enumerate(narrow.ops) if op.kind == "dot_general")
        assert kept(narrow) == (True, find_kernels(narrow, of("tpu")).root[first])
        assert not kept(gradient(jnp.float32))[0]

    def test_a_long_way_to_what_is_spread_is_gone_once(self):
        def fn(x, s):
            for _ in range(40):
                s = s * s + 1
            return x * jax.lax.broadcast_in_dim(s, (64, 64), (0,))

        assert stored(fn, f32(64, 64), f32(64)) == ["add", "multiply"]

    def test_a_product_that_only_scales_is_a_multiplication(self):
        def fn(x, w, s):
            return jnp.einsum("ab,a->ab", jnp.sin(x), s) @ w

        assert stored(fn, f32(64, 64), f32(64, 64), f32(64)) == ["dot_general"]
        program = sw.analyse(fn, f32(64, 64), f32(64, 64), f32(64)).program
        assert [op.flops for op in program.ops if op.kind == "dot_general"] == [0, 2 * 64**3]
        outer = sw.analyse(lambda x, y: jnp.einsum("a,b->ab", x, y), f32(64), f32(32)).program
        assert [op.flops for op in outer.ops if op.kind == "dot_general"] == [2 * 64 * 32]


class TestShortcuts:
    def test_what_is_cut_out_again_is_the_piece_itself(self):
        def fn(x, y):
            stack = jnp.concatenate([jnp.sin(x), jnp.concatenate([jnp.cos(y), x]), jnp.zeros((0, 64))])
            return stack[64:128] + stack[128:] * stack[32:96]

        program = sw.analyse(fn, f32(64, 64), f32(64, 64)).program
        short = with_shortcuts(program)
        made = {op.results[0]: op.kind for op in short.ops}
        (total,), (times,) = ([op for op in short.ops if op.kind == kind] for kind in ("add", "multiply"))
        assert [made.get(v, "argument") for v in total.operands] == ["cosine", "multiply"]
        assert [made.get(v, "argument") for v in times.operands] == ["argument", "slice"]  # half of each is no piece
        kinds = [op.kind for op in program.ops]
        assert (kinds.count("slice"), kinds.count("concatenate")) == (3, 2)
        kinds = [op.kind for op in short.ops]
        assert (kinds.count("slice"), kinds.count("concatenate")) == (1, 2)  # which the last slice still reads

    def test_a_program_without_any_is_left_alone(self):
        def fn(x, y):
            stack = jnp.concatenate([x, y])
            return stack[::2], stack[32:96], stack

        program = sw.analyse(fn, f32(64, 64), f32(64, 64)).program
        assert with_shortcuts(program) is program

    def test_an_unrolled_scan_keeps_what_layers_that_are_written_out_keep(self):
        def layer(x, w):
            h = jnp.sin(x @ w)
            return x + h * h * 2, None  # of what is made on the way the product alone is kept

        def scanned(x, ws):
            return jax.grad(lambda x: jnp.sum(jax.lax.scan(layer, x, ws, unroll=True)[0]))(x)

        def written(x, ws):
            def loss(x):
                for k in range(16):
                    x, _ = layer(x, ws[k])
                return jnp.sum(x)

            return jax.grad(loss)(x)

        # Weights, x, sixteen residuals, all of 1 MiB, and one more value, which only a product reads, of half of it.
        args = f32(2048, 128), f32(16, 128, 128)
        assert peak_mib(scanned, *args) == peak_mib(written, *args) == 1 + 1 + 16 + 0.5

    def test_what_is_one_value_is_moved_once(self):
        def fn(ws, x):
            return jax.grad(lambda ws: jnp.sum(jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws, unroll=3)[0]))(
                ws
            )

        args = f32(3, 128, 128), f32(2048, 128)
        plan = sw.evaluate(fn, *args, mesh={"x": 3}, device=TOY, decisions=[("x", "ws[0]")], platform="cpu")
        estimate = plan.estimate
        assert len(plan.collectives) > len(estimate.collectives) == 1  # the weights, forwards and backwards
        assert sum(c.seconds for c in estimate.collectives) == estimate.comm_seconds


class TestPeak:
    def test_a_chain_holds_two_values_at_a_time(self):
        def fn(x, u, v, w):
            return ((x @ u) @ v) @ w

        # Four arguments of 1 MiB each and, at the end, what goes in, as the product reads it, and what comes out.
        assert peak_mib(fn, *(f32(512, 512),) * 4) == 4 + 0.5 + 1

    def test_a_result_takes_over_a_donated_argument(self):
        def fn(x, w):
            return x - 0.1 * (w @ w)

        args = (f32(512, 512), f32(512, 512))
        assert peak_mib(fn, *args) == 3
        assert peak_mib(fn, *args, donate=(0,)) == 2

    def test_sharding_halves_what_has_the_dimension(self):
        def fn(x, w):
            return jnp.sin(x @ w) @ w

        args = (f32(512, 512), f32(512, 512))
        assert peak_mib(fn, *args) == 3.5  # the sine is kept in bf16
        assert peak_mib(fn, *args, decisions=[("x", "x[0]")]) == 1 + 2.5 * 0.5

    def test_a_gathered_weight_is_there_from_its_first_use_to_its_last(self):
        def fn(x, w):
            return jnp.sin(jnp.sin(x @ w) @ w)

        # x and the values in parts of 1/2, the weight in a part of 1/2 and once whole; what products read in bf16.
        found = peak_mib(fn, f32(4096, 512), f32(512, 512), decisions=[("x", "x[0]"), ("x", "w[0]")])
        assert found == 2.5 * 4 + 0.5 + 1 * 0.5

    def test_a_loop_keeps_one_copy_of_what_it_carries(self):
        def fn(x, ws):
            return jax.lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, ws)[0]

        # x, eight weights, and the carried value in two versions: the old one is read while the new one is written.
        assert round(peak_mib(fn, f32(512, 512), f32(8, 512, 512)), 3) == 1 + 8 + 2

    def test_a_table_of_zeros_is_split_as_what_is_written_to_it(self):
        def fn(x, labels):
            return jax.grad(lambda x: jnp.sum(jnp.sin(jnp.take_along_axis(x, labels, axis=1))))(x)

        args = f32(512, 512), jax.ShapeDtypeStruct((512, 1), jnp.int32)
        whole, split = peak_mib(fn, *args), peak_mib(fn, *args, decisions=[("x", "x[0]")])
        assert 2 <= whole < 2.1  # x and its derivative, of 1 MiB each, and some columns
        assert split == whole / 2

    def test_a_table_that_lookups_are_added_up_in_is_split_as_the_table_they_are_of(self):
        def fn(table, ids):
            grad = jax.grad(lambda t: jnp.sum(jnp.sin(t[ids])))(table)
            return table - 0.1 * grad

        # Of the table of 8 MiB and its gradient each device has a half, and few rows are looked up.
        args = f32(4096, 512), jax.ShapeDtypeStruct((64,), jnp.int32)
        assert 16 <= peak_mib(fn, *args, donate=0) < 16.5
        for dimension in ("table[0]", "table[1]"):
            assert 8 <= peak_mib(fn, *args, donate=0, decisions=[("x", dimension)]) < 8.5
        # Data parallel, each device has all of both, and the rows of all of them are gathered.
        assert 16 <= peak_mib(fn, *args, donate=0, decisions=[("x", "ids[0]")]) < 16.5

    def test_tokens_are_sent_to_experts_that_are_split(self):
        def fn(tokens, expert, slot, up):
            sent = jnp.zeros((8, 512, 512)).at[expert, slot].add(tokens)
            return jnp.einsum("ecd,edf->ecf", sent, up)

        places = jax.ShapeDtypeStruct((512,), jnp.int32)
        args = f32(512, 512), places, places, f32(8, 512, 512)
        # Tokens of 1 MiB; weights, what is sent to the experts and what they make of it, of 8 MiB each.
        assert 25 <= peak_mib(fn, *args) < 25.5
        assert 13 <= peak_mib(fn, *args, decisions=[("x", "up[0]")]) < 13.5

    def test_devices_that_write_to_the_same_places_fill_a_whole_table_each_until_they_are_added_up(self):
        def fn(table, rows, places):
            return table - jnp.zeros_like(table).at[places].add(rows)

        args = f32(2048, 512), f32(16384, 512), jax.ShapeDtypeStruct((16384,), jnp.int32)
        found = peak_mib(fn, *args, donate=0, decisions=[("x", "rows[0]"), ("x", "table[0]")])
        # Half of 4 MiB and of 32 MiB, the whole sums of a device's own rows, and the half that it keeps.
        assert 2 + 16 + 4 + 2 <= found < 2 + 16 + 4 + 2 + 0.2

    def test_narrow_rows_are_padded_while_they_are_looked_up_and_added_up(self):
        tiled = replace(TOY, tile=(8, 128))
        args = f32(8192 - 64, 96), jax.ShapeDtypeStruct((64,), jnp.int32)
        least, rows = 96 * 8192 * 4 / MIB, (8192 - 64) * 128 * 4 / MIB  # with the numbers of rows minor, and with rows

        def peak(step, count):
            fn_args = ([args[0]] * count, args[1])
            plan = sw.evaluate(step, *fn_args, mesh={"x": 2}, device=tiled, decisions=[], donate=0, platform="cpu")
            assert sum(a.bytes for a in plan.estimate.alive) == plan.estimate.peak_bytes
            return plan.estimate.peak_bytes / MIB

        def derivative(tables, ids):
            return jax.grad(lambda ts: jnp.sum(jnp.sin(ts[0][ids])))(tables)

        def descent(tables, ids):
            return [tables[0] - derivative(tables, ids)[0]]

        def adam(tables, ids):
            (grad,) = derivative(tables[:1], ids)
            m, v = 0.9 * tables[1] + grad, 0.9 * tables[2] + grad * grad
            return tables[0] - m / jnp.sqrt(v), m, v

        # What comes out takes the place of a table; the table is in rows for as long as it takes to look some up.
        assert least + rows <= peak(lambda ts, ids: jnp.sin(ts[0][ids]), 1) < least + rows + 0.2
        # The update is made in rows, so both are there in rows; a third table is not updated so.
        assert least + 2 * rows <= peak(descent, 1) < least + 2 * rows + 0.2
        assert 3 * least + rows + least <= peak(adam, 3) < 3 * least + rows + least + 0.2

    def test_what_begins_as_one_table_of_zeros_ends_as_two(self):
        def fn(x):
            zeros = jnp.zeros((512, 512))
            return jax.lax.fori_loop(0, 3, lambda _, s: (s[0] + x, s[1] * x), (zeros, zeros))

        # x and what the loop carries in two slots, each written over itself.
        assert round(peak_mib(fn, f32(512, 512)), 3) == 1 + 2

    def test_residuals_are_stacked(self):
        def fn(x, ws):
            return jax.grad(lambda x: jnp.sum(jax.lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, ws)[0]))(x)

        shallow, deep = (peak_mib(fn, f32(512, 512), f32(n, 512, 512)) for n in (4, 8))
        assert deep - shallow == 4 + 4  # four more weights and four more residuals

    def test_a_gradient_is_used_up_before_the_next_one_comes(self):
        def fn(scale):
            def step(params, x):
                grads = jax.grad(lambda p: jnp.sum(jnp.sin(jnp.sin(jnp.sin(x @ p[0]) @ p[1]) @ p[2])))(params)
                return jax.tree.map(lambda p, g: p - g * scale(g), params, grads)

            return step

        # Parameters of 4 MiB, all else much smaller. A gradient that must be known whole is stored, one at a time; else
        # it is subtracted in the kernel that computes it.
        params = [f32(1024, 1024)] * 3
        assert 16 <= peak_mib(fn(lambda g: jnp.sum(g)), params, f32(8, 1024), donate=(0,)) < 17
        assert 12 <= peak_mib(fn(lambda g: jnp.exp(g) + jnp.sin(g)), params, f32(8, 1024), donate=(0,)) < 13

    def test_a_gradient_that_a_loop_stacks_is_computed_at_once(self):
        """Not at the end of the loop's body, where it is written into its stack."""

        def layer(x, w):
            return jnp.tanh(jnp.sin(x @ w) @ w.T), None

        grad = jax.grad(lambda ws, x: jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, ws)[0]))
        program = sw.analyse(grad, f32(4, 64, 256), f32(1024, 64)).program
        kernels = find_kernels(program, of("tpu"))
        # The gradient is made a row of its stack where it is written there, and that is what the product stores.
        stacked = {o for o, op in enumerate(program.ops) if op.kind == "broadcast_in_dim" and op.source.backward}
        products = [o for o, op in enumerate(program.ops) if op.kind == "dot_general" and kernels.root[o] in stacked]
        assert products
        assert all(kernels.at[o] < kernels.root[o] for o in products)

    def test_a_donated_argument_is_read_for_the_last_time_before_it_is_written_over(self):
        """Its narrower copy is computed again where the second product needs it."""

        def fn(w, x):
            first = jnp.sin(x @ w.astype(jnp.bfloat16))
            update = jnp.sum(first.astype(jnp.float32), 0)
            return w - update[:, None], jnp.cos(first) @ w.astype(jnp.bfloat16)

        w, x = f32(1024, 1024), jax.ShapeDtypeStruct((8, 1024), jnp.bfloat16)
        assert peak_mib(fn, w, x, donate=(0,)) < 4.5

    def test_copies_of_a_layer_leave_few_points(self):
        from shardwright.price import CostModel, Places
        from shardwright.request import MeshShape
        from shardwright.space.state import State

        fn, args, options = build("mlp", preset="tiny", layers=16)
        analysis = sw.analyse(fn, *args, **options)
        model = CostModel(Places(analysis), MeshShape(("x",), (2,)), TOY)
        kernels = find_kernels(analysis.program, of("tpu"))
        buffers = find_buffers(analysis.program, kernels)
        everywhere = [
            sum(
                int(
                    b.form.scale
                    * model.bytes_in(
                        model.classes.of_value[b.value], ((),) * len(analysis.program.values[b.value].shape)
                    )
                )
                for b in buffers.temporary
                if b.start <= at <= b.end
            )
            for at in set(kernels.at)
        ]
        held = sum(analysis.program.values[v].bytes for v in buffers.held)
        assert model.evaluate(State(((),))).peak_bytes == held + max(everywhere)
        assert len(model.at) < 0.8 * len(set(kernels.root))


def test_a_program_that_does_nothing_holds_its_arguments():
    plan = sw.evaluate(lambda x: x, f32(256, 128), mesh={"x": 2}, device="tpu-v5e", decisions=[("x", "x[0]")])
    assert plan.estimate.peak_bytes == 256 * 128 * 4 // 2
    assert [(a.name, a.bytes) for a in plan.estimate.alive] == [("x", 256 * 128 * 4 // 2)]


def test_rows_are_minor_unless_that_takes_twice_as_much():
    tile = (8, 128)
    assert stored_bytes((1000, 96), "f32", tile) == 96 * 1024 * 4
    assert row_bytes((1000, 96), "f32", tile, (1,)) == 1000 * 128 * 4
    assert row_bytes((1024, 64), "f32", tile, (1,)) == 0  # 1,024 × 128 is twice 64 × 1,024
    assert row_bytes((1024, 128), "f32", tile, (1,)) == 0  # it lies in rows anyway
    assert row_bytes((4, 1000, 96), "f32", tile, (2,)) == 4 * 1000 * 128 * 4
    assert row_bytes((1000, 96), "f32", None, (1,)) == 0  # there are no tiles


def stacked(shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    """A scan over a stack of this shape."""

    def fn(x, ws):
        def body(h, w):
            w = w.astype(dtype)
            return jnp.tanh(h @ w if dtype != jnp.float32 else h * w), None

        return jax.lax.scan(body, x, ws)[0]

    return sw.analyse(fn, jax.ShapeDtypeStruct(shape[1:], dtype), f32(*shape)).program


def test_slices_of_three_dimensions_are_copied_out_on_a_tpu():
    def copied(program, platform):
        kernels = find_kernels(program, of(platform))
        return [op.kind for op in program.ops if op.kind == "dynamic_slice" and kernels.stored[op.results[0]]]

    assert copied(stacked((4, 8, 16, 32)), "tpu") == ["dynamic_slice"]
    assert copied(stacked((4, 8, 16, 32)), "cuda") == []
    assert copied(stacked((4, 8, 16)), "tpu") == []


def test_a_stack_is_converted_before_the_loop():
    program = stacked((4, 64, 64), jnp.bfloat16)
    buffers = find_buffers(program, find_kernels(program, of("tpu")))
    loop = next(o for o, op in enumerate(program.ops) if op.kind == "while")
    (stack,) = (buffer for buffer in buffers.temporary if buffer.form.scale != 1)
    assert program.argument_of[stack.value].path == "ws"
    assert stack.form.scale == 0.5 and stack.start == loop and stack.end == len(program.ops)


def test_a_cache_that_is_written_by_position_is_copied():
    def relaid(part, at):
        def fn(cache, x):
            write = lambda i, c: jax.lax.dynamic_update_slice(c, x, [i if d == at else 0 for d in range(3)])  # noqa: E731
            return jax.lax.fori_loop(0, 4, write, cache)

        program = sw.analyse(fn, f32(8, 16, 64), f32(*part), donate=0).program
        return find_buffers(program, find_kernels(program, of("tpu"))).relaid

    assert len(relaid((8, 1, 64), 1)) == 1
    assert relaid((1, 16, 64), 0) == ()


def test_a_cache_is_copied_where_its_order_in_the_loop_is_another():
    """A decoding step: keys pass through elementwise ops before they are stored, values come straight of a product."""
    fn, args, options = build("itx", preset="tiny")
    program = sw.analyse(fn, *args, **options).program
    keys, values = find_buffers(program, find_kernels(program, of("tpu"))).relaid
    # Layers, batch, positions, heads, features.
    assert keys.written == values.written == (0, 2, 3, 1, 4)
    assert keys.read == values.read == (0, 1, 3, 2, 4)
    assert keys.maker == -1
    assert program.ops[values.maker].kind == "dot_general"
    assert keys.is_copied((2, 8, 40, 8, 16), moved=False)
    assert values.is_copied((2, 8, 40, 2, 16), moved=True)
    assert not values.is_copied((2, 8, 40, 1, 16), moved=True)
    assert values.is_copied((2, 8, 40, 1, 16), moved=False)
    assert not values.is_copied((2, 1, 40, 1, 16), moved=False)  # one row to write: as it is read

    def held(decisions: list[str]) -> float:
        mesh, device = {"data": 3, "model": 8}, "tpu-v5e"
        plan = sw.evaluate(fn, *args, mesh=mesh, device=device, decisions=decisions, **options)
        copies = [k for k in plan.estimate.kernels if k.kind == "copy to another layout"]
        return sum(k.times for k in copies) / 2

    assert held(["data_parallel:data", "megatron:model"]) == 2


def test_what_a_scattered_gradient_is_computed_from_is_kept():
    """Of a loop's body with a product, its derivative, and more products that wait for one another after it."""
    sizes = {"width": 1024, "heads": 8, "kv_heads": 8, "hidden": 4096, "vocabulary": 1024, "sequence": 256}
    fn, args, options = build("gpt", layers=2, batch=64, **sizes)

    def kept(decisions: list[str]) -> int:
        plan = sw.evaluate(fn, *args, mesh={"data": 8}, device="tpu-v5e", decisions=decisions, **options)
        units, view = plan.costs.units, plan.costs.view(plan.partitioned.state.lists)
        return sum(units.kept_late(u, view) is not None for u in range(len(plan.costs.classes.use_classes.keys)))

    assert kept(["data_parallel:data"]) == 0
    assert kept(["fsdp:data"]) > 0


class TestSoftmax:
    """Which of scores, exponentials and their derivatives are stored, for queries [b, s, n, h] in bf16."""

    def stored(self, keys: int, *, groups: int = 1, masked: bool = True, derived: bool = True) -> list[str]:
        def attention(q, k, v):
            scores = jnp.einsum("bskgh,btkh->bkgst" if groups > 1 else "bskh,btkh->bkst", q, k).astype(jnp.float32)
            if masked:
                scores = jnp.where(jnp.arange(keys)[:, None] >= jnp.arange(keys), scores, -1e30)
            weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
            return jnp.einsum("bkgst,btkh->bskgh" if groups > 1 else "bkst,btkh->bskh", weights, v)

        def loss(q, k, v):
            return jnp.sum(attention(q, k, v).astype(jnp.float32) ** 2)

        own = (2, keys, 4, groups, 16) if groups > 1 else (2, keys, 4, 16)
        q, kv = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (own, (2, keys, 4, 16)))
        program = sw.analyse(jax.grad(loss, (0, 1, 2)) if derived else attention, q, kv, kv, platform="cpu").program
        kernels, size = find_kernels(program, of("tpu")), 2 * keys * keys * 4 * groups
        large = [v for v in program.values if v.op >= 0 and v.shape and jnp.prod(jnp.array(v.shape)) == size]
        kept = [v for v in large if kernels.stored[program.values.index(v)]]
        return [f"{program.ops[v.op].kind} {v.dtype}" for v in kept]

    def test_a_masked_softmax_stores_its_exponentials(self):
        assert self.stored(2048, derived=False) == ["select f32", "exponential f32"]
        assert self.stored(1024, derived=False) == ["dot_general bf16", "exponential f32"]
        assert "exponential f32" in self.stored(2048)
        assert self.stored(2048, masked=False, derived=False) == ["dot_general bf16"]

    def test_grouped_scores_are_kept_narrow(self):
        assert self.stored(512, groups=2)[0] == "transpose bf16"
        assert "exponential f32" not in self.stored(512, groups=2)

    def test_the_derivative_of_scores_is_computed_inside_products(self):
        assert self.stored(512, masked=False) == ["dot_general bf16", "dot_general bf16"]
        assert len(self.stored(512)) > len(self.stored(512, masked=False))

    def test_a_kernel_that_reduces_does_not_write_over_what_it_reads(self):
        def plain(x):
            return jnp.exp(jnp.sort(x, axis=0))

        def summed(x):
            y = plain(x)
            return y, jnp.sum(y, axis=0)

        assert peak_mib(plain, f32(512, 512)) == 2
        assert peak_mib(summed, f32(512, 512)) >= 3

    def test_a_product_that_is_turned_around_writes_elsewhere(self):
        def gated(order):
            def fn(x, w, v):
                return jnp.einsum(order, x, w) * jnp.einsum(order, x, v)

            return peak_mib(fn, f32(256, 64), f32(4, 64, 256), f32(4, 64, 256))

        assert gated("td,edf->etf") == gated("td,edf->tef") + 1

    def test_what_is_turned_around_is_left_to_the_product_that_reads_it(self):
        """Both are there beside its result; else it is what they make, rounded for that product."""

        def gated(order, back):
            def fn(x, w, v, u):
                return jnp.einsum(back, jnp.einsum(order, x, w) * jnp.einsum(order, x, v), u)

            return peak_mib(fn, f32(256, 64), f32(4, 64, 256), f32(4, 64, 256), f32(4, 256, 512))

        given, between, result = (256 * 64 + 2 * 4 * 64 * 256 + 4 * 256 * 512) * 4 / MIB, 1, 2
        assert gated("td,edf->etf", "etf,efd->etd") == given + 2 * between + result
        assert gated("td,edf->tef", "tef,efd->ted") == given + between / 2 + result

    @pytest.mark.parametrize(
        ("rotary", "repeated", "projected", "dtype", "alone"),
        [
            (False, 1, True, "bfloat16", True),
            (True, 1, True, "bfloat16", False),
            (True, 2, True, "bfloat16", True),
            (False, 1, False, "bfloat16", False),
            (True, 1, True, "float32", True),
            (False, 1, False, "float32", True),
        ],
    )
    def test_exponentials_are_written_by_the_product_of_the_scores(self, rotary, repeated, projected, dtype, alone):
        """In two bytes the scores are there beside them where positions are rotated on both sides, or of arguments."""

        def rotated(x):
            a, b = jnp.split(x, 2, axis=-1)
            return x * 0.5 + jnp.concatenate([-b, a], axis=-1) * 0.25

        def attention(x, wq, wk):
            q, k = (jnp.einsum("btd,dhk->bthk", x, w) for w in (wq, wk)) if projected else (x, wk)
            q, k = (rotated(q), rotated(k)) if rotary else (q, k)
            scores = jnp.einsum("bthk,bshk->bhts", q, jnp.repeat(k, repeated, axis=2)).astype(jnp.float32)
            weights = jax.nn.softmax(jnp.where(jnp.tri(2048, dtype=bool), scores, -1e30))
            return jnp.einsum("bhts,bshk->bthk", weights.astype(k.dtype), q)

        def given(*shape):
            return jax.ShapeDtypeStruct(shape, dtype)

        heads = given(1, 2048, 2, 32)
        args = (given(1, 2048, 64), given(64, 2, 32), given(64, 2 // repeated, 32)) if projected else (heads,) * 3
        one = 2 * 2048 * 2048 * 4 / MIB
        assert (peak_mib(attention, *args) < 1.5 * one) == alone

    def test_a_result_has_its_memory_from_the_start(self):
        """What is larger cannot lie in it before."""

        def fn(x):
            large = jnp.sort(jnp.concatenate([x, x, x, x]), axis=0)
            return jnp.sort(jnp.sort(large, axis=0)[:512], axis=0)

        def chain(x):
            return jnp.sort(jnp.sort(jnp.sort(x, axis=0), axis=1), axis=0)

        without = peak_mib(lambda x: fn(x).sum(), f32(512, 512))
        assert round(peak_mib(fn, f32(512, 512)) - without, 3) == 1
        assert peak_mib(chain, f32(512, 512)) == 3

    def test_what_is_smaller_lies_in_a_results_memory_before_it(self):
        """One value at a time; not the last one, from which the result is made."""

        def fn(x, w, last, count):
            for _ in range(count):
                x = x @ w
            return x @ last

        shapes = f32(2048, 512), f32(512, 512), f32(512, 2048)
        for count in (1, 2, 4):
            assert peak_mib(lambda *given, count=count: fn(*given, count), *shapes) == 4 + 1 + 4 + 2 + 16


def test_logits_that_are_gathered_from_are_there_in_both_types():
    """All but the gather read what the product gives."""

    def fn(x, w, labels):
        logits = (x @ w).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, labels, axis=-1, mode="clip")
        return picked[..., 0] - jax.nn.logsumexp(logits, axis=-1)

    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 64), (64, 4096)))
    program = sw.analyse(fn, x, w, jax.ShapeDtypeStruct((512, 1), jnp.int32), platform="cpu").program
    large = [v for v, value in enumerate(program.values) if value.shape == (512, 4096)]
    for platform, kinds in (("tpu", ["dot_general", "convert"]), ("cuda", ["convert"])):
        kernels = find_kernels(program, of(platform))
        assert [program.ops[program.values[v].op].kind for v in large if kernels.stored[v]] == kinds


def test_what_is_soon_used_up_stays_on_the_chip():
    """Of a chain of products what is between them, but not what is too large for it."""

    def fn(x, u, v):
        return (x @ u) @ v

    def peak(rows: int, device: str) -> float:
        args = f32(rows, 1024), f32(1024, 1024), f32(1024, 1024)
        return sw.evaluate(fn, *args, mesh={"x": 2}, device=device).estimate.peak_bytes / MIB

    assert peak(1024, "tpu-v5p") == 3 * 4 + 2 + 4  # what is between is kept in bf16
    assert peak(1024, "tpu-v5e") == 3 * 4 + 4
    assert peak(65536, "tpu-v5e") == peak(65536, "tpu-v5p")


def test_what_any_device_can_make_is_free():
    program = sw.analyse(lambda x: x + jnp.zeros((4, 8)) + jnp.arange(8.0) * 2, f32(4, 8)).program
    assert {op.kind for op in program.ops if not program.free[op.results[0]]} == {"add"}


class TestRounded:
    """Values of f32 that only products read, which a TPU's compiler keeps in bf16."""

    def kept(self, fn: Callable[..., Any], *args: Any, platform: str = "tpu") -> list[str]:
        program = sw.analyse(fn, *args, platform="cpu").program
        found = kept_rounded(program, of(platform))
        return [op.kind for op in program.ops if any(found[v] for v in op.results)]

    def test_what_only_products_read_is_kept_rounded(self):
        w = f32(64, 64)
        assert self.kept(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w) @ w, w, w) == ["tanh", "tanh"]
        assert self.kept(lambda x, w: jnp.pad(jnp.tanh(x)[1:], ((0, 1), (0, 0))).T @ w, w, w)[:1] == ["tanh"]

    def test_what_others_read_too_is_not(self):
        def fn(x, w):
            h = jnp.tanh(x)
            return h @ w + h

        assert self.kept(fn, f32(64, 64), f32(64, 64)) == []
        assert self.kept(lambda x, w: (jnp.tanh(x), jnp.tanh(x) @ w)[0], f32(64, 64), f32(64, 64)) == []

    def test_nor_what_a_precise_product_reads(self):
        def precise(x, w):
            return jnp.matmul(jnp.tanh(x), w, precision="highest")

        assert self.kept(precise, f32(64, 64), f32(64, 64)) == []

    def test_what_a_product_makes_is_and_sums_of_it_do_not_count(self):
        def returned(x, w):
            h = x @ w
            return h, h @ w

        assert self.kept(lambda x, w: (x @ w) @ w, f32(64, 64), f32(64, 64)) == ["dot_general"]
        assert self.kept(returned, f32(64, 64), f32(64, 64)) == []

        def with_sum(x, w):
            h = jnp.tanh(x)
            return h @ w, jnp.sum(h, 0)

        assert self.kept(with_sum, f32(64, 64), f32(64, 64)) == ["tanh"]
        assert self.kept(lambda x, w: (jnp.sum(jnp.tanh(x)), x @ w), f32(64, 64), f32(64, 64)) == []

    def test_only_on_tpus(self):
        assert self.kept(lambda x, w: jnp.tanh(x) @ w, f32(64, 64), f32(64, 64), platform="gpu") == []

    def test_it_takes_half_the_bytes(self):
        def fn(x, w):
            return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w) @ w)

        # 1 MiB of each of two arguments, half of it of each tanh; the last product is added up where it is made.
        assert round(peak_mib(fn, f32(512, 512), f32(512, 512)), 3) == 3

"""What becomes of results: all-reduces that are made one, tensors that are moved once they are narrower."""

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.devices import find_device
from shardwright.ir.move_terms import narrowed_by, summed
from shardwright.price import DevicePrices
from shardwright.price.collectives import Move
from shardwright.price.kept import stays_whole
from shardwright.price.ways import Loop
from shardwright.request import MeshShape
from shardwright.space.decisions import paths_of

F32 = jnp.float32


def array(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def dots(program):
    return [o for o, op in enumerate(program.ops) if op.kind == "dot_general"]


def two_layers(params, x):
    def loss(params):
        return jnp.sum(jnp.tanh(x @ params["a"]) @ params["b"])

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


PARAMS = {"a": array(64, 32), "b": array(32, 16)}


def test_gradients_share_a_latency_and_activations_do_not():
    program = sw.analyse(two_layers, PARAMS, array(128, 64)).program
    sharers = {str(program.values[program.ops[o].results[0]]): program.move_terms[o].sharers for o in dots(program)}
    # The forward products and the gradient of the hidden activation are waited for; the two gradients are not.
    assert sharers["f32[128,32]"] == 1
    assert sharers["f32[32,64]"] == sharers["f32[16,32]"] == 2


def test_sums_that_are_added_up_are_reduced_once():
    def fn(a, b, c, x):
        return jnp.tanh(x @ a + (x @ b + x @ c)), x @ a

    args = [array(64, 32)] * 3 + [array(128, 64)]
    program = sw.analyse(lambda *args: fn(*args)[0], *args).program
    assert [program.move_terms[o].addends for o in dots(program)] == [3, 3, 3]
    # One that is also used elsewhere is not, nor one that is added to something else first.
    program = sw.analyse(lambda a, b, x: (lambda h: (h + x @ b, h))(x @ a), *args[:2], args[3]).program
    assert [program.move_terms[o].addends for o in dots(program)] == [1, 1]
    program = sw.analyse(lambda a, b, x: (1 + x @ a) + x @ b, *args[:2], args[3]).program
    assert [program.move_terms[o].addends for o in dots(program)] == [1, 1]
    plan = sw.evaluate(
        lambda *args: fn(*args)[0], *args, mesh={"x": 4}, device="tpu-v5e", decisions=[("x", "args.3[1]")]
    )
    sent = [c.total_bytes for c in plan.estimate.collectives if c.kind == "all-reduce"]
    assert sum(sent) == pytest.approx(2 * 128 * 32 * 4 * 3 / 4)


def test_what_is_added_to_something_whole_is_reduced_first():
    def adapted(x, w, a, b, y, v):
        return jnp.tanh((x @ w + (x @ a) @ b) + y @ v)

    args = [array(128, 64), array(64, 32), array(64, 4), array(4, 32), array(128, 64), array(64, 32)]
    program = sw.analyse(adapted, *args).program
    (addition,) = program.additions
    assert [program.ops[o].kind for o in summed(addition)] == ["dot_general"] * 3
    plan = sw.evaluate(adapted, *args, mesh={"x": 4}, device="tpu-v5e", decisions=[("x", "x[1]"), ("x", "y[1]")])
    sent = [c.bytes for c in plan.estimate.collectives if c.kind == "all-reduce"]
    # Of x @ w and of y @ v, each alone, since what x @ w is added to is whole; and the small one of x @ a.
    whole, narrow = 2 * 128 * 32 * 4 * 3 / 4, 2 * 128 * 4 * 4 * 3 / 4
    assert sorted(sent) == [narrow, whole, whole]
    assert sum(c.seconds for c in plan.estimate.collectives) == pytest.approx(plan.estimate.comm_seconds)


def test_what_is_added_to_a_scatter_is_what_it_scatters_into():
    def gradients(x, u, i, v, j):
        return (x + jax.ops.segment_sum(u, i, 64)) + jax.ops.segment_sum(v, j, 64)

    edges, ids = array(4096, 32), array(4096, dtype=jnp.int32)
    program = sw.analyse(gradients, array(64, 32), edges, ids, edges, ids).program
    assert [[program.ops[o].kind for o in summed(a)] for a in program.additions] == [["scatter", "scatter"]]


def test_what_only_products_read_is_moved_rounded():
    def fn(table, ids, w):
        return jnp.tanh(table[ids] @ w)

    args = (array(65536, 256), array(4096, dtype=jnp.int32), array(256, 256))
    program = sw.analyse(fn, *args).program
    terms = {op.kind: t.rounded for op, t in zip(program.ops, program.move_terms, strict=True)}
    assert terms["gather"] == (2,)  # not the argument: it stays as it is given
    decisions = [("x", "ids[0]"), ("x", "table[1]")]
    sent = {
        device: [
            c.bytes
            for c in sw.evaluate(fn, *args, mesh={"x": 4}, device=device, decisions=decisions).estimate.collectives
        ]
        for device in ("tpu-v5e", "a100-80")
    }
    ids, *ours = sorted(sent["tpu-v5e"])
    assert [ids, *(2 * size for size in ours)] == sorted(sent["a100-80"])


def test_what_a_loop_carries_into_its_next_turn_is_waited_for():
    def chain(w, x):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=3)[0]

    program = sw.analyse(chain, array(16, 16), array(8, 16)).program
    (o,) = dots(program)
    assert program.awaited[program.ops[o].results[0]]
    assert program.move_terms[o].sharers == 1


def test_data_parallelism_pays_one_latency_for_all_gradients():
    def price(layers):
        def step(params, x):
            def loss(params):
                h = x
                for w in params:
                    h = jnp.tanh(h @ w)
                return jnp.sum(h)

            return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

        plan = sw.evaluate(
            step,
            [array(8, 8)] * layers,
            array(64, 8),
            mesh={"data": 8},
            device="tpu-v5e",
            decisions=["data_parallel:data"],
        )
        return plan.estimate.comm_seconds

    # The tensors are so small that latency is all there is.
    assert price(8) == pytest.approx(price(2), rel=0.1)


def lookup(table, ids):
    return jnp.tanh(table[ids].astype(jnp.bfloat16))


def test_a_tensor_is_moved_once_it_is_narrower():
    mesh, args = {"x": 4}, (array(65536, 64), array(4096, dtype=jnp.int32))
    decisions = [("x", "ids[0]"), ("x", "table[1]")]
    plan = sw.evaluate(lookup, *args, mesh=mesh, device="tpu-v5e", decisions=decisions)
    program = plan.analysis.program
    gathered = next(op.results[0] for op in program.ops if op.kind == "gather")
    convert = narrowed_by(program, gathered)
    assert program.ops[convert].kind == "convert"
    (move,) = [c for c in plan.collectives if c.value == gathered]
    # 4096 x 64 in bf16, a quarter on each of four devices, three quarters of which are sent.
    assert (move.kind, move.bytes) == ("all-to-all", 4096 * 64 * 2 / 4 * 3 / 4)
    assert plan.verify("shardy").figures["shardy_bytes"]["all-to-all"] == move.bytes
    assert plan.verify("run").ok


def test_no_narrowing_where_the_wide_tensor_is_used_too():
    def both(table, ids):
        found = table[ids]
        return jnp.tanh(found.astype(jnp.bfloat16)), found.sum()

    program = sw.analyse(both, array(256, 64), array(128, dtype=jnp.int32)).program
    gathered = next(op.results[0] for op in program.ops if op.kind == "gather")
    assert narrowed_by(program, gathered) == -1


def whole_with(fn, args, *paths):
    program = sw.analyse(fn, *args).program
    arguments = frozenset(a.value for a in program.arguments if a.path in paths)
    kept = stays_whole(program, arguments) - arguments
    return program, {(program.ops[program.values[v].op].kind, program.values[v].shape) for v in kept}


def biased(params, x):
    def loss(params):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def test_a_gradient_stays_whole_with_its_weight():
    args = ({"w": array(64, 32), "b": array(32)}, array(128, 64))
    _, kept = whole_with(biased, args, "params.b")
    assert ("reduce", (32,)) in kept  # the gradient, summed over the batch
    assert ("subtract", (32,)) in kept  # the new weight
    assert {kind for kind, shape in kept if shape == (128, 32)} == {"broadcast_in_dim"}  # no activation


def test_a_gradient_is_free_where_something_else_is_made_of_it_too():
    def with_momentum(params, momentum, x):
        def loss(params):
            return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

        grads = jax.grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    tree = {"w": array(64, 32), "b": array(32)}
    _, kept = whole_with(with_momentum, (tree, tree, array(128, 64)), "params.b")
    assert ("reduce", (32,)) not in kept  # the momentum may be in parts, and the gradient with it
    _, kept = whole_with(with_momentum, (tree, tree, array(128, 64)), "params.b", "momentum.b")
    assert ("reduce", (32,)) in kept


def test_a_gradient_that_a_loop_collects_stays_whole_in_it():
    def step(scales, x):
        def loss(scales):
            return jnp.sum(jax.lax.scan(lambda x, s: (jnp.tanh(x * s), None), x, scales)[0])

        return scales - 0.1 * jax.grad(loss)(scales)

    program, kept = whole_with(step, (array(4, 32), array(128, 32)), "scales")
    assert ("reduce", (32,)) in kept
    assert ("while", (4, 32)) in kept
    values = [v for v in program.values if v.shape == (128, 32)]
    assert values and ("tanh", (128, 32)) not in kept


def test_what_stays_whole_is_said_in_few_words():
    layer = {"w": array(8, 8), "norm": {"scale": array(8), "bias": array(8)}}
    tree = {"layers": [layer, layer], "head": {"w": array(8, 8), "bias": array(8)}}
    program = sw.analyse(lambda state: jax.tree.map(jnp.tanh, state), {"p": tree, "m": tree}).program

    def words(wanted):
        return paths_of(program, [a.value for a in program.arguments if wanted(a.path)])

    assert words(lambda path: ".norm." in path) == ["*.norm.*"]
    assert words(lambda path: path.endswith("bias")) == ["*.bias"]
    assert words(lambda path: path.startswith("state.p.layers.0")) == ["state.p.layers.0"]
    assert words(lambda path: path.endswith("bias") and "head" not in path) == ["*.norm.bias"]


def test_an_update_by_an_optimizers_state_does_not_stay_whole_with_the_weight():
    """Or the state would be gathered in place of the new weight, which is half as much with Adam's two moments."""

    def adam(params, m, v, x):
        g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(params)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        return params - 0.1 * m / (jnp.sqrt(v) + 1e-8), m, v

    w = array(64, 32)
    _, kept = whole_with(adam, (w, w, w, array(128, 64)), "params")
    assert not {kind for kind, _ in kept} & {"divide", "sqrt", "subtract"}


def product(x, w):
    return x @ w


def test_a_product_says_whether_its_operands_may_be_rounded():
    def precise(x, w):
        return jnp.matmul(x, w, precision="highest")

    for fn, rounds in ((product, True), (precise, False)):
        program = sw.analyse(fn, array(64, 32), array(32, 16)).program
        (o,) = dots(program)
        assert program.move_terms[o].product
        assert program.move_terms[o].rounds == rounds


def gathered(fn, device, dtype):
    plan = sw.evaluate(
        fn,
        array(4096, 1024, dtype=dtype),
        array(1024, 512, dtype=dtype),
        mesh={"x": 4},
        device=device,
        decisions=["fsdp:x"],
    )
    return [(c.kind, c.bytes * c.scale) for c in plan.partitioned.collectives]


def test_tpus_round_the_operands_of_products_before_they_move_them():
    def step(x, w):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)

    whole = 1024 * 512 * 3 / 4
    assert ("all-gather", 2 * whole) in gathered(step, "tpu-v5e", F32)
    assert ("all-gather", 4 * whole) in gathered(step, "a100-80", F32)
    assert ("all-gather", 2 * whole) in gathered(step, "tpu-v5e", jnp.bfloat16)
    # Partial sums keep all of their bits.
    assert ("reduce-scatter", 4 * whole) in gathered(step, "tpu-v5e", F32)


def test_scattering_partial_sums_takes_the_product_apart_on_tpus():
    # f32[8192,8192] from 16,384 rows on 16 devices: 0.70 ms become 2.3 (the compiler's cycles say 2.28).
    prices = DevicePrices.of(find_device("tpu-v5e"), MeshShape(("x", "y"), (4, 4)))
    rate = 819e9
    large = Loop(2**28, 4, 7e-4 + 2**28 / rate, 0.0, 0.0, 16, (8192, 8192), (512, 8192))
    products, adding = prices.loop_seconds(large)
    assert (products, adding) == (0.0, pytest.approx(4.8 * 2**28 / rate))
    # Parts of 32 rows leave three quarters of a matrix unit of 128 idle, for as long as it works.
    read = 2**27
    work, passes = 7e-4 + (2**21 + read) / rate, pytest.approx(4.8 * 2**21 / rate)
    narrow = Loop(2**21, 4, work, read, 0.0, 16, (1024, 1024), (32, 1024))
    assert prices.loop_seconds(narrow) == (pytest.approx(3 * 7e-4), passes)
    assert prices.loop_seconds(narrow._replace(whole=(8, 8192), part=(8, 512))) == (0.0, passes)  # as idle as without


def test_loops_read_the_operand_that_is_not_cut_in_every_other_turn():
    # bf16[2048,16384] of 2,048 rows on each of 16 devices: 4 × 0.157 + 4 × 0.093 ms of products, 0.53 of additions.
    prices = DevicePrices.of(find_device("tpu-v5e"), MeshShape(("x", "y"), (4, 4)))
    rate, matrix, result, other = 819e9, 7e-4, 2**26, 2**26
    loop = Loop(
        result, 2, matrix + (result + 2**23 + other) / rate, 2**23 + other, other, 16, (2048, 16384), (128, 16384)
    )
    products, adding = prices.loop_seconds(loop)
    assert matrix + products == pytest.approx(4 * (0.157e-3 + 0.093e-3), rel=0.1)
    assert adding == pytest.approx(0.53e-3, rel=0.05)
    assert prices.loop_seconds(loop._replace(uncut_bytes=2**24))[0] == 0.0  # the matrix unit takes longer than that


def test_a_product_is_a_loop_where_it_takes_a_part_of_what_scattering_its_sums_does():
    def step(x, y):
        return jnp.einsum("ki,kj->ij", x, y)

    def scattered(rows, device="tpu-v5e", mesh=16):
        args = [array(16 * rows, 2048, dtype=jnp.bfloat16)] * 2
        plan = sw.evaluate(step, *args, mesh={"x": mesh}, device=device, decisions=[("x", "x[0]"), ("x", "x[1]")])
        (c,) = plan.estimate.collectives
        return c.bytes / (2048 * 2048 * 2 * 15 / 16), c.hidden_seconds

    whole, hidden = scattered(256)
    assert (whole, hidden) == (2.0, 0.0)
    once, hidden = scattered(384)
    assert once == 1.0 and hidden > 0
    assert scattered(384, "a100-80")[1] == 0


def test_sums_over_edges_are_reduced_whole():
    def sums(x, to):
        return jax.ops.segment_sum(x, to, num_segments=64)

    program = sw.analyse(sums, array(4096, 32), array(4096, dtype=jnp.int32)).program
    whole = [op.kind for op, terms in zip(program.ops, program.move_terms, strict=True) if terms.reduces_whole]
    assert whole == ["scatter"]


def test_moves_along_an_axis_of_one_device_take_no_time():
    prices = DevicePrices.of(find_device("tpu-v5e"), MeshShape(("x", "y"), (1, 4)))
    assert prices.move_seconds(Move("all-to-all", (0,), 0.0)) == 0.0
    assert prices.move_seconds(Move("all-gather", (0,), 0.0, in_place=False)) == 0.0


def test_copies_bring_into_place_what_was_moved():
    # 64 MiB of bf16 on each device, moved over four: read and written, 17 slots of the vector unit a byte.
    device = find_device("tpu-v5e")
    prices = DevicePrices.of(device, MeshShape(("x",), (4,)))
    plain, copied = (
        prices.move_seconds(Move("all-gather", (0,), 48 * 2**20, in_place=in_place)) for in_place in (True, False)
    )
    slots = device.vector_ops_per_second
    assert copied - plain == pytest.approx(2 * (17 + 44) * 64 * 2**20 / slots)


@pytest.mark.parametrize(
    ("device", "sizes", "axes", "whole"),
    [
        ("tpu-v5e", (4, 4), (0, 1), True),
        ("tpu-v5e", (16, 1), (0,), True),
        ("tpu-v5e", (4, 4), (1,), False),
        ("tpu-v5e", (2, 2), (0, 1), False),
        ("tpu-v5e", (2, 4), (0, 1), False),
        ("tpu-v5e", (4, 8), (0, 1), False),
        ("tpu-v5p", (2, 4), (0, 1), True),
        ("tpu-v5p", (16, 4), (0, 1), True),
        ("tpu-v5p", (16, 4), (0,), False),
        ("a100-80", (4, 4), (0, 1), False),
    ],
)
def test_sums_over_every_device_of_a_square_or_a_cuboid_are_reduced_whole(device, sizes, axes, whole):
    prices = DevicePrices.of(find_device(device), MeshShape(("x", "y"), sizes))
    assert prices.reduces_whole(axes) is whole


def test_a_sum_that_is_reduced_whole_costs_twice_what_scattering_it_does():
    def scattered(device, sizes):
        decisions = [("x", "x[1]"), ("y", "x[1]"), ("x", "y[0]"), ("y", "y[0]")]
        mesh = {"x": sizes[0], "y": sizes[1]}
        fn = lambda x, y: jnp.sum(x, axis=1) + y  # noqa: E731
        args = (array(2**20, 64), array(2**20))
        found = sw.evaluate(fn, *args, mesh=mesh, device=device, decisions=decisions).estimate.collectives
        return [(c.kind, c.total_bytes) for c in found]

    bytes_of_all = 2**20 * 4
    assert scattered("tpu-v5e", (4, 4)) == [("reduce-scatter", 2 * bytes_of_all * 15 / 16)]
    assert scattered("tpu-v5e", (2, 4)) == [("reduce-scatter", bytes_of_all * 7 / 8)]

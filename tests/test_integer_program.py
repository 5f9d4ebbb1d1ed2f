"""The integer program against enumeration, against its own memory limit, and on small models."""

import math
from itertools import product

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from benchmarks.baselines.integer_program import build_problem, choose_shardings, integer_program, undominated
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.price import Cost, CostModel, Places
from shardwright.request import MeshShape
from shardwright.space.state import State

DEVICE = find_device("tpu-v5e")
AMPLE = 10**12


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def model_of(fn, *args, mesh, **options):
    return CostModel(Places(sw.analyse(fn, *args, **options)), MeshShape.of(mesh), DEVICE)


def matmul(x, w):
    return x @ w


def two_uses(x, v, w):
    return x @ v, x @ w


def in_a_loop(x, ws):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), jnp.sum(h)), x, ws)


MATMUL = (matmul, f32(2048, 4096), f32(4096, 1024))
TWO_USES = (two_uses, f32(4096, 1024), f32(1024, 512), f32(1024, 2048))
LOOP = (in_a_loop, f32(512, 256), f32(4, 256, 256))


def brute_force(problem, limit_bytes, strategies=None):
    """The least seconds that fit, over every combination of strategies."""
    return min(
        (
            problem.graph.total(chosen)
            for chosen in product(*(strategies or [range(len(found)) for found in problem.graph.seconds]))
            if problem.memory.peak(chosen) <= limit_bytes
        ),
        default=math.inf,
    )


def replicated(costs) -> Cost:
    return costs.evaluate(State(((),) * len(costs.mesh.sizes)))


@pytest.mark.parametrize(
    ("case", "mesh"), [(MATMUL, {"a": 2, "b": 4}), (MATMUL, {"a": 8}), (TWO_USES, {"a": 4}), (LOOP, {"a": 4})]
)
@pytest.mark.parametrize("part", [None, 0.5, 0.3])
def test_it_finds_what_enumeration_finds(case, mesh, part):
    costs = model_of(*case, mesh=mesh)
    problem = build_problem(costs)
    whole = problem.memory.peak([0] * len(problem.graph.seconds))  # the first strategy of a node splits nothing
    limit = AMPLE if part is None else int(part * whole)
    best = brute_force(problem, limit)
    assert math.isfinite(best)
    choice = choose_shardings(costs, limit)
    assert choice.note == "optimal"
    assert choice.seconds == pytest.approx(best, rel=2e-3)  # within the gap at which the solver stops
    assert choice.seconds == pytest.approx(problem.graph.total(choice.chosen))
    assert choice.peak_bytes == problem.memory.peak(choice.chosen) <= limit


def test_a_matmul_has_one_node_for_each_argument_and_one_for_itself():
    problem = build_problem(model_of(*MATMUL, mesh={"a": 8}))
    # Whole or either dimension; whole, rows, columns, depth all-reduced, depth scattered onto either dimension.
    assert [len(found) for found in problem.graph.seconds] == [3, 3, 6]
    assert set(problem.graph.edges) == {(0, 2), (1, 2)} and not problem.graph.shared
    gather = problem.graph.edges[0, 2][1, 0]  # x lies split along its rows, the product wants it whole
    ring = 2048 * 4096 * 4 * 7 / 8
    seconds = ring / 2 / 45e9  # more than at the rate of both directions of a link, less than at that of one
    assert seconds / 2 < gather < 4 * seconds
    rows, depth, scattered = (problem.graph.seconds[2][k] for k in (1, 3, 4))
    assert rows < scattered < depth


def test_what_two_users_want_alike_is_moved_once():
    problem = build_problem(model_of(*TWO_USES, mesh={"a": 4}))
    (shared,) = problem.graph.shared
    (one, wants), (other, also) = shared.users
    x = shared.node
    chosen = [0] * len(problem.graph.seconds)
    chosen[x] = 1
    assert wants[0] == also[0]
    alone = sum(float(found[chosen[n]]) for n, found in enumerate(problem.graph.seconds))
    assert problem.graph.total(chosen) == pytest.approx(alone + shared.seconds[1, wants[0]])
    assert {one, other} == {3, 4}


def test_dominated_strategies_are_not_needed():
    problem = build_problem(model_of(*TWO_USES, mesh={"a": 4}))
    left = undominated(problem.graph, problem.memory)
    assert sum(map(len, left)) < sum(map(len, problem.graph.seconds))
    for limit in (AMPLE, int(0.5 * problem.memory.peak([0] * len(left)))):
        assert brute_force(problem, limit, left) == pytest.approx(brute_force(problem, limit), rel=1e-9, abs=1e-8)


def test_less_memory_gives_a_smaller_plan_until_there_is_none():
    costs = model_of(*MATMUL, mesh={"a": 2, "b": 4})
    ample = choose_shardings(costs, AMPLE)
    tight = choose_shardings(costs, int(0.7 * ample.peak_bytes))
    assert tight.peak_bytes <= 0.7 * ample.peak_bytes
    assert tight.seconds >= ample.seconds * (1 - 1e-3)
    nothing = integer_program(costs, 1000)
    assert nothing.cost is None and not nothing.fits(1000)
    assert nothing.note.startswith("infeasible")


def test_copies_can_be_priced_by_the_byte():
    costs = model_of(*MATMUL, mesh={"a": 8})
    free, priced = build_problem(costs).graph, build_problem(costs, seconds_per_byte=1e-9).graph
    more = priced.edges[0, 2] - free.edges[0, 2]
    assert more[1, 0] == pytest.approx(1e-9 * 2048 * 4096 * 4)  # x whole, from its rows
    assert more[0].max() == 0.0  # from x whole to a part of it: nothing is copied


def test_a_choice_that_does_not_fit_with_its_copies_says_so():
    def two_layers(x, v, w):
        return jnp.tanh(jnp.tanh(x @ v) @ w)

    def bf16(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    costs = model_of(two_layers, bf16(16384, 1024), bf16(1024, 8192), bf16(8192, 1024), mesh={"a": 4})
    limit = 100_000_000
    assert choose_shardings(costs, limit).peak_bytes <= limit
    baseline = integer_program(costs, limit)
    assert baseline.cost.peak_bytes > limit and not baseline.fits(limit)
    assert baseline.note.startswith("does not fit")


@pytest.fixture(scope="module")
def gpt():
    fn, args, options = build("gpt", preset="tiny", layers=2)
    return model_of(fn, *args, mesh={"data": 2, "model": 4}, **options)


@pytest.fixture(scope="module")
def gpt_choice(gpt):
    return choose_shardings(gpt, replicated(gpt).peak_bytes)


def test_it_says_so_where_time_is_up(gpt):
    baseline = integer_program(gpt, AMPLE, seconds=0.0)
    assert baseline.note.startswith(("time limit", "optimal"))
    assert (baseline.cost is None) == ("nothing found" in baseline.note)


@pytest.mark.parametrize("name", ["mlp", "itx"])
def test_on_small_models_it_is_no_worse_than_replicated(name):
    fn, args, options = build(name, preset="tiny")
    costs = model_of(fn, *args, mesh={"data": 2, "model": 4}, **options)
    whole = replicated(costs)
    baseline = integer_program(costs, whole.peak_bytes)
    assert baseline.name == "integer program" and "nodes" in baseline.note
    assert baseline.fits(whole.peak_bytes)
    # It adds up ops where the cost model has kernels, and knows nothing of those that wait for a move: in programs as
    # small as these, which take microseconds, launches are what counts.
    launches = 4 * costs.device.kernel_costs.launch_seconds
    assert baseline.cost.step_seconds <= whole.step_seconds + launches


def test_on_a_transformer_it_is_better_than_replicated(gpt, gpt_choice):
    whole = replicated(gpt)
    cost = CostModel.of_shardings(gpt.classes.places, gpt.mesh, gpt.device, gpt_choice.shardings)
    assert cost.step_seconds < whole.step_seconds
    assert cost.peak_bytes < whole.peak_bytes


def test_every_sharding_is_legal(gpt, gpt_choice):
    program = gpt.classes.program
    for value, sharding in zip(program.values, gpt_choice.shardings, strict=True):
        axes = [a for found in sharding for a in found]
        assert len(axes) == len(set(axes))
        assert all(n % gpt.mesh.ways(found) == 0 for n, found in zip(value.shape, sharding, strict=True))


def test_a_loop_carries_a_value_in_one_sharding(gpt, gpt_choice):
    program, shardings = gpt.classes.program, gpt_choice.shardings
    assert program.loops
    for loop in program.loops:
        op = program.ops[loop.op]
        for r in op.regions:
            region = program.regions[r]
            carried = [region.parameters] if region.role == "condition" else [region.parameters, region.results]
            for values in carried:
                assert all(
                    shardings[v] == shardings[after] or program.free[v]
                    for v, after in zip(values, op.results, strict=True)
                )


def test_the_same_program_gives_the_same_choice():
    fn, args, options = build("mlp", preset="tiny")
    costs = model_of(fn, *args, mesh={"data": 2, "model": 4}, **options)
    limit = replicated(costs).peak_bytes // 2
    assert choose_shardings(costs, limit).shardings == choose_shardings(costs, limit).shardings

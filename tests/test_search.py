"""The search: it finds the optimum where that is known, respects memory, and ends when told, the same every time."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from benchmarks.baselines import exhaustive, experts
from programs import f32
from shardwright.devices import find_device
from shardwright.models import build
from shardwright.price import Cost, CostModel, Places
from shardwright.request import MeshShape
from shardwright.request.targets import parse_target
from shardwright.search import Outcome, Space, find_actions, find_keepers, find_state
from shardwright.search.improve import improve, neighbours
from shardwright.search.leaps import Leaps
from shardwright.search.lists import Order
from shardwright.search.scores import Found, Scores
from shardwright.search.simpler import AS_GOOD, PAYS, Equals, complexity, made_alike, simplified
from shardwright.space import Decision
from shardwright.space.roles import Roles
from shardwright.space.state import Entry, KeepWhole, State
from small import MESHES, SMALL

DEVICE = find_device("tpu-v5e")
AMPLE = DEVICE.usable_bytes


class Problem:
    """A program on a mesh: what there is to choose from, and what prices it."""

    def __init__(self, analysis: sw.Analysis, mesh: dict[str, int]) -> None:
        self.analysis, self.mesh = analysis, MeshShape.of(mesh)
        self.whole, self.keepers = find_keepers(analysis, ())
        self.costs = CostModel(Places(analysis), self.mesh, DEVICE, self.whole)
        actions = find_actions(analysis, self.mesh, matters=0.0)
        self.space = Space(analysis, self.costs, actions, self.whole, self.keepers)
        self.root = State(self.space.root, self.whole)

    def search(self, limit_bytes: int, **options: object) -> Outcome:
        return find_state(self.analysis, self.costs, self.root, limit_bytes, keepers=self.keepers, **options)

    @property
    def unsharded(self) -> Cost:
        return self.costs.evaluate(self.root)


@cache
def problem(name: str, mesh: str = "two axes") -> Problem:
    fn, args, donate = SMALL[name]
    return Problem(sw.analyse(fn, *args, donate=donate), MESHES[mesh])


def better_or_equal(found: Cost, best: Cost, limit_bytes: int) -> bool:
    if best.peak_bytes > limit_bytes:
        return found.peak_bytes <= best.peak_bytes
    return found.peak_bytes <= limit_bytes and found.step_seconds <= best.step_seconds * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", SMALL)
def test_the_optimum_is_found_with_every_seed(name: str, mesh: str) -> None:
    given = problem(name, mesh)
    best = exhaustive(given.space, given.costs, AMPLE, most=2_000)
    if best.cost is None:
        pytest.skip(best.note)
    for seed in range(10):
        found = given.search(AMPLE, seed=seed)
        assert better_or_equal(found.cost, best.cost, AMPLE), (seed, found.cost, best.cost)


@pytest.mark.parametrize("part", [0.45, 0.2, 0.0])
@pytest.mark.parametrize("name", ["product", "sgd", "momentum", "self-attention", "language", "experts", "repeated"])
def test_the_optimum_under_a_limit_is_found(name: str, part: float) -> None:
    given = problem(name)
    limit = int(given.unsharded.peak_bytes * part)
    best = exhaustive(given.space, given.costs, limit, most=20_000)
    assert best.cost is not None
    for seed in range(2):
        found = given.search(limit, seed=seed)
        assert better_or_equal(found.cost, best.cost, limit)
        assert bool(found.few) == (found.cost.peak_bytes <= limit)


def test_at_least_twenty_programs_can_be_enumerated_on_each_kind_of_mesh() -> None:
    for mesh in ("one axis", "two axes", "two other axes"):
        small = [name for name in SMALL if len(problem(name, mesh).analysis.groups) <= 5]
        assert len(small) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "moe", "itx", "gns", "vit", "mlp", "unet"])
def test_no_tactic_is_better(model: str) -> None:
    fn, args, options = build(model, preset="tiny")
    given = Problem(sw.analyse(fn, *args, **options), {"data": 2, "model": 4})
    for part in (1.0, 0.5, 0.25):
        limit = int(given.unsharded.peak_bytes * part)
        found = given.search(limit)
        for baseline in experts(given.space, given.costs, limit):
            assert baseline.cost is not None
            assert better_or_equal(found.cost, baseline.cost, limit) or not baseline.fits(limit), baseline


def test_the_same_seed_gives_the_same_search() -> None:
    fn, args, options = build("gpt", preset="tiny")
    analysis = sw.analyse(fn, *args, **options)
    first, second = (Problem(analysis, {"data": 2, "model": 4}).search(AMPLE, seed=3) for _ in range(2))
    assert first.best == second.best
    assert first.search.evaluations == second.search.evaluations
    assert [m.step_seconds for m in first.search.history] == [m.step_seconds for m in second.search.history]


def test_the_best_only_gets_better() -> None:
    found = problem("sgd").search(int(problem("sgd").unsharded.peak_bytes * 0.4))
    over = [(not m.fits, m.step_seconds if m.fits else m.peak_bytes) for m in found.search.history]
    assert over == sorted(over, reverse=True)
    assert found.search.history[-1].step_seconds == found.cost.step_seconds
    seconds = [m.seconds for m in found.search.history]
    assert seconds == sorted(seconds)


def test_an_interrupt_ends_the_search_and_keeps_the_best() -> None:
    def watch(scores: Scores) -> None:
        if scores.evaluations == 40:
            raise KeyboardInterrupt

    found = problem("heads").search(AMPLE, watch=watch)
    assert found.search.ended == "interrupted"
    assert found.search.evaluations == 40
    assert found.cost.step_seconds < problem("heads").unsharded.step_seconds


def test_budgets() -> None:
    given = problem("heads")
    assert given.search(AMPLE, seconds=0).search.evaluations == 1
    assert given.search(AMPLE, seconds=0).best == given.root
    short = given.search(AMPLE, simulations=3)
    assert (short.search.simulations, short.search.ended) == (3, "simulations")
    timed = given.search(AMPLE, seconds=0.05)
    assert timed.search.seconds < 5
    assert timed.search.ended in ("seconds", "converged", "exhausted")


def test_a_small_space_is_searched_to_the_end() -> None:
    assert problem("outer", "one axis").search(AMPLE).search.ended == "exhausted"


def test_what_is_pinned_stays() -> None:
    given = problem("chain")
    pinned = State(((Entry(0),), ()), given.whole)
    found = find_state(given.analysis, given.costs, pinned, AMPLE, keepers=given.keepers)
    assert found.best.lists[0][0] == Entry(0)
    assert len({entry.group for entry in found.best.lists[0]}) == len(found.best.lists[0])


def test_an_axis_that_is_kept_stays_unused() -> None:
    given = problem("chain")
    found = given.search(AMPLE, kept={"model": "because"})
    assert found.best.lists[1] == ()
    reasons = {str(p).split(": ", 2)[-1] for p in found.search.actions.pruned if p.axis == "model"}
    assert reasons == {"because"}


def test_what_is_left_alone_has_a_reason() -> None:
    def program(x, table, w):
        return (x @ w) + table[:3].sum()

    analysis = sw.analyse(program, f32(4096, 4096), f32(8, 7), f32(4096, 6))
    actions = find_actions(analysis, MeshShape.of({"data": 4, "one": 1}))
    reasons = {(p.axis, p.dimension): p.reason for p in actions.pruned}
    assert reasons["data", "w[1]"] == "4 devices do not divide 6"
    assert reasons["one", "x[0]"] == "the axis has one device"
    assert actions.entries[1] == ()
    tiny = next(reason for (axis, _), reason in reasons.items() if axis == "data" and "FLOPs" in reason)
    assert "of the bytes" in tiny


def test_entries_that_never_meet_have_one_order() -> None:
    analysis = problem("product").analysis
    order = Order(Places(analysis))
    names = [d.name for d in analysis.descriptions]
    x, inner = (Entry(names.index(name)) for name in ("x[0]", "x[1]"))
    assert order.normal(((x, inner),)) != order.normal(((inner, x),))  # both stand in x
    assert order.normal(((KeepWhole(0), x),)) == order.normal(((x, KeepWhole(0)),))
    free = problem("messages").analysis
    order = Order(Places(free))
    pairs = {(a, b) for a in range(len(free.groups)) for b in range(a)}
    apart = [(a, b) for a, b in pairs if not any({a, b} <= set(v) for v in Places(free).of_value)]
    assert apart
    for a, b in apart:
        assert order.normal(((Entry(a), Entry(b)),)) == order.normal(((Entry(b), Entry(a)),))


def test_local_improvement_reaches_a_state_that_no_neighbour_beats() -> None:
    given = problem("sgd")
    scores = Scores(given.costs, given.space.order, given.root, AMPLE)
    found = improve(scores, given.space.root, given.space.actions)
    for lists in neighbours(found.lists, given.space.actions):
        assert not scores.better(Found(lists, scores.cost(lists)), found)


@pytest.mark.parametrize("mesh", ["one axis", "two axes"])
def test_what_is_drawn_is_a_local_optimum(mesh: str) -> None:
    given = problem("sgd", mesh)
    scores = Scores(given.costs, given.space.order, given.root, AMPLE)
    leaps = Leaps(given.space, scores, math.inf, math.inf)
    for seed in range(12):
        lists = leaps.draw(Random(seed), [given.space.root])
        assert lists == leaps.draw(Random(seed), [given.space.root])
        found = Found(lists, scores.cost(lists))
        for other in neighbours(lists, given.space.actions):
            new = Found(other, scores.cost(other))
            assert not scores.better(new, found) or scores.gain(new, found) < 1e-3


def test_draws_cross_good_states() -> None:
    given = problem("sgd")
    scores = Scores(given.costs, given.space.order, given.root, AMPLE)
    leaps = Leaps(given.space, scores, 0, math.inf)  # without work nothing is improved
    first, second = ((Entry(0),), ()), ((), (Entry(1),))
    drawn = {leaps.draw(Random(seed), [first, second]) for seed in range(60)}
    assert {first, second, given.space.root, ((Entry(0),), (Entry(1),))} <= drawn
    changed = [sum(a != b for a, b in zip(lists, first, strict=True)) for lists in drawn]
    assert {0, 1, 2} == set(changed)


def test_what_is_gained() -> None:
    given = problem("sgd")
    scores = Scores(given.costs, given.space.order, given.root, 100)
    slow, fast, large = (Found((), Cost(*cost)) for cost in ((3.0, 1.0, 100), (2.0, 1.0, 90), (1.0, 1.0, 101)))
    assert scores.gain(fast, slow) == pytest.approx(0.25)
    assert scores.gain(slow, large) == math.inf
    assert scores.gain(Found((), Cost(0.0, 0.0, 80)), Found((), Cost(0.0, 0.0, 90))) == 0


@pytest.mark.slow
def test_an_axis_is_decided_anew_where_no_single_change_helps() -> None:
    fn, args, options = build("moe", layers=2)
    where = {"mesh": {"data": 16, "model": 4}, "device": parse_target("tpu:v5p:4x4x4").placed_device}
    layers = "state.params.layers"
    known = sw.evaluate(
        fn,
        *args,
        **where,
        **options,
        decisions=[
            Decision("data", f"{layers}.sparse.router[2]", unless="batch.tokens[1]"),
            Decision("data", "batch.tokens[0]"),
            Decision("data", "state.params.embed[1]", unless=f"{layers}.dense.wq[2]"),
            Decision("model", "state.params.embed[0]"),
            Decision("model", f"{layers}.dense.w_up[2]"),
            Decision("model", f"{layers}.dense.wq[2]"),
            Decision("model", f"{layers}.sparse.w_up[3]"),
            Decision("model", "state.params.embed[1]"),
        ],
    )
    assert sw.partition(fn, *args, **where, **options).estimate.step_seconds <= known.estimate.step_seconds


def test_a_value_falls_with_seconds_and_with_bytes_over_the_limit() -> None:
    given = problem("product")
    scores = Scores(given.costs, given.space.order, given.root, AMPLE)
    cost = scores.cost(given.space.root)
    assert scores.value(given.space.root) == pytest.approx(-math.log(cost.step_seconds))
    tight = Scores(given.costs, given.space.order, given.root, cost.peak_bytes // 2)
    over = cost.peak_bytes / (cost.peak_bytes // 2)
    assert tight.value(given.space.root) == pytest.approx(-math.log(cost.step_seconds) - 0.2 - 3 * math.log(over))


def test_the_memory_of_prices_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.price.cost_model._MOST_KEPT_ROWS", 50)
    fn, args, donate = SMALL["sgd"]
    forgetful = Problem(sw.analyse(fn, *args, donate=donate), MESHES["two axes"])
    found = forgetful.search(AMPLE)
    assert found.cost.step_seconds == pytest.approx(problem("sgd").search(AMPLE).cost.step_seconds, rel=1e-12)
    assert forgetful.costs._kept_rows <= 50 + len(forgetful.costs.at) * len(forgetful.costs.families)


@pytest.mark.parametrize("name", ["sgd", "momentum", "self-attention", "language", "experts", "repeated"])
def test_what_hardly_matters_is_left_out(name: str) -> None:
    given = problem(name)
    found = given.search(AMPLE)
    simple = given.costs.evaluate(found.simple)
    best_expert = experts(given.space, given.costs, AMPLE)[-1].cost
    assert best_expert is not None
    assert simple.step_seconds <= min((1 + AS_GOOD) * found.cost.step_seconds, best_expert.step_seconds) * (1 + 2e-6)
    assert complexity(found.simple.lists) <= complexity(found.best.lists)


def test_an_entry_without_effect_is_dropped_and_one_with_an_effect_is_not() -> None:
    given = problem("sgd", "one axis")
    names = {d.name: g for g, d in enumerate(given.analysis.descriptions)}
    batch, idle = (Entry(names[name], ()) for name in ("x[0]", "params.b[1]"))
    scores = Scores(given.costs, given.space.order, given.root, AMPLE)
    both = ((batch, idle),)
    found = Found(both, scores.cost(both))
    kept = simplified(scores, found, found.cost.step_seconds * 10)
    assert len(kept.lists[0]) < 2
    assert simplified(scores, found, 0.0) == found


@cache
def grouped_queries() -> Problem:
    """Attention with three heads of keys and values, each for four of queries, and its optimizer."""

    def bf16(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def loss(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("btd,dkh->btkh", x, w[name]) for name in ("q", "k", "v"))
        q = q.reshape(*x.shape[:2], 3, 4, 128)
        scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k).astype(jnp.float32)).astype(x.dtype)
        out = jnp.einsum("bkgts,bskh->btkgh", scores, v).reshape(*x.shape[:2], -1) @ w["o"]
        return jnp.sum(out.astype(jnp.float32) ** 2)

    def step(w, m, v, x):
        grads = jax.grad(loss)(w, x)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, grads)
        v = jax.tree.map(lambda v, g: 0.9 * v + g * g, v, grads)
        return jax.tree.map(lambda p, m, v: p - m / (jnp.sqrt(v) + 1e-6), w, m, v), m, v

    w = {"q": bf16(512, 12, 128), "k": bf16(512, 3, 128), "v": bf16(512, 3, 128), "o": bf16(1536, 512)}
    return Problem(sw.analyse(step, w, w, w, bf16(8, 1024, 512), donate=(0, 1, 2)), {"a": 2, "b": 4})


def test_weights_in_equal_roles() -> None:
    analysis = grouped_queries().analysis
    paths = {argument.value: argument.path for argument in analysis.program.arguments}
    found = {" ".join(sorted(paths[v] for v in values)) for values in Roles(analysis).equals}
    assert found == {"m.k m.v v.k v.v w.k w.v", "m.q v.q w.q", "m.o v.o w.o"}


def test_equal_roles_are_not_of_equal_shapes_alone() -> None:
    def chain(ws, x):
        return jnp.sum(jnp.sin(jnp.sin(x @ ws[0]) @ ws[1]))

    assert Roles(sw.analyse(chain, [f32(64, 64)] * 2, f32(128, 64))).equals == ()


def test_keys_and_values_are_sharded_alike_unless_the_difference_pays() -> None:
    given = grouped_queries()
    found, equals = given.search(AMPLE), Equals(given.costs, Roles(given.analysis).equals)
    scores = Scores(given.costs, given.space.order, given.root, AMPLE)
    for state in (found.simple, *found.few):
        assert equals.apart(scores, state.lists) == 0
    assert given.costs.evaluate(found.simple).step_seconds <= (1 + PAYS) * found.cost.step_seconds
    if equals.apart(scores, found.best.lists):  # the best is faster for it
        best = Found(found.best.lists, found.cost)
        assert made_alike(scores, given.space.actions, equals, best, found.cost.step_seconds) is best


def test_what_is_kept_whole_as_small_is_not_one_of_two_that_are_equal() -> None:
    def step(p, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.sin(x @ p["w"] * p["scale"] + p["bias"])))(p)
        return jax.tree.map(jnp.subtract, p, grads)

    # One of the two is less than half a hundredth of all, and both are more.
    p = {"w": f32(300, 1024), "scale": f32(1024), "bias": f32(1024)}
    whole, keepers = find_keepers(sw.analyse(step, p, f32(4096, 300)), ())
    assert keepers.small is None and whole == ()

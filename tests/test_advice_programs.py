"""Advice about programs of all shapes: what is priced is a program, and what is there already changes nothing."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardwright as sw
from programs import f32
from shardwright.advice import advice
from shardwright.advice.advice import find_boundaries
from shardwright.advice.draft import Draft, Policy, reads_of
from shardwright.advice.finish import finish, price
from shardwright.ir.program import Program

LAYERS, BATCH, WIDTH = 4, 32, 64


def plain(w, x):
    return x + jnp.tanh(x @ w)


def loop(w, x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]


def loop_in_loop(w, x):
    y, sums = lax.scan(lambda c, _: (loop(w, c) * 0.5 + c, c.sum()), x, None, length=2)
    return y * sums.sum()


def blockwise(w, x):
    """Loops over slices, as attention over blocks has them."""

    def rows(i, out):
        part = lax.dynamic_slice_in_dim(x, i * 8, 8, 0)
        part = lax.fori_loop(0, 3, lambda j, a: a + jnp.tanh(part @ w) * j, jnp.zeros_like(part))
        return lax.dynamic_update_slice_in_dim(out, part, i * 8, 0)

    return lax.fori_loop(0, 4, rows, jnp.zeros_like(x))


def branches(w, x):
    return lax.cond(x.sum() > 0, lambda a: jnp.tanh(a @ w), lambda a: a * 2, x)


def loops_in_branches(w, x):
    return lax.switch(jnp.int32(x.sum()), [lambda a: loop(w, a), lambda a: a * 2, jnp.sin], x)


def until(w, x):
    """As many turns as the data want."""
    start = jnp.zeros_like(x), jnp.float32(0)
    found = lax.while_loop(lambda s: s[1] < 10, lambda s: (s[0] + lax.stop_gradient(x @ w), s[1] + s[0].sum()), start)
    return x + jnp.tanh(x @ w) * lax.stop_gradient(found[0])


@jax.custom_vjp
def _own_rule(w, x):
    return loop_in_loop(w, x)


def _backward(kept, g):
    w, x = kept

    def turn(_, sums):
        return sums[0] + x.T @ g, lax.fori_loop(0, 2, lambda j, s: s + (g @ w.T) * j, sums[1])

    return lax.fori_loop(0, 3, turn, (jnp.zeros_like(w), jnp.zeros_like(x)))


_own_rule.defvjp(lambda w, x: (loop_in_loop(w, x), (w, x)), _backward)


def own_rule(w, x):
    return x + _own_rule(w, x)


def one_scalar_everywhere(w, x):
    """A value that is read in a loop, beside it, and in its derivative."""
    most = jnp.max(jnp.abs(x))
    wide = jnp.broadcast_to(most, x.shape)
    y = lax.scan(lambda c, i: (jnp.tanh(c @ w) * wide * i, None), x, jnp.arange(3.0))[0]
    return y + wide * jnp.exp(wide)


def empty_slices(w, x):
    """Its derivative has slices without elements."""
    return lax.associative_scan(lambda a, b: a * b + 1, jnp.tanh(x @ w))


def scanned(layer):
    return lambda ws, x: jnp.mean(lax.scan(lambda c, w: (layer(w, c), None), x, ws)[0] ** 2)


def written_out(layer):
    def loss(ws, x):
        for k in range(3):
            x = layer(ws[k], x)
        return jnp.mean(x**2)

    return loss


def in_groups(layer):
    """A scan over scans, both recomputed."""

    def loss(ws, x):
        group = jax.checkpoint(lambda c, some: lax.scan(lambda c, w: (layer(w, c), None), c, some)[0])
        return jnp.mean(lax.scan(lambda c, w: (group(c, w), None), x, ws.reshape(2, 2, WIDTH, WIDTH))[0] ** 2)

    return loss


def planned(fn):
    decisions = [("data", "x[0]"), ("model", "ws[2]")]
    mesh = {"data": 2, "model": 2}
    return sw.evaluate(
        fn, f32(LAYERS, WIDTH, WIDTH), f32(BATCH, WIDTH), mesh=mesh, device="tpu-v5e", decisions=decisions
    )


def drafts(plan):
    """Every change of every boundary that can be worked out."""
    for boundary in find_boundaries(plan.analysis.program):
        for policy in Policy:
            draft = Draft(plan.partitioned.places)
            if boundary.change(draft, policy):
                yield boundary, policy, finish(draft)


def assert_well_formed(program: Program, region: int = 0, around: frozenset[int] = frozenset()) -> None:
    """Every value is made before it is read and where it can be seen; regions lie in the ops that have them."""
    here = program.regions[region]
    seen = set(around | set(here.parameters))
    assert all((program.values[v].op, program.values[v].region) == (-1, region) for v in here.parameters)
    o = here.start
    while o < here.stop:
        op, after = program.ops[o], o + 1
        assert op.region == region
        assert seen.issuperset(op.operands), (o, op.kind)
        for r in op.regions:
            inner = program.regions[r]
            assert (inner.op, inner.start) == (o, after)
            assert_well_formed(program, r, frozenset(seen))
            assert op.kind != "while" or len(inner.parameters) == len(op.operands) == len(op.results)
            assert inner.role == "condition" or len(inner.results) == len(op.results)
            after = inner.stop
        assert all((program.values[v].op, program.values[v].region) == (o, region) for v in op.results)
        seen |= set(op.results)
        o = after
    assert o == here.stop
    assert seen.issuperset(here.results)


ODD = [plain, loop, loop_in_loop, blockwise, branches, loops_in_branches, until, own_rule]
ODD += [one_scalar_everywhere, empty_slices]


@pytest.mark.parametrize("layer", ODD)
def test_scanned_layers_that_are_recomputed(layer):
    """To keep nothing of them is what the program does already."""
    plan = planned(jax.grad(scanned(jax.checkpoint(layer, prevent_cse=False))))
    now, found = plan.estimate_cost, list(drafts(plan))
    assert Policy.NOTHING in [policy for _, policy, _ in found]
    for boundary, policy, places in found:
        assert_well_formed(places.analysis.program)
        then = price(plan.costs, places, plan.partitioned.state)
        if boundary.recomputed and policy is Policy.NOTHING:
            assert then.peak_bytes == pytest.approx(now.peak_bytes, rel=0.08)
            assert then.step_seconds == pytest.approx(now.step_seconds, rel=0.05)


@pytest.mark.parametrize("layer", ODD)
def test_written_out_layers_that_are_recomputed(layer):
    plan = planned(jax.grad(written_out(jax.checkpoint(layer))))
    for _, _, places in drafts(plan):
        assert_well_formed(places.analysis.program)
        assert price(plan.costs, places, plan.partitioned.state).peak_bytes


@pytest.mark.parametrize("layer", [loop_in_loop, branches, own_rule])
@pytest.mark.parametrize("form", [scanned, in_groups])
def test_layers_that_are_not_recomputed(layer, form):
    plan = planned(jax.grad(form(layer)))
    found = list(drafts(plan))
    assert found
    for _, _, places in found:
        assert_well_formed(places.analysis.program)
        assert price(plan.costs, places, plan.partitioned.state).peak_bytes


def test_what_is_made_between_two_loops_is_not_read_before_it():
    """The derivative of a derivative recomputes from what another loop has made meanwhile."""
    loss = scanned(jax.checkpoint(plain))
    plan = planned(jax.grad(lambda ws, x: jnp.sum(jax.grad(loss)(ws, x) ** 2)))
    for _, _, places in drafts(plan):
        assert_well_formed(places.analysis.program)


def test_a_copy_of_a_loop_has_the_loops_inside_it():
    plan = planned(lambda ws, x: loop_in_loop(ws[0], x))
    program, draft = plan.analysis.program, Draft(plan.partitioned.places)
    outer = next(o for o, op in enumerate(program.ops) if op.kind == "while")
    copy = draft.clone(outer, {})

    def kinds(o):
        return [(draft.ops[i].kind, *kinds(i)) for r in draft.ops[o].regions for i in draft.order(r)]

    assert kinds(copy) == kinds(outer)
    assert any(len(kind) > 1 for kind in kinds(outer))


def test_a_branch_reads_what_stands_around_it():
    program = planned(lambda ws, x: branches(ws[0], x)).analysis.program
    (case,) = [o for o, op in enumerate(program.ops) if op.kind == "case"]
    (index,) = program.ops[case].operands
    read = reads_of(program)[case]
    assert read[0] == index
    assert sorted(str(program.values[v]) for v in read[1:]) == ["f32[32,64]", "f32[64,64]"]


def test_a_program_that_cannot_be_rewritten_is_printed_all_the_same(monkeypatch):
    plan = planned(jax.grad(scanned(plain)))

    def fail(*_):
        raise KeyError(2555)

    monkeypatch.setattr(advice, "change_scan", fail)
    with pytest.warns(
        UserWarning, match=r"could not be worked out for .* \(KeyError: 2555\); the plan itself is complete"
    ):
        printed = str(plan)
    assert plan.advice == ()
    assert "data 2 × model 2" in printed

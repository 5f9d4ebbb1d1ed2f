"""Random programs whose dimensions are labelled by hand: the analysis must find just the labels' classes."""

import itertools
from collections import defaultdict

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import shardwright as sw
from programs import f32
from shardwright.analysis.conflicts import _ParityUnion

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "f": 7}


@st.composite
def labelled_programs(draw):
    """A list of steps over tensors, each a string of distinct labels; a label is a dimension with a size of its own.

    Steps make a new tensor from earlier ones by ops that identify dimensions exactly where the labels agree.
    """
    labels = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3, unique=True).map("".join)
    arguments = draw(st.lists(labels, min_size=2, max_size=4))
    tensors = list(arguments)
    steps = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["einsum", "transpose", "reduce", "twice", "broadcast", "scan"]))
        i = draw(st.integers(0, len(tensors) - 1))
        x = tensors[i]
        if kind == "einsum":
            j = draw(st.integers(0, len(tensors) - 1))
            union = sorted(set(x) | set(tensors[j]))
            out = "".join(draw(st.lists(st.sampled_from(union), min_size=1, max_size=4, unique=True)))
            steps.append((kind, (i, j), out))
        elif kind == "transpose":
            out = "".join(draw(st.permutations(list(x))))
            steps.append((kind, (i,), out))
        elif kind == "reduce" and len(x) > 1:  # no scalars: what is broadcast from one has no colour
            out = x[1:]
            steps.append((kind, (i,), out))
        elif kind == "broadcast":
            new = [s for s in SIZES if s not in x]
            out = draw(st.sampled_from(new)) + x
            steps.append((kind, (i,), out))
        else:
            out = x
            steps.append(("twice" if kind == "reduce" else kind, (i,), out))
        tensors.append(out)
    return arguments, steps


def run(arguments, steps, values):
    tensors, names = list(values), list(arguments)
    for kind, inputs, out in steps:
        xs = [tensors[i] for i in inputs]
        ns = [names[i] for i in inputs]
        if kind == "einsum":
            y = jnp.einsum(f"{ns[0]},{ns[1]}->{out}", *xs)
        elif kind == "transpose":
            y = jnp.transpose(xs[0], [ns[0].index(c) for c in out])
        elif kind == "reduce":
            y = jnp.sum(xs[0], axis=0)
        elif kind == "broadcast":
            y = jnp.broadcast_to(xs[0], (SIZES[out[0]], *xs[0].shape))
        elif kind == "twice":
            y = xs[0] + jnp.tanh(xs[0])
        else:
            y = lax.fori_loop(0, 3, lambda _, h: jnp.sin(h), xs[0])
        tensors.append(y)
        names.append(out)
    return tensors


def expected_classes(arguments, steps):
    """Union-find over (tensor, label): a step joins equal labels of its inputs and its output."""
    parent = {}

    def find(k):
        parent.setdefault(k, k)
        while parent[k] != k:
            k = parent[k]
        return k

    names = [*arguments, *(out for _, _, out in steps)]
    for t, labels in enumerate(names):
        for label in labels:
            find((t, label))
    for s, (_, inputs, out) in enumerate(steps):
        t = len(arguments) + s
        for label in SIZES:
            places = [(i, label) for i in inputs if label in names[i]]
            if label in out:
                places.append((t, label))
            for a, b in itertools.pairwise(places):
                parent[find(a)] = find(b)
    classes = defaultdict(set)
    for t, labels in enumerate(names):
        for d, label in enumerate(labels):
            classes[find((t, label))].add((t, d))
    return {frozenset(c) for c in classes.values()}


@given(labelled_programs())
def test_colours_are_the_classes_of_labels(program):
    arguments, steps = program
    shapes = [f32(*(SIZES[c] for c in labels)) for labels in arguments]

    def fn(*values):
        return run(arguments, steps, values)

    analysis = sw.analyse(fn, *shapes)
    found = defaultdict(set)
    for t, v in enumerate(analysis.program.regions[0].results):
        for d, colour in enumerate(analysis.colours.of_value(v).tolist()):
            assert colour >= 0
            found[colour].add((t, d))
    assert {frozenset(c) for c in found.values()} == expected_classes(arguments, steps)
    assert not analysis.conflicts  # labels are distinct within each tensor and op


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.booleans()), max_size=12)
        )
    )
)
def test_union_with_parity_agrees_with_trying_all_assignments(problem):
    n, edges = problem
    union = _ParityUnion(n)
    for a, b, turned in edges:
        union.join(a, b, turned)
    component = {k: union.find(k)[0] for k in range(n)}
    for root in set(component.values()):
        inside = [k for k in range(n) if component[k] == root]
        related = [(a, b, t) for a, b, t in edges if component[a] == root]
        solutions = [
            bits
            for bits in itertools.product([False, True], repeat=len(inside))
            if all(bits[inside.index(a)] ^ bits[inside.index(b)] == t for a, b, t in related)
        ]
        assert (root not in union.contradictory) == bool(solutions)
        for bits in solutions:
            relative = [bits[k] ^ bits[inside.index(root)] for k in range(len(inside))]
            assert relative == [union.find(k)[1] for k in inside]


@given(st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_groups_partition_the_colours_and_copies_never_meet(depth, seed):
    random = np.random.default_rng(seed)
    widths = random.choice([8, 16], size=depth + 1)

    def fn(x, ws):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    analysis = sw.analyse(fn, f32(4, int(widths[0])), [f32(int(a), int(b)) for a, b in itertools.pairwise(widths)])
    members = [c for group in analysis.groups for c in group.colours]
    assert sorted(members) == list(range(analysis.colours.count))
    group_of = {c: g for g, group in enumerate(analysis.groups) for c in group.colours}
    for v in range(len(analysis.program.values)):
        colours = [c for c in analysis.colours.of_value(v).tolist() if c >= 0]
        assert len({group_of[c] for c in colours}) == len(set(colours))

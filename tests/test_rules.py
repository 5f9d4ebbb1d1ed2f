"""Sharding rules, against rules worked out by hand."""

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from shardwright.errors import RuleError
from shardwright.ir import own_rules, rules
from shardwright.ir.rules import Rule
from shardwright.ir.user_rules import parse_rule

IDENTITY = ((0,), (1,))


def halo_rule(size: int, operands: int = 1) -> Rule:
    return Rule((size, 4), (IDENTITY,) * operands, (IDENTITY,), halo=frozenset({0}))


def test_text_reads_like_an_einsum():
    dot = Rule((8, 32, 16), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), reduction=frozenset({2}))
    assert str(dot) == "ac,cb->ab reduction=c"
    split = Rule((4, 16), (((0, 1),),), (((0,), (1,)),))
    assert str(split) == "(ab)->ab"


def test_links_leave_out_whole_and_unit_factors_and_take_the_major_one():
    rule = Rule((4, 16, 1, 7), (((0, 1), (2,), (3,)),), (((0,), (1,), (3,)),), whole=frozenset({3}))
    assert rule.links == ((0, 0, 0), (1, 0, 0), (1, 1, 1))


def test_nothing_is_not_split():
    some, none = Rule((8, 4), (IDENTITY,), (IDENTITY,)), Rule((0, 4), (IDENTITY,), (IDENTITY,))
    assert rules.empty_whole(some) is some
    assert rules.empty_whole(none).whole == {0}


@pytest.mark.parametrize(
    ("operand", "result", "stride", "kept"),
    [(64, 63, 1, True), (64, 56, 1, True), (64, 32, 1, False), (64, 32, 2, True), (48, 16, 1, False)],
)
def test_slice_keeps_the_factor_where_most_of_the_dimension_stays(operand, result, stride, kept):
    rule = rules.cut_slice(halo_rule(operand), [(operand, 4), (result, 4)], [stride, 1])
    assert (rule.results[0][0] == rule.operands[0][0]) is kept
    assert (0 in rule.halo) is kept
    assert (0 in rule.whole) is not kept
    assert rule.results[0][1] == rule.operands[0][1] == (1,)


@pytest.mark.parametrize(
    ("operand", "interior", "result", "kept"), [(64, 0, 66, True), (64, 1, 127, True), (16, 0, 64, False)]
)
def test_pad_keeps_the_factor_where_the_dimension_hardly_grows(operand, interior, result, kept):
    rule = Rule((operand,), (((0,),), ()), (((0,),),), halo=frozenset({0}))
    cut = rules.cut_pad(rule, [(operand,), (), (result,)], [interior])
    assert (cut.operands[0] == cut.results[0]) is kept


def test_concatenation_follows_the_operand_that_is_nearly_the_result():
    rule = rules.cut_concatenate(halo_rule(64, operands=2), [(1, 4), (63, 4), (64, 4)])
    assert rule.operands[1][0] == rule.results[0][0] == (0,)
    assert rule.operands[0][0] != (0,)
    assert rule.operands[0][0][0] in rule.whole


def test_window_over_the_whole_dimension_is_whole_and_a_narrow_one_is_a_halo():
    narrow = rules.cut_window(halo_rule(64), [(64, 4), (64, 4)], [3, 1])
    wide = rules.cut_window(halo_rule(64), [(64, 4), (64, 4)], [64, 1])
    assert narrow.halo == {0}
    assert not wide.halo
    assert 0 in wide.whole


def test_batched_shares_the_leading_dimensions_only():
    rule = own_rules.batched([(5, 6)], [(5, 3), (5, 3)], 1)
    assert rule.operands == (((0,), (1,)),)
    assert rule.results == (((0,), (2,)), ((0,), (3,)))
    assert rule.whole == {1, 2, 3}


def test_opaque_shares_nothing():
    rule = own_rules.opaque([(5, 6)], [(5, 6)])
    assert not rule.links
    assert not rule.known


def test_ragged_dot_shards_columns_and_the_contraction_but_not_the_ragged_rows():
    shapes = [(16, 6), (2, 6, 5), (2,), (16, 5)]
    rule = own_rules.ragged_dot(shapes, batch=([], []), contracting=([1], [1]), ragged=0, groups=[0])
    assert str(rule) == "ba,cad,e->bd reduction=a whole=b,c,e"
    assert rule.sizes == (6, 16, 2, 5, 2)


def test_ragged_dot_over_the_ragged_dimension_gives_one_matrix_a_group():
    shapes = [(16, 6), (16, 5), (2,), (2, 6, 5)]
    rule = own_rules.ragged_dot(shapes, batch=([], []), contracting=([0], [0]), ragged=0, groups=[])
    assert [rule.sizes[f[0]] for f in rule.results[0]] == [2, 6, 5]
    assert rule.operands[0][1] == rule.results[0][1]
    assert rule.operands[1][1] == rule.results[0][2]
    assert rule.operands[0][0][0] in rule.whole


def test_parse_reads_reductions_and_products_of_factors():
    assert str(parse_rule("b t d, d f -> b t f", [(2, 3, 4), (4, 5)], [(2, 3, 5)])) == "abc,cd->abd reduction=c"
    merged = parse_rule("b h k, (h k) d -> b d", [(2, 3, 4), (12, 5)], [(2, 5)])
    assert merged.sizes == (2, 3, 4, 5)
    assert merged.operands[1] == ((1, 2), (3,))
    assert parse_rule("(h k) -> h", [(12,)], [(3,)]).sizes == (3, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "exactly one '->'"),
        ("a b, c -> a", "2 operands where the call has 1"),
        ("a -> a", "1 dimensions to a tensor of shape"),
        ("(c d) b -> a", "sizes of c and d open"),
        ("a b -> b a", "do not make a dimension"),
        ("a (b -> a", "open parenthesis"),
        ("a ? -> a", r"'\?' where a factor's name"),
    ],
)
def test_parse_says_what_is_wrong(text, message):
    with pytest.raises(RuleError, match=message):
        parse_rule(text, [(4, 8)], [(4, 4)] if "b a" in text else [(4,)])


def test_random_bits_that_the_compiler_does_not_partition_are_whole_on_every_device():
    def fn(key, x):
        return x * jax.random.bits(key, x.shape, "uint32")

    key, x = jax.eval_shape(lambda: (jax.random.key(0, impl="rbg"), jnp.zeros((64, 8), "uint32")))

    def bits(platform):
        plan = sw.evaluate(
            fn, key, x, mesh={"data": 4}, device="tpu-v5e", platform=platform, decisions=[("data", "x[0]")]
        )
        op = next(op for op in plan.analysis.program.ops if op.kind == "rng_bit_generator")
        return plan.partitioned.values[op.results[1]]

    assert bits("tpu") == ((), ())
    assert bits("cpu") == ((0,), ())

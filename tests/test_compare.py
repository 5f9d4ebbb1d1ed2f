"""A plan beside expert tactics: what each costs by itself, in order, and marked where it does not fit."""

import json
import sys

import jax
import pytest

import shardwright as sw
from shardwright.compare import OURS, REPLICATED, Compared
from shardwright.models import build
from small import SMALL

MESH = {"data": 2, "model": 2}


def of_gpt(**more):
    fn, args, options = build("gpt", preset="tiny")
    return sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", **options, **more)


@pytest.fixture(scope="module")
def plan():
    return of_gpt(decisions=["zero1:data", "megatron:model"])


@pytest.fixture(scope="module")
def comparison(plan):
    return sw.compare(plan)


def test_rows_cost_what_evaluating_their_tactics_costs(comparison):
    zero1 = next(row for row in comparison.rows if "zero1" in row.name)
    for row in (zero1, comparison.rows[1]):
        decisions = [] if row.name == REPLICATED else row.name.split(" + ")
        cost = of_gpt(decisions=decisions).estimate_cost
        assert (row.compute_seconds, row.comm_seconds, row.peak_bytes) == (
            pytest.approx(cost.compute_seconds),
            pytest.approx(cost.comm_seconds),
            cost.peak_bytes,
        ), row.name


def test_every_tactic_that_applies_is_there_alone_and_combined(comparison):
    names = [row.name.split(" + ") for row in comparison.rows[1:]]
    alone = {parts[0].partition(":")[0] for parts in names if len({p.partition(":")[0] for p in parts}) == 1}
    assert alone == {
        *("data_parallel", "fsdp", "zero1", "megatron", "megatron_sequence", "context_parallel"),
        REPLICATED,
    }
    combined = {p.partition(":")[0] for parts in names if len({p.partition(":")[0] for p in parts}) > 1 for p in parts}
    assert combined == alone - {REPLICATED}
    assert len(set(map(tuple, names))) == len(names)


def test_ours_is_first_and_the_others_are_in_order(plan, comparison):
    ours, *others = comparison.rows
    assert ours == comparison.ours
    assert (ours.name, ours.ours, ours.peak_bytes) == (OURS, True, plan.estimate.peak_bytes)
    assert not any(row.ours for row in others)
    assert all(row.fits for row in others)
    assert [row.step_seconds for row in others] == sorted(row.step_seconds for row in others)
    assert comparison.best_expert == others[0]


def test_what_does_not_fit_comes_last_and_is_marked():
    fn, args, donate = SMALL["momentum"]

    def compared(**more):
        plan = sw.evaluate(fn, *args, mesh=MESH, device="tpu-v5e", decisions=["fsdp:data"], donate=donate, **more)
        return sw.compare(plan)

    sizes = sorted(row.peak_bytes for row in compared().rows)
    tight = compared(memory=sizes[len(sizes) // 2])
    fits = [row.fits for row in tight.rows[1:]]
    assert fits == sorted(fits, reverse=True)
    assert 1 < sum(fits) < len(fits)
    over = [row.peak_bytes for row in tight.rows[1:] if not row.fits]
    assert over == sorted(over)
    lines = str(tight).splitlines()
    assert sum(line.endswith("does not fit") for line in lines) == sum(not row.fits for row in tight.rows)
    assert lines[-1].split()[0] == REPLICATED


def test_printed_and_as_dict(comparison):
    text = str(comparison)
    assert text.startswith("train_step on 4 × tpu-v5e (data 2 × model 2), 15.75 GiB each\n")
    assert max(map(len, text.splitlines())) <= 120
    found = json.loads(json.dumps(comparison.to_dict()))
    assert found["rows"][0]["ours"] is True
    assert found["rows"][0]["ratio"] == 1
    assert found["rows"][1]["ratio"] == comparison.rows[1].step_seconds / comparison.ours.step_seconds


def test_what_is_done_together_on_one_axis():
    fn, args, options = build("moe", preset="tiny")
    names = [row.name for row in sw.compare(sw.evaluate(fn, *args, mesh={"x": 2}, device="tpu-v5e", **options)).rows]
    assert any(name.startswith("expert_parallel:x + ") for name in names)
    assert any(name.startswith("context_parallel:x + ") for name in names)


def test_names_are_printed_short():
    name = "expert_parallel:a + fsdp:a + expert_parallel:b + fsdp:b + megatron:c"
    row = Compared(name, 2.0, 1.0, 1.0, 3, fits=True)
    assert row.short_name == "expert_parallel+fsdp:a,b + megatron:c"


def test_a_searched_plan_and_one_from_a_file(tmp_path):
    fn, args, donate = SMALL["sgd"]
    plan = sw.partition(fn, *args, mesh=MESH, device="tpu-v5e", donate=donate, progress=False)
    searched = sw.compare(plan)
    assert searched.best_expert.step_seconds >= searched.ours.step_seconds
    plan.save(tmp_path / "plan.json")
    assert sw.compare(sw.load(tmp_path / "plan.json", fn, *args)) == searched


def test_a_program_to_which_no_tactic_applies():
    x = jax.ShapeDtypeStruct((6,), "float32")
    comparison = sw.compare(sw.evaluate(lambda x: x + 1, x, mesh={"x": 4}, device="tpu-v5e"))
    assert [row.name for row in comparison.rows] == [OURS, REPLICATED]


def test_on_many_axes_few_combinations_are_priced_and_the_best_is_among_them(monkeypatch):
    """Of 625; on three axes none is left out that a search starts from."""
    fn, args, donate = SMALL["language"]
    plan = sw.evaluate(fn, *args, mesh=dict.fromkeys("abcd", 2), device="tpu-v5e", donate=donate)
    module = sys.modules["shardwright.compare"]
    priced = module._experts(plan)
    monkeypatch.setattr(module, "_FEW_AXES", 4)
    more = module._experts(plan)
    assert len(priced) <= 64 < 160 < len(more)
    assert min(cost.step_seconds for cost in priced.values()) == min(cost.step_seconds for cost in more.values())
    names = [{tactic for choice in choices for tactic in choice.split("+")} - {""} for choices in priced]
    assert all({tactic} in names for tactic in set.union(*names))

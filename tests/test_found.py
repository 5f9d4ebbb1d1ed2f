"""Found, not given: without tactics to start from, the search arrives at the strategies that people have named.

The devices are slow and their links without latency, so that small presets weigh compute against communication as
large models do on real ones.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import pytest

import shardwright as sw
from benchmarks.baselines import experts
from programs import f32
from shardwright.devices import Device, Link
from shardwright.models import build
from shardwright.price import Cost
from shardwright.price.shardings import shard_values
from shardwright.problem import Problem
from shardwright.request import Budget, MeshShape
from shardwright.search import Space, find_actions, find_keepers
from shardwright.space import Decision, Whole, describe
from shardwright.space.state import Sharding
from shardwright.traced import Traced

pytestmark = pytest.mark.slow


def device(link_bytes_per_second: float = 1e9) -> Device:
    link = Link("wire", link_bytes_per_second, 0.0)
    return Device("slow", "gpu", {"f32": 2e10, "bf16": 2e10}, 2**36, 1e10, links=(link,))


class Found:
    """What a search without tactics found."""

    def __init__(self, traced: Traced, mesh: dict[str, int], limit_bytes: int, on: Device) -> None:
        self.traced, self.mesh = traced, MeshShape.of(mesh)
        problem = Problem.of(traced, on, limit_bytes, (self.mesh,))
        self.costs, outcome = problem.costs, problem.search(use_tactics=False)
        self.cost, self.state = outcome.cost, outcome.best
        self.decisions = describe(traced.analysis, self.mesh, outcome.best)
        self.values = shard_values(traced.places, self.mesh, outcome.best)

    def dimensions(self, axis: str) -> list[str]:
        return [d.dimension for d in self.decisions if isinstance(d, Decision) and d.axis == axis]

    def sharding(self, path: str) -> Sharding:
        return self.values[next(a.value for a in self.traced.analysis.program.arguments if a.path == path)]

    def best_expert(self, limit_bytes: int) -> Cost:
        whole, keepers = find_keepers(self.traced.analysis, ())
        actions = find_actions(self.traced.analysis, self.mesh)
        space = Space(self.traced.analysis, self.costs, actions, whole, keepers)
        cost = experts(space, self.costs, limit_bytes)[-1].cost
        assert cost is not None
        return cost


@cache
def traced(model: str, sizes: tuple[tuple[str, int], ...] = ()) -> Traced:
    fn, args, options = build(model, preset="tiny", **dict(sizes))
    return Traced.of(fn, args, options["donate"], "cuda", None, None)


def found(
    model: str, mesh: dict[str, int], limit_bytes: int | None = None, on: Device | None = None, **sizes: int
) -> Found:
    on = on or device()
    return Found(traced(model, tuple(sorted(sizes.items()))), mesh, limit_bytes or on.usable_bytes, on)


def test_data_parallelism_where_links_are_slow() -> None:
    def loss(params, batch):
        hidden = jax.nn.relu(batch["x"] @ params["a"])
        return jnp.mean((hidden @ params["b"] - batch["y"]) ** 2)

    params = {"a": f32(256, 512), "b": f32(512, 64)}
    batch = {"x": f32(4096, 256), "y": f32(4096, 64)}
    plan = sw.partition(loss, params, batch, mesh={"data": 8}, device=device(1e7))
    assert [str(d) for d in plan.decisions] == ["data: batch.x[0]"]
    assert [c.kind for c in plan.collectives] == ["all-reduce"]  # of the loss alone


def test_sharded_optimizer_state_where_there_is_room_for_the_parameters() -> None:
    """Data parallelism with an optimizer: the update is shared as well, which costs no more than summing gradients."""
    result = found("gpt", {"data": 4}, on=device(3e8))
    assert Whole("data", "state.params") in result.decisions
    assert "batch.tokens[0]" in result.dimensions("data")
    assert result.sharding("batch.tokens") == ((0,), ())
    assert result.sharding("state.params.embed") == ((), ())
    assert result.sharding("state.params.layers.w_up") == ((), (), ())
    assert result.sharding("state.opt.m.layers.w_up") != ((), (), ())


def test_zero_3_where_memory_is_short() -> None:
    smallest = found("gpt", {"data": 4}, limit_bytes=1)
    result = found("gpt", {"data": 4}, limit_bytes=int(smallest.cost.peak_bytes * 1.02))
    assert result.sharding("batch.tokens") == ((0,), ())
    for tree in ("params", "opt.m", "opt.v"):
        assert result.sharding(f"state.{tree}.layers.w_up") != ((), (), ())
    assert result.cost.peak_bytes <= smallest.cost.peak_bytes * 1.02


def test_megatron_where_the_batch_is_too_small() -> None:
    result = found("gpt", {"model": 4}, batch=2, hidden=512)  # with less, moving weights is as good in the feed-forward
    chosen = result.dimensions("model")
    assert "state.params.layers.wq[2]" in chosen  # heads
    assert "state.params.layers.w_up[2]" in chosen  # hidden
    assert result.sharding("state.params.layers.w_up")[2] == (0,)
    assert result.sharding("state.params.layers.w_down")[1] == (0,)
    assert result.sharding("state.params.layers.wq")[2] == (0,)
    assert result.sharding("state.params.layers.wo")[1] == (0,)
    assert result.sharding("batch.tokens") == ((), ())


def test_megatron_with_sequence_parallelism_where_memory_is_short() -> None:
    result = found("gpt", {"data": 2, "model": 4}, limit_bytes=1, batch=2, sequence=256)
    on_model = result.dimensions("model")
    assert "state.params.layers.wq[2]" in on_model
    assert "batch.tokens[1]" in on_model  # what has no heads is sharded along the sequence
    assert on_model.index("state.params.layers.wq[2]") < on_model.index("batch.tokens[1]")


def test_expert_parallelism() -> None:
    result = found("moe", {"model": 4}, batch=2)
    experts_first = result.sharding("state.params.layers.sparse.w_up")
    assert experts_first[1] == (0,)
    assert "state.params.layers.sparse.router[2]" in result.dimensions("model")


def test_edges_of_a_graph() -> None:
    result = found("gns", {"data": 4})
    assert "batch.edges[0]" in result.dimensions("data")
    assert result.sharding("batch.edges")[0] == (0,)


def test_a_long_context_with_its_conflict_resolved_beats_every_tactic() -> None:
    """One sequence, few heads: on one axis the queries' side of attention, on the other that of the keys."""
    sizes = {"batch": 1, "sequence": 512, "heads": 2, "kv_heads": 2, "head_dim": 16}
    result = found("gpt", {"x": 4, "y": 4}, **sizes)
    sequence = [d for d in result.decisions if isinstance(d, Decision) and d.dimension == "batch.tokens[1]"]
    assert {d.axis for d in sequence} == {"x", "y"}
    assert result.cost.step_seconds < result.best_expert(device().usable_bytes).step_seconds
    sides = [(*d.sides, 0, 0)[:2] for d in sequence]
    assert sides[0] != sides[1]


@pytest.mark.parametrize("seed", range(3))
def test_the_search_may_leave_a_tactic(seed: int) -> None:
    """What it returns is better than every tactic and combination, though it starts from them."""
    on = device()
    given = traced("moe", (("batch", 4),))
    mesh = MeshShape.of({"data": 2, "model": 4})
    problem = Problem.of(given, on, on.usable_bytes, (mesh,))
    costs, outcome = problem.costs, problem.search(Budget(seed=seed))
    whole, keepers = find_keepers(given.analysis, ())
    space = Space(given.analysis, costs, find_actions(given.analysis, mesh), whole, keepers)
    best = experts(space, costs, on.usable_bytes)[-1].cost
    assert best is not None
    assert outcome.cost.step_seconds < 0.98 * best.step_seconds

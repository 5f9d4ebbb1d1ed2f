"""Programs that people run, at a small size: planned with what their authors would split, and run equal."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwright as sw
from benchmarks.programs import PROGRAMS

#: At this size nothing is worth splitting, so what their authors would split is pinned.
PINS = {
    "deepseek": ["fsdp:data", "expert_parallel:model"],
    "embeddings": ["data_parallel:data", {"state.params.large": P("model"), "state.params.small": P("model")}],
    "dropless": ["fsdp:data", "megatron:model"],
    "rglru": ["fsdp:data", "megatron:model"],
    "lora": ["fsdp:data", "megatron:model"],
    "muon": ["fsdp:data", "megatron:model"],
    "paged_decode": ["data_parallel:data", "megatron:model"],
    "grpo": ["fsdp:data", "megatron:model"],
    "dit": ["fsdp:data", "megatron:model"],
    "conformer": ["fsdp:data", "megatron:model"],
}
QUICK = ("embeddings", "lora", "paged_decode")
#: A compiler's optimizations take longer than the one step that they would speed up.
UNOPTIMIZED = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def inputs(args):
    """Random numbers; an optimizer's state is zero, so that what it becomes are gradients and their squares alone."""
    random = np.random.default_rng(0)

    def leaf(path, array):
        names = {getattr(key, "key", None) for key in path}
        if names & {"opt", "momentum", "sums"}:
            return np.zeros(array.shape, array.dtype)
        if np.issubdtype(array.dtype, np.integer):
            return random.integers(0, 8, array.shape).astype(array.dtype)
        return (random.normal(size=array.shape) * 0.2).astype(array.dtype)

    return jax.tree.map_with_path(leaf, args)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PINS])
def test_a_plan_of_it_runs_equal(name):
    fn, args, options = PROGRAMS[name].module.build("small")
    plan = sw.partition(fn, *args, pin=PINS[name], seconds=0, **options)
    assert plan.mesh == {"data": 4, "model": 2}
    assert {axis for collective in plan.collectives for axis in collective.axes} == {"data", "model"}

    given = inputs(args)
    plain = jax.jit(fn, compiler_options=UNOPTIMIZED)(*given)
    step = plan.jit(donate_argnums=(), compiler_options=UNOPTIMIZED)
    for expected, found in zip(jax.tree.leaves(plain), jax.tree.leaves(step(*given)), strict=True):
        largest = np.max(np.abs(expected), initial=1e-30)
        np.testing.assert_allclose(found / largest, expected / largest, atol=1e-3, rtol=0)

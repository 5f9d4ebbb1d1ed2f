"""Plans that are run beside the plain function: what the verdict sees, and what it says."""

import re

import jax
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from programs import f32


def test_a_run_that_aborts_tells_which_check_failed():
    """The compiler's partitioner aborts on padding that is negative before and has gaps inside."""

    def fn(x):
        return lax.pad(x, 0.0, [(-1, 2, 1)])

    plan = sw.evaluate(fn, f32(28), mesh={"data": 2})
    aborting = jax.jit(fn, in_shardings=NamedSharding(plan.make_mesh(), P("data")))
    plan.__dict__["_exports"] = {"cpu": (export.export(aborting)(f32(28)), None)}
    verdict = plan.verify("run")
    assert not verdict
    assert re.fullmatch(
        r"the process was ended by SIGABRT: Check failed: .* \(1 vs. -1\), in spmd_partitioner.cc:\d+", verdict.message
    )

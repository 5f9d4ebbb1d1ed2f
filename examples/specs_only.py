"""Only the specs: plan once, then plain ``jax.jit`` and ``NamedSharding``, with nothing of Shardwright at run time.

``plan.in_specs`` are PartitionSpecs in the shape of the arguments, ``plan.out_specs`` in that of the result. What the
plan decides inside of the function is left to the compiler here; ``plan.jit()`` has that as well.

python examples/specs_only.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # stands in for eight accelerators; leave it out if you have them

MESH = {"data": 4, "model": 2}


def predict(params, x):
    for layer in params:
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return x


def normal(random, *shape):
    return (random.normal(size=shape) * shape[0] ** -0.5).astype(np.float32)


random = np.random.default_rng(0)
params = [{"up": normal(random, 256, 2048), "down": normal(random, 2048, 256)} for _ in range(3)]
x = normal(random, 64, 256)
expected = jax.jit(predict)(params, x)

# Shardwright: the specs, here with the batch's already decided. They could as well be printed, and pasted.
plan = sw.partition(predict, params, x, mesh=MESH, device="tpu-v5e", pin={"x": jax.P("data")})
in_specs, out_specs = plan.in_specs, plan.out_specs

mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * len(MESH))
in_shardings, out_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (in_specs, out_specs))
params, x = jax.device_put((params, x), in_shardings)
found = jax.jit(predict, in_shardings=in_shardings, out_shardings=out_shardings)(params, x)

print(plan)
print("specs:", in_specs)
print(f"mean square {jnp.mean(found**2):.6f}; with plain jax.jit {jnp.mean(expected**2):.6f}")
np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
